"""The channel mesh: `wakehub intercom` and the commands behind it (intercom.md §6, §7).

Same words and JSON as the existing tool. What a program reads is one JSON object a line, in plain ASCII; what a person
reads shows nothing invisible. The body of a message goes to standard output and nowhere else.
"""

import argparse
import contextlib
import os
import secrets
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wakehub.cli import messages, output, words
from wakehub.cli.instance import instance
from wakehub.cli.parser import Commands, Parser, Usage, add_instance_flags
from wakehub.errors import BadData, Exit, Held, Misconfigured
from wakehub.limits import PARENT_WATCH_MS, RECORD_WATCH_MS
from wakehub.visible import visible

if TYPE_CHECKING:
    from wakehub.intercom.channels import Channel
    from wakehub.intercom.identity import Identity
    from wakehub.intercom.ndjson import Envelope
    from wakehub.intercom.spool import Batch, Inbox

DEFAULT_CHANNEL = "default"
_ALL = 1 << 30
_EXITS = (
    "Exit: 0; 3 nothing there; 4 neither a hub nor the spool took it; 65 an id, channel or text that is refused; "
    "75 another process is connected under that id; 77 a directory or file that is not safe."
)
_SESSION_HELP = "act under this id, in place of the one that this project has"


def add(commands: Commands) -> None:
    parser = commands.add(
        "intercom",
        "talk over the NDJSON channel mesh, and bridge it to the record",
        run_nothing,
        examples=(
            "wakehub intercom init",
            "wakehub intercom send --to nova --text 'the tests pass'",
            "wakehub intercom poll --wait 30",
            "wakehub intercom bridge --channel dev --session rowan --as alice",
        ),
        details="A hub for each channel on a Unix socket, JSON Lines, spool files: works with the clients and hubs of "
        "the existing tool, in either direction. `wakehub intercom COMMAND --help` shows a command, `wakehub guide "
        "intercom` what differs and why.",
    )
    add_mesh_flags(parser)
    inner = Commands(parser, dest="intercom_command", flags=add_mesh_flags)
    _add_init(inner)
    _add_send(inner)
    _add_reading(inner)
    _add_looking(inner)
    _add_bridge(inner)


def add_mesh_flags(parser: Parser) -> None:
    """The flags that each of these commands has. Absent means absent, so that they may stand on either side."""
    group = parser.add_argument_group("which channel")
    for flag, dest, kind, metavar, text in (
        ("--dir", "mesh_dir", words.path, "DIR", "where the channels are (default: $AGY_IPC_DIR, else /tmp/agy-ipc)"),
        ("--channel", "channel", str, "NAME", f"default: {DEFAULT_CHANNEL}"),
        ("--project-dir", "project_dir", words.path, "DIR", "whose identity to use (default: this directory)"),
    ):
        group.add_argument(flag, dest=dest, type=kind, metavar=metavar, help=text, default=argparse.SUPPRESS)


def _add_init(commands: Commands) -> None:
    init = commands.add(
        "init",
        "choose this project's id on the channel, or show it",
        run_init,
        examples=("wakehub intercom init", "wakehub intercom init --channel dev --force-new"),
        details="The id is written to .intercom/session.json and stays: each command in this project goes by it. No "
        "command needs this one first; it shows where one stands.\n"
        "Prints: session, channel, project, new, replaced, active, active_by_me, unread, dropped.\n" + _EXITS,
    )
    init.add_argument("--force-new", action="store_true", help="give the id up and choose another one")
    _add_fresh(init)


def _add_fresh(parser: Parser) -> None:
    parser.add_argument("--fresh", action="store_true", help="drop what is unread, and say how much it was")
    parser.add_argument("--compat", action="store_true", help="the existing tool's defaults: --fresh is on")


def _add_send(commands: Commands) -> None:
    send = commands.add(
        "send",
        "send a chat to one id, or to all",
        run_send,
        examples=(
            "wakehub intercom send --to nova --text 'the tests pass'",
            "echo 'in full, `backticks` too' | wakehub intercom send --to nova --stdin",
            """wakehub intercom send --to '*' --json-payload '{"text": "merged", "sha": "1f0c"}'""",
        ),
        details="It works while this project's own listener runs.\n"
        "Prints: status (sent: one who is connected has it; spooled_offline: it waits for them; fallback_spooled: no "
        "hub could be reached, it waits in the spool; error: nobody has it) and envelope.\n" + _EXITS,
    )
    send.add_argument("--to", required=True, metavar="ID", help="who gets it; * or all for everyone who is connected")
    text = send.add_mutually_exclusive_group()
    text.add_argument("--text", metavar="TEXT", help="the text of the payload")
    text.add_argument("--stdin", action="store_true", help="read the text from standard input")
    send.add_argument("--json-payload", metavar="J", help="the payload as a JSON object; a text is added to it")
    send.add_argument("--session", metavar="ID", help=_SESSION_HELP)
    send.add_argument("--reply-to", metavar="MSG", help="the id of the message that this one answers")


