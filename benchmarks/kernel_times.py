"""Where the time of emitted files goes: the device time of each kernel, and what lies between kernels.

    kernelwright bench KernelBench --output results ...
    python benchmarks/kernel_times.py results KernelBench -o benchmarks/results/kernel_times_h200.jsonl

For each verified problem of a `bench` folder: its `ModelNew` is called on a cold second-level cache under PyTorch's
profiler. A record has the problem, the microseconds from the start of the call's first kernel to the end of its last
one, of these the microseconds in no kernel, and each kernel in order with its own (medians over the calls).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from statistics import median
from types import ModuleType

import torch
from torch.profiler import ProfilerActivity, profile

CALLS = 7


def loaded(path: Path) -> ModuleType:
    """The module of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def calls_of(model: torch.nn.Module, inputs: list, flush: torch.Tensor) -> list[list]:
    """The device events of each of `CALLS` calls, in order of time."""
    for _ in range(3):
        model(*inputs)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        for _ in range(CALLS):
            flush.zero_()
            torch.cuda._sleep(2_000_000)  # the host is ahead when the call's first kernel may start
            model(*inputs)
            torch.cuda.synchronize()
    events = sorted((e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA),
                    key=lambda e: e.time_range.start)
    calls: list[list] = []
    for event in events:
        if "spin_kernel" in event.name:
            calls.append([])
        elif calls and not ("FillFunctor" in event.name and event.time_range.elapsed_us() > 40) \
                and not event.name.startswith("Memset"):
            calls[-1].append(event)
    return calls


def record(problem: str, folder: Path, sources: Path) -> dict:
    """What one problem's emitted file spends its time on."""
    original = loaded(sources / f"{problem}.py")
    emitted = loaded(folder / f"{problem}_new.py")
    torch.manual_seed(0)
    arguments = original.get_init_inputs() if hasattr(original, "get_init_inputs") else []
    with torch.device("cuda"):
        model, inputs = emitted.ModelNew(*arguments), original.get_inputs()
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    with torch.no_grad():
        calls = calls_of(model, inputs, flush)
    alike = [c for c in calls if [e.name for e in c] == [e.name for e in calls[-1]]]
    spans = [c[-1].time_range.end - c[0].time_range.start for c in alike]
    kernels = [{"name": column[0].name[:60], "us": round(median(e.time_range.elapsed_us() for e in column), 2)}
               for column in zip(*alike, strict=True)]
    idle = [s - sum(e.time_range.elapsed_us() for e in c) for s, c in zip(spans, alike, strict=True)]
    return {"problem": problem, "calls": len(alike), "us": round(median(spans), 2), "idle_us": round(median(idle), 2),
            "kernels": kernels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path, help="the output folder of kernelwright bench")
    parser.add_argument("sources", type=Path, help="the folder of problems that it ran on")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=(), help="parts of names")
    options = parser.parse_args()
    records = {(r := json.loads(text))["problem"]: r for text in (options.results / "results.jsonl").open()}
    names = [n for n, r in records.items() if r["state"] == "verified"
             and (not options.only or any(o in n for o in options.only))]
    with options.output.open("w") as out:
        for name in names:
            try:
                found = record(name, options.results, options.sources)
            except Exception as exception:
                print(f"{name}: {type(exception).__name__}: {exception}", file=sys.stderr)
                continue
            print(json.dumps(found), file=out, flush=True)
            print(f"{name[:50]:50} {found['us']:9.1f} us, {found['idle_us']:6.1f} between kernels: "
                  + ", ".join(f"{k['us']:.0f}" for k in found["kernels"]))
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
