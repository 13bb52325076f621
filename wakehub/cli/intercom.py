"""The channel mesh as words: `wakehub intercom` and the commands behind it (intercom.md §6, §7)."""

import argparse

from wakehub.cli import mesh, words
from wakehub.cli.mesh import DEFAULT_CHANNEL
from wakehub.cli.parser import Commands, Parser, Usage, add_instance_flags

_EXITS = (
    "Exit: 0; 3 nothing there; 4 neither a hub nor the spool took it; 65 an id, channel or text that is refused; "
    "73 a file cannot be written; 75 another process is connected under that id; 77 a directory or file that is not "
    "safe."
)
_SESSION_HELP = "act under this id, in place of the one that this project has"


def add(commands: Commands) -> None:
    parser = commands.add(
        "intercom",
        "talk over the NDJSON channel mesh, and bridge it to the record",
        run_nothing,
        examples=(
            "wakehub intercom init",
            "wakehub intercom send --to nova --text 'the tests pass'",
            "wakehub intercom poll --wait 30",
            "wakehub intercom bridge --channel dev --session rowan --as alice",
        ),
        details="A hub for each channel on a Unix socket, JSON Lines, spool files: works with the clients and hubs of "
        "the existing tool, in either direction. `wakehub intercom COMMAND --help` shows a command, `wakehub guide "
        "intercom` what differs and why.",
    )
    add_mesh_flags(parser)
    inner = Commands(parser, dest="intercom_command", flags=add_mesh_flags)
    _add_init(inner)
    _add_send(inner)
    _add_reading(inner)
    _add_looking(inner)
    _add_bridge(inner)


def add_mesh_flags(parser: Parser) -> None:
    """The flags that each of these commands has. Absent means absent, so that they may stand on either side."""
    group = parser.add_argument_group("which channel")
    for flag, dest, kind, metavar, text in (
        ("--dir", "mesh_dir", words.path, "DIR", "where the channels are (default: $AGY_IPC_DIR, else /tmp/agy-ipc)"),
        ("--channel", "channel", str, "NAME", f"default: {DEFAULT_CHANNEL}"),
        ("--project-dir", "project_dir", words.path, "DIR", "whose identity to use (default: this directory)"),
    ):
        group.add_argument(flag, dest=dest, type=kind, metavar=metavar, help=text, default=argparse.SUPPRESS)


def _add_init(commands: Commands) -> None:
    init = commands.add(
        "init",
        "choose this project's id on the channel, or show it",
        mesh.run_init,
        examples=("wakehub intercom init", "wakehub intercom init --channel dev --force-new"),
        details="The id is written to .intercom/session.json and stays: each command in this project goes by it. No "
        "command needs this one first; it shows where one stands.\n"
        "Prints: session, channel, project, new, replaced, active, active_by_me, unread, dropped.\n" + _EXITS,
    )
    init.add_argument("--force-new", action="store_true", help="give the id up and choose another one")
    _add_fresh(init)


def _add_fresh(parser: Parser) -> None:
    parser.add_argument("--fresh", action="store_true", help="drop what is unread, and say how much it was")
    parser.add_argument("--compat", action="store_true", help="the existing tool's defaults: --fresh is on")


def _add_send(commands: Commands) -> None:
    send = commands.add(
        "send",
        "send a chat to one id, or to all",
        mesh.run_send,
        examples=(
            "wakehub intercom send --to nova --text 'the tests pass'",
            "echo 'in full, `backticks` too' | wakehub intercom send --to nova --stdin",
            """wakehub intercom send --to '*' --json-payload '{"text": "merged", "sha": "1f0c"}'""",
        ),
        details="It works while this project's own listener runs.\n"
        "Prints: status (sent: one who is connected has it; spooled_offline: it waits for them; fallback_spooled: no "
        "hub could be reached, it waits in the spool; error: nobody has it) and envelope.\n" + _EXITS,
    )
    send.add_argument("--to", required=True, metavar="ID", help="who gets it; * or all for everyone who is connected")
    text = send.add_mutually_exclusive_group()
    text.add_argument("--text", metavar="TEXT", help="the text of the payload")
    text.add_argument("--stdin", action="store_true", help="read the text from standard input")
    send.add_argument("--json-payload", metavar="J", help="the payload as a JSON object; a text is added to it")
    send.add_argument("--session", metavar="ID", help=_SESSION_HELP)
    send.add_argument("--reply-to", metavar="MSG", help="the id of the message that this one answers")


