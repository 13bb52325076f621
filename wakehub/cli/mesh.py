"""What the commands of `wakehub intercom` do (intercom.md §6, §7).

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

from wakehub.cli import messages, output
from wakehub.cli.instance import instance
from wakehub.cli.parser import Usage
from wakehub.errors import BadData, Exit, Held, Misconfigured
from wakehub.limits import PARENT_WATCH_MS, RECORD_WATCH_MS
from wakehub.visible import visible

if TYPE_CHECKING:
    from wakehub.intercom.channels import Channel
    from wakehub.intercom.identity import Identity
    from wakehub.intercom.ndjson import Envelope, Refusal
    from wakehub.intercom.spool import Batch, Inbox

DEFAULT_CHANNEL = "default"
_ALL = 1 << 30


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
        raise _bad_data(refused) from refused


def _bad_data(refused: "Refusal") -> BadData:
    from wakehub.intercom.ndjson import Code

    if refused.code is Code.LINE_TOO_LONG:
        return _too_long(f"{refused.message}, and what is not ASCII takes 6 bytes or more")
    return BadData(refused.message, remedy="wakehub intercom COMMAND --help shows what can be given")


def _too_long(why: str) -> BadData:
    return BadData(
        "the message is too long for the mesh", why=why, remedy="split it, or write it to a file and send its path"
    )


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
        output.warn(f"wakehub: this project is {found.session} on channel {channel.name}: {found.why}")
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

    _check_reply_to(args.reply_to)
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


def _check_reply_to(message_id: str | None) -> None:
    from wakehub.intercom.ndjson import is_message_id

    if message_id is not None and not is_message_id(message_id):
        raise Usage(
            f"--reply-to: '{visible(message_id)}' is no id of a message",
            why="one is msg_ and 12 of 0-9 a-f",
            remedy="take it from what poll or listen printed",
        )


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
    if len(data) > MAX_MESH_LINE_BYTES:
        raise _too_long(f"{_size_of_stdin(len(data))} bytes came, and a line holds at most {MAX_MESH_LINE_BYTES}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadData("standard input is not UTF-8", why="the mesh carries text", remedy="send its path") from error


def _size_of_stdin(read: int) -> str:
    """How many bytes standard input has, of which so many were read; looked at only so far."""
    most = 64 * 1024 * 1024
    while read < most and (more := sys.stdin.buffer.read(64 * 1024)):
        read += len(more)
    return str(read) if read < most else f"over {most}"


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
        _tell_spoiled(batch, inbox)
        if messages or even_none:
            output.say_json({"count": len(messages), "messages": messages})
        if messages and not batch.is_last:
            output.warn(
                f"wakehub: {inbox.session} has more unread than is printed at once; it comes with the next poll"
            )
        return bool(messages)


def run_listen(args: argparse.Namespace) -> int:
    from wakehub.intercom import client
    from wakehub.intercom.render import shown
    from wakehub.intercom.spool import Inbox

    as_lines = args.format == "line" or (args.format is None and sys.stdout is not None and sys.stdout.isatty())

    def hand_over(batch: "Batch") -> None:
        for envelope in batch.envelopes:
            output.say(shown(envelope)) if as_lines else output.say_json(envelope.document())
        _tell_spoiled(batch, Inbox(channel, session))

    def tell(line: str) -> None:
        output.warn(f"wakehub: {line}")

    def drop() -> None:
        tell(f"dropped {Inbox(channel, session).reset()} unread")

    with _channel(args) as channel, _stopped() as (stop, gone):
        session = _session(args, channel)
        begin = drop if _is_fresh(args) else None  # not before the id is ours: it may be another's mail
        try:
            client.listen(channel, session, hand_over, stop=stop, tell=tell, begin=begin)
        except Held as error:
            tell(str(error))  # one line, whoever greps for it
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


def _tell_spoiled(batch: "Batch", inbox: "Inbox") -> None:
    if batch.spoiled:
        from wakehub.intercom.render import spoiled

        output.warn(f"wakehub: {spoiled(batch, inbox)}")


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
            _forget(channel, probe)
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


def _forget(channel: "Channel", session: str) -> None:
    """Whoever looked is nobody: what was sent to all meanwhile is no mail of theirs."""
    from wakehub.intercom.spool import Inbox

    inbox = Inbox(channel, session)
    if inbox.stamp() is not None:
        inbox.reset()
        inbox.remove()


def run_cleanup(args: argparse.Namespace) -> int:
    from wakehub.intercom.cleanup import clean, forget, readers

    with _channel(args) as channel:
        forgotten = [forget(channel, name) for name in dict.fromkeys(args.forget)]
        found = clean(channel, stale=args.stale)
        left = readers(channel)
    for reader in left:
        if reader.unread and not reader.is_attended:
            output.warn(
                f"wakehub: {reader} has {reader.unread} unread, and no process is it: the inbox keeps everything for it"
                f"\n  next: start it again, or give that mail up: wakehub intercom cleanup --forget {reader}"
            )
    output.say_json(
        {
            "channel": channel.name,
            "hub": "live" if found.is_live else "none",
            "removed": list(found.removed),
            "kept": [{"session": session, "unread": unread} for session, unread in found.kept],
            "forgotten": [{"reader": str(each), "unread": each.unread} for each in forgotten],
            "readers": [{"reader": str(each), "unread": each.unread, "attended": each.is_attended} for each in left],
        }
    )
    return Exit.DONE


def run_daemon(args: argparse.Namespace) -> int:
    from wakehub.intercom import daemon

    with _channel(args) as channel:
        base, name = channel.base, channel.name
    return daemon.run(base, name)


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
