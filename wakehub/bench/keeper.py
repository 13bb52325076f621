"""The process that clears up behind a benchmark, however that ends, its own kill -9 included.

    python -m wakehub.bench.keeper DIRECTORY

It leads the process group in which everything the benchmark starts is put before it runs. Its standard input is a
pipe whose other end only the benchmark holds: when that closes, the whole group is killed and DIRECTORY removed. Its
standard output closes when that is done.
"""

import os
import shutil
import signal
import sys
import time
from typing import Final

_PATIENCE_S: Final = 10.0
_AGAIN_S: Final = 0.01


def main(directory: str) -> None:
    """Say that it watches, wait for the end of the benchmark, and clear up."""
    # The kernel sends it to a group that lost its last parent outside while some of it is stopped: just our case.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.write(1, b"watching\n")
    while os.read(0, 1):
        pass
    group = os.getpid()
    if os.fork():
        signal.pause()  # killed with its group
    os.setpgid(0, 0)  # or the kill would end what has to remove the directory
    os.killpg(group, signal.SIGKILL)
    until = time.monotonic() + _PATIENCE_S
    while os.path.lexists(directory) and time.monotonic() < until:  # a process that dies may still be writing there
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(_AGAIN_S)


if __name__ == "__main__":
    main(sys.argv[1])
