"""Which session a message goes to; a name never falls back to another session (fault F37)."""

from pathlib import Path
from typing import Any

import pytest

from wakehub.client.claude_sessions import Session
from wakehub.relay.backends.claude.routing import Bond, Router, newest
from wakehub.relay.message import after_workspace
from wakehub.relay.options import ToClaude


def session(name: str = "x", pid: int = 1, **changes: Any) -> Session:
    values: dict[str, Any] = {
        "pid": pid,
        "started": f"start of {pid}",
        "session_id": f"s{pid}",
        "cwd": "/w",
        "kind": "interactive",
        "name": name,
        "name_source": "user",
        "started_at": float(pid),
        "socket": Path("/s"),
        "protocol": "1",
    }
    return Session(**(values | changes))


REVIEW, DEPLOY, HIDDEN = session("review", 1), session("deploy", 2), session("fix auth", 3, kind="print")
ALL = [REVIEW, DEPLOY, HIDDEN]


def router(
    *names: str, environ: dict[str, str] | None = None, claims: dict[str, Bond] | None = None, **to: Any
) -> Router:
    return Router(ToClaude(**to), names or ("acme/",), environ or {}, (claims or {}).get)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("acme/review", [REVIEW]),
        ("acme/deploy", [DEPLOY]),
        ("acme/fix-auth", [HIDDEN]),  # of whatever kind
        ("acme/other", []),
        ("acme/eng/review", []),
        ("acme/Review", []),
        ("acme/claude", [DEPLOY]),  # the interactive one that was started last
    ],
)
def test_a_relay_routes_by_the_address_behind_the_workspace(address: str, found: list[Session]) -> None:
    assert router().candidates(address, ALL) == found


@pytest.mark.parametrize(
    ("to", "environ", "address", "why"),
    [
        ({}, {}, "acme/other", "no session called other is running"),
        ({}, {}, "acme/claude", "no interactive session is running"),
        ({"session": "nobody"}, {}, "zed", "no session called nobody is running"),
        ({"agents": ("a", "b")}, {}, "acme/other", "--opt agents= leaves other out"),
        ({}, {"CLAUDE_CODE_SESSION_ID": "s9"}, "zed", "the session for which this listener was started is not running"),
    ],
)
def test_why_there_is_nobody_is_said(to: dict[str, Any], environ: dict[str, str], address: str, why: str) -> None:
    names = [address] if environ else []
    nowhere = router(*names, environ=environ, **to)
    assert nowhere.candidates(address, []) == []
    assert nowhere.absence(address) == why


def test_a_plain_name_is_a_name() -> None:
    assert router("review").candidates("review", ALL) == [REVIEW]
    assert router("claude").candidates("claude", ALL) == [DEPLOY]


def test_a_session_with_a_path_for_a_name() -> None:
    one = session("eng/review")
    assert router().candidates("acme/eng/review", [one]) == [one]


def test_of_several_with_one_name_nobody_is_guessed_at() -> None:
    twin = session("review", 9)
    assert router().candidates("acme/review", [*ALL, twin]) == [REVIEW, twin]


def test_the_exact_name_comes_before_one_that_is_written_alike() -> None:
    exact = session("fix-auth", 9)
    assert router().candidates("acme/fix-auth", [*ALL, exact]) == [exact]
    assert router().candidates("acme/fix-auth", [*ALL, session("fix:auth", 9)]) == [HIDDEN]


def test_sessions_without_a_name_are_reached_as_the_shared_endpoint_only() -> None:
    one = session("", 9)
    assert router().candidates("acme/claude", [one]) == [one]
    assert router().candidates("acme/x", [one]) == []


def test_a_given_session_takes_everything_and_nobody_else_does() -> None:
    one = router("alice", "bob", session="fix auth")
    assert one.candidates("alice", ALL) == one.candidates("bob", ALL) == [HIDDEN]
    assert one.candidates("alice", [REVIEW]) == []
    assert not one.is_anyone_there([REVIEW])


def test_inside_a_session_it_is_that_one_by_pid_and_start_and_later_by_its_id() -> None:
    """F37: /clear changes the id, a resume the process; another session is never taken for it."""
    one = router("alice", environ={"CLAUDE_CODE_SESSION_ID": "s2"})
    assert one.candidates("alice", ALL) == [DEPLOY]
    cleared = session("deploy", 2, session_id="s2b")
    assert one.candidates("alice", [REVIEW, cleared]) == [cleared]
    reused = session("other", 2, started="later", session_id="s7")
    assert one.candidates("alice", [REVIEW, reused]) == []
    resumed = session("deploy", 8, session_id="s2b")
    assert one.candidates("alice", [REVIEW, reused, resumed]) == [resumed]
    assert one.candidates("alice", [session("deploy", 8, session_id="s9")]) != []
    assert not one.is_anyone_there([REVIEW])


def test_the_process_comes_before_the_id() -> None:
    bond = Bond("s1", (2, "start of 2"))
    assert bond.find(ALL) == DEPLOY


def test_a_relay_takes_no_notice_of_the_session_it_was_started_in() -> None:
    one = router("acme/", environ={"CLAUDE_CODE_SESSION_ID": "s1"})
    assert one.candidates("acme/deploy", ALL) == [DEPLOY]
    assert one.candidates("acme/claude", ALL) == [DEPLOY]


def test_a_claim_rules_while_its_session_is_there() -> None:
    one = router(claims={"acme/claude": Bond("s1", (1, "start of 1"))})
    assert one.candidates("acme/claude", ALL) == [REVIEW]
    assert one.candidates("corp/claude", ALL) == [DEPLOY]
    assert one.candidates("acme/claude", [DEPLOY]) == [DEPLOY]


def test_the_newest_is_one_that_can_be_reached_if_any_can() -> None:
    deaf = session("deaf", 7, socket=None)
    assert newest([*ALL, deaf]) == DEPLOY
    assert newest([deaf]) == deaf
    assert newest([HIDDEN]) is None


def test_agents_restrict_a_relay() -> None:
    one = router("acme/", agents=frozenset({"review", "claude"}))
    assert one.candidates("acme/review", ALL) == [REVIEW]
    assert one.candidates("acme/claude", ALL) == [DEPLOY]
    assert one.candidates("acme/deploy", ALL) == []
    assert one.is_anyone_there(ALL)
    assert not one.is_anyone_there([HIDDEN])
    deep = router("acme/eng/", agents=frozenset({"eng/review"}))
    assert deep.is_anyone_there([REVIEW._replace(name="eng/review")])
    assert not deep.is_anyone_there([REVIEW])


def test_who_counts_as_there() -> None:
    assert router("acme/").is_anyone_there([HIDDEN])
    assert not router("acme/").is_anyone_there([])
    assert router("x", "review").is_anyone_there([REVIEW])
    assert not router("x").is_anyone_there(ALL)


@pytest.mark.parametrize(
    ("address", "name"), [("acme/review", "review"), ("acme/eng/x", "eng/x"), ("review", "review"), ("a/a", "a")]
)
def test_behind_the_workspace(address: str, name: str) -> None:
    assert after_workspace(address) == name
