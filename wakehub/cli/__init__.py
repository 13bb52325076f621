"""The command line: parses words, calls the layer that does the work, prints, and exits with a status."""


def run(argv: list[str]) -> int:
    """Run one command and return its exit status (`wakehub.errors.Exit`)."""
    raise SystemExit(2)
