"""Text that every loop schedule shares: frames, index decoding, vector loops with guards, stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import partial
from itertools import pairwise
from math import prod
from typing import Protocol

from kernelwright.codegen.cpp.expressions import (
    TYPES,
    Scope,
    angles,
    cost,
    element_text,
    fixed_divisors,
    guard_text,
    guarded_text,
    index_text,
    otherwise_text,
    unnamed_loads,
)
from kernelwright.codegen.cpp.support.snippets import used_snippets
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.terms import grouped
from kernelwright.plan.expressions import Apply, Constant, Expression, Guard, Index, Load, is_whole, varies, walk
from kernelwright.plan.kernels import LoopKernel, Store

SERIAL_WORK = 30_000
"""Below this many multiply-adds and memory operations, threads cost more than they save."""


RUN = 256
"""Elements of float16 that are converted together, and of angles that are tested together."""
MOST_RUNS = 8
"""Most arrays for them; a written-out window has more loads, which overlap."""
DEAR = 4
"""Cost from which a value that differs along the lane alone is computed once, into an array of the lane's length."""
MOST_ONCE = 4
"""Most such arrays of a loop."""
MOST_SECTIONS = 5
"""Most parts of a lane with a loop each."""
FEWEST_QUOTIENTS = 32
"""Shortest lane whose common divisor's reciprocal pays."""
MOST_ELEMENTS = 1 << 62
"""An end beyond that of any lane."""


def indented(lines: Sequence[str], levels: int = 1) -> list[str]:
    """``lines`` moved right; preprocessor lines too."""
    return ["  " * levels + line for line in lines]


def braces(head: str, lines: Sequence[str]) -> list[str]:
    """``head { lines }``."""
    return [f"{head} {{".lstrip(), *indented(lines), "}"]


class Record(Protocol):
    """A kernel's record, as far as its operands' types: a loop's, a scan's, an extremum's."""

    @property
    def input_dtypes(self) -> tuple[str, ...]: ...

    @property
    def output_dtypes(self) -> tuple[str, ...]: ...

    @property
    def compute(self) -> str: ...


def definition(
    kernel: Record, name: str, comment: str, body: Sequence[str], workspace: int = 0
) -> KernelSource:
    """The host function around ``body``."""
    arguments = [f"const {TYPES[d]}* __restrict__ in{n}" for n, d in enumerate(kernel.input_dtypes)]
    arguments += [f"{TYPES[d]}* __restrict__ out{n}" for n, d in enumerate(kernel.output_dtypes)]
    lines = [
        f"// {comment}",
        *braces(
            f"static const char* {name}({', '.join([*arguments, 'void* workspace'])})",
            [
                f"using real = {TYPES[kernel.compute]};",
                *([] if workspace else ["(void)workspace;"]),
                *body,
                "return nullptr;",
            ],
        ),
    ]
    text = "\n".join(lines) + "\n"
    return KernelSource(name, text, workspace, used_snippets(text))


def sharing(text: str, names: Collection[str]) -> str:
    """A kernel's text without the promise (``__restrict__``) that these buffers have memory of their own."""
    return re.sub(rf"__restrict__ (?=(?:{'|'.join(sorted(names))})\b)", "", text)


def axis_names(kernel: LoopKernel) -> list[str]:
    """i0, i1, ... for the outer axes, then r0, r1, ... for the row."""
    return [f"i{n}" for n in range(len(kernel.outer))] + [f"r{n}" for n in range(len(kernel.row))]


def decode(flat: str, sizes: Sequence[int], names: Sequence[str]) -> list[str]:
    """Definitions of ``names`` from the row-major position ``flat`` over ``sizes``."""
    lines = []
    for axis, name in enumerate(names):
        inner = prod(sizes[axis + 1 :])
        text = flat if inner == 1 else f"{flat} / {inner}"
        if axis > 0:
            text += f" % {sizes[axis]}"
        lines.append(f"const int64_t {name} = {text};")
    return lines


