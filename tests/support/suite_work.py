"""What workers do in the tests of the suite: run the problem file's text, which says the outcome."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kernelwright import device_lock


def judge(task: dict[str, Any], progress: Any) -> dict[str, Any]:
    """What `kernelwright.suite.judge_worker.judge_candidates` does, with texts that say their verdict: each candidate's
    is executed, and may do whatever it likes to this process. The journal has a line for each that begins."""
    if "broken" in Path(task["path"]).read_text():
        return {"state": "error", "error": {"code": "KW103", "error": "FileSyntaxError", "what": "It is broken.",
                                            "fix": "Mend it."}, "result": None}
    if "fits alone" in Path(task["path"]).read_text() and task["on_machine"] > 1:
        return {"state": "crashed", "result": None, "error": {
            "code": "KW999", "error": "InternalError", "what": "OutOfMemoryError: CUDA out of memory.", "fix": ""}}
    for candidate in task["candidates"]:
        path = Path(candidate["path"])
        progress.say_line(say="part", part={"kind": "begun", "key": candidate["key"]})
        with open(Path(task["path"]).parent / "journal.txt", "a") as journal:
            journal.write(f"{path.stem}\n")
        names: dict[str, Any] = {"task": task, "progress": progress, "verdict": "OK"}
        exec(path.read_text(), names)
        result = {"file": str(path), "verdict": names["verdict"], "reason": path.stem, "timing": None}
        progress.say_line(say="part", part={"kind": "judged", "key": candidate["key"], "result": result,
                                            "device": "a device", "versions": {"torch": "2"}})
    return {"state": "verified", "error": None, "result": None}


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
