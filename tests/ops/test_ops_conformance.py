"""The conformance run's parts: what a case sees of a hub, what a run makes of it, and how it is told.

That a sound hub passes and a broken one does not is shown in `test_ops_conformance_mutants` and, with processes, in
`tests/e2e/test_e2e_conformance`.
"""

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import pytest
import trio
from broken_hubs import AGENTS, Broken, Served, serving
from independent_client import Agent, Bundle, Client

from wakehub.errors import ErrorCode, Exit, WakehubError
from wakehub.identity.keys import KeyPair, verify
from wakehub.ops.conformance import report, runner
from wakehub.ops.conformance.case import Case, Result, Verdict
from wakehub.ops.conformance.guest import Guest, load_guests, malleated, topic_list
from wakehub.ops.conformance.lab import Lab
from wakehub.ops.conformance.outcome import Mismatch, NotApplicable, Stop
from wakehub.ops.conformance.peer import Peer, body, prefixed
from wakehub.ops.conformance.runner import CASES, Findings
from wakehub.wire.frames import Frame, Kind, decode, encode
from wakehub.wire.payloads import Error, Welcome

HUB = b"wakehub"


# --- the list -------------------------------------------------------------------------------------------------


def test_there_are_enough_cases_and_no_name_twice() -> None:
    assert len(CASES) >= 80
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(re.fullmatch(r"[a-z0-9-]+", case.name) for case in CASES)
    assert all(re.fullmatch(r"[1-5](\.[0-9]+)?", case.section) for case in CASES)
    assert all(0 <= case.agents <= 3 for case in CASES)
    assert all(case.expects for case in CASES)


def test_what_needs_no_agent_is_worth_a_run_of_its_own() -> None:
    assert sum(case.agents == 0 for case in CASES) >= 60


def test_the_guide_gives_the_number_of_cases_every_key_and_every_exit() -> None:
    guide = (resources.files("wakehub.guide") / "conformance.md").read_text("utf-8")
    assert f"tries {len(CASES)} cases" in guide
    for key in {*report.JSON_KEYS, *report.CASE_KEYS}:
        assert f"`{key}`" in guide, key
    for word in ("--bundle", "--only", "--ours", "--list", "--json", "--hub-id", "--socket"):
        assert word in guide


def test_sections_take_in_those_below_and_names_choose_one() -> None:
    assert {case.section.split(".")[0] for case in runner.chosen(["5"])} == {"5"}
    assert {case.section for case in runner.chosen(["5.8"])} == {"5.8"}
    assert [case.name for case in runner.chosen(["ping"])] == ["ping"]
    assert {case.section for case in runner.chosen(["1", "3"])} == {"1", "3"}
    assert runner.chosen([]) == CASES


@pytest.mark.parametrize("word", ["9", "5.", "", "no-such-case"])
def test_a_word_that_chooses_nothing_is_refused(word: str) -> None:
    with pytest.raises(WakehubError) as caught:
        runner.chosen([word])
    assert caught.value.exit == Exit.USAGE
    assert "--list" in caught.value.remedy


# --- bundles and proofs ---------------------------------------------------------------------------------------


@pytest.fixture
def guest() -> Guest:
    return Guest.stranger("team/x/alice", "wakehub")


def test_an_agent_may_read_its_nearest_parents(guest: Guest) -> None:
    assert guest.prefixes == ("team/x", "team")


def test_s_plus_l_is_another_signature_that_a_strict_verifier_refuses() -> None:
    pair = KeyPair.generate()
    signature = pair.sign(b"m")
    assert verify(pair.public, b"m", signature)
    assert len(malleated(signature)) == len(signature)
    assert malleated(signature) != signature
    assert not verify(pair.public, b"m", malleated(signature))


def test_bundles_of_another_tool_are_read(short: Path) -> None:
    path = short / "a.json"
    Agent("team/a").bundle("wakehub").write(path)
    (loaded,) = load_guests([path])
    assert loaded.agent == b"team/a"


