"""Problem profiles and self-tests on disk, so that each process of a run need not make them; profiles are for later
runs with the same seed, too."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pickle
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from kernelwright.judge.check.problem_profile import ProblemProfile
from kernelwright.judge.selftest import SelfTest
from kernelwright.judge.settings import JudgeSettings
from kernelwright.judge.worker.process import free_bytes
from kernelwright.problem import Problem
from kernelwright.problem.memory import shortages
from kernelwright.roofline.peaks import current_device
from kernelwright.verify.kept import Kept
from kernelwright.version import VERSION

#: Share of free memory in which the model's results may wait for the next candidate.
KEPT_SHARE = 1 / 16
#: Seconds for which a device counts as fit on which the judge has passed its self-test.
FIT_SECONDS = 600.0


def kept_profile(folder: Path, problem: Problem, settings: JudgeSettings, make: Callable[[], ProblemProfile]
                 ) -> ProblemProfile:
    """The profile of ``problem`` that ``folder`` keeps, or what ``make`` returns, which is kept from now on.

    It is found again under the same texts (the problem's, and those of modules that stand beside it), seed, settings,
    device and versions. Only processes of the judge may write to ``folder``: what stands there is unpickled, and no
    candidate can reach it. Raises what ``make`` raises; a folder that cannot be written keeps nothing, and a profile
    for which memory ran out on the way says too little to be kept.
    """
    file = folder / f"{_key(problem, settings)}.profile"
    try:
        kept = pickle.loads(file.read_bytes())
        if isinstance(kept, ProblemProfile):
            return kept
    except (OSError, EOFError, pickle.UnpicklingError, AttributeError, TypeError):
        pass  # there is none, or one of another version
    before = shortages()
    profile = make()
    if shortages() == before:
        _keep(file, pickle.dumps(profile))
    return profile


def kept_self_test(folder: Path, device: torch.device, seed: int, make: Callable[[], SelfTest],
                   now: Callable[[], float] = time.time) -> SelfTest:
    """The self-test that a process of the same run passed on this device in the last `FIT_SECONDS`, or what ``make``
    returns.

    ``seed`` tells the run. Processes that begin together wait for the first one's. One that was not passed is not kept:
    it holds for its own process, and the next one makes its own. Of ``folder`` the same holds as for `kept_profile`.
    """
    told = [seed, str(device), os.environ.get("CUDA_VISIBLE_DEVICES"), torch.get_num_threads(), platform.node(),
            VERSION, torch.__version__, sys.version]
    file = folder / f"{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:40]}.selftest"
    with _one_at_a_time(file.with_suffix(".lock")):
        try:
            kept = pickle.loads(file.read_bytes())
            if 0 <= now() - kept["at"] < FIT_SECONDS and isinstance(kept["found"], SelfTest):
                return kept["found"]
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, TypeError, KeyError):
            pass  # there is none, or one of another version
        found = make()
        if found.passed:
            _keep(file, pickle.dumps({"at": now(), "found": found}))
    return found


@contextlib.contextmanager
def _one_at_a_time(file: Path) -> Iterator[None]:
    """A block that one process at a time is in; all at once where ``file`` cannot be written."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(open(file, "ab")), fcntl.LOCK_EX)
        yield


def _key(problem: Problem, settings: JudgeSettings) -> str:
    kind = "cuda" if problem.device.type == "cuda" else "cpu"
    told = [problem.name, settings.seed, settings.effort, settings.tiny, settings.model, torch.get_num_threads(),
            current_device(kind).name, str(problem.device), VERSION, torch.__version__, sys.version]
    return hashlib.sha256(json.dumps([told, _texts(problem)]).encode()).hexdigest()[:40]


def _texts(problem: Problem) -> list[str]:
    """Hashes of the problem's file, and of the imported modules that stand in its folder or below."""
    if problem.path is None:
        return []
    own, beside = Path(problem.path).resolve(), set[Path]()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and own.parent in (path := Path(file).resolve()).parents:
            beside.add(path)
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in (own, *sorted(beside - {own})) if path.is_file()]


def _keep(file: Path, content: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        os.replace(part, file)
    except OSError:
        return


def kept_for(problem: Problem) -> Kept:
    """Nothing yet of the model's side of checks, with room for what the device has room for."""
    device = problem.device
    free = free_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    return Kept(int(KEPT_SHARE * free))
