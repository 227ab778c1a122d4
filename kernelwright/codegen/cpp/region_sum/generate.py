"""C++/OpenMP text of a region sum: one pass over the input at memory speed.

Three shapes of text. *Streaming*: column sums of rows in float64, in vectors, which memory feeds no faster
than sums of the input's type; after the rows of one membership the columns are added to tasks, and a
unit's tasks to its outputs. Units too few for the threads are split, and a second loop adds the
tasks of the parts in order. *Small*: units of a few hundred elements are reduced axis by axis in
float64, eight units side by side in the lanes of a vector. *Direct*: one loop nest per output, for
classes so fine that nothing is shared.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from kernelwright.codegen.cpp.region_sum import text
from kernelwright.codegen.cpp.support.snippets import used_snippets
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
from kernelwright.plan.kernels import RegionSum

DIALECT = Dialect("static inline", "static const")
SCALARS = {"float32": "float", "float64": "double", "float16": "kw_float16", "bfloat16": "kw_bfloat16"}
"""C type of the input; the output is float32 or float64."""

TILE = 2048
"""Columns of a tile where the innermost axis is kept: 8 KB of partial sums stay in the L1 cache."""
MAXIMAL_COLUMNS = 1024
PARTS = 64
"""Units times parts reach this number where the input is large, so that any machine's threads have work."""
ROWS_PER_PART = 64
UNIT_BYTES = (4096, 1 << 18)
"""Units of this size are fetched while the one before is summed: two fit in a core's L2 cache."""
SMALL_UNIT = 256
SMALL_BUFFER = 2048
STACK_BYTES = 1 << 19
SERIAL_ELEMENTS = 1 << 15
"""Below this many elements starting threads costs more than the sum."""


def _score(columns: int, alignment: int) -> float:
    del alignment
    if columns > MAXIMAL_COLUMNS:
        return 0.0
    return min(1.0, columns / 64) * (min(columns, 128) / 128) ** 0.02


def generate(kernel: RegionSum, name: str) -> KernelSource:
    """The C++ kernel that computes ``kernel``; its host function is ``name(x, out, workspace)``.

    x is contiguous, of ``kernel.input_dtype``; the output is of ``kernel.dtype``. Raises ValueError for a
    class outside its axis or another dtype.
    """
    if kernel.input_dtype not in SCALARS or kernel.dtype not in ("float32", "float64"):
        raise ValueError(f"a region sum cannot work from {kernel.input_dtype} to {kernel.dtype}")
    source = _definition(kernel, name)
    return replace(source, support=used_snippets(source.definition))


def _definition(kernel: RegionSum, name: str) -> KernelSource:
    axes = join_axes(kernel)
    elements = prod(kernel.shape)
    names: dict[str, object] = {
        "NAME": name,
        "IN": SCALARS[kernel.input_dtype],
        "OUT": SCALARS[kernel.dtype],
        "SCALE": repr(float(kernel.scale)),
        "IF": "" if elements >= SERIAL_ELEMENTS else " if(false)",
    }
    outputs = prod(axis.outputs for axis in axes)
    if outputs == 0:
        return KernelSource(name, fill(text.EMPTY, names, spare=names))
    if _is_small(axes):
        return KernelSource(name, _small(axes, name, names))
    try:
        stream = plan_stream(axes, _score, TILE)
        if 8 * len(stream.tasks) * (stream.columns if stream.tile_axis else 1) > STACK_BYTES:
            raise TooFineError
    except TooFineError:
        names["OUTPUTS"] = literal(outputs)
        return KernelSource(
            name, one_output_text(axes, name, str(names["IN"]), 1, DIALECT) + fill(text.DIRECT, names, spare=names)
        )
    return _streaming(stream, name, names, elements)


def _is_small(axes: tuple[Axis, ...]) -> bool:
    """Many short units: a kept axis (or none), then only reduced axes of few positions."""
    tail = axes[1:] if axes and axes[0].classes is None else axes
    if not tail or any(axis.classes is None or axis.size == 0 or axis.outputs == 0 for axis in tail):
        return False
    if prod(axis.size for axis in tail) > SMALL_UNIT or (len(tail) < len(axes) and axes[0].size == 0):
        return False
    sizes = [axis.size for axis in tail]
    for number in range(len(tail) - 1, -1, -1):
        sizes[number] = tail[number].outputs
        if prod(sizes) > SMALL_BUFFER:
            return False
    return True


