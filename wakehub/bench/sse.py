"""An event server as one writes it with a web server in Python (ASGI, no framework): the peer that uvicorn runs.

``GET /NAME`` is a stream of events for NAME, with ``?TOPIC`` those to TOPIC too; ``POST /NAME`` sends its body to all
streams of that name.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

HELLO: Final = b": hello\n\n"
_streams: dict[str, set["asyncio.Queue[bytes]"]] = {}


async def app(
    scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """The ASGI application."""
    if scope["type"] != "http":
        return
    name = scope["path"][1:]
    if scope["method"] == "GET":
        await _stream([name, *scope["query_string"].decode().split()], send)
        return
    body, more = b"", True
    while more:
        part = await receive()
        body, more = body + part.get("body", b""), part.get("more_body", False)
    for queue in _streams.get(name, ()):
        queue.put_nowait(b"data: " + body + b"\n\n")
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def _stream(names: list[str], send: Callable[[Any], Awaitable[None]]) -> None:
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    for name in names:
        _streams.setdefault(name, set()).add(queue)
    try:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": HELLO, "more_body": True})
        while True:
            await send({"type": "http.response.body", "body": await queue.get(), "more_body": True})
    finally:
        for name in names:
            _streams[name].discard(queue)