@pytest.mark.parametrize(
    ("agents", "hub_id", "says"),
    [
        ([("a", "wakehub"), ("a", "wakehub")], None, "two bundles are of one agent"),
        ([("a", "wakehub"), ("b", "other")], None, "other, wakehub"),
        ([("a", "wakehub")], "other", "other, wakehub"),
    ],
)
def test_bundles_that_do_not_go_together_are_refused(
    short: Path, agents: list[tuple[str, str]], hub_id: str | None, says: str
) -> None:
    paths = []
    for number, (name, hub) in enumerate(agents):
        paths.append(short / f"{number}.json")
        Agent(name).bundle(hub).write(paths[-1])
    with pytest.raises(WakehubError) as caught:
        load_guests(paths, hub_id)
    assert caught.value.exit == Exit.USAGE
    assert says in caught.value.what


def test_a_bundle_that_is_absent_expired_or_open_to_others_is_refused(short: Path) -> None:
    path = short / "a.json"
    with pytest.raises(WakehubError, match=r"cannot be read.*wakehub delegate"):
        load_guests([path])
    Agent("a").bundle("wakehub", not_before=time.time() - 20, ttl_s=10).write(path)
    with pytest.raises(WakehubError, match="expired at"):
        load_guests([path])
    Agent("a").bundle("wakehub").write(path)
    path.chmod(0o644)
    with pytest.raises(WakehubError) as caught:
        load_guests([path])
    assert caught.value.exit == Exit.PERMISSION


# --- what a case sees of a hub --------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[Peer, socket.socket]]:
    """A peer, and the hub's end of its connection."""
    ours, theirs = socket.socketpair()
    peer = Peer(ours, time.monotonic() + 10, 5)
    peer.hub_id = HUB
    with theirs:
        yield peer, theirs
    peer.close()


def frame(kind: Kind, payload: bytes = b"", *, sender: bytes = HUB, to: bytes = b"") -> bytes:
    return encode(Frame(kind, sender, to, payload))


def error(code: int, reason: str = "why", *, to: bytes = b"") -> bytes:
    return frame(Kind.ERROR, Error(code, reason).encode(), to=to)


Pair = tuple[Peer, socket.socket]


def test_a_refusal_is_one_error_and_the_end(pair: Pair) -> None:
    peer, hub = pair
    hub.sendall(error(400, "bad magic"))
    hub.shutdown(socket.SHUT_WR)
    assert peer.expect_refusal(ErrorCode.MALFORMED) == "bad magic"
    peer.expect_end()


@pytest.mark.parametrize(
    ("sent", "came"),
    [
        (error(401), "error 401 'why'"),
        (error(400) + error(400), "error 400 'why'"),
        (error(400, to=b"somebody"), "error 400 'why', to somebody"),
        (frame(Kind.ERROR, Error(400, "why").encode(), sender=b"me"), "error 400 'why', from me"),
        (frame(Kind.ERROR, b"\1"), "an error that is malformed: error without a code"),
        (frame(Kind.PONG), "a pong"),
        (b"", "the end of the stream"),
        (b"\0\0", "the end of the stream inside a frame"),
        (error(400)[:-1], "the end of the stream inside a frame"),
        (b"\xff\xff\xff\xff", "a frame that no hub may send: frame exceeds 1304 B"),
        (prefixed(body(Kind.PONG, flags=1)), "a frame that no hub may send: flags are not zero"),
    ],
)
def test_anything_else_than_a_refusal_is_told_in_words(pair: Pair, sent: bytes, came: str) -> None:
    peer, hub = pair
    hub.sendall(sent)
    hub.shutdown(socket.SHUT_WR)
    with pytest.raises(Mismatch) as caught:
        peer.expect_refusal(ErrorCode.MALFORMED)
    assert str(caught.value) == came


def test_what_a_hub_says_is_shown_without_its_control_characters(pair: Pair) -> None:
    peer, hub = pair
    hub.sendall(error(400, "\x1b[2J\n"))
    with pytest.raises(Mismatch) as caught:
        peer.expect(Kind.PONG)
    assert str(caught.value) == r"error 400 '\x1b[2J\n'"


def test_waiting_ends_with_patience_and_with_the_case(pair: Pair) -> None:
    peer, _ = pair
    with pytest.raises(Mismatch, match=r"nothing for 0\.01 s"):
        peer.receive(0.01)
    late = Peer(socket.socket(socket.AF_UNIX), time.monotonic() - 1, 5)
    for act in (lambda: late.send(b"x"), late.receive):
        with pytest.raises(Mismatch, match="no end within the case's time"):
            act()
    late.close()