def _small(axes: tuple[Axis, ...], name: str, names: dict[str, object]) -> str:
    kept = axes[0].size if axes[0].classes is None else 1
    tail = axes[1:] if axes[0].classes is None else axes
    sizes = [axis.size for axis in tail]
    room, size = prod(sizes), prod(sizes)
    pieces, calls = [], []
    for number in range(len(tail) - 1, -1, -1):
        classes = tail[number].classes or ()
        first = [0]
        for one in classes:
            first.append(first[-1] + len(one))
        flat = [p for one in classes for p in one]
        pieces.append(table(f"{name}_first{number}", first, DIALECT))
        for part, title in enumerate(("start", "stop", "step")):
            pieces.append(table(f"{name}_{title}{number}", [p[part] for p in flat], DIALECT))
        pieces.append(
            fill(
                text.SMALL_AXIS,
                {
                    **names,
                    "AXIS": number,
                    "SIZE": sizes[number],
                    "OUTPUTS": len(classes),
                    "OUTER": prod(sizes[:number]),
                    "INNER": prod(sizes[number + 1 :]),
                },
                spare=names,
            )
        )
        calls.append(f"    {name}_axis{number}(buffer{len(calls) % 2}, buffer{1 - len(calls) % 2});")
        sizes[number] = len(classes)
        room = max(room, prod(sizes))
    return "".join(pieces) + fill(
        text.SMALL,
        {
            **names,
            "UNITS": f"{kept}LL",
            "SIZE": size,
            "ROOM": room,
            "OUTPUTS": prod(sizes),
            "CALLS": "\n".join(calls),
            "LAST": len(calls) % 2,
        },
        spare=names,
    )


def _runs(columns: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Ascending columns as progressions (start, count, step), greedily."""
    result: list[tuple[int, int, int]] = []
    for column in columns:
        if result:
            start, count, step = result[-1]
            gap = column - (start + (count - 1) * step)
            if count == 1 or gap == step:
                result[-1] = (start, count + 1, gap)
                continue
        result.append((column, 1, 1))
    return result


def _lists_text(stream: Stream, name: str) -> str:
    first_task = [sum(atom < number for atom, _ in stream.tasks) for number in range(len(stream.atoms) + 1)]
    runs = [_runs(one) for one in stream.lists]
    first_run = [0]
    for one in runs:
        first_run.append(first_run[-1] + len(one))
    flat = [run for one in runs for run in one]
    lines = table(f"{name}_first_task", first_task, DIALECT)
    lines += table(f"{name}_task_list", [one for _, one in stream.tasks], DIALECT)
    lines += table(f"{name}_first_run", first_run, DIALECT)
    for part, title in enumerate(("start", "count", "step")):
        lines += table(f"{name}_run_{title}", [run[part] for run in flat], DIALECT)
    return lines + fill(text.RUN, {"NAME": name})


def _streaming(stream: Stream, name: str, names: dict[str, object], elements: int) -> KernelSource:
    kept_columns = stream.tile_axis is not None
    totals = len(stream.tasks) * (stream.columns if kept_columns else 1)
    split = 1
    if stream.units < PARTS and elements >= SERIAL_ELEMENTS:
        split = max(1, min(-(-PARTS // stream.units), stream.rows // ROWS_PER_PART))
    limits = {atom.limit for atom in stream.atoms}
    if kept_columns:
        limit = str(stream.columns) if stream.tiles == 1 else "columns"
    else:
        limit = str(stream.columns) if limits == {stream.columns} else f"{name}_limit(atom)"
    positions = stream.rows * stream.columns
    prefetch = ""
    contiguous = stream.kept and positions - stream.columns < stream.kept[-1].stride <= positions
    jumps = len(stream.atoms) > 1 and len(stream.atoms[0].counts) > 1
    if contiguous and jumps and UNIT_BYTES[0] <= positions * 4 <= UNIT_BYTES[1]:
        prefetch = text.PREFETCH
    names = {
        **names,
        "PREFETCH": prefetch,
        "POSITIONS": positions,
        "TOTALS": totals,
        "ATOMS": len(stream.atoms),
        "LIMIT": limit,
        "COLUMNS": stream.columns,
        "SPLIT": split,
        "OUTPUTS": len(stream.outputs),
        "UNITS": f"{stream.units}LL",
        "ALL_ROWS": f"{stream.rows}LL",
    }
    rows = fill_some(text.ROWS, {"PREFETCH": prefetch, "TASKS": text.TASKS_COLUMNS if kept_columns else text.TASKS})
    store = text.STORE_COLUMNS if kept_columns else text.STORE
    pieces = [
        walk_text(stream, name, DIALECT),
        place_text(stream, name, DIALECT),
        outputs_text(stream, name, DIALECT),
    ]
    if not kept_columns:
        pieces.append(_lists_text(stream, name))
    pieces.append(fill(rows + store + (text.SPLIT if split > 1 else text.WHOLE), names, spare=names))
    return KernelSource(name, "".join(pieces), 8 * stream.units * split * totals if split > 1 else 0)
