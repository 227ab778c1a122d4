"""The work of ``judge --set`` in a process: one problem with some candidates, told one by one as they are judged."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelwright.errors import InternalError, KernelwrightError
from kernelwright.progress import Progress
from kernelwright.suite.worker import versions

#: What is said when a candidate's turn comes, and when its result stands; both with its key.
BEGUN, JUDGED = "begun", "judged"


def judge_candidates(task: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Judge ``candidates`` of the task (each with key and path) for the problem at its ``path``, under its ``seed``;
    ``profiles`` is the folder of problem profiles, if it is not the one beside the logs.

    Each is said as a part when it begins and when it is judged, so that what is finished outlives this process. The
    outcome says how it ended: ``verified``, ``error`` (a coded error of the problem), ``crashed``.
    """
    say = getattr(progress, "say_line", None)
    candidates = task["candidates"]

    def part(**told: Any) -> None:
        if say is not None:
            say(say="part", part=told)

    try:
        from kernelwright.judge.run import judge
        from kernelwright.judge.settings import JudgeSettings
        from kernelwright.judge.worker.process import MEMORY_SHARE, free_bytes
        from kernelwright.roofline.peaks import current_device

        settings = JudgeSettings(**task["settings"], seed=task["seed"], quiet=True)
        if settings.memory is None:  # others' candidates run beside ours, and no verdict may be due to theirs
            settings = replace(settings, memory=MEMORY_SHARE * free_bytes() / task["on_machine"] / 2**30)
        found = versions()
        device = current_device("cuda" if settings.place().type == "cuda" else "cpu").name

        def told(number: int, result: Any) -> None:
            part(kind=JUDGED, key=candidates[number]["key"], result=result.to_json(), device=device, versions=found)

        judge(Path(task["path"]), [Path(candidate["path"]) for candidate in candidates], settings, progress,
              begun=lambda number: part(kind=BEGUN, key=candidates[number]["key"]), told=told,
              profiles=Path(task.get("profiles") or Path(task["logs"]).parent / "profiles"))
        return {"state": "verified", "error": None, "result": None}
    except KernelwrightError as error:
        return {"state": "error", "error": error.as_json(), "result": None}
    except (Exception, SystemExit) as exception:
        traceback.print_exc()
        wrapped = InternalError.wrap(exception, ["kernelwright", "judge", task["path"]], Path(task["logs"]))
        return {"state": "crashed", "error": wrapped.as_json(), "result": None}
