"""The running state of each reduction: how a thread adds elements, how states merge, what results.

Sums and the sums of exponentials are carried in double: a few elements (at most 32) are added in
the kernel's type, then the group goes into the wide sum, so the error does not grow with the row.
Products are in double, where none of floats leaves the range on the way.
Moments are sums of (x - shift) and (x - shift)**2 in double, shift being the row's first element,
which every thread of the row shares; merging them is then addition, and the cancellation in
E[d * d] - E[d]**2 is bounded by the row's length times 1e-16. The deviation, their variance's root, is
taken in double, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelwright.codegen.cuda.loops.emitter import Emitter
from kernelwright.codegen.cuda.loops.normal_form import Pass
from kernelwright.codegen.cuda.loops.site import Site, loops
from kernelwright.plan.expressions import Expression, Guard, Index, Load, Reduced, may_sum_to_minus_zero, replaced
from kernelwright.plan.expressions import walk as nodes
from kernelwright.plan.kernels import LoopKernel

RESULT_NAMES = {
    "sum": ("total",),
    "product": ("product",),
    "max": ("maximum",),
    "min": ("minimum",),
    "logsumexp": ("logsumexp",),
    "moments": ("mean", "variance", "deviation"),
}
"""Names of the results of a reduction, by kind; the reduction's number follows."""


