"""Who may take part: `init`, `enroll`, `revoke`, `close`, `delegate`, `audit`."""

import argparse
import time
from typing import TYPE_CHECKING, Any

from wakehub.cli import output, words
from wakehub.cli.instance import instance
from wakehub.cli.parser import Commands, Usage
from wakehub.errors import Exit, NoRecipient, Unsafe
from wakehub.limits import DEFAULT_DELEGATION_SECONDS, MAX_DELEGATION_SECONDS
from wakehub.visible import visible

if TYPE_CHECKING:
    from wakehub.identity.enrolment import Change

_OWNER = "\nIt needs the owner key. Exit: 0, 65 not an address or reserved, 67 never enrolled, 77 no owner key here."


def add(commands: Commands) -> None:
    commands.add(
        "init",
        "make keys, directories and config.toml",
        run_init,
        examples=("wakehub init", "WAKEHUB_HOME=/srv/agents wakehub init"),
        details="It changes nothing that is there. The first `up`, `listen` or `send` does it too.",
        json_keys="made, run, state, keys, config, hub_id",
    )
    commands.add(
        "enroll",
        "give an agent a name and a key",
        run_enroll,
        examples=("wakehub enroll alice", "wakehub enroll acme/deploy"),
        details=_OWNER,
        json_keys="agent_id, changed, generation, key_b64, key_file",
    ).add_argument("name", metavar="NAME", help="letters, digits and . _ : - in parts joined by /")
    revoke = commands.add(
        "revoke",
        "end an agent's key, or one session key",
        run_revoke,
        examples=("wakehub revoke alice", "wakehub revoke alice --key=kP9vQ2…"),
        details="Sessions of that key end within 2 s. Its mail is kept. Enrolling the name again gives it another key."
        + _OWNER,
        json_keys="agent_id, changed, generation",
    )
    revoke.add_argument("name", metavar="NAME")
    revoke.add_argument("--key", metavar="B64", help="only this session key, as `delegate` prints it; with =")
    commands.add(
        "close",
        "end a name; mail to it is refused",
        run_close,
        examples=("wakehub close alice",),
        details="Who enrolls it again later does not inherit the old mail." + _OWNER,
        json_keys="agent_id, changed, generation",
    ).add_argument("name", metavar="NAME")
    delegate = commands.add(
        "delegate",
        "write a bundle for a program without keys",
        run_delegate,
        examples=("wakehub delegate alice --ttl 12h",),
        details="For a program that must not hold the agent's own key: it can say hello to the hub, for at most "
        "12 h, and sign no message." + _OWNER,
        json_keys="agent_id, hub_id, bundle, not_before, not_after, delegate_key_b64",
    )
    delegate.add_argument("name", metavar="NAME")
    delegate.add_argument(
        "--ttl",
        type=words.duration(least=1, most=MAX_DELEGATION_SECONDS),
        default=DEFAULT_DELEGATION_SECONDS,
        metavar="TIME",
        help="how long it is good for (default 1h, at most 12h)",
    )
    commands.add(
        "audit",
        "verify the signed log of the registry",
        run_audit,
        examples=("wakehub audit verify",),
        details="Every enrolment, revocation and delegation is a line in it.\n"
        "Exit: 0 every line is proven, 1 the chain is broken (the line is named), 77 it cannot be read.",
        json_keys="whole, lines, torn_bytes, broken_line, why, events (n, at, event, agent_id, detail)",
    ).add_argument("action", choices=("verify",), help="the only thing to do with it")


def run_init(args: argparse.Namespace) -> int:
    from wakehub.client import advice
    from wakehub.client.home import elsewhere, ensure_home

    config = instance(args)
    made = ensure_home(config, explicit=True)
    where = {
        "run": str(config.paths.run),
        "state": str(config.paths.state),
        "keys": str(config.paths.keys),
        "config": str(config.paths.config_file),
        "hub_id": config.hub_id,
    }
    if args.json:
        output.say_json({"made": [line.removeprefix("made ") for line in made], **where})
        return Exit.DONE
    for line in made:
        output.say(visible(line))
    if not made:
        output.say(f"already set up: {visible(where['config'])}")
    if said := elsewhere(config):
        output.say(visible(f"note: {said}"))
    if not all(daemon.holder(config.paths) for daemon in (advice.HUB, advice.PUBLISHER)):
        absent = advice.PUBLISHER if advice.HUB.holder(config.paths) else advice.HUB
        output.say(f"next: {visible(advice.to_start(config.paths, absent))}")
    return Exit.DONE


def run_enroll(args: argparse.Namespace) -> int:
    from wakehub.identity import enrolment, keys

    config = instance(args)
    change = enrolment.enroll(config.paths, args.name, config.hub_id, time.time())
    key = change.agent.key
    assert key is not None
    file = str(config.paths.agent_key(args.name))
    report = _report(change) | {"key_b64": keys.b64(key.public), "key_file": file}
    said = "enrolled" if change.event else "was enrolled already"
    return _tell(args, change, report, f"{args.name} {said}; its key is {visible(file)}")