def _add_reading(commands: Commands) -> None:
    poll = commands.add(
        "poll",
        "take what is unread, and end",
        run_poll,
        examples=("wakehub intercom poll", "wakehub intercom poll --wait 60", "wakehub intercom poll --peek"),
        details="Prints: count, messages. What was printed is not printed again; two of them at once share it out.\n"
        + _EXITS,
    )
    poll.add_argument(
        "--wait", type=words.duration(least=0), default=0, metavar="TIME", help="for the first one to come"
    )
    poll.add_argument("--peek", action="store_true", help="leave it unread")
    poll.add_argument("--session", metavar="ID", help=_SESSION_HELP)
    listen = commands.add(
        "listen",
        "stay connected and print each message as it comes",
        run_listen,
        examples=("wakehub intercom listen", "wakehub intercom listen --format json --session rowan"),
        details="What is unread comes first. A hub that dies is started again, and nothing is lost or printed twice.\n"
        + _EXITS,
    )
    listen.add_argument("--session", metavar="ID", help=_SESSION_HELP)
    listen.add_argument(
        "--format", choices=("line", "json"), help="default: line on a terminal, json (an envelope a line) otherwise"
    )
    _add_fresh(listen)


def _add_looking(commands: Commands) -> None:
    commands.add(
        "peers",
        "show who is connected",
        run_peers,
        examples=("wakehub intercom peers", "wakehub intercom peers --channel dev"),
        details="Prints: channel, hub (live or none), hub_pid, active_sessions, updated_at.\n" + _EXITS,
    )
    cleanup = commands.add(
        "cleanup",
        "remove what a hub that died left behind",
        run_cleanup,
        examples=("wakehub intercom cleanup", "wakehub intercom cleanup --stale"),
        details="A hub that runs is never touched, and unread mail is never removed.\n"
        "Prints: channel, hub (live or none), removed, kept.\n" + _EXITS,
    )
    cleanup.add_argument(
        "--stale", action="store_true", help="also mailboxes with nothing unread that nobody is behind"
    )
    commands.add(
        "daemon",
        "run the channel's hub in the foreground",
        run_daemon,
        examples=("wakehub intercom daemon --channel dev",),
        details="Each command that needs one starts it in the background; this is for supervisors. Where one runs, "
        "it ends with 0. It ends by itself 15 min after the last client left.",
    )


def _add_bridge(commands: Commands) -> None:
    bridge = commands.add(
        "bridge",
        "carry mail between a session on the mesh and an agent here",
        run_bridge,
        examples=(
            "wakehub intercom bridge --channel dev --session rowan --as alice",
            "wakehub intercom bridge --channel dev --session rowan --as alice --session wren --as bob",
        ),
        details="What is spooled for the session becomes a message to the agent, once, from intercom:CHANNEL/ID, shown "
        "as unverified: nobody on the mesh proves who they are. What the agent sends there goes out as a chat.\n"
        "One bridge for a channel; it may carry several agents. The session's own tools go on working beside it.\n"
        "Exit: 0 after a signal, 65 an id, name or channel that is refused, 67 the agent was closed or is not known, "
        "75 another process bridges the channel, 77 a directory or file that is not safe.",
    )
    bridge.add_argument("--session", action="append", required=True, metavar="ID", help="the session on the mesh")
    bridge.add_argument("--as", dest="own_names", action="append", required=True, metavar="NAME", help="the agent here")
    bridge.add_argument("--take-over", action="store_true", help="take the channel from the bridge that has it")
    add_instance_flags(bridge)


def run_nothing(args: argparse.Namespace) -> int:
    raise Usage("no command given", remedy="wakehub intercom --help")


@contextlib.contextmanager
def _channel(args: argparse.Namespace) -> "Iterator[Channel]":
    """The channel that the flags mean, checked and open; what the mesh refuses is said as any other error."""
    from wakehub.intercom.channels import Channel, base_directory
    from wakehub.intercom.ndjson import Refusal

    given = getattr(args, "mesh_dir", None)
    base = base_directory() if given is None else given.absolute()
    try:
        with Channel.open(base, getattr(args, "channel", DEFAULT_CHANNEL)) as opened:
            yield opened
    except Refusal as refused:
        raise BadData(refused.message, remedy="wakehub intercom COMMAND --help shows what can be given") from refused


