"""What is still legible of a damaged SQLite file, read page by page (SQLite's file format, §1.3–1.6, §2.1, §4).

SQLite finds a row by walking a tree from its root, so one bad page hides everything below it, and a bad first page the
whole file. Here every page is looked at for itself: rows stand in leaf pages, each complete or with a chain of overflow
pages. Trees are walked only to learn which page belongs to which table; what hangs on no tree any more is found all
the same, without that name. Pages on the list of free ones are left out: they hold rows that were deleted or moved.

Of the write-ahead log the frames up to its last intact commit count, as SQLite itself would take them.

Nothing is believed: every number is checked against the page it points into, and no length is allocated unseen.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from wakehub.limits import MAX_BODY_BYTES

Value = int | float | str | bytes | None

_MAGIC: Final = b"SQLite format 3\0"
_FILE_HEADER_BYTES: Final = 100
_OUR_PAGE_BYTES: Final = 4096  # what SQLite takes when it is not told otherwise, and we never do
_LOG_MAGIC: Final = {0x377F0682: "<", 0x377F0683: ">"}  # the order of bytes in its checksums
_LOG_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_MAX_RECORD_BYTES: Final = 2 * MAX_BODY_BYTES
_INDEX_NODE, _TABLE_NODE, _INDEX_LEAF, _TABLE_LEAF = 0x02, 0x05, 0x0A, 0x0D
_FIXED: Final = {0: None, 8: 0, 9: 1}
_WHOLE: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # serial type of a whole number: its bytes


@dataclass(frozen=True, slots=True)
class Found:
    """One legible entry of a table or an index.

    `owner` is the name of the table or index that its page belongs to, None when the page hangs on no tree. `rowid` is
    None in an index, and in a table without rowids, which is kept like one.
    """

    owner: str | None
    rowid: int | None
    values: tuple[Value, ...]


class PageFile:
    """The pages of the database open at `fd`, under the frames of its write-ahead log, whose content is `log`.

    The descriptor is read and never closed. `is_free_known`: the list of free pages could be read, so that nothing
    that was deleted is taken for a row. `illegible` counts the entries and pages that could not be read.
    """

    def __init__(self, fd: int, log: bytes = b"") -> None:
        self._fd = fd
        self._size = _page_size(os.pread(fd, _FILE_HEADER_BYTES, 0), log)
        self._frames = _committed(log, self._size)
        self._count = max([os.fstat(fd).st_size // self._size, *self._frames])
        self._has_header = self._page(1).startswith(_MAGIC) and len(self._page(1)) == self._size
        self.illegible = 0
        self._owners: dict[int, str] = {}
        self._free, self.is_free_known = self._free_pages()
        self._owners = self._attributed() if self._has_header else {}

    def entries(self) -> Iterator[Found]:
        """Every legible entry, in the order of its page; counts `illegible` anew."""
        self.illegible = 0
        for number in range(1, self._count + 1):
            if number not in self._free:
                yield from self._entries_of(number)

    # --- pages ---

    def _page(self, number: int) -> bytes:
        """The content of a page; shorter than a page when the file ends in it."""
        return self._frames.get(number) or os.pread(self._fd, self._size, (number - 1) * self._size)

    def _free_pages(self) -> tuple[set[int], bool]:
        """The pages that are not in use: trunks, each of which lists others, in a chain."""
        if not self._has_header:
            return set(), False
        free: set[int] = set()
        trunk, expected = struct.unpack_from(">II", self._page(1), 32)
        while trunk:
            page = self._page(trunk) if 1 < trunk <= self._count and trunk not in free else b""
            if len(page) < self._size:
                return free, False
            following, listed = struct.unpack_from(">II", page)
            if listed > self._size // 4 - 2:
                return free, False
            free |= {trunk, *struct.unpack_from(f">{listed}I", page, 8)}
            trunk = following
        return free, len(free) == expected

    def _attributed(self) -> dict[int, str]:
        """Which table or index each page belongs to, as far as its tree can be walked."""
        owners = dict.fromkeys(self._tree(1), "sqlite_schema")
        for number in list(owners):
            for entry in self._entries_of(number):
                match entry.values:
                    case (str(), str(name), str(), int(root), *_):
                        for page in self._tree(root):
                            owners.setdefault(page, name)
        return owners

    def _tree(self, root: int) -> Iterator[int]:
        """The pages of the tree at `root`, as far as they lead on."""
        waiting, seen = [root], set[int]()
        while waiting:
            number = waiting.pop()
            if not 1 <= number <= self._count or number in seen or number in self._free:
                continue
            seen.add(number)
            yield number
            waiting += self._children(number)

    def _children(self, number: int) -> list[int]:
        page, start = self._page(number), _FILE_HEADER_BYTES if number == 1 else 0
        if len(page) < self._size or page[start] not in (_INDEX_NODE, _TABLE_NODE):
            return []
        (last,) = struct.unpack_from(">I", page, start + 8)
        cells = _cells(page, start, 12)
        return [last, *(struct.unpack_from(">I", page, cell)[0] for cell in cells if cell + 4 <= len(page))]

    # --- entries ---

    def _entries_of(self, number: int) -> Iterator[Found]:
        page, start = self._page(number), _FILE_HEADER_BYTES if number == 1 else 0
        if len(page) < self._size:
            self.illegible += 1
            return
        kind = page[start]
        if kind not in (_INDEX_NODE, _INDEX_LEAF, _TABLE_LEAF):
            self.illegible += number in self._owners and kind != _TABLE_NODE
            return
        for cell in _cells(page, start, 12 if kind == _INDEX_NODE else 8):
            try:
                yield self._entry(page, cell + 4 if kind == _INDEX_NODE else cell, kind, number)
            except (ValueError, IndexError, struct.error):
                self.illegible += 1

    def _entry(self, page: bytes, at: int, kind: int, number: int) -> Found:
        size, at = _varint(page, at)
        rowid = None
        if kind == _TABLE_LEAF:
            rowid, at = _varint(page, at)
            rowid = rowid - (1 << 64) if rowid >> 63 else rowid
        payload = self._payload(page, at, size, kind == _TABLE_LEAF)
        return Found(self._owners.get(number), rowid, _values(payload))

    def _payload(self, page: bytes, at: int, size: int, is_table: bool) -> bytes:
        """The whole record: what stands in the page, and what overflows into others."""
        if not 1 <= size <= _MAX_RECORD_BYTES:
            raise ValueError("a record of impossible size")
        local = _local(size, self._size, is_table)
        if at + local > len(page):
            raise ValueError("a record that ends behind its page")
        parts = [page[at : at + local]]
        left = size - local
        following = struct.unpack_from(">I", page, at + local)[0] if left else 0
        while left:
            overflow = self._page(following) if 1 < following <= self._count else b""
            if len(overflow) < self._size:
                raise ValueError("a chain of pages that ends too soon")
            parts.append(overflow[4 : 4 + left])
            left -= len(parts[-1])
            (following,) = struct.unpack_from(">I", overflow)
        return b"".join(parts)


def _page_size(header: bytes, log: bytes) -> int:
    """The size of a page: as the file says, else its log, else as we make them."""
    told = int.from_bytes(header[16:18], "big") if header.startswith(_MAGIC) else int.from_bytes(log[8:12], "big")
    told = 65_536 if told == 1 else told
    return told if 512 <= told <= 65_536 and told.bit_count() == 1 else _OUR_PAGE_BYTES


def _committed(log: bytes, page_bytes: int) -> dict[int, bytes]:
    """The newest content of each page in a write-ahead log, up to the last commit before anything illegible."""
    committed: dict[int, bytes] = {}
    if len(log) < _LOG_HEADER_BYTES:
        return committed
    magic, _, size, _, salt, told = struct.unpack_from(">IIII8s8s", log)
    order = _LOG_MAGIC.get(magic)
    if order is None or size != page_bytes:
        return committed
    checksum = _checksum((0, 0), log[:24], order)
    if struct.pack(">II", *checksum) != told:
        return committed
    pending: dict[int, bytes] = {}
    for at in range(_LOG_HEADER_BYTES, len(log) - _FRAME_HEADER_BYTES - size + 1, _FRAME_HEADER_BYTES + size):
        number, pages_now, of, told = struct.unpack_from(">II8s8s", log, at)
        page = log[at + _FRAME_HEADER_BYTES : at + _FRAME_HEADER_BYTES + size]
        checksum = _checksum(_checksum(checksum, log[at : at + 8], order), page, order)
        if of != salt or struct.pack(">II", *checksum) != told:
            break
        pending[number] = page
        if pages_now:
            committed |= pending
            pending.clear()
    return committed


def _checksum(before: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    first, second = before
    for one, two in struct.iter_unpack(f"{order}II", data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


def _cells(page: bytes, start: int, header_bytes: int) -> list[int]:
    """Where the cells of a page begin, as far as the numbers can be true."""
    (count,) = struct.unpack_from(">H", page, start + 3)
    first = start + header_bytes
    count = min(count, (len(page) - first) // 2)
    behind = first + 2 * count
    return [cell for cell in struct.unpack_from(f">{count}H", page, first) if behind <= cell < len(page)]


def _local(size: int, usable: int, is_table: bool) -> int:
    """How many bytes of a record of `size` stand in its page itself."""
    most = usable - 35 if is_table else (usable - 12) * 64 // 255 - 23
    if size <= most:
        return size
    least = (usable - 12) * 32 // 255 - 23
    local = least + (size - least) % (usable - 4)
    return local if local <= most else least


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends: seven bits a byte, the ninth whole."""
    value = 0
    for place in range(8):
        byte = data[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    return value << 8 | data[at + 8], at + 9


def _values(record: bytes) -> tuple[Value, ...]:
    """The columns of a record; raises `ValueError`, `IndexError`, `struct.error` for one that is none."""
    end, at = _varint(record, 0)
    types = []
    while at < end:
        kind, at = _varint(record, at)
        types.append(kind)
    if at != end:
        raise ValueError("the types of a record end behind their place")
    values: list[Value] = []
    for kind in types:
        size = _bytes_of(kind)
        if end + size > len(record):
            raise ValueError("a value that ends behind its record")
        values.append(_value(kind, record[end : end + size]))
        end += size
    if end != len(record):
        raise ValueError("a record that is longer than its values")
    return tuple(values)


def _bytes_of(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    return 8 if kind == 7 else _WHOLE.get(kind, 0)


def _value(kind: int, data: bytes) -> Value:
    if kind >= 12:
        return data.decode() if kind % 2 else data
    if kind in _WHOLE:
        return int.from_bytes(data, "big", signed=True)
    if kind in _FIXED:
        return _FIXED[kind]
    if kind == 7:
        return float(struct.unpack(">d", data)[0])
    raise ValueError("a type that is reserved")
