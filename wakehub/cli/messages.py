"""Sending and waiting: `send`, `listen`."""

import argparse
import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wakehub.cli import output, relay, words
from wakehub.cli.instance import call, instance
from wakehub.cli.parser import Commands, Usage
from wakehub.errors import BadData
from wakehub.limits import (
    DEFAULT_TTL_SECONDS,
    MAX_ATTACHED_BYTES,
    MAX_BACKSTOP_SECONDS,
    MAX_BODY_BYTES,
    MAX_TTL_SECONDS,
)
from wakehub.visible import visible

if TYPE_CHECKING:
    from wakehub.client.receipts import Receipt, Sent

_DIGEST_SHOWN = 12
_REACHED = frozenset({"hinted", "handed_off", "answered"})
AS_HELP = "your own address (default: $WAKEHUB_AGENT, else the session's name, else the directory's)"


def add(commands: Commands) -> None:
    _add_send(commands)
    _add_listen(commands)


def _add_send(commands: Commands) -> None:
    send = commands.add(
        "send",
        "store a message and have its reader woken",
        run_send,
        examples=(
            "echo 'the tests pass' | wakehub send --to alice --stdin",
            "wakehub send --as bob --to alice --wait handed-off --timeout 30 'please review'",
            "wakehub send --to acme/eng/ --file notes.md",
            "echo 'see the trace' | wakehub send --to alice --stdin --attach trace.log --attach core.txt",
        ),
        details=(
            "The message is stored first; what is printed then is what is proven, as it becomes known.\n"
            "Take --stdin for anything longer than a word: a shell changes quotes and backticks in arguments.\n"
            "A file is copied when it is sent, and its reader is handed a copy of that.\n"
            "Exit: 0 stored (or the awaited state), 4 the awaited state was not reached, 5 spooled: the record cannot "
            "be written from here, 65 refused as it is, 67 no such recipient, 69 too many messages or hops."
        ),
        json_keys="from, ids, bytes, digest, receipts (state, id, ms, detail), exit",
    )
    send.add_argument("--as", dest="own_name", metavar="NAME", help=AS_HELP)
    send.add_argument("--to", required=True, metavar="ADDR", help="an address, or a namespace ending in / for everyone")
    send.add_argument("--re", metavar="ID", help="the message that this one answers")
    send.add_argument(
        "--ttl",
        type=words.duration(least=1, most=MAX_TTL_SECONDS),
        default=DEFAULT_TTL_SECONDS,
        metavar="TIME",
        help="how long it is kept for an absent recipient: 90s, 15m, 24h (default), at most 7d",
    )
    send.add_argument("--class", dest="row_class", choices=("normal", "fyi"), default="normal", help="fyi wakes nobody")
    send.add_argument(
        "--attach",
        type=words.path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"send a file with it, also several ({MAX_ATTACHED_BYTES // 2**20} MiB together)",
    )
    send.add_argument("--create", action="store_true", help="send to a name never seen, although a similar one exists")
    send.add_argument(
        "--wait", choices=("stored", "hinted", "handed-off", "answered"), help="return when this state is reached"
    )
    send.add_argument(
        "--timeout", type=words.duration(least=1), default=60, metavar="TIME", help="for --wait (default 60s)"
    )
    text = send.add_mutually_exclusive_group(required=True)
    text.add_argument("text", nargs="?", metavar="TEXT", help="the message")
    text.add_argument("--stdin", action="store_true", help="read the message from standard input")
    text.add_argument("--file", type=words.path, metavar="FILE", help="read the message from a file")


def _add_listen(commands: Commands) -> None:
    listen = commands.add(
        "listen",
        "wait for messages and print them",
        run_listen,
        examples=(
            "wakehub listen --as alice --once --wait 60",
            "wakehub listen --as alice --format json",
            "wakehub listen --as acme/ops --namespace acme/ --take-over",
            "wakehub listen --as alice --exec ./on-message",
            "wakehub listen --as alice --backend file --opt path=inbox.txt",
        ),
        details=(
            "Each is acknowledged once it is out. It begins with the oldest unread message, sent before it or not.\n"
            "Exit: 0; with --once 3 when nothing was there, also when stopped before (130 from the keyboard), 4 when "
            "what is there could not be handed off; 69 the record was removed or replaced, 74 the reader is gone or "
            "the output cannot be written, 75 the name is held or was taken, 77 it was revoked or closed."
        ),
    )
    listen.add_argument("--as", dest="own_names", action="append", default=[], metavar="NAME", help=AS_HELP)
    listen.add_argument("--namespace", action="append", default=[], metavar="NS/", help="take everything under NS/ too")
    listen.add_argument(
        "--format", choices=("agent", "line", "json"), help="default: line on a terminal, agent otherwise"
    )
    listen.add_argument("--once", action="store_true", help="hand off what is there and end")
    listen.add_argument("--wait", type=words.duration(least=0), metavar="TIME", help="with --once: wait this long")
    listen.add_argument("--no-ack", action="store_true", help="look only: nothing is acknowledged, no name is taken")
    listen.add_argument("--from", dest="sender", metavar="ADDR", help="take only messages from this address")
    listen.add_argument("--take-over", action="store_true", help="take the name from the process that holds it")
    listen.add_argument("--status", action="store_true", help="publish in `status` and `agents`: running")
    listen.add_argument(
        "--poll",
        type=words.duration(least=1, most=MAX_BACKSTOP_SECONDS),
        metavar="TIME",
        help=relay.POLL_HELP,
    )
    relay.add_backend_flags(listen)


