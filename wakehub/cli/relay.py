"""Messages to agents that do not wait themselves: `relay`, `claim`, and the flags that choose a backend."""

import argparse
import os
from typing import TYPE_CHECKING

from wakehub.cli import output, words
from wakehub.cli.instance import call, instance
from wakehub.cli.parser import Commands, Parser
from wakehub.errors import WakehubError
from wakehub.limits import MAX_BACKSTOP_SECONDS

if TYPE_CHECKING:
    from wakehub.config import Config
    from wakehub.relay.options import To

POLL_HELP = f"look at least this often without a wake (at most {MAX_BACKSTOP_SECONDS}s)"


def add(commands: Commands) -> None:
    _add_relay(commands)
    claim = commands.add(
        "claim",
        "make this Claude Code session the one that NS/claude means",
        run_claim,
        examples=("wakehub claim --namespace acme/", "wakehub claim"),
        details=(
            "To be run inside the session. Without a claim messages for the shared address NS/claude go to the "
            "interactive session that was started last. A later claim takes its place; it ends with the session. The "
            "messages are handed on by `wakehub relay --namespace NS/ --backend claude`; for plain names by `wakehub "
            "listen --as claude --backend claude`. If nothing does that, it is said.\n"
            "Exit: 0, 65 not a namespace, 69 not in a session that runs."
        ),
        json_keys="address, session, session_id, pid",
    )
    claim.add_argument("--namespace", metavar="NS/", help="the workspace (default: that of plain names)")


def _add_relay(commands: Commands) -> None:
    relay = commands.add(
        "relay",
        "hand the messages of a whole namespace to its agents",
        run_relay,
        examples=(
            "wakehub relay --namespace acme/ --backend claude",
            "wakehub relay --namespace acme/ --backend claude --opt agents=review,deploy",
            "wakehub relay --namespace acme/ --exec ./on-message",
        ),
        details=(
            "It stays until it is stopped, and takes its namespace over from one that was started before. Messages of "
            "an agent that is not there stay unread; it gets them when it comes. A process that listens under a name "
            "in the namespace has its messages for itself.\n"
            "Exit: 0 stopped, 2 usage, 74 no session for a long time, 75 the namespace was taken over."
        ),
    )
    relay.add_argument("--namespace", action="append", required=True, metavar="NS/", help="everything under NS/")
    relay.add_argument("--from", dest="sender", metavar="ADDR", help="take only messages from this address")
    relay.add_argument(
        "--poll", type=words.duration(least=1, most=MAX_BACKSTOP_SECONDS), metavar="TIME", help=POLL_HELP
    )
    add_backend_flags(relay)


def add_backend_flags(parser: Parser) -> None:
    """The flags that say where messages go, in place of standard output."""
    group = parser.add_argument_group("where messages go")
    group.add_argument("--backend", metavar="NAME", help="claude: into Claude Code sessions; file: to a file's end")
    group.add_argument(
        "--opt",
        dest="options",
        action="append",
        default=[],
        metavar="K=V",
        help="of claude: session, agents, exit_after; of file: path, format",
    )
    group.add_argument(
        "--exec",
        dest="hook",
        nargs=argparse.REMAINDER,
        metavar="CMD",
        help="each to this program, as JSON on its standard input; the last flag",
    )


def destination(args: argparse.Namespace, *, elsewhere: bool = False) -> "To | None":
    """Where the flags send messages, as `choice.parse`; raises `WakehubError` (2) for what cannot be used."""
    from wakehub.relay.backends import choice

    return choice.parse(args.backend, args.options, args.hook, elsewhere=elsewhere)


def run_relay(args: argparse.Namespace) -> int:
    from wakehub.relay import loop
    from wakehub.relay.backends.choice import NAMES, Unusable
    from wakehub.relay.options import ListenOptions

    to = destination(args, elsewhere=True)
    if to is None:
        raise Unusable(
            "a relay needs to know where messages go",
            remedy=f"--backend {NAMES[-1]}, or --exec CMD; to print them: wakehub listen --namespace NS/",
        )
    options = ListenOptions(
        namespaces=tuple(args.namespace),
        sender=args.sender,
        poll_s=args.poll,
        to=to,
        session=f"relay {' '.join(args.namespace)}",
        call=call(args),
    )
    return loop.run(instance(args), options)


def run_claim(args: argparse.Namespace) -> int:
    from wakehub.client.home import ensure_home
    from wakehub.relay.backends.claude import claims, directory

    config = instance(args)
    ensure_home(config)
    made = claims.claim(config.paths, args.namespace, directory(os.environ), os.environ)
    session = made.session
    if args.json:
        output.say_json(
            {
                "address": made.address,
                "session": session.name,
                "session_id": session.session_id,
                "pid": session.pid,
            }
        )
    else:
        output.say(f"{made.address} is {session} until it ends")
    if _is_unattended(config, made.address):
        line = f"relay --namespace {args.namespace}" if args.namespace else f"listen --as {made.address}"
        output.warn(
            f"wakehub: nobody hands on what is sent to {made.address}; next, and to be left running: "
            f"{call(args)} {line} --backend claude"
        )
    return 0


def _is_unattended(config: "Config", address: str) -> bool:
    """Whether no process listens for `address`; a record that cannot be looked at is no trouble of a claim."""
    from wakehub.inbox.clock import Now
    from wakehub.inbox.refusals import NoRecord
    from wakehub.inbox.sqlite import SqliteInbox

    try:
        with SqliteInbox.open(config.paths.record, create=False) as inbox:
            return inbox.leases.resolve(address, Now.read()) is None
    except NoRecord:
        return True
    except WakehubError:
        return False
