"""Durations, numbers and paths on a command line."""

import argparse
from pathlib import Path

import pytest

from wakehub.cli import words

DAY = 86400


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("24h", DAY), ("7d", 7 * DAY), ("0", 0), ("007", 7)]
)
def test_a_duration(text, seconds):
    assert words.duration(least=0)(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "1.5h", "-1", "+1", "1e3", "1 h", "1H", "1w", "٣", "1234567890", "1h30m", " 1"]
)
def test_what_is_no_duration(text):
    with pytest.raises(argparse.ArgumentTypeError, match="write"):
        words.duration(least=0)(text)


@pytest.mark.parametrize("text", ["0", "8d", "604801"])
def test_a_duration_out_of_its_bounds_is_refused_and_not_clamped(text):
    with pytest.raises(argparse.ArgumentTypeError, match="must be 1 s to 604800 s"):
        words.duration(least=1, most=7 * DAY)(text)


def test_a_duration_without_an_upper_bound():
    with pytest.raises(argparse.ArgumentTypeError, match="1 s or more"):
        words.duration(least=1)("0s")


@pytest.mark.parametrize("text", ["0", "-1", "1.0", "", "x", "٣", "10000000000"])
def test_what_is_no_whole_number(text):
    with pytest.raises(argparse.ArgumentTypeError, match="whole number of at least 1"):
        words.whole_number(least=1)(text)


def test_a_whole_number():
    assert words.whole_number(least=1)("500") == 500


def test_a_path():
    assert words.path("x/y") == Path("x/y")
    with pytest.raises(argparse.ArgumentTypeError):
        words.path("")
