"""A publisher for the client's tests: one thread on a real Unix socket, answers written by the test."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Answering = Callable[[list[str], socket.socket], None]


def answer(connection: socket.socket, row_id: str, state: str = "hinted", **more: object) -> None:
    """Send one answer line of formats.md, Poke."""
    line = {"id": row_id, "state": state, "code": None, "holder": True} | more
    connection.sendall(json.dumps(line).encode() + b"\n")


def hint_all(ids: list[str], connection: socket.socket) -> None:
    for row_id in ids:
        answer(connection, row_id)


@contextmanager
def publisher(path: Path, answering: Answering = hint_all) -> Iterator[list[list[str]]]:
    """Serve until the block ends; yields what was asked so far, one list of ids per connection."""
    asked: list[list[str]] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                line = lines.readline()
                if not line:
                    return
                request = json.loads(line)
                assert request["v"] == 1
                asked.append(request["ids"])
                try:
                    answering(request["ids"], connection)
                except OSError:
                    pass  # the client went first

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(8)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join()
            path.unlink()
