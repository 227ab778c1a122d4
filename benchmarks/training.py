"""Steps of training: a call that records gradients and its backward, of eager, torch.compile and emitted files.

    python benchmarks/training.py -o benchmarks/results/training_cpu.json
    python benchmarks/training.py --list
    python benchmarks/training.py --only "MLP, residual block" --seconds 4 --again
    python benchmarks/training.py --device cuda --batches 16 --part 1/2 -o first_half.json    # another GPU has the rest

Each model of ``training_models.py`` is optimized (``--effort``), then the steps are timed beside each other, with
random directions for the gradients of results. Errors are those of all gradients against float64: the largest
difference, over the largest magnitude of any gradient of the model. A model is marked as busy where other programs had
the processors for too many rounds: its times are none.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn as nn
from training_models import CASES, Case

import kernelwright
from kernelwright.adjoint import backward
from kernelwright.roofline.peaks import current_device
from kernelwright.timing.baselines import CANDIDATE, EAGER, time_model
from kernelwright.timing.rounds import ratio
from kernelwright.training.steps import TrainingStep
from kernelwright.version import VERSION

COMPILED = "torch.compile"
#: Of a file whose backward computes all that it needs of the forward once more.
AGAIN = "computed again"
ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def nothing_saved() -> Iterator[None]:
    """Inside, forwards hand their backwards nothing."""
    with patch.object(backward, "chosen", lambda *given: ()):
        yield


def errors(model: nn.Module, candidate: nn.Module, inputs: list[Any]) -> tuple[float, float]:
    """Those of eager's gradients and the candidate's."""
    double = copy.deepcopy(model).double()
    wide = [x.double().detach().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in inputs]
    exact, *others = (TrainingStep(m, given)(*given)
                      for m, given in ((double, wide), (model, inputs), (candidate, inputs)))
    largest = max(float(e.abs().max()) for e in exact if e is not None)
    found = [max(float((o - e).abs().max()) for o, e in zip(other, exact, strict=True) if e is not None)
             for other in others]
    return found[0] / largest, found[1] / largest


def inputs_of(case: Case, batches: int) -> list[torch.Tensor]:
    """Inputs for as many batches of a model as one: all inputs have the batch as their first axis."""
    return [torch.cat(parts) for parts in zip(*(case.inputs() for _ in range(batches)), strict=True)]


def run(name: str, case: Case, effort: str, seconds: float, device: str, batches: int, *, again: bool, compiles: bool
        ) -> dict[str, Any]:
    """The document of one model. again: whether a file that saves nothing is timed, too. compiles: whether
    torch.compile is."""
    torch.manual_seed(0)
    model, inputs = case.make().train().to(device), [x.to(device) for x in inputs_of(case, batches)]

    def optimized() -> Any:
        return kernelwright.optimize(model, inputs=tuple(inputs), effort=effort, baselines="none")

    result = optimized()
    lesser = None
    if again:
        with nothing_saved():
            lesser = optimized().module
    notes = [note for note in result.notes if "backward" in note or "gradients" in note]
    given = [x.requires_grad_(case.of_inputs) if x.is_floating_point() else x for x in inputs]
    own = result.module
    step = TrainingStep(own, given)
    others: dict[str, nn.Module] = {}
    if compiles:
        torch._dynamo.reset()
        others[COMPILED] = TrainingStep(torch.compile(model), given)
        others[COMPILED](*given)  # the compiler runs in the first step
    if lesser is not None:
        others[AGAIN] = TrainingStep(lesser, given)
    timing = time_model(TrainingStep(model, given), step, given, device=device, compilers={},
                        budget_seconds=seconds, others=others)
    eager_error, own_error = errors(model, own, given)
    entries = timing.entries
    saved = [use.saved_bytes for mode in result.modes for use in mode.backward]
    document: dict[str, Any] = {
        "name": name, "of_inputs": case.of_inputs, "notes": notes,
        "kernels": any(mode.backward for mode in result.modes), "saved_bytes": max(saved, default=0),
        "lines": result.source.count("\n"), "error": own_error, "eager_error": eager_error,
        "busy": any(t.busy for t in entries.values()), "milliseconds": {n: t.median * 1e3 for n, t in entries.items()}}
    for baseline in (EAGER, *others):
        found = ratio(entries[baseline], entries[CANDIDATE])
        document[f"over {baseline}"] = [found.value, found.low, found.high]
    return document


def commit() -> str:
    """The commit that is measured, marked where files differ from it."""
    try:
        return subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"], cwd=ROOT,
                              capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def chosen(only: Sequence[str]) -> dict[str, Case]:
    """The models of these names, else those in whose names one of them stands; all where none is asked for."""
    if not only:
        return CASES
    found = {name: CASES[name] for name in only if name in CASES}
    found |= {name: case for name, case in CASES.items() if any(o in name for o in only if o not in CASES)}
    if not found:
        raise SystemExit(f"no model is called so: {', '.join(only)}; --list says how they are called")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="the file of results, written after each model")
    parser.add_argument("--effort", default="quick", help="of the optimizer")
    parser.add_argument("--seconds", type=float, default=6.0, help="to time each model for")
    parser.add_argument("--only", default="", help="names of models, or parts of them, with commas between")
    parser.add_argument("--again", action="store_true", help="time a file whose backward computes all again, too")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--batches", type=int, default=1, help="how many of a model's batches are one")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="each N-th model, beginning with the K-th")
    parser.add_argument("--list", action="store_true", help="print the names of the models")
    options = parser.parse_args()
    cases = chosen([name.strip() for name in options.only.split(",") if name.strip()])
    if options.list:
        print("\n".join(cases))
        return
    part, parts = map(int, options.part.split("/"))
    cases = dict(list(cases.items())[part - 1::parts])
    device = current_device(options.device)
    document: dict[str, Any] = {
        "command": "python " + " ".join(sys.argv), "commit": commit(), "kernelwright": VERSION,
        "device": device.title, "torch": torch.__version__, "threads": torch.get_num_threads(),
        "python": platform.python_version(), "load": os.getloadavg()[0], "batches": options.batches,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "busy": 0, "cases": []}
    for name, case in cases.items():
        try:
            found = run(name, case, options.effort, options.seconds, options.device, options.batches,
                        again=options.again, compiles=not options.no_compile)
        except (RuntimeError, kernelwright.KernelwrightError) as error:
            found = {"name": name, "failed": f"{type(error).__name__}: {error}"[:400]}
        document["cases"].append(found)
        document["busy"] += bool(found.get("busy"))
        print(json.dumps(found), flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
