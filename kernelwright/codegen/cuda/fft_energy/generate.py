"""CUDA text of ``SpectralEnergy``: the energy of every output channel of an unclipped convolution.

The mathematics is in ``codegen/fft_energy/tables.py``. Kernels, in the order of their launches:

==============  ============================================================================
tables          twiddles, fold tables, roots of unity (double, rounded to float32)
weights         transform of the weights to the small grid
transform       spectrum of x, volume by volume in shared memory, or axis by axis
gram            products of the spectrum over the batch, folded along the last axis
fold1, fold0    resampling of the other axes to the small grid
quadratic       W^H Ahat W per grid point, partial energies in double
energy          their sum
==============  ============================================================================

Where the spectrum, the folded products or the weights exceed their budgets, the batch, the pairs of
channel tiles or the grid are walked in chunks: the energy is linear in each. Products are float32; sums of
more than about 64 terms continue in double or in separate partial sums. The order of every sum is fixed.
A convolution that cancels most of its input's energy loses relative accuracy, as it does in float32
itself. An infinite input yields NaN where the direct sum may yield infinity.
"""

from __future__ import annotations

from math import ceil

from kernelwright.codegen.cuda.fft_energy import dft, gram, quadratic, weights
from kernelwright.codegen.cuda.fft_energy.layout import Layout
from kernelwright.codegen.cuda.fft_energy.tables import tables_kernel
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.terms import grouped, over, plus
from kernelwright.plan.kernels import SpectralEnergy


def generate(kernel: SpectralEnergy, name: str) -> KernelSource:
    """Text of ``kernel`` under ``name``.

    The host function is ``static const char* NAME(const float* x, const float* weight, double* energy,
    void* workspace, cudaStream_t stream)``: x (batch, groups * in_channels, *size) and the weight are
    contiguous float32, the energy is float64 (groups * out_channels,).

    Raises ValueError for more than three axes, an axis too long for shared memory (about 28000 points)
    or more than about 11000 taps.
    """
    layout = Layout(kernel, name)
    kernels = [
        tables_kernel(layout),
        weights.weight_kernel(layout),
        dft.transform_kernels(layout),
        gram.gram_kernel(layout),
        *(gram.fold_kernel(layout, number, parts) for number, parts in gram.folds(layout)),
        quadratic.quadratic_kernel(layout),
        quadratic.energy_kernel(layout),
    ]
    definition = "\n\n".join([_header(layout), *kernels, _host(layout)]) + "\n"
    return KernelSource(name, definition, layout.workspace["end"], ())


def _header(layout: Layout) -> str:
    kernel, axes = layout.kernel, layout.axes
    lengths = " x ".join(str(axis.length) for axis in axes)
    slots = " x ".join(str(axis.slots) for axis in axes)
    grid = " x ".join(str(axis.grid) for axis in axes)
    return (
        f"// {layout.name}: sum of squares of every channel of a convolution's output, from spectra.\n"
        f"// x {kernel.batch} x {layout.channels} x {' x '.join(map(str, kernel.size))}, groups {kernel.groups}, "
        f"{layout.outputs} output channels, {layout.phases} phases.\n"
        f"// Transform {lengths} (kept: {slots}), grid of lags {grid}, "
        f"{layout.pairs} pairs of {layout.tile}-channel tiles."
    )


def _shared_attribute(where: str, function: str, size: int) -> list[str]:
    if size <= 48 * 1024:
        return []
    return [
        f'  KW_CHECK("{where}", cudaFuncSetAttribute({function}, '
        f"cudaFuncAttributeMaxDynamicSharedMemorySize, {size}));"
    ]


