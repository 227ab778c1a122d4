"""From expressions to statements: where each value of a walk is computed, and how its loads are made.

A value is computed at one of four levels, by what it depends on:

    neither the row nor the lane    once per thread, before the walks ("fixed")
    the lane only                   an array over the lanes, before the walks
    the row only                    once per step of the walk
    both                            once per element

A *lane* ``v`` is one of a few neighbours along one axis that a thread handles together; a *window* ``q``
is the innermost row axis when it is unrolled beside the lanes (pooling).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.codegen.cuda.expressions import affine_text, apply_text, literal
from kernelwright.codegen.cuda.loops.site import Site, indent, loops, subscript
from kernelwright.codegen.terms import grouped
from kernelwright.plan.expressions import (
    Apply,
    Constant,
    Element,
    Expression,
    Guard,
    Index,
    Load,
    Reduced,
    is_whole,
    varies,
    walk,
)

WHOLE = "long long"
"""The C type of 64-bit integers."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A pointer parameter of a device kernel: its name and the C type of its elements."""

    name: str
    c_type: str


@dataclass(slots=True)
class Stored:
    """A load's place in registers, per step: ``count`` elements of ``c_type`` read by ``lines``."""

    name: str
    c_type: str
    count: int
    place: str
    lines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Kept:
    """A row value that stays between walks: in the array ``name`` of registers or of shared memory.

    ``slot`` is the text of its place in shared memory for a step, None for registers.
    """

    name: str
    lane: bool
    slot: str | None = None
    ready: bool = False


