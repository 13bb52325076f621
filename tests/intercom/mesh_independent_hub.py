"""A hub of the mesh that behaves as the existing implementation does, in plain sockets and json: run it as a script.

    python mesh_independent_hub.py CHANNEL_DIRECTORY

Whatever comes first on a connection registers its sender. No receipts, no heartbeats, no transient senders. It
closes once the client has ended its half and every line was handled. It uses nothing of the package.
"""

import contextlib
import fcntl
import json
import os
import socket
import socketserver
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(sys.argv[1] if __name__ == "__main__" else ".")
CONNECTED: dict[str, Any] = {}
GUARD = threading.Lock()


def line(kind: str, to: str, payload: dict[str, Any]) -> bytes:
    found = {
        "id": "msg_000000000000",
        "type": kind,
        "from_session": "hub",
        "to_session": to,
        "channel": HERE.name,
        "reply_to": None,
        "payload": payload,
        "timestamp": datetime.now(UTC).isoformat(),
    }
    return json.dumps(found).encode() + b"\n"


def publish() -> None:
    document = {
        "channel": HERE.name,
        "hub_pid": os.getpid(),
        "active_sessions": sorted(CONNECTED),
        "updated_at": datetime.now(UTC).isoformat(),
    }
    temporary = HERE / "peers.json.tmp"
    temporary.write_text(json.dumps(document))
    temporary.rename(HERE / "peers.json")


class Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        session = ""
        try:
            for raw in self.rfile:
                found = json.loads(raw)
                if not session:
                    with GUARD:
                        if found["from_session"] in CONNECTED:
                            about = {"code": "SESSION_COLLISION", "message": "taken"}
                            self.wfile.write(line("error", found["from_session"], about))
                            return
                        session = found["from_session"]
                        CONNECTED[session] = self
                        publish()
                        peers = {"peers": sorted(CONNECTED), "status": "connected"}
                    self.wfile.write(line("welcome", session, peers))
                if found["type"] == "chat":
                    self.route(found, raw)
        finally:
            with GUARD:
                if CONNECTED.get(session) is self:
                    del CONNECTED[session]
                    publish()

    def route(self, found: dict[str, Any], raw: bytes) -> None:
        to = found.get("to_session", "*")
        with GUARD:
            everyone = [each for each in CONNECTED if each != found["from_session"]]
            for recipient in everyone if to in ("*", "all") else [to]:
                with (HERE / f"inbox_{recipient}.ndjson").open("ab") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    file.write(raw)
                if recipient in CONNECTED:
                    with contextlib.suppress(OSError):
                        CONNECTED[recipient].wfile.write(raw)


class Hub(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.server_address)
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


def main() -> None:
    with (HERE / "hub.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with Hub(os.fspath(HERE / "hub.sock"), Session) as hub:
            print("ready", flush=True)
            hub.serve_forever()


if __name__ == "__main__":
    main()
