"""Who waits for a submission to change, across threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Changes:
    """Tells tasks of event loops that a submission has changed, from whatever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}

    @contextmanager
    def watched(self, name: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever ``name`` changes while the block runs."""
        mine = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.setdefault(name, set()).add(mine)
        try:
            yield mine[1]
        finally:
            with self._lock:
                self._waiting[name].discard(mine)
                if not self._waiting[name]:
                    del self._waiting[name]

    def tell(self, name: str) -> None:
        """Say that ``name`` has changed."""
        with self._lock:
            found = list(self._waiting.get(name, ()))
        for loop, event in found:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(event.set)
