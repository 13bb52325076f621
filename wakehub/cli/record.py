"""Looking into the record: `agents`, `inbox`, `ack`.

The record is the one truth, so that these and `send` never disagree.
"""

import argparse
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from wakehub.cli import output, words
from wakehub.cli.instance import call, instance
from wakehub.cli.messages import AS_HELP
from wakehub.cli.parser import Commands
from wakehub.errors import Exit
from wakehub.limits import RECORD_WATCH_MS
from wakehub.visible import visible

if TYPE_CHECKING:
    from wakehub.config import Config
    from wakehub.identity.registry import Registry
    from wakehub.inbox.clock import Now
    from wakehub.inbox.rows import Row
    from wakehub.inbox.store import Ack, BoxCount, Inbox

_SHOWN = 160  # characters of a message in a listing


def add(commands: Commands) -> None:
    commands.add(
        "agents",
        "list the names, who listens, what waits",
        run_agents,
        examples=("wakehub agents", "wakehub agents --json"),
        json_keys="agents (name, state, generation, enrolled_at, closed_at, listener (names, pid, "
        "since_ms, status), last_listened_ms, unread, oldest_ms)",
    )
    inbox = commands.add(
        "inbox",
        "list unread messages, oldest first",
        run_inbox,
        examples=("wakehub inbox --as alice", "wakehub inbox --as alice --wait 30 --json --limit 10"),
        details="It acknowledges nothing. Exit: 0, or 3 when nothing is unread.",
        json_keys="box, messages (as `listen --format json`, and state, attempts), more, others (name, unread)",
    )
    inbox.add_argument("--as", dest="own_name", metavar="NAME", help=AS_HELP)
    inbox.add_argument("--from", dest="sender", metavar="ADDR", help="only messages from this address")
    inbox.add_argument("--wait", type=words.duration(least=0), default=0, metavar="TIME", help="wait for one to come")
    inbox.add_argument("--limit", type=words.whole_number(least=1), default=100, metavar="N", help="default 100")
    ack = commands.add(
        "ack",
        "acknowledge messages by hand",
        run_ack,
        examples=("wakehub ack m_01jb2c3d4e5f6g7h8j9k0m1n2p",),
        details="It works while nobody else listens under the recipient's name.\n"
        "Exit: 0, 65 no such message, 75 another process holds the name.",
        json_keys="acks (id, outcome, state)",
    )
    ack.add_argument("--as", dest="own_name", metavar="NAME", help="who acknowledges, for the message's history")
    ack.add_argument("ids", nargs="+", metavar="ID", help="the whole id, as it is printed everywhere")


@contextlib.contextmanager
def _record(config: "Config") -> "Iterator[Inbox | None]":
    """The record, or None while there is none: then nothing was ever sent."""
    from wakehub.inbox.refusals import NoRecord
    from wakehub.inbox.sqlite import SqliteInbox

    try:
        inbox = SqliteInbox.open(config.paths.record, create=False)
    except NoRecord:
        yield None
        return
    with inbox:
        yield inbox


# --- agents ---


def run_agents(args: argparse.Namespace) -> int:
    from wakehub.identity.owner import read_registry
    from wakehub.inbox.clock import Now
    from wakehub.ops.status import column, known_names

    config = instance(args)
    registry = read_registry(config.paths)
    now = Now.read()
    with _record(config) as inbox:
        boxes = {box.name: box for box in inbox.boxes_with_unread()} if inbox else {}
        found = [
            {"name": name, **_standing(name, registry), **_listening(inbox, name, now), **_waiting(boxes.get(name))}
            for name in known_names(inbox, registry)
        ]
    if args.json:
        output.say_json({"agents": found})
        return Exit.DONE
    width = column(agent["name"] for agent in found)
    for agent in found:
        output.say(f"{visible(agent['name']):<{width}}  {_in_words(agent, now)}")
    if not found:
        output.say("no agent is enrolled; next: wakehub enroll NAME")
    return Exit.DONE


def _standing(name: str, registry: "Registry") -> dict[str, Any]:
    from wakehub.identity import stamps
    from wakehub.ops.status import standing

    agent = registry.agents.get(name)
    closed_at = agent.closed_at if agent else None
    return {
        "state": standing(name, registry),
        "generation": agent.generation if agent else None,
        "enrolled_at": stamps.mint(agent.keys[-1].since) if agent else None,
        "closed_at": None if closed_at is None else stamps.mint(closed_at),
    }


def _listening(inbox: "Inbox | None", name: str, now: "Now") -> dict[str, Any]:
    from wakehub.client.presence import presence

    found = presence(inbox.leases, name, now) if inbox else None
    lease, last = (found.listener, found.last) if found else (None, None)
    return {
        "listener": lease
        and {
            "names": list(lease.names),
            "pid": lease.process.pid,
            "since_ms": lease.since_ms,
            "status": lease.status,
        },
        "last_listened_ms": last and last.ended_ms,
    }


def _waiting(box: "BoxCount | None") -> dict[str, Any]:
    return {"unread": box.unread if box else 0, "oldest_ms": box.oldest_ms if box else None}