def run_send(args: argparse.Namespace) -> int:
    from wakehub.client import send
    from wakehub.client.receipts import SendRequest

    config = instance(args)
    body = body_of(args)  # last, so that a `send` that was started ahead and waits for its text is quick
    request = SendRequest(
        to=args.to,
        body=body,
        sender=args.own_name,
        re=args.re,
        ttl_s=args.ttl,
        row_class=args.row_class,
        create=args.create,
        attach=tuple(args.attach),
        wait=args.wait,
        timeout_s=args.timeout,
    )
    telling = _Telling(body, one_row=not args.to.endswith("/"), files=len(args.attach), quiet=args.json)
    try:
        sent = send.send(config, request, telling.tell)
    finally:
        telling.end()
    if args.json:
        telling.say(lambda: output.say_json(_report(sent)))
    if telling.gone is not None:
        raise telling.gone
    return sent.exit


def run_listen(args: argparse.Namespace) -> int:
    from wakehub.relay import loop
    from wakehub.relay.options import ListenOptions

    options = ListenOptions(
        names=tuple(args.own_names),
        namespaces=tuple(args.namespace),
        format=args.format,
        once=args.once,
        wait_s=args.wait,
        acknowledge=not args.no_ack,
        sender=args.sender,
        take_over=args.take_over,
        poll_s=args.poll,
        status=args.status,
        to=relay.destination(args),
        call=call(args),
    )
    return loop.run(instance(args), options)


# --- send: what goes in and what is said ---


def body_of(args: argparse.Namespace) -> bytes:
    """The bytes to send, from the argument, standard input or a file; `BadData` (65) over the limit."""
    if args.text is not None:
        return _limited(str(args.text).encode())
    if args.stdin:
        return _limited(read_stdin(MAX_BODY_BYTES))
    return _limited(_read_file(args.file))


def read_stdin(limit: int) -> bytes:
    """Standard input to its end, or one byte more than `limit`; raises `Usage` (2), `BadData` (65)."""
    if sys.stdin is None:
        raise Usage("--stdin was given, but standard input is closed", remedy="pipe the text into the command")
    try:
        return sys.stdin.buffer.read(limit + 1)
    except OSError as error:
        raise BadData(
            "cannot read standard input", why=error.strerror or "the read failed", remedy="pipe the text in"
        ) from error


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BODY_BYTES + 1)
    except OSError as error:
        raise BadData(
            f"cannot read {visible(str(path))}",
            why=error.strerror or "the read failed",
            remedy="name a file that can be read",
        ) from error


def _limited(body: bytes) -> bytes:
    if len(body) > MAX_BODY_BYTES:
        raise BadData(
            f"the message is over {MAX_BODY_BYTES} bytes",
            why="nothing is ever cut",
            remedy="put it in a file and send that with the message: --attach FILE",
        )
    return body


class _Telling:
    """Says each receipt as it becomes known: on one growing line for one message, on a line each for a broadcast.

    What is stored is not undone by a standard output that cannot be written: the message has its wake all the same, and
    standard error is told its id and what became of it, so that nobody sends it again. `gone` is that error, None while
    all is well. `quiet` says nothing on standard output: a report follows.
    """

    def __init__(self, body: bytes, *, one_row: bool, files: int = 0, quiet: bool = False) -> None:
        self.gone: output.OutputGone | None = None
        self._what = f"{len(body)} B · sha256 {hashlib.sha256(body).hexdigest()[:_DIGEST_SHOWN]}"
        if files:
            self._what += f" · {files} file{'s' if files > 1 else ''}"
        self._one_row = one_row
        self._quiet = quiet
        self._open = False
        self._told: list[str] = []

    def tell(self, receipt: "Receipt") -> None:
        state, detail = receipt.state.value.replace("_", " "), visible(receipt.detail)
        if state == "note":
            self.end()
            if not self._quiet:
                output.warn(f"wakehub: {detail}")
            return
        self._told.append(f"{state} {receipt.row_id}" + (f": {detail}" if detail else ""))
        if self.gone is not None:
            self._tell_gone(self._told[-1:])
        elif not self._quiet:
            self._say_receipt(receipt, state, detail)

    def _say_receipt(self, receipt: "Receipt", state: str, detail: str) -> None:
        said = state
        if state in ("stored", "spooled"):
            said += f" {receipt.row_id} · {self._what} · {receipt.after_ms:.1f} ms"
            said += f" · in {detail}" if state == "spooled" else ""
        elif receipt.state.value in _REACHED:
            said += f" in {receipt.after_ms:.1f} ms"
            said += f": {detail}" if state == "hinted" and detail else ""
        else:
            said += f": {detail}"
        if self._one_row:
            said = f" · {said}" if self._open else said
            self._open = True
        else:
            said += f" · {detail if state == 'stored' else receipt.row_id}\n"
        self.say(lambda: output.say(said, end=""))

    def say(self, write: Callable[[], None]) -> None:
        """Write to standard output; when that fails, tell standard error what was told so far."""
        try:
            write()
        except output.OutputGone as error:
            self.gone = error
            self._tell_gone(self._told)

    def _tell_gone(self, told: Sequence[str]) -> None:
        for line in told:
            output.warn(f"wakehub: {line}; standard output is gone")

    def end(self) -> None:
        """End the line that is open."""
        if self._open:
            self._open = False
            if self.gone is None:
                self.say(lambda: output.say(""))


def _report(sent: "Sent") -> dict[str, object]:
    return {
        "from": sent.sender,
        "ids": list(sent.row_ids),
        "bytes": sent.size,
        "digest": sent.digest,
        "receipts": [
            {"state": found.state.value, "id": found.row_id, "ms": round(found.after_ms, 3), "detail": found.detail}
            for found in sent.receipts
        ],
        "exit": int(sent.exit),
    }