def _host(layout: Layout) -> str:
    name, kernel, axes = layout.name, layout.kernel, layout.axes
    types = {"twiddle": "float2", "fold": "float", "root": "float2", "tap": "int", "partial": "double"}
    lines = [
        f"static const char* {name}(const float* x, const float* weight, double* energy, void* workspace,",
        "    cudaStream_t stream) {",
        "  unsigned char* base = static_cast<unsigned char*>(workspace);",
    ]
    unused = {"end"} | {f"folded{2 - i}" for i in (0, 1)} - {f"folded{2 - i}" for i, _ in gram.folds(layout)}
    for part, offset in layout.workspace.items():
        if part not in unused:
            kind = types.get(part.rstrip("012"), "float2")
            place = plus("base", f"{offset}LL" if offset else 0)
            lines.append(f"  {kind}* const {part} = reinterpret_cast<{kind}*>({place});")
    launches = dft.transform_launches(layout)
    for function, _, _, shared in launches:
        lines += _shared_attribute(function, function, shared)
    lines += _shared_attribute(f"{name}_gram", f"{name}_gram", gram.gram_shared(layout))
    tables = ", ".join(f"twiddle{i}, fold{i}, root{i}, tap{i}" for i in range(3))
    lines.append(f'  KW_LAUNCH("{name}_tables", {name}_tables, dim3(8, 3), dim3(128), 0, stream, {tables});')
    once = layout.slices_at_once == layout.slices
    if once:
        lines += _weights(layout, "  ", "0", str(layout.slices))
    chunks = ceil(kernel.batch / layout.images)
    image_values = layout.channels * kernel.positions
    lines += [
        f"  for (int image = 0; image < {kernel.batch}; image += {layout.images}) {{  // {chunks} of them",
        f"    const int images = {kernel.batch} - image < {layout.images} ? {kernel.batch} - image : {layout.images};",
        f"    const float* source = x + image * {image_values}LL;",
        f"    const long long volumes = images * {layout.channels * layout.volumes_per_channel}LL;",
    ]
    for function, blocks, threads, shared in launches:
        count = f"volumes * {layout.volume // axes[2].slots}"
        lines += [
            f'    KW_LAUNCH("{function}", {function}, ({blocks}), dim3({threads}), {shared}, stream, source, spectrum,',
            f"              {count}, twiddle0, twiddle1, twiddle2);",
        ]
    lines += [
        f"    for (int pair = 0; pair < {layout.pairs}; pair += {layout.pairs_at_once}) {{",
        f"      const int pairs = {layout.pairs} - pair < {layout.pairs_at_once} ? {layout.pairs} - pair "
        f": {layout.pairs_at_once};",
        f'      KW_LAUNCH("{name}_gram", {name}_gram, dim3({gram.gram_blocks(layout)}u, pairs), '
        f"dim3({layout.gram_threads}),",
        f"                {gram.gram_shared(layout)}, stream, spectrum, fold2, folded0, images, pair, pairs);",
    ]
    current = "folded0"
    for number, _ in gram.folds(layout):
        outer, grid_chunks, inner = gram.fold_grid(layout, number)
        target = "folded1" if number == 1 else "folded2"
        lines += [
            "      {",
            f"        const long long inner = pairs * {inner // 2}LL;  // pairs of complex numbers",
            f'        KW_LAUNCH("{name}_fold{number}", {name}_fold{number}, '
            f"dim3(static_cast<unsigned>((inner + 127) / 128), {outer * grid_chunks}), dim3(128), 0,",
            f"                  stream, reinterpret_cast<const float4*>({current}), fold{number},",
            f"                  reinterpret_cast<float4*>({target}), inner);",
            "      }",
        ]
        current = target
    threads, points = quadratic.quadratic_shape(layout)
    tiles = ceil(kernel.out_channels / quadratic.quadratic_outputs(layout))
    lines += [
        f"      for (int slice = 0; slice < {layout.slices}; slice += {layout.slices_at_once}) {{",
        f"        const int slices = {layout.slices} - slice < {layout.slices_at_once} ? {layout.slices} - slice "
        f": {layout.slices_at_once};",
    ]
    if not once:
        lines += _weights(layout, "        ", "slice", "slices")
    rows = plus(f"slices * {layout.slice}", points - 1)
    lines += [
        f'        KW_LAUNCH("{name}_quadratic", {name}_quadratic,',
        f"                  dim3({over(grouped(rows), points)}, {tiles}, {kernel.groups}),",
        f"                  dim3({threads}, {points}), 0, stream, {current}, weights, partial, pair, pairs, slice,",
        "                  slices, image == 0 && pair == 0);",
        "      }",
        "    }",
        "  }",
        f'  KW_LAUNCH("{name}_energy", {name}_energy, dim3({ceil(layout.outputs / 8)}), dim3(256), 0, stream, partial,',
        "            energy);",
        "  return nullptr;",
        "}",
    ]
    return "\n".join(lines)


def _weights(layout: Layout, indent: str, begin: str, count: str) -> list[str]:
    name = layout.name
    across, channels = weights.weight_blocks(layout)
    width, rows = weights.weight_outputs(layout), weights.weight_rows(layout)
    return [
        f'{indent}KW_LAUNCH("{name}_weights", {name}_weights,',
        f"{indent}          dim3({across}, {channels}, ({count} + {rows - 1}) / {rows}), dim3({width}, {rows}), 0,",
        f"{indent}          stream, weight, root0, root1, root2, tap0, tap1, tap2, weights, {begin}, {count});",
    ]
