"""Times files for several sizes (``--dynamic``) against files for each of these sizes alone.

    python benchmarks/dynamic_sizes.py                  a table
    python benchmarks/dynamic_sizes.py --device cuda    of a GPU instead of the processor
    python benchmarks/dynamic_sizes.py --results FILE   as JSON lines, too, each with device, versions, date and command
    python benchmarks/dynamic_sizes.py --only TEXT      of the models whose names have it

Each model has one file for batches of 1 to 64, made with an example of 8, and a file for each size in the table. Both
files of a size are called in turn in one process, each first in every other round, in rounds of calls in a row that are
waited for; rounds in which a thread waited for a processor are left out. ``speed`` is the time of the file for the size
alone over that of the file for all, its median and quartiles over rounds; ``extra`` the difference of the medians of a
call. Both are held against eager before. On a GPU a round ends when the device has done all of its calls. No clock
takes kernels out of a file, so that all have the same ones.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import inspect
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import kernelwright  # noqa: E402
from kernelwright import processors, selection, tuned  # noqa: E402
from kernelwright.roofline.peaks import current_device  # noqa: E402

LOW, HIGH, EXAMPLE = 1, 64, 8
SIZES = (1, 8, 33, 64)
# Many short rounds: of those in which threads waited for a processor none counts, and some are left on a busy machine.
_ROUNDS, _ROUND_SECONDS, _MOST_SECONDS = 301, 0.0005, 40.0


class Softmax(nn.Module):
    """A row reduction with pointwise operators around it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.tanh(x) * 2.0 + 1.0, -1)


class Norm(nn.Module):
    """A layer norm, a residual and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(768)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.norm(x + torch.tanh(x))) * 0.5


def perceptron() -> nn.Module:
    """Two layers, whose products stay with PyTorch, and what is between and behind them."""
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256), nn.Softmax(-1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "softmax of rows of 512": (Softmax, (64, 512)), "norm of rows of 768": (Norm, (128, 768)),
    "two layers of 256 and 1024": (perceptron, (64, 256)), "softmax of a row of 128": (Softmax, (128,)),
}
TARGETS = {"cpu": "cpp", "cuda": "cuda"}


def made(model: nn.Module, x: torch.Tensor, dynamic: dict[str, dict[int, tuple[int, int]]]) -> nn.Module:
    """The module of a file for an example."""
    result = kernelwright.optimize(copy.deepcopy(model), (x,), target=TARGETS[x.device.type], effort="quick",
                                   baselines="none", dynamic=dynamic)
    assert result.module is not None and any(mode.runs for mode in result.modes), result.notes
    return result.module.eval()


def calls(module: nn.Module, x: torch.Tensor, count: int) -> float:
    """Seconds of a call, of so many in a row that are waited for."""
    began = time.perf_counter()
    for _ in range(count):
        module(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def measured(name: str, model: nn.Module, several: nn.Module, shape: tuple[int, ...], size: int,
             device: str) -> dict[str, object]:
    """A row: both files at one size."""
    x = torch.randn(size, *shape, device=device)
    alone = made(model, x, {})
    for module in (several, alone):
        torch.testing.assert_close(module(x), model(x), rtol=1e-4, atol=1e-5)
    count = max(1, int(_ROUND_SECONDS / calls(alone, x, 3)))
    rounds: list[tuple[float, ...]] = []
    began, turn = time.perf_counter(), 1
    while len(rounds) <= _ROUNDS and time.perf_counter() - began < _MOST_SECONDS:
        before, started = processors.waits(), time.perf_counter()
        times = tuple(calls(module, x, count) for module in (alone, several)[::turn])
        waited = processors.longest_wait(before, processors.waits())
        if not processors.is_disturbed(time.perf_counter() - started, waited):
            rounds.append(times[::turn])
            turn = -turn
    rounds = rounds[1:]
    assert not several.why() and not alone.why()
    assert len(rounds) > 20, "a busy machine: too few rounds in which no thread waited"
    low, middle, high = statistics.quantiles([one / other for one, other in rounds], n=4)
    one, other = (statistics.median(times) for times in zip(*rounds, strict=True))
    return {"model": name, "size": size, "alone_us": one * 1e6, "several_us": other * 1e6, "speed": middle,
            "quartiles": [low, high], "extra_us": (other - one) * 1e6, "rounds": len(rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=tuple(TARGETS), default="cpu", help="what the files are for")
    parser.add_argument("--results", type=Path, help="a file for rows as JSON lines")
    parser.add_argument("--only", default="", help="a part of the names of the models that are timed")
    options = parser.parse_args()
    selection.is_slower = lambda timing: False
    tuned.losing_regions = lambda plan, times, *, clearly=False: {}
    device = f"{current_device(options.device).name}, {torch.get_num_threads()} threads"
    print(f"{device}, torch {torch.__version__}, Python {platform.python_version()}, {datetime.date.today()}")
    print(f"{'model':28}{'batch':>6}{'alone us':>11}{'several us':>12}{'speed':>8}  quartiles      extra us")
    rows: list[dict[str, object]] = []
    torch.manual_seed(0)
    with torch.no_grad():
        for name, (make, shape) in ((n, m) for n, m in MODELS.items() if options.only in n):
            model = make().eval().to(options.device)
            argument = next(iter(inspect.signature(model.forward).parameters))
            example = torch.randn(EXAMPLE, *shape, device=options.device)
            several = made(model, example, {argument: {0: (LOW, HIGH)}})
            for size in SIZES:
                row = measured(name, model, several, shape, size, options.device)
                rows.append(row)
                low, high = row["quartiles"]  # type: ignore[misc]
                print(f"{name:28}{size:6}{row['alone_us']:11.1f}{row['several_us']:12.1f}{row['speed']:8.1%}  "
                      f"{low:.1%} to {high:.1%}{row['extra_us']:10.2f}", flush=True)
    if options.results is not None:
        about = {"device": device, "torch": torch.__version__, "python": platform.python_version(),
                 "date": str(datetime.date.today()), "command": " ".join(sys.argv)}
        options.results.write_text("".join(json.dumps({**row, **about}) + "\n" for row in rows))


if __name__ == "__main__":
    main()
