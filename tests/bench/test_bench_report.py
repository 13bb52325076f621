"""Tables: what a person and a program get, on known rows."""

import pytest

from wakehub.bench import report
from wakehub.bench.report import Column, Table


@pytest.fixture
def table():
    made = Table("t", "A table", (Column("system", "system"), Column("p50_us", "p50 µs"), Column("agents", "n", 0)))
    made.add(system="wakehub", p50_us=1234.56, agents=256)
    made.add(system="floor", p50_us=None, agents=2)
    made.notes.append("a remark")
    return made


def test_plain_text_lines_up(table):
    assert table.lines() == [
        "A table",
        "  system    p50 µs    n",
        "  wakehub  1,234.6  256",
        "  floor          –    2",
        "  (a remark)",
    ]


def test_markdown_is_a_table(table):
    assert table.markdown() == [
        "**A table**",
        "",
        "| system | p50 µs | n |",
        "|---|---:|---:|",
        "| wakehub | 1,234.6 | 256 |",
        "| floor | – | 2 |",
        "",
        "a remark.",
        "",
    ]


def test_json_keeps_the_numbers_as_they_are(table):
    assert table.to_json() == {
        "title": "A table",
        "rows": [
            {"system": "wakehub", "p50_us": 1234.56, "agents": 256},
            {"system": "floor", "p50_us": None, "agents": 2},
        ],
        "notes": ["a remark"],
        "rounds": [],
    }


@pytest.mark.parametrize("cells", [{}, {"system": "x", "p50_us": 1}, {"system": "x", "p50_us": 1, "agents": 1, "y": 1}])
def test_a_row_has_every_column_and_no_other(table, cells):
    with pytest.raises(ValueError, match="a row of t"):
        table.add(**cells)


def test_the_machine_is_described_and_not_named():
    found = report.machine()
    assert set(found) == {"system", "kernel", "architecture", "cpus", "pinned", "python", "wakehub", "load"}
    assert all(value is not None for value in found.values())
    assert "5 interleaved rounds" in report.head(found, 5)


def test_a_busy_machine_is_mentioned():
    assert report.busy(1.0, 2) == []
    (remark,) = report.busy(9.5, 2)
    assert "load 9.5 on 2 CPUs" in remark
