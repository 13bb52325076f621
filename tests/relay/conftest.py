"""What the relay's tests share: an instance of their own under a short path."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from relay_world import World, opened_world


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="wh") as name:
        with opened_world(Path(name)) as made:
            yield made
