"""A stage for the tests of the benchmark: real processes in a private directory, gone behind each test."""

from collections.abc import Iterator

import pytest

from wakehub.bench.stage import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made
