"""A channel in a short base directory of its own, for the mesh's tests."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wakehub.intercom.channels import Channel


@pytest.fixture
def base() -> Iterator[Path]:
    """A base directory for channels, 0700, short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="ic", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def channel(base: Path) -> Iterator[Channel]:
    with Channel.open(base, "room") as opened:
        yield opened
