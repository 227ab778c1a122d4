"""The CUDA skeleton of a contraction in float32 multiply-adds, for few channels, which tensor cores would pad.

A block stages the inputs of its tile, with those around it that taps reach, and the weights of its output channels in
shared memory, some input channels at a time. Each thread keeps sums of a few cells and output channels in registers:
an input that it reads serves all its output channels and the taps along its run, a weight all cells of the run. In
transposed convolutions a thread computes all phases of its cells, so that every entry of the weight meets each cell
once, and no product is with a zero between inputs. Threads that are neighbours store neighbours.

Sums are float32, added in one order: over channels, then taps; beyond 4096 products they have two levels, and
before that where the library's are more exact than one chain (`direct_conv.summation_blocks`). Inputs outside of x are
zeros that are multiplied, as in PyTorch's own loops: a weight that is Inf there gives NaN.

The least times on an H200 (bytes at 4.2 TB/s; operations at 60 of its 67 TFLOP/s) and what the model of
`direct_conv.schedules` predicts for a kernel, in milliseconds::

    contraction (batch x groups x channels in and out, size, window)     GFLOP     MB  least  model
    64 x 8 x 1, 1      512 x 512, 3 x 1                                    0.8   1072  0.255   0.30
    16 x 64 x 1, 1     512 x 512, 3 x 3, padded                            4.8   2147  0.511   0.64
    16 x 1 x 32, 16    16 x 32 x 64, 3 x 5 x 7, transposed                78.0    114  1.301   2.82
    16 x 1 x 32, 64    32 x 32 x 32, 5 x 5 x 5, transposed by 2          258.5   1092  4.308   9.79
    8 x 4 x 8, 8       12 x 24 x 48, 3 x 5 x 7, transposed by 2            5.9    128  0.099   0.25
    128 x 1 x 3, 16    16 x 32 x 32, 3 x 3 x 3, transposed by 2, odd       5.0   1033  0.246   0.43
    128 x 1 x 3, 16    the same with even outputs                          5.4   1099  0.262   0.37
    64 x 1 x 3, 16     32 x 32 x 32, 3 x 3 x 3, transposed by 2, odd       5.1   1049  0.250   0.43
"""

from __future__ import annotations

from math import prod

from kernelwright.codegen.cuda.direct_conv.cells import Schedule, phase_classes
from kernelwright.codegen.cuda.direct_conv.layout import Layout
from kernelwright.codegen.cuda.direct_conv.normal_form import normal_form
from kernelwright.codegen.cuda.direct_conv.pool import pools_whole_windows
from kernelwright.codegen.cuda.direct_conv.schedules import (
    fits,
    least_seconds,
    predicted_seconds,
    tensor_core_seconds,
)
from kernelwright.codegen.cuda.direct_conv.schedules import schedules as normal_schedules
from kernelwright.codegen.cuda.direct_conv.summation_blocks import blocks_first, library_roundings
from kernelwright.codegen.cuda.direct_conv.text import DeviceText, main_load
from kernelwright.codegen.cuda.host import alignment_check, head
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.contraction.record import Contraction

#: What tensor cores reach of that with few channels is a third to a half, and with three products for each an eighth.
_WORTH = 8.0
#: Roundings of sums, 1.3e-7 of the result, below which three products of tensor cores are less exact (measured).
_EXACT = 28.0


def schedules(kernel: Contraction, most: int = 12) -> list[Schedule]:
    """Schedules for a tuner, best guess first; none where a window does not fit shared memory, or no thread has what is
    pooled."""
    if kernel.pools and not pools_whole_windows(kernel):
        return []
    return list(normal_schedules(normal_form(kernel), most))


def suits(kernel: Contraction) -> bool:
    """Whether the skeleton is worth measuring: neighbours along the last axis are neighbours in memory, and it is fast,
    or as exact as the library where tensor cores are not. Of pools it takes those of windows that a thread has, where
    nothing else is stored; of reductions over positions none."""
    if kernel.position_reductions or (kernel.pools and not pools_whole_windows(kernel)):
        return False
    normal = normal_form(kernel)
    if not kernel.axes or not prod(normal.domain) or not prod(normal.left_domain):
        return False
    load = main_load(normal.left)
    steps = [load.index.strides[-1] if load else 0, *(s.index.strides[-1] for s in normal.stores)]
    if any(abs(step) > 1 for step in steps):
        return False
    # What pools slowly, but exactly, may as well leave the pool to another kernel.
    exact = not kernel.pools and blocks_first(normal) and library_roundings(normal) < _EXACT
    return is_fast(kernel) or (exact and bool(normal_schedules(normal)))


