"""Nothing is left behind when the benchmark itself is killed with SIGKILL."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 60

STAGE = """
import sys, time
from wakehub.bench.stage import Stage
with Stage() as stage:
    made = [stage.start([sys.executable, "-c", "import time; time.sleep(600)"], log=stage.path / "log") for _ in (1, 2)]
    made[1].send_signal(19)
    print(stage.path, *(process.pid for process in made), flush=True)
    time.sleep(600)
"""


def until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid):
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_killed_benchmark_leaves_neither_process_nor_directory():
    """Not even one that was stopped at that moment."""
    with subprocess.Popen([sys.executable, "-c", STAGE], stdout=subprocess.PIPE, text=True) as bench:
        path, *pids = bench.stdout.readline().split()
        assert Path(path).is_dir()
        assert all(is_alive(int(pid)) for pid in pids)
        bench.send_signal(signal.SIGKILL)
        bench.wait(PATIENCE_S)
    until(lambda: not any(is_alive(int(pid)) for pid in pids))
    until(lambda: not Path(path).exists())
