"""What in a transcript proves that a message was enqueued, and where it is looked for."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from relay_world import message

from wakehub.client.claude_sessions import Session
from wakehub.relay.backends.claude.transcript import Look, proves
from wakehub.relay.render import render

ID = message().row.id
OTHER = "m_00000000000000000000000009"
BLOCK = render(message(), "agent").decode()


def enqueued(content: Any = BLOCK) -> dict[str, Any]:
    return {"type": "queue-operation", "operation": "enqueue", "content": content}


def from_peer(content: Any = BLOCK, kind: str = "peer") -> dict[str, Any]:
    return {"type": "user", "origin": {"kind": kind}, "message": {"role": "user", "content": content}}


@pytest.mark.parametrize(
    "row",
    [
        enqueued(),
        enqueued([{"type": "text", "text": BLOCK}]),
        enqueued({"text": BLOCK}),
        from_peer(),
        from_peer([{"type": "text", "text": "hi"}, {"type": "text", "text": BLOCK}]),
        from_peer(f"<from-a-peer>{BLOCK}</from-a-peer>"),
        enqueued(render(message(sender="corp/bob", recipient="acme/x"), "agent").decode()),  # behind a banner
    ],
)
def test_it_was_enqueued(row: object) -> None:
    assert proves(row, ID)


@pytest.mark.parametrize(
    "row",
    [
        enqueued() | {"operation": "dequeue"},
        enqueued() | {"operation": "remove"},
        enqueued() | {"type": "summary"},
        from_peer(kind="human"),
        from_peer() | {"origin": None},
        from_peer() | {"type": "assistant"},
        {"type": "user", "message": {"content": BLOCK}},
        enqueued(None),
        enqueued(7),
        enqueued([None, 7, {"type": "image"}]),
        from_peer() | {"message": BLOCK},
        [enqueued()],
        BLOCK,
        None,
    ],
)
def test_nothing_else_does(row: object) -> None:
    assert not proves(row, ID)


@pytest.mark.parametrize(
    "block",
    [
        render(message(id=OTHER, re=ID), "agent").decode(),
        render(message(f"[wakehub {ID} from bob · verified]\n{ID} from bob", id=OTHER), "agent").decode(),
        BLOCK.replace(ID, ID[:-1]),
        BLOCK.replace(ID, f"{ID}0"),
        BLOCK.replace(ID, f"x{ID}"),
        f"[reply: wakehub send --re {ID} --stdin]",
    ],
)
def test_an_id_that_is_only_mentioned_proves_nothing(block: str) -> None:
    """In an answer's `re`, in a body, as a part of a longer id, in a reply hint."""
    assert not proves(enqueued(block), ID)
    assert not proves(from_peer(block), ID)


# --- where it is looked for ---


def session(session_id: str = "s1", cwd: str = "/home/me/my project.x") -> Session:
    return Session(1, "1", session_id, cwd, "interactive", "x", "user", 0.0, None, "1")


def transcript(config: Path, session_id: str = "s1", project: str = "-home-me-my-project-x") -> Path:
    path = config / "projects" / project / f"{session_id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write(path: Path, *rows: object) -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def look(config: Path) -> Look:
    made = Look(config, ID)
    made.follow(session())
    return made


def test_only_what_is_written_behind_the_post(tmp_path: Path) -> None:
    write(transcript(tmp_path), enqueued())
    found = look(tmp_path)
    assert not found.finds()
    write(transcript(tmp_path), {"type": "assistant"}, enqueued())
    assert found.finds()
    transcript(tmp_path).unlink()
    assert found.finds()  # it has been seen


def test_a_transcript_that_is_not_there_yet(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert not found.finds()
    write(transcript(tmp_path), enqueued())
    assert found.finds()


def test_one_that_lies_under_another_directory(tmp_path: Path) -> None:
    found = look(tmp_path)
    write(transcript(tmp_path, project="-somewhere-else"), enqueued())
    write(transcript(tmp_path, "s2", project="-home-me-my-project-x"))
    assert found.finds()


def test_a_line_counts_once_it_is_complete(tmp_path: Path) -> None:
    path, line = transcript(tmp_path), json.dumps(enqueued())
    path.write_text(line[:30])
    found = look(tmp_path)
    assert not found.finds()
    path.write_text(line)
    assert not found.finds()
    path.write_text(line + "\n")
    assert found.finds()


def test_what_is_no_json_is_passed_over(tmp_path: Path) -> None:
    found = look(tmp_path)
    transcript(tmp_path).write_bytes(b"{\n\xff\xfe\n" + b"[" * 20_000 + b"\n\n")
    write(transcript(tmp_path), enqueued())
    assert found.finds()


def test_a_new_session_id_has_another_transcript_and_the_old_one_still_counts(tmp_path: Path) -> None:
    found = look(tmp_path)
    found.follow(session("s2"))
    write(transcript(tmp_path, "s2"), {"type": "user"})
    assert not found.finds()
    write(transcript(tmp_path, "s1"), enqueued())
    assert found.finds()
    other = look(tmp_path)
    write(transcript(tmp_path, "s3"), enqueued())
    assert not other.finds()
    other.follow(session("s3"))
    assert other.finds()


def test_one_that_is_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = transcript(tmp_path)
    write(path, *[{"type": "assistant", "text": "x" * 100}] * 10)
    found = look(tmp_path)
    path.write_text("")
    write(path, enqueued())
    assert found.finds()
    replaced = look(tmp_path)
    assert not replaced.finds()
    write(path.with_name("new"), enqueued(), *[{"type": "assistant", "text": "x" * 1000}] * 10)
    os.replace(path.with_name("new"), path)
    assert replaced.finds()


def test_one_look_reads_so_much_and_the_next_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wakehub.relay.backends.claude.transcript.MAX_LOOK_BYTES", 1000)
    found = look(tmp_path)
    write(transcript(tmp_path), *[{"type": "assistant", "text": "x" * 400}] * 5, enqueued())
    assert [found.finds() for _ in range(2)] == [False, True]


@pytest.mark.parametrize("trouble", ["link", "pipe", "directory", "other user"])
def test_only_a_file_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    found, path = look(tmp_path), transcript(tmp_path)
    match trouble:
        case "link":
            write(path.with_name("real"), enqueued())
            path.symlink_to("real")
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "other user":
            write(path, enqueued())
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not found.finds()


def test_the_place_is_found_however_long_the_last_line_is(tmp_path: Path) -> None:
    path = transcript(tmp_path)
    write(path, enqueued())
    with path.open("a") as file:
        file.write('{"type": "assistant", "text": "' + "x" * 200_000)
    found = look(tmp_path)
    with path.open("a") as file:
        file.write('"}\n')
    assert not found.finds()
    write(path, enqueued())
    assert found.finds()
