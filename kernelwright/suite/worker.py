"""The process of one problem: imports everything ahead, waits for its problem, does it, says the outcome, and ends.

Started by the scheduler as ``python -m kernelwright.suite.worker LINE PAUSED WORK COMPILES``: two inherited file
descriptors (see ``device_lock.py``), the ``module:function`` that does the work, and 1 where its baselines are
compiled, else 0.
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import resource
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from kernelwright import device_lock
from kernelwright.errors import InternalError, KernelwrightError, NotChecked, NotEnoughMemory, VerificationFailed
from kernelwright.processors import die_with_parent
from kernelwright.progress import Progress
from kernelwright.settings import Settings
from kernelwright.suite.results import IN_FULL

#: What a run imports on its way, and what it does where baselines are compiled, which takes two seconds.
PRELOADED = ("kernelwright.pipeline", "kernelwright.report", "torch.export", "torch.utils.cpp_extension")
COMPILERS = ("torch._dynamo.backends.inductor", "torch._inductor.compile_fx",
             "torch._inductor.runtime.triton_heuristics", "torch._inductor.codegen.cuda_combined_scheduling",
             "torch._inductor.codegen.cpp_wrapper_gpu")


def optimize_problem(task: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Optimize one problem file: the outcome's state, error, result and memory, as plain data.

    ``task``: problem (its name), path, emitted and page (paths of the files to write), logs (folder), settings.
    """
    import torch

    from kernelwright.pipeline import optimize
    from kernelwright.report import as_json

    _silence(torch)
    outcome: dict[str, Any] = {"state": "verified", "error": None, "result": None, "short_of_memory": False}
    try:
        settings = Settings(**task["settings"], output=Path(task["emitted"]), report=Path(task["page"]), force=True,
                            refresh=True)  # what a suite tells is measured now
        result = optimize(task["path"], settings=settings, progress=progress)
        outcome["page"] = Path(task["page"]).is_file()
        outcome["result"] = _slim(as_json(result))
        certificates = [mode.certificate for mode in result.modes if mode.certificate is not None]
        if not certificates:
            raise NotChecked(problem=task["problem"], notes=" ".join(result.notes) or "No mode was checked.")
        outcome["short_of_memory"] = _short_of_memory(outcome["result"])
    except VerificationFailed as error:
        outcome |= {"state": "failed", "error": error.as_json()}
    except NotEnoughMemory as error:
        outcome |= {"state": "memory", "error": error.as_json(), "short_of_memory": True}
    except KernelwrightError as error:
        outcome |= {"state": "error", "error": error.as_json()}
    except (Exception, SystemExit) as exception:
        traceback.print_exc()
        command = ["kernelwright", "optimize", task["path"]]
        error = (exception if isinstance(exception, InternalError)
                 else InternalError.wrap(exception, command, Path(task["logs"])))
        outcome |= {"state": "crashed", "error": error.as_json()}
    return outcome | {"peak_memory_bytes": _peak_memory(torch)}


def prepare(task: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Measure this device's peaks where they are not known yet, alone, so that no problem has to."""
    import torch

    from kernelwright.roofline.peaks import current_device

    settings = Settings(**task["settings"])
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    from kernelwright.codegen.generate import TARGETS, chosen

    target = chosen(settings.target)
    return {"state": "verified", "device": current_device(TARGETS[target].device).name}


def warm_up(compiles: bool) -> None:
    """Import what a run will need, without touching a GPU: PyTorch imports most of its compilers when first used.
    compiles: whether baselines are compiled."""
    import torch

    for name in PRELOADED + COMPILERS * compiles:
        with suppress(ImportError):  # private names may move; then they are imported when they are used
            import_module(name)
    # Tables of decompositions and of shapes are made at the first capture.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), strict=False).run_decompositions({})


def _slim(document: dict[str, Any]) -> dict[str, Any]:
    """The report's document without texts that stand elsewhere, and without the path on this machine."""
    modes = [{key: value for key, value in mode.items() if key not in IN_FULL} for mode in document["modes"]]
    return {key: value for key, value in document.items() if key != "path"} | {"modes": modes}


def _short_of_memory(document: dict[str, Any]) -> bool:
    """Whether a baseline has no time because memory ran out, or a kernel was refused beside a reference that is eager
    itself for want of memory."""
    from kernelwright.problem.memory import says_out_of_device_memory

    reasons = [reason for mode in document["modes"] for reason in (mode["timing"] or {}).get("failures", {}).values()]
    reasons += [kept["reason"] for mode in document["modes"] for kept in mode.get("kept", ())]
    return any(map(says_out_of_device_memory, reasons))


def _peak_memory(torch: Any) -> int:
    """Most bytes in use at once: on the GPU where it was used, else of this process."""
    with suppress(RuntimeError):  # a broken CUDA context
        if torch.cuda.is_initialized():
            return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _silence(torch: Any) -> None:
    import logging

    if not os.environ.get("TORCH_LOGS"):
        torch._logging.set_logs(all=logging.CRITICAL)


def versions() -> dict[str, str]:
    """Versions that bear on results."""
    import torch

    from kernelwright.version import VERSION

    return {"kernelwright": VERSION, "python": platform.python_version(), "torch": torch.__version__,
            "cuda": torch.version.cuda or "none", "platform": platform.platform()}


class _Stages(Progress):
    """Tells the scheduler which stage the problem is in."""

    def __init__(self, say: Callable[..., None]) -> None:
        self.say_line = say
        self.names: list[str] = []

    @contextmanager
    def stage(self, name: str, of: str = "") -> Iterator[None]:
        self.names.append(name)
        self.say_line(say="stage", stage=name)
        try:
            yield
        finally:
            self.names.pop()


def main(line: int, paused: int, work: str, compiles: bool) -> NoReturn:
    """Be the process of one problem, whose baselines may be compiled. Never returns."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # before a process is ended for its time, it shows where it was
    die_with_parent()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")  # if memory runs out, rather this than the scheduler
    for descriptor in (line, paused):
        os.set_inheritable(descriptor, False)
    mine = device_lock.DeviceLock(socket.socket(fileno=line), paused)
    module, _, name = work.partition(":")
    functions = {"problem": getattr(import_module(module), name), "prepare": prepare}
    if functions["problem"] is optimize_problem:
        warm_up(compiles)
        mine.say(say="ready", versions=versions())
    else:
        mine.say(say="ready", versions={})
    try:
        task = mine.hear()
    except ConnectionError:
        os._exit(0)
    device_lock.connect(mine)
    outcome = functions[task["kind"]](task, _Stages(mine.say))
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):
        mine.say(say="result", outcome=_checked(outcome))
    # Not through the interpreter's end: what a broken CUDA context or a model's threads do there is of no interest.
    os._exit(0)


def _checked(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome, which must be JSON."""
    try:
        json.dumps(outcome, allow_nan=False)
    except (TypeError, ValueError) as error:
        wrapped = InternalError.wrap(error, ["kernelwright", "bench"], Path(os.devnull))
        return {"state": "crashed", "error": wrapped.as_json(), "result": None}
    return outcome


if __name__ == "__main__":
    # As a module of its own name: `python -m` runs this file a second time under the name __main__.
    import_module("kernelwright.suite.worker").main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3],
                                                  sys.argv[4] == "1")