def test_a_hub_that_does_not_read_is_a_mismatch_and_one_that_is_gone_is_not() -> None:
    ours, theirs = socket.socketpair()
    peer = Peer(ours, time.monotonic() + 0.05, 5)
    with pytest.raises(Mismatch, match="the hub does not read"):
        peer.send(bytes(1 << 24))
    theirs.close()
    gone, theirs = socket.socketpair()
    theirs.close()
    other = Peer(gone, time.monotonic() + 5, 5)
    other.send(b"x")
    other.send_end()
    other.expect_end()
    peer.close()
    other.close()


def test_a_reset_is_the_end_behind_what_was_said(pair: Pair) -> None:
    peer, hub = pair
    peer.send(b"unread")
    hub.sendall(error(413))
    hub.close()
    peer.expect_refusal(ErrorCode.TOO_LARGE)


def test_a_hub_may_ask_whether_a_session_is_there(pair: Pair) -> None:
    peer, hub = pair
    peer.agent = b"alice"
    hub.sendall(frame(Kind.PING, to=b"alice") + frame(Kind.PONG, to=b"alice"))
    assert peer.before_pong() == []
    sent = hub.recv(4096)
    kinds = [decode(sent[at : at + 33]).kind for at in (0, 33)]
    assert kinds == [Kind.PING, Kind.PONG]


def test_what_comes_before_the_pong_is_not_quiet(pair: Pair) -> None:
    peer, hub = pair
    peer.agent = b"alice"
    hub.sendall(error(404, to=b"alice") + frame(Kind.PONG, to=b"alice"))
    with pytest.raises(Mismatch, match="error 404"):
        peer.expect_quiet()


def test_silence_is_neither_a_frame_nor_the_end(pair: Pair) -> None:
    peer, hub = pair
    peer.expect_silence(time.monotonic() + 0.01)
    hub.shutdown(socket.SHUT_WR)
    with pytest.raises(Mismatch, match="the end of the stream"):
        peer.expect_silence(time.monotonic() + 5)


def test_another_program_in_our_place_stops_the_run(pair: Pair) -> None:
    peer, hub = pair
    peer.agent = b"alice"
    hub.sendall(error(409, to=b"alice") * 2)
    with pytest.raises(Stop, match="alice is in use by another program"):
        peer.read()
    peer.is_displaced = True
    peer.expect_error(ErrorCode.REPLACED)


def test_a_lab_finds_names_that_its_agents_may_hold() -> None:
    guests = [Guest.stranger(name, "wakehub") for name in ("a/b/one", "a/b/two", "a/three", "d")]
    lab = Lab(Path("/nowhere"), guests, "t0k3n", 1)
    assert lab.namespace(2) == "a/b"
    assert lab.namespace(3) == "a"
    assert lab.topic(3) == b"#a/c0-t0k3n"
    assert lab.own_topic(guests[0]) == b"#_inbox/a/b/one"
    with pytest.raises(NotApplicable, match="under one path"):
        lab.namespace(4)
    with pytest.raises(NotApplicable, match="longer than 64"):
        lab.own_topic(Guest.stranger("x" * 60, "wakehub"))
    with pytest.raises(Stop, match="the hub is gone"):
        lab.open()
    lab.close()


def test_a_topic_list_may_be_wrong_on_purpose() -> None:
    assert topic_list([b"#a", b""]) == b"\2\2#a\0"


# --- a run ----------------------------------------------------------------------------------------------------


async def in_thread(act: Callable[[], Findings]) -> Findings:
    return await trio.to_thread.run_sync(act)


def run(served: Served, cases: list[Case], **options: float) -> Findings:
    return runner.run(served.socket, "wakehub", served.guests, cases, patience_s=5, **options)  # type: ignore[arg-type]


def made(
    act: Callable[[Lab], None], agents: int = 0, *, shared: bool = False, departs: bool = False, ours: bool = False
) -> Case:
    return Case("made-up", "1", "it to be so", act, agents, shared, departs, ours)


