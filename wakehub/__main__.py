"""``python -m wakehub``: the same as the ``wakehub`` command."""

import sys


def main() -> int:
    from wakehub.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
