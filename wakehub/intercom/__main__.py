"""A hub of the mesh as a process of its own: ``python -m wakehub.intercom BASE CHANNEL`` (intercom.md §5).

This is what a client starts in the background; people say `wakehub intercom daemon`.
"""

import sys
from pathlib import Path

from wakehub.errors import Exit, WakehubError
from wakehub.intercom import daemon


def main(words: list[str]) -> int:
    """Run the hub of the channel that `words` name; the exit status."""
    if len(words) != 2:
        print("usage: python -m wakehub.intercom BASE CHANNEL", file=sys.stderr)
        return Exit.USAGE
    try:
        return daemon.run(Path(words[0]), words[1])
    except WakehubError as error:
        print(f"wakehub intercom: {error}", file=sys.stderr)
        return error.exit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
