"""Runs every vector against the package, and asserts how many there are.

The vectors are made from the specification by a program that shares no code with the package; this file is the only
place where the two meet. What decodes is also encoded again, and must give the same bytes.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wakehub.errors import Violation
from wakehub.identity import keys, stamps
from wakehub.identity.allowlist import AllowlistFile, Unusable
from wakehub.identity.delegation import Certificate, signed_bytes
from wakehub.identity.scope import may_hold
from wakehub.identity.verifier import Claim, DelegationVerifier, Denied, Identity, window_fault
from wakehub.wire import transcript
from wakehub.wire.fields import check_topic, decode_topics, encode_topics
from wakehub.wire.frames import PREFIX, Frame, Kind, decode, encode
from wakehub.wire.payloads import Error, Hello, Wake, Welcome
from wakehub.wire.protocol import HUB_TABLE, HubState, Refusal
from wakehub.wire.reader import FrameReader

Json = dict[str, Any]

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
COUNTS = {
    "frames": 218,
    "payloads": 85,
    "topics": 97,
    "transcripts": 40,
    "certificates": 149,
    "handshakes": 100,
    "allowlists": 172,
    "ed25519": 63,
}

# The words of ours by which each defect of a frame is told.
DEFECTS = {
    "short": "shorter than its header",
    "magic": "bad magic",
    "version": "version",
    "kind": "unknown kind",
    "reserved kind": "reserved kind",
    "flags": "flags",
    "reserved byte": "reserved byte",
    "lengths": "do not add up",
    "ceiling": "payload",
    "from utf-8": "from is not UTF-8",
    "to utf-8": "to is not UTF-8",
    "from length": "from of",
    "from empty": "from is empty",
    "from control": "from holds a control",
    "to length": "to of",
    "to control": "to holds a control",
}


def load(file: str) -> Json:
    found: Json = json.loads((VECTORS / f"{file}.json").read_text())
    return found


def every_vector() -> list[Any]:
    return [pytest.param(vector, id=f"{file}: {vector['name']}") for file in COUNTS for vector in load(file)["vectors"]]


def test_each_file_holds_as_many_vectors_as_expected() -> None:
    assert {path.stem for path in VECTORS.glob("*.json")} == COUNTS.keys()
    for file, count in COUNTS.items():
        found = load(file)
        assert found["count"] == len(found["vectors"]) == count
        assert len({vector["name"] for vector in found["vectors"]}) == count


def test_the_readme_states_the_counts() -> None:
    text = (VECTORS / "README.md").read_text()
    assert f"{sum(COUNTS.values())} cases" in text
    for file, count in COUNTS.items():
        assert any(
            line.startswith(f"| `{file}.json` |") and line.endswith(f"| {count} |") for line in text.splitlines()
        )


def check(vectors: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, vectors / "generate.py", "--check"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_the_files_are_what_the_generator_makes() -> None:
    found = check(VECTORS)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == f"{len(COUNTS)} files with {sum(COUNTS.values())} vectors are what the generator makes\n"


def test_a_file_that_the_generator_does_not_make_is_found(tmp_path: Path) -> None:
    shutil.copytree(VECTORS, tmp_path / "vectors", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "vectors" / "more.json").write_text("[]")
    (tmp_path / "vectors" / "topics.json").unlink()
    found = check(tmp_path / "vectors")
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.splitlines() == [
        "topics.json is not what the generator makes; run python vectors/generate.py",
        "more.json is made by no part of the generator; remove it",
    ]


@pytest.mark.parametrize("program", [VECTORS / "generate.py", Path(__file__).with_name("independent_client.py")])
def test_what_is_written_from_the_specification_shares_no_code_with_the_package(program: Path) -> None:
    tree = ast.walk(ast.parse(program.read_text()))
    modules = [alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names]
    tree = ast.walk(ast.parse(program.read_text()))
    modules += [node.module or "" for node in tree if isinstance(node, ast.ImportFrom)]
    assert {module.split(".")[0] for module in modules} <= sys.stdlib_module_names | {"nacl"}


# --- frames and payloads ----------------------------------------------------------------------------------------------


def prefixed(body: bytes) -> bytes:
    return PREFIX.pack(len(body)) + body


def refused_with(call: Callable[[], object], expect: Json) -> str:
    with pytest.raises(Violation) as caught:
        call()
    assert caught.value.code == expect["code"]
    return caught.value.reason


def run_frame(given: Json, expect: Json, _: Path) -> None:
    raw = prefixed(bytes.fromhex(given["body"]))
    if "code" in expect:
        reason = refused_with(lambda: decode(raw), expect)
        assert DEFECTS[expect["defect"]] in reason
        assert reason == expect.get("reason", reason)
        return
    frame = decode(raw)
    assert frame == as_frame(expect)
    assert encode(frame) == raw


def as_frame(fields: Json) -> Frame:
    return Frame(
        Kind(fields["kind"]),
        fields["from"].encode(),
        fields["to"].encode(),
        bytes.fromhex(fields["payload"]),
        int(fields["ts_ms"]),
        fields["ttl_ms"],
    )


def run_frame_encode(given: Json, expect: Json, _: Path) -> None:
    refused_with(lambda: encode(as_frame(given)), expect)


def run_stream(given: Json, expect: Json, _: Path) -> None:
    data = bytes.fromhex(given["bytes"])
    for step in (len(data) or 1, 1, 3, 7):
        reader, bodies, code = FrameReader(), [], None
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
            try:
                while (raw := reader.next_frame()) is not None:
                    assert raw == prefixed(raw[4:])
                    bodies.append(raw[4:].hex())
            except Violation as violation:
                code = violation.code
        assert bodies == expect["bodies"]
        assert code == expect.get("code")
        if given["eof"]:
            assert ("clean" if reader.at_boundary else "truncated") == expect["end"]


def run_hello(given: Json, expect: Json, _: Path) -> None:
    payload = bytes.fromhex(given["payload"])
    if "code" in expect:
        refused_with(lambda: Hello.decode(payload), expect)
        return
    hello = Hello.decode(payload)
    assert (hello.key.hex(), hello.signature.hex()) == (expect["key"], expect["signature"])
    assert hello.certificate.hex() == expect["certificate"]
    assert [topic.decode() for topic in hello.topics] == expect["topics"]
    assert hello.encode() == payload


def run_welcome(given: Json, expect: Json, _: Path) -> None:
    payload = bytes.fromhex(given["payload"])
    if "code" in expect:
        refused_with(lambda: Welcome.decode(payload), expect)
        return
    assert Welcome.decode(payload) == Welcome(**expect | {"pending_count": int(expect["pending_count"])})
    assert Welcome.decode(payload).encode() == payload


def run_wake(given: Json, expect: Json, _: Path) -> None:
    payload = bytes.fromhex(given["payload"])
    if "code" in expect:
        refused_with(lambda: Wake.decode(payload), expect)
        return
    row_id, namespace, sender = (expect[name].encode() for name in ("row_id", "namespace", "sender"))
    digest, watermark = bytes.fromhex(expect["digest"]), int(expect["watermark"])
    assert Wake.decode(payload) == Wake(row_id, namespace, sender, digest, watermark)
    assert Wake.decode(payload).encode() == payload


def run_error(given: Json, expect: Json, _: Path) -> None:
    payload = bytes.fromhex(given["payload"])
    if "code" in expect:
        refused_with(lambda: Error.decode(payload), expect)
        return
    assert Error.decode(payload) == Error(expect["error_code"], expect["reason"])
    assert Error.decode(payload).encode() == payload


def run_error_encode(given: Json, expect: Json, _: Path) -> None:
    assert Error(given["error_code"], given["reason"]).encode().hex() == expect["payload"]


# --- topics and transcripts -------------------------------------------------------------------------------------------


def run_topic(given: Json, expect: Json, _: Path) -> None:
    topic = bytes.fromhex(given["topic"])
    if expect["valid"]:
        check_topic(topic)
    else:
        refused_with(lambda: check_topic(topic), {"code": 400})


def run_topic_list(given: Json, expect: Json, _: Path) -> None:
    payload = bytes.fromhex(given["payload"])
    if "code" in expect:
        refused_with(lambda: decode_topics(payload), expect)
        return
    topics = decode_topics(payload)
    assert [topic.decode() for topic in topics] == expect["topics"]
    assert encode_topics(topics) == payload


def run_scope(given: Json, expect: Json, _: Path) -> None:
    allowed = may_hold(given["agent_id"], given["readable_prefixes"], given["topic"].encode())
    assert allowed is expect["allowed"]


def run_transcript(given: Json, expect: Json, _: Path) -> None:
    if given["act"] != "hello":
        assert membership_bytes(given).hex() == expect["bytes"]
        return
    topics = [topic.encode() for topic in given["topics"]]
    ids = given["hub_id"].encode(), bytes.fromhex(given["nonce"]), given["agent_id"].encode()
    assert transcript.hello(*ids, topics).hex() == expect["bytes"]
    assert transcript.topics_hash(topics).hex() == expect["topics_hash"]


def membership_bytes(given: Json) -> bytes:
    kind, nonce = Kind[given["act"].upper()], bytes.fromhex(given["nonce"])
    return transcript.membership(kind, given["hub_id"].encode(), nonce, given["agent_id"].encode())


def run_membership(given: Json, expect: Json, _: Path) -> None:
    accepted = keys.verify(bytes.fromhex(given["key"]), membership_bytes(given), bytes.fromhex(given["payload"]))
    assert accepted is ("accepted" in expect)


# --- identity ---------------------------------------------------------------------------------------------------------


def run_ed25519(given: Json, expect: Json, _: Path) -> None:
    parts = (bytes.fromhex(given[name]) for name in ("public", "message", "signature"))
    assert keys.verify(*parts) is expect["valid"]


def raises_value_error(call: Callable[[Any], object], argument: object) -> bool:
    try:
        call(argument)
    except ValueError:
        return True
    return False


def run_certificate(given: Json, expect: Json, _: Path) -> None:
    data = bytes.fromhex(given["certificate"])
    if "code" in expect:
        assert raises_value_error(Certificate.decode, data)
        return
    certificate = Certificate.decode(data)
    assert certificate == certificate_of(expect)
    assert certificate.encode() == data


def certificate_of(fields: Json) -> Certificate:
    raw: Json = {name: bytes.fromhex(fields[name]) for name in ("delegate_key", "signature")}
    texts = ("principal", "scope", "hub_id", "not_before", "not_after")
    return Certificate(**{name: fields[name] for name in texts}, **raw)


def run_certificate_signed_bytes(given: Json, expect: Json, _: Path) -> None:
    names = ("principal", "scope", "hub_id", "not_before", "not_after")
    fields = {name: given[name] for name in names}
    message = signed_bytes(delegate_key=bytes.fromhex(given["delegate_key"]), **fields)
    pair = keys.KeyPair(bytes.fromhex(given["seed"]))
    assert message.hex() == expect["bytes"]
    assert pair.public.hex() == given["public"]
    assert pair.sign(message).hex() == expect["signature"]


def run_certificate_signature(given: Json, expect: Json, _: Path) -> None:
    certificate = Certificate.decode(bytes.fromhex(given["certificate"]))
    valid = keys.verify(bytes.fromhex(given["agent_key"]), certificate.signed_bytes(), certificate.signature)
    assert valid is expect["valid"]


def run_window(given: Json, expect: Json, _: Path) -> None:
    rest = {"principal": "a", "scope": "a2a-hub", "hub_id": "h", "delegate_key": "00" * 32, "signature": "00" * 64}
    try:
        fault = window_fault(certificate_of(given | rest).window(), given["now_ms"] / 1000)
    except ValueError:
        fault = "bad_certificate"
    assert fault == expect.get("label", "")


def run_stamp(given: Json, expect: Json, _: Path) -> None:
    for text in (given["text"], given["text"].encode()):
        if "ns" in expect:
            assert stamps.parse(text) == int(expect["ns"])
        else:
            assert raises_value_error(stamps.parse, text)


def judge(path: Path, given: Json, expect: Json) -> None:
    file = AllowlistFile(path, bytes.fromhex(given["owner_public"]))
    found = file.current(given["now_ms"] / 1000, 0.0)
    if "label" in expect:
        assert isinstance(found, Unusable)
        assert found.label == expect["label"]
    else:
        assert not isinstance(found, Unusable), found
        assert list(found.agents) == expect["agents"]


def write_private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def run_allowlist(given: Json, expect: Json, directory: Path) -> None:
    judge(write_private(directory / "allowlist.jws", given["jws"]), given, expect)


def run_allowlist_file(given: Json, expect: Json, directory: Path) -> None:
    file, path = given["file"], directory / "allowlist.jws"
    match file["type"]:
        case "regular":
            path.write_text(given["jws"].ljust(file.get("pad_to", 0)))
        case "symlink":
            path.symlink_to(write_private(directory / "good.jws", given["jws"]))
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
    if "mode" in file:
        path.chmod(int(file["mode"], 8))
    judge(path, given, expect)


def run_handshake(given: Json, expect: Json, directory: Path) -> None:
    path = directory / "allowlist.jws"
    if given["allowlist"] is not None:
        write_private(path, given["allowlist"])
    verifier = DelegationVerifier(given["hub_id"], AllowlistFile(path, bytes.fromhex(given["owner_public"])))
    raw = prefixed(bytes.fromhex(given["body"]))
    if expect.get("code") in (400, 413):
        refused_with(lambda: claimed(raw, given), expect)
        return
    claim = claimed(raw, given)
    if claim is None:
        assert expect == {"code": 401}
        return
    for _ in range(2):  # the second time, the certificate's proof may be a remembered one
        verdict = verifier.verify(claim, given["now_ms"] / 1000)
        if "accepted" in expect:
            assert isinstance(verdict, Identity), verdict
            assert verdict.agent_id == expect["accepted"]["agent_id"]
            assert [topic.decode() for topic in claim.topics] == expect["accepted"]["topics"]
        else:
            assert verdict == Denied(expect["label"])


def claimed(raw: bytes, given: Json) -> Claim | None:
    """What a client's first frame claims; None when it is no hello, which is a 401."""
    frame = decode(raw)
    if isinstance(HUB_TABLE[HubState.AUTHENTICATING][frame.kind], Refusal):
        return None
    hello, agent_id = Hello.decode(frame.payload), frame.from_id.decode()
    return Claim(agent_id, hello.key, hello.signature, hello.certificate, hello.topics, bytes.fromhex(given["nonce"]))


RUNNERS: dict[str, Callable[[Json, Json, Path], None]] = {
    "frame": run_frame,
    "frame encode": run_frame_encode,
    "stream": run_stream,
    "hello": run_hello,
    "welcome": run_welcome,
    "wake": run_wake,
    "error": run_error,
    "error encode": run_error_encode,
    "topic": run_topic,
    "topic list": run_topic_list,
    "scope": run_scope,
    "transcript": run_transcript,
    "membership": run_membership,
    "ed25519": run_ed25519,
    "certificate": run_certificate,
    "certificate signed bytes": run_certificate_signed_bytes,
    "certificate signature": run_certificate_signature,
    "window": run_window,
    "stamp": run_stamp,
    "allowlist": run_allowlist,
    "allowlist file": run_allowlist_file,
    "handshake": run_handshake,
}


@pytest.mark.parametrize("vector", every_vector())
def test_vector(vector: Json, tmp_path: Path) -> None:
    RUNNERS[vector["layer"]](vector["input"], vector["expect"], tmp_path)
