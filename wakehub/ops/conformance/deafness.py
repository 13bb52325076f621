"""Cases of awh1.md §5.6 and §5.7: an agent that is there and does not read."""

from typing import Final, NoReturn

from wakehub.errors import ErrorCode
from wakehub.limits import (
    DIGEST_BYTES,
    FRAME_BURST,
    MAX_ID_BYTES,
)
from wakehub.ops.conformance.case import Book
from wakehub.ops.conformance.lab import Lab
from wakehub.ops.conformance.outcome import Mismatch, NotApplicable
from wakehub.wire.frames import Kind
from wakehub.wire.payloads import Wake

BOOK = Book()
_CHUNK: Final = 50


class Deaf:
    """The second agent does not read, and the first wakes it until the hub says 507.

    `rows` are all that were sent; at most one chunk of them got 507.
    """

    def __init__(self, lab: Lab) -> None:
        self.sender, self.recipient = (lab.session(guest) for guest in lab.guests[:2])
        self.rows: list[bytes] = []
        self.refused = 0
        fill = "x" * (MAX_ID_BYTES - len(lab.row("0000-")))
        while not self.refused:
            if len(self.rows) + _CHUNK > FRAME_BURST - FRAME_BURST // 10:
                self._give_up()
            chunk = [lab.row(f"{len(self.rows) + number:04}-{fill}") for number in range(_CHUNK)]
            for row in chunk:
                self.sender.send_frame(
                    Kind.WAKE, self.recipient.agent, Wake(row, b"n" * 80, b"", bytes(DIGEST_BYTES)).encode()
                )
            self.rows += chunk
            answers = self.sender.before_pong()
            for answer in answers:
                if not answer.is_error(ErrorCode.OVERFLOW):
                    raise Mismatch(str(answer))
            self.refused = len(answers)

    def _give_up(self) -> NoReturn:
        """There was no 507 for as much as may be sent: because the kernel took it all, or because some went lost."""
        found = [came for came in self.recipient.before_pong() if came.frame.from_id == self.sender.agent]
        if len(found) < len(self.rows):
            raise Mismatch(f"no error, and {len(self.rows) - len(found)} of {len(self.rows)} wakes did not arrive")
        raise NotApplicable("the kernel takes more for a peer that does not read than a sender may send")

    def read_what_was_taken(self) -> set[bytes]:
        """The recipient reads as many wakes as got no 507; in order, without a gap in front of a 507."""
        found = []
        for _ in range(len(self.rows) - self.refused):
            came = self.recipient.expect(Kind.WAKE)
            if came.frame.from_id == self.sender.agent:
                found.append(came.wake.row_id)
        if found != sorted(found) or not set(found) <= set(self.rows):
            raise Mismatch("wakes out of order, or that nobody sent")
        return set(found)


@BOOK.case("deaf-recipient", "5.4", "507 for wakes to an agent that does not read, and the session goes on", agents=2)
def _deaf(lab: Lab) -> None:
    deaf = Deaf(lab)
    deaf.sender.expect_quiet()


@BOOK.case("deaf-recipient-catches-up", "5.7", "what was taken arrives in order, and new wakes behind it", agents=2)
def _catches_up(lab: Lab) -> None:
    deaf = Deaf(lab)
    deaf.read_what_was_taken()
    deaf.sender.send_wake(deaf.recipient.agent, lab.row("new"))
    while (came := deaf.recipient.expect(Kind.WAKE)).wake.row_id != lab.row("new"):
        deaf.recipient.expect_made(came)


@BOOK.case(
    "overflow-heals", "5.6", "ids that got 507 are sent by the hub once the recipient reads", agents=2, ours=True
)
def _heals(lab: Lab) -> None:
    deaf = Deaf(lab)
    missing = set(deaf.rows) - deaf.read_what_was_taken()
    while missing:
        came = deaf.recipient.expect(Kind.WAKE)
        deaf.recipient.expect_made(came)
        missing.discard(came.wake.row_id)


@BOOK.case("deaf-recipient-holds-up-nobody", "5.7", "a third agent gets its wakes meanwhile", agents=3)
def _holds_up_nobody(lab: Lab) -> None:
    deaf, other = Deaf(lab), lab.session(lab.guests[2])
    for number in range(20):
        deaf.sender.send_wake(other.agent, lab.row(number))
    for number in range(20):
        other.expect_wake(lab.row(number))
    other.send_wake(deaf.sender.agent, lab.row("back"))
    deaf.sender.expect_wake(lab.row("back"))
