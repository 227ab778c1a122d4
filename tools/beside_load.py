"""Run a command beside other work: processes that spin, and some that copy memory, as on a machine that others use.

    python tools/beside_load.py --spinning 2 --copying 1 -- make test

The load ends with the command, with this process, or after ``--limit`` seconds, whichever comes first; the command then
goes on without it. Exits as the command does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

#: Bytes that are copied back and forth: more than any cache holds.
COPIED_BYTES = 256 << 20
#: How often a process that makes load looks whether it should go on, in seconds of its own work.
SLICE_SECONDS = 0.05


def make_load(copies: bool, parent: int, limit_seconds: float) -> None:
    """Spin, or copy memory, as long as this process's parent is ``parent``, at most ``limit_seconds``."""
    deadline = time.monotonic() + limit_seconds
    one, other = (bytearray(COPIED_BYTES), bytearray(COPIED_BYTES)) if copies else (bytearray(), bytearray())
    while os.getppid() == parent and time.monotonic() < deadline:
        until = time.monotonic() + SLICE_SECONDS
        while time.monotonic() < until:
            one[:] = other


def main() -> int:
    """Start the load, run the command, end the load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spinning", type=int, default=2, help="processes that only compute")
    parser.add_argument("--copying", type=int, default=1, help="processes that fill the memory's bandwidth")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which the load ends in any case")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    load: list[int] = []
    parent = os.getpid()
    try:
        for number in range(arguments.spinning + arguments.copying):
            child = os.fork()
            if child == 0:
                make_load(number >= arguments.spinning, parent, arguments.limit)
                os._exit(0)
            load.append(child)
        return subprocess.run(arguments.command).returncode
    finally:
        for child in load:
            os.kill(child, 9)
            os.waitpid(child, 0)


if __name__ == "__main__":
    sys.exit(main())