def parallel_for(variable: str, count: int, lines: Sequence[str], work: float) -> list[str]:
    """A loop over ``count`` tasks, by threads where ``work`` (multiply-adds in all) pays for them."""
    if count == 1:
        return (
            braces("", [f"const int64_t {variable} = 0;", *lines])
            if _mentions(lines, variable)
            else braces("", lines)
        )
    pragma = ["#pragma omp parallel for schedule(static)"] if work >= SERIAL_WORK else []
    return pragma + braces(f"for (int64_t {variable} = 0; {variable} < {count}; ++{variable})", lines)


def _mentions(lines: Sequence[str], word: str) -> bool:
    return any(word in line for line in lines)


def store_lines(stores: Sequence[Store], kernel: Record, scope: Scope, names: Sequence[str]) -> list[str]:
    """Assignments of values that ``scope`` holds."""
    lines = []
    for store in stores:
        dtype = kernel.output_dtypes[store.buffer]
        value = scope.text(store.expression)
        if dtype == "bool":
            value = f"{value} != real(0)"
        elif dtype in ("float16", "bfloat16"):
            value = f"float({value})"  # the assignment rounds
        elif dtype != kernel.compute:
            value = f"{TYPES[dtype]}({value})"
        lines.append(f"out{store.buffer}[{index_text(store.index, names)}] = {value};")
    return lines


def hoist(
    roots: Sequence[Expression],
    scope: Scope,
    names: Sequence[str],
    axes: Sequence[int],
    reduced_varies: bool = False,
) -> list[str]:
    """Definitions of the subexpressions of ``roots`` that do not change along ``axes``."""
    return scope.define(
        roots,
        lambda load: guarded_text(load, names),
        lambda node: not varies(node, axes) and not (reduced_varies and node.reduced),
    )


def same_elsewhere(
    roots: Sequence[Expression], scope: Scope, lane: int, others: Sequence[int], *, guarded: bool = True
) -> list[Expression]:
    """What is dear in ``roots``, differs along the lane, and is the same wherever one is along ``others``: the largest
    such subexpressions without a name, [] where there are too many for arrays. guarded: with loads that have guards."""
    def is_open(node: Expression) -> bool:
        return isinstance(node, Apply) and node not in scope.bound and not is_whole(node)

    def is_same(node: Expression) -> bool:
        if not (varies(node, [lane]) or node.reduced) or varies(node, others) or cost([node]) < DEAR:
            return False
        return guarded or not any(load.guards for load in unnamed_loads([node], scope.bound))

    found = [n for n in walk(*roots, into=lambda n: is_open(n) and not is_same(n)) if is_open(n) and is_same(n)]
    return found if len(found) <= MOST_ONCE else []


def once_along_lane(
    arrays: Mapping[Expression, str], size: int, place: str, scope: Scope, names: Sequence[str], lane: int,
    first: str, last: str
) -> list[str]:
    """Definitions of arrays of ``size`` with values along the lane from ``first`` to ``last``, which ``scope`` then
    has. place: the text of a value's place in its array."""
    if not arrays:
        return []
    lines = [f"alignas(64) real {', '.join(f'{name}[{size}]' for name in arrays.values())};"]
    inner = scope.nested("g")
    same = hoist(list(arrays), inner, names, [lane], True)
    loop = lane_loop(
        list(arrays), inner, names, lane, first, last,
        lambda at: [f"{name}[{place}] = {at.text(node)};" for node, name in arrays.items()], prefix="h",
    )
    lines += braces("", [*same, *loop]) if same else loop  # other arrays give the same names
    scope.bound.update({node: f"{name}[{place}]" for node, name in arrays.items()})
    return lines


