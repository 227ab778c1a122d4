"""Networks up to their plans: captured, rewritten, planned, and the plan evaluated in float64 against the model.

Nothing is compiled or timed, so that a tiny network takes seconds on one core. Each runs in a process of its own: what
crashes or hangs costs one network.
"""

from __future__ import annotations

import importlib
import json
import math
import multiprocessing
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: Of the size of a result: what a plan may differ by. A model may round to float32 by itself, whatever its type is.
_TOLERANCE = 1e-4
#: The same where the model's own rounding is in what it is held against.
_ROUNDED = 1e-2
#: A process that runs all the time is done in so many times its processor time, on a busy machine as well.
_HANGS = 20


def plan_all(files: Iterable[Path], records: Path, seconds: float, *, tiny: bool) -> None:
    """Append a record for each problem file that has none yet; print a line for each.

    seconds: processor time that one network may take; one that hangs is ended after some times as long. tiny: with the
    values of the files' TINY.
    """
    files = list(files)
    for package in ("torch", *{file.parent.name for file in files}):  # once, before processes are forked
        with suppress(Exception):
            importlib.import_module(package)
    done = {json.loads(line)["problem"] for line in records.read_text().splitlines()} if records.exists() else set()
    for file in files:
        name = f"{file.parent.name}/{file.stem}"
        if name in done:
            continue
        record = _in_process(file, seconds, tiny) | {"problem": name}
        with records.open("a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")
        print(name, record["state"], record.get("error") or "", flush=True)


def _in_process(file: Path, seconds: float, tiny: bool) -> dict[str, Any]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_told, args=(file, tiny, seconds, theirs))
    process.start()
    theirs.close()
    late = {"state": "timeout", "error": f"not finished after {seconds:.0f} s"}
    try:
        record = ours.recv() if ours.poll(_HANGS * seconds) else late
    except EOFError:
        process.join()
        record = late if process.exitcode == -signal.SIGXCPU else {
            "state": "crashed", "error": f"the process ended with {process.exitcode}"}
    process.kill()
    process.join()
    return record


def _told(file: Path, tiny: bool, seconds: float, to: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.RLIM_INFINITY))
    warnings.simplefilter("ignore")
    started = time.process_time()
    try:
        record = planned(file, tiny=tiny)
    except Exception as error:
        code = getattr(error, "code", "")
        record = {"state": "refused" if code else "error", "error": f"{type(error).__name__}: {error}"[:400],
                  "code": code, "traceback": "" if code else traceback.format_exc()[-3000:]}
    to.send(record | {"seconds": round(time.process_time() - started, 1)})


def planned(file: Path, *, tiny: bool) -> dict[str, Any]:
    """The record of one problem file. tiny: with the values of its TINY."""
    import torch

    from kernelwright.ir.ops.leaves import PART
    from kernelwright.problem import load_problem
    from kernelwright.programs import Stages, understand
    from kernelwright.progress import Progress
    from kernelwright.roofline.devices import GENERIC_CPU
    from kernelwright.settings import Settings

    torch.set_num_threads(1)
    settings = Settings(target="cpp", tiny=tiny)
    problem = load_problem(file, device="cpu", tiny=tiny)
    example = problem.make_inputs(0)
    modes, notes = understand(problem, example, GENERIC_CPU, settings, Stages(Progress()))
    found: dict[str, dict[str, Any]] = {
        mode.name: {"operators": len(mode.captured.operators()), "kernels": len(mode.plan.kernels),
                    "parts": sum(n.get("target") == PART for n in mode.captured.nodes()),
                    "problem": "", "evaluated": ""} for mode in modes}
    for mode in modes:
        try:
            found[mode.name]["problem"] = _difference(mode, example)
        except (RuntimeError, NotImplementedError) as error:  # PyTorch has no float64 form of some operators
            found[mode.name]["evaluated"] = f"not in float64: {error}"[:200]
    wrong = [f"{name}: {mode['problem']}" for name, mode in found.items() if mode["problem"]]
    return {"state": "wrong" if wrong else "planned", "error": "; ".join(wrong), "modes": found, "notes": list(notes)}


def _difference(mode: Any, example: list[Any]) -> str:
    """What a mode's plan gives otherwise than the model; "" where nothing, or where it draws random numbers."""
    import copy

    import torch

    from kernelwright.codegen.reference.plan import filled, run_plan, values_of
    from kernelwright.problem.arguments import split
    from kernelwright.verify.flatten import flatten
    from kernelwright.verify.state import call_in_float64, float64_copy, widened

    graph = mode.captured
    if not graph.outputs or any(n.get("serial", -1) >= 0 for n in graph.nodes()):
        return ""
    with torch.no_grad():
        results, _ = run_plan(mode.plan, values_of(copy.deepcopy(mode.model), graph, example))
        found = flatten(filled(graph.structure, results))
        (positional, keywords), double = split(widened(example)), float64_copy(mode.model)
        exact = call_in_float64(lambda *given: double(*given, **keywords), positional)
        positional, keywords = split(copy.deepcopy(example))
        expected, eager = ({path: leaf for path, leaf in flatten(outputs).items() if isinstance(leaf, torch.Tensor)}
                           for outputs in (exact, copy.deepcopy(mode.model)(*positional, **keywords)))
    if any((~right.isfinite() & eager[path].isfinite()).any() for path, right in expected.items()
           if path in eager and eager[path].shape == right.shape):
        expected = eager  # in float64 the model is another computation: it adds its type's lowest number, say
    tolerance = _ROUNDED if expected is eager else _TOLERANCE
    for path, right in expected.items():
        own = found.get(path)
        if not isinstance(own, torch.Tensor) or own.shape != right.shape:
            return f"{path} is {getattr(own, 'shape', None)}, not {tuple(right.shape)}"
        own, right = own.double().flatten(), right.double().flatten()
        counts = ~(own == right) & ~(own.isnan() & right.isnan())
        scale = right[right.isfinite()].abs().max().item() if right.isfinite().any() else 0.0
        error = (own - right)[counts].abs().max().item() if counts.any() else 0.0
        theirs = (eager[path].double().flatten() - right).abs().nan_to_num(0.0, 0.0).max().item() \
            if path in eager and eager[path].numel() == right.numel() > 0 else 0.0
        if not error <= max(tolerance * max(scale, 1e-6), theirs):  # kernels may round where the model does
            return f"{path} differs by {error:.2g} of {scale:.2g}"
    return ""