def _session(args: argparse.Namespace, channel: "Channel") -> str:
    """The id that a command acts under: the one given, else the project's."""
    if args.session is None:
        return _identity(args, channel).session
    from wakehub.intercom.ndjson import check_session

    return check_session(args.session)


def _identity(args: argparse.Namespace, channel: "Channel", *, force_new: bool = False) -> "Identity":
    from wakehub.intercom import identity

    found = identity.settle(_project(args), channel, force_new=force_new)
    if found.replaced is not None:
        output.warn(f"wakehub: this project is {found.session} now, and no longer {found.replaced}: {found.why}")
    elif found.is_new:
        output.warn(f"wakehub: this project is {found.session} on channel {channel.name}")
    return found


def _project(args: argparse.Namespace) -> Path:
    try:
        given: Path = getattr(args, "project_dir", Path())
        return given.absolute()
    except OSError as error:
        raise Misconfigured(
            "there is no working directory", why=error.strerror or "", remedy="name the project with --project-dir"
        ) from error


# --- init ---


def run_init(args: argparse.Namespace) -> int:
    from wakehub.intercom.spool import Inbox

    with _channel(args) as channel:
        found = _identity(args, channel, force_new=args.force_new)
        inbox = Inbox(channel, found.session)
        dropped = inbox.reset() if _is_fresh(args) else 0
        unread = inbox.count_unread()
    output.say_json(
        {
            "session": found.session,
            "channel": channel.name,
            "project": str(_project(args)),
            "new": found.is_new,
            "replaced": found.replaced,
            "active": found.is_active,
            "active_by_me": found.is_active,
            "unread": unread,
            "dropped": dropped,
        }
    )
    return Exit.DONE


def _is_fresh(args: argparse.Namespace) -> bool:
    return bool(args.fresh or args.compat)


# --- send ---


def run_send(args: argparse.Namespace) -> int:
    from wakehub.intercom import client

    payload = _payload(args)
    with _channel(args) as channel:
        sent = client.send(channel, _chat(channel, _session(args, channel), args, payload))
    if sent.message:
        output.warn(f"wakehub: {visible(sent.message)}")
    output.say_json({"status": sent.status, "envelope": sent.envelope.document()})
    return Exit.NOT_REACHED if sent.status == "error" else Exit.DONE


def _chat(channel: "Channel", session: str, args: argparse.Namespace, payload: dict[str, Any]) -> "Envelope":
    """The chat that the flags make; raises `Refusal` for one that its reader would refuse."""
    from wakehub.intercom import ndjson

    if args.to not in ndjson.EVERYONE:
        ndjson.check_session(args.to)
    made = ndjson.Envelope("chat", session, args.to, channel.name, payload, args.reply_to)
    return ndjson.parse(made.line())


def _payload(args: argparse.Namespace) -> dict[str, Any]:
    """The payload that the flags make; raises `Usage` (2) for none, or two texts."""
    from wakehub.intercom import ndjson

    payload: dict[str, Any] = {}
    if args.json_payload is not None:
        try:
            payload = ndjson.decode(args.json_payload.encode())
        except ndjson.Refusal as refused:
            raise Usage(
                "--json-payload cannot be used", why=refused.message, remedy="give one JSON object"
            ) from refused
    text = _text(args)
    if text is None:
        if args.json_payload is None:
            raise Usage("there is nothing to send", remedy="give --text TEXT, --stdin or --json-payload J")
        return payload
    if "text" in payload:
        raise Usage("there are two texts", why="--json-payload has one, too", remedy="leave one of them out")
    return {"text": text} | payload


def _text(args: argparse.Namespace) -> str | None:
    if not args.stdin:
        return None if args.text is None else str(args.text)
    from wakehub.limits import MAX_MESH_LINE_BYTES

    data = messages.read_stdin(MAX_MESH_LINE_BYTES)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadData("standard input is not UTF-8", why="the mesh carries text", remedy="send its path") from error


# --- poll and listen ---


def run_poll(args: argparse.Namespace) -> int:
    from wakehub.intercom.spool import Inbox

    with _channel(args) as channel:
        inbox = Inbox(channel, _session(args, channel))
        deadline = time.monotonic() + args.wait
        while True:
            is_last = time.monotonic() >= deadline
            stamp = inbox.stamp()
            if _say_unread(inbox, peek=args.peek, even_none=is_last):
                return Exit.DONE
            if is_last:
                return Exit.NOTHING
            while inbox.stamp() == stamp and time.monotonic() < deadline:
                time.sleep(RECORD_WATCH_MS / 1000)
                channel.reopen()


