"""`wakehub.send` and `wakehub.inbox`, and that importing the package costs nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

import wakehub
from wakehub.errors import BadData, Exit, NoRecipient


def test_what_is_sent_is_in_the_inbox_and_stays_there(instance):
    sent = wakehub.send("alice", "hello", sender="bob")
    assert (sent.exit, sent.sender, sent.size, len(sent.row_ids)) == (Exit.DONE, "bob", 5, 1)
    for _ in range(2):
        (found,) = wakehub.inbox("alice")
        assert (found.id, found.text, found.verified, found.redelivery) == (sent.row_ids[0], "hello", "yes", 0)


def test_bytes_are_bytes(instance):
    wakehub.send("alice", b"\xff\x00", sender="bob")
    (found,) = wakehub.inbox("alice")
    assert (found.body, found.text) == (b"\xff\x00", None)


def test_everything_that_send_can_do(instance, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    first = wakehub.send("alice", "hello", sender="bob").row_ids[0]
    wakehub.send("alice", "again", sender="bob", re=first, ttl=60, row_class="fyi", attach=[str(tmp_path / "a.txt")])
    wakehub.send("alise", "a name like another", sender="bob", create=True)
    _, found = wakehub.inbox("alice", sender="bob", limit=2)
    assert (found.re, found.row_class, found.files) == (first, "fyi", ())
    sent = wakehub.send("alice", "hello", sender="bob", wait="answered", timeout=0.1)
    assert sent.exit == Exit.NOT_REACHED


def test_refusals_are_errors_and_store_nothing(instance):
    wakehub.send("alice", "hello", sender="bob")
    with pytest.raises(NoRecipient, match="did you mean alice"):
        wakehub.send("alicee", "hello", sender="bob")
    with pytest.raises(BadData):
        wakehub.send("alice", "hello", sender="bob", ttl=0)
    with pytest.raises(BadData, match="is no state to wait for"):
        wakehub.send("alice", "hello", sender="bob", wait="delivered")
    with pytest.raises(BadData, match="is no text"):
        wakehub.send("alice", "cut \ud83d", sender="bob")
    assert len(wakehub.inbox("alice")) == 1


def test_the_own_name_is_chosen_as_everywhere(instance, monkeypatch):
    monkeypatch.setenv("WAKEHUB_AGENT", "carol")
    wakehub.send("carol", "to myself")
    assert [message.sender for message in wakehub.inbox()] == ["carol"]


def test_before_anything_was_sent(instance):
    assert wakehub.inbox("alice") == []


def loaded(script: str) -> str:
    """What `script` prints, and behind it the modules that it loaded."""
    words = [sys.executable, "-P", "-c", f"{script}\nimport sys\nprint(*sorted(sys.modules))"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_importing_the_package_is_cheap():
    found = set(loaded("import wakehub; wakehub.__version__").split())
    assert {name for name in found if name.startswith("wakehub")} == {"wakehub"}
    assert not found & {"trio", "sqlite3", "nacl", "structlog"}


def test_looking_at_its_names_loads_nothing_and_every_one_of_them_is_there():
    assert "wakehub.api" not in loaded("import wakehub; dir(wakehub)").split()
    assert "send" in dir(wakehub)
    for name in wakehub.__all__:
        assert callable(getattr(wakehub, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        wakehub.nothing  # noqa: B018


def test_the_inbox_is_function_and_package_in_any_order():
    for first in ("wakehub.inbox", "import wakehub.inbox.store", "wakehub.send", "from wakehub.inbox import sqlite"):
        script = f"import wakehub\n{first}\nprint(callable(wakehub.inbox))\nfrom wakehub.inbox.rows import TEXT"
        assert loaded(script).startswith("True\n"), first


def test_types_come_with_the_package():
    assert (Path(wakehub.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("body", [5, None, ["x"]])
def test_a_body_that_is_neither_text_nor_bytes_is_refused_by_its_type(instance, body):
    with pytest.raises(TypeError, match=f"str or bytes, not {type(body).__name__}"):
        wakehub.send("alice", body, sender="bob")


@pytest.mark.parametrize("as_path", [str, Path])
def test_a_single_file_needs_no_list(instance, tmp_path, as_path):
    (tmp_path / "trace.log").write_bytes(b"trace\n")
    wakehub.send("alice", "look", sender="bob", attach=as_path(tmp_path / "trace.log"))
    assert next(wakehub.listen("alice")).files[0].read_bytes() == b"trace\n"


def test_a_single_namespace_needs_no_list(instance):
    wakehub.send("acme/x", "look", sender="bob")
    assert next(wakehub.listen("alice", namespaces="acme/")).to == "acme/x"


def test_a_remedy_names_what_a_program_can_give(instance):
    with pytest.raises(wakehub.WakehubError) as refused:
        wakehub.send("alice", "x", sender="bob", ttl=0)
    assert refused.value.remedy == "choose another ttl"
    with pytest.raises(wakehub.WakehubError) as refused:
        next(wakehub.listen("alice", namespaces=["acme"]))
    assert refused.value.remedy == "write acme/"
    wakehub.send("alice", "x", sender="bob")
    first = wakehub.listen("alice")
    next(first)
    with pytest.raises(wakehub.WakehubError) as refused:
        next(wakehub.listen("alice"))
    assert refused.value.remedy == "listen as alice-2, or take the name over: --take-over, in Python take_over=True"
    first.close()
