"""What mutation starts from: the inputs of `vectors/*.json`, by layer."""

import json
from functools import cache
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).resolve().parents[2] / "vectors"


@cache
def vectors(layer: str) -> tuple[dict[str, Any], ...]:
    """The vectors of a layer, from whatever file."""
    files = [json.loads(path.read_text()) for path in sorted(VECTORS.glob("*.json"))]
    found = tuple(vector for file in files for vector in file["vectors"] if vector["layer"] == layer)
    assert found, f"no vectors of layer {layer!r}"
    return found


def hexes(layer: str, key: str) -> list[bytes]:
    """The bytes under `key` of each input of a layer, once each."""
    return list(dict.fromkeys(bytes.fromhex(vector["input"][key]) for vector in vectors(layer)))


def texts(layer: str, key: str) -> list[bytes]:
    """The text under `key` of each input of a layer, once each."""
    return list(dict.fromkeys(vector["input"][key].encode() for vector in vectors(layer)))


def prefixed(body: bytes) -> bytes:
    """A frame as on the stream."""
    return len(body).to_bytes(4, "big") + body