def lane_loop(
    roots: Sequence[Expression],
    scope: Scope,
    names: Sequence[str],
    lane: int,
    first: str,
    last: str,
    finish: Callable[[Scope], list[str]],
    *,
    skip_outside: bool = False,
    prefix: str = "v",
    kernel: LoopKernel | None = None,
) -> list[str]:
    """A vectorised loop of axis ``lane`` over [first, last): evaluate ``roots``, then ``finish``.

    Guards split the loop into the part where all hold, which tests nothing, and the rest, or where each holds in a part
    of its own, as those of tensors side by side do, into these parts (`sections`). The rest is scalar where it
    loads neighbours, or what may be neighbours, by several guards at a stride: g++ 12.2 takes them together and gives
    wrong values (``float a = in[2 * i], b = in[2 * i + 1]``, both where ``i >= low && i < high``; -O3 -march=native).
    ``skip_outside`` drops the rest, for values that a reduction ignores. Loads that do not change
    along the lane must be named in ``scope`` already. Where the ``kernel`` is given, runs of its float16 are
    converted beside the loop. Where sines or cosines are taken, a strip whose angles are all of usual size is
    vectorised, and another one takes the library's function. Quotients by what does not change along the lane are
    products with its reciprocal, where that is of usual size.
    """
    variable = names[lane]
    divisors = [] if kernel is None or (kernel.outer + kernel.row)[lane] < FEWEST_QUOTIENTS else \
        [divisor for divisor in fixed_divisors(roots, scope.bound, variable) if divisor not in scope.quotients]
    if divisors:
        return _by_reciprocals(divisors, scope, lambda inner: lane_loop(
            roots, inner, names, lane, first, last, finish, skip_outside=skip_outside, prefix=prefix, kernel=kernel))
    loads = unnamed_loads(roots, scope.bound)
    guards = {guard for load in loads for guard in load.guards}

    def loop(load_text: Callable[[Load], str], begin: str, end: str, start: Sequence[str] = (), around: Scope = scope
             ) -> list[str]:
        turned = angles(roots, around.bound) if kernel is None or kernel.compute == "float32" else []
        if not turned:
            return plain_loop(load_text, begin, end, start, around)
        found = around.nested(prefix, "std::false_type{}")
        lines = [*start, *found.define(turned, load_text),
                 *(f"far |= kw_reach({found.text(angle)});" for angle in turned)]
        head = f"for (int64_t {variable} = strip; {variable} < edge; ++{variable})"
        return braces(f"for (int64_t strip = {begin}; strip < {end}; strip += {RUN})", [
            f"const int64_t edge = strip + {RUN} < {end} ? strip + {RUN} : {end};",
            "int32_t far = 0;",
            "#pragma omp simd reduction(| : far)",
            *braces(head, lines),
            *braces("const auto angles = [&](auto far)", plain_loop(load_text, "strip", "edge", start, around,
                                                                    "far"))[:-1],
            "};",
            "if (far == 0) angles(kw_near{});",
            "else if (far == 1) angles(std::false_type{});",
            "else angles(std::true_type{});",
        ])

    def plain_loop(load_text: Callable[[Load], str], begin: str, end: str, start: Sequence[str], around: Scope,
                   far: str = "") -> list[str]:
        inner = around.nested(prefix, far)
        runs = float16_loads(loads, kernel, lane)
        lines = inner.define(
            roots, lambda load: f"real({runs[load]}[{variable} - run])" if load in runs else load_text(load)
        )
        body, results = float16_stores([*start, *lines, *finish(inner)], kernel, names, lane)
        if not runs and not results:
            head = f"for (int64_t {variable} = {begin}; {variable} < {end}; ++{variable})"
            return ["#pragma omp simd", *braces(head, body)]
        at_run = [*names[:lane], "run", *names[lane + 1 :]]
        lines = [f"const int64_t stop = run + {RUN} < {end} ? run + {RUN} : {end};"]
        lines += [f"alignas(64) float {array}[{RUN}];" for array in (*runs.values(), *results.values())]
        for load, array in runs.items():
            lines.append(
                f"kw_float16_load(in{load.buffer} + {grouped(index_text(load.index, at_run))}, stop - run, {array});"
            )
        head = f"for (int64_t {variable} = run; {variable} < stop; ++{variable})"
        lines += ["#pragma omp simd", *braces(head, body)]
        for store, array in results.items():
            place = grouped(index_text(store.index, at_run))
            lines.append(f"kw_float16_store({array}, stop - run, out{store.buffer} + {place});")
        return braces(f"for (int64_t run = {begin}; run < {end}; run += {RUN})", lines)

    if not guards:
        return loop(lambda load: element_text(load, names), first, last)
    parts = {} if skip_outside else sections(guards, lane, last)
    if parts:
        def there(load: Load, held: frozenset[Guard]) -> str:
            return element_text(load, names) if held.issuperset(load.guards) else otherwise_text(load)

        lines = []
        for (low, high), held in parts.items():
            text, around = partial(there, held=held), scope.nested(f"{prefix}c")
            same = around.define(roots, text, alike_along(lane, held, scope, set()))
            lines += braces("", [*same, *loop(text, later(first, low), earlier(last, high), around=around)])
        return lines
    lines = [f"int64_t inside = {first}, outside = {last};  // where every guard holds"]
    for guard in combined_guards(guards):
        base = Index(
            tuple(0 if a == lane else s for a, s in enumerate(guard.index.strides)), guard.index.offset
        )
        lines.append(
            f"kw_clip(inside, outside, {index_text(base, names)}, {guard.index.strides[lane]}, {guard.size});"
        )
    if skip_outside:
        return braces("", lines + loop(lambda load: element_text(load, names), "inside", "outside"))
    one_range = len({load.guards for load in loads if load.guards}) == 1

    def text(load: Load) -> str:
        if not load.guards:
            return element_text(load, names)
        if one_range:
            return f"all.value ? {element_text(load, names)} : {otherwise_text(load)}"
        legal = f"all.value || ({guard_text(load.guards, names)})"
        return f"({legal}) ? {element_text(load, names)} : {otherwise_text(load)}"

    strides = [(load.buffer, abs(load.index.strides[lane])) for load in loads if load.guards]
    together = not one_range and any(stride > 1 and strides.count((n, stride)) > 1 for n, stride in strides)
    scalar = ['if (!all.value) asm volatile("");  // not vectorised: g++ 12 loads such neighbours wrongly']
    lines += [
        *braces("const auto lanes = [&](auto all, int64_t low, int64_t high)",
                loop(text, "low", "high", scalar if together else ())),
        f"lanes(std::false_type{{}}, {first}, inside);",
        "lanes(std::true_type{}, inside, outside);",
        f"lanes(std::false_type{{}}, outside, {last});",
    ]
    lines[-4] += ";"
    return braces("", lines)


