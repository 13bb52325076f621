"""`send` and `listen` as commands: what they take, print and exit with. Their inside is tested where it lives."""

import base64
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from daemon_process import started, until

from wakehub.cli import messages
from wakehub.cli.output import OutputGone
from wakehub.client.receipts import Receipt, State
from wakehub.errors import BadData, Exit
from wakehub.limits import MAX_BODY_BYTES

ID = r"m_[0-9a-z]{26}"


def body(**given: object) -> bytes:
    return messages.body_of(SimpleNamespace(**({"text": None, "stdin": False, "file": None} | given)))


# --- what is sent ---


@pytest.fixture
def stdin(monkeypatch):
    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    return give


@pytest.mark.parametrize("data", [b"", b"text\n", b"\x00\xff\xfe", b"x" * MAX_BODY_BYTES])
def test_standard_input_and_files_are_taken_byte_for_byte(stdin, tmp_path, data):
    stdin(data)
    assert body(stdin=True) == data
    (tmp_path / "file").write_bytes(data)
    assert body(file=tmp_path / "file") == data


def test_nothing_is_cut(stdin, tmp_path):
    data = b"x" * (MAX_BODY_BYTES + 1)
    stdin(data)
    (tmp_path / "file").write_bytes(data)
    for given in ({"stdin": True}, {"file": tmp_path / "file"}, {"text": "x" * (MAX_BODY_BYTES + 1)}):
        with pytest.raises(BadData, match=str(MAX_BODY_BYTES)):
            body(**given)


def test_a_file_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(BadData, match="cannot read"):
            body(file=path)


def test_an_endless_input_is_not_read_to_its_end(process):
    with open("/dev/zero", "rb") as zero:
        assert process("send", "--to", "alice", "--stdin", stdin=zero).status == Exit.DATA


def test_a_standard_input_that_cannot_be_read(shell):
    found = shell("wakehub send --as bob --to alice --stdin 0> /dev/null")
    assert found.status == Exit.DATA
    assert "Traceback" not in found.err


def test_a_closed_standard_input(shell):
    found = shell("wakehub send --as bob --to alice --stdin <&-")
    assert found.status == Exit.USAGE
    assert "standard input is closed" in found.err


def test_sending_loads_no_loop(home):
    """Trio would be half of what it takes to start; only a program that listens holds a session to wake over."""
    script = (
        "import sys; from wakehub.cli import run; status = run(sys.argv[1:]);"
        "print(status, [name for name in ('trio', 'structlog') if name in sys.modules])"
    )
    words = [sys.executable, "-P", "-c", script, "send", "--as", "bob", "--to", "alice", "hello"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert "not hinted" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 []"


# --- what is said ---


def told(capsys, *receipts: Receipt, one_row: bool = True) -> tuple[str, str]:
    telling = messages._Telling(b"hello", one_row=one_row)
    for receipt in receipts:
        telling.tell(receipt)
    telling.end()
    captured = capsys.readouterr()
    return captured.out, captured.err


STORED = Receipt(State.STORED, "m_1", 2.04)
HELLO = "5 B · sha256 2cf24dba5fb0"


def test_the_receipts_of_one_message_are_one_line(capsys):
    out, err = told(capsys, STORED, Receipt(State.HINTED, "m_1", 5), Receipt(State.HANDED_OFF, "m_1", 9.96, "pipe"))
    assert out == f"stored m_1 · {HELLO} · 2.0 ms · hinted in 5.0 ms · handed off in 10.0 ms\n"
    assert err == ""


def test_a_spooled_message_is_said_with_its_id_and_where_it_lies(capsys):
    spooled = Receipt(State.SPOOLED, "m_1", 2, "/spool; the publisher takes it in from there")
    where = "in /spool; the publisher takes it in from there"
    assert told(capsys, spooled)[0] == f"spooled m_1 · {HELLO} · 2.0 ms · {where}\n"
    assert told(capsys, spooled, one_row=False)[0].startswith(f"spooled m_1 · {HELLO} · 2.0 ms · {where}")


def test_each_receipt_is_out_before_the_next_is_known(capsys):
    telling = messages._Telling(b"hello", one_row=True)
    telling.tell(STORED)
    assert capsys.readouterr().out == f"stored m_1 · {HELLO} · 2.0 ms"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (State.NOT_HINTED, "not hinted: publisher not running"),
        (State.HINT_REFUSED, "hint refused: publisher not running"),
        (State.EXPIRED, "expired: publisher not running"),
        (State.FAILED, "failed: publisher not running"),
    ],
)
def test_what_did_not_happen_is_said_with_its_reason_and_without_a_time(capsys, state, said):
    out, _ = told(capsys, STORED, Receipt(state, "m_1", 3, "publisher not running"))
    assert out.endswith(f" · {said}\n")


