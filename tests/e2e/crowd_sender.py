"""One of a crowd: `python crowd_sender.py NAME TO FIRST COUNT` sends the messages FIRST..COUNT-1, one after another.

It says "ready", waits for a line, and then prints the number of each message that was stored.
"""

import os
import sys

from wakehub import config
from wakehub.client.receipts import SendRequest
from wakehub.client.send import send


def run(name: str, to: str, first: int, count: int) -> None:
    instance = config.load()
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(first, count):
        sent = send(instance, SendRequest(to, f"{name} {number}".encode(), name), environ=os.environ)
        assert len(sent.row_ids) == 1
        print(number, flush=True)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
