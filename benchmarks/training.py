"""Steps of training: a call that records gradients and its backward, of eager, torch.compile and emitted files, whose
gradients kernels find, or the original computation.

    python benchmarks/training.py -o benchmarks/results/training_cpu.json

Each model is optimized (``--effort``), then the four are timed beside each other, for ``--seconds`` a model. Errors are
those of all gradients against float64: the largest difference over the largest magnitude, of the worst tensor.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

import kernelwright
from kernelwright.roofline.peaks import current_device
from kernelwright.timing.baselines import CANDIDATE, EAGER, time_model
from kernelwright.timing.rounds import ratio
from kernelwright.training import RECOMPUTED, Recomputing, TrainingStep

COMPILED = "torch.compile"


class Of(nn.Module):
    """A module with layers, which a function puts together."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self, *inputs)


@dataclass(frozen=True)
class Case:
    """A model and its inputs. of_inputs: whether inputs require gradients, too, as within a larger model."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    of_inputs: bool = True


def _rows(n: int = 2048, d: int = 1024) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(n, d),)


def _image(n: int = 16, c: int = 64, s: int = 56) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(n, c, s, s),)


def _norm_gelu(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(m.norm(x)) * torch.sigmoid(x)


def _losses(m: Any, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(m.norm(x) * 2.0, t)


def _gated(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.silu(m.gate(x)) * m.up(x) + x


def _collapsed(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(m.conv(x).mean((2, 3), keepdim=True) * 2.0, 1)


CASES = {
    "layer norm, gelu, gate": Case(lambda: Of(_norm_gelu, norm=nn.LayerNorm(1024)), _rows()),
    "RMS norm, silu": Case(lambda: Of(lambda m, x: F.silu(m.norm(x)) + x, norm=nn.RMSNorm(1024, eps=1e-6)), _rows()),
    "layer norm of a first layer": Case(lambda: Of(_norm_gelu, norm=nn.LayerNorm(1024)), _rows(), of_inputs=False),
    "softmax of scaled rows": Case(lambda: Of(lambda m, x: torch.softmax(torch.tanh(x) * 3.0, 1)), _rows()),
    "log softmax and cross entropy": Case(lambda: Of(_losses, norm=nn.LayerNorm(1024)),
                                          lambda: (torch.randn(2048, 1024), torch.randint(0, 1024, (2048,)))),
    "huber of a mish": Case(lambda: Of(lambda m, x, y: F.huber_loss(F.mish(x), torch.sigmoid(y))),
                            lambda: (torch.randn(2048, 1024), torch.randn(2048, 1024))),
    "group norm, mish": Case(lambda: Of(lambda m, x: F.mish(m.norm(x)) * 0.5 + x, norm=nn.GroupNorm(8, 64)), _image()),
    "batch norm, relu, residual": Case(lambda: Of(lambda m, x: F.relu(m.norm(x) + x), norm=nn.BatchNorm2d(64)),
                                       _image()),
    "batch norm, relu, max pool": Case(lambda: Of(lambda m, x: F.max_pool2d(F.relu(m.norm(x)), 2) * 2.0,
                                                  norm=nn.BatchNorm2d(64)), _image()),
    "variance and deviation": Case(lambda: Of(lambda m, x: x.std(1) / (x.var(1) + 1.0) + x.amax(1)), _rows()),
    "pointwise chain": Case(lambda: Of(lambda m, x, y: torch.where(x > y, F.mish(x) * y, F.softplus(y)) + x.exp()),
                            lambda: (torch.randn(2048, 1024), torch.randn(2048, 1024))),
    "gated products": Case(lambda: Of(_gated, gate=nn.Linear(512, 512), up=nn.Linear(512, 512)), _rows(1024, 512)),
    "mean of a transposed convolution": Case(
        lambda: Of(_collapsed, conv=nn.ConvTranspose2d(64, 128, 3, 2, 1, 1)), _image(8, 64, 32)),
}


def errors(model: nn.Module, candidate: nn.Module, inputs: list[Any]) -> tuple[float, float]:
    """Those of eager's gradients and the candidate's."""
    double = copy.deepcopy(model).double()
    wide = [x.double().detach().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in inputs]
    found = [TrainingStep(m, given)(*given) for m, given in ((double, wide), (model, inputs), (candidate, inputs))]
    worst = [0.0, 0.0]
    for exact, *others in zip(*found, strict=True):
        if exact is None:
            continue
        for place, other in enumerate(others):
            worst[place] = max(worst[place], float((other - exact).abs().max() / exact.abs().max().clamp_min(1e-30)))
    return worst[0], worst[1]


def run(name: str, case: Case, effort: str, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    model, inputs = case.make().train(), list(case.inputs())
    result = kernelwright.optimize(model, inputs=tuple(inputs), effort=effort, baselines="none")
    notes = [note for note in result.notes if "backward" in note or "gradients" in note]
    given = [x.requires_grad_(case.of_inputs) if x.is_floating_point() else x for x in inputs]
    own = result.module
    step, emitted = TrainingStep(own, given), sys.modules[type(own).__module__]
    recomputing = Recomputing(TrainingStep(own, given), emitted)
    torch._dynamo.reset()
    compiled = TrainingStep(torch.compile(model), given)
    compiled(*given)  # the compiler runs in the first step
    others: dict[str, nn.Module] = {COMPILED: compiled}
    others |= {RECOMPUTED: recomputing} if recomputing.kept else {}
    timing = time_model(TrainingStep(model, given), step, given, device="cpu", compilers={}, budget_seconds=seconds,
                        others=others)
    eager_error, own_error = errors(model, own, given)
    entries = timing.entries
    document: dict[str, Any] = {"name": name, "of_inputs": case.of_inputs, "notes": notes,
                                "error": own_error, "eager_error": eager_error,
                                "milliseconds": {n: t.median * 1e3 for n, t in entries.items()},
                                "busy": any(t.busy for t in entries.values())}
    for baseline in (EAGER, COMPILED, *([RECOMPUTED] if recomputing.kept else [])):
        found = ratio(entries[baseline], entries[CANDIDATE])
        document[f"over {baseline}"] = [found.value, found.low, found.high]
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    device = current_device("cpu")
    document: dict[str, Any] = {
        "command": "python " + " ".join(sys.argv), "device": device.title, "torch": torch.__version__,
        "threads": torch.get_num_threads(), "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "cases": []}
    for name, case in CASES.items():
        if options.only in name:
            document["cases"].append(found := run(name, case, options.effort, options.seconds))
            print(json.dumps(found), flush=True)
            if options.output is not None:
                options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
