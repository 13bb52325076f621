"""One process of a crowd around a record; the tests start it as `python inbox_actor.py ROLE RECORD NAME COUNT`.

It says "ready" and waits for a line before it begins, which is the barrier. `send` stores COUNT rows for alice and
prints each id after it was stored; `send-slowly` signs each row with a signer that waits for a line in the middle of
the transaction; `listen` hands off COUNT rows for NAME and prints "claimed ID REDELIVERY" before and "done ID" after;
`acquire` asks for NAME once, prints "held" or "refused", and stays until another line comes.
"""

import os
import sys
import time
from pathlib import Path

from wakehub.inbox.admission import Guard
from wakehub.inbox.clock import Now
from wakehub.inbox.leases import Lease
from wakehub.inbox.rows import NewRow, Signer
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.processes import ProcessId

_PARENT = os.getppid()


def say(line: str) -> None:
    print(line, flush=True)


def send(inbox: SqliteInbox, name: str, count: int) -> None:
    for number in range(count):
        (row,) = inbox.append(NewRow(name, "alice", f"{name} {number}".encode()), Now.read())
        say(row.id)


def send_slowly(inbox: SqliteInbox, name: str, count: int) -> None:
    def sign(_: bytes) -> bytes:
        say("inside")
        sys.stdin.readline()
        return b"s" * 64

    for _ in range(count):
        inbox.append(NewRow(name, "alice", b"slow", signed=Signer("k", sign)), Now.read())
        say("stored")


def listen(inbox: SqliteInbox, name: str, count: int) -> None:
    lease = inbox.leases.acquire([name], ProcessId.own(), name, Now.read())
    assert isinstance(lease, Lease), lease
    done = 0
    while done < count and os.getppid() == _PARENT:
        seen = inbox.changed()
        head = inbox.next_for([name], lease.token, Now.read())
        row = inbox.claim(head.id, lease.token, Now.read()) if head is not None else None
        if row is None:
            while inbox.changed() == seen and os.getppid() == _PARENT:
                time.sleep(0.002)
            continue
        say(f"claimed {row.id} {row.redelivery}")
        assert inbox.hand_off(row.id, lease.token, "flushed", Now.read())
        say(f"done {row.id}")
        done += 1


def acquire(inbox: SqliteInbox, name: str, count: int) -> None:
    got = inbox.leases.acquire([name], ProcessId.own(), name, Now.read())
    say("held" if isinstance(got, Lease) else "refused")
    sys.stdin.readline()


if __name__ == "__main__":
    role, record, name, count = sys.argv[1:]
    with SqliteInbox.open(Path(record), guard=Guard(pair_per_minute=10_000)) as inbox:
        say("ready")
        sys.stdin.readline()
        roles = {"send": send, "send-slowly": send_slowly, "listen": listen, "acquire": acquire}
        roles[role](inbox, name, int(count))
