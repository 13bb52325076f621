"""Small changes to a JSON file that belongs to somebody else: every other byte of it stays as it was.

The text is edited, not written anew: an entry is put behind the last one of its list or object, indented as its
neighbours are, or cut out with the comma beside it. What cannot be read with certainty is refused.
"""

import codecs
import json
from dataclasses import dataclass
from typing import Any, Final

from wakehub.errors import BadData

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = " \t\r\n"
_INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class _Item:
    """One entry of a list or object: from `start` (of its key, if it has one) to `end`, its value from `at`."""

    key: str | None
    start: int
    at: int
    end: int


def parse(data: bytes, shown: str) -> dict[str, Any]:
    """The object that `data` is; raises `BadData` (65) when it is not JSON, no object, or has a key twice."""
    try:
        found = json.loads(data.decode(), object_pairs_hook=_distinct)
    except UnicodeDecodeError as error:
        why = f"it is not UTF-8, at byte {error.start}"
        raise BadData(f"{shown} cannot be changed", why=why, remedy="save it as UTF-8") from error
    except (ValueError, RecursionError) as error:
        if data.startswith(codecs.BOM_UTF8):
            why, remedy = "it begins with a byte order mark", "save it as UTF-8 without one"
        else:
            why, remedy = f"it is not plain JSON: {error}", "mend it: no comments, no comma at an end"
        raise BadData(f"{shown} cannot be changed", why=why, remedy=remedy) from error
    if not isinstance(found, dict):
        raise BadData(f"{shown} cannot be changed", why="it is no JSON object", remedy="mend it")
    return found


def append(text: str, path: tuple[str, ...], value: object) -> str:
    """Put `value` at the end of the list at `path` in the object `text`; what is missing on the way is made."""
    at = _skip(text, 0)
    for depth, key in enumerate(path):
        item = next((each for each in _items(text, at)[0] if each.key == key), None)
        if item is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: [value] if missing == path[-1] else value}
            return _insert(text, at, [value] if depth == len(path) - 1 else value, key)
        at = item.at
    return _insert(text, at, value, None)


def remove(text: str, path: tuple[str, ...], value: object) -> str:
    """Take one entry that equals `value` out of the list at `path`, and what is empty then; unchanged without it."""
    at, trail = _skip(text, 0), []
    for key in path:
        items, _ = _items(text, at)
        index = next((n for n, each in enumerate(items) if each.key == key), None)
        if index is None:
            return text
        trail.append((at, index))
        at = items[index].at
    entries, _ = _items(text, at)
    equal = [n for n, each in enumerate(entries) if _DECODER.raw_decode(text, each.at)[0] == value]
    if not equal:
        return text
    trail.append((at, equal[-1]))
    for container, index in reversed(trail):
        is_last = len(_items(text, container)[0]) == 1
        text = _cut(text, container, index)
        if not is_last:
            break
    return text


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _items(text: str, at: int) -> tuple[list[_Item], int]:
    """The entries of the list or object that begins at `at`, and where it ends; `text` is well-formed."""
    is_object = text[at] == "{"
    found = []
    at = _skip(text, at + 1)
    while text[at] not in "}]":
        start, key = at, None
        if is_object:
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        value_at = at
        _, at = _DECODER.raw_decode(text, at)
        found.append(_Item(key, start, value_at, at))
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found, at


def _insert(text: str, container: int, value: object, key: str | None) -> str:
    items, close = _items(text, container)
    if items:
        lead = text[container + 1 : items[0].start]
        made = _rendered(value, key, lead)
        return f"{text[: items[-1].end]},{lead or ' '}{made}{text[items[-1].end :]}"
    line = text[text.rfind("\n", 0, container) + 1 : container]
    outer = line[: len(line) - len(line.lstrip())]
    newline = "\r\n" if "\r\n" in text else "\n"
    lead = f"{newline}{outer}{_INDENT}"
    return f"{text[: container + 1]}{lead}{_rendered(value, key, lead)}{newline}{outer}{text[close:]}"


def _rendered(value: object, key: str | None, lead: str) -> str:
    """`value` as text, on one line or on several, as its neighbours, before which `lead` stands, are."""
    if "\n" in lead:
        margin = lead[lead.rindex("\n") + 1 :]
        newline = "\r\n" if "\r\n" in lead else "\n"
        unit = "\t" if "\t" in margin else _INDENT
        made = json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", newline + margin)
    else:
        made = json.dumps(value, ensure_ascii=False)
    return made if key is None else f"{json.dumps(key, ensure_ascii=False)}: {made}"


def _cut(text: str, container: int, index: int) -> str:
    items, close = _items(text, container)
    if len(items) == 1:
        return text[: container + 1] + text[close:]
    if index:
        return text[: items[index - 1].end] + text[items[index].end :]
    return text[: items[0].start] + text[items[1].start :]
