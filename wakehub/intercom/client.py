"""The client's side of the mesh, towards our hub and towards those of others (intercom.md §2, §3, §5).

Everything here blocks. Nobody waits for a hub without end: one that is missing is started, one that does not answer
within 2 s is done without, since the spool is the truth and can be written and read by ourselves.

What our hub did with a chat its receipt says. Others send none: they have handled every line once they close behind
our half-close. A hub that is killed closes too; so without a receipt the spool is looked into, and what is missing
there is put there.
"""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from wakehub import files
from wakehub.errors import CannotCreate, Held, Unavailable, Unsafe, WakehubError
from wakehub.intercom import ndjson
from wakehub.intercom.channels import Channel
from wakehub.intercom.election import spawn
from wakehub.intercom.ndjson import Code, Envelope, LineReader, Refusal
from wakehub.intercom.spool import Batch, Inbox
from wakehub.limits import (
    CLIENT_READ_BYTES,
    MESH_BACKSTOP_SECONDS,
    MESH_LOCK_MS,
    MESH_START_SECONDS,
    MESH_WELCOME_MS,
    READY_POLL_MS,
)
from wakehub.visible import visible

Status = Literal["sent", "spooled_offline", "fallback_spooled", "error"]
_STARTS: Final = 10  # so many hubs that ended at once are enough: none will come up
_GONE: Final = (ConnectionResetError, BrokenPipeError)


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a chat: ``sent`` (its recipient is connected), ``spooled_offline`` (it waits in the inbox),
    ``fallback_spooled`` (the same, put there by us for want of a hub), ``error`` (`message` says why)."""

    status: Status
    envelope: Envelope
    message: str = ""


# --- one connection ---


class Line:
    """A connection to a channel's hub: envelopes out, JSON objects in; a context manager."""

    def __init__(self, channel: Channel) -> None:
        """Connect. Raises `FileNotFoundError` or `ConnectionRefusedError` where no hub listens, `Unsafe` (77) where we
        may not, `Unavailable` (69) when it takes nobody for 2 s."""
        self._reader = LineReader()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(channel)
        except BaseException:
            self._sock.close()
            raise

    def _connect(self, channel: Channel) -> None:
        self._sock.settimeout(MESH_WELCOME_MS / 1000)
        deadline = time.monotonic() + MESH_WELCOME_MS / 1000
        while True:
            try:
                self._sock.connect(os.fspath(channel.socket))
                return
            except BlockingIOError:  # its backlog is full
                if time.monotonic() >= deadline:
                    raise _silent(channel) from None
                time.sleep(READY_POLL_MS / 1000)
            except PermissionError as error:
                raise Unsafe(
                    f"the hub of the channel {channel.name} may not be connected to",
                    why=files.why(error),
                    remedy="run this outside the sandbox that forbids it",
                ) from error

    def say(self, envelope: Envelope) -> None:
        """Send one envelope; raises `OSError` when the hub is gone, `Refusal` (LINE_TOO_LONG)."""
        self._sock.settimeout(MESH_WELCOME_MS / 1000)
        self._sock.sendall(envelope.line())

    def end(self) -> None:
        """Say nothing more; the answers still come."""
        self._sock.shutdown(socket.SHUT_WR)

    def heard(self, patience_ms: int) -> Iterator[dict[str, Any]]:
        """Every object the hub sends until it closes.

        Raises `TimeoutError` once `patience_ms` have passed, `Unavailable` (69) for what no hub sends.
        """
        deadline = time.monotonic() + patience_ms / 1000
        while True:
            while (line := self._next()) is not None:
                with contextlib.suppress(Refusal):
                    yield ndjson.decode(line)
            self._sock.settimeout(max(0.001, deadline - time.monotonic()))
            if not (data := self._sock.recv(CLIENT_READ_BYTES)):
                return
            self._reader.feed(data)

    def _next(self) -> bytes | None:
        try:
            return self._reader.next_line()
        except Refusal:
            raise Unavailable(
                "what answers is no hub", why="it sends a line that is too long", remedy="look who serves that socket"
            ) from None

    def fileno(self) -> int:
        return self._sock.fileno()

    def is_ended(self) -> bool:
        """Throw away what has arrived: a live line only wakes, the spool is what is read. True when the hub closed."""
        self._sock.setblocking(False)
        try:
            while data := self._sock.recv(CLIENT_READ_BYTES):
                del data
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def join(channel: Channel, session: str, kind: Literal["register", "announce"] = "register") -> tuple[Line, list[str]]:
    """Connect as `session`, with who else is connected: the first exchange, which proves that the hub lives (§5).

    Raises `Held` (75) when another connection holds that id, `Unavailable` (69) when no answer comes within 2 s or
    it is another refusal, and as `Line` does. Starts nothing.
    """
    envelope = ndjson.Envelope(kind, ndjson.check_session(session), ndjson.HUB, channel.name)
    line = Line(channel)
    try:
        line.say(envelope)
        for found in line.heard(MESH_WELCOME_MS):
            payload = found.get("payload")
            payload = payload if isinstance(payload, dict) else {}
            if found.get("type") == "welcome":
                peers = payload.get("peers")
                listed = peers if isinstance(peers, list) else []
                return line, [each for each in listed if isinstance(each, str)]
            if found.get("type") == "error":
                raise _refused(channel, session, payload)
        raise ConnectionResetError("the hub closed without an answer")
    except TimeoutError:
        line.close()
        raise _silent(channel) from None
    except BaseException:
        line.close()
        raise


