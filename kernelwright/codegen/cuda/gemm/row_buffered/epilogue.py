"""The epilogue of the row-buffered GEMM: from registers to memory, or to reductions.

`row_buffered.operation` says what a thread holds. What depends on the channel alone (scales, biases, a norm's factors)
it computes once for each strip, reductions over positions are additions of what it has anyway, line after line, and
nothing goes through shared memory. For each element: a multiplication by its scale, what the expressions take, and half
a store.

Moments are of what values differ from a number near them, the mean of the first few that a thread has of a strip: sums
of a line in float32, of lines in float64. At the end of a strip four lanes put theirs together (Chan, Golub and
LeVeque, 1979), in an order that does not depend on anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelwright.codegen.cuda.gemm.epilogue.subtile import rescaled_functions
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import operand_pointers
from kernelwright.codegen.cuda.gemm.points import device_function, parameter_texts
from kernelwright.codegen.cuda.gemm.precision.recompute import recompute_function
from kernelwright.codegen.cuda.gemm.row_buffered.operation import RowBufferedOperation
from kernelwright.codegen.cuda.gemm.row_buffered.output_parity import InterleavedStore
from kernelwright.codegen.cuda.gemm.row_buffered.pool import RowBufferedPool
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.reduce_channels import RowBufferedReduceChannels
from kernelwright.codegen.cuda.gemm.row_buffered.reduce_positions import RowBufferedReducePositions, ending, struct
from kernelwright.codegen.cuda.gemm.row_buffered.store import RowBufferedStore
from kernelwright.codegen.cuda.gemm.row_buffered.store_shared_sectors import StoreSharedSectors
from kernelwright.codegen.cuda.math_rounded import of_rounded
from kernelwright.plan.contraction.record import ROUNDED_SCHEMES, Contraction


@dataclass(frozen=True, slots=True)
class Finish:
    """``NAME_finish``, what it takes first as (type, name), what stands before and behind a strip's work tiles, inputs
    and outputs that are to be aligned to 16 bytes, and what a work tile keeps from line to line of its windows."""

    definitions: str
    parameters: tuple[tuple[str, str], ...]
    begin: str
    end: str
    vectors: frozenset[str]
    pooled: str


def operation(numbers: RowBuffered) -> Callable[[RowBuffered, tuple[str, ...]], RowBufferedOperation]:
    """What finishes the sums of work tiles."""
    kernel = numbers.kernel
    if kernel.pools:
        return RowBufferedPool
    if kernel.reductions:
        return RowBufferedReduceChannels
    if kernel.position_reductions:
        return RowBufferedReducePositions
    if numbers.interleaved > 1:
        return InterleavedStore
    return StoreSharedSectors if numbers.tiling.sector_aligned else RowBufferedStore


def finish(numbers: RowBuffered, name: str, original: Contraction) -> Finish:
    """The text that finishes work tiles. original: the kernel before taps were folded."""
    kernel, own = numbers.kernel, original is not numbers.kernel
    names = ("n", "g", "o", *(f"p{a}" for a in range(len(kernel.axes))))
    done = operation(numbers)(numbers, names)
    used = done.emitter.used | set(operand_pointers(kernel))
    parameters = [*parameter_texts(kernel, used), ("const float* __restrict__", "left_scales"),
                  ("const float* __restrict__", "right_scales")]
    given = [" ".join(p) for p in parameters]
    heads = [*given, f"const {name}_channels& channels",
             *[f"{name}_partials& partials"] * bool(kernel.position_reductions),
             f"float (&sums)[{numbers.tiling.rows // 2}]", "int image", "int first_line", *done.heads,
             "int first_position", "int first_channel", "int thread"]
    texts = [recompute_function(original if own else kernel, name, own=own), rescaled_functions(numbers, name, names),
             done.struct(name), *[struct(kernel, name)] * bool(kernel.position_reductions),
             *done.functions(name, given),
             device_function("Reads what a strip's epilogue takes of a thread's two channels.", "void",
                             f"{name}_prepare", [*given, f"{name}_channels& channels", "int image",
                                                 "int first_channel", "int thread"], done.prepare(name)),
             device_function("Finishes the sums of an work_tile: its output channels at positions of a line.", "void",
                             f"{name}_finish", heads, done.body(name))]
    end, passed = "", ", ".join(p for _, p in parameters)
    begin = f"""
      {name}_channels channels;
      {name}_prepare({passed}, channels, strip / (PARTS * ACROSS), block * COLUMNS, thread);"""
    if kernel.reductions:
        begin = f"""
      {name}_channels channels[BLOCKS];
#pragma unroll
      for (int part = 0; part < BLOCKS; ++part)
        {name}_prepare({passed}, channels[part], strip / (PARTS * ACROSS), part * COLUMNS, thread);"""
    if kernel.position_reductions:
        texts.append(ending(numbers, name))
        begin += f"\n      {name}_partials partials = {{}};"
        end = f"\n      {name}_end(position_partials, partials, strip, warpgroup / BLOCKS, block * COLUMNS, thread);"
        parameters.append(("float* __restrict__", "position_partials"))
    definitions = "\n".join(texts)
    if kernel.scheme in ROUNDED_SCHEMES and not kernel.position_reductions and not kernel.exact_functions:
        definitions = of_rounded(definitions)
    vectors = frozenset(done.vectors)
    return Finish(definitions, tuple(parameters), begin, end, vectors, done.kept)
