"""The whole result of a run, kept for the same command: what it depends on, and whether it still holds.

A result is kept under a digest of the model, its inputs, the user's files, the settings, this package, and the machine
(:mod:`kernelwright.problem.digest`), where a further run would come to nothing better. Who finds it builds its file,
which takes no compiler as long as the libraries are kept, too, and compares it with eager and float64 once.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import io
import os
import pickle
import re
import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from secrets import randbits
from typing import Any

import torch
from torch import nn
from torch.torch_version import TorchVersion

from kernelwright.build.module import find_compiler, find_cuda_compiler, load_text
from kernelwright.codegen.generate import TARGETS
from kernelwright.device_lock import without_device
from kernelwright.failures import FAILED, is_ours, told
from kernelwright.modes import RECORDED
from kernelwright.problem import Problem
from kernelwright.problem.digest import asks_for_environment, digest_of
from kernelwright.problem.memory import is_out_of_memory, release
from kernelwright.processors import processors
from kernelwright.programs import Stages, new_model, share_tables
from kernelwright.records import LATE, UNTRIED, Mode, words_of
from kernelwright.result import Result
from kernelwright.settings import Settings, cache_folder
from kernelwright.timing.baselines import EAGER, wants_time
from kernelwright.timing.speedup import UNKNOWN
from kernelwright.tune.memory import machine, package_digest
from kernelwright.verify.certificate import certify
from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.plan import Plan
from kernelwright.verify.records import TrialPlan
from kernelwright.verify.state import float64_copy, to_float64
from kernelwright.verify.tolerance import Tolerance

#: The folder of the cache.
RESULTS = "results"
#: Settings that say where results go and how they are shown.
_SHOWN = ("output", "report", "trace", "force", "refresh", "quiet", "json")
#: Variables that compilers, PyTorch and its libraries read. A model's own count by what they do to it.
_VARIABLES = re.compile(r"TORCH|PYTORCH|ATEN|OMP_|GOMP_|KMP_|MKL_|DNNL_|ONEDNN_|OPENBLAS_|CUDA|CUBLAS|CUDNN|NVIDIA_|"
                        r"LD_|MALLOC_|GLIBC_|CXX|CC$|NVCC|C.*FLAGS$|C.*PATH$|LIBRARY_PATH$")
#: PyTorch sets it itself when something is first traced. Where torch.compile keeps its files changes nothing.
_OF_PYTORCH = "TORCHINDUCTOR_CACHE_DIR"
_HEAD = b"kernelwright result 1 "


def name_of(problem: Problem, example: list[Any], target: str, settings: Settings) -> str:
    """The name under which the result of a run is kept; "" where nobody can tell what the result depends on, as of
    classes that were typed into a notebook, or of objects that cannot be compared."""
    try:
        if problem.model_class.__module__.split(".")[0] == __name__.split(".")[0]:
            return ""  # a graph that torch.compile gave, which has a cache of its own
        of_model = digest_of(problem, example, settings.seed)
        all_variables = asks_for_environment(problem)
        tools = [find_compiler(TARGETS[target]), *filter(None, [find_cuda_compiler()])]
    except Exception:  # the run itself meets the same, and says it
        release()
        return ""
    asked = {name: value for name, value in settings.as_json().items() if name not in _SHOWN}
    variables = sorted((name, value) for name, value in os.environ.items()
                       if name != _OF_PYTORCH and (all_variables or _VARIABLES.match(name)))
    facts = (of_model, asked, target, package_digest(), machine(problem.device), processors(),
             _torch_state(problem.device.type), [_file_facts(tool) for tool in tools], variables)
    return hashlib.sha256(repr(facts).encode(errors="replace")).hexdigest()[:32]


def _torch_state(device: str) -> tuple[object, ...]:
    """What a process may have told PyTorch. device: the type of the model's."""
    backends = torch.backends
    return (torch.get_default_dtype(), str(torch.get_default_device()), torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled(device), backends.mkldnn.enabled,
            backends.cudnn.enabled, backends.cudnn.allow_tf32, backends.cudnn.benchmark, torch.__config__.show())


def _file_facts(path: str) -> tuple[object, ...]:
    """What tells a program from another version of it."""
    with suppress(OSError):
        facts = os.stat(path)
        return os.path.realpath(path), facts.st_size, facts.st_mtime_ns
    return (path,)


def unfinished(result: Result) -> str:
    """What a further run would come to that the budget of this one did not permit, in words; "" where that is nothing.
    """
    said = (*result.notes, *(entry.reason for mode in result.modes for entry in mode.kept))
    if any(text.startswith(UNTRIED) or LATE in text for text in said):
        return "there was no time for all that may pay"
    if any(FAILED in text for text in said):
        return FAILED
    for mode in result.modes:
        if mode.timing is None:
            return f"{words_of(mode.name)} is not timed"
        if waiting := [name for name, why in mode.timing.failures.items() if wants_time(why)]:
            return f"there was no time for {waiting[0]}"
        found = mode.timing.speed_up(EAGER)
        if found is not None and found.verdict == UNKNOWN and not found.disagree:
            return f"the time of {words_of(mode.name)} is {UNKNOWN}: {found.why}"
    return ""


