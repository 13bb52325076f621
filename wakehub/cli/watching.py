"""Following what happens: `why` (one message), `status` (every name, once) and `top` (the same, live)."""

import argparse

from wakehub.cli import output
from wakehub.cli.instance import instance
from wakehub.cli.parser import Commands
from wakehub.errors import Exit, Unavailable

_KEYS = "name, state, presence, listener (names, pid, host, since_ms, status), last_listened_ms, unread, oldest_ms, "


def add(commands: Commands) -> None:
    commands.add(
        "why",
        "tell the life of one message",
        run_why,
        examples=("wakehub why m_01jb2c3d4e5f6g7h8j9k0m1n2p",),
        details="Every event with its time, who caused it and what proves it, and what comes next.\n"
        "Exit: 0, or 65 when there is no such message; ids that begin likewise are named.",
        json_keys="id, from, to, re, group, class, origin, state, furthest, created_ms, expires_ms, bytes, digest, "
        "verified, attachments (name, bytes), hops, attempts, redelivery, events (event, at_ms, by, proof, code, "
        "detail, retry_ms, woken_by), presence, next, note; of one in a spool: id, state (spooled, refused), path, "
        "at_ms, reason, next",
    ).add_argument("id", metavar="ID", help="the whole id, as it is printed everywhere")
    commands.add(
        "status",
        "show who listens, what waits, who is overdue",
        run_status,
        examples=("wakehub status", "wakehub status --json"),
        details="A daemon that keeps silent is called unknown: it may be stopped, or hidden by a sandbox.\n"
        "Exit: 0, or 1 when messages wait for a listener that takes none for 20 min, or that died.",
        json_keys="healthy, hub and publisher (state: up, down or unknown, pid, ms, why), names ("
        + _KEYS
        + "last_hinted_ms, last_handed_off_ms, woken_by, trouble: overdue or dead_listener, "
        + "stuck (id, reason)), note",
    )
    commands.add(
        "top",
        "show the status live",
        run_top,
        examples=("wakehub top",),
        details="Drawn anew when something changes. q or Ctrl-C ends it.\nIt wants the extra cli: pip install "
        "'wakehub[cli]'. Exit: 0, 69 without that or without a terminal, 74 the terminal is gone.",
    )


def run_why(args: argparse.Namespace) -> int:
    from wakehub.ops.why import trace

    found = trace(instance(args), args.id)
    if args.json:
        output.say_json(found.to_json())
    else:
        output.say(found.to_text())
    return Exit.DONE


def run_status(args: argparse.Namespace) -> int:
    from wakehub.ops.status import survey

    found = survey(instance(args))
    if args.json:
        output.say_json(found.to_json())
    else:
        output.say(found.to_text())
    return found.exit


def run_top(args: argparse.Namespace) -> int:
    try:
        from wakehub.ops.top import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "rich":
            raise
        raise Unavailable(
            "top needs the package rich",
            why="it is not installed",
            remedy="in the clone, pip install '.[cli]'; wakehub status shows the same once",
        ) from error
    return run(instance(args))