def does_nothing(lab: Lab) -> None:
    """A case that passes."""


def fails(lab: Lab) -> None:
    raise Mismatch("something else")


async def test_a_rule_of_ours_counts_on_request(short: Path) -> None:
    async with serving(short, Broken("sound", ())) as served:
        cases = [made(fails, ours=True), made(does_nothing)]
        base = await in_thread(lambda: run(served, cases))
        ours = await in_thread(lambda: run(served, cases, judge_ours=True))
        nothing = await in_thread(lambda: run(served, [made(does_nothing, ours=True)]))
    assert (base.exit, ours.exit, nothing.exit) == (Exit.DONE, Exit.FAILED, Exit.NOTHING)
    assert "not judged" in report.line(base.results[0])
    assert "1 of them rules of ours" in report.summary(base)[0]
    assert "not judged" not in report.line(ours.results[0])


async def test_cases_without_their_agents_do_not_apply(short: Path) -> None:
    async with serving(short, Broken("sound", ())) as served:
        few = Served(served.socket, served.guests[:1])
        findings = await in_thread(lambda: run(few, [made(fails, 2), made(fails, 3, shared=True)]))
    assert [result.verdict for result in findings.results] == [Verdict.NOT_APPLICABLE] * 2
    assert findings.results[0].came == "needs 2 bundles, 1 given"
    assert findings.exit == Exit.NOTHING


async def test_an_agent_that_is_not_admitted_takes_no_part(short: Path) -> None:
    async with serving(short, Broken("sound", ())) as served:
        stranger = Served(served.socket, (Guest.stranger("team/x", "wakehub"),))
        cases = [made(fails, 1), *runner.chosen(["hello-is-welcomed"])]
        findings = await in_thread(lambda: run(stranger, cases))
    assert [result.verdict for result in findings.results] == [Verdict.NOT_APPLICABLE, Verdict.FAILED]
    assert "team/x was not admitted: error 401" in findings.results[0].came


def session(served: Served, number: int) -> Client:
    """A session of an agent of the bundles, by another program."""
    return Client.connect(served.socket, Bundle.from_json(served.guests[number].bundle.to_json()))


async def test_the_agents_depart_at_the_end_but_for_one_that_is_in_use(short: Path) -> None:
    def story(served: Served) -> Findings:
        session(served, 0).close()
        session(served, 1).close()
        with session(served, 2) as sender:
            assert sender.ping() == []
            sender.wake(AGENTS[0], "m_1")
            assert sender.ping() == []
            only_two = Served(served.socket, served.guests[:2])
            findings = run(only_two, [made(does_nothing, 1), made(does_nothing, 1, departs=True)])
            sender.wake(AGENTS[0], "m_2")
            assert sender.ping() == [], "who was in use is still known"
            sender.wake(AGENTS[1], "m_2")
            assert [code for code, _ in sender.ping()] == [404], "the other one departed"
        return findings

    async with serving(short, Broken("sound", ())) as served:
        findings = await in_thread(lambda: story(served))
    assert [result.verdict for result in findings.results] == [Verdict.PASSED, Verdict.NOT_APPLICABLE]
    assert findings.results[1].came == "team/a is in use: something waited for it"


async def test_a_session_that_somebody_else_takes_over_ends_the_run(short: Path) -> None:
    def intruded(served: Served, lab: Lab) -> None:
        peer = lab.session(lab.guests[0])
        with session(served, 0):
            peer.expect_quiet()

    async with serving(short, Broken("sound", ())) as served:
        cases = [made(lambda lab: intruded(served, lab), 1), made(does_nothing)]
        findings = await in_thread(lambda: run(served, cases))
    assert [result.verdict for result in findings.results] == [Verdict.FAILED, Verdict.NOT_APPLICABLE]
    assert "in use by another program" in findings.results[0].came
    assert findings.results[1].came.startswith("not tried: ")
    assert findings.exit == Exit.FAILED


async def test_a_hub_that_goes_away_ends_the_run(short: Path) -> None:
    async with serving(short, Broken("sound", ())) as served:
        gone = [made(lambda lab: os.unlink(served.socket)), made(lambda lab: lab.open() and None), made(does_nothing)]
        findings = await in_thread(lambda: run(served, gone))
    assert [result.verdict.value for result in findings.results] == ["passed", "failed", "not_applicable"]
    assert "the hub is gone" in findings.results[1].came


