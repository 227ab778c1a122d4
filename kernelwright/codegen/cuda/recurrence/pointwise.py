"""A recurrence without products for CUDA: every element goes through all steps by itself, in one thread."""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cuda.host import head
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.cuda.recurrence.cell import CellText
from kernelwright.codegen.source import KernelSource, text_beside
from kernelwright.codegen.template import fill
from kernelwright.plan.kernels import Recurrence

#: Threads of a block: fewer than elsewhere, as there are often few elements.
_THREADS = 64
#: Steps that are read at once, and values of all of these, at most.
_MOST_AHEAD, _MOST_READ = 16, 32


def generate(kernel: Recurrence, name: str) -> KernelSource:
    """The CUDA text of a recurrence without weights as the host function ``name``. Raises ValueError where a grid
    would exceed 2**31 - 1 blocks."""
    axes = [f"i{n}" for n in range(len(kernel.shape))]
    cell = CellText(kernel, ["n", *axes])
    points = prod(kernel.shape)
    grid = ceil(points / _THREADS)
    if grid >= 2**31:
        raise ValueError(f"{name}: {grid} blocks exceed a grid")
    ahead = max(1, min(kernel.steps, _MOST_AHEAD, _MOST_READ // max(1, len(cell.moving))))
    begin = [f"state[{s}] = {cell.initial_call(s, axes)};" for s in range(len(kernel.updates))]
    text = fill(text_beside(__file__, "pointwise.cuh"), {
        "NAME": name, "COMMENT": f"{kernel.steps} steps for each of {' x '.join(map(str, kernel.shape)) or 'one'}.",
        "STEPS": kernel.steps, "POINTS": points, "CONSTANTS": cell.constants, "AHEAD": ahead, "STEP": cell.step(),
        "INITIAL": "\n".join(cell.initial(s) for s in range(len(kernel.updates))), "THREADS": _THREADS,
        "PARAMETERS": ", ".join(cell.parameters()), "DECODE": _lines(_decode(kernel.shape, axes), 2),
        "BEGIN": _lines([*begin, *cell.reads("0", cell.still, "still")], 2),
        "READ": _lines(cell.reads("n", cell.moving, "x[a]"), 8), "WRITE": _lines(cell.writes("n", "y"), 8),
        "HEAD": head(name, kernel.input_dtypes, kernel.output_dtypes), "GRID": grid,
        "ARGUMENTS": ", ".join(cell.arguments()),
    })
    return KernelSource(name, text, 0, ("check", *sorted(snippets_of(text))))


def _decode(shape: tuple[int, ...], axes: list[str]) -> list[str]:
    """Lines that define the place of a point on each axis."""
    lines, inner = [], 1
    for size, axis in zip(reversed(shape), reversed(axes), strict=True):
        within = "point" if inner == 1 else f"point / {inner}"
        inner *= size
        within += f" % {size}" if inner < prod(shape) else ""
        lines.append(f"const int {axis} = static_cast<int>({within});")
    return [*lines[::-1], *(f"(void){axis};" for axis in axes)]


def _lines(lines: list[str], indent: int) -> str:
    return "\n".join(" " * indent + line for line in lines)
