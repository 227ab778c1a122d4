"""From eager's time to that of the file, by cause, as far as these are known.

What was measured counts as it was measured. What the cost model says counts as its share: of the modelled time of the
captured program, taken of the measured time. What neither explains is said to be unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.records import KernelUse, Mode
from kernelwright.report import units
from kernelwright.report.html.program import MEASURED, MODELLED, kernel_seconds, modelled_seconds
from kernelwright.report.measured import OURS
from kernelwright.roofline.devices import Device
from kernelwright.timing.baselines import CANDIDATE, DIRECT, EAGER, GRAPH
from kernelwright.timing.speedup import UNKNOWN

UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class Cause:
    """What the time becomes less by (more, where ``saved`` is negative), in seconds. known: `MEASURED`, `MODELLED` or
    `UNEXPLAINED`. words: what it is, and of how much it is known."""

    name: str
    saved: float
    known: str
    words: str


def waterfall(mode: Mode, device: Device) -> dict[str, Any] | None:
    """The rows of the waterfall and what they rest on, in words; None where the file has no program for the mode."""
    launch = device.launch_seconds
    model = modelled_seconds(mode.captured_steps, launch)
    if not mode.steps or not model:
        return None
    times, why = measured_times(mode)
    begins = times[0] if times is not None else model
    causes = [c for c in (*modelled(mode, launch, begins / model), *measured(mode)) if c.saved]
    ends = begins - sum(cause.saved for cause in causes)
    if times is not None:
        causes.append(Cause("not attributed", ends - times[1], UNEXPLAINED,
                            "the measured difference that none of these explains: schedules, caches, and what the cost "
                            "model does not know"))
        ends = times[1]
    words = [f"{MODELLED.capitalize()}: the cost model's share of each cause, of a captured program for which it "
             f"expects {units.seconds(model)}"
             + (f" and {units.seconds(begins)} were measured (calls on flushed caches)." if times is not None else ".")]
    if times is None:
        words.append(f"No end of it was measured: {why}. All times are the cost model's.")
    if any(cause.known == MEASURED for cause in causes):
        words.append("Measured: kernels beside the torch calls that they replace, in the running program with warm "
                     "caches, and both ways of launching.")
    return {"rows": _rows(begins, ends, causes, MEASURED if times is not None else MODELLED), "words": words}


def measured_times(mode: Mode) -> tuple[tuple[float, float] | None, str]:
    """(seconds of eager and of the file, "") where these hold; (None, why not) elsewhere."""
    timing = mode.timing
    if timing is None or EAGER not in timing.entries or CANDIDATE not in timing.entries:
        return None, "nothing was timed"
    found = timing.speed_up(EAGER)
    if found is not None and found.verdict == UNKNOWN:
        return None, found.why
    return (timing.entries[EAGER].median, timing.entries[CANDIDATE].median), ""


def modelled(mode: Mode, launch: float, scale: float) -> list[Cause]:
    """The causes that the cost model knows. scale: seconds for one of its seconds."""
    captured = mode.captured_steps
    before = len(captured), sum(step.seconds for step in captured)
    left = (mode.rewritten_operators, mode.rewritten_seconds) if mode.rules else before
    algebra = before[1] - left[1] + launch * (before[0] - left[0])
    known = {name for region in mode.regions for name in region.kernels} | set(kernel_seconds(mode))
    replaced = {n for step in mode.steps if step.is_kernel and step.name in known for n in step.replaces}
    others = [step for step in mode.steps if not (step.is_kernel and step.name in known)]
    kernels = [step for step in others if step.is_kernel]
    traffic = left[1] - sum(captured[n].seconds for n in replaced) - sum(step.seconds for step in others)
    fewer = left[0] - len(replaced) - len(others)
    if not kernels:  # what is left is PyTorch's on both sides
        traffic = fewer = 0
    keep = "keeps to itself" if len(kernels) == 1 else "keep to themselves"
    return [
        Cause("algebra", scale * algebra, MODELLED, f"{units.counted(left[0], 'operator')} in place of the {before[0]} "
              "that were captured"),
        Cause("fusion", scale * traffic, MODELLED, f"values that {units.counted(len(kernels), 'kernel')} {keep}, and "
              "that no longer go through memory"),
        Cause("fewer launches", scale * launch * fewer, MODELLED, f"{len(others)} in place of {len(others) + fewer}"),
    ]


def measured(mode: Mode) -> list[Cause]:
    """The causes that were measured one by one."""
    uses = [k.contraction for k in _each(mode) if k.contraction is not None and k.contraction.seconds]
    schemes = ", ".join(dict.fromkeys(use.scheme for use in uses))
    regions = sum(region.torch_seconds - region.seconds for region in mode.regions)
    count = sum(len(region.kernels) for region in mode.regions)
    found = [
        Cause("contractions: precision and schedule", sum(use.torch_seconds - use.seconds for use in uses), MEASURED,
              f"{units.counted(len(uses), 'product or convolution', 'products and convolutions')} of our own "
              f"({schemes}), beside the library's; the two causes were not measured apart"),
        Cause("fusion", regions, MEASURED, f"{units.counted(count, 'kernel')}, each with the torch calls that it "
              "replaces, launches included"),
    ]
    timing = mode.timing
    if timing is not None and timing.launch == GRAPH and timing.launches:
        saved = timing.launches[DIRECT].median - timing.launches[GRAPH].median
        found.append(Cause("launches", saved, MEASURED, "one CUDA graph in place of one launch for each step"))
    return found


def _each(mode: Mode) -> list[KernelUse]:
    """The kernels of the program, one that is called twice twice."""
    kernels = {kernel.name: kernel for kernel in mode.kernels}
    return [kernels[step.name] for step in mode.steps if step.is_kernel and step.name in kernels]


def _rows(begins: float, ends: float, causes: Sequence[Cause], known: str) -> list[dict[str, Any]]:
    """The bars from above, with places in percent of the widest."""
    edges = [begins]
    for cause in causes:
        edges.append(edges[-1] - cause.saved)
    low, high = min(0.0, *edges, ends), max(*edges, ends)

    def bar(first: float, second: float) -> dict[str, str]:
        left, right = sorted((first, second))
        return {"left": f"{100 * (left - low) / (high - low):.2f}",
                "width": f"{100 * (right - left) / (high - low):.2f}"}

    rows = [{"name": EAGER, "time": units.seconds(begins), "known": known, "words": "", "kind": "total",
             **bar(0.0, begins)}]
    for cause, before, after in zip(causes, edges, edges[1:]):
        sign = "+" if cause.saved < 0 else "-"
        rows.append({"name": cause.name, "time": f"{sign}{units.seconds(abs(cause.saved))}", "known": cause.known,
                     "words": cause.words, "kind": cause.known, **bar(before, after)})
    rows.append({"name": OURS, "time": units.seconds(ends), "known": known, "words": "", "kind": "total",
                 **bar(0.0, ends)})
    return rows
