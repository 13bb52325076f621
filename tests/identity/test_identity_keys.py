"""Keys in memory, as text and on disk (awh1.md §3; formats.md, Key files)."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wakehub.errors import Exit, Unsafe
from wakehub.identity import keys
from wakehub.identity.keys import KeyPair

L = 2**252 + 27742317777372353535851937790883648493  # the order of the base point


def test_reference_keys() -> None:
    """awh1.md §8."""
    assert KeyPair(b"\3" * 32).public.hex() == "ed4928c628d1c2c6eae90338905995612959273a5c63f93636c14614ac8737d1"
    assert KeyPair(b"\4" * 32).public.hex() == "ca93ac1705187071d67b83c7ff0efe8108e8ec4530575d7726879333dbdabe7c"


def test_rfc_8032_test_1() -> None:
    pair = KeyPair(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert pair.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert pair.sign(b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )


@given(st.binary(max_size=300))
def test_what_is_signed_verifies_and_nothing_else_does(message: bytes) -> None:
    pair = KeyPair(b"\5" * 32)
    signature = pair.sign(message)
    assert len(signature) == 64
    assert keys.verify(pair.public, message, signature)
    assert not keys.verify(pair.public, message + b"x", signature)
    assert not keys.verify(KeyPair(b"\6" * 32).public, message, signature)


@given(st.binary(max_size=70), st.binary(max_size=20), st.binary(max_size=70))
@example(b"", b"", b"")
@example(b"\0" * 32, b"", b"\0" * 64)
@example(b"\0" * 31, b"x", b"\0" * 64)
@example(b"\xff" * 32, b"x", b"\xff" * 64)
def test_rubbish_is_no_signature_and_no_error(public: bytes, message: bytes, signature: bytes) -> None:
    assert not keys.verify(public, message, signature)


def test_every_changed_byte_is_refused() -> None:
    pair = KeyPair(b"\5" * 32)
    signature = pair.sign(b"message")
    for at in range(64):
        changed = bytearray(signature)
        changed[at] ^= 1
        assert not keys.verify(pair.public, b"message", bytes(changed))
    for at in range(32):
        changed = bytearray(pair.public)
        changed[at] ^= 1
        assert not keys.verify(bytes(changed), b"message", signature)


def test_a_scalar_that_is_not_reduced_is_refused() -> None:
    pair = KeyPair(b"\5" * 32)
    signature = pair.sign(b"message")
    scalar = int.from_bytes(signature[32:], "little") + L
    assert not keys.verify(pair.public, b"message", signature[:32] + scalar.to_bytes(32, "little"))


@pytest.mark.parametrize(
    "public",
    [
        "0100000000000000000000000000000000000000000000000000000000000000",  # the neutral element
        "0000000000000000000000000000000000000000000000000000000000000000",  # order 4
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # order 2
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",  # order 8
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # p + 1, not canonical
        "0100000000000000000000000000000000000000000000000000000000000080",  # the neutral element, sign set
    ],
)
def test_low_order_and_non_canonical_points_sign_nothing(public: str) -> None:
    """With R the neutral element and S = 0 a lenient verifier accepts some message under each of these keys."""
    neutral = bytes.fromhex("01" + "00" * 31)
    for number in range(16):
        for r in (neutral, bytes.fromhex(public)):
            assert not keys.verify(bytes.fromhex(public), bytes([number]), r + b"\0" * 32)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_seed_has_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        KeyPair(b"\1" * size)


def test_a_pair_shows_nothing_and_is_equal_by_its_public_key() -> None:
    pair = KeyPair.generate()
    assert repr(pair) == str(pair) == "<KeyPair>"
    assert pair == KeyPair(pair.seed)
    assert hash(pair) == hash(KeyPair(pair.seed))
    assert pair != KeyPair.generate()
    assert pair != pair.seed


@given(st.binary(max_size=100))
def test_base64url_and_back(data: bytes) -> None:
    text = keys.b64(data)
    assert not set(text) & set("=+/")
    assert keys.unb64(text) == data


@pytest.mark.parametrize("text", ["A", "AA==", "AAA=", "A A", "AA\n", "+/", "AB", "AAB", "é", "AAAAA", "\ud800"])
def test_only_one_spelling_of_base64url(text: str) -> None:
    with pytest.raises(ValueError, match="base64url"):
        keys.unb64(text)


def test_a_key_in_text_has_32_bytes() -> None:
    assert keys.unb64_key(keys.b64(b"\7" * 32)) == b"\7" * 32
    with pytest.raises(ValueError, match="32 bytes"):
        keys.unb64_key(keys.b64(b"\7" * 31))


# --- on disk ---


def test_a_key_file_is_written_once_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "agents" / "bob.key"
    pair = KeyPair.generate()
    keys.write_key(path, "bob", pair)
    assert path.stat().st_mode & 0o7777 == 0o600
    assert path.parent.stat().st_mode & 0o7777 == 0o700
    assert json.loads(path.read_bytes()) == {"version": 1, "agent_id": "bob", "seed_b64": keys.b64(pair.seed)}
    assert keys.load_key(path, "bob") == pair
    with pytest.raises(FileExistsError):
        keys.write_key(path, "bob", KeyPair.generate())
    assert keys.load_key(path, "bob") == pair
    assert os.listdir(path.parent) == ["bob.key"]


def test_a_key_that_ended_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "bob.key"
    keys.write_key(path, "bob", KeyPair.generate())
    later = KeyPair.generate()
    keys.replace_key(path, "bob", later)
    assert keys.load_key(path, "bob") == later


def test_no_key_goes_into_a_directory_that_others_can_enter(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir(0o755)
    place.chmod(0o755)
    with pytest.raises(Unsafe, match="0755"):
        keys.write_key(place / "bob.key", "bob", KeyPair.generate())
    assert os.listdir(place) == []


def test_a_key_of_somebody_else_is_refused(tmp_path: Path) -> None:
    keys.write_key(tmp_path / "bob.key", "alice", KeyPair.generate())
    with pytest.raises(Unsafe, match="holds the key of alice") as refusal:
        keys.load_key(tmp_path / "bob.key", "bob")
    assert refusal.value.exit is Exit.PERMISSION


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o400, 0o700, 0o606, 0o4600])
def test_a_key_file_with_another_mode_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "bob.key"
    keys.write_key(path, "bob", KeyPair.generate())
    path.chmod(mode)
    with pytest.raises(Unsafe, match=f"{mode:04o}.*must be exactly 0600"):
        keys.load_key(path, "bob")


def test_links_pipes_and_directories_are_no_key_files(tmp_path: Path) -> None:
    keys.write_key(tmp_path / "bob.key", "bob", KeyPair.generate())
    (tmp_path / "link.key").symlink_to(tmp_path / "bob.key")
    os.mkfifo(tmp_path / "pipe.key", 0o600)
    (tmp_path / "directory.key").mkdir(0o700)
    for name in ("link.key", "pipe.key", "directory.key"):
        with pytest.raises(Unsafe):
            keys.load_key(tmp_path / name, "bob")


def test_a_key_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bob.key"
    keys.write_key(path, "bob", KeyPair.generate())
    somebody_else = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody_else)
    with pytest.raises(Unsafe, match="belongs to uid"):
        keys.load_key(path, "bob")


def test_an_absent_key_file_is_just_absent(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        keys.load_key(tmp_path / "bob.key", "bob")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": True},
        {"seed_b64": "AAAA"},
        {"seed_b64": "not base64"},
        {"seed_b64": 7},
        {"agent_id": None},
        {"extra": 1},
    ],
)
def test_a_damaged_key_file_is_refused_without_quoting_it(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "bob.key"
    pair = KeyPair.generate()
    keys.write_key(path, "bob", pair)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    with pytest.raises(Unsafe, match="is not a key file") as refusal:
        keys.load_key(path, "bob")
    assert keys.b64(pair.seed) not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_a_cut_key_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bob.key"
    keys.write_key(path, "bob", KeyPair.generate())
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(Unsafe):
            keys.load_key(path, "bob")


def test_a_public_key_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "owner.pub"
    public = KeyPair(b"\1" * 32).public
    keys.write_public(path, public)
    assert path.read_text() == keys.b64(public) + "\n"
    assert keys.load_public(path) == public
    with pytest.raises(FileExistsError):
        keys.write_public(path, public)
    path.write_text(keys.b64(public))
    assert keys.load_public(path) == public


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"AAAA\n", b"A" * 43 + b"\n\n", b" " + b"A" * 43, b"\xff" * 43, b"A" * 5000]
)
def test_anything_else_is_no_public_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "owner.pub"
    keys.write_public(path, KeyPair(b"\1" * 32).public)
    path.write_bytes(content)
    with pytest.raises(Unsafe):
        keys.load_public(path)
