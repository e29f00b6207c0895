"""The limits of an exchange over HTTP, in time and size."""

POST_LIMIT = 60.0
"""Seconds until a POST is answered, and between parts of an answer that is no event stream. A call's own limit
replaces it."""

READ_LIMIT = 5.0
"""Seconds until a server that answers nothing counts as having read what it was sent; a third of the time left, if that
is less."""

STREAM_LIMIT = 2.0
"""Seconds until the stream for the server's own messages is open or refused: messages sent before are lost. Some
servers open it only with their first message."""

REFUSAL_LIMIT = 64 << 10
"""Bytes read of an error page."""

REFUSAL_TIMEOUT = 5.0
"""Seconds for the body of a refusal: its status counts whatever becomes of the body."""

MOST_WORDS = 300
"""Characters that are shown of the words in a refusal."""

CONNECTION_IDLE_LIMIT = 4.0
"""Seconds until an idle connection is closed. Servers of Python and Node.js close it after 5 s: a request sent at that
moment is lost, and nobody knows whether it was read."""

MOST_HEADERS = 1000
"""Headers of an answer: 30,000 fit into the largest head that is read, and every layer copies each of them."""

MOST_REDIRECTS = 5
"""Redirects in a row that a request follows; a call follows none."""
