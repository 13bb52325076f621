"""The hub's counters as programs want them: OpenMetrics text, sample by sample (awh1.md §7)."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

JSON_KEYS: Final = ("samples",)
SAMPLE_KEYS: Final = ("name", "labels", "value")
_SAMPLE: Final = re.compile(r"(\w+)(?:\{(.*)\})? ([0-9.]+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Sample:
    """One number, as the hub counted it, with its labels."""

    name: str
    labels: dict[str, str]
    value: int | float


def samples(text: str) -> Iterator[Sample]:
    """Every sample in `text`, in its order; lines that are none (types, the end) are passed over."""
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line)
        if found is not None:
            name, labels, value = found.groups()
            yield Sample(name, _labels(labels or ""), float(value) if "." in value else int(value))


def to_json(text: str) -> dict[str, Any]:
    """The report for programs: exactly `JSON_KEYS`, each sample with `SAMPLE_KEYS`."""
    return {"samples": [asdict(sample) for sample in samples(text)]}


def _labels(text: str) -> dict[str, str]:
    return {name: _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
            for name, value in _LABEL.findall(text)}  # fmt: skip
