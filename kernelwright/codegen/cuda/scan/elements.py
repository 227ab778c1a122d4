"""The elements of a scan as CUDA text: loads into registers, values, stores.

A thread holds ``pieces`` vectors of ``lanes`` neighbours along the scanned axis (``lanes`` is 4 or 1). Text is
written for piece ``k`` and lane ``v``, at position ``p`` of lane 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelwright.codegen.cuda.expressions import C_TYPES, affine_text, apply_text, literal
from kernelwright.codegen.cuda.loops.emitter import WHOLE
from kernelwright.plan.expressions import Apply, Constant, Expression, Index, Load, Reduced, is_whole, walk
from kernelwright.plan.kernels import Extremum, Scan


def loads_of(roots: Sequence[Expression]) -> list[Load]:
    """The distinct loads below the roots, in order."""
    return [n for n in walk(*roots) if isinstance(n, Load)]


def moves(load: Load) -> bool:
    """Whether a load differs from position to position."""
    return bool(load.index.strides[-1]) or any(g.index.strides[-1] for g in load.guards)


def vectorises(kernel: Scan | Extremum) -> bool:
    """Whether four neighbours can be read and written at once: rows lie contiguously, aligned to four elements."""
    indices = [s.index for s in kernel.stores if s.index.strides[-1]]
    indices += [n.index for n in loads_of([kernel.expression, *(s.expression for s in kernel.stores)]) if moves(n)]
    return kernel.length % 4 == 0 and any(abs(i.strides[-1]) == 1 for i in indices)


def aligned(index: Index) -> bool:
    """Whether the four elements from a position that is a multiple of four are an aligned vector."""
    step = index.strides[-1]
    first = index.offset - (3 if step == -1 else 0)
    return abs(step) == 1 and first % 4 == 0 and all(s % 4 == 0 for s in index.strides[:-1])


@dataclass(slots=True)
class Points:
    """Text of a scan's elements. ``used`` collects the buffers that were read or written, ``vectors`` those that
    were four elements at a time."""

    kernel: Scan | Extremum
    lanes: int
    pieces: int
    long: bool
    names: list[str]
    used: set[str] = field(default_factory=set)
    vectors: set[str] = field(default_factory=set)
    registers: dict[Load, str] = field(default_factory=dict)
    states: dict[Expression, str] = field(default_factory=lambda: {Reduced(0): "state"})

    @property
    def real(self) -> str:
        return C_TYPES[self.kernel.compute]

    def type_of(self, node: Expression) -> str:
        """The C type of a value."""
        return WHOLE if is_whole(node) else self.real

    def at(self, index: Index) -> str:
        """The element number at lane 0."""
        return affine_text(index.strides, [*self.names, "p"], index.offset, self.long)

    def declare(self, loads: Sequence[Load]) -> list[str]:
        """Registers for loads that move; loads that do not are read here."""
        lines = []
        for load in loads:
            if load in self.registers:
                continue
            name = f"x{len(self.registers)}"
            c_type = C_TYPES[self.kernel.input_dtypes[load.buffer]]
            if moves(load):
                kind = self.type_of(load) if load.guards else c_type
                lines.append(f"{kind} {name}[{self.pieces}]{f'[{self.lanes}]' if self.lanes > 1 else ''};")
                place = f"{name}[k]{'[v]' if self.lanes > 1 else ''}"
                wanted = self.type_of(load)
                self.registers[load] = place if kind == wanted else f"({wanted})({place})"
            else:
                self.used.add(f"in{load.buffer}")
                lines.append(f"const {self.type_of(load)} {name} = {self._guarded(load, '')};")
                self.registers[load] = name
        return lines

    def _guarded(self, load: Load, shift: str) -> str:
        def moved(index: Index) -> str:
            step = index.strides[-1]
            return self.at(index) + (f" + {step} * v" if shift and step else "")

        text = f"({self.type_of(load)})(in{load.buffer}[{moved(load.index)}])"
        if not load.guards:
            return text
        wide, suffix = ("(unsigned long long)", "ULL") if self.long else ("(unsigned)", "u")
        conditions = [f"{wide}({moved(g.index)}) < {g.size}{suffix}" for g in load.guards]
        return f"{' && '.join(conditions)} ? {text} : " \
            + literal(int(load.otherwise) if load.whole else load.otherwise, self.real)

    def read(self, loads: Sequence[Load]) -> list[str]:
        """Fill the registers of moving loads for piece ``k``."""
        lines = []
        for load in loads:
            if not moves(load):
                continue
            self.used.add(f"in{load.buffer}")
            name = self.registers[load].rpartition("(")[2].split("[")[0]
            source = f"in{load.buffer}"
            if self.lanes == 1:
                text = self._guarded(load, "") if load.guards else f"{source}[{self.at(load.index)}]"
                lines.append(f"{name}[k] = {text};")
            elif not load.guards and aligned(load.index):
                self.vectors.add(source)
                back = load.index.strides[-1] == -1
                lines.append(f"kw_read4({name}[k], {source} + ({self.at(load.index)}{' - 3' if back else ''}));")
                if back:
                    lines.append(f"kw_reverse4({name}[k]);")
            else:
                step = load.index.strides[-1]
                text = self._guarded(load, "v") if load.guards else \
                    f"{source}[{self.at(load.index)}{f' + {step} * v' if step else ''}]"
                lines += ["#pragma unroll", f"for (int v = 0; v < {self.lanes}; ++v) {name}[k][v] = {text};"]
        return lines

    def value(self, node: Expression, memo: dict[Expression, str], lines: list[str], prefix: str) -> str:
        """The text of a value at (k, v); appends the definitions that it needs."""
        for part in walk(node, into=lambda part: part not in memo):
            if isinstance(part, Apply) and part not in memo:
                arguments = [self._text(argument, memo) for argument in part.arguments]
                name = f"{prefix}{len(memo)}"
                lines.append(f"const {self.type_of(part)} {name} = {apply_text(part, arguments, self.real)};")
                memo[part] = name
        return self._text(node, memo)

    def _text(self, node: Expression, memo: dict[Expression, str]) -> str:
        if isinstance(node, Constant):
            return literal(node.value, self.real)
        if isinstance(node, Load):
            return self.registers[node]
        return self.states[node] if isinstance(node, Reduced) else memo[node]

    def per_lane(self, lines: Sequence[str]) -> list[str]:
        """``lines`` for every lane."""
        if self.lanes == 1:
            return list(lines)
        return ["#pragma unroll", f"for (int v = 0; v < {self.lanes}; ++v) {{", *indent(lines), "}"]

    def write(self) -> tuple[list[str], list[str], list[str]]:
        """What declares the results of a piece, computes them from ``state`` at (k, v), and stores them."""
        declared, lines, late = [], [], []
        memo: dict[Expression, str] = {}
        for number, store in enumerate(self.kernel.stores):
            target = f"out{store.buffer}"
            c_type = C_TYPES[self.kernel.output_dtypes[store.buffer]]
            text = self.value(store.expression, memo, lines, "t")
            if c_type in ("kw_float16", "kw_bfloat16"):
                text = f"float({text})"  # the assignment rounds
            elif c_type != self.real:
                text = f"{text} != 0" if c_type == "bool" else f"({c_type})({text})"
            self.used.add(target)
            if self.lanes > 1 and aligned(store.index):
                self.vectors.add(target)
                back = store.index.strides[-1] == -1
                declared.append(f"{c_type} y{number}[4];")
                lines.append(f"y{number}[{'3 - v' if back else 'v'}] = {text};")
                late.append(f"kw_write4({target} + ({self.at(store.index)}{' - 3' if back else ''}), y{number});")
                continue
            step = store.index.strides[-1]
            lane = f" + {step} * v" if self.lanes > 1 and step else ""
            lines.append(f"{target}[{self.at(store.index)}{lane}] = {text};")
        return declared, lines, late


def indent(lines: Sequence[str], by: int = 2) -> list[str]:
    """Lines moved to the right; preprocessor lines stay."""
    return [line if line.startswith("#") or not line else " " * by + line for line in lines]
