"""Text written by others, made safe to show to a person (receive.md §3, Formats).

C0, C1, DEL, bidirectional and other format characters, line and paragraph separators, private, unassigned and
surrogate code points become visible escapes, so that nothing that is shown can move the cursor, reorder a line or
pose as another line. Escaping goes by code point, never by byte: C1 values inside a UTF-8 sequence are not C1.
"""

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str | bytes, *, keep: str = "") -> str:
    """Return `text` on one line with everything invisible escaped; characters in `keep` pass unchanged.

    Bytes are decoded as UTF-8; a byte that does not decode is shown as ``\\xNN``.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or unicodedata.category(c) not in _HIDDEN else _escape(c) for c in text)


def _escape(character: str) -> str:
    known = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    if known is not None:
        return known
    point = ord(character)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
