"""Ed25519 keys: in memory, on disk, and as text (awh1.md §3; formats.md, Key files).

Signing and verifying is libsodium's, through PyNaCl: it refuses low-order and non-canonical points and scalars, which
others accept. A private key lives in a file of mode 0600 that names its agent; it is made once and never overwritten,
and it is not used when owner, mode or the id inside is not as it must be. Nothing here shows a seed.
"""

import base64
import binascii
import json
import re
import secrets
import shlex
from pathlib import Path
from typing import Final

from nacl import bindings
from nacl.exceptions import BadSignatureError

from wakehub import files
from wakehub.errors import Unsafe
from wakehub.identity import strict_json
from wakehub.identity.addresses import DOCTOR, OWNER, PUBLISHER
from wakehub.limits import (
    KEY_BYTES,
    MAX_KEY_FILE_BYTES,
    SEED_BYTES,
    SIGNATURE_BYTES,
)
from wakehub.visible import visible

_KEY_FIELDS: Final = frozenset({"version", "agent_id", "seed_b64"})
_MADE_BY: Final = {PUBLISHER: "wakehub init", DOCTOR: "wakehub doctor"}
_B64: Final = re.compile(r"[A-Za-z0-9_-]*")


class KeyPair:
    """An Ed25519 key pair made from its seed (32 bytes); raises `ValueError` for another size.

    Two pairs are equal when their public keys are. The repr shows nothing.
    """

    __slots__ = ("_secret", "public")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes")
        self.public, self._secret = bindings.crypto_sign_seed_keypair(seed)

    @classmethod
    def generate(cls) -> "KeyPair":
        return cls(secrets.token_bytes(SEED_BYTES))

    @property
    def seed(self) -> bytes:
        """The 32 bytes that the pair is made from: the secret itself."""
        return self._secret[:SEED_BYTES]

    def sign(self, message: bytes) -> bytes:
        """The signature (64 bytes) over the raw bytes of `message`."""
        return bindings.crypto_sign(message, self._secret)[:SIGNATURE_BYTES]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyPair) and self.public == other.public

    def __hash__(self) -> int:
        return hash(self.public)

    def __repr__(self) -> str:
        return "<KeyPair>"


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) over `message` was made with the private key of `public` (32 bytes).

    Strict, and never raises: anything of a wrong size is simply not a signature.
    """
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False  # the C function reads 32 bytes at `public`, whatever its size
    try:
        bindings.crypto_sign_open(signature + message, public)
    except BadSignatureError:
        return False
    return True


def b64(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    """The bytes of canonical base64url without padding; raises `ValueError` for any other spelling of them."""
    if not _B64.fullmatch(text):
        raise ValueError("not base64url without padding")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise ValueError("not base64url without padding") from None
    if b64(data) != text:
        raise ValueError("base64url is not canonical")
    return data


def unb64_key(text: str) -> bytes:
    """A public key (32 bytes) from its base64url; raises `ValueError`."""
    key = unb64(text)
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes")
    return key


def write_key(path: Path, agent_id: str, pair: KeyPair) -> None:
    """Make the key file of `agent_id`, never over another: raises `FileExistsError`, `Unsafe`, `CannotCreate`."""
    files.private_directory(path.parent)
    files.create(path, key_document(agent_id, pair))


def replace_key(path: Path, agent_id: str, pair: KeyPair) -> None:
    """Put a new key in the place of one that must not be used any more; raises `Unsafe`, `CannotCreate`."""
    files.private_directory(path.parent)
    files.replace(path, key_document(agent_id, pair))


def key_document(agent_id: str, pair: KeyPair) -> bytes:
    """The content of a key file; it holds the seed."""
    return json.dumps({"version": 1, "agent_id": agent_id, "seed_b64": b64(pair.seed)}).encode() + b"\n"


def load_key(path: Path, agent_id: str) -> KeyPair:
    """The key in `path`, which must be that of `agent_id`.

    Raises `FileNotFoundError` and `PermissionError` as they come, `Unsafe` when the file's owner, kind, mode or
    content is not as it must be.
    """
    data = files.read_owned(path, MAX_KEY_FILE_BYTES)
    try:
        found = strict_json.parse(data, _KEY_FIELDS)
        strict_json.integer(found, "version", 1, 1)
        inside = strict_json.text(found, "agent_id")
        pair = KeyPair(unb64(strict_json.text(found, "seed_b64")))
    except ValueError as error:
        raise Unsafe(
            f"{visible(str(path))} is not a key file",
            why=visible(str(error)),
            remedy=to_make_anew(path, agent_id),
        ) from None  # the cause may quote the seed
    if inside != agent_id:
        raise Unsafe(
            f"{visible(str(path))} holds the key of {visible(inside)}",
            why=f"it lies where the key of {visible(agent_id)} should be",
            remedy="put each key file back in its place",
        )
    return pair


def to_make_anew(path: Path, agent_id: str) -> str:
    """What to do about a key file that is of no use: only that of the owner cannot be replaced by another key."""
    if agent_id == OWNER:
        return f"restore {visible(str(path))} from a backup"
    command = _MADE_BY.get(agent_id, f"wakehub enroll {visible(agent_id)}")
    return f"restore it, or make another key: rm {shlex.quote(visible(str(path)))} && {command}"


def write_public(path: Path, public: bytes) -> None:
    """Make the file of a public key (32 bytes), never over another: raises as `write_key` does."""
    files.private_directory(path.parent)
    files.create(path, f"{b64(public)}\n".encode())


def load_public(path: Path) -> bytes:
    """The public key (32 bytes) in `path`, one line of base64url; raises as `load_key` does."""
    data = files.read_owned(path, MAX_KEY_FILE_BYTES)
    try:
        return unb64_key(data.decode("ascii").removesuffix("\n"))
    except ValueError as error:
        raise Unsafe(
            f"{visible(str(path))} is not a public key", why=visible(str(error)), remedy="restore the file"
        ) from None
