"""The own name (fault F35)."""

from pathlib import Path

import pytest

from wakehub.client.names import OwnName, choose
from wakehub.errors import BadData, Exit, WakehubError


def test_what_is_given_comes_before_the_variable_and_that_before_the_directory() -> None:
    environ = {"WAKEHUB_AGENT": "bob"}
    there = Path("/home/u/alice project")
    assert choose("carl", environ, there) == OwnName("carl", "--as")
    assert choose(None, environ, there) == OwnName("bob", "$WAKEHUB_AGENT")
    assert choose(None, {}, there) == OwnName("alice-project", "this directory")
    assert choose(None, {"WAKEHUB_AGENT": ""}, there).name == "alice-project"


@pytest.mark.parametrize("bad", ["../x", "a b", "é", "a/", "a" * 129, "x\x1b"])
def test_a_name_that_was_given_is_never_mended(bad: str) -> None:
    with pytest.raises(BadData):
        choose(bad, {})
    with pytest.raises(BadData):
        choose(None, {"WAKEHUB_AGENT": bad})


@pytest.mark.parametrize("there", ["/", "/home/ü", "/x/---", "/x/owner", "/x/wakehub-publisher", "/x/" + "é" * 100])
def test_a_directory_that_gives_no_name_asks_for_one(there: str) -> None:
    with pytest.raises(WakehubError) as caught:
        choose(None, {}, Path(there))
    assert caught.value.exit == Exit.USAGE
    assert "--as" in caught.value.remedy


def test_a_directory_that_is_gone_asks_for_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(WakehubError) as caught:
        choose(None, {})
    assert caught.value.exit == Exit.USAGE