def test_the_word_delivered_is_never_used(capsys):
    for state in State:
        out, err = told(capsys, Receipt(state, "m_1", 1, "detail"))
        assert "deliver" not in out + err


def test_notes_go_to_standard_error_and_break_no_line(capsys):
    out, err = told(capsys, STORED, Receipt(State.NOTE, "", 3, "nobody listens"), Receipt(State.HINTED, "m_1", 5))
    assert out == f"stored m_1 · {HELLO} · 2.0 ms\nhinted in 5.0 ms\n"
    assert err == "wakehub: nobody listens\n"


def test_a_broadcast_has_a_line_for_each_receipt(capsys):
    out, _ = told(
        capsys,
        Receipt(State.STORED, "m_1", 2, "for acme/a"),
        Receipt(State.STORED, "m_2", 2, "for acme/b"),
        Receipt(State.HINTED, "m_2", 3),
        one_row=False,
    )
    assert [line.split(" · ")[-1] for line in out.splitlines()] == ["for acme/a", "for acme/b", "m_2"]


def test_what_others_wrote_is_made_visible(capsys):
    out, err = told(capsys, Receipt(State.NOTE, "", 1, "a\x1b[2K"), Receipt(State.HINT_REFUSED, "m_1", 1, "b\u202e"))
    assert "\x1b" not in err
    assert "\u202e" not in out


# --- as commands ---


def test_send_without_a_publisher_is_stored_and_says_so(wakehub, home):
    found = wakehub("send", "--as", "bob", "--to", "alice", "hello")
    assert found.status == 0
    assert re.fullmatch(
        rf"stored {ID} · {HELLO} · [\d.]+ ms\nnot hinted: publisher not running; read when alice listens\n",
        found.out,
    )
    assert "next: wakehub publish\n" in found.err, "a unit is installed for the hub of this home"


def test_send_and_listen_with_everything_running(process, up):
    sent = process("send", "--as", "bob", "--to", "alice", "--json", "--stdin", stdin=None, input=b"hello")
    assert sent.status == 0
    report = json.loads(sent.out)
    assert list(report) == ["from", "ids", "bytes", "digest", "receipts", "exit"]
    assert (report["from"], report["bytes"], report["exit"]) == ("bob", 5, 0)
    assert all(list(receipt) == ["state", "id", "ms", "detail"] for receipt in report["receipts"])
    heard = process("listen", "--as", "alice", "--once", "--format", "json")
    assert heard.status == 0
    message = json.loads(heard.out)
    assert (message["id"], message["text"], message["verified"]) == (report["ids"][0], "hello", "yes")
    empty = process("listen", "--as", "alice", "--once", "--format", "json")
    assert (empty.status, empty.out) == (Exit.NOTHING, "")


def test_a_text_that_begins_with_a_dash(wakehub, home):
    assert wakehub("send", "--as", "bob", "--to", "alice", "--", "-x --to carol").status == 0
    assert "-x --to carol" in wakehub("inbox", "--as", "alice").out


def test_an_answer_and_what_it_answers(wakehub, home):
    first = re.search(ID, wakehub("send", "--as", "bob", "--to", "alice", "one").out)
    assert first
    wakehub("send", "--as", "alice", "--to", "bob", "--re", first[0], "two")
    assert f"re {first[0]}" in wakehub("inbox", "--as", "bob").out


def test_an_awaited_state_that_is_not_reached(wakehub, home):
    found = wakehub("send", "--as", "bob", "--to", "alice", "--wait", "handed-off", "--timeout", "1", "x")
    assert found.status == Exit.NOT_REACHED
    assert "handed-off was not reached" in found.err
    assert f"next: wakehub why {re.search(ID, found.out)[0]}\n" in found.err


