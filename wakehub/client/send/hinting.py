"""Having the recipients woken: by the publisher, by one that is started now, or over a session of this process."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

from wakehub.client import advice, background, own_sessions
from wakehub.client.poke import Answer, Missing, poke
from wakehub.client.receipts import Receipts, SendRequest, State
from wakehub.config import Config
from wakehub.errors import ErrorCode, WakehubError
from wakehub.inbox.clock import Now
from wakehub.inbox.rows import Row
from wakehub.inbox.store import Inbox
from wakehub.limits import MAX_BACKSTOP_SECONDS
from wakehub.processes import is_stopped
from wakehub.visible import visible


def hint(
    config: Config,
    request: SendRequest,
    rows: Sequence[Row],
    inbox: Inbox,
    receipts: Receipts,
    environ: Mapping[str, str],
) -> None:
    """Have the recipient of each of `rows` woken, and say what became of it; raises nothing for what is in the way."""
    if request.row_class == "fyi":
        receipts.note(f"fyi wakes nobody; {_when_read(rows, inbox)}")
        return
    by_id = {row.id: row for row in rows}
    left: dict[str, Answer | Missing] = {}
    for row_id, outcome in _poked(config, list(by_id), receipts, environ):
        if isinstance(outcome, Answer) and outcome.state != "hub_down":
            receipts.say(*_answered(outcome, by_id[row_id], inbox))
        else:
            left[row_id] = outcome
    for answer in own_sessions.wake(config.hub_socket, [by_id[row_id] for row_id in left], inbox) if left else ():
        del left[answer.row_id]
        receipts.say(*_answered(answer, by_id[answer.row_id], inbox))
    next_steps: dict[str, None] = {}
    for row_id, outcome in left.items():
        why, remedy = _unanswered(config, outcome, environ)
        receipts.say(State.NOT_HINTED, row_id, f"{why}; {_when_read([by_id[row_id]], inbox)}")
        next_steps[remedy] = None
    for remedy in next_steps:
        receipts.note(f"next: {remedy}")


def _poked(
    config: Config, ids: Sequence[str], receipts: Receipts, environ: Mapping[str, str]
) -> Iterator[tuple[str, Answer | Missing]]:
    """What the publisher answers for each row; when there is none, one is started if that is for us to do."""
    outcomes = poke(config.paths.publish_socket, ids)
    first = next(outcomes)
    if first[1] is Missing.ABSENT and background.start(config, receipts.note, environ):
        return poke(config.paths.publish_socket, ids)
    return itertools.chain([first], outcomes)


def _answered(answer: Answer, row: Row, inbox: Inbox) -> tuple[State, str, str]:
    """The receipt for an answer. A wake that the hub took is no listener: where none is there, it says that as well."""
    name, is_held = visible(row.recipient), _is_held(row, inbox)
    if answer.state == "hinted":
        return State.HINTED, answer.row_id, "" if is_held else f"only the hub took it; read when {name} listens"
    if answer.code == ErrorCode.UNKNOWN:
        if is_held:
            why = f"the listener of {name} is not connected to the hub yet; read when it is"
        else:
            why = f"{name} has not connected since the hub started; read when it listens"
        return State.NOT_HINTED, answer.row_id, why
    return State.HINT_REFUSED, answer.row_id, f"{answer.code}; {_when_read([row], inbox)}"


def _when_read(rows: Sequence[Row], inbox: Inbox) -> str:
    """When messages without a wake are read: a backstop is armed only where somebody listens."""
    if all(_is_held(row, inbox) for row in rows):
        return f"read within {MAX_BACKSTOP_SECONDS} s by the backstop"
    if len(rows) == 1:
        return f"read when {visible(rows[0].recipient)} listens"
    return f"read within {MAX_BACKSTOP_SECONDS} s by those who listen, by the others when they do"


def _is_held(row: Row, inbox: Inbox) -> bool:
    with contextlib.suppress(WakehubError):  # a record that cannot be read promises nothing
        return inbox.leases.resolve(row.recipient, Now.read()) is not None
    return False


def _unanswered(config: Config, outcome: Answer | Missing, environ: Mapping[str, str]) -> tuple[str, str]:
    """Why nobody was woken, and what to do about the publisher, or the hub with which it has no session."""
    match outcome:
        case Missing.ABSENT:
            why = advice.PUBLISHER.why_absent(config.paths)
            return why, advice.to_start(config.paths, advice.PUBLISHER, environ)
        case Missing.SILENT:
            return advice.to_answer(config.paths, advice.PUBLISHER)
        case Missing.DENIED:
            allow = f"allow it Unix socket {visible(str(config.paths.publish_socket))}"
            return f"{outcome.value}; {allow}", allow
        case Missing.GARBLED:
            return outcome.value, "wakehub doctor"
    holder = advice.HUB.holder(config.paths)
    if holder is None:
        return "the hub is down", advice.to_start(config.paths, advice.HUB, environ)
    remedy = advice.to_answer(config.paths, advice.HUB)[1] if is_stopped(holder.pid) else "wakehub doctor"
    return f"the hub, pid {holder.pid}, does not answer the publisher", remedy