def _refused(channel: Channel, session: str, payload: dict[str, Any]) -> WakehubError:
    if payload.get("code") == Code.SESSION_COLLISION:
        return Held(
            f"{session} is connected to the channel {channel.name} already",
            why="one connection holds an id",
            remedy="end the other one, or take another id",
        )
    said = visible(f"{payload.get('code')}: {payload.get('message')}")[:400]
    return Unavailable(
        f"the hub of the channel {channel.name} refuses {session}", why=said, remedy="see what it says of that id"
    )


def _silent(channel: Channel) -> Unavailable:
    return Unavailable(
        f"the hub of the channel {channel.name} does not answer",
        why=f"nothing came within {MESH_WELCOME_MS} ms; whether it lives is not known",
        remedy="look who holds its hub.lock; mail goes by the spool meanwhile",
    )


# --- sending ---


def send(channel: Channel, envelope: Envelope) -> Sent:
    """Send one chat, starting a hub where none is; it is spooled once, whatever happens to the hub meanwhile.

    Blocks for some 10 s at most. Raises `Refusal` for an envelope that can be none (an id, its size), `WakehubError`
    when neither a hub nor we could store it.
    """
    ndjson.check_session(envelope.from_session)
    if envelope.to_session not in ndjson.EVERYONE:
        ndjson.check_session(envelope.to_session)
    asking = replace(envelope, extra=dict(envelope.extra) | {"receipt": True})
    asking.line()
    deadline, starts = time.monotonic() + MESH_START_SECONDS, 0
    while time.monotonic() < deadline and starts <= _STARTS:
        try:
            with Line(channel) as line:
                return _outcome(channel, envelope, _asked(line, asking))
        except (FileNotFoundError, ConnectionRefusedError):
            channel.reopen()
            try:
                starts += spawn(channel)
            except WakehubError:
                break  # it can be done without
            time.sleep(READY_POLL_MS / 1000)
        except (Unavailable, Unsafe, TimeoutError):
            break
        except _GONE:
            if not _missing(channel, envelope):  # it was handled before the hub went
                return _outcome(channel, envelope, None)
            time.sleep(READY_POLL_MS / 1000)
        except OSError:
            break
    return _put(channel, envelope)


def _asked(line: Line, envelope: Envelope) -> dict[str, Any] | None:
    """The receipt or error about the envelope, once the hub has closed; None when there was neither."""
    answer: dict[str, Any] | None = None
    with contextlib.suppress(*_GONE):  # it may answer and close before it has read all
        line.say(envelope)
        line.end()
    for found in line.heard(MESH_WELCOME_MS + MESH_LOCK_MS):
        about = found.get("reply_to")
        if (found.get("type"), about) in (("receipt", envelope.id), ("error", envelope.id), ("error", None)):
            answer = found
    return answer


def _outcome(channel: Channel, envelope: Envelope, answer: dict[str, Any] | None) -> Sent:
    payload = (answer or {}).get("payload")
    payload = payload if isinstance(payload, dict) else {}
    if answer is None or payload.get("code") == Code.SESSION_COLLISION:  # others take a sender for a listener
        if _missing(channel, envelope):
            return _put(channel, envelope)
        if _is_unheard(channel, envelope):
            return _unheard(envelope)
        is_live = envelope.to_session in {*channel.peers().active_sessions, *ndjson.EVERYONE}
        return Sent("sent" if is_live else "spooled_offline", envelope)
    if answer.get("type") == "receipt":
        if payload.get("state") != "live" and _is_unheard(channel, envelope):
            return _unheard(envelope)
        return Sent("sent" if payload.get("state") == "live" else "spooled_offline", envelope)
    return Sent("error", envelope, visible(f"{payload.get('code')}: {payload.get('message')}"))


def _is_unheard(channel: Channel, envelope: Envelope) -> bool:
    """Whether it was for everybody who is connected, and nobody is: no inbox has it."""
    return envelope.to_session in ndjson.EVERYONE and not _recipients(channel, envelope)


