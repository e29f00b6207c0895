"""The limits of an exchange over HTTP, in time and size."""

POST_LIMIT = 60.0
"""Seconds until a POST is answered, and between parts of an answer that is no event stream. A call's own limit
replaces it."""

READ_LIMIT = 5.0
"""Seconds until a server that answers nothing counts as one that has read what it was sent; a third of the time that
is left, if that is less."""

STREAM_LIMIT = 2.0
"""Seconds until the stream for the server's own messages is open or refused: what it says before is lost. Some servers
open it with the first thing that they say."""

REFUSAL_LIMIT = 64 << 10
"""Bytes read of an error page."""

CONNECTION_IDLE_LIMIT = 4.0
"""Seconds until a connection is closed on which nothing is under way. Servers of Python and of Node.js close it after
5 s: what is sent at that moment is lost, and nobody knows whether the server has read it."""

MOST_HEADERS = 1000
"""Headers of an answer: 30,000 fit into the largest head that is read, and every layer copies each of them."""

MOST_REDIRECTS = 5
"""Redirects in a row that a request is sent along; a call is sent along none."""
