"""What it gives a call that its kernels are launched before it is asked whether the model is as it was.

    kernelwright bench PROBLEMS --output RESULTS ...
    python benchmarks/launch_ahead.py PROBLEMS RESULTS       on a machine with a GPU: a table of RESULTS' emitted files

Each file's model is called in evaluation mode in both ways, one right after the other and the first one in turn; a call
is waited for. ``cold``: before each call the processor's caches are filled with something else, as work between calls
does. ``device`` is what the device works for a call, ``eager`` PyTorch's call. Medians of rounds in microseconds, with
the middle half of the ratio between both ways. A file whose calls may not run in vain, or without kernels, is left out
with a line.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kernel_runs import title
from torch import nn
from torch.utils._pytree import tree_map

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from kernelwright.build.module import load_text  # noqa: E402
from kernelwright.problem import load_problem  # noqa: E402
from kernelwright.programs import new_model  # noqa: E402

#: Calls before rounds begin, and rounds.
_WARMING, _ROUNDS = 5, 40
#: What fills caches of a processor.
_OTHER = torch.ones(2 ** 25)


def waited(call: Callable[[], object]) -> float:
    """Seconds of a call, from its beginning until its results are there."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def compared(ways: list[Callable[[], object]], first: int, *, cold: bool) -> tuple[float, float]:
    """The seconds of a call in either way, the one of that number first."""
    found = [0.0, 0.0]
    for place in (first, 1 - first):
        if cold:
            _OTHER.sum()
        found[place] = waited(ways[place])
    return found[0], found[1]


def worked(call: Callable[[], object], times: int = 10) -> float:
    """Seconds that the device works for a call, of several that are queued behind a long pause."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(200_000_000)
    first.record()
    for _ in range(times):
        call()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / times


def tables(emitted: Any) -> list[dict[str, Any]]:
    """The facts of the file's modes that may be launched ahead."""
    found = [table for facts in getattr(emitted, "_KERNELWRIGHT_PLANS", {}).values()
             for table in (facts if isinstance(facts, tuple) else (facts,))]
    return [table for table in found if table.get("ahead")]


def row(name: str, problem_path: Path, emitted_path: Path) -> str | None:
    """The figures of one file; None where it is left out."""
    problem = load_problem(problem_path)
    emitted = load_text(emitted_path.read_text(), emitted_path.stem)
    switched = tables(emitted)
    model = new_model(emitted, problem, 0).cuda().eval()
    eager: nn.Module = problem.make_model(0).cuda().eval()
    inputs = tree_map(lambda x: x.cuda() if isinstance(x, torch.Tensor) else x, problem.make_inputs(0))

    def ours(*, ahead: bool) -> Callable[[], object]:
        def call() -> object:
            for table in switched:
                table["ahead"] = ahead
            return model(*inputs)

        return call

    ways = [ours(ahead=True), ours(ahead=False)]
    with torch.no_grad():
        for call in ways:
            for _ in range(_WARMING):
                call()
        binding = next(iter(getattr(emitted, "_kernelwright_bindings", {}).get(model, {}).values()), None)
        if binding is None or (getattr(binding, "trusted", None) is None and not switched):
            print(f"{name}: launches nothing ahead")
            return None
        figures, gains = [], []
        for cold in (False, True):
            rounds = [compared(ways, number % 2, cold=cold) for number in range(_ROUNDS)]
            figures += [f"{statistics.median(times) * 1e6:.0f}" for times in zip(*rounds, strict=True)]
            ratios = sorted(asked / ahead for ahead, asked in rounds)
            low, middle, high = (ratios[len(ratios) * part // 4] for part in (1, 2, 3))
            gains.append(f"{middle:.2f}x ({low:.2f} to {high:.2f})")
        device = worked(ways[0])
        theirs = statistics.median(waited(lambda: eager(*inputs)) for _ in range(_ROUNDS))
    how = "graph" if switched[0].get("graph") else "direct"
    return f"| {name} | {how} | {device * 1e6:.0f} | {theirs * 1e6:.0f} | {' | '.join((*figures, *gains))} |"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problems", type=Path)
    parser.add_argument("results", type=Path)
    asked = parser.parse_args()
    print(title())
    print("\n| file | launched | device | eager | ahead | asked first | cold: ahead | asked first | gain | cold |\n|"
          + " --- |" * 10)
    for emitted in sorted(asked.results.rglob("*_new.py")):
        name = str(emitted.relative_to(asked.results)).removesuffix("_new.py")
        made = row(name, asked.problems / f"{name}.py", emitted)
        if made is not None:
            print(made, flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
