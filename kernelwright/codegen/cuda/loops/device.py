"""Device kernels of the loop skeleton: pointwise, reducing, partial and finishing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from kernelwright.codegen.cuda.expressions import C_TYPES, is_long
from kernelwright.codegen.cuda.loops.accumulators import Accumulator, accumulators
from kernelwright.codegen.cuda.loops.emitter import Buffer, Emitter, Kept
from kernelwright.codegen.cuda.loops.groups import (
    counter,
    merge_group,
    needs_active,
    partial_lines,
    place_in_block,
    row_steps,
    suffix,
    turned,
)
from kernelwright.codegen.cuda.loops.interior import interior, unguarded
from kernelwright.codegen.cuda.loops.normal_form import Pass
from kernelwright.codegen.cuda.loops.schedule import Schedule
from kernelwright.codegen.cuda.loops.site import Site, indent, loops
from kernelwright.codegen.cuda.loops.staged_columns import fill_lines
from kernelwright.codegen.cuda.loops.walk import Steps, walk_lines
from kernelwright.codegen.terms import times
from kernelwright.plan.expressions import Expression
from kernelwright.plan.kernels import LoopKernel, Store


@dataclass(slots=True)
class DeviceKernel:
    """A __global__ function's text and launch. ``arguments`` are the pointers it takes, in order."""

    name: str
    text: str
    arguments: list[str]
    grid: int
    threads: int
    shared_bytes: int = 0
    vectors: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Buffers:
    """Pointers by number: ``inputs`` (loads; workspace arrays follow the kernel's own), ``outputs`` (stores)."""

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]


def backwards(device: DeviceKernel) -> DeviceKernel:
    """The kernel with its blocks in the opposite order."""
    head, _, body = device.text.partition(") {\n")
    first = "  const unsigned block_number = gridDim.x - 1u - blockIdx.x;  // what was written last is in the cache\n"
    return replace(device, text=f"{head}) {{\n{first}{body.replace('blockIdx.x', 'block_number')}")


