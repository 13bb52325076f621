"""JSON of the files we own, read without leniency (formats.md): UTF-8, one object, nothing twice, nothing unknown.

Two readers of one file must not see two things. So a repeated key, an unknown key, a missing key, a number with a
fraction, NaN and another encoding are all refused, and `true` is no number. Every refusal is a `ValueError` whose
text names the fault and never a value (it may be a secret).
"""

import json
from collections.abc import Iterable, Set
from typing import Any, NoReturn

from wakehub.visible import visible


def parse(data: bytes | str, required: Set[str], optional: Set[str] = frozenset()) -> dict[str, Any]:
    """The one object in `data`, holding all `required` keys and else only `optional` ones."""
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    if not text:
        raise ValueError("it is empty")
    try:
        found = json.loads(text, object_pairs_hook=unique, parse_float=_refused, parse_constant=_refused)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    return fields(found, required, optional)


def fields(found: object, required: Set[str], optional: Set[str] = frozenset()) -> dict[str, Any]:
    """`found` if it is an object with all `required` keys and else only `optional` ones."""
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    if missing := required - found.keys():
        raise ValueError(f"key {_names(missing)} is missing")
    if unknown := found.keys() - required - optional:
        raise ValueError(f"unknown key {_names(unknown)}")
    return found


def text(found: dict[str, Any], key: str) -> str:
    """The text under `key`; it holds no lone surrogate."""
    value: str = _typed(found, key, str)
    value.encode()  # UnicodeEncodeError is a ValueError
    return value


def integer(found: dict[str, Any], key: str, least: int, most: int) -> int:
    """The whole number under `key`, within `least`..`most`."""
    value: int = _typed(found, key, int)
    if not least <= value <= most:
        raise ValueError(f"{key} is not within {least}..{most}")
    return value


def array(found: dict[str, Any], key: str) -> list[Any]:
    """The list under `key`."""
    value: list[Any] = _typed(found, key, list)
    return value


def mapping(found: dict[str, Any], key: str) -> dict[str, Any]:
    """The object under `key`."""
    value: dict[str, Any] = _typed(found, key, dict)
    return value


def dump(found: dict[str, Any]) -> bytes:
    """The one form in which we write: UTF-8 without spaces, keys in the order given."""
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _typed(found: dict[str, Any], key: str, kind: type) -> Any:
    value = found[key]
    if type(value) is not kind:  # not isinstance: True is an int
        raise ValueError(f"{key} is not {_KINDS[kind]}")
    return value


_KINDS = {str: "text", int: "a whole number", list: "a list", dict: "an object"}


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` that refuses a key which appears twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {_names(name for name in found if names.count(name) > 1)} appears twice")
    return found


def _refused(literal: str) -> NoReturn:
    raise ValueError("a number that is not whole")


def _names(names: Iterable[str]) -> str:
    return ", ".join(visible(name[:40]) for name in sorted(names))
