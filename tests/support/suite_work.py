"""What workers do in the tests of the suite: run the problem file's text, which says the outcome."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kernelwright import device_lock


def run(task: dict[str, Any], progress: Any) -> dict[str, Any]:
    """Execute the file. It may use ``device_lock``, ``note`` (a timed line of the file's journal), ``outcome``."""
    path = Path(task["path"])

    def note(what: str) -> None:
        with open(path.parent / "journal.txt", "a") as journal:
            journal.write(f"{time.monotonic():.6f} {path.stem} {what}\n")

    outcome: dict[str, Any] = {"state": "verified", "error": None, "result": None, "page": True}
    for name in ("emitted", "page"):
        Path(task[name]).write_text(f"# {task['problem']}\n")
    with progress.stage("build"):
        exec(path.read_text(),
             {"device_lock": device_lock, "note": note, "outcome": outcome, "time": time, "task": task})
    return outcome
