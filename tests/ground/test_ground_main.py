"""``python -m wakehub`` and the `wakehub` script are the same; both take a tether before anything else."""

import subprocess
import sys

from wakehub import __main__ as entry


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "wakehub", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "wakehub")


def test_the_status_is_passed_on():
    assert (
        subprocess.run([sys.executable, "-m", "wakehub", "nonsense"], capture_output=True, check=False).returncode == 2
    )


def test_an_interrupt_while_the_code_is_loaded_is_quiet(monkeypatch):
    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("wakehub.cli.run", interrupted)
    assert entry.main() == 130


def test_a_tether_is_taken_before_the_command_runs(monkeypatch):
    order = []
    monkeypatch.setenv("WAKEHUB_TETHER", "77")
    monkeypatch.setattr("wakehub.processes.hold_tether", lambda environ: order.append("tether"))
    monkeypatch.setattr("wakehub.cli.run", lambda argv: order.append("run") or 0)
    assert entry.main() == 0
    assert order == ["tether", "run"]
