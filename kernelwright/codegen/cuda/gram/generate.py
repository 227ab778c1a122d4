"""The CUDA skeleton of a :class:`Contraction` of the scheme correlation: moments of sums, none of which is formed.

Three kernels: one adds up products of x with itself in cells (`gram.products`), one puts the cells
of each pair of taps together, and one has the weights of an output channel on both sides of that. What they compute is
in `codegen/cuda/gram/problem.py`. Everything is added up in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernelwright.codegen.cuda.expressions import C_TYPES
from kernelwright.codegen.cuda.gemm.points import (
    emitter_of,
    entry_type,
    operands,
    parameter_texts,
    pointers_of,
    straight,
    value_call,
    value_function,
    wrapped,
)
from kernelwright.codegen.cuda.gram.problem import CHANNELS, Correlation, correlates, slope_of
from kernelwright.codegen.cuda.gram.products import products
from kernelwright.codegen.cuda.host import head
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.terms import modulo, over, plus
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Apply, Constant, Expression, Reduced, replaced
from kernelwright.plan.kernels import Store
from kernelwright.roofline.multiprocessors import HOPPER

_THREADS = 256
#: Output channels of a block of the last kernel: as many as leave so many blocks, and room for the weights in a block's
#: shared memory, of which products of taps take the rest.
_WIDTHS, _FILLED, _MOST_BYTES, _SHARED_BYTES = (32, 16, 8), HOPPER.count * 2, 36 << 10, 44 << 10


def takes(kernel: Contraction) -> bool:
    """Whether a contraction's reductions over positions can be had so: see `correlates`; of not too many taps and
    channels."""
    return correlates(kernel) and 8 * _WIDTHS[-1] * len(Correlation(kernel).taps) * kernel.in_channels <= _MOST_BYTES


def predicted_milliseconds(kernel: Contraction) -> float:
    """A guess for an H200 at 1.75 GHz: two cycles of a multiprocessor for each shift of 4 positions and 8 x 8 channels
    (float64 tensor cores take 3.6 for two), what is kept of cells written and read at 3 TB/s, and 10 microseconds for
    three launches."""
    numbers = Correlation(kernel)
    return 2 * numbers.products / HOPPER.count / (HOPPER.clock / 1e3) + 2 * numbers.places["cells"][1] / 3e9 + 0.01


def generate(kernel: Contraction, name: str) -> KernelSource:
    """The CUDA text. Raises ValueError for a contraction that :func:`takes` refuses, and for grids of 2**31 blocks."""
    if not takes(kernel):
        raise ValueError(f"{name}: no reductions over positions from products of x with itself")
    numbers = Correlation(kernel)
    texts, launches = zip(products(numbers, name), _gram(numbers, name), _totals(numbers, name), strict=True)
    parts = [*(value_function(kernel, operand, name) for operand in operands(kernel)), _tables(numbers, name), *texts]
    body = ["unsigned char* const base = static_cast<unsigned char*>(workspace);"]
    body += [f"double* const {part} = reinterpret_cast<double*>({plus('base', f'{at}LL' if at else 0)});"
             for part, (at, _) in numbers.places.items()]
    definition = "\n".join([*parts, head(name, kernel.input_dtypes, kernel.output_dtypes),
                            *(f"  {line}" for line in (*body, *launches)), "  return nullptr;", "}"])
    support = {"check", "mma_float64", *snippets_of(definition)}
    return KernelSource(name, definition, numbers.workspace_bytes, tuple(sorted(support)))


def launch(name: str, kernel: str, blocks: int, threads: int, arguments: Sequence[str]) -> str:
    """A launch without dynamic shared memory."""
    if blocks >= 2**31:
        raise ValueError(f"{name}: {blocks} blocks exceed a grid")
    return f'KW_LAUNCH("{name}", {kernel}, {", ".join([str(blocks), str(threads), "0", "stream", *arguments])});'


def _tables(numbers: Correlation, name: str) -> str:
    """Taps, with their entries of w and their segments along each axis, and pairs of taps of one phase."""
    rank = len(numbers.kernel.axes)
    taps = [[*(tap.number for tap in taps[-rank:]), *(end for r in numbers.range_of(taps) for end in r)]
            for taps in numbers.taps]
    said = "entries of w, then the segments of x that it reads along each axis, from one up to another"
    return "\n".join([
        f"// Of each tap {said}.", f"static __device__ const int {name}_taps[][{len(taps[0])}] = {{",
        *_rows(taps), "};",
        "// Two taps of one phase, and which shift leads from the first to the second.",
        f"static __device__ const int {name}_pairs[][3] = {{", *_rows(numbers.pairs), "};",
        "// The first slot of each cell, and the number of all.",
        *wrapped([f"static __device__ const int {name}_firsts[] = {{{', '.join(map(str, numbers.firsts))}}};"]), ""])


def _rows(rows: Sequence[Sequence[int]]) -> list[str]:
    """The rows of a table, several in a line."""
    line, lines = "  ", []
    for row in rows:
        text = f"{{{', '.join(map(str, row))}}}, "
        if len(line) + len(text) > 118:
            lines.append(line.rstrip())
            line = "  "
        line += text
    return [*lines, line.rstrip(", ")]


def _gram(numbers: Correlation, name: str) -> tuple[str, str]:
    """The kernel that adds up cells: for each pair of taps their products, for each tap its sums."""
    kernel, axes = numbers.kernel, len(numbers.axes)
    channels, rank = kernel.in_channels, len(kernel.axes)
    pairs, every = len(numbers.pairs) * channels**2, len(numbers.pairs) * channels**2 + len(numbers.taps) * channels
    total = every * kernel.batch * kernel.groups
    counts = [len(segments) for segments in numbers.segments]
    cell = "0"
    for axis in range(axes - 1):
        cell = f"({cell} + s{axis}) * {counts[axis + 1]}" if axis else f"s{axis} * {counts[axis + 1]}"
    inner = [f"const int first = {cell} + range[{2 * axes - 2}], last = {cell} + range[{2 * axes - 1}];",
             "#pragma unroll 4",
             f"for (int slot = {name}_firsts[first]; slot < {name}_firsts[last]; ++slot)",
             f"  value += from[slot * {numbers.blocks**2 * numbers.results}LL];"]
    for axis in reversed(range(axes - 1)):
        inner = [f"for (int s{axis} = range[{2 * axis}]; s{axis} < range[{2 * axis + 1}]; ++s{axis}) {{",
                 *indent(inner), "}"]
    block = f"const int block = c / {CHANNELS} * {numbers.blocks} + other / {CHANNELS};" if numbers.blocks > 1 else \
        "constexpr int block = 0;"
    body = [
        f"const long long number = blockIdx.x * {_THREADS}LL + threadIdx.x, entry = number / {every};",
        f"int e = number % {every};", f"if (number >= {total}LL) return;",
        f"const bool is_pair = e < {pairs};", f"if (!is_pair) e -= {pairs};",
        f"const int other = is_pair ? e % {channels} : 0, c = (is_pair ? e / {channels} : e) % {channels};",
        f"const int which = is_pair ? e / {channels**2} : e / {channels};", block,
        f"const int* const pair = {name}_pairs[is_pair ? which : 0];",
        f"const int* const range = {name}_taps[is_pair ? pair[0] : which] + {rank};",
        f"const int place = is_pair ? pair[2] * {CHANNELS**2} + c % {CHANNELS} * {CHANNELS} + other % {CHANNELS}",
        f"                          : {numbers.results - CHANNELS} + c % {CHANNELS};",
        f"const double* const from = cells + (entry * {len(numbers.slots) * numbers.blocks**2} + block) * "
        f"{numbers.results}LL + place;",
        "double value = 0.0;", *inner,
        f"(is_pair ? gram + entry * {pairs} : sums + entry * {every - pairs})[e] = value;"]
    text = "\n".join(["// What two taps read, multiplied and added up over all positions; what one reads, added up.",
                      f"static __global__ void __launch_bounds__({_THREADS}) {name}_gram(",
                      "    const double* __restrict__ cells, double* __restrict__ gram, double* __restrict__ sums) {",
                      *wrapped(indent(body)), "}", ""])
    return text, launch(name, f"{name}_gram", -(-total // _THREADS), _THREADS, ["cells", "gram", "sums"])


def _totals(numbers: Correlation, name: str) -> tuple[str, str]:
    """The kernel that has a mean and a variance for each output channel, and stores what is made of them."""
    kernel, right = numbers.kernel, operands(numbers.kernel)[1]
    channels, entries = kernel.in_channels, kernel.batch * kernel.groups
    taps, rows = len(numbers.taps) * channels, len(numbers.pairs) * channels

    def blocks(width: int) -> int:
        return -(-kernel.out_channels // width)

    fitting = [w for w in _WIDTHS if 8 * w * taps <= _MOST_BYTES]
    width = next((w for w in fitting if blocks(w) * entries >= _FILLED and w < kernel.out_channels), fitting[-1])
    emitter = emitter_of(kernel, kernel.domain, ("n", "g", "o", *(f"p{a}" for a in range(len(kernel.axes)))), (),
                         kernel.stores)
    emitter.reduced |= {(0, 0): "mean", (0, 1): "variance"}
    for store in kernel.stores:
        emitter.store(Buffer(f"out{store.buffer}", C_TYPES[kernel.output_dtypes[store.buffer]]), store.index,
                      _of_sums(store, kernel))
    places = {f"k{axis}": f"tap[{axis}]" for axis in range(len(kernel.axes))}
    value = value_call(right, name, o="first + k % WIDTH", c=f"k / WIDTH % {channels}", **places)
    parameters = [("const double* __restrict__", "gram"), ("const double* __restrict__", "sums"),
                  *parameter_texts(kernel, emitter.used | set(pointers_of(kernel.right)))]
    share = repr(1 / prod(kernel.domain[3:]))
    together = min(rows, (_SHARED_BYTES - 8 * width * taps) // (8 * channels))
    met = "met[{0}][turn][lane] = {1};"
    body = [
        f"constexpr int WIDTH = {width}, TURNS = {_THREADS // width}, BLOCKS = {blocks(width)};",
        f"__shared__ double weights[{taps} * WIDTH], met[2][TURNS][WIDTH];  // of weights rows of output channels",
        f"__shared__ double products[{together * channels}];",
        "const int lane = threadIdx.x % WIDTH, turn = threadIdx.x / WIDTH;",
        "const int first = blockIdx.x % BLOCKS * WIDTH, o = first + lane;",
        f"const {entry_type(kernel)} entry = blockIdx.x / BLOCKS, n = {over('entry', kernel.groups)};",
        f"const int g = {modulo('entry', kernel.groups)};",
        f"for (int k = threadIdx.x; k < {taps} * WIDTH; k += {_THREADS}) {{",
        f"  const int* const tap = {name}_taps[k / WIDTH / {channels}];",
        f"  weights[k] = first + k % WIDTH < {kernel.out_channels} ? double({value}) : 0.0;", "}",
        "double squares = 0.0, total = 0.0;",
        f"for (int begin = 0; begin < {rows}; begin += {together}) {{",
        f"  const int count = min({together}, {rows} - begin);",
        *(["  if (begin > 0) __syncthreads();"] if together < rows else []),
        f"  for (int k = threadIdx.x; k < count * {channels}; k += {_THREADS})",
        f"    products[k] = gram[(entry * {rows}LL + begin) * {channels} + k];", "  __syncthreads();",
        "  for (int i = turn; i < count; i += TURNS) {",
        f"    const int* const pair = {name}_pairs[(begin + i) / {channels}];",
        f"    const double* const other = weights + pair[1] * {channels} * WIDTH + lane;",
        "    double sum = 0.0;", "#pragma unroll 8",
        f"    for (int c = 0; c < {channels}; ++c) sum += products[i * {channels} + c] * other[c * WIDTH];",
        "    // Of two taps the other order of them as well.",
        f"    const double own = weights[(pair[0] * {channels} + (begin + i) % {channels}) * WIDTH + lane];",
        "    squares += (pair[0] == pair[1] ? own : 2.0 * own) * sum;", "  }", "}",
        f"for (int k = turn; k < {taps}; k += TURNS)",
        f"  total += sums[entry * {taps}LL + k] * weights[k * WIDTH + lane];",
        met.format(0, "squares"), met.format(1, "total"), "__syncthreads();", "#pragma unroll",
        "for (int half = TURNS / 2; half > 0; half /= 2) {", "  if (turn < half) {",
        "    met[0][turn][lane] += met[0][turn + half][lane];", "    met[1][turn][lane] += met[1][turn + half][lane];",
        "  }", "  __syncthreads();", "}", f"if (turn > 0 || o >= {kernel.out_channels}) return;",
        f"constexpr double share = {share};  // of each position",
        "const double middle = share * met[1][0][lane], spread = share * met[0][0][lane] - middle * middle;",
        "const float mean = float(middle), variance = float(spread < 0.0 ? 0.0 : spread);",
        *emitter.fixed_lines, *straight(emitter)]
    text = "\n".join(["// The mean and the variance of each output channel's sums.",
                      *wrapped([f"static __global__ void __launch_bounds__({_THREADS}) {name}_totals(",
                                f"    {', '.join(map(' '.join, parameters))}) {{", *indent(body)]), "}", ""])
    return text, launch(name, f"{name}_totals", blocks(width) * entries, _THREADS, [p for _, p in parameters])


def _of_sums(store: Store, kernel: Contraction) -> Expression:
    """What a store writes, of the mean and the variance of the sums: ``Reduced(0)`` and ``Reduced(0, 1)``."""
    def changed(node: Expression) -> Expression | None:
        if not isinstance(node, Reduced):
            return None
        total = kernel.position_reductions[node.reduction - 1]
        if total.kind == "sum":
            return Apply("mul", (total.expression, Constant(float(prod(kernel.domain[3:])))))
        if node.component == 0:
            return total.expression
        slope = slope_of(total.expression)
        return Reduced(0, 1) if slope == Constant(1.0) else Apply("mul", (Apply("mul", (slope, slope)), Reduced(0, 1)))

    return replaced(store.expression, changed)
