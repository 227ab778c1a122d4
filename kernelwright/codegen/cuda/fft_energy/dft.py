"""Transform kernels of the CUDA spectral energy: x to its spectrum, in shared memory.

Meaning, with M the transform lengths and f in the order of the slots (``slot_frequency``)::

    spectrum[n, c, f] = sum over q of x[n, c, q] * exp(-2 pi i sum over axes a of f_a q_a / M_a)

A stage splits the axis in frequency: with N = r m points left in a block, item j < m combines the r
points j + m t, multiplies result k by exp(-2 pi i j k / N) and writes it to position j + m k. So every
stage works in place, and slot p = k m + p' holds the frequency k + r f'(p'). The real axis comes first
and keeps only the blocks k <= r / 2 of its first stage: the others are conjugates of these.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod

from kernelwright.codegen.cuda.fft_energy.axes import Axis
from kernelwright.codegen.cuda.fft_energy.codelets import complex_codelet, real_codelet
from kernelwright.codegen.cuda.fft_energy.layout import SHARED_HALF, SHARED_LIMIT, Layout
from kernelwright.codegen.terms import grouped, plus, times

Coordinate = tuple[str, int, int]
"""Name, extent and stride in shared memory of a coordinate that a loop runs over."""


def radices(axis: Axis) -> tuple[int, ...]:
    """The stages of an axis; one stage of radix 1 copies the real axis where it is not transformed."""
    return axis.radices or ((1,) if axis.real else ())


def codelet_name(layout: Layout, radix: int, axis: Axis | None = None) -> str:
    """Name of the device function for ``radix`` points; with ``axis`` the one for its real input."""
    return f"{layout.name}_dft{radix}" if axis is None else f"{layout.name}_dft{radix}_real"


def codelets(layout: Layout) -> str:
    """All device functions that the stages call."""
    texts: dict[str, str] = {}
    for axis in layout.axes:
        for stage, radix in enumerate(radices(axis)):
            if axis.real and stage == 0:
                name = codelet_name(layout, radix, axis)
                texts[name] = real_codelet(name, radix, _given(axis, radix))
            else:
                name = codelet_name(layout, radix)
                texts[name] = complex_codelet(name, radix)
    return "\n\n".join(texts.values())


def _given(axis: Axis, radix: int) -> int:
    """How many of the first stage's inputs can lie inside the data."""
    return ceil(axis.size / (axis.length // radix))


def decode(coordinates: list[Coordinate], item: str, indent: str) -> list[str]:
    """Statements that split ``item`` into the coordinates, the one of the smallest stride fastest."""
    ordered = sorted((c for c in coordinates if c[1] > 1), key=lambda c: c[2])
    lines = [f"{indent}const int {name} = 0;" for name, extent, _ in coordinates if extent == 1]
    lines = [line for line in lines if " j " not in line and " block " not in line]
    divisor = 1
    for i, (name, extent, _) in enumerate(ordered):
        value = item if divisor == 1 else f"{item} / {divisor}"
        if i + 1 < len(ordered):
            value = f"{value} % {extent}"
        lines.append(f"{indent}const int {name} = {value};")
        divisor *= extent
    return lines


def stage_text(
    layout: Layout,
    number: int,
    stage: int,
    others: list[Coordinate],
    stride: int,
    threads: int,
    real_load: Callable[[str], str] | None = None,
) -> str:
    """One stage along axis ``number`` over all ``others``, with a barrier behind it.

    ``real_load(position)`` is the expression of a real input of the first stage of the real axis.
    """
    axis = layout.axes[number]
    stages = radices(axis)
    radix = stages[stage]
    points = axis.length // prod(stages[:stage])
    step = points // radix
    real = axis.real and stage == 0
    blocks = 1 if stage == 0 else axis.slots // points
    coordinates = [*others, ("j", step, stride), ("block", blocks, points * stride)]
    items = prod(extent for _, extent, _ in coordinates)
    outputs = radix // 2 + 1 if real else radix
    inputs = _given(axis, radix) if real else radix
    body = [f"  // Axis {number}, stage {stage}: {radix} of {points} points."]
    body.append(f"  for (int item = threadIdx.x; item < {items}; item += {threads}) {{")
    body += decode(coordinates, "item", "    ")
    terms = [name if s == 1 else f"{name} * {s}" for name, extent, s in others if extent > 1]
    terms += [f"block * {points * stride}"] if blocks > 1 else []
    terms += [("j" if stride == 1 else f"j * {stride}")] if step > 1 else []
    body.append(f"    float2* data = {plus('tile', grouped(plus(*terms)))};")
    body.append(f"    float2 v[{outputs}];")
    if real:
        body.append(f"    float given[{inputs}];")
    for t in range(inputs):
        position = f"j + {step * t}" if step > 1 else f"{t}"
        value = real_load(grouped(position)) if real and real_load else f"data[{t * step * stride}]"
        zero = "0.0f" if real else "make_float2(0.0f, 0.0f)"
        if stage == 0 and step * t >= axis.size:
            value = zero
        elif stage == 0 and step * t + step - 1 >= axis.size:
            value = f"{position} < {axis.size} ? {value} : {zero}"
        body.append(f"    {'given' if real else 'v'}[{t}] = {value};")
    if real:
        body.append(f"    {codelet_name(layout, radix, axis)}(given, v);")
    else:
        body.append(f"    {codelet_name(layout, radix)}(v);")
    for k in range(outputs):
        value = f"v[{k}]"
        if step > 1 and k > 0:
            turn = times("j", k * (axis.length // points))
            value = f"{layout.name}_multiply(v[{k}], __ldg(twiddle{number} + {turn}))"
        body.append(f"    data[{k * step * stride}] = {value};")
    body += ["  }", "  __syncthreads();"]
    return "\n".join(body)


def fused(layout: Layout) -> bool:
    """Whether one block transforms a whole volume."""
    return layout.real < 2 and layout.volume * 8 <= SHARED_LIMIT - 1024


def fused_threads(layout: Layout) -> int:
    """Threads of the fused kernel."""
    return min(512, max(64, ceil(layout.volume / 8 / 32) * 32))


_SIGNATURE = "const float* __restrict__ x, float2* __restrict__ spectrum, long long lines,\n    "
_TWIDDLES = (
    "const float2* __restrict__ twiddle0, const float2* __restrict__ twiddle1,\n    "
    "const float2* __restrict__ twiddle2"
)


def fused_kernel(layout: Layout) -> str:
    """The kernel that reads a volume of one channel once and writes its spectrum once."""
    threads, real, axes = fused_threads(layout), layout.real, layout.axes
    strides = {i: prod(axes[j].slots for j in range(i + 1, 3)) for i in range(3)}
    inputs = {i: prod(axes[j].size for j in range(i + 1, 3)) for i in range(3)}
    blocks = max(1, min(2048 // threads, SHARED_LIMIT // (layout.volume * 8 + 1024), 65536 // (threads * 64)))
    text = [
        f"// One block: the volume {[a.size for a in axes[real:]]} of one channel to {layout.volume} frequencies.",
        f"static __global__ void __launch_bounds__({threads}, {blocks}) {layout.name}_transform(",
        f"    {_SIGNATURE}{_TWIDDLES}) {{",
        "  KW_DYNAMIC_SHARED(float2, tile);",
        f"  const float* source = x + static_cast<long long>(blockIdx.x) * {prod(a.size for a in axes[real:])};",
        f"  float2* target = spectrum + static_cast<long long>(blockIdx.x) * {layout.volume};",
    ]
    for number in range(real, 3):
        others = [
            (f"i{i}", axes[i].slots if i < number else axes[i].size, strides[i])
            for i in range(real, 3)
            if i != number
        ]
        offset = " + ".join(times(f"i{i}", inputs[i]) for i in range(real, 3) if i != number)

        def load(position: str, number: int = number, offset: str = offset) -> str:
            return f"__ldg({plus('source', offset, times(position, inputs[number]))})"

        for stage in range(len(radices(axes[number]))):
            text.append(stage_text(layout, number, stage, others, strides[number], threads, load))
    text += [
        f"  for (int i = threadIdx.x; i < {layout.volume}; i += {threads}) target[i] = tile[i];",
        "}",
    ]
    return "\n".join(text)


def tile_shape(layout: Layout, number: int) -> int:
    """Lines that a block of the kernel of one axis transforms side by side."""
    limit = SHARED_HALF if number < 2 else 32 * 1024
    width = 32
    while width > 1 and layout.axes[number].slots * width * 8 > limit:
        width //= 2
    if layout.axes[number].slots * width * 8 > SHARED_LIMIT - 1024:
        raise ValueError(f"spectral energy: an axis of {layout.axes[number].size} points exceeds shared memory")
    return width


def tile_threads(layout: Layout, number: int) -> int:
    """Threads of the kernel of one axis."""
    work = layout.axes[number].slots * tile_shape(layout, number)
    return min(256, max(64, ceil(work / 8 / 32) * 32))


def axis_kernel(layout: Layout, number: int) -> str:
    """The kernel that transforms axis ``number`` for a tile of lines, in place in ``spectrum``."""
    axis, axes, width = layout.axes[number], layout.axes, tile_shape(layout, number)
    threads = tile_threads(layout, number)
    last = number == 2
    text = [
        f"// One block: {width} lines along axis {number}, {axis.size} points to {axis.slots} frequencies.",
        f"static __global__ void __launch_bounds__({threads}) {layout.name}_transform{number}(",
        f"    {_SIGNATURE}{_TWIDDLES}) {{",
        "  KW_DYNAMIC_SHARED(float2, tile);",
    ]
    if last:
        # Lines are contiguous; tile[line][position].
        pitch, stride, inner, factor = axis.slots, 1, 1, 1
        text += [
            f"  const long long begin = static_cast<long long>(blockIdx.x) * {width};",
            f"  const int valid = lines - begin < {width} ? static_cast<int>(lines - begin) : {width};",
            f"  float2* target = spectrum + begin * {axis.slots};",
        ]
        if axis.real:
            text.append(f"  const float* source = x + begin * {axis.size};")
        source_offset, target_offset = f"line * {axis.size}", f"line * {axis.slots}"
    else:
        # Lines are the columns of the last axis; tile[position][line].
        pitch, stride = 1, width
        middle = [i for i in range(layout.real, 2) if i != number]
        extents = {i: axes[i].slots if i < number else axes[i].size for i in middle}
        inner = prod(axes[i].slots for i in range(number + 1, 3))
        factor = prod(axes[i].size for i in range(number + 1, 3))
        tiles = ceil(axes[2].size / width)
        text += [
            f"  const int begin = static_cast<int>(blockIdx.x % {tiles}u) * {width};",
            f"  const int valid = {axes[2].size} - begin < {width} ? {axes[2].size} - begin : {width};",
            f"  long long rest = blockIdx.x / {tiles}u;",
            "  long long target_offset = begin;",
        ]
        if axis.real:
            text.append("  long long source_offset = begin;")
        for i in middle:
            if axis.real:
                inputs = prod(axes[k].size for k in range(i + 1, 3))
                text.append(f"  source_offset += rest % {extents[i]} * {inputs};")
            text += [
                f"  target_offset += rest % {extents[i]} * {prod(axes[k].slots for k in range(i + 1, 3))};",
                f"  rest /= {extents[i]};",
            ]
        text.append(f"  float2* target = spectrum + rest * {layout.volume} + target_offset;")
        if axis.real:
            inputs = prod(a.size for a in axes[layout.real :])
            text.append(f"  const float* source = x + rest * {inputs} + source_offset;")
        source_offset = target_offset = "line"
    lines: list[Coordinate] = [("line", width, pitch)]
    if not axis.real:
        coordinates = [*lines, ("position", axis.size, stride)]
        text.append(f"  for (int item = threadIdx.x; item < {width * axis.size}; item += {threads}) {{")
        text += decode(coordinates, "item", "    ")
        text += [
            f"    if (line < valid) tile[line * {pitch} + position * {stride}] =",
            f"        target[{target_offset} + static_cast<long long>(position) * {inner}];",
            "  }",
            "  __syncthreads();",
        ]

    def load(position: str) -> str:
        return f"(line < valid ? __ldg(source + {source_offset} + {position} * {factor}LL) : 0.0f)"

    for stage in range(len(radices(axis))):
        text.append(stage_text(layout, number, stage, lines, stride, threads, load))
    text.append(f"  for (int item = threadIdx.x; item < {width * axis.slots}; item += {threads}) {{")
    text += decode([*lines, ("position", axis.slots, stride)], "item", "    ")
    text += [
        f"    if (line < valid) target[{target_offset} + static_cast<long long>(position) * {inner}] =",
        f"        tile[line * {pitch} + position * {stride}];",
        "  }",
        "}",
    ]
    return "\n".join(text)


def transform_kernels(layout: Layout) -> str:
    """Text of the transform kernels and of the functions that they call."""
    multiply = (
        f"static __device__ inline float2 {layout.name}_multiply(float2 a, float2 b) {{\n"
        "  return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);\n}"
    )
    if fused(layout):
        kernels = [fused_kernel(layout)]
    else:
        kernels = [axis_kernel(layout, i) for i in range(layout.real, 3) if radices(layout.axes[i])]
    helpers = [multiply] if any(f"{layout.name}_multiply" in text for text in kernels) else []
    return "\n\n".join([*helpers, codelets(layout), *kernels])


def transform_launches(layout: Layout) -> list[tuple[str, str, int, int]]:
    """Per kernel: name, expression of the block count in terms of ``volumes``, threads, shared bytes."""
    if fused(layout):
        return [(f"{layout.name}_transform", "volumes", fused_threads(layout), layout.volume * 8)]
    result = []
    for number in range(layout.real, 3):
        if not radices(layout.axes[number]):
            continue
        width = tile_shape(layout, number)
        if number == 2:
            per_volume = layout.volume // layout.axes[2].slots
            blocks = f"(volumes * {per_volume} + {width - 1}) / {width}"
        else:
            extents = [
                layout.axes[i].slots if i < number else layout.axes[i].size
                for i in range(layout.real, 2)
                if i != number
            ]
            blocks = f"volumes * {prod(extents) * ceil(layout.axes[2].size / width)}"
        result.append(
            (
                f"{layout.name}_transform{number}",
                blocks,
                tile_threads(layout, number),
                layout.axes[number].slots * width * 8,
            )
        )
    return result
