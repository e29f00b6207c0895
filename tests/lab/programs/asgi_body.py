"""The body of a request of ASGI, for what looks at it before the application does."""


async def read(receive):
    """The body, and a `receive` that gives it again."""
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body, given = b"".join(parts), False

    async def again():
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return body, again
