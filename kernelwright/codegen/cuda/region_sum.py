"""CUDA text of a region sum: one pass over the input at memory speed.

A group of up to 32 threads owns the columns of a row, 16 bytes per thread where the rows are
aligned, and adds row after row; several rows are in flight at once. Partial sums in the input's
type cover few rows (ROWS_PER_PROMOTION) and are promoted into float64. Every group walks a contiguous share
of the unit's rows; where the membership of rows changes it writes its column sums to its own slot
in shared memory, and after the last row the block adds slots and columns to tasks, and tasks to
outputs. Units too few for the device are split over blocks, whose tasks a second kernel adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelwright.codegen.cuda import region_sum_text as text
from kernelwright.codegen.region_axes import Axis, TooFineError, join_axes
from kernelwright.codegen.region_text import (
    Dialect,
    literal,
    one_output_text,
    outputs_text,
    place_text,
    table,
    walk_text,
)
from kernelwright.codegen.regions import Stream, plan_stream
from kernelwright.codegen.source import KernelSource
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.kernels import RegionSum

DIALECT = Dialect("static __device__ __forceinline__", "static __device__ const")
SCALARS = {"float32": "float", "float64": "double", "float16": "kw_float16", "bfloat16": "kw_bfloat16"}
"""C type of the input; the output is float32 or float64."""

MULTIPROCESSORS = 132
BLOCKS_PER_MULTIPROCESSOR = 8
THREADS = 128
IN_FLIGHT = 32
"""Elements that a thread loads before it adds them."""
OWNED = 8
"""Most columns that a thread owns: each has a float64 accumulator in registers."""
ROWS_PER_PROMOTION = 16
ROWS_PER_PROMOTION_KEPT = 8
"""Where columns are kept no further sum averages the rounding errors."""
SHARED_BYTES = 40960


@dataclass(frozen=True, slots=True)
class Layout:
    """How a stream plan lies on the device.

    ``vector`` elements per load, ``loads`` vectors per thread and row, ``rows`` rows in flight,
    ``group`` threads per row, ``streams`` groups per unit in a block, ``units`` units per block,
    ``split`` blocks per unit, ``slots`` column arrays per unit, ``padded`` columns of a slot;
    ``shared`` tells whether the slots are in shared memory or in the workspace.
    """

    vector: int
    loads: int
    rows: int
    group: int
    streams: int
    units: int
    split: int
    slots: int
    padded: int
    shared: bool

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.group * self.streams * self.units


def _power(value: int) -> int:
    """The smallest power of two that is at least ``value``."""
    return 1 << max(0, value - 1).bit_length()


def _lanes(columns: int, alignment: int, size: int) -> tuple[int, int, int]:
    vector = min(alignment & -alignment if alignment else 16, 16 // size)
    vectors = -(-columns // vector)
    group = min(32, _power(vectors))
    return vector, group, -(-vectors // group)


def _score(size: int):
    def score(columns: int, alignment: int) -> float:
        vector, group, loads = _lanes(columns, alignment, size)
        if vector * loads > OWNED:
            return 0.0
        width = {2: 0.5, 4: 0.7, 8: 0.9}.get(vector * size, 1.0)
        line = min(1.0, columns * size / 128)  # a row shorter than a cache line wastes part of its sectors
        return columns / (group * loads * vector) * width * line * (group / 32) ** 0.1 * 0.98**loads

    return score


def _layout(stream: Stream, size: int, elements: int) -> Layout:
    vector, group, loads = _lanes(stream.columns, stream.alignment, size)
    rows = 1 << (max(1, min(8, IN_FLIGHT // (vector * loads))).bit_length() - 1)
    groups = THREADS // group
    fill = MULTIPROCESSORS * BLOCKS_PER_MULTIPROCESSOR * groups
    streams = 1
    while streams < groups and stream.units * streams < fill and stream.rows >= 2 * streams * rows:
        streams *= 2
    units = groups // streams
    split = 1
    if streams == groups and stream.units * groups < fill:
        wanted = -(-MULTIPROCESSORS * BLOCKS_PER_MULTIPROCESSOR * 2 // stream.units)
        split = max(1, min(wanted, stream.rows // (groups * 4 * rows)))
    padded = -(-stream.columns // vector) * vector

    def slot_bytes() -> int:
        totals = 0 if stream.tile_axis is not None else 8 * units * len(stream.tasks)
        return 8 * units * (len(stream.atoms) + streams - 1) * padded + totals

    while slot_bytes() > SHARED_BYTES and units > 1 and group * streams * units > 64:
        units //= 2
    while slot_bytes() > SHARED_BYTES and streams > 1 and split == 1 and group * streams > 64:
        streams //= 2
    shared = slot_bytes() <= SHARED_BYTES
    slots = len(stream.atoms) + streams - 1
    blocks = -(-stream.units // units) * split
    if units * len(stream.tasks) > 2048 or (
        not shared and blocks * units * slots * padded * 64 > elements * size
    ):
        raise TooFineError
    return Layout(vector, loads, rows, group, streams, units, split, slots, padded, shared)


def generate(kernel: RegionSum, name: str) -> KernelSource:
    """The CUDA kernel that computes ``kernel``; its host function is ``name(x, out, workspace, stream)``.

    x is contiguous, 16-byte aligned, of ``kernel.input_dtype``; the output is of ``kernel.dtype``. Raises
    ValueError for a class outside its axis or another dtype.
    """
    if kernel.input_dtype not in SCALARS or kernel.dtype not in ("float32", "float64"):
        raise ValueError(f"a region sum cannot work from {kernel.input_dtype} to {kernel.dtype}")
    axes = join_axes(kernel)
    size = ITEM_BYTES[kernel.input_dtype]
    names = {
        "NAME": name,
        "IN": SCALARS[kernel.input_dtype],
        "SUM": "float" if size == 2 else SCALARS[kernel.input_dtype],
        "OUT": SCALARS[kernel.dtype],
        "SCALE": repr(float(kernel.scale)),
    }
    try:
        stream = plan_stream(axes, _score(size), 128)
        layout = _layout(stream, size, prod(kernel.shape))
    except TooFineError:
        return _direct(axes, name, names)
    return _streaming(stream, layout, name, names)


def _fill(template: str, names: dict[str, object]) -> str:
    for key in sorted(names, key=len, reverse=True):
        template = template.replace(f"@{key}@", str(names[key]))
    return template


def _direct(axes: tuple[Axis, ...], name: str, names: dict[str, object]) -> KernelSource:
    outputs = prod(axis.outputs for axis in axes)
    if outputs == 0:
        return KernelSource(name, _fill(text.EMPTY, names), 0, ("check",))
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
    definition = one_output_text(axes, name, str(names["IN"]), lanes, DIALECT) + _fill(text.DIRECT, names)
    return KernelSource(name, definition, 0, _support(definition))


def _support(definition: str) -> tuple[str, ...]:
    return ("check", *(name for name in ("kw_bfloat16", "kw_float16") if f"{name}*" in definition))


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


@dataclass(frozen=True, slots=True)
class Vector:
    """``width`` neighbours in one register: CUDA's vector types; 16-bit numbers lie in pairs in unsigned words."""

    scalar: str
    width: int

    @property
    def narrow(self) -> bool:
        """Whether the elements have 16 bits."""
        return self.scalar.startswith("kw_")

    @property
    def words(self) -> list[str]:
        """What selects each word of the register."""
        count = -(-self.width // 2) if self.narrow else self.width
        return [".x", ".y", ".z", ".w"][:count] if count > 1 else [""]

    @property
    def c_type(self) -> str:
        """The register's C type."""
        if self.narrow and self.width == 1:
            return "unsigned short"
        element = "unsigned" if len(self.words) == 1 else "uint"
        element = element if self.narrow else self.scalar
        return element if len(self.words) == 1 else f"{element}{len(self.words)}"

    @property
    def zero(self) -> str:
        """A register of zeros."""
        return "0" if len(self.words) == 1 else f"make_{self.c_type}({', '.join(['0'] * len(self.words))})"

    def element(self, register: str, number: int) -> str:
        """The value of one element."""
        if not self.narrow:
            return register + self.words[number]
        word = register + self.words[number // 2]
        return f"{self.scalar}_value({f'{word} >> 16' if number % 2 else word})"

    def load(self, register: str, number: int, address: str) -> str:
        """Statement that reads one element into a register of zeros."""
        if not self.narrow:
            return f"{register}{self.words[number]} = __ldg({address});"
        return f"{register}{self.words[number // 2]} |= unsigned(({address})->bits) << {number % 2 * 16};"


def _adds(rows: int, vector: Vector) -> str:
    """Lines that add the loaded rows pairwise to the partial sums."""
    lines = []
    width = vector.width
    for number in range(width):
        terms = [vector.element(f"value[{row}][v]", number) for row in range(rows)]
        while len(terms) > 1:
            terms = [f"({a} + {b})" for a, b in zip(terms[::2], terms[1::2], strict=True)]
        lines.append(f"        partial[v * {width} + {number}] += {terms[0]};")
    return "\n".join(lines)


def _streaming(stream: Stream, layout: Layout, name: str, names: dict[str, object]) -> KernelSource:
    width = layout.vector
    vector = Vector(str(names["IN"]), width)
    rows = layout.rows
    kept_columns = stream.tile_axis is not None
    limits = {atom.limit for atom in stream.atoms} | ({stream.tile_axis.size} if stream.tile_axis else set())
    ragged = any(limit % width for limit in limits)
    tasks = len(stream.tasks)
    longest = _power(max(map(len, stream.lists), default=1))
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
    tail = (
        ""
        if width == 1
        else " else if (ragged) {\n"
        + "\n".join(
            f"    if (column + {i} < limit) " + vector.load("value", i, f"row + column + {i}") for i in range(width)
        )
        + "\n  }"
    )
    names = {
        **names,
        "VECTOR": vector.c_type,
        "WIDTH": width,
        "RAGGED": tail,
        "ZERO": vector.zero,
        "ROWS": rows,
        "LOADS": layout.loads,
        "OWNED": layout.loads * width,
        "BATCHES": max(1, (ROWS_PER_PROMOTION_KEPT if kept_columns else ROWS_PER_PROMOTION) // rows),
        "GROUP": layout.group,
        "ADDS": _adds(rows, vector),
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
        body = text.STORE_COLUMNS.replace("@PARTS@", parts).replace("@RESULT@", result)
        body = body.replace("@ITEMS@", "@TASKS@" if split else "@OUTPUTS@")
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
    pieces.append(_fill(text.LOAD + body + text.HOST, {**names, "FINISH": finish}))
    definition = "".join(pieces)
    return KernelSource(name, definition, workspace, _support(definition))
