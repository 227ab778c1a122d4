"""The work of ``judge --set`` in a process: one problem with some candidates, told one by one as they are judged.

On a GPU that several processes share, a process has nothing of the device while its candidates are built. Then it
waits for room in the device's memory, as much as the problem is expected to need (``rooms.py``). Whoever lacks device
memory all the same is told nothing: it is judged again when no other process has room on the device, and what is found
there holds.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from kernelwright import device_lock
from kernelwright.errors import InternalError, KernelwrightError, NotEnoughMemory
from kernelwright.forked import Forked
from kernelwright.problem.memory import is_out_of_memory, release, says_out_of_device_memory, shortages
from kernelwright.progress import Progress
from kernelwright.suite.worker import versions

#: What is said when a candidate's turn comes, when its extensions are built, and when its result stands; with its key.
BEGUN, BUILT, JUDGED = "begun", "built", "judged"
#: A problem's judge and its candidate's process have the model's memory this many times: the model, its float64 copy,
#: which is twice as large, what of both is kept, and the candidate's own, with what allocators leave unused.
TIMES = 6
#: What two processes have of a device before they have any tensor: contexts, kernels, workspaces of libraries.
LEAST_BYTES = 2 << 30
#: The share of a device that a problem gets of which nobody can say beforehand what it needs.
UNKNOWN_SHARE = 1 / 4


def judge_candidates(task: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Judge ``candidates`` of the task (each with key and path) for the problem at its ``path``, under its ``seed``;
    ``profiles`` is the folder of problem profiles, if it is not the one beside the logs.

    Each is said as a part when it begins and when it is judged, so that what is finished outlives this process. The
    outcome says how it ended: ``verified``, ``error`` (a coded error of the problem), ``crashed``.
    """
    say = getattr(progress, "say_line", None)

    def part(**told: Any) -> None:
        if say is not None:
            say(say="part", part=told)

    try:
        from kernelwright.judge.settings import JudgeSettings
        from kernelwright.judge.worker.process import MEMORY_SHARE, free_bytes

        settings = JudgeSettings(**task["settings"], seed=task["seed"], quiet=True)
        if settings.memory is None:  # others' candidates run beside ours, and no verdict may be due to theirs
            settings = replace(settings, memory=MEMORY_SHARE * free_bytes() / task["on_machine"] / 2**30)
        judging = _Judging(task, settings, progress, part)
        if settings.place().type == "cpu":
            judging.judge(range(len(task["candidates"])), alone=True)  # the machine's memory is the scheduler's matter
        else:
            judging.on_shared_device()
        return {"state": "verified", "error": None, "result": None}
    except KernelwrightError as error:
        return {"state": "error", "error": error.as_json(), "result": None}
    except (Exception, SystemExit) as exception:
        traceback.print_exc()
        wrapped = InternalError.wrap(exception, ["kernelwright", "judge", task["path"]], Path(task["logs"]))
        return {"state": "crashed", "error": wrapped.as_json(), "result": None}


class _ProfileShort(Exception):
    """Memory ran out while the problem's profile was made, which would say too little to every candidate."""


@dataclass(slots=True)
class _Judging:
    """The candidates of one task. ``part`` says something of one of them."""

    task: dict[str, Any]
    settings: Any
    progress: Progress
    part: Callable[..., None]
    paths: list[Path] = field(init=False)

    def __post_init__(self) -> None:
        self.paths = [Path(candidate["path"]) for candidate in self.task["candidates"]]

    def on_shared_device(self) -> None:
        """Judge all candidates on a device that other processes use, too."""
        self.build()
        total = device_bytes(self.settings.place())
        device_lock.room_on_device(self.needed(total), total)
        short = self.judge(range(len(self.paths)), alone=False)
        if short:
            release()
            self.progress.say(f"memory of the device ran out for {len(short)} candidates, which are judged alone on it")
            device_lock.room_on_device(None, total)
            self.judge(short, alone=True)

    def build(self) -> None:
        """Have the candidates' extensions built. What goes wrong there shows when they are judged."""
        from kernelwright.judge.check.builds import prebuild

        with self.progress.stage("build"):
            for candidate, path in zip(self.task["candidates"], self.paths, strict=True):
                prebuild(path, path.read_text(encoding="utf-8-sig", errors="replace"), self.settings.place(),
                         self.settings.limits())
                self.part(kind=BUILT, key=candidate["key"])

    def needed(self, total: int) -> int:
        """Bytes of the device that judging the problem is expected to need. The problem's file runs in a copy of this
        process for that: it may register operators, say, which goes once."""
        from kernelwright.problem.needs import most_bytes

        said = partial(most_bytes, Path(self.task["path"]), tiny=self.settings.tiny, model=self.settings.model)
        most = dict(Forked({"most": said}, 1)).get("most")
        return int(UNKNOWN_SHARE * total) if most is None else TIMES * most + LEAST_BYTES

    def judge(self, numbers: Sequence[int], *, alone: bool) -> list[int]:
        """Judge the candidates at ``numbers``; which of them are to be judged again, alone on the device: those for
        which its memory ran out. Where they are ``alone`` already, none is."""
        from kernelwright.judge.run import judge
        from kernelwright.roofline.peaks import current_device

        keys = [self.task["candidates"][number]["key"] for number in numbers]
        found, first = versions(), shortages()
        before: dict[int, int] = {}
        short: list[int] = []
        done: set[int] = set()

        def begun(place: int) -> None:
            if not alone and not before and shortages() > first:
                raise _ProfileShort
            before[place] = shortages()
            self.part(kind=BEGUN, key=keys[place])

        def told(place: int, result: Any) -> None:
            done.add(place)
            if not alone and (shortages() > before[place] or lacks_device_memory(result)):
                short.append(numbers[place])
                return
            device = current_device("cuda" if self.settings.place().type == "cuda" else "cpu").name
            self.part(kind=JUDGED, key=keys[place], result=result.to_json(), device=device, versions=found,
                      alone=alone)

        try:
            judge(Path(self.task["path"]), [self.paths[number] for number in numbers], self.settings, self.progress,
                  begun=begun, told=told,
                  profiles=Path(self.task.get("profiles") or Path(self.task["logs"]).parent / "profiles"))
        except Exception as error:
            if alone or not (isinstance(error, (_ProfileShort, NotEnoughMemory)) or is_out_of_memory(error)):
                raise
            short += [number for place, number in enumerate(numbers) if place not in done]
        return sorted(short)


def lacks_device_memory(result: Any) -> bool:
    """Whether a result says, or may say, no more than that the device's memory ran out: by the judge's own verdicts and
    those on memory. What else is due to that, `shortages` shows."""
    from kernelwright.judge.verdicts import VERDICTS

    own = VERDICTS[result.verdict].family == "JUDGE" or result.verdict == "CRASH-MEMORY"
    return own and says_out_of_device_memory(f"{result.reason} {' '.join(f.sentence for f in result.findings)}")


def device_bytes(device: Any) -> int:
    """Bytes of memory that a GPU has. No context is made for that."""
    import torch

    return torch.cuda.get_device_properties(device).total_memory