def is_fast(kernel: Contraction) -> bool:
    """Whether the model gives at most _WORTH times what tensor cores take at the least."""
    normal = normal_form(kernel)
    if least_seconds(normal) > _WORTH * tensor_core_seconds(normal):
        return False  # no schedule is looked for
    # The first with blocks of sums and the first without them, where there are both.
    seconds = [predicted_seconds(normal, schedule) for schedule in normal_schedules(normal)[:2]]
    return bool(seconds) and min(seconds) <= _WORTH * tensor_core_seconds(normal)


def generate(kernel: Contraction, name: str, schedule: Schedule | None = None) -> KernelSource:
    """The CUDA text of a contraction whose host function is ``name``. ``schedule`` replaces the chosen one, which is
    that of the number ``kernel.tiling``.

    Pointers must be aligned to 16 bytes where four inputs are read at once; the host function says so, and launches
    nothing, where one is not.
    Raises ValueError where no schedule fits a block, or that one does not, where a grid would exceed 2**31 - 1 blocks,
    and for pools of windows that no thread has all of.
    """
    if kernel.pools and not pools_whole_windows(kernel):
        raise ValueError(f"{name}: no pools of sums by float32 multiply-adds but of whole windows, and nothing else")
    normal = normal_form(kernel)
    texts, launches, vectors = [], [], set()
    if prod(normal.domain):
        if schedule is None:
            found, number = normal_schedules(normal), kernel.tiling if isinstance(kernel.tiling, int) else 0
            if number >= len(found):
                raise ValueError(f"{name}: there are {len(found)} schedules; windows fill shared memory, or channels "
                                 "that are reduced the registers of a thread, where there is none")
            schedule = found[number]
        for number, phases in enumerate(phase_classes(normal, schedule.split)):
            layout = Layout(normal, schedule, phases)
            if not fits(layout):
                raise ValueError(f"{name}: {schedule} does not fit a block")
            if prod(layout.grid) >= 2**31:
                raise ValueError(f"{name}: {prod(layout.grid)} blocks exceed a grid")
            device = DeviceText(layout)
            texts.append(device.text(f"k{number}_{name}", _comment(layout)))
            vectors |= device.vectors | (device.used - {b.name for b in device.inputs} if layout.pairs else set())
            arguments = ", ".join(b.name for b in (*device.inputs, *device.outputs) if b.name in device.used)
            launches.append(f'  KW_LAUNCH("{name}", k{number}_{name}, {prod(layout.grid)}, {layout.threads}, 0, '
                            f"stream, {arguments});")
    inputs = [f"in{n}" for n in range(len(kernel.input_dtypes))]
    outputs = [f"out{n}" for n in range(len(kernel.output_dtypes))]
    lines = [head(name, kernel.input_dtypes, kernel.output_dtypes),
             *(f"  (void){n};" for n in (["workspace"] if launches else [*inputs, *outputs, "workspace", "stream"])),
             *(f"  {line}" for line in alignment_check(name, [n for n in (*inputs, *outputs) if n in vectors]))]
    definition = "\n".join([*texts, *lines, *launches, "  return nullptr;", "}", ""])
    return KernelSource(name, definition, 0, ("check", *sorted(snippets_of(definition))))


def _comment(layout: Layout) -> str:
    kernel, plan = layout.kernel, layout.schedule
    size, window = (" x ".join(map(str, numbers)) for numbers in
                    ([a.out_size for a in kernel.axes], [a.kernel for a in kernel.axes]))
    of = " of each group" if kernel.groups > 1 else ""
    several = layout.phase_count > 1
    tile = " x ".join(map(str, plan.tile)) + (" cells" if several else " positions")
    pairs = f" for {plan.pairs} images or groups" if plan.pairs > 1 else ""
    lines = [f"Direct contraction in float32: {size} outputs of {kernel.out_channels} channels{of} from "
             f"{kernel.in_channels}, window {window}.",
             f"A block computes {tile} of {layout.columns} channels{pairs}, a thread {plan.run} of {plan.channels}."]
    if layout.blocks > 1 or (plan.block and layout.two_levels):
        lines.append(f"Products of {min(plan.block, plan.depth)} channels are one chain of additions; then chains are "
                     "added.")
    if several:
        lines.append(f"A cell is {' x '.join(str(len(p)) for p in layout.phases)} outputs, which read the same inputs.")
    return "\n".join(lines)
