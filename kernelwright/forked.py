"""Pure Python beside what goes on: in copies of this process, which leave its interpreter alone.

A thread that computes in Python makes every short call of the others wait for the interpreter: a certificate took five
times as long beside one. A copy has all that the process has, and hands back what it found. Only the thread that copies
lives on in it, so that its work may wait for no other thread, and may not touch a GPU.
"""

from __future__ import annotations

import gc
import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext
from typing import Generic, TypeVar

Result = TypeVar("Result")


def can_fork() -> bool:
    """Whether this system copies processes."""
    return "fork" in multiprocessing.get_all_start_methods()


class Forked(Generic[Result]):
    """Calls that copies of this process make, and what they return, by the calls' names.

    calls: what each returns has to be picklable; nothing is said of one that raises. count: how many copies share them,
    each in the order of ``calls``. A copy ends with its last call, or when nobody reads its results any more.
    """

    def __init__(self, calls: Mapping[str, Callable[[], Result]], count: int) -> None:
        context = multiprocessing.get_context("fork")
        assert isinstance(context, ForkContext)
        self._open, self._copies = list[Connection](), []
        for number in range(min(count, len(calls))):
            mine, theirs = context.Pipe(duplex=False)
            part = dict(list(calls.items())[number::count])
            self._open.append(mine)
            copy = context.Process(target=_work, args=(part, theirs, self._open), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads that the copy has no use for
                copy.start()
            theirs.close()  # or its end would not be seen
            self._copies.append(copy)

    def __iter__(self) -> Iterator[tuple[str, Result]]:
        """The results as they come, until no copy is at work."""
        while self._open:
            for connection in wait(self._open):
                assert isinstance(connection, Connection)
                try:
                    yield connection.recv()
                except (EOFError, OSError):
                    connection.close()
                    self._open.remove(connection)
        for copy in self._copies:
            copy.join()

    def stop(self) -> None:
        """End the copies. What they have sent may still be read."""
        for copy in self._copies:
            copy.kill()


def _work(calls: Mapping[str, Callable[[], Result]], connection: Connection, readers: list[Connection]) -> None:
    gc.disable()  # what is shared with the process stays shared
    for reader in readers:  # or the end of the process would not be seen
        reader.close()
    for name, call in calls.items():
        try:
            result = call()
        except Exception:
            continue
        try:
            connection.send((name, result))
        except OSError:  # nobody reads it
            return