async def test_a_case_leaves_nothing_for_the_next_one(short: Path) -> None:
    """A session that is left unread, with more waiting for it than the kernel took, is empty for its successor."""

    def floods(lab: Lab) -> None:
        peer, other = lab.session(lab.guests[0]), lab.session(lab.guests[1])
        for number in range(600):
            peer.send_wake(other.agent, lab.row(number))
        peer.before_pong()

    def sees(lab: Lab) -> None:
        other = lab.session(lab.guests[1])
        other.send_wake(other.agent, lab.row("mine"))
        other.expect_wake(lab.row("mine"))
        other.expect_quiet()

    async with serving(short, Broken("sound", ())) as served:
        findings = await in_thread(lambda: run(served, [made(floods, 2), made(sees, 2)] * 3))
    assert [result.came for result in findings.results] == [""] * 6


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (frame(Kind.HELLO, bytes(32)), "answers"),
        (error(507, "full"), "full"),
        (frame(Kind.PONG), "unexpected"),
        (b"", "closed"),
    ],
)
def test_a_run_begins_with_a_hub_that_answers(short: Path, said: bytes, state: str) -> None:
    path = short / "hub.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(4)
        stop = threading.Event()

        def answer() -> None:
            while not stop.is_set():
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        found = runner.look(path, None, ())
        stop.set()
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
        thread.join()
    assert (found.state, found.hub_id) == (state, "wakehub" if state == "answers" else "")


# --- how it is told -------------------------------------------------------------------------------------------


def result(verdict: Verdict, came: str = "", **options: bool) -> Result:
    return Result(made(does_nothing, 1, **options), verdict, came, 1.23456, judged=True)


def test_a_line_says_mark_name_section_expectation_and_what_came() -> None:
    assert report.line(result(Verdict.PASSED)) == "✓ made-up §1: it to be so"
    assert report.line(result(Verdict.FAILED, "not so")) == "✗ made-up §1: it to be so – came: not so"
    assert report.line(result(Verdict.NOT_APPLICABLE, "no agent", ours=True)) == (
        "– made-up §1 (ours): it to be so – no agent"
    )
    assert list(report.listed([made(does_nothing, 2, shared=True)])) == [
        "made-up §1: it to be so [2 agents under one path]"
    ]


def test_a_report_for_programs_has_its_keys_and_no_others() -> None:
    findings = Findings(Path("/s"), "wakehub", False, 2.0, (result(Verdict.FAILED, "not so"), result(Verdict.PASSED)))
    found = report.to_json(findings)
    assert tuple(found) == report.JSON_KEYS
    assert [tuple(case) for case in found["cases"]] == [report.CASE_KEYS] * 2
    assert (found["passed"], found["failed"], found["not_applicable"]) == (1, 1, 0)
    assert found["cases"][0] == {
        "name": "made-up", "section": "1", "ours": False, "agents": 1, "shared": False, "departs": False,
        "expected": "it to be so", "result": "failed", "judged": True, "came": "not so", "ms": 1.235,
    }  # fmt: skip
    json.dumps(found)
    assert [tuple(case) for case in report.listed_json(CASES)] == [report.LISTED_KEYS] * len(CASES)


def test_the_welcome_is_judged_field_by_field(pair: Pair) -> None:
    peer, hub = pair
    lab = Lab(Path("/nowhere"), (), "t", 1)
    stranger = Guest.stranger("alice", "wakehub")
    peer.claimed = b"alice"
    hub.sendall(frame(Kind.WELCOME, Welcome(1, 0, 0, False, 250, 750).encode()[:-1], to=b"alice"))
    with pytest.raises(Mismatch, match="a welcome that is malformed"):
        lab.await_welcome(peer, stranger)
    hub.sendall(frame(Kind.WELCOME, Welcome(1, 0, 0, False, 250, 750).encode(), to=b"bob"))
    with pytest.raises(Mismatch, match="a welcome, to bob"):
        lab.await_welcome(peer, stranger)
