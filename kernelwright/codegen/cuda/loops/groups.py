"""Groups of threads that share an outer point: their places, their steps along the row, and their merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from kernelwright.codegen.cuda.loops.accumulators import Accumulator
from kernelwright.codegen.cuda.loops.schedule import Schedule
from kernelwright.codegen.cuda.loops.site import Site, indent, loops
from kernelwright.codegen.cuda.loops.walk import Steps, axis_lines
from kernelwright.codegen.terms import modulo, over, times


def counter(bound: int) -> str:
    """The C type of positions up to ``bound``."""
    return "unsigned" if bound < 2**32 else "unsigned long long"


def suffix(c_type: str) -> str:
    """The suffix of literals of a type that ``counter`` gave."""
    return "ULL" if "long" in c_type else "u"


def row_steps(schedule: Schedule, count: int, lanes: int) -> Steps:
    """Positions of the group's threads along a row of ``count`` points, in vectors of ``lanes``."""
    vectors = count // lanes
    group, splits = schedule.group, schedule.splits
    chunk = -(-vectors // splits)
    steps = -(-chunk // group)
    unroll = min(schedule.unroll, steps) or 1
    c_type = counter(count + 2 * lanes * group * max(1, unroll))
    # A step's threads are neighbours; "first" is where this block's part of the row starts.
    inner = f"@ * {group}u + t" if group > 1 else "@"
    if splits > 1:
        inner = f"first + {inner}"
    position = f"({inner}) * {lanes}u" if lanes > 1 else f"({inner})"
    exact = splits == 1 and steps * group == vectors and steps % unroll == 0
    limit = "" if exact else "end" if splits > 1 else f"{count}{suffix(c_type)}"
    return Steps(position, max(steps, 0), unroll, limit, c_type)


def turned(steps: Steps, schedule: Schedule, number: int) -> Steps:
    """Every other walk that reads the row again goes backwards: what was read last is still in the cache."""
    if schedule.keep or number % 2 == 0 or steps.count <= steps.unroll:
        return steps
    return replace(steps, backwards=True)


def needs_active(schedule: Schedule, outer: int) -> bool:
    """Whether the last block has threads beyond the outer points."""
    columns = schedule.threads // schedule.group
    return outer % (columns * (1 if schedule.family == "rows" else schedule.lanes)) != 0


def place_in_block(site: Site, schedule: Schedule, outer: int, neighbours: bool = False) -> list[str]:
    """Which outer point (the first of its lanes) and which part of its row a thread takes.

    neighbours: whether blocks one after the other take the parts of a row, not a part of one row after the other.
    """
    group, threads, rows = schedule.group, schedule.threads, schedule.family == "rows"
    columns = threads // group
    lanes = 1 if rows else schedule.lanes
    blocks = -(-outer // (columns * lanes))
    long = outer + columns * lanes >= 2**32
    c_type = "unsigned long long" if long else "unsigned"
    lines = []
    block = "blockIdx.x"
    if schedule.splits > 1:
        splits = schedule.splits
        lines.append(f"const unsigned block = blockIdx.x / {splits}u, part = blockIdx.x % {splits}u;" if neighbours else
                     f"const unsigned block = {modulo(block, blocks, 'u')}, part = {over(block, blocks, 'u')};")
        block = "block"
    if rows:
        if group > 1:
            lines.append(f"const unsigned t = threadIdx.x % {group}u;  // place in the row's group")
        inner = (f"threadIdx.x / {group}u" if group > 1 else "threadIdx.x") if columns > 1 else ""
    elif group == 1:
        lines.append("const unsigned column = threadIdx.x;")
        inner = "column"
    else:
        lines.append(
            f"const unsigned column = threadIdx.x % {columns}u, t = threadIdx.x / {columns}u;  // t: turn on the row"
        )
        inner = "column"
    point = f"({c_type}){block}" if long else block
    if columns > 1:
        point = f"{point} * {columns}u + {inner}"
    if lanes > 1:
        point = f"({point}) * {lanes}u"
    if needs_active(schedule, outer):
        lines += [
            f"const {c_type} point = {point};",
            f"const bool active = point < {outer}{suffix(c_type)};",
            f"const {c_type} o = active ? point : {outer - lanes}{suffix(c_type)};",
        ]
    else:
        lines.append(f"const {c_type} o = {point};")
    names = site.names[: len(site.outer)]
    lines += axis_lines(names, site.outer, "o", long, names)
    if schedule.splits > 1:
        count = prod(site.row)
        step = schedule.lanes if rows else 1
        chunk = -(-(count // step) // schedule.splits)
        position = counter(count + 2 * chunk * step)
        end = times(f"(first + {chunk}u)", step, "u" if step > 1 else "")
        lines += [
            f"const {position} first = part * ({position}){chunk};",
            f"const {position} end = {end} < {count}{suffix(position)} ? {end} : {count}{suffix(position)};",
        ]
    return lines


def merge_group(
    site: Site, schedule: Schedule, states: Sequence[Accumulator], number: int, columns: int
) -> list[str]:
    """Merge the states of a group's threads, in a fixed order, so that each has the whole."""
    group = schedule.group
    if group == 1:
        return []
    lines = []
    variables = [pair for state in states for pair in state.components]
    if schedule.family == "rows":
        width = min(group, 32)
        body = [
            line
            for s in states
            for line in s.merge([f"__shfl_xor_sync(0xffffffffu, {name}, d)" for name, _ in s.components])
        ]
        lines += ["#pragma unroll", f"for (int d = {width // 2}; d > 0; d /= 2) {{", *indent(body), "}"]
        if group <= 32:
            return lines
        warps = schedule.threads // 32
        lines += [f"__shared__ {c_type} share{number}_{name}[{warps}];" for name, c_type in variables]
        lines += [
            "if (threadIdx.x % 32u == 0) {",
            *[f"  share{number}_{name}[threadIdx.x / 32u] = {name};" for name, _ in variables],
            "}",
            "__syncthreads();",
        ]
        # Every warp merges the warps' states again, its lanes taking them in turn: all threads have the whole.
        count = group // 32
        base = f"threadIdx.x % {count}u"
        if columns > 1:
            base = f"threadIdx.x / {group}u * {count}u + {base}"
        lines += [f"{name} = share{number}_{name}[{base}];" for name, _ in variables]
        head = f"for (int d = {count // 2}; d > 0; d /= 2) {{"
        return [*lines, "#pragma unroll", head, *indent(body), "}"]
    # Through shared memory: each outer point's states are merged by one thread, and read by all of the group.
    lanes = schedule.lanes
    slot = f"v * {columns}u + column" if lanes > 1 else "column"
    count = columns * lanes
    lines += [f"__shared__ {c_type} share{number}_{name}[{group}][{count}];" for name, c_type in variables]
    at = states[0].at if states else str
    lines += loops(
        site, [f"share{number}_{name}[t][{slot}] = {at(name)};" for name, _ in variables], window=False
    )
    lines.append("__syncthreads();")
    one = replace(site, lane_axis=None, lanes=1)
    merge = [
        line
        for s in states
        for line in replace(s, site=one).merge([f"share{number}_{name}[y][j]" for name, _ in s.components])
    ]
    body = [f"{c_type} {name} = share{number}_{name}[0][j];" for name, c_type in variables]
    body += ["#pragma unroll", f"for (int y = 1; y < {group}; ++y) {{", *indent(merge), "}"]
    body += [f"share{number}_{name}[0][j] = {name};" for name, _ in variables]
    back = [f"{at(name)} = share{number}_{name}[0][{slot}];" for name, _ in variables]
    return [
        *lines,
        f"for (unsigned j = threadIdx.x; j < {count}u; j += {schedule.threads}u) {{",
        *indent(body),
        "}",
        "__syncthreads();",
        *loops(site, back, window=False),
    ]


def partial_lines(site: Site, states: Sequence[Accumulator], schedule: Schedule, partial: str) -> list[str]:
    """Write the states of this block's part of the row."""
    width = sum(len(s.components) for s in states)
    names = [s.at(name) for s in states for name, _ in s.components]
    per_lane = site.per_outer
    point = "(o + v)" if per_lane else "o"
    part = f"{point} * {schedule.splits} + part" if schedule.splits > 1 else point
    body = [f"double* part_of = {partial} + {times(f'((unsigned long long){part})', width)};"]
    body += [f"part_of[{n}] = {name};" for n, name in enumerate(names)]
    body = loops(site, body, window=False) if per_lane else body
    conditions = (["t == 0"] if schedule.group > 1 else []) + (
        ["active"] if needs_active(schedule, prod(site.outer)) else []
    )
    return [f"if ({' && '.join(conditions)}) {{", *indent(body), "}"] if conditions else body
