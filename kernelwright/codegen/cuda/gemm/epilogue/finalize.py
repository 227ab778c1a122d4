"""The kernel that ends a contraction's reductions over all positions of each (n, g, o), and their stores.

The epilogue left partial results of subtiles of rows, for each n that a subtile meets (`epilogue.reduce_positions`).
Here a lane takes a column, so that reads are contiguous, and the warps of a block share the subtiles of one n, in a
fixed order; where that would be few blocks a warp takes several subtiles at once, of fewer columns: nothing is added in
the order in which blocks happen to run. Sums are in double: they are few. Counts of positions are integers, and moments
of subtiles are put together by their means (Chan, Golub and LeVeque, 1979): squares are taken about the mean of one
subtile of the column, so that one pass does. The square of what separates it from the mean of all is at most their
variance times the number of positions, which leaves more digits of a double than a float32 has.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernelwright.codegen.cuda.expressions import C_TYPES
from kernelwright.codegen.cuda.gemm.points import (
    STARTS,
    TAKES,
    PointEmitter,
    emitter_of,
    loads_of,
    ordinary_stores,
    parameter_texts,
    straight,
    wrapped,
)
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry, components
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Reduced, walk
from kernelwright.plan.kernels import Store
from kernelwright.roofline.multiprocessors import HOPPER

#: Threads of a block at most, and subtiles that are worth a further slice of a block.
_MOST_THREADS, _SUBTILES_EACH = 1024, 4
#: Columns of a block: as many as leave so many blocks, if it can be. Eight of them are a sector of memory.
_WIDTHS, _FILLED = (32, 16, 8), HOPPER.count
_DOUBLE_STARTS = {kind: text.replace("f", "") for kind, text in STARTS.items()}


def finalize(geometry: Geometry, name: str) -> tuple[str, str]:
    """``NAME_finalize`` and its launch, behind all others.

    The launch reads ``position_partials`` and ``position_counts`` of the workspace. Raises ValueError for stores that
    differ from position to position, and where the grid would exceed 2**31 - 1 blocks.
    """
    kernel = geometry.kernel
    emitter = finalize_emitter(kernel, name)
    columns, pitch = kernel.groups * kernel.out_channels, geometry.pitches[0]
    width = next((w for w in _WIDTHS if -(-columns // w) * kernel.batch >= _FILLED), _WIDTHS[-1])
    blocks = -(-columns // width)
    if blocks * kernel.batch >= 2**31:
        raise ValueError(f"{name}: {blocks * kernel.batch} blocks exceed a grid")
    kind = "long long" if max(geometry.subtiles * SUBTILE_ROWS, columns) >= 2**31 else "int"
    subtiles = (pitch // SUBTILE_ROWS + 1) * len(geometry.classes)
    slices = _MOST_THREADS // width
    while slices * width > 32 and slices * _SUBTILES_EACH > subtiles:
        slices //= 2
    body = [
        f"constexpr int WIDTH = {width}, SLICES = {slices}, BLOCKS = {blocks};",
        "__shared__ double met[SLICES][WIDTH];",
        "const int lane = threadIdx.x % WIDTH, slice = threadIdx.x / WIDTH, n = blockIdx.x / BLOCKS;",
        f"const {kind} column = blockIdx.x % BLOCKS * {'(long long)' * (kind == 'long long')}WIDTH + lane;"
        "  // of all groups",
        f"const {kind} read = column < {columns} ? column : {columns - 1};",
        "// The subtiles that meet this n. Of the first one, it may be the second n.",
        f"const {kind} begin = n * {pitch}{'LL' * (kind == 'long long')}, first = begin / {SUBTILE_ROWS};",
        f"const {kind} span = (begin + {pitch - 1}) / {SUBTILE_ROWS} - first + 1;",
        *_results(geometry, kind, columns), f"if (slice > 0 || column >= {columns}) return;",
        f"const int g = column / {kernel.out_channels}, o = column % {kernel.out_channels};",
        *emitter.fixed_lines, *straight(emitter)]
    parameters = [("const float* __restrict__", "position_partials"), ("const int* __restrict__", "position_counts"),
                  *parameter_texts(kernel, emitter.used)]
    return finalize_kernel(name, "Reductions over all positions of each (n, g, o), from those of subtiles.",
                           blocks * kernel.batch, width * slices, parameters, body)


def finalize_emitter(kernel: Contraction, name: str) -> PointEmitter:
    """An emitter of the stores of reductions over positions, whose results are called r1, r2, ..., and of moments
    r1_variance besides.

    Raises ValueError for stores that differ from position to position.
    """
    stores = [s for s in kernel.stores if s not in ordinary_stores(kernel)]
    if any(_moves(store) for store in stores):
        raise ValueError(f"{name}: no stores of reductions over positions that differ from position to position")
    emitter = emitter_of(kernel, kernel.domain, ("n", "g", "o", *(f"p{a}" for a in range(len(kernel.axes)))), (),
                         stores)
    for number, total in enumerate(kernel.position_reductions, 1):
        emitter.reduced[number, 0] = f"r{number}"
        if total.kind == "moments":
            emitter.reduced[number, 1] = f"r{number}_variance"
    for store in stores:
        emitter.store(Buffer(f"out{store.buffer}", C_TYPES[kernel.output_dtypes[store.buffer]]), store.index,
                      store.expression)
    return emitter


def finalize_kernel(name: str, comment: str, blocks: int, threads: int, parameters: Sequence[tuple[str, str]],
                    body: Sequence[str]) -> tuple[str, str]:
    """``NAME_finalize``, of a body and parameters (C type, name), and its launch."""
    head = f"static __global__ void __launch_bounds__({threads}) {name}_finalize(\n    " \
        f"{', '.join(map(' '.join, parameters))}) {{"
    text = "\n".join([f"// {comment}", *wrapped([*head.split("\n"), *indent(body)]), "}", ""])
    arguments = ", ".join([str(blocks), str(threads), "0", "stream", *(parameter for _, parameter in parameters)])
    return text, f'KW_LAUNCH("{name}", {name}_finalize, {arguments});'


def _moves(store: Store) -> bool:
    """Whether a store of reductions over positions is not the same at all positions."""
    indices = [store.index]
    for load in loads_of([store.expression]):
        indices += [load.index, *(guard.index for guard in load.guards)]
    sums = any(isinstance(part, Reduced) and part.reduction == 0 for part in walk(store.expression))
    return sums or any(any(index.strides[3:]) for index in indices)


def _results(geometry: Geometry, kind: str, columns: int) -> list[str]:
    """Define r1, r2, ..., and of moments r1_variance, ..., in all threads."""
    kernel = geometry.kernel
    positions = f"{prod(kernel.domain[3:])}.0"
    found: dict[str, tuple[str, str]] = {}
    abouts: list[str] = []
    results: list[str] = []
    for number, (at, total) in enumerate(components(kernel), 1):
        own, rest, squares = (f"from[{(at + i) * columns}]" for i in range(3))
        if total.kind == "moments":
            about, off = f"about{number}", f"off{number}"
            abouts.append(f"const double {about} = some ? middle[{at * columns}] : 0.0;")
            found[f"sum{number}"] = "sum", f"double(count) * {own} + {rest}"
            found[f"apart{number}"] = "sum", f"count * {off} + {rest}"
            found[f"squares{number}"] = "sum", f"{squares} + {off} * (2.0 * {rest} + count * {off})"
            results += [f"const float r{number} = float(sum{number} / {positions});",
                        f"const double deviations{number} = squares{number} - "
                        f"apart{number} * (apart{number} / {positions});",
                        f"const float r{number}_variance = float(deviations{number} < 0.0 ? 0.0 : "
                        f"deviations{number} / {positions});"]
        else:
            found[f"total{number}"] = total.kind, f"double({own})"
            results.append(f"const float r{number} = float(total{number});")
    if abouts:
        abouts = ["// A subtile with positions, from the middle of n on: those at its ends may have few of it.",
                  f"{kind} within = span / 2;",
                  f"while (within + 1 < span && !position_counts[{_partial_slot('first + within')}]) ++within;",
                  f"const long long middle_slot = {_partial_slot('first + within')};",
                  "const bool some = position_counts[middle_slot] > 0;",
                  "const float* const middle = position_partials + middle_slot * "
                  f"{geometry.components * columns}LL + read;", *abouts]
    return [*abouts, *_sweep(geometry, kind, columns, found), *results]


def _sweep(geometry: Geometry, kind: str, columns: int, found: dict[str, tuple[str, str]]) -> list[str]:
    """Define each name of ``found`` as a reduction, of a kind and a term, over the subtiles of n."""
    several = len(geometry.classes) > 1
    base, each = f"group * {geometry.subtiles}LL" if several else "", geometry.components * columns
    offs = [f"const double off{number} = {_own(geometry, number, columns)} - about{number};"
            for number, total in enumerate(geometry.kernel.position_reductions, 1) if total.kind == "moments"]
    takes = [f"if (count) {name} = {TAKES[how].format(name, f'term_{name}')};" for name, (how, _) in found.items()]
    lines = [f"double {name} = {_DOUBLE_STARTS[how]};" for name, (how, _) in found.items()]
    sweep = ["#pragma unroll 4",
             f"for ({kind} i = slice; i < span; i += SLICES) {{", *indent([
                f"const {kind} subtile = first + i;",
                f"const long long slot = {_partial_slot('subtile', base)};",
                "const int count = position_counts[slot];",
                f"const float* const from = position_partials + slot * {each}LL + read;", *offs,
                *(f"const double term_{name} = {term};" for name, (_, term) in found.items()), *takes]), "}"]
    if several:
        sweep = ["// Subtiles of each class of output positions.",
                f"for (int group = 0; group < {len(geometry.classes)}; ++group) {{", *indent(sweep), "}"]
    lines += sweep
    for name, (how, _) in found.items():
        met = TAKES[how].format("met[slice][lane]", "met[slice + half][lane]")
        lines += [f"met[slice][lane] = {name};", "__syncthreads();", "#pragma unroll",
                  "for (int half = SLICES / 2; half > 0; half /= 2) {",
                  f"  if (slice < half) met[slice][lane] = {met};", "  __syncthreads();", "}",
                  f"{name} = met[0][lane];", "__syncthreads();"]
    return lines


def _partial_slot(subtile: str, base: str = "") -> str:
    """Where the results of a subtile are for this n, which may be the second one that it meets. base: of its class."""
    subtile = subtile if subtile.isidentifier() else f"({subtile})"
    return f"{f'({base} + {subtile})' if base else subtile} * 2LL + ({subtile} * {SUBTILE_ROWS} < begin)"


def _own(geometry: Geometry, number: int, columns: int) -> str:
    """The first component of a total in a subtile."""
    at, _ = components(geometry.kernel)[number - 1]
    return f"from[{at * columns}]"
