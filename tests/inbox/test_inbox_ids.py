"""Ids: form, order, and that no two processes make the same one."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakehub.inbox import ids
from wakehub.inbox.ids import is_row_id, made_ms, new_group, new_id

_FORK = """
import os
from wakehub.inbox.ids import is_row_id, made_ms, new_group, new_id
new_id(1 << 47)  # so far ahead that every further id is the last one and one more
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, " ".join(new_id(1) for _ in range(100)).encode())
    os._exit(0)
os.wait()
theirs = os.read(reader, 1 << 16).decode().split()
ours = [new_id(1) for _ in range(100)]
assert len(theirs) == 100 and len({*ours, *theirs}) == 200
"""


def test_an_id_is_m_and_26_digits() -> None:
    id = new_id(1_800_000_000_000)
    assert len(id) == 28
    assert id.startswith("m_")
    assert is_row_id(id)
    assert new_group(1_800_000_000_000).startswith("g_")


@given(st.integers(0, (1 << 48) - 1), st.integers(1, 1 << 40))
def test_ids_of_different_processes_sort_by_time(now_ms: int, later_ms: int) -> None:
    assert ids._Series().next(now_ms) < ids._Series().next(now_ms + later_ms)


@given(st.integers(0, (1 << 48) - 1))
def test_an_id_tells_when_it_was_made(now_ms: int) -> None:
    assert made_ms("m_" + ids._text(ids._Series().next(now_ms))) == now_ms


def test_ids_of_one_process_grow_within_a_millisecond_and_when_the_clock_goes_back() -> None:
    made = [new_id(now_ms) for now_ms in [2_000_000_000_000] * 500 + [1_000_000_000_000] * 500]
    assert made == sorted(set(made))


def test_threads_never_share_an_id() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_id(5), range(2000)))
    assert len(set(made)) == 2000


def test_a_forked_child_makes_its_own_ids() -> None:
    assert subprocess.run([sys.executable, "-c", _FORK], check=False).returncode == 0


_ZEROS = "0" * 26


@pytest.mark.parametrize(
    "text",
    [
        *("", "m_", "m_" + _ZEROS[1:], "m_0" + _ZEROS, "g_" + _ZEROS, "m_8" + _ZEROS[1:], "m_" + "i" * 26),
        *("M_" + _ZEROS, "m_" + _ZEROS + "\n", "m_" + "٠" * 26, "../../etc"),
    ],
)
def test_what_is_no_row_id(text: str) -> None:
    assert not is_row_id(text)