def _unheard(envelope: Envelope) -> Sent:
    return Sent("error", envelope, "nobody else is connected to the channel, so nobody has it")


def _recipients(channel: Channel, envelope: Envelope) -> list[str]:
    if envelope.to_session not in ndjson.EVERYONE:
        return [envelope.to_session]
    found = []
    for session in channel.peers().active_sessions:
        with contextlib.suppress(Refusal):
            found.append(ndjson.check_session(session))
    return [session for session in found if session != envelope.from_session]


def _missing(channel: Channel, envelope: Envelope) -> list[str]:
    """The recipients in whose inbox the envelope does not lie."""
    return [each for each in _recipients(channel, envelope) if not Inbox(channel, each).find(envelope.id)]


def _put(channel: Channel, envelope: Envelope) -> Sent:
    """Spool it ourselves where it is missing."""
    if _is_unheard(channel, envelope):
        return _unheard(envelope)
    line = envelope.line()
    for session in _missing(channel, envelope):
        Inbox(channel, session).append([line], {line})
    return Sent("fallback_spooled", envelope)


# --- reading ---


def drain(inbox: Inbox, hand_over: Callable[[Batch], None]) -> int:
    """Hand over everything that is unread, batch by batch; how many envelopes it was.

    `hand_over` must have put a batch out when it returns: the offset moves then. Where it raises, the batch stays
    unread.
    """
    count = 0
    while True:
        with inbox.taking() as batch:
            if batch.envelopes or batch.spoiled:
                hand_over(batch)
            count += len(batch.envelopes)
        if batch.is_last:
            return count


def wait_for_mail(inbox: Inbox, patience_s: float) -> bool:
    """Whether anything is unread, waiting for it at most `patience_s` seconds; takes nothing."""
    deadline = time.monotonic() + patience_s
    while not inbox.peek(1).envelopes:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, READY_POLL_MS / 1000))
    return True


def listen(
    channel: Channel,
    session: str,
    hand_over: Callable[[Batch], None],
    *,
    stop: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
    begin: Callable[[], None] | None = None,
) -> None:
    """Hold `session` in the channel, and hand over what its inbox gets, until the descriptor `stop` is readable.

    The hub's live line wakes, the spool is read; a hub that died is started again, and while there is none the spool
    is looked at every second. `hand_over` as in `drain`; `tell` gets a line when that changes. `begin` is called once
    the id is ours, before anything is handed over. Raises `Held` (75) at once when another connection holds the id.
    """
    inbox = Inbox(channel, session)
    line: Line | None = None
    missed_at = time.monotonic()
    told, is_told, failures, starts = "", False, 0, 0
    try:
        while True:
            if line is None:
                line, trouble, started = _rejoin(channel, session)
                starts += started
                is_starting = not trouble and starts <= _STARTS and time.monotonic() - missed_at < MESH_START_SECONDS
                if (
                    line is None
                    and not is_starting
                    and (trouble := trouble or f"none comes up, see {channel.log}") != told
                ):
                    tell(f"without a hub the inbox is looked at every second: {visible(trouble)}")
                    told = trouble
            channel.reopen()  # it may have been taken away, and made anew by the hub
            try:
                if begin is not None and (line is not None or not is_starting):
                    begin()
                    begin = None
                if begin is None:
                    drain(inbox, hand_over)
                failures, is_told = 0, False
            except (Held, CannotCreate) as error:
                failures += 1
                # Once is nothing: another one just reads, or the directory is just taken away.
                if not is_told and (inbox.is_ahead or failures > 1):
                    tell(str(error))
                    is_told = True
            pause_s = MESH_BACKSTOP_SECONDS if line is not None or not is_starting else READY_POLL_MS / 1000
            waited = [each for each in (line, stop) if each is not None]
            ready, _, _ = select.select(waited, [], [], pause_s)
            if stop is not None and stop in ready:
                return
            if line is not None and line in ready and line.is_ended():
                line.close()
                line, missed_at, told, starts = None, time.monotonic(), "", 0
    finally:
        if line is not None:
            line.close()


def _rejoin(channel: Channel, session: str) -> tuple[Line | None, str, bool]:
    """A connection as a listener, or None and why not; empty while a hub may be coming. Whether one was started now.

    Raises `Held` (75).
    """
    try:
        return join(channel, session, "announce")[0], "", False
    except (FileNotFoundError, ConnectionRefusedError):
        try:
            channel.reopen()
            return None, "", spawn(channel)
        except (OSError, WakehubError) as error:
            return None, str(error), False
    except _GONE:
        return None, "", False  # it is just ending: the next turn finds another
    except Held:
        raise
    except (OSError, WakehubError) as error:
        return None, str(error), False