def test_a_hint_for_a_listener_that_was_killed(process, up):
    """F2, F28: the hub takes a wake for an agent that it knows, alive or not; `send` says both."""
    words = [sys.executable, "-P", "-m", "wakehub", "listen", "--as", "alice"]
    with started(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as heard:
        until(lambda: "wakehub_recipients 2\n" in process("metrics").out, "publisher and listener are admitted")
        heard.kill()
        heard.wait()
    found = process("send", "--as", "bob", "--to", "alice", "and now?")
    assert re.search(r" ms\nhinted in [\d.]+ ms: only the hub took it; read when alice listens\n", found.out)
    assert f"its listener, pid {heard.pid}, died\n" in found.err


def test_a_recipient_that_is_none_is_named_as_it_was_typed(wakehub, home):
    found = wakehub("send", "--as", "bob", "--to", "/", "x")
    assert found.status == Exit.DATA
    assert found.err.startswith("wakehub: '/' is not a namespace: before its last /, at most 128 bytes")


def test_files_are_sent_and_handed_over(wakehub, process, home, tmp_path):
    (tmp_path / "trace.log").write_bytes(b"trace\n")
    (tmp_path / "empty").write_bytes(b"")
    files = ["--attach", str(tmp_path / "trace.log"), "--attach", str(tmp_path / "empty")]
    sent = wakehub("send", "--as", "bob", "--to", "alice", "see the trace", *files)
    assert sent.status == 0
    assert " · 2 files · " in sent.out
    got = process("listen", "--as", "alice", "--once", "--format", "json")
    attachments = json.loads(got.out)["attachments"]
    assert [(each["name"], each["size"]) for each in attachments] == [("trace.log", 6), ("empty", 0)]
    assert Path(attachments[0]["path"]).read_bytes() == b"trace\n"


def test_a_text_too_long_is_refused_with_what_to_do_and_so_is_a_file(wakehub, home, tmp_path):
    (tmp_path / "long").write_bytes(b"x" * (MAX_BODY_BYTES + 1))
    (tmp_path / "link").symlink_to("long")
    refused = wakehub("send", "--as", "bob", "--to", "alice", "--file", str(tmp_path / "long"))
    assert refused.status == 65
    assert "--attach" in refused.err
    refused = wakehub("send", "--as", "bob", "--to", "alice", "x", "--attach", str(tmp_path / "link"))
    assert refused.status == 65
    assert "links are not followed" in refused.err
    assert f"next: name its target: {(tmp_path / 'long').resolve()}" in refused.err
    assert "nothing unread" in wakehub("inbox", "--as", "alice").out


def test_a_mistyped_recipient(wakehub, home):
    wakehub("send", "--as", "bob", "--to", "alice", "x")
    found = wakehub("send", "--as", "bob", "--to", "alcie", "x")
    assert (found.status, found.out) == (Exit.NO_RECIPIENT, "")
    assert "alice" in found.err
    assert wakehub("send", "--as", "bob", "--to", "alcie", "--create", "x").status == 0


@pytest.mark.parametrize(
    "argv", [["--to", "a]b", "x"], ["--to", "alice", "--re", "../../x", "x"], ["--as", "a b", "--to", "c", "x"]]
)
def test_hostile_words_are_refused_before_anything_is_stored(wakehub, home, argv):
    found = wakehub("send", *argv)
    assert found.status == Exit.DATA
    assert wakehub("inbox", "--as", "alice").status == Exit.NOTHING


def test_a_sender_whose_reader_left_has_stored_the_message(process, home, wakehub):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        found = process("send", "--as", "bob", "--to", "alice", "x", stdout=gone)
    assert (found.status, found.err.count("Traceback")) == (Exit.OUTPUT_GONE, 0)
    assert wakehub("inbox", "--as", "alice").status == 0


@pytest.mark.parametrize("one_row", [True, False])
@pytest.mark.parametrize("lasts", [0, 1, 2])
def test_what_is_told_behind_a_reader_that_left_goes_to_standard_error(monkeypatch, capsys, one_row, lasts):
    said: list[str] = []

    def gone(text: str, end: str = "\n") -> None:
        said.append(text)
        if len(said) > lasts:
            raise OutputGone("its reader is gone", quiet=True)

    monkeypatch.setattr(messages.output, "say", gone)
    telling = messages._Telling(b"", one_row=one_row)
    for receipt in (STORED, Receipt(State.HINTED, "m_1", 5), Receipt(State.HANDED_OFF, "m_1", 6, "pipe")):
        telling.tell(receipt)
    telling.end()
    assert isinstance(telling.gone, OutputGone)
    assert capsys.readouterr().err.splitlines() == [
        f"wakehub: {what}; standard output is gone" for what in ("stored m_1", "hinted m_1", "handed off m_1: pipe")
    ]


@pytest.mark.parametrize("flags", ["", "--json"])
@pytest.mark.parametrize("to", [">&-", "| true", *(["> /dev/full"] if sys.platform == "linux" else [])])
def test_a_send_that_cannot_be_told_is_stored_hinted_and_says_its_id(shell, wakehub, up, flags, to):
    """Else whoever sees 74 sends it again."""
    wakehub("enroll", "alice")
    told = shell(f"{{ wakehub send --as bob --to alice hello {flags}; echo status $? >&2; }} {to}").err
    assert "status 74" in told
    (row,) = json.loads(wakehub("inbox", "--as", "alice", "--json").out)["messages"]
    assert f"wakehub: stored {row['id']}; standard output is gone" in told
    life = json.loads(wakehub("why", row["id"], "--json").out)
    assert {"hinted", "hint_refused"} & {event["event"] for event in life["events"]}


@pytest.mark.parametrize(
    "line",
    [
        ["send", "--as", "", "--to", "alice", "x"],
        ["listen", "--as", "", "--once"],
        ["listen", "--as", "alice", "--as", "", "--once"],
        ["listen", "--as", "", "--once", "--no-ack"],
        ["inbox", "--as", ""],
        ["ack", "--as", "", "m_00000000000000000000000000"],
        ["inbox", "--as", "alice", "--from", ""],
        ["send", "--as", "bob", "--to", "", "x"],
        ["claim", "--namespace", ""],
    ],
)
def test_an_empty_name_is_no_name(wakehub, home, line):
    """Of a variable that is not set; it must not become this directory's name, or anybody's."""
    wakehub("init")
    found = wakehub(*line)
    assert found.status == Exit.DATA
    assert "empty" in found.err or "is not a" in found.err
    assert json.loads(wakehub("agents", "--json").out)["agents"] == []


def test_an_empty_variable_is_none(wakehub, home, monkeypatch):
    monkeypatch.setenv("WAKEHUB_AGENT", "")
    assert wakehub("send", "--to", "alice", "x").status == 0


def test_an_answer_to_what_is_not_here_is_stored_and_remarked_on(wakehub, home):
    found = wakehub("send", "--as", "bob", "--to", "alice", "--re", "m_01m8q1zc8wvypmvg1nte9sma0h", "x")
    assert found.status == 0
    assert "--re m_01m8q1zc8wvypmvg1nte9sma0h: no such message here" in found.err
    assert "re m_01m8q1zc8wvypmvg1nte9sma0h" in wakehub("inbox", "--as", "alice").out


def test_the_newline_that_a_shell_puts_behind_a_text_is_stored_but_not_shown(process, wakehub, home):
    sent = process("send", "--as", "bob", "--to", "alice", "--stdin", stdin=None, input=b"hello\n")
    assert " · 6 B · " in sent.out
    assert wakehub("inbox", "--as", "alice").out.endswith(": hello\n")
    assert json.loads(wakehub("inbox", "--as", "alice", "--json").out)["messages"][0]["text"] == "hello\n"


def test_a_listener_is_given_what_its_flags_say(wakehub, monkeypatch):
    given = []
    monkeypatch.setattr("wakehub.relay.loop.run", lambda config, options: given.append(options) or Exit.NOTHING)
    line = (
        "listen --as a --as b --namespace acme/ --format agent --once --wait 1m --from bob --take-over --poll 5 "
        "--status --state-dir /x --hub-id other"
    )
    assert wakehub(*line.split()).status == Exit.NOTHING
    (options,) = given
    assert (options.names, options.namespaces, options.format) == (("a", "b"), ("acme/",), "agent")
    assert (options.once, options.wait_s, options.sender, options.take_over) == (True, 60, "bob", True)
    assert (options.acknowledge, options.poll_s, options.status) == (True, 5, True)


def test_a_prepared_send_waits_for_its_text_with_all_its_code_in_memory(home):
    """The demo, and whoever must be quick later, starts it ahead."""
    waiting = subprocess.Popen(
        [sys.executable, "-P", "-m", "wakehub", "send", "--as", "bob", "--to", "alice", "--stdin"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    out, _ = waiting.communicate(b"hello")
    assert waiting.returncode == 0
    assert HELLO in out.decode()


def test_a_process_with_a_bundle_listens_as_the_agent_whose_it_is_and_as_no_other(wakehub, process, home):
    wakehub("init")
    wakehub("enroll", "bun")
    path = json.loads(wakehub("delegate", "bun", "--json").out)["bundle"]
    bundle = base64.urlsafe_b64encode(Path(path).read_bytes()).decode().rstrip("=")
    wakehub("send", "--as", "alice", "--to", "bun", "hello")
    found = process("listen", "--once", env={"WAKEHUB_BUNDLE": bundle})
    assert found.status == 0, found.err
    assert "listening as bun (from $WAKEHUB_BUNDLE)" in found.err
    assert "hello" in found.out
    for given in (("--as", "alice"), ("--as", "else")):
        refused = process("listen", "--once", *given, env={"WAKEHUB_BUNDLE": bundle})
        assert refused.status == Exit.PERMISSION
        assert "the bundle in $WAKEHUB_BUNDLE is for bun" in refused.err
        assert "next: use --as bun" in refused.err
    assert (
        process("listen", "--once", env={"WAKEHUB_BUNDLE": bundle, "WAKEHUB_AGENT": "else"}).status == Exit.PERMISSION
    )
    assert "else" not in wakehub("agents").out
