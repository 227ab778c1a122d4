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


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand in the blocks of a kernel.

    along: whether its neighbours lie along depth. tiles: how many its side, of ``size`` points, is cut into. order: the
    side's axes in the order in which they are read. lane: the axis along which four neighbours are read at a time, or
    None. period: see `period_of`. pitch and floats: of its place in shared memory, for one product.
    """

    word: str
    kind: str
    expression: Expression
    side: Side
    along: bool
    size: int
    tiles: int
    order: tuple[int, ...]
    lane: int | None
    period: int
    pitch: int
    floats: int


def _operands(kernel: BatchedProduct, layout: Layout) -> tuple[_Operand, _Operand]:
    """The left and the right operand."""
    found = []
    for n, (word, kind, expression, side) in enumerate((("left", "rows", kernel.left, layout.rows),
                                                        ("right", "columns", kernel.right, layout.columns))):
        domain, along, size = kernel.domain, along_depth(kernel)[n], kernel.sizes[n]
        tiles, index = ceil(size / side.tile), main_load(expression, domain=domain)
        own, depth = list(axes_of(kernel, kind)), axes_of(kernel, "depth")
        order = order_in_memory(index, own) if tiles == 1 and index is not None else own
        lane = nearest(index, depth if along else axes_of(kernel, kind), domain)
        last = (depth[-1] if depth else None) if along else order[-1] if order else None
        if lane is None or lane != last or index is None or abs(index.strides[lane]) != 1 or domain[lane] % 4 or \
                not (along or side.tile % 4 == 0):
            lane = None
        period = period_of(kernel, word, layout)
        found.append(_Operand(word, kind, expression, side, along, size, tiles, tuple(order), lane, period,
                              layout.pitch(side, along, period), layout.floats(side, along, period)))
    return found[0], found[1]


class _Text:
    """The text of one kernel."""

    def __init__(self, kernel: BatchedProduct, name: str, layout: Layout) -> None:
        self.kernel, self.name, self.layout = kernel, name, layout
        self.kinds = {"outer": range(len(kernel.outer)),
                      **{kind: axes_of(kernel, kind) for kind in ("rows", "columns", "depth")}}
        letters = {"outer": "n", "rows": "i", "columns": "j", "depth": "k"}
        self.names = [f"{letters[kind]}{axis - axes.start}" for kind, axes in self.kinds.items() for axis in axes]
        self.by_rows, self.operands = stored_by_rows(kernel), _operands(kernel, layout)
        self.vectors: set[str] = set()  # pointers that must be aligned to 16 bytes
        self.values: list[str] = []
        self.row_tiles, self.column_tiles = (operand.tiles for operand in self.operands)
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
        left, right = self.operands
        loads, store = [self._loading(operand) for operand in (left, right)], self._storing()
        text = fill(text_beside(__file__, "batched.cuh"), {
            "NAME": name, "COMMENT": f"{kernel.groups} products of {rows} x {depth} and {depth} x {columns} matrices.",
            "THREADS": layout.threads, "PARAMETERS": ", ".join(f"{kind} {pointer}" for kind, pointer in own),
            "ROWS_EACH": layout.rows.each, "COLUMNS_EACH": layout.columns.each, "STEP": layout.step,
            **self._steps(), **self._threads(),
            "LEFT_FLOATS": layout.products * left.floats, "RIGHT_FLOATS": layout.products * right.floats,
            "LOAD_LEFT": loads[0], "LOAD_RIGHT": loads[1], "READ_LEFT": self._reading(left),
            "READ_RIGHT": self._reading(right), "TILE": _lines(self._tile(), 2), "STORE": store,
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
        tiles = {f"{operand.word.upper()}_TILE": f"{operand.word}s" + f" + own * {operand.floats}" * several
                 for operand in self.operands}
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

    def _loading(self, operand: _Operand) -> str:
        """Statements that bring an operand's tile for a step of depth, with zeros where depth ends within it."""
        kernel, layout, side, along = self.kernel, self.layout, operand.side, operand.along
        depth, four = kernel.sizes[2], operand.lane is not None
        function = self._function(operand.word, operand.expression, operand.lane)
        # Elements or four neighbours by number: those of a point of a side, or of depth, one after the other.
        quick = (layout.step if along else side.tile) // (4 if four else 1)
        slow = side.tile if along else layout.step
        count = layout.products * quick * slow
        near = f"number % {quick}" + " * 4" * four
        far = f"number / {quick}" + f" % {slow}" * (layout.products > 1)
        local, deep = (far, near) if along else (near, far)
        point = f"first_{operand.kind[:-1]} + local" if operand.tiles > 1 else "local"
        depth_point = "begin + deep" if depth > layout.step else "deep"
        product = f"number / {quick * slow}"
        batch = min(_ON_THE_WAY, ceil(count / layout.threads))
        stride = batch * layout.threads
        there = [f"number < {count}"] if count % stride else []
        guards = [f"group < {kernel.groups}"] if kernel.groups % layout.products else []
        guards += [f"{point} < {operand.size}"] if operand.tiles > 1 and operand.size % side.tile else []
        guards += [f"{depth_point} < {depth}"] if depth % layout.step else []
        place = f"const int local = {local}, deep = {deep};"
        read = [place, f"const {self.whole} group = first{f' + {product}' * (layout.products > 1)};",
                *self._places("outer", "group", function.axes),
                *self._places(operand.kind, point, function.axes, operand.order),
                *self._places("depth", depth_point, function.axes)]
        call = f"{function.call('x[n]')};" if four else f"x[n] = {function.call()};"
        if there or guards:
            zero = ["#pragma unroll", "for (int v = 0; v < 4; ++v) x[n][v] = 0.0f;"] if four else ["x[n] = 0.0f;"]
            read += [f"if ({' && '.join([*there, *guards])}) {{", f"  {call}", "} else {", *indent(zero), "}"]
        else:
            read.append(call)
        write = [place, *self._writing(operand, product)]
        write = [f"if ({there[0]}) {{", *indent(write), "}"] if there else write
        number = f"const int number = thread + n * {layout.threads}{' + turn' * (count > stride)};"
        each = ["#pragma unroll", f"for (int n = 0; n < {batch}; ++n) {{"]
        lines = [f"float x[{batch}]{'[4]' * four};", *each, *indent([number, *read]), "}", *each,
                 *indent([number, *write]), "}"]
        opening = "{" if count <= stride else f"for (int turn = 0; turn < {count}; turn += {stride}) {{"
        return _lines([opening, *indent(lines), "}"], 4)

    def _writing(self, operand: _Operand, product: str) -> list[str]:
        """Statements that write what was brought to shared memory."""
        word, side, period = operand.word, operand.side, operand.period
        counted = self._counted(operand.kind, operand.order)
        lines = [] if counted is None else [
            *self._places(operand.kind, "local", [self.names[a] for a in operand.order], operand.order),
            f"const int place = {counted};"]
        shown = "local" if counted is None else "place"
        apart = 1  # places between the four neighbours
        if counted is not None and operand.lane is not None and not operand.along:
            apart = prod(self.kernel.domain[a] for a in self.kinds[operand.kind] if a > operand.lane)
        if operand.along:
            spread = f"({shown} % {side.vector} * {side.threads * side.times} + {shown} / {side.vector})" \
                if side.vector > 1 else shown
            at = f"{spread} * {operand.pitch} + deep"
        elif period:
            moved = f"({shown} + v * {apart})" if apart > 1 else shown
            at = f"deep * {operand.pitch} + {moved} + {moved} / {period} * 4"
        else:
            at = f"deep * {operand.pitch} + {shown}" + f" + v * {apart}" * (apart > 1)
        at = f"{product} * {operand.floats} + {at}" if self.layout.products > 1 else at
        if operand.lane is None:
            return [*lines, f"{word}s[{at}] = x[n];"]
        if operand.along or apart == 1:
            return [*lines, f"kw_write4({word}s + {at}, x[n]);"]
        return [*lines, "#pragma unroll", f"for (int v = 0; v < 4; ++v) {word}s[{at}] = x[n][v];"]

    def _counted(self, kind: str, order: Sequence[int]) -> str | None:
        """The number of a point by the names of its axes, where memory has them in another order; else None."""
        axes = list(self.kinds[kind])
        if list(order) == axes:
            return None
        pitches = {axis: prod(self.kernel.domain[a] for a in axes if a > axis) for axis in axes}
        return " + ".join(self.names[axis] + (f" * {pitches[axis]}" if pitches[axis] > 1 else "") for axis in axes)

    # From shared memory to registers, and to memory ---------------------------------------------------

    @staticmethod
    def _reading(operand: _Operand) -> str:
        """Statements that read a thread's elements of four points of depth."""
        side, pitch, period = operand.side, operand.pitch, operand.period
        tile, to, own = f"{operand.word}_tile", "a" if operand.word == "left" else "b", f"own_{operand.kind[:-1]}"

        def shifted(place: str) -> str:
            return f"({place}) + ({place}) / {period} * 4" if period else place
        lines = ["#pragma unroll"]
        if operand.along:
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
