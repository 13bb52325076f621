"""The pieces that frames and payloads are made of: length-prefixed bytes, text, topics (awh1.md §1).

Ids and topics stay bytes: they are compared byte for byte, never normalised, folded or cut. Every reader here takes
the whole buffer and refuses what is left over, so that one value has one encoding.
"""

import re
from collections.abc import Sequence

from wakehub.errors import ErrorCode, Violation
from wakehub.limits import MAX_TOPIC_BYTES, MAX_TOPICS_PER_LIST, MIN_TOPIC_BYTES

# Unicode category Cc, which is exactly these ranges: U+0085 is refused and U+200E is not.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_MAX_LP_BYTES = 0xFF


def malformed(reason: str) -> Violation:
    """The violation for bytes that are not what the layout says (400)."""
    return Violation(ErrorCode.MALFORMED, reason)


def lp(value: bytes) -> bytes:
    """``LP(x)``: one length byte, then x (0..255 bytes); raises `ValueError` when x is longer."""
    if len(value) > _MAX_LP_BYTES:
        raise ValueError(f"{len(value)} B do not fit behind one length byte")
    return bytes((len(value),)) + value


def check_number(value: int, bits: int, what: str, least: int = 0) -> None:
    """Raise `Violation` 400 that names `what` unless its field of so many bits can hold `value`, `least` or more."""
    most = (1 << bits) - 1
    if not least <= value <= most:
        raise malformed(f"{what} {value} is not within {least}..{most}")


def take_lp(buffer: bytes, at: int, what: str) -> tuple[bytes, int]:
    """Read ``LP(x)`` at offset `at`; return x and the offset behind it. Raises `Violation` 400 when it is cut short."""
    if at >= len(buffer):
        raise malformed(f"{what} is missing")
    end = at + 1 + buffer[at]
    if end > len(buffer):
        raise malformed(f"{what} is cut short")
    return buffer[at + 1 : end], end


def text(value: bytes, what: str) -> str:
    """Strictly decoded UTF-8; raises `Violation` 400 that names `what`."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise malformed(f"{what} is not UTF-8") from None


def has_control(value: str) -> bool:
    """Whether a character of Unicode category Cc is in `value`."""
    return _CONTROL.search(value) is not None


def check_topic(topic: bytes) -> None:
    """Raise `Violation` 400 unless `topic` is ``#…``, 2..64 bytes, UTF-8 without control characters (§1)."""
    if not topic.startswith(b"#"):
        raise malformed("topic does not start with #")
    if not MIN_TOPIC_BYTES <= len(topic) <= MAX_TOPIC_BYTES:
        raise malformed(f"topic of {len(topic)} B is not within {MIN_TOPIC_BYTES}..{MAX_TOPIC_BYTES} B")
    if has_control(text(topic, "topic")):
        raise malformed("topic holds a control character")


def encode_topics(topics: Sequence[bytes]) -> bytes:
    """A topic list: ``count u8`` (0..8), then ``LP(topic)`` each. Raises `Violation` 400 for what would be refused."""
    if len(topics) > MAX_TOPICS_PER_LIST:
        raise malformed(f"topic list of {len(topics)} exceeds {MAX_TOPICS_PER_LIST}")
    for topic in topics:
        check_topic(topic)
    return bytes((len(topics),)) + b"".join(lp(topic) for topic in topics)


def decode_topics(buffer: bytes) -> tuple[bytes, ...]:
    """The topics of a whole topic list, in wire order, repeats included.

    Raises `Violation` 400 for an empty buffer, a count over 8, truncation, a bad topic or a trailing byte.
    """
    if not buffer:
        raise malformed("topic list is empty")
    if buffer[0] > MAX_TOPICS_PER_LIST:
        raise malformed(f"topic list of {buffer[0]} exceeds {MAX_TOPICS_PER_LIST}")
    at = 1
    topics: list[bytes] = []
    for _ in range(buffer[0]):
        topic, at = take_lp(buffer, at, "topic")
        check_topic(topic)
        topics.append(topic)
    if at != len(buffer):
        raise malformed(f"topic list has {len(buffer) - at} trailing B")
    return tuple(topics)