@dataclass(slots=True)
class Accumulator:
    """One reduction's state in a thread.

    kind: a kind of :class:`Reduction`, or "softmax": the maximum and the sum of exp(e - maximum).
    numbers: the reductions that it answers (two for "softmax").
    wide: the C type of sums. ``per_lane``: lanes are different outer points, with a state each.
    deviation: whether moments give it. trip: steps of one trip of the walk, which sets it.
    """

    kind: str
    numbers: tuple[int, ...]
    expression: Expression
    site: Site
    wide: str
    deviation: bool = False
    trip: int = 1

    @property
    def per_lane(self) -> bool:
        return self.site.per_outer

    @property
    def components(self) -> list[tuple[str, str]]:
        """Names and C types of the state's variables."""
        n = self.numbers[0]
        real, wide = self.site.real, self.wide
        return {
            "sum": [(f"sum{n}", wide)],
            "product": [(f"running{n}", "double")],
            "max": [(f"top{n}", real)],
            "min": [(f"bottom{n}", real)],
            "logsumexp": [(f"top{n}", real), (f"scaled{n}", wide)],
            "softmax": [(f"top{n}", real), (f"scaled{n}", wide)],
            "moments": [(f"first{n}", "double"), (f"second{n}", "double")],
        }[self.kind]

    def at(self, name: str) -> str:
        """A state variable of the current lane."""
        return f"{name}[v]" if self.per_lane else name

    @property
    def _group(self) -> int:
        """Elements per trip and state."""
        return self.trip * self.site.window * (1 if self.per_lane else self.site.lanes)

    @property
    def direct(self) -> bool:
        """Whether a sum goes straight into its state."""
        return self.wide == self.site.real and (self.per_lane or self.site.lanes == 1)

    def declare(self) -> list[str]:
        """The state of no elements."""
        starts = {"top": "-INFINITY", "bottom": "INFINITY", "running": "1"}
        lines = []
        for name, c_type in self.components:
            start = starts.get(name.rstrip("0123456789"), "0")
            if self.per_lane:
                lines.append(f"{c_type} {name}[{self.site.lanes}];")
                lines += loops(self.site, [f"{name}[v] = {start};"], window=False)
            else:
                lines.append(f"{c_type} {name} = {start};")
        return lines

    def shift(self, emitter: Emitter) -> None:
        """Define the shift of moments among the fixed lines: the row's first element where it is finite."""
        if self.kind != "moments":
            return
        name, per_lane = f"shift{self.numbers[0]}", self.per_lane
        if not all(self.site.row):
            emitter.fixed_lines.append(f"const double {name} = 0;")
            return
        text = emitter.value(_at_row_start(self.expression, len(self.site.outer) - self.site.taken))
        value = f"{text} - {text} == 0 ? double({text}) : 0.0"
        if per_lane:
            emitter.fixed_lines += [
                f"double {name}[{self.site.lanes}];",
                *loops(self.site, [f"{name}[v] = {value};"], window=False),
            ]
        else:
            emitter.fixed_lines.append(f"const double {name} = {value};")

    def begin(self) -> list[str]:
        """At the start of a trip: the group's own variables."""
        n, real = self.numbers[0], self.site.real
        if self.kind == "sum" and not self.direct:
            return (
                [f"{real} part{n}[{self.site.lanes}] = {{}};"]
                if self.site.lanes > 1
                else [f"{real} part{n} = 0;"]
            )
        if self.kind in ("logsumexp", "softmax"):
            lanes = f"[{self.site.lanes}]" if self.per_lane else ""
            fill = [f"{self.at(f'value{n}')}[e] = -INFINITY;"]
            fill = ["#pragma unroll", f"for (int e = 0; e < {self._group}; ++e) {fill[0]}"]
            return [
                f"{real} value{n}{lanes}[{self._group}];",
                *(loops(self.site, fill, window=False) if self.per_lane else fill),
            ]
        return []

    def element(self, text: str) -> list[str]:
        """Add one element, at the level of the element."""
        n = self.numbers[0]
        match self.kind:
            case "sum":
                lane = "[v]" if self.site.lanes > 1 else ""
                return [f"{self.at(f'sum{n}')} += {text};" if self.direct else f"part{n}{lane} += {text};"]
            case "product":
                return [f"{self.at(f'running{n}')} *= double({text});"]
            case "max" | "min":
                name, function = ("top", "kw_maximum") if self.kind == "max" else ("bottom", "kw_minimum")
                name = self.at(f"{name}{n}")
                return [f"{name} = {function}({name}, {text});"]
            case "logsumexp" | "softmax":
                return [f"{self.at(f'value{n}')}[{self._slot()}] = {text};"]
        apart = f"apart{n}"
        first, second = (self.at(name) for name, _ in self.components)
        return [
            f"const double {apart} = double({text}) - {self.at(f'shift{n}')};",
            f"{first} += {apart};",
            f"{second} += {apart} * {apart};",
        ]

    def _slot(self) -> str:
        site = self.site
        terms = []
        inner = 1
        for name, count in (("q", site.window), ("v", 1 if self.per_lane else site.lanes), ("u", self.trip)):
            if count > 1:
                terms.append(name if inner == 1 else f"{name} * {inner}")
            inner *= count
        return " + ".join(reversed(terms)) or "0"

    def end(self) -> list[str]:
        """At the end of a trip: the group joins the state."""
        n = self.numbers[0]
        if self.kind == "sum" and not self.direct:
            if self.per_lane:
                return loops(self.site, [f"sum{n}[v] += part{n}[v];"], window=False)
            return [
                f"sum{n} += {self.wide}({_tree([f'part{n}[{v}]' for v in range(self.site.lanes)])});"
                if self.site.lanes > 1
                else f"sum{n} += part{n};"
            ]
        if self.kind in ("logsumexp", "softmax"):
            (top, _), (scaled, _) = self.components
            line = (
                f"kw_logsumexp_add<{self._group}>({self.at(top)}, {self.at(scaled)}, {self.at(f'value{n}')});"
            )
            return loops(self.site, [line], window=False) if self.per_lane else [line]
        return []

    def merge(self, other: Sequence[str]) -> list[str]:
        """Add another state, whose variables ``other`` names; at the level of the lane."""
        mine = [self.at(name) for name, _ in self.components]
        match self.kind:
            case "product":
                return [f"{mine[0]} *= {other[0]};"]
            case "max" | "min":
                function = "kw_maximum" if self.kind == "max" else "kw_minimum"
                return [f"{mine[0]} = {function}({mine[0]}, {other[0]});"]
            case "logsumexp" | "softmax":
                types = [c_type for _, c_type in self.components]
                return [
                    f"kw_logsumexp_merge({mine[0]}, {mine[1]}, {types[0]}({other[0]}), {types[1]}({other[1]}));"
                ]
        return [f"{name} += {text};" for name, text in zip(mine, other, strict=True)]

    def results(self, count: int) -> list[tuple[int, int, str, list[str], str]]:
        """(reduction, component, name, helper lines, text of the result) over rows of ``count`` elements."""
        real = self.site.real
        n = self.numbers[0]
        state = [self.at(name) for name, _ in self.components]
        match self.kind:
            case "sum":
                plus = f" + {real}(0)" * (self.direct and may_sum_to_minus_zero(self.expression))
                return [(n, 0, f"total{n}", [], f"{real}({state[0]}){plus}")]
            case "product":
                return [(n, 0, f"product{n}", [], f"{real}({state[0]})")]
            case "max" | "min":
                return [(n, 0, f"{'maximum' if self.kind == 'max' else 'minimum'}{n}", [], state[0])]
            case "logsumexp":
                return [(n, 0, f"logsumexp{n}", [], f"kw_logsumexp_result({state[0]}, {state[1]})")]
            case "softmax":
                # exp(e - maximum) is NaN somewhere in a row whose maximum is infinite.
                s = self.numbers[1]
                return [
                    (n, 0, f"maximum{n}", [], state[0]),
                    (
                        s,
                        0,
                        f"total{s}",
                        [],
                        f"{state[0]} - {state[0]} == 0 ? {real}({state[1]}) : {real}(NAN)",
                    ),
                ]
        centre = [
            f"const double centre{n} = {state[0]} / {count}.0;",
            f"const double spread{n} = {state[1]} / {count}.0 - centre{n} * centre{n};",
        ]
        results = [
            (n, 0, f"mean{n}", centre, f"{real}({self.at(f'shift{n}')} + centre{n})"),
            (n, 1, f"variance{n}", [], f"{real}(spread{n} < 0 ? 0.0 : spread{n})"),
        ]
        if self.deviation:
            results.append((n, 2, f"deviation{n}", [], f"{real}(spread{n} < 0 ? 0.0 : sqrt(spread{n}))"))
        return results


