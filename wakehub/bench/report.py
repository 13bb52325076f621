"""What the benchmark prints: tables for people, the same for programs, and Markdown for the guide.

A cell is a number with its unit in the column's key, text, or None for what could not be had here; None is shown as a
dash and explained in the notes.
"""

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wakehub import __version__
from wakehub.bench import cpu

Cell = float | int | str | None


@dataclass(frozen=True, slots=True)
class Column:
    """`key` names the value in the JSON, with its unit; `heading` stands above it."""

    key: str
    heading: str
    digits: int = 1


@dataclass
class Table:
    """One table of a scenario. `rounds` are the single rounds' values behind the rows, for programs only."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: list[dict[str, Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **cells: Cell) -> None:
        """Add a row; raises `ValueError` unless it has every column and no other."""
        if set(cells) != {column.key for column in self.columns}:
            raise ValueError(f"a row of {self.name} has {sorted(cells)}")
        self.rows.append(cells)

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "rows": self.rows, "notes": self.notes, "rounds": self.rounds}

    def lines(self) -> list[str]:
        """The table in plain text."""
        cells = [[column.heading for column in self.columns]]
        cells += [[shown(row[column.key], column.digits) for column in self.columns] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        body = ["  ".join(_aligned(text, width, at) for at, (text, width) in enumerate(zip(row, widths, strict=True)))
                for row in cells]  # fmt: skip
        return [self.title, *(f"  {line.rstrip()}" for line in body), *(f"  ({note})" for note in self.notes)]

    def markdown(self) -> list[str]:
        """The table in Markdown."""
        head = "| " + " | ".join(column.heading for column in self.columns) + " |"
        rule = "|" + "|".join("---" if at == 0 else "---:" for at in range(len(self.columns))) + "|"
        body = [
            "| " + " | ".join(shown(row[column.key], column.digits) for column in self.columns) + " |"
            for row in self.rows
        ]
        return [f"**{self.title}**", "", head, rule, *body, "", *(f"{note}." for note in self.notes), ""]


def shown(value: Cell, digits: int) -> str:
    """A cell as it is printed."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,.{digits}f}"


def machine() -> dict[str, Cell]:
    """What was measured on: nothing that names the machine."""
    return {
        "system": platform.system(),
        "kernel": platform.release().partition("-")[0],
        "architecture": platform.machine(),
        "cpus": len(cpu.usable()) or None,
        "pinned": "yes" if cpu.can_pin() else "no",
        "python": platform.python_version(),
        "wakehub": __version__,
        "load": round(os.getloadavg()[0], 2),
    }


def busy(load: float, cpus: int) -> list[str]:
    """A remark when the machine had something else to do: `load` is how many processes wanted to run at the start."""
    if load <= cpus / 2:
        return []
    return [
        f"the machine was busy when this began (load {load:.1f} on {cpus} CPUs): times are too long, ratios less so; "
        "run it again when it rests"
    ]


def head(found: dict[str, Cell], rounds: int) -> str:
    """One line above the tables."""
    return (
        f"wakehub {found['wakehub']} · Python {found['python']} · {found['system']} {found['kernel']} "
        f"{found['architecture']} · {found['cpus'] or '?'} CPUs · {rounds} interleaved rounds"
    )


def _aligned(text: str, width: int, at: int) -> str:
    return text.ljust(width) if at == 0 else text.rjust(width)


def platform_notes() -> list[str]:
    """What is left out on this platform."""
    if sys.platform == "linux":
        return []
    return [
        "this system binds no process to a CPU: pinned tables are left out, and ratios with them",
        "CPU times come from ps, in hundredths of a second; private memory is not told",
    ]
