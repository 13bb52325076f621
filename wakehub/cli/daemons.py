"""The processes that stay: `serve` (the hub), `publish` (the owner's side) and `up` (both, supervised)."""

import argparse

from wakehub.cli import words
from wakehub.cli.instance import instance
from wakehub.cli.parser import Commands
from wakehub.errors import Misconfigured
from wakehub.limits import HubLimits

_EXITS = (
    "It runs in the foreground until SIGTERM or SIGINT and then drains; a second signal ends it at once.\n"
    "Exit: 0 after a signal, 73 cannot bind, 75 another one runs, 77 something is unsafe, 78 a setting cannot work."
)


def add(commands: Commands) -> None:
    serve = commands.add(
        "serve",
        "run the hub",
        run_serve,
        examples=("wakehub serve", "wakehub serve --socket /run/user/1000/wakehub/hub.sock --max-connections 64"),
        details="The hub carries wakes between connected agents and holds no message. It reads owner.pub and the "
        "signed allowlist, and no private key.\n" + _EXITS,
    )
    serve.add_argument("--stats-socket", type=words.path, metavar="PATH", help="where `wakehub metrics` reads")
    serve.add_argument("--allowlist", type=words.path, metavar="PATH", help="the signed allowlist")
    serve.add_argument("--owner-pub", type=words.path, metavar="PATH", help="the owner's public key")
    serve.add_argument(
        "--max-connections",
        type=words.whole_number(least=1),
        metavar="N",
        help=f"connection ceiling (default {HubLimits().max_connections})",
    )
    commands.add(
        "publish",
        "run the publisher",
        run_publish,
        examples=("wakehub publish",),
        details="It signs the allowlist, wakes the recipients of new messages, and holds the owner key, "
        "which the hub never sees.\n" + _EXITS,
    )
    commands.add(
        "up",
        "run hub and publisher together",
        run_up,
        examples=("wakehub up",),
        details="Either is started again when it dies. On a fresh machine it first does what `wakehub init` does.\n"
        "A listen or send that finds nothing running starts it in the background; it ends there 15 min after the last "
        "listener left.\n" + _EXITS,
    )


def run_serve(args: argparse.Namespace) -> int:
    from wakehub.server.serve import run

    config = instance(args)
    if args.max_connections is not None:
        try:
            config = config.changed(limits=config.limits._replace(max_connections=args.max_connections).checked())
        except ValueError as error:
            raise Misconfigured("--max-connections cannot work", why=str(error), remedy="give more") from error
    return run(config)


def run_publish(args: argparse.Namespace) -> int:
    from wakehub.publisher.run import run

    return run(instance(args))


def run_up(args: argparse.Namespace) -> int:
    from wakehub.ops.supervise import run_up as supervise

    return supervise(instance(args))
