"""Whether something is ours alone, and that no command is advised for what is not (F53, F54)."""

import os
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wakehub import files, ownership
from wakehub.errors import Unsafe


def telling(look: Callable[..., os.stat_result], directory: Path, uid: int) -> Callable[..., os.stat_result]:
    def told(path: Any, **options: Any) -> os.stat_result:
        found = look(path, **options)
        return os.stat_result((*found[:4], uid, *found[5:])) if path == directory else found

    return told


def owned_by(monkeypatch: pytest.MonkeyPatch, directory: Path, uid: int) -> None:
    """Let `directory` belong to `uid`, which takes root in earnest."""
    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, telling(getattr(os, name), directory, uid))


def test_outside_a_user_namespace_nobody_is_somebody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned_by(monkeypatch, tmp_path, 65534)
    monkeypatch.setattr(ownership, "_in_user_namespace", lambda: False)
    assert ownership.risk_above(tmp_path).startswith("belongs to uid 65534 and has mode 0700")


def test_inside_a_user_namespace_an_unknown_owner_is_no_risk_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned_by(monkeypatch, tmp_path, 65534)
    monkeypatch.setattr(ownership, "_in_user_namespace", lambda: True)
    assert ownership.risk_above(tmp_path) == ""
    with pytest.raises(Unsafe, match=r"65534 \(anybody outside this user namespace\) and has mode 0700") as refusal:
        files.check_directory(tmp_path)
    assert "WAKEHUB_HOME=" in refusal.value.remedy
    tmp_path.chmod(0o777)
    assert "mode 0777: others can move away" in ownership.risk_above(tmp_path)


def test_a_link_is_judged_by_what_it_leads_to(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(real)
    assert ownership.risk_above(tmp_path / "link") == ""
    real.chmod(0o777)
    assert "mode 0777" in ownership.risk_above(tmp_path / "link")


def test_a_runtime_directory_for_all_is_a_risk_unless_sticky(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "mode 0777" in ownership.risk_above(tmp_path)
    tmp_path.chmod(0o1777)
    assert ownership.risk_above(tmp_path) == ""
    assert ownership.risk_above(tmp_path / "absent") == ""


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_what_is_proposed_instead_passes_the_checks_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """The home directory if its place is safe, else a private one in /tmp; never one that would be refused as well."""
    with tempfile.TemporaryDirectory(prefix="wh", dir="/tmp") as name:
        home = Path(name)
        monkeypatch.setenv("HOME", name)
        assert ownership.elsewhere() == f"set WAKEHUB_HOME={home}/.wakehub"
        (home / ".wakehub").mkdir()
        (home / ".wakehub").chmod(mode)
        proposed = ownership.elsewhere().partition("WAKEHUB_HOME=")[2]
        assert (proposed == f"{home}/.wakehub") == (mode == 0o700)
        home.chmod(0o777)
        assert str(home) not in ownership.elsewhere()


# --- what is advised for a file ---


def refused(path: Path) -> Unsafe:
    with pytest.raises(Unsafe) as refusal, files.opened(path):
        pass
    return refusal.value


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state directory of an instance."""
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    for name in ("hub.lock", "audit.jsonl"):
        (directory / name).touch(0o600)
    return directory


def test_the_mode_of_a_file_of_an_instance_is_mended(state: Path) -> None:
    path = state / "it's ours"
    path.touch()
    path.chmod(0o644)
    remedy = refused(path).remedy
    assert shlex.split(remedy) == ["chmod", "600", str(path)]
    subprocess.run(shlex.split(remedy), check=True)
    with files.opened(path):
        pass


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_the_mode_of_anything_else_is_left_alone(tmp_path: Path, mode: int) -> None:
    """As of /etc/passwd, or of a file beside a person's own secrets."""
    tmp_path.chmod(mode)
    path = tmp_path / "id.pub"
    path.touch()
    path.chmod(0o644)
    assert "chmod" not in refused(path).remedy
    bundle = tmp_path / "alice.a2a-hub.json"
    path.rename(bundle)
    assert ("chmod 600" in refused(bundle).remedy) == (mode == 0o700)


def test_a_link_is_replaced_by_the_file_that_it_names(state: Path) -> None:
    path = state / "audit.jsonl"
    real = state / "real.jsonl"
    path.rename(real)
    path.symlink_to(real)
    for remedy in (refused(path).remedy, refused_for_appending(path).remedy):
        assert remedy == f"mv {real} {path}", "every command says the same"
    subprocess.run(shlex.split(refused(path).remedy), check=True)
    with files.opened(path):
        pass


def refused_for_appending(path: Path) -> Unsafe:
    with pytest.raises(Unsafe) as refusal, files.appendable(path):
        pass
    return refusal.value


@pytest.mark.parametrize("target", ["/etc/passwd", "nowhere"])
def test_what_a_link_to_elsewhere_names_is_not_moved(state: Path, target: str) -> None:
    path = state / "link"
    path.symlink_to(target)
    remedy = refused(path).remedy
    assert target not in remedy
    assert remedy.endswith(f"mv {path} {path}.away")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_in_the_way_is_moved(state: Path, make: Callable[[Path], object]) -> None:
    path = state / "thing"
    make(path)
    subprocess.run(shlex.split(refused(path).remedy), check=True)
    assert not path.exists()


def test_a_socket_is_judged_as_one(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="wh", dir="/tmp") as name, socket.socket(socket.AF_UNIX) as sock:
        path = Path(name) / "s"
        sock.bind(str(path))
        path.chmod(0o600)
        assert ownership.fault(os.lstat(path), path, 0o140000) is None
        assert ownership.fault(os.lstat(path), path) is not None
    plain = tmp_path / "s"
    plain.touch()
    found = ownership.fault(os.lstat(plain), plain, 0o140000)
    assert found is not None
    assert "is not a socket" in found.what


# --- and for a directory ---


@pytest.mark.parametrize(
    ("names", "is_ours"),
    [
        ([], True),
        (["owner.pub"], True),
        (["run", "state", "keys"], True),
        (["passwd", "hosts"], False),
        (["keys"], False),
    ],
)
def test_only_a_directory_of_an_instance_is_closed(tmp_path: Path, names: list[str], is_ours: bool) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    for name in names:
        (directory / name).touch()
    directory.chmod(0o777)
    with pytest.raises(Unsafe) as refusal:
        files.check_directory(directory)
    assert (f"chmod 700 {directory}" in refusal.value.remedy) == is_ours
    assert (ownership.to_guard(directory) == f"chmod 700 {directory}") == is_ours
