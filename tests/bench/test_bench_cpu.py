"""What a process costs, seen on this very process and on texts of known content."""

import os
import sys
import threading

import pytest

from wakehub.bench import cpu

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pinning and smaps_rollup are Linux's")

SMAPS = """55d0c0a00000-7ffd1b5ff000 ---p 00000000 00:00 0                          [rollup]
Rss:               31112 kB
Pss:               20000 kB
Shared_Clean:       8000 kB
Private_Clean:      1200 kB
Private_Dirty:     18300 kB
"""


def test_cpu_time_grows_with_work_in_any_thread():
    before = cpu.cpu_ns(os.getpid())

    def work():
        sum(number * number for number in range(300_000))

    thread = threading.Thread(target=work)
    thread.start()
    work()
    thread.join()
    assert cpu.cpu_ns(os.getpid()) > before


def test_a_process_that_is_gone_used_nothing():
    assert cpu.cpu_ns(2**22 + 1) == 0
    with pytest.raises(ProcessLookupError):
        cpu.memory(2**22 + 1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:01.25", 1.25), ("12:34.50", 754.5), ("1:02:03", 3723), ("2-00:00:01", 172_801), ("", 0), ("?", 0)],
)
def test_the_time_of_ps_is_understood(text, seconds):
    assert cpu.parse_ps_time(text) == seconds * 1_000_000_000


def test_smaps_are_understood():
    assert cpu.parse_smaps(SMAPS) == cpu.Memory(31_112, 19_500)


def test_memory_of_this_process_is_plausible():
    found = cpu.memory(os.getpid())
    assert found.rss_kib > 1_000
    if found.private_kib is not None:
        assert 0 < found.private_kib <= found.rss_kib


@LINUX
def test_threads_are_bound_and_children_begin_where_they_are_told():
    before = os.sched_getaffinity(0)
    first = cpu.usable()[:1]
    with cpu.begun_on(first):
        assert os.sched_getaffinity(0) == set(first)
    assert os.sched_getaffinity(0) == before
    with cpu.begun_on(()):
        assert os.sched_getaffinity(0) == before
    try:
        cpu.confine(os.getpid(), first)
        assert os.sched_getaffinity(0) == set(first)
    finally:
        cpu.confine(os.getpid(), before)
