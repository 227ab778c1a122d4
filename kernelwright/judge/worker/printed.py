"""What a worker prints: read all the time, so that it never waits for the judge, and only its end kept."""

from __future__ import annotations

import os
import threading
from collections import deque


class Printed:
    """What a worker prints: drained by a thread, its end kept. ``flooded`` says that it was too much."""

    def __init__(self, keep: int, flood: int) -> None:
        self._read, self.descriptor = os.pipe()
        self._keep, self._flood = keep, flood
        self._pieces: deque[bytes] = deque()
        self._kept = self._total = 0
        self.flooded = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, daemon=True)

    def begin(self) -> None:
        """The worker has its end: the judge's copy of it is closed, and draining starts."""
        os.close(self.descriptor)
        self.descriptor = -1
        self._thread.start()

    def text(self) -> str:
        """What is kept, as text."""
        with self._lock:
            return b"".join(self._pieces).decode(errors="replace")

    def drain(self) -> None:
        """Wait until all that was printed is read; the writers have ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout=2.0)

    def close(self) -> None:
        """Let go of the pipe."""
        self.drain()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            os.close(self._read)
            self.descriptor = -1

    def _drain(self) -> None:
        while piece := os.read(self._read, 1 << 16):
            with self._lock:
                self._total += len(piece)
                self.flooded = self._total > self._flood
                self._pieces.append(piece)
                self._kept += len(piece)
                while self._kept - len(self._pieces[0]) >= self._keep:
                    self._kept -= len(self._pieces.popleft())
        os.close(self._read)
