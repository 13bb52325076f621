"""The parser's own rules: errors are raised, not printed; a report with `--json` names its keys."""

import argparse

import pytest

from wakehub.cli.parser import Commands, Parser, Usage


def nothing(args: argparse.Namespace) -> int:
    return 0


@pytest.fixture
def top() -> Parser:
    return Parser(prog="wakehub")


def test_an_error_names_the_command_whose_help_helps(top):
    Commands(top).add("do", "do it", nothing, examples=["wakehub do"]).add_argument("--count", type=int)
    with pytest.raises(Usage) as refused:
        top.parse_args(["do", "--count", "many"])
    assert refused.value.remedy == "wakehub do --help"
    assert refused.value.what == "argument --count"


def test_no_flag_is_abbreviated(top):
    Commands(top).add("do", "do it", nothing, examples=["wakehub do"]).add_argument("--count")
    with pytest.raises(Usage, match="unrecognized") as refused:
        top.parse_args(["do", "--cou", "1"])
    assert refused.value.remedy == f"{top.prog} do --help"


def test_only_a_command_with_keys_has_json(top):
    commands = Commands(top)
    with_keys = commands.add("a", "do it", nothing, examples=["wakehub a"], json_keys="one, two")
    without = commands.add("b", "do it", nothing, examples=["wakehub b"])
    assert "--json prints: one, two" in with_keys.format_help()
    assert "--json" not in without.format_help()


def test_a_choice_far_from_all_is_answered_with_all_of_a_few(top):
    top.add_argument("--colour", choices=("red", "blue"))
    with pytest.raises(Usage) as refused:
        top.parse_args(["--colour", "zzz"])
    assert (refused.value.why, refused.value.remedy) == ("", "one of red, blue")


def test_what_was_typed_is_shown_safely(top):
    top.add_argument("--colour", choices=("red", "blue"))
    with pytest.raises(Usage) as refused:
        top.parse_args(["--colour", "\x1b[2K"])
    assert "\x1b" not in refused.value.what