class Emitter:
    """Turns expressions into statements; one per device kernel.

    ``step`` is the subscript text of the current step (such as "[u]"). After ``start_walk`` the
    statements of a walk collect in ``row_loads``, ``row_lines``, ``lane_lines`` and ``late_lines``;
    ``fixed_lines`` collect what comes before the walk, ``fixed_types`` the types of the scalars that these define.
    """

    def __init__(
        self, site: Site, buffers: Sequence[Buffer], kept: dict[Expression, Kept] | None = None
    ) -> None:
        self.site = site
        self.buffers = buffers
        self.kept = kept or {}
        self.reduced: dict[tuple[int, int], str] = {}
        self.fixed_lines: list[str] = []
        self.fixed_types: dict[str, str] = {}
        self.vectors: set[str] = set()
        self.used: set[str] = set()
        self._fixed: dict[Expression, str] = {}
        self._count = 0
        self._filled = []
        self.start_walk("")

    def start_walk(self, step: str, load_step: str | None = None, keeping: bool = True) -> None:
        """Forget the values of the previous walk. ``load_step`` is the subscript of loads, if another;
        ``keeping``: whether values are kept, and kept ones read."""
        for kept in self._filled:
            kept.ready = True
        self._filled: list[Kept] = []
        self.step = step
        self.keeping = keeping
        self.load_step = step if load_step is None else load_step
        self.row_loads: list[Stored] = []
        self.row_lines: list[str] = []
        self.lane_lines: list[str] = []
        self.late_lines: list[str] = []
        self._walk: dict[Expression, str] = {}

    def fresh(self, prefix: str) -> str:
        """A new variable name."""
        self._count += 1
        return f"{prefix}{self._count - 1}"

    def depends(self, node: Expression) -> tuple[bool, bool]:
        """The level of a node: whether it depends on the row, and on the lane."""
        site = self.site
        row, lane, window = (varies(node, axes) for axes in (site.walked, site.lane_axes, site.window_axes))
        return row or window, lane or window or (node.reduced and site.per_outer)

    def value(self, node: Expression) -> str:
        """Text of a node's value, legal in its level and below it; defines what it needs."""
        text = ""
        for part in walk(node, into=self._is_open):
            text = self._value(part)
        return text

    def _is_open(self, node: Expression) -> bool:
        """Whether a value is still to be computed."""
        kept = self.kept.get(node) if self.keeping else None
        return node not in self._fixed and node not in self._walk and not (kept is not None and kept.ready)

    def _value(self, node: Expression) -> str:
        if isinstance(node, Constant):
            return literal(node.value, self.site.real)
        if isinstance(node, Reduced):
            return self.reduced[node.reduction, node.component]
        known = self._fixed.get(node) or self._walk.get(node)
        if known:
            return known
        row, lane = self.depends(node)
        kept = self.kept.get(node) if self.keeping else None
        if kept is not None and kept.ready:
            text = self._read_kept(kept)
        elif isinstance(node, Load):
            text = self._load(node, row, lane)
        else:
            text = self._define(node, row, lane)
        if kept is not None and not kept.ready:
            self._keep(kept, text)
        (self._walk if row else self._fixed)[node] = text
        return text

    def _define(self, node: Apply, row: bool, lane: bool) -> str:
        arguments = [self._value(argument) for argument in node.arguments]
        if isinstance(node, Element):
            buffer = self.buffers[node.buffer].name
            self.used.add(buffer)
            text = f"({self._type(node)}){buffer}[{arguments[0]}]"
        else:
            text = apply_text(node, arguments, self.site.real)
        name = self.fresh("t")
        if lane and not row:
            self.fixed_lines.append(f"{self._type(node)} {name}[{self.site.lanes}];")
            self.fixed_lines += loops(self.site, [f"{name}[v] = {text};"], window=False)
            return f"{name}[v]"
        lines = self.fixed_lines if not row else self.lane_lines if lane else self.row_lines
        lines.append(f"const {self._type(node)} {name} = {text};")
        if not row:
            self.fixed_types[name] = self._type(node)
        return name

    def _type(self, node: Expression) -> str:
        """The C type of a value."""
        return WHOLE if is_whole(node) else self.site.real

    def _otherwise(self, load: Load) -> str:
        """What a load gives where a guard fails."""
        return literal(int(load.otherwise) if load.whole else load.otherwise, self.site.real)

    def _load(self, load: Load, row: bool, lane: bool) -> str:
        stored = self._stored(load, self.fresh("x" if row else "b"), self.load_step if row else "")
        if row:
            self.row_loads.append(stored)
        else:
            array = f"[{stored.count}]" if lane else ""
            self.fixed_lines += [f"{stored.c_type} {stored.name}{array};", *stored.lines]
            if not lane:
                self.fixed_types[stored.name] = stored.c_type
        place = stored.name + (self.load_step if row else "") + stored.place
        c_type = self._type(load)
        return place if stored.c_type == c_type else f"({c_type})({place})" if load.whole else f"{c_type}({place})"

    def _stored(self, load: Load, name: str, step: str) -> Stored:
        """Plan the registers of a load: the elements that lanes and window touch, each read once."""
        site = self.site
        buffer = self.buffers[load.buffer]
        self.used.add(buffer.name)
        lane, window = site.lane_strides(load.index)
        count = (lane * (site.lanes - 1) if lane else 0) + (window * (site.window - 1) if window else 0) + 1
        factor = _common_factor(site, load) if lane >= 0 and window >= 0 else None
        needed = (site.lanes if lane else 1) * (site.window if window else 1)
        guards_move = any(any(site.lane_strides(guard.index)) for guard in load.guards)
        dependent = site.depends([load.index, *(g.index for g in load.guards)])[1]
        c_type = self._type(load) if load.guards else buffer.c_type
        target = name + step
        base = site.base(load.index)
        if not dependent:
            return Stored(
                name, c_type, 1, "", self._scalar(load, target, f"{buffer.name}[{base}]", c_type, "", "")
            )
        if factor is None or count > 2 * needed:
            place = subscript(site.window if site.lanes > 1 else 0, 1 if site.window > 1 else 0)
            at = subscript(lane, window)
            source = f"{buffer.name}[{base}{'' if at == '0' else ' + ' + at}]"
            lines = loops(site, self._scalar(load, f"{target}[{place}]", source, c_type, "v", "q"))
            return Stored(name, c_type, site.lanes * site.window, f"[{place}]", lines)
        stored = Stored(name, c_type, count, f"[{subscript(lane, window)}]")
        if count >= 4 and not guards_move and site.aligned(load.index) and c_type == buffer.c_type:
            self.vectors.add(buffer.name)
            for first in range(0, count - 3, 4):
                shift = f" + {first}" if first else ""
                stored.lines.append(f"kw_read4({target}{shift}, {buffer.name} + {grouped(f'{base}{shift}')});")
            for element in range(count - count % 4, count):
                stored.lines.append(f"{target}[{element}] = {buffer.name}[{base} + {element}];")
            if load.guards:
                fill = (
                    f"for (int e = 0; e < {count}; ++e) {target}[e] = {self._otherwise(load)};"
                )
                condition = " && ".join(self._guard(guard, "") for guard in load.guards)
                stored.lines = [
                    f"if ({condition}) {{",
                    *indent(stored.lines),
                    "} else {",
                    "#pragma unroll",
                    "  " + fill,
                    "}",
                ]
            return stored
        body = self._scalar(load, f"{target}[e]", f"{buffer.name}[{base} + e]", c_type, "e", factor)
        stored.lines = ["#pragma unroll", f"for (int e = 0; e < {count}; ++e) {{", *indent(body), "}"]
        return stored

    def _scalar(
        self, load: Load, target: str, source: str, c_type: str, lane: str, window: str | Mapping[Guard, int]
    ) -> list[str]:
        if not load.guards:
            return [f"{target} = {source};"]
        texts = []
        for guard in load.guards:
            if not isinstance(window, str):
                strides = (window[guard],)
                moved = affine_text(strides, ("e",), 0, False)
            else:
                moved = subscript(*self.site.lane_strides(guard.index))
            texts.append(self._guard(guard, "" if moved == "0" else moved))
        value = source if self.buffers[load.buffer].c_type == c_type else f"({c_type})({source})" if load.whole \
            else f"{c_type}({source})"
        return [f"{target} = {' && '.join(texts)} ? {value} : {self._otherwise(load)};"]

    def _guard(self, guard: Guard, moved: str) -> str:
        """Text of ``0 <= index < size``, in one unsigned comparison."""
        text = self.site.base(guard.index)
        if moved:
            text = (
                moved
                if text == "0"
                else f"{text} + {moved}"
                if not moved.startswith("-")
                else f"{text} - {moved[1:]}"
            )
        wide = self.site.long
        return f"({'(unsigned long long)' if wide else '(unsigned)'}({text}) < {guard.size}{'ULL' if wide else 'u'})"

    def _keep(self, kept: Kept, text: str) -> None:
        place = self._place(kept)
        if kept.slot is None:
            (self.lane_lines if kept.lane else self.row_lines).append(
                f"{kept.name}{self.step}{place} = {text};"
            )
        else:
            now = kept.name + "_now"
            count = self.site.lanes if kept.lane else 1
            self.row_lines.insert(0, f"{self.site.real} {now}{f'[{count}]' if kept.lane else ''};")
            (self.lane_lines if kept.lane else self.row_lines).append(f"{now}{place} = {text};")
            self.late_lines.append(
                self._copy(f"{kept.name} + {kept.slot}", now, count, kept.lane, write=True)
            )
        self._filled.append(kept)

    def _read_kept(self, kept: Kept) -> str:
        if kept.slot is None:
            return f"{kept.name}{self.step}{self._place(kept)}"
        count = self.site.lanes if kept.lane else 1
        name = self.fresh("x")
        line = self._copy(f"{kept.name} + {kept.slot}", name + self.load_step, count, kept.lane, write=False)
        self.row_loads.append(Stored(name, self.site.real, count, self._place(kept), [line]))
        return f"{name}{self.load_step}{self._place(kept)}"

    def _place(self, kept: Kept) -> str:
        return "[v]" if kept.lane and self.site.lanes > 1 else "[0]" if kept.lane else ""

    @staticmethod
    def _copy(shared: str, own: str, count: int, lane: bool, write: bool) -> str:
        if count == 4:
            return f"kw_write4({shared}, {own});" if write else f"kw_read4({own}, {shared});"
        cell, own = (
            f"({shared})[{'e' if count > 1 else '0'}]",
            f"{own}[{'e' if count > 1 else '0'}]" if lane else own,
        )
        loop = f"for (int e = 0; e < {count}; ++e) " if count > 1 else ""
        return loop + (f"{cell} = {own};" if write else f"{own} = {cell};")

    def store(self, buffer: Buffer, index: Index, node: Expression) -> None:
        """Write a node's value where the walk is; ``late_lines`` hold the vector writes."""
        text = self.value(node)
        text = (
            f"{text} != 0"
            if buffer.c_type == "bool"
            else text
            if buffer.c_type in (self.site.real, "kw_float16", "kw_bfloat16")  # whose assignment rounds
            else f"({buffer.c_type})({text})"
        )
        self.used.add(buffer.name)
        site = self.site
        lane = site.lane_strides(index)[0]
        base = site.base(index)
        if site.lanes == 4 and lane == 1 and site.aligned(index):
            self.vectors.add(buffer.name)
            name = self.fresh("y")
            self.row_lines.append(f"{buffer.c_type} {name}[4];")
            self.lane_lines.append(f"{name}[v] = {text};")
            self.late_lines += self.written(f"{buffer.name} + {grouped(base)}", name)
            return
        moved = subscript(lane, 0)
        at = (
            base
            if moved == "0"
            else f"{base} + {moved}"
            if not moved.startswith("-")
            else f"{base} - {moved[1:]}"
        )
        self.lane_lines.append(f"{buffer.name}[{at}] = {text};")

    def written(self, pointer: str, values: str) -> list[str]:
        """The statements that write the lanes' ``values`` to an aligned place."""
        return [f"kw_write4({pointer}, {values});"]


def _common_factor(site: Site, load: Load) -> dict[Guard, int] | None:
    """Per guard, its stride per element of the load's span; None if a guard is no function of the element."""
    lane, window = site.lane_strides(load.index)
    result = {}
    for guard in load.guards:
        strides = site.lane_strides(guard.index)
        step = next((g // s for g, s in zip(strides, (lane, window), strict=True) if s), 0)
        if strides != (step * lane, step * window):
            return None
        result[guard] = step
    return result
