"""The event server, without a web server: who hears what, and that a stream that ended is forgotten."""

import asyncio

from wakehub.bench import sse


def test_a_stream_hears_its_own_name_and_its_topic_and_nothing_else():
    async def play():
        heard = {"a": [], "b": []}
        ready = asyncio.Semaphore(0)

        def listener(name):
            async def send(event):
                heard[name].append(event.get("body", b""))
                ready.release()

            return send

        async def post(name, body):
            parts = iter([{"body": body[:2], "more_body": True}, {"body": body[2:]}])

            async def receive():
                return next(parts)

            answers = []

            async def send(event):
                answers.append(event)

            await sse.app({"type": "http", "method": "POST", "path": f"/{name}"}, receive, send)
            return answers[0]["status"]

        scopes = {name: {"type": "http", "method": "GET", "path": f"/{name}", "query_string": b"all"} for name in heard}
        streams = [asyncio.create_task(sse.app(scopes[name], None, listener(name))) for name in heard]
        for _ in range(4):  # head and greeting of both
            await ready.acquire()
        assert await post("a", b"one") == 204
        assert await post("all", b"two") == 204
        assert await post("nobody", b"three") == 204
        for _ in range(3):
            await ready.acquire()
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        return heard

    heard = asyncio.run(play())
    assert heard["a"] == [b"", sse.HELLO, b"data: one\n\n", b"data: two\n\n"]
    assert heard["b"] == [b"", sse.HELLO, b"data: two\n\n"]
    assert not any(sse._streams.values())
