"""``python -m wakehub``: the same as the ``wakehub`` command."""

import gc
import os
import sys


def main() -> int:
    try:
        if "WAKEHUB_TETHER" in os.environ:  # `wakehub up` started this process
            from wakehub.processes import hold_tether

            hold_tether(os.environ)
        if sys.argv[1:2] == ["hook"] and len(sys.argv) == 3:  # at every turn of every session: before anything else
            gc.disable()  # it ends before anything is worth collecting
            from wakehub.ops.hook import EVENTS, hook

            if sys.argv[2] in EVENTS:
                # At once: Python's own end takes long, and would shout about an output that is gone.
                os._exit(hook(sys.argv[2]))
        from wakehub.cli import run

        return run(sys.argv[1:])
    except KeyboardInterrupt:  # while the code was still being imported
        return 130


if __name__ == "__main__":
    sys.exit(main())
