"""What is compiled of contractions before they are measured: found while a first file is built and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from threading import Condition, Thread

from kernelwright.forked import Forked
from kernelwright.tune.contractions import Candidates, Plans


class TextsAhead(Iterator[tuple[str, str]]):
    """The texts of contractions' candidates and the names of their launchers, as copies of this process find them: of
    those that are there the most promising candidate of each contraction first, then the second ones.

    calls: those of :func:`kernelwright.tune.contractions.to_try`. plans: takes the candidates. count: of copies.
    """

    def __init__(self, calls: Mapping[str, Callable[[], Candidates]], plans: Plans, count: int) -> None:
        self._places = {key: place for place, key in enumerate(calls)}
        self._plans, self._forked = plans, Forked(calls, count)
        self._waiting, self._seen = list[tuple[int, int, str, str]](), set[str]()
        self._changed, self._ended = Condition(), False
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            for key, found in self._forked:
                self._plans.candidates[key] = found
                with self._changed:
                    for rank, (text, name) in enumerate(found.texts):
                        if name not in self._seen:
                            self._seen.add(name)
                            heappush(self._waiting, (rank, self._places[key], name, text))
                    self._changed.notify_all()
        finally:  # whoever waits for a text is told, whatever became of it
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def __next__(self) -> tuple[str, str]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting:
                raise StopIteration
            _, _, name, text = heappop(self._waiting)
        return text, name

    def stop(self) -> None:
        """Find no more of them."""
        self._forked.stop()
        self._reader.join()