def keep(name: str, result: Result) -> None:
    """Keep a result under a name, whole or not at all. Where the folder can't be written to, the next run starts anew.
    """
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    data = pickle.dumps(replace(result, module=None, path=None, trace=None, kept_since=since))
    temporary = None
    try:
        _path(name).parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=_path(name).parent, prefix=f".{name}-", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(_head(data) + data)
        os.replace(temporary, _path(name))
    except OSError:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


def recall(name: str) -> Result | None:
    """The result that was kept under a name; None where there is none to be used, half a file among them."""
    try:
        content = _path(name).read_bytes()
        head, data = content[:len(_head(b""))], content[len(_head(b"")):]
        found = _Unpickler(io.BytesIO(data)).load() if head == _head(data) else None
    except Exception:  # as many as there are damaged files
        return None
    return found if isinstance(found, Result) else None


def _path(name: str) -> Path:
    return cache_folder() / RESULTS / f"{name}.result"


def _head(data: bytes) -> bytes:
    return _HEAD + hashlib.sha256(data).hexdigest().encode() + b"\n"


class _Unpickler(pickle.Unpickler):
    """Makes records of this package, and nothing else: what was imported from another machine runs no code here."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Raises UnpicklingError for what is no record."""
        if (module_name, global_name) == (TorchVersion.__module__, TorchVersion.__qualname__):
            return TorchVersion
        if module_name.split(".")[0] == __name__.split(".")[0]:
            found = super().find_class(module_name, global_name)
            if isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, (enum.Enum, tuple))):
                return found
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no record")


def earlier_result(name: str, problem: Problem, settings: Settings, stages: Stages) -> tuple[Result | None, str]:
    """The kept result of a name, with its module, where it holds; else None, and why it does not, where there is one.
    """
    found = recall(name) if name and not settings.refresh else None
    if found is None:
        return None, ""
    stages.progress.say(f"the same command has a result, made at {_when(found)}")
    made, fault = _again(found, problem, settings, stages)
    return made, f"What the same command made at {_when(found)} does not hold any more: {fault}" if fault else ""


def _when(result: Result) -> str:
    return (result.kept_since or "")[:16].replace("T", " ")


def concluded(result: Result, name: str, fault: str) -> Result:
    """The result of a run, kept under a name where a further run would come to nothing better; else with a note that
    says so. fault: why one that was kept before does not hold, or ""."""
    if not name:
        return result
    notes = (*result.notes, *([fault] if fault else []))
    if missing := unfinished(result):
        notes = (*notes, f"The same command will not answer with this result: {missing}. It begins with what was "
                 "measured here.")
    result = replace(result, notes=notes)
    if not missing:
        keep(name, result)
    return result


def _again(found: Result, problem: Problem, settings: Settings, stages: Stages) -> tuple[Result | None, str]:
    """A kept result with its module, built and compared with eager and float64 on new values in each mode; or None, and
    why it does not hold any more."""
    try:
        with stages.stage("build"), without_device():
            emitted = load_text(found.source, problem.name)
        share_tables(emitted, problem)
        for place, mode in enumerate(found.modes):
            with stages.stage("verify", words_of(mode.name)):
                if mode.runs and (why := _wrong_with(mode, place > 0, emitted, problem, settings)):
                    return None, why
        return replace(found, module=new_model(emitted, problem, settings.seed)), ""
    except Exception as error:
        if not is_ours(error) or is_out_of_memory(error):
            raise
        return None, told(error)


def _wrong_with(mode: Mode, other: bool, emitted: Any, problem: Problem, settings: Settings) -> str:
    """What is wrong with a mode on values that no run has seen, "" where nothing is. other: it is not the mode in which
    models are constructed."""
    def set_mode(model: nn.Module) -> nn.Module:
        return model.train(mode.name.startswith("training")) if other else model

    def make_model() -> nn.Module:
        return set_mode(problem.make_model(settings.seed))

    plan = Plan(trials=(TrialPlan(randbits(31), AS_GIVEN, False),), repeats=0,
                sample_axis0=mode.certificate is not None and mode.certificate.sampled,
                tolerance=Tolerance(nonfinite="position"), recording=mode.name.endswith(f"_{RECORDED}"))
    certificate = certify(
        make_model, lambda: set_mode(new_model(emitted, problem, settings.seed)), problem.make_inputs, plan=plan,
        make_float64=float64_copy if problem.is_instance else lambda model: to_float64(make_model()))
    return "" if certificate.passed else certificate.sentence()