def _add_reading(commands: Commands) -> None:
    poll = commands.add(
        "poll",
        "take what is unread, and end",
        mesh.run_poll,
        examples=("wakehub intercom poll", "wakehub intercom poll --wait 60", "wakehub intercom poll --peek"),
        details="Prints: count, messages. What was printed is not printed again; two of them at once share it out.\n"
        "Some 1 MiB is printed at once; that there is more is said on standard error.\n" + _EXITS,
    )
    poll.add_argument(
        "--wait", type=words.duration(least=0), default=0, metavar="TIME", help="for the first one to come"
    )
    poll.add_argument("--peek", action="store_true", help="leave it unread")
    poll.add_argument("--session", metavar="ID", help=_SESSION_HELP)
    listen = commands.add(
        "listen",
        "stay connected and print each message as it comes",
        mesh.run_listen,
        examples=("wakehub intercom listen", "wakehub intercom listen --format json --session rowan"),
        details="What is unread comes first. A hub that dies is started again, and nothing is lost or printed twice.\n"
        + _EXITS,
    )
    listen.add_argument("--session", metavar="ID", help=_SESSION_HELP)
    listen.add_argument(
        "--format", choices=("line", "json"), help="default: line on a terminal, json (an envelope a line) otherwise"
    )
    _add_fresh(listen)


def _add_looking(commands: Commands) -> None:
    commands.add(
        "peers",
        "show who is connected",
        mesh.run_peers,
        examples=("wakehub intercom peers", "wakehub intercom peers --channel dev"),
        details="Prints: channel, hub (live or none), hub_pid, active_sessions, updated_at.\n" + _EXITS,
    )
    cleanup = commands.add(
        "cleanup",
        "remove what a hub that died left behind",
        mesh.run_cleanup,
        examples=(
            "wakehub intercom cleanup",
            "wakehub intercom cleanup --stale",
            "wakehub intercom cleanup --forget rowan@bridge",
        ),
        details="A hub that runs is never touched, and unread mail is never removed but for that of a reader to "
        "--forget.\n"
        "Prints: channel, hub (live or none), removed, kept, forgotten, readers.\n" + _EXITS,
    )
    cleanup.add_argument(
        "--stale", action="store_true", help="also mailboxes with nothing unread that nobody is behind"
    )
    cleanup.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="ID@READER",
        help="give up the place of a bridge (ID@bridge) that will not come back, with what it has not read",
    )
    commands.add(
        "daemon",
        "run the channel's hub in the foreground",
        mesh.run_daemon,
        examples=("wakehub intercom daemon --channel dev",),
        details="Each command that needs one starts it in the background; this is for supervisors. Where one runs, "
        "it ends with 0. It ends by itself 15 min after the last client left.",
    )


def _add_bridge(commands: Commands) -> None:
    bridge = commands.add(
        "bridge",
        "carry mail between a session on the mesh and an agent here",
        mesh.run_bridge,
        examples=(
            "wakehub intercom bridge --channel dev --session rowan --as alice",
            "wakehub intercom bridge --channel dev --session rowan --as alice --session wren --as bob",
        ),
        details="What is spooled for the session becomes a message to the agent, once, from intercom:CHANNEL/ID, shown "
        "as unverified: nobody on the mesh proves who they are. What the agent sends there goes out as a chat.\n"
        "One bridge for a channel; it may carry several agents. The session's own tools go on working beside it.\n"
        "Exit: 0 after a signal, 65 an id, name or channel that is refused, 67 the agent was closed or is not known, "
        "75 another process bridges the channel, 77 a directory or file that is not safe.",
    )
    bridge.add_argument("--session", action="append", required=True, metavar="ID", help="the session on the mesh")
    bridge.add_argument("--as", dest="own_names", action="append", required=True, metavar="NAME", help="the agent here")
    bridge.add_argument("--take-over", action="store_true", help="take the channel from the bridge that has it")
    add_instance_flags(bridge)


def run_nothing(args: argparse.Namespace) -> int:
    raise Usage("no command given", remedy="wakehub intercom --help")