def points_kernel(
    kernel: LoopKernel, schedule: Schedule, buffers: Buffers, name: str, comment: str
) -> DeviceKernel:
    """A pointwise kernel: ``outer_stores`` at every outer point."""
    count = prod(kernel.outer)
    long = is_long(kernel)
    axes = tuple(range(len(kernel.outer)))
    site = Site(
        kernel.outer, (), _real(kernel), long, axes, axes[-1] if schedule.lanes > 1 else None, schedule.lanes
    )
    emitter = Emitter(site, buffers.inputs)
    lanes, unroll, threads = schedule.lanes, schedule.unroll, schedule.threads
    c_type = counter(count + 2 * threads * lanes * unroll)
    grid = -(-count // (threads * lanes * unroll))
    block = "(unsigned long long)blockIdx.x" if "long" in c_type else "blockIdx.x"
    first = (
        f"({block} * {unroll} + @) * {threads} + threadIdx.x"
        if unroll > 1
        else f"{block} * {threads} + threadIdx.x"
    )
    position = f"({first}) * {lanes}" if lanes > 1 else first
    limit = "" if grid * threads * lanes * unroll == count else f"{count}{suffix(c_type)}"
    stores = [(buffers.outputs[s.buffer], s) for s in kernel.outer_stores]
    lines = walk_lines(emitter, [Steps(position, unroll, unroll, limit, c_type)], (), stores)
    return assemble(name, comment, [*emitter.fixed_lines, *lines], emitter, buffers, [], grid, threads)


def reduction_kernel(
    kernel: LoopKernel,
    walks: Sequence[Pass],
    kept: Sequence[Expression],
    schedule: Schedule,
    buffers: Buffers,
    name: str,
    comment: str,
    partial: Buffer | None = None,
    taken: int = 0,
) -> DeviceKernel:
    """A kernel that walks the row for each pass, then stores; or one pass into ``partial``. Without ``walks`` a row is
    only stored, and may be in ``schedule.splits`` parts.

    ``partial`` takes the states of ``schedule.splits`` parts of every row, in double, as
    [outer point][part][component]. ``taken``: how many of the last outer axes are parts of one row.
    """
    outer, count = prod(kernel.outer), prod(kernel.row)
    rows = schedule.family == "rows"
    split = len(kernel.outer)
    lanes, group, threads = schedule.lanes, schedule.group, schedule.threads
    lane_axis = (split + len(kernel.row) - 1 if rows else split - 1) if lanes > 1 else None
    window = kernel.row[-1] if schedule.window else 1
    walked = tuple(range(split, split + len(kernel.row) - (1 if schedule.window else 0)))
    site = Site(
        kernel.outer,
        kernel.row,
        _real(kernel),
        is_long(kernel),
        walked,
        lane_axis,
        lanes,
        split + len(kernel.row) - 1 if schedule.window else None,
        window,
        taken,
    )
    steps = row_steps(schedule, count // window, lanes if rows else 1)
    slots = (
        {node: Kept(f"keep{n}", (not rows and lanes > 1) or lanes > 1) for n, node in enumerate(kept)}
        if schedule.keep
        else {}
    )
    emitter = Emitter(site, buffers.inputs, slots)
    columns = threads // group
    lines = place_in_block(site, schedule, outer, neighbours=not walks)
    lines += _keep_lines(emitter, schedule, count, steps, columns)
    if schedule.turned:
        lines += fill_lines(kernel, site, emitter, schedule, columns + 1)

    cut = schedule.keep == "shared" and 0 < schedule.kept_steps < steps.count
    inside = interior(kernel, site)

    def parts(number: int) -> list[Steps]:
        return steps.cut(schedule.kept_steps) if cut else [turned(steps, schedule, number)]

    per_thread = steps.count * window * (lanes if rows else 1)
    wide = site.real if per_thread <= 16 and group == 1 and schedule.splits == 1 else "double"
    for number, walk in enumerate(walks):
        states = accumulators(kernel, walk, site, wide)
        for state in states:
            state.shift(emitter)
        text = walk_lines(emitter, parts(number), states, ())
        if inside:
            plain = [replace(state, expression=unguarded(state.expression)) for state in states]
            straight = walk_lines(emitter, parts(number), plain, ())
            text = [f"if ({inside}) {{", *indent(straight), "} else {", *indent(text), "}"]
        lines += ["", *_take_fixed(emitter), *[line for s in states for line in s.declare()], *text]
        lines += merge_group(site, schedule, states, number, columns)
        if partial is None:
            lines += result_lines(emitter, states, count)
        else:
            lines += partial_lines(site, states, schedule, partial.name)
    if partial is None:
        if kernel.row_stores:
            stores = [(buffers.outputs[s.buffer], s) for s in kernel.row_stores]
            text = walk_lines(emitter, parts(len(walks)), (), stores, schedule.keep == "registers")
            guarded = ["if (active) {", *indent(text), "}"] if needs_active(schedule, outer) else text
            lines += ["", *_take_fixed(emitter), *guarded]
        lines += _outer_store_lines(emitter, kernel.outer_stores, buffers, schedule, outer)
    extra = [partial] if partial else []
    blocks = -(-outer // (columns * (1 if rows else lanes)))
    device = assemble(name, comment, lines, emitter, buffers, extra, blocks * schedule.splits, threads)
    if schedule.keep == "shared":
        device.shared_bytes = (
            len(kept) * _kept_count(schedule, count, columns) * (8 if site.real == "double" else 4)
        )
    return device


def finish_kernel(
    kernel: LoopKernel,
    walk: Pass,
    splits: int,
    buffers: Buffers,
    partial: Buffer,
    results: dict[tuple[int, int], Buffer],
    stores: Sequence[Store],
    name: str,
    comment: str,
) -> DeviceKernel:
    """Merge the parts of each row; write ``results`` (by reduction and component), then ``stores``."""
    outer, count = prod(kernel.outer), prod(kernel.row)
    group = 32 if splits <= 128 else 256 if splits <= 4096 else 1024
    threads = max(256, group)
    schedule = Schedule("rows", group=group, threads=threads)
    site = Site(kernel.outer, kernel.row, _real(kernel), is_long(kernel), ())
    emitter = Emitter(site, buffers.inputs)
    lines = place_in_block(site, schedule, outer)
    states = accumulators(kernel, walk, site, "double")
    width = sum(len(s.components) for s in states)
    merges, offset = [], 0
    for state in states:
        state.shift(emitter)
        merges += state.merge([f"part[{offset + c}]" for c in range(len(state.components))])
        offset += len(state.components)
    lines += [
        *_take_fixed(emitter),
        *[line for s in states for line in s.declare()],
        *(["#pragma unroll 4"] if splits > 4 * group else []),
        f"for (unsigned s = t; s < {splits}u; s += {group}u) {{",
        f"  const double* part = {partial.name} + {times(f'((unsigned long long)o * {splits} + s)', width)};",
        *indent(merges),
        "}",
    ]
    lines += merge_group(site, schedule, states, 0, threads // group)
    lines += result_lines(emitter, states, count)
    writes = [f"{buffer.name}[o] = {emitter.reduced[key]};" for key, buffer in results.items()]
    lines += _outer_store_lines(emitter, stores, buffers, schedule, outer, writes)
    extra = [partial, *results.values()]
    return assemble(name, comment, lines, emitter, buffers, extra, -(-outer // (threads // group)), threads)


def result_lines(emitter: Emitter, states: Sequence[Accumulator], count: int) -> list[str]:
    """Define the results of reductions, and tell the emitter their names."""
    site = emitter.site
    lines = []
    for state in states:
        body: list[str] = []
        for number, component, name, helpers, text in state.results(count):
            body += helpers
            if state.per_lane:
                lines.append(f"{site.real} {name}[{site.lanes}];")
                body.append(f"{name}[v] = {text};")
            else:
                body.append(f"const {site.real} {name} = {text};")
            emitter.reduced[number, component] = name + ("[v]" if state.per_lane else "")
        lines += loops(site, body, window=False) if state.per_lane else body
    return lines


def _real(kernel: LoopKernel) -> str:
    return C_TYPES[kernel.compute]


def _kept_count(schedule: Schedule, count: int, columns: int) -> int:
    """Elements of shared memory that one kept row value takes in a block."""
    if schedule.kept_steps:
        count = min(count, schedule.kept_steps * schedule.group * schedule.lanes)
    if schedule.turned:
        return count * (columns + 1)
    return count * columns * (1 if schedule.family == "rows" else schedule.lanes)


def _keep_lines(emitter: Emitter, schedule: Schedule, count: int, steps: Steps, columns: int) -> list[str]:
    """Declare the places of the kept row values."""
    site = emitter.site
    lines = []
    if not emitter.kept:
        return lines
    per_block = _kept_count(schedule, count, columns)
    if schedule.keep == "shared":
        lines.append(f"KW_DYNAMIC_SHARED({site.real}, kept);")
    for number, (node, kept) in enumerate(emitter.kept.items()):
        kept.lane = emitter.depends(node)[1]
        if schedule.keep == "registers":
            unrolled = f"[{steps.unroll}]" if steps.unroll > 1 else ""
            lines.append(f"{site.real} {kept.name}{unrolled}{f'[{site.lanes}]' if kept.lane else ''};")
            continue
        lines.append(f"{site.real}* {kept.name} = kept + {number * per_block};")
        if schedule.family == "rows":
            own = _kept_count(schedule, count, 1)
            kept.slot = "p" if columns == 1 else f"(threadIdx.x / {schedule.group}u * {own}u + p)"
        elif schedule.turned:
            kept.slot = f"(p * {columns + 1}u + column)"
        else:
            kept.slot = f"(p * {columns * schedule.lanes}u + column * {schedule.lanes}u)"
    return lines


def _take_fixed(emitter: Emitter) -> list[str]:
    lines, emitter.fixed_lines = emitter.fixed_lines, []
    return lines


def _outer_store_lines(
    emitter: Emitter,
    stores: Sequence[Store],
    buffers: Buffers,
    schedule: Schedule,
    outer: int,
    writes: Sequence[str] = (),
) -> list[str]:
    """The stores of outer points, by one thread of each group."""
    if not stores and not writes:
        return []
    emitter.start_walk("")
    for store in stores:
        emitter.store(buffers.outputs[store.buffer], store.index, store.expression)
    body = [*writes, *_take_fixed(emitter), *emitter.row_lines]
    body += (
        loops(emitter.site, emitter.lane_lines, window=False, lane=emitter.site.per_outer)
        if emitter.lane_lines
        else []
    )
    body += emitter.late_lines
    conditions = (["t == 0"] if schedule.group > 1 else []) + (
        ["active"] if needs_active(schedule, outer) else []
    )
    return ["", f"if ({' && '.join(conditions)}) {{", *indent(body), "}"] if conditions else ["", *body]


def assemble(
    name: str,
    comment: str,
    lines: Sequence[str],
    emitter: Emitter,
    buffers: Buffers,
    extra: Sequence[Buffer],
    grid: int,
    threads: int,
) -> DeviceKernel:
    """Assemble the function. Buffers in ``extra`` are doubles or results that it reads or writes."""
    if grid >= 2**31:
        raise ValueError(f"{name}: {grid} blocks exceed a grid")
    parameters, arguments = [], []
    inputs = {b.name for b in buffers.inputs}
    for buffer in dict.fromkeys((*buffers.inputs, *buffers.outputs, *extra)):
        if buffer.name in emitter.used or buffer in extra:
            constant = "const " if buffer.name in inputs and buffer not in extra else ""
            parameters.append(f"{constant}{buffer.c_type}* __restrict__ {buffer.name}")
            arguments.append(buffer.name)
    head = [f"// {line}" for line in comment.split("\n")]
    head.append(f"static __global__ void __launch_bounds__({threads}) {name}(")
    text = "\n".join([*head, "    " + ", ".join(parameters) + ") {", *indent(lines), "}", ""])
    return DeviceKernel(name, text, arguments, grid, threads, vectors=set(emitter.vectors))
