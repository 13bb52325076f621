"""``config.toml``: strict in what it reads, and what it writes it reads again (formats.md, Directories)."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakehub import config, files
from wakehub.config import Config
from wakehub.errors import Misconfigured, Unsafe
from wakehub.limits import HubLimits
from wakehub.paths import Paths, choose


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    tmp_path.chmod(0o700)
    return {"WAKEHUB_HOME": str(tmp_path)}


def write(environ: dict[str, str], text: str | bytes) -> None:
    data = text.encode() if isinstance(text, str) else text
    files.replace(Path(environ["WAKEHUB_HOME"]) / "config.toml", data)


def test_without_a_file_the_defaults(environ):
    assert config.load(environ) == Config.at(choose(environ))


def test_a_file_rules_over_the_environment(environ):
    """A job without XDG_RUNTIME_DIR must not found a second world."""
    write(environ, '[paths]\nrun = "/a"\nstate = "/b"\nkeys = "/c"\n')
    found = config.load(environ)
    assert (found.paths.run, found.paths.state, found.paths.keys) == (Path("/a"), Path("/b"), Path("/c"))
    assert found.hub_socket == Path("/a/hub.sock")


def test_every_setting(environ):
    write(
        environ,
        '[hub]\nid = "other"\nsocket = "/a/h.sock"\nstats_socket = "/b/s.sock"\nallowlist = "/c/l.jws"\n'
        'owner_pub = "/d/o.pub"\nmax_connections = 64\nframe_burst = 10\n[listen]\npoll = 5\n',
    )
    found = config.load(environ)
    assert (found.hub_id, found.hub_socket, found.stats_socket) == ("other", Path("/a/h.sock"), Path("/b/s.sock"))
    assert (found.allowlist, found.owner_pub, found.poll_s) == (Path("/c/l.jws"), Path("/d/o.pub"), 5)
    assert found.limits == HubLimits(max_connections=64, frame_burst=10)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense", b"\xff", "[hub]\nmax_conections = 64\n", "[hubs]\n", 'hub = "x"\n', '[paths]\nrun = "relative"\n',
        "[paths]\nrun = 5\n", '[paths]\nrun = "/a\\u0000b"\n', "[hub]\nmax_connections = 7\n",
        "[hub]\nmax_connections = true\n", '[hub]\nmax_connections = "64"\n', "[hub]\nframe_burst = 0\n",
        "[hub]\nqueued_bytes = 2147483648\n", '[hub]\nid = ""\n', "[hub]\nid = 5\n", '[hub]\nid = "a\\nb"\n',
        "[listen]\npoll = 61\n", "[listen]\npoll = 0\n", "[listen]\npoll = true\n", "[listen]\npoll = 1.5\n",
        f"[listen]\npoll = {'1' * 5_000}\n",
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_a_remedy(environ, text):
    write(environ, text)
    with pytest.raises(Misconfigured) as refused:
        config.load(environ)
    assert refused.value.remedy


def test_an_unknown_key_is_answered_with_the_known_ones(environ):
    write(environ, "[hub]\nmax_conections = 64\n")
    with pytest.raises(Misconfigured) as refused:
        config.load(environ)
    assert "max_connections" in refused.value.remedy


def test_a_file_that_others_could_have_written_is_refused(environ):
    write(environ, "")
    (Path(environ["WAKEHUB_HOME"]) / "config.toml").chmod(0o644)
    with pytest.raises(Unsafe, match="0600"):
        config.load(environ)


def test_a_file_that_is_there_is_left_alone(environ):
    write(environ, "# mine\n")
    assert config.write(Config.at(choose(environ))) is False
    assert (Path(environ["WAKEHUB_HOME"]) / "config.toml").read_text() == "# mine\n"


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), min_size=3, max_size=3
    )
)
def test_what_is_written_is_read_again_whatever_the_directories_are_called(tmp_path_factory, names):
    home = tmp_path_factory.mktemp("home")
    run, state, keys = (Path("/" + name) for name in names)
    given_paths = Paths(run, state, keys, home / "config.toml")
    assert config.write(Config.at(given_paths)) is True
    assert config.load({"WAKEHUB_HOME": str(home)}).paths == given_paths


@given(st.lists(st.text(st.sampled_from('/au0041\\"\t\n\r\x7f\x85\0#= é')).map("/".__add__), min_size=3, max_size=3))
def test_what_looks_as_if_we_had_written_it_is_read_as_toml_says(tmp_path_factory, values):
    """Such a file is read without TOML; one more comment, and it no longer is."""
    home = tmp_path_factory.mktemp("home")
    environ = {"WAKEHUB_HOME": str(home)}
    config.write(Config.at(Paths(Path("/<0>"), Path("/<1>"), Path("/<2>"), home / "config.toml")))
    text = (home / "config.toml").read_text()
    for number, value in enumerate(values):
        text = text.replace(f"/<{number}>", value)

    def read(text: str) -> Config | None:
        write(environ, text)
        try:
            return config.load(environ)
        except Misconfigured:
            return None

    assert read(text) == read(f"{text}#\n")


@pytest.mark.parametrize("hub_id", ["w", "ai-memory-wake-hub", "é" * 32])
def test_a_hub_id(hub_id):
    assert Config.at(choose({"WAKEHUB_HOME": "/w"})).changed(hub_id=hub_id).hub_id == hub_id


@pytest.mark.parametrize("hub_id", ["", "x" * 65, "é" * 33, "a\nb", "a\x85b", "\ud800"])
def test_what_is_no_hub_id(hub_id):
    with pytest.raises(Misconfigured, match=re.escape("1..64 bytes")):
        Config.at(choose({"WAKEHUB_HOME": "/w"})).changed(hub_id=hub_id)


def test_what_is_not_changed_stays():
    before = Config.at(choose({"WAKEHUB_HOME": "/w"}))
    assert before.changed(hub_id=None, limits=None) == before
