"""Batched products for CUDA: a :class:`kernelwright.plan.kernels.BatchedProduct` to one launch.

Products of matrices this small are bound by memory: of 64 x 64 x 16 in float32 a product reads 8 KiB, writes 16 KiB and
takes 65,536 multiply-adds, of which a multiprocessor of an H200 does 128 in a cycle, 512 cycles, while memory brings it
18 bytes in one, 1,365 cycles. So what counts is that each operand is read once, where it lies, and that nothing is
stored in between: operands are expressions that are evaluated as they are brought to shared memory, an epilogue is
evaluated where a sum is finished, and axes of any number and order are arithmetic of indices. Multiply-adds are those
of float32, and a sum has one order, from the first point of depth to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from kernelwright.codegen.cuda.batched.layout import (
    Layout,
    Side,
    along_depth,
    axes_of,
    choose,
    main_load,
    nearest,
    order_in_memory,
    period_of,
    stored_by_rows,
)
from kernelwright.codegen.cuda.expressions import C_TYPES, is_far
from kernelwright.codegen.cuda.gemm.points import as_float, device_function, emitter_of, loads_of, straight, wrapped
from kernelwright.codegen.cuda.host import alignment_check, head
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.source import KernelSource, Unsuitable, text_beside
from kernelwright.codegen.template import fill
from kernelwright.plan.expressions import Constant, Expression
from kernelwright.plan.kernels import BatchedProduct

#: Elements or four neighbours of an operand that a thread has on their way at a time.
_ON_THE_WAY = 8
_MOST_BLOCKS = 2**31 - 1


def generate(kernel: BatchedProduct, name: str, layout: Layout | None = None) -> KernelSource:
    """The text of the kernel and of its host function ``name``. ``layout`` replaces the chosen one.

    Raises Unsuitable where there are more tiles than a launch has blocks.
    """
    rows, columns, depth = kernel.sizes
    if kernel.groups * rows * columns == 0:
        return KernelSource(name, "\n".join([head(name, kernel.input_dtypes, kernel.output_dtypes),
                                             "  return nullptr;  // no results", "}", ""]))
    if depth == 0:  # sums of nothing
        kernel = replace(kernel, depth=(1,) * len(kernel.depth), left=Constant(0.0), right=Constant(0.0))
    layout = layout or choose(kernel)
    if layout is None:
        raise Unsuitable(f"products of {rows} x {columns} need more than a block has")
    return _Text(kernel, name, layout).source()


@dataclass(frozen=True, slots=True)
class _Function:
    """A device function of one point or of four neighbours along an axis: its name, and what it is called with."""

    name: str
    pointers: tuple[str, ...]
    axes: tuple[str, ...]

    def call(self, first: str = "") -> str:
        return f"{self.name}({', '.join([*([first] if first else []), *self.pointers, *self.axes])})"


class _Text:
    """The text of one kernel."""

    def __init__(self, kernel: BatchedProduct, name: str, layout: Layout) -> None:
        self.kernel, self.name, self.layout = kernel, name, layout
        self.kinds = {"outer": range(len(kernel.outer)),
                      **{kind: axes_of(kernel, kind) for kind in ("rows", "columns", "depth")}}
        letters = {"outer": "n", "rows": "i", "columns": "j", "depth": "k"}
        self.names = [f"{letters[kind]}{axis - axes.start}" for kind, axes in self.kinds.items() for axis in axes]
        self.along, self.by_rows = along_depth(kernel), stored_by_rows(kernel)
        self.periods = {word: period_of(kernel, word, layout) for word in ("left", "right")}
        self.floats = {"left": layout.floats(layout.rows, self.along[0], self.periods["left"]),
                       "right": layout.floats(layout.columns, self.along[1], self.periods["right"])}
        self.vectors: set[str] = set()  # pointers that must be aligned to 16 bytes
        self.values: list[str] = []
        rows, columns, _ = kernel.sizes
        self.row_tiles, self.column_tiles = ceil(rows / layout.rows.tile), ceil(columns / layout.columns.tile)
        self.blocks = ceil(kernel.groups / layout.products) * self.row_tiles * self.column_tiles
        self.whole = "long long" if kernel.groups >= 2**31 - 2**10 else "int"
        if self.blocks > _MOST_BLOCKS:
            raise Unsuitable(f"{self.blocks} tiles are more than a launch has blocks")

    def source(self) -> KernelSource:
        kernel, layout, name = self.kernel, self.layout, self.name
        rows, columns, depth = kernel.sizes
        pairs = [(f"const {C_TYPES[t]}* __restrict__", f"in{n}") for n, t in enumerate(kernel.input_dtypes)]
        pairs.append((f"{C_TYPES[kernel.output_dtypes[0]]}* __restrict__", "out0"))
        read = loads_of([kernel.left, kernel.right, kernel.store.expression])
        used = {"out0", *(f"in{load.buffer}" for load in read)}
        own = [(kind, pointer) for kind, pointer in pairs if pointer in used]
        loads = {word: self._loading(word) for word in ("left", "right")}
        store = self._storing()
        text = fill(text_beside(__file__, "batched.cuh"), {
            "NAME": name, "COMMENT": f"{kernel.groups} products of {rows} x {depth} and {depth} x {columns} matrices.",
            "THREADS": layout.threads, "PARAMETERS": ", ".join(f"{kind} {pointer}" for kind, pointer in own),
            "ROWS_EACH": layout.rows.each, "COLUMNS_EACH": layout.columns.each, "STEP": layout.step,
            **self._steps(), **self._threads(),
            "LEFT_FLOATS": layout.products * self.floats["left"],
            "RIGHT_FLOATS": layout.products * self.floats["right"],
            "LOAD_LEFT": loads["left"], "LOAD_RIGHT": loads["right"], "READ_LEFT": self._reading("left"),
            "READ_RIGHT": self._reading("right"), "TILE": _lines(self._tile(), 2), "STORE": store,
            "VALUES": "\n".join(self.values), "HEAD": head(name, kernel.input_dtypes, kernel.output_dtypes),
            "LAUNCH": "\n".join(f"  {line}" for line in [
                *alignment_check(name, sorted(self.vectors)),
                f'KW_LAUNCH("{name}", {name}_core, {self.blocks}, {layout.threads}, 0, stream, '
                f"{', '.join(pointer for _, pointer in own)});"])})
        text = "\n".join(wrapped(text.split("\n")))
        return KernelSource(name, text, 0, ("check", *sorted(snippets_of(text))))

    def _threads(self) -> dict[str, str]:
        """What tells a thread which part of a tile is its own, and whether it has one."""
        layout, per_product = self.layout, self.layout.rows.threads * self.layout.columns.threads
        several, idle = layout.products > 1, layout.active < layout.threads
        lines = [f"const int own = thread / {per_product}, in_tile = thread % {per_product};"] if several else []
        quick, slow = ("row", "column") if self.by_rows else ("column", "row")
        count = (layout.rows if self.by_rows else layout.columns).threads
        number = "in_tile" if several else "thread"
        lines.append(f"const int own_{quick} = {number} % {count}, own_{slow} = {number} / {count};")
        has = f"own < {layout.products}" if several else f"thread < {layout.active}"
        tiles = {f"{word.upper()}_TILE": f"{word}s" + f" + own * {self.floats[word]}" * several
                 for word in ("left", "right")}
        return {"OWN": _lines(lines, 2), "IF_OWN": f"    if ({has}) {{" if idle else "    {", **tiles,
                "LEAVE": f"  if ({has.replace('<', '>=')}) return;\n" if idle else ""}

    def _steps(self) -> dict[str, str]:
        """What stands around a step of depth: a loop where there are several."""
        depth, step = self.kernel.sizes[2], self.layout.step
        if depth <= step:
            return {"EACH_STEP": "  {", "AFTER_STEP": ""}
        return {"EACH_STEP": f"  for (int begin = 0; begin < {depth}; begin += {step}) {{",
                "AFTER_STEP": f"    if (begin + {step} < {depth}) __syncthreads();\n"}

    # Where things are ---------------------------------------------------------------------------------

    def _tile(self) -> list[str]:
        """Statements that say which tile of which products a block has."""
        lines, block = [], "static_cast<int>(blockIdx.x)"
        tiles = self.row_tiles * self.column_tiles
        first = self._wide(f"{block} / {tiles}" if tiles > 1 else block)
        first += f" * {self.layout.products}" if self.layout.products > 1 else ""
        lines.append(f"const {self.whole} first = {first};")
        of_row = f"{block} / {self.column_tiles}" if self.column_tiles > 1 else block
        if self.row_tiles > 1:
            lines.append(f"const int first_row = {of_row} % {self.row_tiles} * {self.layout.rows.tile};")
        if self.column_tiles > 1:
            lines.append(f"const int first_column = {block} % {self.column_tiles} * {self.layout.columns.tile};")
        return lines

    def _wide(self, text: str) -> str:
        return f"static_cast<long long>({text})" if self.whole == "long long" else text

    def _places(self, kind: str, number: str, wanted: Sequence[str], order: Sequence[int] | None = None) -> list[str]:
        """Statements that define the axes of a kind of which point ``number`` is given, those alone that are wanted.
        order: the axes in the order in which the number counts them, where it is another."""
        lines, pitch = [], 1
        sizes, axes = self.kernel.domain, list(self.kinds[kind]) if order is None else list(order)
        total = prod(sizes[a] for a in axes)
        bare = f"({number})" if " " in number and len(axes) > 1 else number
        for axis in reversed(axes):
            text = f"{bare} / {pitch}" if pitch > 1 else bare
            text = f"{text} % {sizes[axis]}" if pitch * sizes[axis] < total else text
            if self.names[axis] in wanted:
                cast = f"static_cast<int>({text})" if self.whole == "long long" and kind == "outer" else text
                lines.append(f"const int {self.names[axis]} = {'0' if sizes[axis] == 1 else cast};")
            pitch *= sizes[axis]
        return lines

    # Functions of a point -----------------------------------------------------------------------------

    def _function(self, word: str, expression: Expression, lane_axis: int | None = None) -> _Function:
        """The function of an operand at one point, or at four neighbours along an axis."""
        kernel, lanes = self.kernel, 1 if lane_axis is None else 4
        emitter = emitter_of(kernel, kernel.domain, tuple(self.names), [expression], lane_axis=lane_axis, lanes=lanes,
                             long=self._is_far(expression))
        value = as_float(emitter, expression)
        buffers = sorted({load.buffer for load in loads_of([expression])})
        axes = [name for n, name in enumerate(self.names) if expression.axes >> n & 1]
        parameters = [*(["float (&x)[4]"] if lanes > 1 else []),
                      *(f"const {C_TYPES[kernel.input_dtypes[b]]}* __restrict__ in{b}" for b in buffers),
                      *(f"int {axis}" for axis in axes)]
        body = [*emitter.fixed_lines, *straight(emitter)]
        body += [f"return {value};"] if lanes == 1 else ["#pragma unroll",
                                                         f"for (int v = 0; v < 4; ++v) x[v] = {value};"]
        self.vectors |= emitter.vectors
        what = f"{'An element' if lanes == 1 else 'Four neighbours'} of the {word} operand."
        own = word if lanes == 1 else f"{word}_four"
        self.values.append(device_function(what, "float" if lanes == 1 else "void", own, parameters, body))
        return _Function(own, tuple(f"in{b}" for b in buffers), tuple(axes))

    def _is_far(self, expression: Expression) -> bool:
        return any(is_far(index, self.kernel.domain) for load in loads_of([expression])
                   for index in (load.index, *(guard.index for guard in load.guards)))

    def _finish(self, lane_axis: int | None) -> _Function:
        """The function that stores what is made of a sum, or of those of four neighbours along an axis."""
        kernel, store, lanes = self.kernel, self.kernel.store, 1 if lane_axis is None else 4
        emitter = emitter_of(kernel, kernel.domain, tuple(self.names), [], [store], lane_axis=lane_axis, lanes=lanes,
                             long=self._is_far(store.expression) or is_far(store.index, kernel.domain))
        emitter.reduced[0, 0] = "sum[v]" if lanes > 1 else "sum"
        emitter.store(Buffer("out0", C_TYPES[kernel.output_dtypes[0]]), store.index, store.expression)
        buffers = sorted({load.buffer for load in loads_of([store.expression])})
        moves = [n for n, stride in enumerate(store.index.strides) if stride or store.expression.axes >> n & 1]
        axes = [self.names[n] for n in moves]
        parameters = ["const float (&sum)[4]" if lanes > 1 else "float sum",
                      *(f"const {C_TYPES[kernel.input_dtypes[b]]}* __restrict__ in{b}" for b in buffers),
                      f"{C_TYPES[kernel.output_dtypes[0]]}* __restrict__ out0", *(f"int {axis}" for axis in axes)]
        self.vectors |= emitter.vectors
        what = "Stores what is made of a sum." if lanes == 1 else "Stores what is made of the sums of four neighbours."
        self.values.append(device_function(what, "void", "finish", parameters,
                                           [*emitter.fixed_lines, *straight(emitter)]))
        return _Function("finish", (*(f"in{b}" for b in buffers), "out0"), tuple(axes))

    # From memory to shared memory ---------------------------------------------------------------------

    def _loading(self, word: str) -> str:
        """Statements that bring an operand's tile for a step of depth, with zeros where depth ends within it."""
        kernel, layout = self.kernel, self.layout
        expression, kind, side, along, size, tiles = {
            "left": (kernel.left, "rows", layout.rows, self.along[0], kernel.sizes[0], self.row_tiles),
            "right": (kernel.right, "columns", layout.columns, self.along[1], kernel.sizes[1], self.column_tiles),
        }[word]
        domain, depth = kernel.domain, kernel.sizes[2]
        index = main_load(expression, domain=domain)
        order = list(self.kinds[kind])
        if tiles == 1 and index is not None:
            order = order_in_memory(index, order)
        lane = nearest(index, self.kinds["depth"] if along else self.kinds[kind], domain)
        last = self.kinds["depth"][-1] if along and self.kinds["depth"] else order[-1] if order else None
        fits = lane is not None and lane == last and domain[lane] % 4 == 0 and index is not None \
            and abs(index.strides[lane]) == 1 and (along or side.tile % 4 == 0)
        lane = lane if fits else None
        function = self._function(word, expression, lane)
        four = 4 if lane is not None else 1
        quick = layout.step // four if along else side.tile // four
        count = layout.products * (quick * side.tile if along else quick * layout.step)
        per_product = count // layout.products
        slow = side.tile if along else layout.step
        near = f"number % {quick}" + (" * 4" if four > 1 else "")
        far = f"number / {quick}" + (f" % {slow}" if layout.products > 1 else "")
        local, deep = (far, near) if along else (near, far)
        point = f"first_{kind[:-1]} + local" if tiles > 1 else "local"
        depth_point = "begin + deep" if depth > layout.step else "deep"
        # Of all points of a side in memory's order: the number by which the tile counts them.
        counted = self._counted(kind, order)
        lanes_apart = 1
        if counted is not None and lane is not None and not along:
            lanes_apart = prod(domain[a] for a in self.kinds[kind] if a > lane)
        pitch = layout.pitch(side, along, self.periods[word])
        shown = "place" if counted is not None else "local"
        if along:
            spread = f"({shown} % {side.vector} * {side.threads * side.times} + {shown} / {side.vector})" \
                if side.vector > 1 else shown
            at = f"{spread} * {pitch} + deep"
        else:
            at = f"deep * {pitch} + {shown}"
        floats = self.floats[word]
        at = f"number / {per_product} * {floats} + {at}" if layout.products > 1 else at
        batch = min(_ON_THE_WAY, ceil(count / layout.threads))
        stride = batch * layout.threads
        conditions = [f"number < {count}"] if count % stride else []
        guards = [f"group < {kernel.groups}"] if kernel.groups % layout.products else []
        guards += [f"{point} < {size}"] if tiles > 1 and size % side.tile else []
        guards += [f"{depth_point} < {depth}"] if depth % layout.step else []
        place_lines = [f"const int local = {local}, deep = {deep};"]
        outer = [n for n in function.axes if self.names.index(n) in self.kinds["outer"]]
        group = f"first + number / {per_product}" if layout.products > 1 else "first"
        read = [*place_lines, f"const {self.whole} group = {group};", *self._places("outer", "group", outer),
                *self._places(kind, point, function.axes, order),
                *self._places("depth", depth_point, function.axes)]
        call = f"{function.call('x[n]')};" if four > 1 else f"x[n] = {function.call()};"
        zero = ["#pragma unroll", "for (int v = 0; v < 4; ++v) x[n][v] = 0.0f;"] if four > 1 else ["x[n] = 0.0f;"]
        every = [*conditions, *guards]
        read += [f"if ({' && '.join(every)}) {{", f"  {call}", "} else {", *indent(zero), "}"] if every else [call]
        write = [*place_lines]
        if counted is not None:
            write += [*self._places(kind, "local", [self.names[a] for a in order], order),
                      f"const int place = {counted};"]
        if self.periods[word]:
            moved = f"(place + v * {lanes_apart})" if lanes_apart > 1 else "place"
            at = at.replace("+ place", f"+ {moved} + {moved} / {self.periods[word]} * 4")
        target = f"{word}s + {at}"
        if four == 1:
            write.append(f"{word}s[{at}] = x[n];")
        elif along or lanes_apart == 1:
            write.append(f"kw_write4({target}, x[n]);")
        else:
            spread = at if self.periods[word] else f"{at} + v * {lanes_apart}"
            write += ["#pragma unroll", f"for (int v = 0; v < 4; ++v) {word}s[{spread}] = x[n][v];"]
        if conditions:
            write = [f"if ({conditions[0]}) {{", *indent(write), "}"]
        number = f"const int number = thread + n * {layout.threads}" + ("" if count <= stride else " + turn") + ";"
        lines = [f"float x[{batch}]{'[4]' if four > 1 else ''};", "#pragma unroll",
                 f"for (int n = 0; n < {batch}; ++n) {{", *indent([number, *read]), "}", "#pragma unroll",
                 f"for (int n = 0; n < {batch}; ++n) {{", *indent([number, *write]), "}"]
        opening = "{" if count <= stride else f"for (int turn = 0; turn < {count}; turn += {stride}) {{"
        return _lines([opening, *indent(lines), "}"], 4)

    def _counted(self, kind: str, order: Sequence[int]) -> str | None:
        """The number of a point by the names of its axes, where memory has them in another order; else None."""
        axes = list(self.kinds[kind])
        if list(order) == axes:
            return None
        pitches = {axis: prod(self.kernel.domain[a] for a in axes if a > axis) for axis in axes}
        return " + ".join(self.names[axis] + (f" * {pitches[axis]}" if pitches[axis] > 1 else "") for axis in axes)

    # From shared memory to registers, and to memory ---------------------------------------------------

    def _reading(self, word: str) -> str:
        """Statements that read a thread's elements of four points of depth."""
        layout = self.layout
        side, along = (layout.rows, self.along[0]) if word == "left" else (layout.columns, self.along[1])
        tile, to = f"{word}_tile", "a" if word == "left" else "b"
        period = self.periods[word]
        own, pitch = "own_row" if word == "left" else "own_column", layout.pitch(side, along, period)

        def shifted(place: str) -> str:
            return f"({place}) + ({place}) / {period} * 4" if period else place
        lines = ["#pragma unroll"]
        if along:
            rows = side.threads * side.times
            place = f"e % {side.vector} * {rows} + e / {side.vector} * {side.threads} + {own}" if side.vector > 1 else \
                f"e * {side.threads} + {own}"
            lines += [f"for (int e = 0; e < {side.each}; ++e) kw_read4({to}[e], {tile} + ({place}) * {pitch} + k);"]
        elif side.vector == 4:
            lines += ["for (int e = 0; e < 4; ++e) {", "#pragma unroll", f"  for (int t = 0; t < {side.times}; ++t) {{",
                      "    float four[4];",
                      f"    kw_read4(four, {tile} + (k + e) * {pitch} + "
                      f"{shifted(f'(t * {side.threads} + {own}) * 4')});",
                      "#pragma unroll", f"    for (int v = 0; v < 4; ++v) {to}[t * 4 + v][e] = four[v];", "  }", "}"]
        else:
            place = f"(t / {side.vector} * {side.threads} + {own}) * {side.vector} + t % {side.vector}" \
                if side.vector > 1 else f"t * {side.threads} + {own}"
            lines += ["for (int e = 0; e < 4; ++e) {", "#pragma unroll",
                      f"  for (int t = 0; t < {side.each}; ++t) "
                      f"{to}[t][e] = {tile}[(k + e) * {pitch} + {shifted(place)}];", "}"]
        return _lines(lines, 8)

    def _storing(self) -> str:
        """Statements that store what is made of a thread's sums."""
        kernel, layout = self.kernel, self.layout
        domain = kernel.domain
        quick_kind, quick, slow_kind, slow = ("rows", layout.rows, "columns", layout.columns) if self.by_rows else (
            "columns", layout.columns, "rows", layout.rows)
        tiles = {"rows": self.row_tiles, "columns": self.column_tiles}
        sizes = dict(zip(("rows", "columns"), kernel.sizes, strict=False))
        lane = self.kinds[quick_kind][-1] if self.kinds[quick_kind] else None
        if not (lane is not None and quick.vector == 4 and domain[lane] % 4 == 0 and quick.tile % 4 == 0
                and abs(kernel.store.index.strides[lane]) == 1):
            lane = None
        function = self._finish(lane)
        four = 4 if lane is not None else 1

        def point(kind: str, side: Side, text: str, count: int) -> list[str]:
            word, own = kind[:-1], f"own_{kind[:-1]}"
            local = f"{text} * {side.threads} + {own}" if side.vector == 1 else \
                f"({text} / {side.vector} * {side.threads} + {own}) * {side.vector} + {text} % {side.vector}" \
                if count == side.each else f"({text} * {side.threads} + {own}) * {side.vector}"
            limit = [f"{word} >= {side.tile}"] if side.extent > side.tile else []
            lines = [f"const int {word} = {local};"]
            if tiles[kind] > 1:
                limit = [f"local_{word} >= {side.tile}"] if side.extent > side.tile else []
                lines = [f"const int local_{word} = {local};", f"const int {word} = first_{word} + local_{word};"]
            limit += [f"{word} >= {sizes[kind]}"] if tiles[kind] > 1 and sizes[kind] % side.tile else []
            lines += [f"if ({' || '.join(limit)}) continue;"] if limit else []
            return lines + self._places(kind, word, function.axes)

        outer = self._places("outer", "group", function.axes)
        lines = [f"const {self.whole} group = first{' + own' * (layout.products > 1)};"]
        lines += [f"if (group >= {kernel.groups}) return;"] if kernel.groups % layout.products else []
        lines += outer
        inner = point(quick_kind, quick, "q", quick.each // four if four > 1 else quick.each)
        if four > 1:
            sums = "sums[q * 4 + v][s]" if self.by_rows else "sums[s][q * 4 + v]"
            inner += ["float four[4];", "#pragma unroll", f"for (int v = 0; v < 4; ++v) four[v] = {sums};",
                      f"{function.call('four')};"]
        else:
            inner.append(f"{function.call('sums[q][s]' if self.by_rows else 'sums[s][q]')};")
        lines += ["#pragma unroll", f"for (int s = 0; s < {slow.each}; ++s) {{",
                  *indent([*point(slow_kind, slow, "s", slow.each), "#pragma unroll",
                           f"for (int q = 0; q < {quick.each // four}; ++q) {{", *indent(inner), "}"]), "}"]
        return _lines(lines, 2)


def _lines(lines: Sequence[str], by: int) -> str:
    return "\n".join(indent(lines, by))
