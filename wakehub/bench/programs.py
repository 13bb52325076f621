"""The programs at the ends: what somebody writes with a client library, in a process of its own.

    python -m wakehub.bench.programs hear CLIENT ADDRESS NAME…   "ready" for each name; for each message: number, ns
    python -m wakehub.bench.programs say CLIENT ADDRESS          for each order on standard input: when each send began
    python -m wakehub.bench.programs store -                     for each order: how long each row took to be stored

CLIENT is `wakehub`, `session` (the hub alone, with a file of bundles in the place of a name), `redis` or `nats`. All
clocks are `perf_counter_ns`, which on one machine is one clock.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_BODY_BYTES: Final = 100
_now: Final = time.perf_counter_ns

Act = Callable[[dict[str, Any]], dict[str, Any]]
"""Carries an order out: `count` messages to the names in `to`, from number `first` on, `pace_ms` before each."""


def text_of(number: int) -> str:
    """The message of that number: as long as all others."""
    return f"{number} ".ljust(_BODY_BYTES, ".")


def number_of(text: str) -> int:
    """The number of a message."""
    return int(text.split()[0])


def _heard(text: str, at: int) -> None:
    os.write(1, f"{number_of(text)} {at}\n".encode())  # one write: several threads may be at it


def _ready() -> None:
    os.write(1, b"ready\n")


# --- wakehub ---


def hear_wakehub(names: list[str]) -> None:
    """Listen under each name, in a thread each, and acknowledge what comes."""
    threads = [threading.Thread(target=_listen, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _listen(name: str) -> None:
    from wakehub.api import listen

    _ready()
    for message in listen(name):
        at = _now()
        assert message.text is not None
        message.ack()
        _heard(message.text, at)


def say_wakehub(order: dict[str, Any]) -> dict[str, Any]:
    """Send as one does from Python: returns when the receipts are in."""
    from wakehub.api import send

    names = order["to"]
    return _paced(order, lambda number: send(names[number % len(names)], text_of(number), sender="sayer"))


def store(order: dict[str, Any]) -> dict[str, Any]:
    """Append rows to the record, one transaction each, and nothing else."""
    from wakehub import config
    from wakehub.inbox.admission import Guard
    from wakehub.inbox.clock import Now
    from wakehub.inbox.rows import NewRow
    from wakehub.inbox.sqlite import SqliteInbox

    found = config.load()
    with SqliteInbox.open(found.paths.record, guard=Guard(pair_per_minute=found.pair_per_minute)) as inbox:
        return _paced(
            order, lambda number: inbox.append(NewRow("sayer", "nobody", text_of(number).encode()), Now.read())
        )


def _numbers(order: dict[str, Any]) -> range:
    return range(order["first"], order["first"] + order["count"])


def _paced(order: dict[str, Any], act: Callable[[int], Any]) -> dict[str, Any]:
    began, took = [], []
    for number in _numbers(order):
        time.sleep(order["pace_ms"] / 1000)
        at = _now()
        act(number)
        began.append(at)
        took.append(_now() - at)
    return {"began_ns": began, "took_ns": took}


# --- wakehub's hub alone: a wake and nothing stored ---


def hear_session(address: str, bundles: str) -> None:
    """Agent 1 of the file: our own client's session, as a subscriber holds it."""
    import trio

    from wakehub.client.connection import connect
    from wakehub.wire.protocol import Woken

    async def play() -> None:
        async with connect(Path(address), _bundle(bundles, 1)) as session:
            _ready()
            while True:
                event = await session.receive()
                at = _now()
                if isinstance(event, Woken):
                    _heard(event.wake.row_id.decode(), at)

    trio.run(play)


def say_session(address: str, bundles: str) -> None:
    """Agent 0 of the file wakes agent 1."""
    import trio

    from wakehub.client.connection import connect
    from wakehub.wire.payloads import Wake

    async def play() -> None:
        to = _bundle(bundles, 1).agent_id
        async with connect(Path(address), _bundle(bundles, 0)) as session:
            _ready()
            for line in sys.stdin:  # nothing else is to be done meanwhile
                order = json.loads(line)
                began, took = [], []
                for number in _numbers(order):
                    await trio.sleep(order["pace_ms"] / 1000)
                    at = _now()
                    await session.wake(to, Wake(text_of(number).encode()))
                    began.append(at)
                    took.append(_now() - at)
                print(json.dumps({"began_ns": began, "took_ns": took}), flush=True)

    trio.run(play)


def _bundle(bundles: str, number: int) -> Any:
    from wakehub.identity.delegation import Bundle

    return Bundle.from_json(Path(bundles).read_text("utf-8").splitlines()[number])


# --- what others write instead ---


def hear_redis(address: str, names: list[str]) -> None:
    """redis-py, its synchronous client."""
    redis: Any = import_module("redis")

    channel = redis.Redis(unix_socket_path=address).pubsub(ignore_subscribe_messages=True)
    channel.subscribe(*names)
    channel.get_message(timeout=5)
    _ready()
    for message in channel.listen():
        _heard(message["data"].decode(), _now())


def sayer_redis(address: str) -> Act:
    """redis-py; a publish returns when the server has answered."""
    redis: Any = import_module("redis")

    client = redis.Redis(unix_socket_path=address)
    return lambda order: _paced(order, lambda number: client.publish(order["to"][0], text_of(number)))


async def hear_nats(address: str, names: list[str]) -> None:
    """nats-py, which is asynchronous only."""
    nats: Any = import_module("nats")

    client = await nats.connect(address)

    async def heard(message: Any) -> None:
        _heard(message.data.decode(), _now())

    for name in names:
        await client.subscribe(name, cb=heard)
    await client.flush()
    _ready()
    await asyncio.Event().wait()


def sayer_nats(address: str) -> Act:
    """nats-py; a publish is flushed, since it is not sent otherwise."""
    nats: Any = import_module("nats")

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(nats.connect(address))

    async def publish(name: str, number: int) -> None:
        await client.publish(name, text_of(number).encode())
        await client.flush()

    return lambda order: _paced(order, lambda number: loop.run_until_complete(publish(order["to"][0], number)))


def main(what: str, client: str, address: str = "-", *names: str) -> None:
    """Hear until killed, or carry out orders until standard input ends."""
    if what == "hear":
        match client:
            case "wakehub":
                hear_wakehub(list(names))
            case "session":
                hear_session(address, names[0])
            case "redis":
                hear_redis(address, list(names))
            case "nats":
                asyncio.run(hear_nats(address, list(names)))
        return
    if client == "session":
        say_session(address, names[0])
        return
    sayers: dict[str, Callable[[str], Act]] = {
        "wakehub": lambda _: say_wakehub,
        "redis": sayer_redis,
        "nats": sayer_nats,
    }
    act = store if what == "store" else sayers[client](address)
    _ready()
    for line in sys.stdin:
        print(json.dumps(act(json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
