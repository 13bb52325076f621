"""Where spools are, as config.toml has it now (formats.md, Spool)."""

import os
from pathlib import Path

import pytest

from wakehub.client.home import ensure_home
from wakehub.config import Config
from wakehub.publisher.spool_directories import SpoolDirectories


def name(config: Config, text: str) -> None:
    """Put `text` in the place of the file, as an editor does."""
    new = config.paths.config_file.with_name("new")
    new.write_text(text)
    new.chmod(0o600)
    os.replace(new, config.paths.config_file)


def test_a_change_of_the_file_is_seen_at_the_next_look(config: Config, tmp_path: Path) -> None:
    ensure_home(config)
    directories = SpoolDirectories(config)
    assert directories() == (config.paths.spool,)
    name(config, f'[spool]\ndirs = ["{tmp_path}/a", "{tmp_path}/b"]\n')
    assert directories() == (tmp_path / "a", tmp_path / "b")
    name(config, "")
    assert directories() == (config.paths.spool,)


@pytest.mark.parametrize("harm", ["[spool\n", "[spool]\ndirs = 7\n", "[spoool]\n"])
def test_while_the_file_cannot_be_used_they_stay(config: Config, tmp_path: Path, harm: str) -> None:
    ensure_home(config)
    directories = SpoolDirectories(config)
    name(config, f'[spool]\ndirs = ["{tmp_path}/a"]\n')
    assert directories() == (tmp_path / "a",)
    name(config, harm)
    assert directories() == directories() == (tmp_path / "a",)
    name(config, f'[spool]\ndirs = ["{tmp_path}/b"]\n')
    assert directories() == (tmp_path / "b",)
