"""A strict reader of OpenMetrics 1.0 text, as far as counters, gauges, histograms and info go; no code of the package.

`parse` returns the families by name; anything that the specification does not allow raises ValueError.
"""

import re
from dataclasses import dataclass, field

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)(?:\{(?P<labels>.*)\})? (?P<value>[^ ]+)")
_LABEL = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\\n]|\\["\\n])*)"(?:,(?=.)|$)')
_SUFFIXES = {"counter": {"_total"}, "gauge": {""}, "histogram": {"_bucket", "_count", "_sum"}, "info": {"_info"}}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """One metric family; `samples` by suffix and sorted labels."""

    kind: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, **labels: str) -> float:
        """The sample of a counter or gauge with these labels."""
        (suffix,) = _SUFFIXES[self.kind]
        return self.samples[suffix, tuple(sorted(labels.items()))]


def parse(text: str) -> dict[str, Family]:
    _expect(text.endswith("\n# EOF\n"), "it must end in # EOF and one newline")
    families: dict[str, Family] = {}
    name = ""
    for line in text.removesuffix("# EOF\n").splitlines():
        if line.startswith("#"):
            keyword, name, kind = line.removeprefix("# ").split(" ")
            _expect(keyword == "TYPE" and kind in _SUFFIXES, f"not a TYPE line: {line}")
            _expect(_NAME.fullmatch(name) is not None, f"bad name: {name}")
            _expect(name not in families, f"family {name} comes twice")
            families[name] = Family(kind)
        else:
            _read_sample(line, name, families[name])
    for name, family in families.items():
        if family.kind == "histogram":
            _check_histogram(name, family)
    return families


def _read_sample(line: str, name: str, family: Family) -> None:
    found = _SAMPLE.fullmatch(line)
    if found is None or not found["name"].startswith(name):
        raise ValueError(f"not a sample of {name}: {line}")
    suffix = found["name"].removeprefix(name)
    _expect(suffix in _SUFFIXES[family.kind], f"a {family.kind} has no {suffix}: {line}")
    key = suffix, _labels(found["labels"] or "")
    _expect(key not in family.samples, f"the same sample twice: {line}")
    value = float(found["value"])
    _expect(family.kind == "gauge" or value >= 0, f"below zero: {line}")
    _expect(family.kind != "info" or value == 1, f"an info is 1: {line}")
    family.samples[key] = value


def _labels(text: str) -> Labels:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None or found["name"] in labels:
            raise ValueError(f"bad labels: {text}")
        labels[found["name"]] = found["value"]
        at = found.end()
    return tuple(sorted(labels.items()))


def _check_histogram(name: str, family: Family) -> None:
    buckets = [(labels, value) for (suffix, labels), value in family.samples.items() if suffix == "_bucket"]
    bounds = [dict(labels)["le"] for labels, _ in buckets]
    counts = [value for _, value in buckets]
    _expect(
        [float(bound) for bound in bounds] == sorted({float(bound) for bound in bounds}), f"{name}: bounds not in order"
    )
    _expect(all(bound == canonical(float(bound)) for bound in bounds), f"{name}: bounds not canonical: {bounds}")
    _expect(counts == sorted(counts), f"{name}: buckets do not accumulate")
    _expect(bounds[-1] == "+Inf" and counts[-1] == family.samples["_count", ()], f"{name}: +Inf is not the count")
    _expect(("_sum", ()) in family.samples, f"{name}: no sum")


def canonical(number: float) -> str:
    """A bound as Go writes it, with .0 where neither point nor exponent shows that it is no integer."""
    if number == float("inf"):
        return "+Inf"
    text = f"{number:g}"
    return text if "." in text or "e" in text else text + ".0"


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
