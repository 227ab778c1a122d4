"""A service in the tests' own process, on a free port, whose candidates say their own verdicts (`suite_work.judge`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clocks import PATIENCE

from kernelwright.serve.client import Client
from kernelwright.serve.command import Running
from kernelwright.serve.settings import ServeSettings

#: A problem's text for `suite_work.judge`.
PROBLEM = "m = 1\n"
TOKENS = {"ann": "a-token-of-ann-0123", "bob": "a-token-of-bob-4567"}


@contextmanager
def serving(folder: Path, **changes: Any) -> Iterator[Running]:
    """A service whose work is `suite_work.judge`, until the block ends."""
    given: dict[str, Any] = {"port": 0, "folder": folder, "devices": ("cpu",), "workers": 2,
                             "work": "suite_work:judge", **changes}
    service = Running(ServeSettings(**given))
    thread = threading.Thread(target=service.serve)
    thread.start()
    try:
        until(lambda: service.server.started)
        yield service
    finally:
        service.stop()
        thread.join()


def client_of(service: Running, name: str = "", **options: Any) -> Client:
    """A client with the token of ``name``."""
    return Client(service.address, TOKENS.get(name, name), timeout=PATIENCE, **options)


def write_tokens(file: Path) -> Path:
    """A file of tokens for `TOKENS`."""
    file.write_text("# who\n" + "".join(f"{name} {token}\n" for name, token in TOKENS.items()))
    return file


def noting(journal: Path, name: str, more: str = "") -> str:
    """A candidate's text that writes its name to a journal when it begins, and does ``more``."""
    return f"with open({str(journal)!r}, 'a') as journal:\n    journal.write({name!r} + chr(10))\n{more}\n"


def waiting(file: Path) -> str:
    """Text that waits until a file is there."""
    return f"import os, time\nwhile not os.path.exists({str(file)!r}):\n    time.sleep(0.02)\n"


def begun(journal: Path) -> list[str]:
    """The names that a journal has, in their order."""
    return journal.read_text().split() if journal.exists() else []


def until(holds: Callable[[], Any]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
