"""What it gives a call that its kernels are launched before it is asked whether the model is as it was.

    kernelwright bench PROBLEMS --output RESULTS ...
    python benchmarks/launch_ahead.py PROBLEMS RESULTS       on a machine with a GPU: a table of RESULTS' emitted files

Each file's model is called in both ways and in PyTorch's, in turn; a call is waited for. ``device`` is what the device
works for a call of the file. Medians of rounds in microseconds, with the middle half of the ratio between both ways. A
file whose calls may not run in vain, or without kernels, is left out with a line.
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
_WARMING, _ROUNDS = 5, 41


def waited(call: Callable[[], object]) -> float:
    """Seconds of a call, from its beginning until its results are there."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


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
    model = new_model(emitted, problem, 0).cuda()
    eager: nn.Module = problem.make_model(0).cuda()
    eager.train(model.training)
    inputs = tree_map(lambda x: x.cuda() if isinstance(x, torch.Tensor) else x,
                                          problem.make_inputs(0))

    def ours(*, ahead: bool) -> Callable[[], object]:
        def call() -> object:
            for table in switched:
                table["ahead"] = ahead
            return model(*inputs)

        return call

    ways = {"ahead": ours(ahead=True), "asked": ours(ahead=False), "eager": lambda: eager(*inputs)}
    with torch.no_grad():
        for call in ways.values():
            for _ in range(_WARMING):
                call()
        if getattr(model, "why", dict)() or not switched:
            print(f"{name}: {getattr(model, 'why', dict)() or 'launches nothing ahead'}")
            return None
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(_ROUNDS):
            for way, call in ways.items():
                taken[way].append(waited(call))
        device = worked(ways["ahead"])
    gains = sorted(asked / ahead for asked, ahead in zip(taken["asked"], taken["ahead"], strict=True))
    low, middle, high = (gains[len(gains) * part // 4] for part in (1, 2, 3))
    figures = " | ".join(f"{statistics.median(times) * 1e6:.0f}" for times in taken.values())
    how = "graph" if switched[0].get("graph") else "direct"
    return f"| {name} | {how} | {device * 1e6:.0f} | {figures} | {middle:.2f}x ({low:.2f} to {high:.2f}) |"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problems", type=Path)
    parser.add_argument("results", type=Path)
    asked = parser.parse_args()
    print(title())
    print("\n| file | launched | device | ahead | asked first | eager | gain |\n|" + " --- |" * 7)
    for emitted in sorted(asked.results.rglob("*_new.py")):
        name = str(emitted.relative_to(asked.results)).removesuffix("_new.py")
        made = row(name, asked.problems / f"{name}.py", emitted)
        if made is not None:
            print(made, flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