def _tree(terms: list[str]) -> str:
    while len(terms) > 1:
        pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
        terms = [f"({a[0]} + {a[1]})" if len(a) == 2 else a[0] for a in pairs]
    return terms[0]


def _at_row_start(expression: Expression, split: int) -> Expression:
    """The expression at the first point of the row."""

    def still(index: Index) -> Index:
        return Index(index.strides[:split] + (0,) * (len(index.strides) - split), index.offset)

    def change(node: Expression) -> Expression | None:
        if not isinstance(node, Load):
            return None
        return replace(
            node, index=still(node.index), guards=tuple(Guard(still(g.index), g.size) for g in node.guards)
        )

    return replaced(expression, change)


def accumulators(kernel: LoopKernel, walk: Pass, site: Site, wide: str) -> list[Accumulator]:
    """The states of one pass."""
    pairs = {top: number for number, top in walk.exponential_sums}
    stored = [s.expression for s in (*kernel.row_stores, *kernel.outer_stores)]
    used = {n for root in (*stored, *(r.expression for r in kernel.reductions)) for n in nodes(root)}
    result = []
    for number in walk.reductions:
        if number in pairs.values():
            continue
        reduction = kernel.reductions[number]
        kind, numbers = reduction.kind, (number,)
        if number in pairs:
            kind, numbers = "softmax", (number, pairs[number])
        result.append(Accumulator(kind, numbers, reduction.expression, site, wide, Reduced(number, 2) in used))
    return result