def run_revoke(args: argparse.Namespace) -> int:
    from wakehub.identity import enrolment, keys

    config = instance(args)
    if args.key is None:
        change = enrolment.revoke(config.paths, args.name, time.time())
        said = "its key is revoked" if change.event else "it has no key that stands"
    else:
        try:
            public = keys.unb64_key(args.key)
        except ValueError as error:
            raise Usage(
                "--key cannot be read", why=str(error), remedy="take it from wakehub audit verify --json"
            ) from None
        change = enrolment.revoke_key(config.paths, args.name, public, time.time())
        said = "that session key is revoked" if change.event else "that session key was revoked already"
    return _tell(args, change, _report(change), f"{args.name}: {said}")


def run_close(args: argparse.Namespace) -> int:
    from wakehub.identity import enrolment

    change = enrolment.close(instance(args).paths, args.name, time.time())
    said = "closed; mail to it is refused from now on" if change.event else "was closed already"
    return _tell(args, change, _report(change), f"{args.name} {said}")


def run_delegate(args: argparse.Namespace) -> int:
    from wakehub.identity import enrolment, keys
    from wakehub.identity.addresses import check_address
    from wakehub.identity.delegation import Bundle, Certificate
    from wakehub.identity.owner import read_registry

    config = instance(args)
    check_address(args.name)
    now = time.time()
    if args.name not in read_registry(config.paths).agents:
        raise NoRecipient(f"{args.name} was never enrolled", remedy=f"wakehub enroll {args.name}")
    try:
        pair = keys.load_key(config.paths.agent_key(args.name), args.name)
    except OSError as error:
        raise Unsafe(
            f"the key of {args.name} cannot be read", why=error.strerror or "", remedy=f"wakehub enroll {args.name}"
        ) from error
    bundle = Bundle.make(args.name, pair, config.hub_id, now, args.ttl)
    change = enrolment.record_delegation(config.paths, Certificate.decode(bundle.certificate), now)
    path = config.paths.bundle(args.name)
    bundle.write(path)
    report = {
        "agent_id": args.name,
        "hub_id": bundle.hub_id,
        "bundle": str(path),
        "not_before": bundle.not_before,
        "not_after": bundle.not_after,
        "delegate_key_b64": keys.b64(bundle.delegate.public),
    }
    return _tell(
        args, change, report, f"{visible(str(path))}: {args.name} at hub {bundle.hub_id} until {bundle.not_after}"
    )


def run_audit(args: argparse.Namespace) -> int:
    from wakehub.identity import stamps
    from wakehub.identity.audit import AuditLog, BrokenChain, Chain
    from wakehub.identity.owner import load_owner_public

    config = instance(args)
    shown = visible(str(config.paths.audit))
    log = AuditLog(config.paths.audit, load_owner_public(config.paths))
    found: Chain | BrokenChain
    try:
        found = log.read()
        if not found.events:
            raise BrokenChain(config.paths.audit, 1, "the line that begins it is missing")
    except BrokenChain as broken:
        found = broken
    except OSError as error:
        raise Unsafe(
            f"{shown} cannot be read", why=error.strerror or "", remedy="wakehub init, or its backup"
        ) from error
    if isinstance(found, BrokenChain):
        if args.json:
            output.say_json(
                {"whole": False, "lines": found.line - 1, "torn_bytes": 0, "broken_line": found.line, "why": found.why,
                 "events": []}
            )  # fmt: skip
        else:
            output.complain(found)
        return Exit.FAILED
    if args.json:
        events = [
            {"n": e.n, "at": stamps.mint(e.at_s), "event": e.event, "agent_id": e.agent_id, "detail": e.detail}
            for e in found.events
        ]
        output.say_json(
            {"whole": True, "lines": len(events), "torn_bytes": found.torn, "broken_line": None, "why": "",
             "events": events}
        )  # fmt: skip
    else:
        output.say(f"✓ {shown}: {len(found.events)} lines, each proven to be the owner's and in its place")
        if found.torn:
            output.say(f"! {found.torn} bytes of a line that was never finished follow; the next writer cuts them off")
    return Exit.DONE


def _report(change: "Change") -> dict[str, Any]:
    return {
        "agent_id": change.agent.agent_id,
        "changed": change.event is not None,
        "generation": change.agent.generation,
    }


def _tell(args: argparse.Namespace, change: "Change", report: dict[str, Any], line: str) -> int:
    if change.cut:
        output.warn(f"wakehub: an unfinished last line of {change.cut} bytes was cut off the audit log")
    if args.json:
        output.say_json(report)
    else:
        output.say(line)
    return Exit.DONE
