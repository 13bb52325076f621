"""The command line that is said leads to this program and this instance, whoever types it (receive.md §7)."""

import os
import subprocess

import pytest

from wakehub.invocation import call, program
from wakehub.paths import config_file

OWN = program()


@pytest.fixture
def beside(tmp_path):
    """A directory on PATH in which ``wakehub`` is this program, as an installer links it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "wakehub").symlink_to(OWN[0])
    return str(tmp_path / "bin")


def test_it_is_short_where_that_leads_here_from_anywhere(beside, monkeypatch):
    monkeypatch.delenv("CONFIGURATION_DIRECTORY", raising=False)
    plain = {"PATH": beside}
    assert call(plain) == "wakehub"
    assert call(plain | {"WAKEHUB_HOME": str(config_file({}).parent)}) == "wakehub"


def test_a_program_that_is_not_the_one_on_path_is_written_out(tmp_path):
    other = tmp_path / "wakehub"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    for path in ("/nowhere", f"/nowhere:{tmp_path}"):
        assert call({"PATH": path, "HOME": "/h"}) == " ".join(OWN)
    other.chmod(0o644)  # then it is none
    assert call({"PATH": str(tmp_path), "HOME": "/h"}) == " ".join(OWN)


def test_another_instance_is_named_and_what_chose_it_besides(beside):
    environ = {"PATH": beside, "HOME": "/h", "WAKEHUB_HOME": "/my agents"}
    assert call(environ) == "env 'WAKEHUB_HOME=/my agents' wakehub"
    assert call(environ, ["--state-dir", "/s t"]) == "env 'WAKEHUB_HOME=/my agents' wakehub --state-dir '/s t'"
    assert call({"PATH": beside, "WAKEHUB_HOME": "/x"}).startswith("env WAKEHUB_HOME=/x")


def test_it_stays_on_one_line():
    assert "\n" not in call({"PATH": "", "HOME": "/h", "WAKEHUB_HOME": "/a\nb"})


def test_it_is_what_a_shell_that_knows_of_nothing_can_run(tmp_path):
    line = call({"PATH": "", "HOME": "/h", "WAKEHUB_HOME": str(tmp_path / "home")})
    shell = {"PATH": os.defpath, "HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-c", f"{line} init"], env=shell, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "home" / "config.toml").exists()
