"""The text of one walk along the row: positions, loads in flight, elements, stores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from kernelwright.codegen.cuda.loops.accumulators import Accumulator
from kernelwright.codegen.cuda.loops.emitter import Buffer, Emitter
from kernelwright.codegen.cuda.loops.site import Site, indent, loops
from kernelwright.codegen.terms import modulo, over
from kernelwright.plan.kernels import Store


@dataclass(frozen=True, slots=True)
class Steps:
    """Which positions of the flattened walk a thread visits.

    position: text of the position of step ``@``. count: steps per thread. unroll: steps per trip.
    limit: text that the position stays below, or "" where it always does. c_type: of positions.
    backwards: whether the trips go from the last to the first. kept: whether values of these steps may be
    kept for later walks.
    """

    position: str
    count: int
    unroll: int
    limit: str
    c_type: str
    backwards: bool = False
    kept: bool = True

    def cut(self, first: int) -> list[Steps]:
        """The first steps, whose values are kept, and the rest, whose values are not."""
        left = self.count - first
        # Without a limit the trips must end where the steps do.
        unroll = min(self.unroll, left) if self.limit else gcd(self.unroll, left)
        rest = replace(self, position=self.position.replace("@", f"(@ + {first})"), count=left, unroll=unroll,
                       kept=False)
        return [replace(self, count=first, unroll=gcd(self.unroll, first), limit=""), rest]


def axis_lines(
    names: Sequence[str], sizes: Sequence[int], flat: str, long: bool, body: Sequence[str]
) -> list[str]:
    """Definitions of the axes' indices from a flat position, those that ``body`` uses."""
    text = "\n".join(body)
    lines = []
    suffix = "ULL" if long else "u"
    for axis, (name, size) in enumerate(zip(names, sizes, strict=True)):
        if not re.search(rf"\b{name}\b", text):
            continue
        inner = prod(sizes[axis + 1 :])
        value = over(flat, inner, suffix)
        if axis:
            value = modulo(value, size, suffix)
        lines.append(f"const int {name} = {value};" if size < 2**31 else f"const long long {name} = {value};")
    return lines


def walk_lines(
    emitter: Emitter,
    parts: Sequence[Steps],
    states: Sequence[Accumulator],
    stores: Sequence[tuple[Buffer, Store]],
    fused: bool = False,
) -> list[str]:
    """The statements of a walk in one or more parts. The emitter's fixed lines must come before them.

    The loads of a trip come before its first use of any, so that they are in flight together;
    ``fused`` leaves that to the compiler, for walks whose main values are in registers already.
    """
    texts = [_part_lines(emitter, part, states, stores, fused) for part in parts]
    return texts[0] if len(texts) == 1 else [line for text in texts for line in ("{", *indent(text), "}")]


def _part_lines(
    emitter: Emitter,
    steps: Steps,
    states: Sequence[Accumulator],
    stores: Sequence[tuple[Buffer, Store]],
    fused: bool,
) -> list[str]:
    site = emitter.site
    unrolled = steps.unroll > 1
    emitter.start_walk(
        "[u]" if unrolled else "", "[u]" if unrolled and not fused else "", keeping=steps.kept
    )
    elements: list[str] = []
    states = [replace(state, trip=steps.unroll) for state in states]
    for state in states:
        elements += state.element(emitter.value(state.expression))
    for buffer, store in stores:
        emitter.store(buffer, store.index, store.expression)
    lanes = loops(site, [*emitter.lane_lines, *elements]) if emitter.lane_lines or elements else []
    compute = [*emitter.row_lines, *lanes, *emitter.late_lines]
    reads = [line for stored in emitter.row_loads for line in stored.lines]
    arrays = []
    for stored in emitter.row_loads:
        dims = (f"[{steps.unroll}]" if unrolled and not fused else "") + (
            f"[{stored.count}]" if stored.place else ""
        )
        arrays.append(f"{stored.c_type} {stored.name}{dims};")
    step = (
        ("u" if steps.count <= steps.unroll else "(k + u)")
        if unrolled
        else ("0" if steps.count == 1 else "k")
    )
    begin = [line for state in states for line in state.begin()]
    end = [line for state in states for line in state.end()]
    if unrolled and reads and not fused:
        lines = [
            *arrays,
            *_stepped(site, steps, step, reads),
            *begin,
            *_stepped(site, steps, step, compute),
            *end,
        ]
    else:
        lines = [*begin, *_stepped(site, steps, step, [*arrays, *reads, *compute]), *end]
    if steps.count > steps.unroll:
        head = f"for ({steps.c_type} k = 0; k < {steps.count}; k += {steps.unroll}) {{"
        if steps.backwards:
            last = (steps.count - 1) // steps.unroll * steps.unroll
            head = f"for ({steps.c_type} k = {last + steps.unroll}; k > 0;) {{"
            lines = [f"k -= {steps.unroll};", *lines]
        lines = [head, *indent(lines), "}"]
    return lines


def _stepped(site: Site, steps: Steps, step: str, body: Sequence[str]) -> list[str]:
    sizes = site.outer + site.row
    names = [site.names[a] for a in site.walked]
    long = "long" in steps.c_type
    axes = axis_lines(names, [sizes[a] for a in site.walked], "p", long, body)
    body = [*axes, *body]
    uses = re.search(r"\bp\b", "\n".join(body)) or steps.limit
    if steps.limit:
        body = [f"if (p < {steps.limit}) {{", *indent(body), "}"]
    if uses:
        position = steps.position.replace("@", step)
        body = [f"const {steps.c_type} p = {_tidy(position)};", *body]
    if steps.unroll > 1:
        return ["#pragma unroll", f"for (int u = 0; u < {steps.unroll}; ++u) {{", *indent(body), "}"]
    return ["{", *indent(body), "}"] if uses else body


def _tidy(position: str) -> str:
    """A position without zero and unit factors."""
    position = re.sub(r"\b0 \* \d+u? \+ ", "", position)
    position = re.sub(r"^\(([^()]+)\)$", r"\1", position)
    return re.sub(r"\((\w+)\) \* 1u?$", r"\1", position)
