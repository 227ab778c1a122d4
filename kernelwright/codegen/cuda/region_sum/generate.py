"""CUDA text of a region sum: one pass over the input at memory speed.

A group of up to 32 threads owns the columns of a row, 16 bytes per thread where the rows are
aligned, and adds row after row; several rows are in flight at once, which are added pairwise in the
input's type and then to sums in float64. Every group walks a contiguous share of the unit's rows;
where the membership of rows changes it writes its column sums to its own slot in shared memory, and
after the last row the block adds slots and columns to tasks, and tasks to outputs. Units too few for
the device are split over blocks, whose tasks a second kernel adds.
"""

from __future__ import annotations

from math import prod

from kernelwright.codegen.cuda.loops.schedule import power_at_least
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.cuda.region_sum import text
from kernelwright.codegen.cuda.region_sum.layout import (
    BLOCKS_PER_MULTIPROCESSOR,
    THREADS,
    Layout,
    lay_out,
    score_of,
)
from kernelwright.codegen.cuda.region_sum.vector import Vector, adds_text, ragged_text
from kernelwright.codegen.region_sum.axes import Axis, TooFineError, join_axes
from kernelwright.codegen.region_sum.planning import Stream, plan_stream
from kernelwright.codegen.region_sum.text import (
    Dialect,
    literal,
    one_output_text,
    outputs_text,
    place_text,
    table,
    walk_text,
)
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.template import fill, fill_some
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.kernels import RegionSum

DIALECT = Dialect("static __device__ __forceinline__", "static __device__ const")
SCALARS = {"float32": "float", "float64": "double", "float16": "kw_float16", "bfloat16": "kw_bfloat16"}
"""C type of the input; the output is float32 or float64."""


def generate(kernel: RegionSum, name: str) -> KernelSource:
    """The CUDA kernel that computes ``kernel``; its host function is ``name(x, out, workspace, stream)``.

    x is contiguous, 16-byte aligned, of ``kernel.input_dtype``; the output is of ``kernel.dtype``. Raises
    ValueError for a class outside its axis or another dtype.
    """
    if kernel.input_dtype not in SCALARS or kernel.dtype not in ("float32", "float64"):
        raise ValueError(f"a region sum cannot work from {kernel.input_dtype} to {kernel.dtype}")
    axes = join_axes(kernel)
    size = ITEM_BYTES[kernel.input_dtype]
    names: dict[str, object] = {
        "NAME": name,
        "IN": SCALARS[kernel.input_dtype],
        "OUT": SCALARS[kernel.dtype],
        "SCALE": repr(float(kernel.scale)),
    }
    try:
        stream = plan_stream(axes, score_of(size), 128)
        layout = lay_out(stream, size, prod(kernel.shape))
    except TooFineError:
        return _direct(axes, name, names)
    return _streaming(stream, layout, name, names)


def _direct(axes: tuple[Axis, ...], name: str, names: dict[str, object]) -> KernelSource:
    outputs = prod(axis.outputs for axis in axes)
    if outputs == 0:
        return KernelSource(name, fill(text.EMPTY, names, spare=names), 0, ("check",))
    reduced = [axis for axis in axes if axis.classes is not None]
    longest = (
        max((len(range(*p)) for one in (reduced[-1].classes or ()) for p in one), default=1) if reduced else 1
    )
    lanes = 32 if longest >= 16 else 1
    names = {
        **names,
        "LANES": lanes,
        "OUTPUTS": literal(outputs),
        "BLOCKS": f"{-(-outputs * lanes // 256)}LL",
    }
    definition = one_output_text(axes, name, str(names["IN"]), lanes, DIALECT) + fill(text.DIRECT, names, spare=names)
    return KernelSource(name, definition, 0, ("check", *sorted(snippets_of(definition))))


def _lists_text(stream: Stream, name: str) -> str:
    """``NAME_column(list, i)``, by arithmetic where every list is a progression."""
    lines = table(f"{name}_task_atom", [atom for atom, _ in stream.tasks], DIALECT)
    lines += table(f"{name}_task_list", [one for _, one in stream.tasks], DIALECT)
    lines += table(f"{name}_list_length", [len(one) for one in stream.lists], DIALECT)
    steps = [one[1] - one[0] if len(one) > 1 else 1 for one in stream.lists]
    regular = all(
        column == one[0] + i * step
        for one, step in zip(stream.lists, steps, strict=True)
        for i, column in enumerate(one)
    )
    if regular:
        lines += table(f"{name}_list_start", [one[0] for one in stream.lists], DIALECT)
        lines += table(f"{name}_list_step", steps, DIALECT)
        body = f"{name}_list_start(list) + i * {name}_list_step(list)"
    else:
        first = [0]
        for one in stream.lists:
            first.append(first[-1] + len(one))
        lines += table(f"{name}_list_first", first, DIALECT)
        lines += table(f"{name}_list_column", [column for one in stream.lists for column in one], DIALECT)
        body = f"{name}_list_column({name}_list_first(list) + i)"
    return lines + f"{DIALECT.function} int {name}_column(int list, int i) {{ return {body}; }}\n"