def _by_reciprocals(divisors: Sequence[Expression], scope: Scope, loop: Callable[[Scope], list[str]]) -> list[str]:
    """``loop`` in a scope whose quotients by ``divisors`` are products: for divisors of any size it stands in a
    function that is called for usual ones, and for others."""
    names = {divisor: f"by{n}" for n, divisor in enumerate(divisors)}
    lines = [f"const kw_divisor<real> {name}({scope.text(divisor)});" for divisor, name in names.items()]
    unknown = [name for divisor, name in names.items() if not isinstance(divisor, Constant)]
    usual = "usual" if unknown else "std::true_type{{}}"  # braces of a text that is a format
    body = loop(scope.dividing({divisor: f"kw_quotient({{0}}, {name}, {usual})" for divisor, name in names.items()}))
    if not unknown:
        return braces("", [*lines, *body])
    tested = " && ".join(f"{name}.usual()" for name in unknown)
    return braces("", [*lines, *braces("const auto divide = [&](auto usual)", body)[:-1], "};",
                       f"if ({tested}) divide(std::true_type{{}});", "else divide(std::false_type{});"])


def float16_loads(loads: Sequence[Load], kernel: LoopKernel | None, lane: int) -> dict[Load, str]:
    """The loads that read runs of float16 along the lane, with the names of arrays for their values."""
    found = [
        load
        for load in loads
        if kernel is not None
        and kernel.input_dtypes[load.buffer] == "float16"
        and load.index.strides[lane] == 1
        and not load.guards
    ]
    return {load: f"half{n}" for n, load in enumerate(found)} if len(found) <= MOST_RUNS else {}


