"""`init`, `enroll`, `revoke`, `close`, `delegate`, `audit`: what they do, print and exit with."""

import json
import re
import stat

import pytest

from wakehub.errors import Exit


@pytest.fixture
def made(wakehub, home):
    assert wakehub("init").status == 0
    return home


def documented(wakehub, command: str) -> list[str]:
    """The outermost keys that a command's help promises for `--json`."""
    text = re.sub(r"\s+", " ", wakehub(command, "--help").out.split("--json prints: ")[1])
    while re.search(r"\([^()]*\)", text):
        text = re.sub(r" ?\([^()]*\)", "", text)
    return [key.strip() for key in text.split(",")]


def report(wakehub, *argv: str) -> dict[str, object]:
    """The report of a command that succeeds, with exactly the keys its help promises."""
    found = wakehub(*argv, "--json")
    assert (found.status, found.err) == (0, "")
    (line,) = found.out.splitlines()
    keys = json.loads(line)
    assert list(keys) == documented(wakehub, argv[0])
    return keys


def test_init_says_what_it_made_and_then_that_nothing_was_left_to_make(wakehub, home):
    first = wakehub("init")
    assert first.status == 0
    assert f"made {home}/keys/owner.key" in first.out
    assert "next: systemctl --user start wakehub.service" in first.out
    second = wakehub("init")
    assert second.status == 0
    assert "already set up" in second.out


def test_init_notes_that_a_moved_home_works_on_the_old_one(wakehub, made):
    config = made / "config.toml"
    config.write_text(config.read_text().replace(f"{made}/run", f"{made.parent}/old/run"))
    assert f"{made.parent}/old/run" in wakehub("init").out.split("note: ")[1]


def test_init_json(wakehub, home):
    found = report(wakehub, "init")
    assert f"{home}/config.toml" in found["made"]
    assert report(wakehub, "init")["made"] == []


