"""The work of one problem of ``bench --propose``, in the problem's own process."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelwright.errors import InternalError, KernelwrightError, RunDiffers, RunMissing
from kernelwright.progress import Progress
from kernelwright.suite.parcels import run_folder
from kernelwright.suite.proposals import answers_of


def propose_problem(task: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Judge candidates for one problem file: the outcome's state, error and result, as plain data.

    ``task``: as of ``suite.worker.optimize_problem``; its settings have ``propose``, the options of the file. Answers
    that exist stand in a folder, or a file, of the problem's name below the one that ``from`` names.
    """
    from kernelwright.propose.run import propose

    emitted = Path(task["emitted"])
    try:
        settings = settings_of(task["settings"], task["problem"], emitted)
        result = _run(propose, task["path"], settings, progress)
        document = slim(result.to_json())
        state = "verified" if result.written is not None else "failed"
        error = None if result.written is not None else {
            "code": "", "error": "NothingWritten", "what": result.why, "exit_status": result.exit_status}
        return {"state": state, "error": error, "result": None, "propose": document, "short_of_memory": False}
    except KernelwrightError as error:
        return {"state": "error", "error": error.as_json(), "result": None, "short_of_memory": False}
    except (Exception, SystemExit) as exception:
        traceback.print_exc()
        command = ["kernelwright", "propose", task["path"]]
        wrapped = (exception if isinstance(exception, InternalError)
                   else InternalError.wrap(exception, command, Path(task["logs"])))
        return {"state": "crashed", "error": wrapped.as_json(), "result": None, "short_of_memory": False}


def _run(propose: Any, path: str, settings: Any, progress: Progress) -> Any:
    """The run, gone on with where it was ended before it was finished (by a limit, say): its answers were paid for."""
    assert settings.record is not None
    settings.record.parent.mkdir(parents=True, exist_ok=True)
    if (settings.record / "run.json").exists() and not (settings.record / "result.json").exists():
        try:
            return propose(path, replace(settings, resume=True), progress)
        except (RunDiffers, RunMissing):
            pass
    return propose(path, settings, progress)


def settings_of(given: dict[str, Any], problem: str, emitted: Path) -> Any:
    """The settings of one problem's run: the file's options, and those of ``bench`` that ``propose`` has as well."""
    from kernelwright.propose.settings import ProposeSettings

    options = dict(given["propose"])
    below = options.pop("from", None)
    if below is not None:
        options["answers"] = (answers_of(Path(below), problem),)
    if "prices" in options:
        options["prices"] = Path(options["prices"])
    kept = {name: given[name] for name in ("target", "precision", "effort", "threads", "tiny", "seed") if name in given}
    record = run_folder(emitted.stem.removesuffix("_new"), emitted.parent)
    return ProposeSettings(**kept, **options, class_name=given.get("model"), output=emitted, force=True, record=record)


def slim(document: dict[str, Any]) -> dict[str, Any]:
    """What a table needs of a run's document; the whole one stands in the run's folder."""
    from kernelwright.propose.standing import speed

    candidates = [{"name": c["name"], "round": c["round"], "form": c["form"],
                   "verdict": (c["verdict"] or {}).get("verdict", ""), "speed": speed(c["verdict"] or {})}
                  for c in document["candidates"]]
    ours = document["ours"]
    return {"candidates": candidates, "chosen": document["chosen"], "why": document["why"],
            "ours": ours and {"verdict": ours["verdict"], "speed": speed(ours)}, "rounds": document["rounds"],
            "spent": document["spent"]}