def _say_unread(inbox: "Inbox", *, peek: bool, even_none: bool) -> bool:
    """Print what is unread, which is taken once it is out; whether there was any."""
    with contextlib.nullcontext(inbox.peek(_ALL)) if peek else inbox.taking(_ALL) as batch:
        messages = [each.document() for each in batch.envelopes]
        _tell_bad(batch, inbox.session)
        if messages or even_none:
            output.say_json({"count": len(messages), "messages": messages})
        return bool(messages)


def run_listen(args: argparse.Namespace) -> int:
    from wakehub.intercom import client
    from wakehub.intercom.render import shown
    from wakehub.intercom.spool import Inbox

    as_lines = args.format == "line" or (args.format is None and sys.stdout is not None and sys.stdout.isatty())

    def hand_over(batch: "Batch") -> None:
        for envelope in batch.envelopes:
            output.say(shown(envelope)) if as_lines else output.say_json(envelope.document())
        _tell_bad(batch, session)

    with _channel(args) as channel, _stopped() as (stop, gone):
        session = _session(args, channel)
        if _is_fresh(args):
            output.warn(f"wakehub: dropped {Inbox(channel, session).reset()} unread")
        try:
            client.listen(channel, session, hand_over, stop=stop, tell=lambda line: output.warn(f"wakehub: {line}"))
        except Held as error:
            output.warn(f"wakehub: {error}")  # one line, whoever greps for it
            return error.exit
    if gone.is_set():
        raise output.OutputGone("its reader is gone", quiet=True)
    return Exit.DONE


@contextlib.contextmanager
def _stopped() -> "Iterator[tuple[int, threading.Event]]":
    """A descriptor that becomes readable when it is time to end: a signal came, or nobody reads standard output.

    The event tells that it was the latter. A signal that was ignored when the process started stays ignored.
    """
    stop, ring = os.pipe()
    gone = threading.Event()

    def end(*_: object) -> None:
        os.write(ring, b".")

    def watch() -> None:
        poll = select.poll()
        poll.register(1, 0)  # errors and hang-ups are always reported
        while not poll.poll(PARENT_WATCH_MS):
            pass
        gone.set()
        end()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
    threading.Thread(target=watch, daemon=True).start()
    yield stop, gone  # both ends stay open until the process ends: the thread may still write


def _tell_bad(batch: "Batch", session: str) -> None:
    if batch.bad:
        output.warn(f"wakehub: {batch.bad} lines were no envelopes; they are kept in inbox_{session}.bad")


# --- peers, cleanup, daemon ---


def run_peers(args: argparse.Namespace) -> int:
    from wakehub.intercom import client

    with _channel(args) as channel:
        probe = f"peers-{secrets.token_hex(4)}"
        try:
            line, connected = client.join(channel, probe)
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
            is_live, sessions = False, []
        else:
            line.close()
            is_live, sessions = True, [each for each in connected if each != probe]
        told = channel.peers()
    output.say_json(
        {
            "channel": channel.name,
            "hub": "live" if is_live else "none",
            "hub_pid": told.hub_pid or None if is_live else None,
            "active_sessions": sessions,
            "updated_at": told.updated_at or None,
        }
    )
    return Exit.DONE if sessions else Exit.NOTHING


def run_cleanup(args: argparse.Namespace) -> int:
    from wakehub.intercom.cleanup import clean

    with _channel(args) as channel:
        found = clean(channel, stale=args.stale)
    output.say_json(
        {
            "channel": channel.name,
            "hub": "live" if found.is_live else "none",
            "removed": list(found.removed),
            "kept": [{"session": session, "unread": unread} for session, unread in found.kept],
        }
    )
    return Exit.DONE


def run_daemon(args: argparse.Namespace) -> int:
    from wakehub.intercom import election

    with _channel(args) as channel:
        base, name = channel.base, channel.name
    return election.run(base, name)


# --- bridge ---


def run_bridge(args: argparse.Namespace) -> int:
    from wakehub.intercom import bridge
    from wakehub.intercom.crossing import Seat

    if len(args.session) != len(args.own_names):
        raise Usage(
            f"{len(args.session)} sessions and {len(args.own_names)} agents make no pairs",
            remedy="give an --as for each --session, in the same order",
        )
    with _channel(args) as channel:
        pairs = zip(args.session, args.own_names, strict=True)
        seats = tuple(Seat(channel.name, session, name) for session, name in pairs)
        return bridge.run(instance(args), bridge.BridgeOptions(channel, seats, args.take_over))