def test_everything_made_is_private(wakehub, made):
    wakehub("enroll", "alice")
    wakehub("delegate", "alice")
    for path in [made, *made.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("argv", [["enroll", "a"], ["revoke", "a"], ["close", "a"], ["agents"], ["audit", "verify"]])
def test_without_an_instance_the_remedy_is_init(wakehub, argv):
    found = wakehub(*argv)
    assert found.status == Exit.PERMISSION
    assert "wakehub init" in found.err


def test_enroll(wakehub, made):
    found = report(wakehub, "enroll", "acme/deploy")
    assert found["changed"] is True
    assert found["generation"] == 1
    assert (made / "keys" / "agents" / "acme%2Fdeploy.key").samefile(found["key_file"])
    assert report(wakehub, "enroll", "acme/deploy")["changed"] is False
    assert "was enrolled already" in wakehub("enroll", "acme/deploy").out


def test_no_secret_is_printed(wakehub, made):
    outputs = [wakehub(*argv.split()) for argv in ("enroll alice --json", "enroll alice", "delegate alice --json")]
    outputs.append(wakehub("audit", "verify", "--json"))
    seeds = [
        json.loads(path.read_text()).get(key)
        for path in made.rglob("*")
        if path.suffix in (".key", ".json")
        for key in ("seed_b64", "delegate_private_b64")
    ]
    assert len([seed for seed in seeds if seed]) == 4
    assert not any(seed in result.out + result.err for seed in seeds if seed for result in outputs)


def test_revoke_and_enroll_again_gives_another_key(wakehub, made):
    first = report(wakehub, "enroll", "alice")["key_b64"]
    assert report(wakehub, "revoke", "alice") == {"agent_id": "alice", "changed": True, "generation": 1}
    assert report(wakehub, "revoke", "alice")["changed"] is False
    again = report(wakehub, "enroll", "alice")
    assert again["key_b64"] != first
    assert again["generation"] == 1


def test_close_and_enroll_again_is_another_generation(wakehub, made):
    wakehub("enroll", "alice")
    assert report(wakehub, "close", "alice")["changed"] is True
    assert "closed already" in wakehub("close", "alice").out
    assert report(wakehub, "enroll", "alice")["generation"] == 2


@pytest.mark.parametrize("command", ["revoke", "close"])
def test_a_mistyped_name_is_answered_with_the_near_one(wakehub, made, command):
    wakehub("enroll", "alice")
    found = wakehub(command, "alcie")
    assert found.status == Exit.NO_RECIPIENT
    assert "alice" in found.err


def test_delegate_and_revoke_that_key_alone(wakehub, made):
    wakehub("enroll", "alice")
    found = report(wakehub, "delegate", "alice", "--ttl", "2h")
    assert json.loads((made / "keys/agents/alice.a2a-hub.json").read_text())["not_after"] == found["not_after"]
    key = f"--key={found['delegate_key_b64']}"
    assert report(wakehub, "revoke", "alice", key)["changed"] is True
    assert "revoked already" in wakehub("revoke", "alice", key).out
    assert json.loads(wakehub("agents", "--json").out)["agents"][0]["state"] == "enrolled"


def test_a_key_that_is_none(wakehub, made):
    wakehub("enroll", "alice")
    assert wakehub("revoke", "alice", "--key=short").status == Exit.USAGE


def test_delegate_for_a_name_that_was_never_enrolled(wakehub, made):
    found = wakehub("delegate", "nobody")
    assert found.status == Exit.NO_RECIPIENT
    assert "wakehub enroll nobody" in found.err


def test_delegate_for_a_revoked_name_writes_no_bundle(wakehub, made):
    wakehub("enroll", "alice")
    wakehub("revoke", "alice")
    assert wakehub("delegate", "alice").status == Exit.PERMISSION
    assert not (made / "keys/agents/alice.a2a-hub.json").exists()


def test_without_the_owner_key_nobody_is_enrolled(wakehub, made):
    (made / "keys/owner.key").unlink()
    found = wakehub("enroll", "alice")
    assert found.status == Exit.PERMISSION
    assert "owner.key" in found.err


def test_audit_verify(wakehub, made):
    wakehub("enroll", "alice")
    found = report(wakehub, "audit", "verify")
    assert (found["whole"], found["lines"], found["torn_bytes"]) == (True, 3, 0)
    assert [event["event"] for event in found["events"]] == ["init", "publisher", "enroll"]
    assert "3 lines" in wakehub("audit", "verify").out


def test_an_emptied_audit_log_is_not_whole(wakehub, made):
    (made / "state/audit.jsonl").write_bytes(b"")
    found = wakehub("audit", "verify")
    assert (found.status, found.out) == (Exit.FAILED, "")
    assert "line 1" in found.err


def test_audit_verify_names_the_first_broken_line(wakehub, made):
    wakehub("enroll", "alice")
    log = made / "state/audit.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + lines[1].replace(b"wakehub-publisher", b"wakehub-publishes") + lines[2])
    found = wakehub("audit", "verify")
    assert (found.status, found.out) == (Exit.FAILED, "")
    assert "line 2" in found.err
    as_json = wakehub("audit", "verify", "--json")
    assert as_json.status == Exit.FAILED
    assert json.loads(as_json.out)["broken_line"] == 2
    assert list(json.loads(as_json.out)) == documented(wakehub, "audit")


def test_a_torn_last_line_is_told_and_then_cut_off(wakehub, made):
    with (made / "state/audit.jsonl").open("ab") as log:
        log.write(b'{"n":3,')
    assert "7 bytes" in wakehub("audit", "verify").out
    found = wakehub("enroll", "alice")
    assert found.status == 0
    assert "7 bytes was cut off" in found.err
    assert json.loads(wakehub("audit", "verify", "--json").out)["torn_bytes"] == 0


def test_an_audit_log_that_is_gone(wakehub, made):
    (made / "state/audit.jsonl").unlink()
    assert wakehub("audit", "verify").status == Exit.PERMISSION
