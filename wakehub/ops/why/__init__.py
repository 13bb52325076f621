"""`wakehub why ID`: the life of one message as the record tells it, and what happens or is to be done next.

Every line is an event with its time, who caused it and what proves it (receive.md §1, Receipts). How far the message
came is the event of the highest rank, whatever the times say; nothing less than `handed_off` is told as an arrival.
A message that was spooled is looked for where it was left.

    life        a message and its events, in words
    next_step   what comes next
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wakehub import files
from wakehub.client.presence import presence
from wakehub.config import Config
from wakehub.errors import BadData, Unsafe
from wakehub.identity.registry import Registry
from wakehub.inbox.clock import Now
from wakehub.inbox.ids import is_row_id, made_ms
from wakehub.inbox.refusals import NoRecord, RecordUnwritable
from wakehub.inbox.rows import Row
from wakehub.inbox.sqlite import SqliteInbox
from wakehub.inbox.store import Inbox
from wakehub.ops.status import ago, registry_of
from wakehub.ops.why.life import Life, clock
from wakehub.ops.why.next_step import NextStep
from wakehub.relay.keyring import Keyring
from wakehub.visible import visible

_ENOUGH_TO_GUESS: Final = len("m_") + 8
"""How much of its beginning a mistyped id must share with one that is meant: its time, to the quarter of a minute."""
_MAX_REASON_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Spooled:
    """A message that is not in the record, but in a spool: since `at_ms` at `path`, or put aside for a `reason`."""

    id: str
    path: Path
    at_ms: int
    reason: str

    @property
    def next_step(self) -> str:
        if self.reason:
            return "nothing: it is never taken in; mend what is wrong and send it again"
        return "the publisher takes it in, within seconds when it runs (wakehub status)"

    def to_json(self) -> dict[str, Any]:
        """The report for programs: `id`, `state` (`spooled`, `refused`), `path`, `at_ms`, `reason`, `next`."""
        return {
            "id": self.id,
            "state": "refused" if self.reason else "spooled",
            "path": str(self.path),
            "at_ms": self.at_ms,
            "reason": self.reason,
            "next": self.next_step,
        }

    def to_text(self) -> str:
        """The report for people."""
        became = f"refused: {self.reason}" if self.reason else "spooled"
        lines = [f"{self.id} · {became} · at {clock(self.at_ms)} · {self.path}", f"next: {self.next_step}"]
        return "\n".join(visible(line) for line in lines)


def trace(config: Config, id: str) -> Life | Spooled:
    """What became of the message `id` in the instance that `config` describes.

    Raises `BadData` (65) when there is no such message, with those whose ids are near, and what opening the record
    raises.
    """
    spooled = _in_spools(config, id)  # first: an envelope goes only when its row is there
    near: Sequence[str] = []
    try:
        with SqliteInbox.open(config.paths.record, create=False) as inbox:
            row = inbox.row(id)
            if row is not None:
                return _life(inbox, row, Keyring(config.paths), registry_of(config)[0], Now.read())
            near = inbox.near_ids(id)
    except NoRecord:
        pass
    except RecordUnwritable:  # as in the sandboxes for which there are spools
        if spooled is None:
            raise
    if spooled is None:
        raise _unknown(config, id, near)
    return spooled


def _in_spools(config: Config, id: str) -> Spooled | None:
    """The envelope of `id`, where one was left or was put aside (formats.md, Spool)."""
    if not is_row_id(id):
        return None
    for directory in config.spool_dirs:
        for path in (directory / f"{id}.json", directory / "bad" / f"{id}.json"):
            try:
                at_ms = path.lstat().st_mtime_ns // 1_000_000
            except OSError:
                continue
            return Spooled(id, path, at_ms, _reason(path))
    return None


def _reason(path: Path) -> str:
    """Why an envelope was put aside; empty while it waits."""
    if path.parent.name != "bad":
        return ""
    try:
        return files.read_owned(path.with_name(f"{path.name}.why"), _MAX_REASON_BYTES).decode(errors="replace").strip()
    except (OSError, Unsafe):
        return "the reason cannot be read"


def _life(inbox: Inbox, row: Row, keyring: Keyring, registry: Registry, now: Now) -> Life:
    events = tuple(inbox.events(row.id))
    there = presence(inbox.leases, row.recipient, now)
    next_step = NextStep(inbox, row, events, there, registry, now).in_words()
    return Life(now, row, events, keyring.verdict(row), there, next_step, keyring.trouble)


def _unknown(config: Config, id: str, near: Sequence[str]) -> BadData:
    what = f"there is no message {visible(id)}"
    meant = [each for each in near if each.startswith(id) or each[:_ENOUGH_TO_GUESS] == id[:_ENOUGH_TO_GUESS]]
    if meant:
        return BadData(what, why="an id is given in full", remedy=f"did you mean {' or '.join(meant)}?")
    if not is_row_id(id):
        return BadData(
            what, why="an id is m_ and 26 characters", remedy="take it from the line that `wakehub send` printed"
        )
    now = Now.read()
    if now.ms - made_ms(id) > config.keep_s * 1000:
        return BadData(
            what,
            why=f"its id was made {ago(now, made_ms(id))} ago, and what ended {config.keep_s // 86_400} d "
            "ago is removed",
            remedy="nothing is known of it any more",
        )
    return BadData(
        what,
        why="it was never stored in this record",
        remedy="see whether WAKEHUB_HOME or --state-dir is the one of its sender",
    )
