"""What a newcomer runs first: `guide` and `demo`."""

import argparse

from wakehub.cli import output
from wakehub.cli.parser import Commands, Usage


def add(commands: Commands) -> None:
    guide = commands.add(
        "guide",
        "read an explanation, offline",
        run_guide,
        examples=("wakehub guide", "wakehub guide receive"),
    )
    guide.add_argument("topic", nargs="?", metavar="TOPIC", help="which one")
    commands.add(
        "demo",
        "see it all at work in a temporary place",
        run_demo,
        examples=("wakehub demo",),
        details="Two agents talk, the hub is killed, nothing is lost. It takes under 15 s, leaves nothing behind, and "
        "exits 0 only if everything it shows really happened.",
    )


def topics() -> dict[str, str]:
    """Each guide and its first line, which says what it is about, without the heading's mark."""
    from importlib import resources

    found = {}
    for item in sorted(resources.files("wakehub.guide").iterdir(), key=lambda item: item.name):
        if item.name.endswith(".md"):
            found[item.name.removesuffix(".md")] = item.read_text("utf-8").split("\n", 1)[0].lstrip("# ")
    return found


def run_guide(args: argparse.Namespace) -> int:
    from importlib import resources

    known = topics()
    if args.topic is None:
        width = max(len(name) for name in known)
        for name, title in known.items():
            output.say(f"{name:<{width}}  {title}")
        return 0
    if args.topic not in known:
        raise Usage(f"there is no guide {args.topic!r}", remedy=f"wakehub guide TOPIC, one of {', '.join(known)}")
    output.say((resources.files("wakehub.guide") / f"{args.topic}.md").read_text("utf-8"), end="")
    return 0


def run_demo(args: argparse.Namespace) -> int:
    from wakehub.ops.demo import run

    return run(output.say)
