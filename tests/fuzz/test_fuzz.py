"""A few seconds of fuzzing with a fixed seed, and proof that the harness sees what it is there to see.

The long run is by hand: `python tests/fuzz/run.py --seconds 2400 --seed 7`.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run as long_run
from fuzz_hub import Machine, machine
from fuzz_mutator import Mutator
from fuzz_parsers import parsers, run_payload
from fuzz_target import MAX_FINDINGS, Target, fuzz

from wakehub.errors import Violation
from wakehub.hub.hub import Hub
from wakehub.hub.pending import PendingSet
from wakehub.hub.send_queue import SendQueue
from wakehub.hub.session import Session
from wakehub.wire.payloads import Wake

SEED = 1


@pytest.mark.parametrize("target", parsers(), ids=lambda target: target.name)
def test_nothing_but_the_declared_error_leaves_a_parser(target: Target) -> None:
    result = fuzz(target, SEED, 2000)
    assert [str(finding) for finding in result.findings] == []
    assert result.inputs == 2000
    assert len(result.outcomes) > 2, "mutation got nowhere"


def test_the_hub_keeps_its_limits_and_its_promises_whatever_comes() -> None:
    result = fuzz(machine(), SEED, 2000)
    assert [str(finding) for finding in result.findings] == []
    reached = ", ".join(result.outcomes)
    for deep in ("egress", "recipient_bytes", "recipient_frames", "fanout", "wakes_expired+", "pending_evicted+",
                 "sessions_replaced+", "own_queue", "revalidation allowlist_stale", "too_many_topics"):  # fmt: skip
        assert deep in reached, f"no input got as far as {deep!r}"


def test_the_same_seed_makes_the_same_inputs() -> None:
    corpus = [b"AWH1", bytes(range(64))]
    first, again, other = (Mutator(seed, corpus) for seed in ("1", "1", "2"))
    inputs = [first.next_input() for _ in range(500)]
    assert inputs == [again.next_input() for _ in range(500)]
    assert inputs != [other.next_input() for _ in range(500)]


def test_seeds_are_the_same_in_every_process() -> None:
    code = (
        "import hashlib; from fuzz_hub import machine; from fuzz_parsers import parsers\n"
        "print(hashlib.sha256(repr([(t.name, t.seeds) for t in (*parsers(), machine())]).encode()).hexdigest())"
    )
    here = str(Path(__file__).parent)
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": here, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1]


def test_the_long_run_reports_and_says_by_its_status_what_it_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert long_run.main(["--seconds", "0.01", "--seed", "3", "--target", "wake"]) == 0
    assert "wake" in capsys.readouterr().out

    def fail(data: bytes) -> str:
        raise KeyError("a bug")

    monkeypatch.setattr(long_run, "parsers", lambda: (Target("broken", [b"x"], fail),))
    assert long_run.main(["--target", "broken"]) == 1
    assert capsys.readouterr().out.count("broken: KeyError: 'a bug'\n  input ") == MAX_FINDINGS


# --- the harness sees faults ----------------------------------------------------------------------------------


class LenientWake(Wake):
    """Forgets what is behind the watermark."""

    @classmethod
    def decode(cls, payload: bytes) -> Wake:
        try:
            return Wake.decode(payload)
        except Violation:
            return Wake.decode(payload[:-1])


class HastyWake(Wake):
    """Lets an error of Python's out."""

    @classmethod
    def decode(cls, payload: bytes) -> Wake:
        payload[payload[0]]
        return Wake.decode(payload)


@pytest.mark.parametrize("broken", [LenientWake, HastyWake])
def test_a_broken_parser_is_found(broken: type[Wake]) -> None:
    seeds = next(target.seeds for target in parsers() if target.name == "wake")
    assert fuzz(Target("broken", seeds, lambda data: run_payload(broken, data)), SEED, 5000).findings


class LeakyBudget(Hub):
    def finish(self, session: Session, wall_ms: int) -> None:
        self.delivery.egress.used += 1
        super().finish(session, wall_ms)


class KeepsTopics(Hub):
    def _close(self, session: Session, why: str) -> None:
        topics, session.topics = session.topics, {}
        super()._close(session, why)
        session.topics = topics


class ForgetsToHeal(Hub):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.delivery._owe = lambda recipient: None


class NeverEvicts(Hub):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.delivery.evict = lambda: None


class EndlessTopics(Hub):
    def _subscribe(self, session: Session, frame: Any, *rest: Any) -> None:
        session.topics.update((b"#%d" % number, None) for number in range(40))
        super()._subscribe(session, frame, *rest)


class OldRouteGoesLast(Hub):
    def _close(self, session: Session, why: str) -> None:
        super()._close(session, why)
        self.delivery.router._shard(session.agent).routes.pop(session.agent, None)


class GoesOnBehindAnError(Hub):
    def _close(self, session: Session, why: str) -> None:
        session.queue.push(self.delivery._made_wake(session.agent, b"one more"))
        super()._close(session, why)


class BelievesFrom(Hub):
    def receive(self, session: Session, raw: bytes, now_us: int, wall_ms: int) -> Any:
        agent, session.agent = session.agent, raw[28 : 28 + raw[11]] if session.agent else session.agent
        try:
            return super().receive(session, raw, now_us, wall_ms)
        finally:
            session.agent = agent


def unbounded_ids(self: PendingSet, row_id: bytes) -> None:
    self.count += 1
    self.ids[row_id] = None


def unbounded_push(self: SendQueue, raw: bytes, deadline_ms: int = 0, spare: int = 0) -> None:
    self._egress.charge(len(raw) - 4)
    self.size += len(raw) - 4
    self._entries.append((raw, deadline_ms))


@pytest.mark.parametrize(
    "broken",
    [
        LeakyBudget, KeepsTopics, ForgetsToHeal, NeverEvicts, EndlessTopics, OldRouteGoesLast, GoesOnBehindAnError,
        BelievesFrom,
    ],
)  # fmt: skip
def test_a_broken_hub_is_found(broken: type[Hub]) -> None:
    assert _is_found(lambda *args: broken(*args))


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [(PendingSet, "record", unbounded_ids), (SendQueue, "push", unbounded_push)],
)
def test_a_hub_without_bounds_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Callable[..., None]
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert _is_found(Hub)


def _is_found(make_hub: Callable[..., Hub]) -> bool:
    target = Target("broken hub", machine().seeds, lambda data: Machine(make_hub).run(data))
    return bool(fuzz(target, SEED, 1500).findings)