def float16_stores(
    body: Sequence[str], kernel: LoopKernel | None, names: Sequence[str], lane: int
) -> tuple[list[str], dict[Store, str]]:
    """``body`` with runs of float16 written into arrays instead, and the stores that these stand for."""
    places = {
        f"out{store.buffer}[{index_text(store.index, names)}]": store
        for store in (*kernel.row_stores, *kernel.outer_stores)
        if kernel.output_dtypes[store.buffer] == "float16" and store.index.strides[lane] == 1
    } if kernel is not None else {}
    lines, results = [], {}
    for line in body:
        target, assigns, value = line.partition(" = ")
        store = places.get(target) if assigns else None
        if store is not None:
            results.setdefault(store, f"rounded{len(results)}")  # a window's store stands once for each element
            line = f"{results[store]}[{names[lane]} - run] = {value}"
        lines.append(line)
    return lines, results


def sections(guards: Set[Guard], lane: int, last: str) -> dict[tuple[int, int], frozenset[Guard]]:
    """The parts of a lane [0, ``last``) in which the same of ``guards`` hold, each with those; {} where guards ask for
    other axes, where one loop tests little (all hold in most of the lane), and where there are too many parts."""
    spans: dict[Guard, tuple[int, int]] = {}
    for guard in guards:
        stride, offset = guard.index.strides[lane], guard.index.offset
        if not stride or any(s for axis, s in enumerate(guard.index.strides) if axis != lane):
            return {}
        ends = (-offset, guard.size - 1 - offset) if stride > 0 else (offset - guard.size + 1, offset)
        spans[guard] = (-(-ends[0] // abs(stride)), ends[1] // abs(stride) + 1)
    length = int(last) if last.isdigit() else MOST_ELEMENTS
    marks = sorted({0, length, *(mark for span in spans.values() for mark in span if 0 < mark < length)})
    common = min(high for _, high in spans.values()) - max(low for low, _ in spans.values())
    if len(marks) - 1 > MOST_SECTIONS or 2 * common > min(length, max(high for _, high in spans.values())):
        return {}
    return {(low, high): frozenset(g for g, span in spans.items() if span[0] <= low < span[1])
            for low, high in pairwise(marks)}


def alike_along(lane: int, held: frozenset[Guard], scope: Scope, found: set[Expression]
                ) -> Callable[[Expression], bool]:
    """Whether a value is one all along a lane of which ``held`` hold and no other guard; asked of operands first.
    found: those for which this was so."""
    def is_alike(node: Expression) -> bool:
        if isinstance(node, Load):
            alike = not held.issuperset(node.guards) or not node.index.strides[lane]
        else:
            alike = isinstance(node, Apply) and all(
                isinstance(a, Constant) or a in found or (a in scope.bound and not varies(a, [lane]) and not a.reduced)
                for a in node.arguments)
        if alike:
            found.add(node)
        return alike

    return is_alike


def later(first: str, low: int) -> str:
    """The text of the larger of a loop's start and the start of a part."""
    if low == 0:
        return first
    return str(low) if first == "0" else f"({first} > {low} ? {first} : {low})"


def earlier(last: str, high: int) -> str:
    """The text of the smaller of a loop's end and the end of a part."""
    if high == MOST_ELEMENTS or last == str(high):
        return last
    return str(high) if last.isdigit() else f"({last} < {high} ? {last} : {high})"


def combined_guards(guards: set[Guard]) -> list[Guard]:
    """Fewer guards with the same conjunction: those that differ by an offset become one."""
    families: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for guard in guards:
        families.setdefault((guard.index.strides, guard.size), []).append(guard.index.offset)
    return [
        Guard(Index(strides, min(offsets)), size - (max(offsets) - min(offsets)))
        for (strides, size), offsets in families.items()
    ]


def nested(pattern: str, values: list[str]) -> str:
    """Values joined in pairs."""
    while len(values) > 1:
        pairs = [pattern.format(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[2 * len(pairs) :]
    return values[0]


def sizes_text(sizes: Sequence[int]) -> str:
    """``2 x 3``, or ``one point``."""
    return " x ".join(map(str, sizes)) or "one point"
