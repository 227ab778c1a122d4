"""A reduction whose row stores lie across its walk, as two kernels: first the results, then the stores.

Reading the rows once more, in the order that suits the stores, costs less than stores of which each moves a sector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from kernelwright.codegen.loops.order import WASTEFUL, Access, Memory, accesses, waste
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.terms import plus
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.expressions import Index, Load, Reduced, replaced, walk
from kernelwright.plan.kernels import LoopKernel, Store

TILED = 1.3
"""What moving bytes through tiles costs, relative to a walk in which every access is in order."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The two kernels. The first has ``results`` outputs more, which the second reads as inputs behind the others.

    ``bytes``: of each of those arrays.
    """

    first: LoopKernel
    second: LoopKernel
    results: int
    bytes: int


def apart(kernel: LoopKernel, order: Sequence[int], memory: Memory) -> Parts | None:
    """The parts of a kernel that walks its outer and row axes in ``order``, or None where one kernel is better."""
    if not kernel.reductions or not kernel.row_stores or not prod(kernel.row):
        return None
    points = _points(kernel)
    found = accesses(points)
    sizes = points.outer
    read = {n for r in kernel.reductions for n in walk(r.expression) if isinstance(n, Load)}

    def cost(access: Access) -> float:
        return access.footprint(sizes) * waste(access, order, sizes, memory)

    together = sum(cost(access) for node, access in found.items() if node not in read)
    if together <= TILED * sum(access.footprint(sizes) for access in dict.fromkeys(found.values())):
        return None
    used = sorted({
        (n.reduction, n.component) for s in kernel.row_stores for n in walk(s.expression) if isinstance(n, Reduced)
    })
    strides = tuple(prod(kernel.outer[axis + 1:]) for axis in range(len(kernel.outer)))
    strides += (0,) * len(kernel.row)
    first = replace(
        kernel,
        row_stores=(),
        outer_stores=kernel.outer_stores + tuple(
            Store(len(kernel.output_dtypes) + n, Index(strides), Reduced(*key)) for n, key in enumerate(used)
        ),
        output_dtypes=kernel.output_dtypes + (kernel.compute,) * len(used),
    )
    values = {Reduced(*key): Load(len(kernel.input_dtypes) + n, Index(strides)) for n, key in enumerate(used)}
    second = replace(
        points,
        outer_stores=tuple(Store(s.buffer, s.index, replaced(s.expression, values.get)) for s in kernel.row_stores),
        input_dtypes=kernel.input_dtypes + (kernel.compute,) * len(used),
    )
    return Parts(first, second, len(used), prod(kernel.outer) * ITEM_BYTES[kernel.compute])


def lying_across(kernel: LoopKernel, order: Sequence[int], memory: Memory) -> tuple[Load, ...]:
    """The loads of a reduction that waste sectors where its points are walked in ``order``, if they weigh."""
    sizes = kernel.outer + kernel.row
    everything = tuple(Store(0, Index((0,) * len(sizes)), r.expression) for r in kernel.reductions)
    found = accesses(replace(_points(kernel), outer_stores=everything + kernel.row_stores))
    loads = {node: access for node, access in found.items() if isinstance(node, Load)}
    total = sum(access.footprint(sizes) for access in dict.fromkeys(loads.values()))
    return tuple(
        node for node, access in loads.items()
        if access.footprint(sizes) * 32 > total and waste(access, order, sizes, memory) >= WASTEFUL
    )


def _at(offset: int) -> str:
    """A place in the workspace."""
    return plus("static_cast<char*>(workspace)", f"{offset}LL" if offset else 0)


def _points(kernel: LoopKernel) -> LoopKernel:
    """The row stores as a pointwise kernel."""
    return replace(kernel, outer=kernel.outer + kernel.row, row=(), reductions=(), row_stores=(),
                   outer_stores=kernel.row_stores)


def generate_parts(
    parts: Parts,
    name: str,
    kernel: LoopKernel,
    generate: Callable[[LoopKernel, str], KernelSource],
    types: dict[str, str],
    stream: bool,
) -> KernelSource:
    """The host function ``name`` that calls both parts, behind their own definitions.

    generate: the target's skeleton. types: its C type per dtype. stream: whether host functions take a CUDA stream.
    """
    sources = [generate(parts.first, f"{name}_rows"), generate(parts.second, f"{name}_points")]
    room = -(-parts.bytes // 256) * 256
    inputs = [f"in{n}" for n in range(len(kernel.input_dtypes))]
    outputs = [f"out{n}" for n in range(len(kernel.output_dtypes))]
    parameters = [f"const {types[d]}* {n}" for n, d in zip(inputs, kernel.input_dtypes, strict=True)]
    parameters += [f"{types[d]}* {n}" for n, d in zip(outputs, kernel.output_dtypes, strict=True)]
    parameters += ["void* workspace", *(["cudaStream_t stream"] if stream else [])]
    found = [f"result{n}" for n in range(parts.results)]
    behind = ["rest", *(["stream"] if stream else [])]
    real = types[kernel.compute]
    lines = [
        "// The results of the rows, then what is stored at every point.",
        f"static const char* {name}({', '.join(parameters)}) {{",
        *(f"  {real}* const {r} = reinterpret_cast<{real}*>({_at(n * room)});" for n, r in enumerate(found)),
        f"  void* const rest = {_at(room * parts.results)};",
        f"  const char* const failure = {sources[0].name}({', '.join([*inputs, *outputs, *found, *behind])});",
        "  if (failure != nullptr) return failure;",
        f"  return {sources[1].name}({', '.join([*inputs, *found, *outputs, *behind])});",
        "}",
        "",
    ]
    text = "\n".join([*(source.definition for source in sources), "\n".join(lines)])
    support = tuple(dict.fromkeys(s for source in sources for s in source.support))
    workspace = room * parts.results + max(source.workspace_bytes for source in sources)
    return KernelSource(name, text, workspace, support)