def _in_words(agent: dict[str, Any], now: "Now") -> str:
    from wakehub.relay.render import age

    def ago(ms: int) -> str:
        return age(max(0, now.ms - ms) // 1000).removesuffix(" old")

    parts = [agent["state"].replace("_", " ")]
    if agent["listener"]:
        parts.append(f"pid {agent['listener']['pid']} listens for {ago(agent['listener']['since_ms'])}")
        if agent["listener"]["status"]:
            parts.append(visible(agent["listener"]["status"]))
    elif agent["last_listened_ms"] is not None:
        parts.append(f"nobody listens since {ago(agent['last_listened_ms'])}")
    else:
        parts.append("nobody listened yet")
    if agent["unread"]:
        parts.append(f"{agent['unread']} unread, the oldest {ago(agent['oldest_ms'])} old")
    return " · ".join(parts)


# --- inbox ---


def run_inbox(args: argparse.Namespace) -> int:
    from wakehub.client import names
    from wakehub.identity.addresses import check_address, is_reserved

    config = instance(args)
    own = names.choose(args.own_name)
    senders = None if args.sender is None else [check_address(args.sender)]
    rows: Sequence[Row] = ()
    others: list[dict[str, Any]] = []
    more = 0
    with _record(config) as inbox:
        if inbox:
            _wait_for_one(inbox, own.name, senders, args.wait)
            rows = inbox.unread(own.name, limit=args.limit, senders=senders)
            more = max(0, inbox.count_unread(own.name, senders=senders) - len(rows))
            waiting = [box for box in inbox.boxes_with_unread() if not is_reserved(box.name)]
            others = [{"name": box.name, "unread": box.unread} for box in waiting if box.name != own.name]
    if args.json:
        output.say_json(
            {"box": own.name, "messages": _documents(config, rows, call(args)), "more": more, "others": others}
        )
    else:
        for line in _lines(config, rows):
            output.say(line)
        if more:
            output.say(f"{more} more; --limit {len(rows) + more} shows all")
        if not rows:
            output.say(f"{own.name} (by {own.source}): nothing unread")
            for box in others:
                output.say(f"  {visible(box['name'])}: {box['unread']} unread")
    return Exit.DONE if rows else Exit.NOTHING


def _wait_for_one(inbox: "Inbox", name: str, senders: list[str] | None, wait_s: int) -> None:
    """Return once there is an unread row, or after `wait_s` seconds; reads again whenever the record changed."""
    deadline = time.monotonic() + wait_s
    while True:
        seen = inbox.changed()  # before the reading: what comes behind it differs
        if inbox.count_unread(name, senders=senders):
            return
        while inbox.changed() == seen:
            if time.monotonic() >= deadline:
                return
            time.sleep(RECORD_WATCH_MS / 1000)


def _lines(config: "Config", rows: "Sequence[Row]") -> list[str]:
    """A line for each message; one that is long is shown in part, and says so with an ellipsis."""
    from wakehub.inbox.clock import Now
    from wakehub.relay.keyring import Keyring
    from wakehub.relay.message import Message
    from wakehub.relay.render import render

    keyring, now = Keyring(config.paths, _say_trouble), Now.read()
    lines = [render(Message(row, keyring.verdict(row), now.ms), "line").decode().rstrip("\n") for row in rows]
    return [line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…" for line in lines]


def _say_trouble(line: str) -> None:
    output.warn(f"wakehub: {visible(line)}")


def _documents(config: "Config", rows: "Sequence[Row]", call: str) -> list[dict[str, Any]]:
    from wakehub.inbox.clock import Now
    from wakehub.relay.keyring import Keyring
    from wakehub.relay.message import Message, document

    keyring, now = Keyring(config.paths, _say_trouble), Now.read()
    return [
        document(Message(row, keyring.verdict(row), now.ms, call=call)) | {"state": row.state, "attempts": row.attempts}
        for row in rows
    ]


# --- ack ---


def run_ack(args: argparse.Namespace) -> int:
    from wakehub.client import names
    from wakehub.inbox.clock import Now
    from wakehub.inbox.store import Ack

    by = os.environ.get("WAKEHUB_AGENT", "") if args.own_name is None else names.check_given(args.own_name)
    session = os.environ.get("WAKEHUB_SESSION")
    with _record(instance(args)) as inbox:
        acks = inbox.ack(args.ids, by, session, Now.read()) if inbox else [Ack(id, "unknown") for id in args.ids]
    if args.json:
        output.say_json({"acks": [{"id": ack.id, "outcome": ack.outcome, "state": ack.state} for ack in acks]})
    else:
        for ack in acks:
            output.say(f"{visible(ack.id)}: {_became(ack)}")
    if any(ack.outcome == "unknown" for ack in acks):
        return Exit.DATA
    return Exit.HELD if any(ack.outcome == "held" for ack in acks) else Exit.DONE


def _became(ack: "Ack") -> str:
    match ack.outcome:
        case "acknowledged":
            return "acknowledged"
        case "already":
            return f"was {(ack.state or '').replace('_', ' ')} already"
        case "held":
            by = f"pid {ack.holder.process.pid}" if ack.holder else "another process"
            return f"not acknowledged: {by} listens under that name and alone may take it"
        case "unknown":
            return "no such message; next: see what waits: wakehub inbox"