def _streaming(stream: Stream, layout: Layout, name: str, names: dict[str, object]) -> KernelSource:
    width = layout.vector
    vector = Vector(str(names["IN"]), width)
    rows = layout.rows
    kept_columns = stream.tile_axis is not None
    limits = {atom.limit for atom in stream.atoms} | ({stream.tile_axis.size} if stream.tile_axis else set())
    ragged = any(limit % width for limit in limits)
    tasks = len(stream.tasks)
    longest = power_at_least(max(map(len, stream.lists), default=1))
    room = 1 << max(0, (4 * layout.threads // (layout.units * tasks)).bit_length() - 1)
    blocks = -(-stream.units // layout.units) * layout.split
    slot_elements = layout.units * layout.slots * layout.padded
    split = layout.split > 1
    totals = (stream.columns if kept_columns else 1) * tasks
    workspace = 8 * blocks * totals if split else 0
    if layout.shared:
        slots = f"  __shared__ double slots[{slot_elements}];"
    else:
        slots = (
            f"  double* slots = scratch + {literal(workspace // 8)} + "
            f"static_cast<long long>(blockIdx.x) * {literal(slot_elements)};"
        )
        workspace += 8 * blocks * slot_elements
    call = f"{name}_add<false>(x + x_offset, walk, stop - row, limit, lane, sums);"
    if ragged and width > 1:
        call = f"if (limit % {width}) {call.replace('false', 'true')}\n      else {call}"
    names = {
        **names,
        "VECTOR": vector.c_type,
        "WIDTH": width,
        "RAGGED": ragged_text(vector),
        "ZERO": vector.zero,
        "ROWS": rows,
        "LOADS": layout.loads,
        "OWNED": layout.loads * width,
        "GROUP": layout.group,
        "ADDS": adds_text(rows, vector),
        "THREADS": layout.threads,
        "RESIDENT": BLOCKS_PER_MULTIPROCESSOR * THREADS // layout.threads,
        "SPLIT": layout.split,
        "UNITS": layout.units,
        "STREAMS": layout.streams,
        "GROUPS": layout.units * layout.streams,
        "SLOTS": slots,
        "ALL_UNITS": f"{stream.units}LL",
        "ALL_ROWS": f"{stream.rows}LL",
        "ALL_STREAMS": layout.streams * layout.split,
        "ATOMS": len(stream.atoms),
        "LIMIT": "columns" if kept_columns else f"{name}_limit(atom)",
        "CALL": f"      {call}",
        "SLOT_COUNT": layout.slots,
        "PADDED": layout.padded,
        "TASKS": tasks,
        "TASK_LANES": max(1, min(32, longest, room)),
        "OUTPUTS": len(stream.outputs),
        "COLUMNS": stream.columns,
        "BLOCKS": f"{blocks}LL",
    }
    pieces = [
        walk_text(stream, name, DIALECT),
        place_text(stream, name, DIALECT),
        outputs_text(stream, name, DIALECT),
    ]
    if kept_columns:
        parts, result = (text.PARTS_SPLIT, text.RESULT_SPLIT) if split else (text.PARTS, text.RESULT)
        body = fill_some(text.STORE_COLUMNS, {"PARTS": parts, "RESULT": result,
                                              "ITEMS": "@TASKS@" if split else "@OUTPUTS@"})
        body = text.STREAM + body + (text.FINISH_COLUMNS if split else "")
    else:
        pieces.append(_lists_text(stream, name))
        body = text.STREAM + text.TASKS + (text.STORE_SPLIT if split else text.STORE)
    finish = ""
    if split:
        threads = stream.units * len(stream.outputs) * (stream.columns if kept_columns else 32)
        finish = (
            f'  KW_LAUNCH("{name}", {name}_finish, {-(-threads // 256)}LL, 256, 0, stream, scratch, out);\n'
        )
    pieces.append(fill(text.LOAD + body + text.HOST, {**names, "FINISH": finish}, spare=names))
    definition = "".join(pieces)
    return KernelSource(name, definition, workspace, ("check", *sorted(snippets_of(definition))))
