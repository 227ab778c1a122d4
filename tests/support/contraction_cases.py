"""Contractions of every family in small sizes, with inputs, for the tests of their skeletons.

``cases()`` lists them, `two_phase_cases` those with two output phases of the last axis; `matmul` and `convolution` make
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernelwright.codegen.reference.contraction import evaluate_contraction
from kernelwright.plan.contraction.record import Contraction, ContractionAxis, Tap
from kernelwright.plan.expressions import Apply, Constant, Index, Load, Reduced
from kernelwright.plan.kernels import Store
from kernelwright.plan.reading.access import strides_of

Each = int | tuple[int, ...]


@dataclass(frozen=True)
class ContractionCase:
    """A contraction and the shapes of its inputs."""

    name: str
    kernel: Contraction
    shapes: tuple[tuple[int, ...], ...]

    def inputs(self, scale: float = 1.0) -> list[torch.Tensor]:
        """Normally distributed inputs of the kernel's dtypes, the same on every call."""
        generator = torch.Generator().manual_seed(sum(map(ord, self.name)))
        return [(scale * torch.randn(shape, generator=generator)).to(getattr(torch, dtype))
                for shape, dtype in zip(self.shapes, self.kernel.input_dtypes, strict=True)]

    def expected(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Flat outputs in float64."""
        return evaluate_contraction(self.kernel, inputs)


def _plain(kernel: Contraction, order: tuple[int, ...] | None = None) -> Contraction:
    """The kernel with one store of its sums, contiguous in ``order`` of its domain's axes (as it is)."""
    order = order or tuple(range(len(kernel.domain)))
    strides = [0] * len(order)
    for axis, stride in zip(order, strides_of(tuple(kernel.domain[a] for a in order)), strict=True):
        strides[axis] = stride
    return replace(kernel, stores=(Store(0, Index(tuple(strides)), Reduced(0)),))


def matmul(rows: int, depth: int, columns: int, *, groups: int = 1, transposed: tuple[bool, bool] = (False, False),
           scheme: str = "fp16x3", dtype: str = "float32") -> ContractionCase:
    """(groups, rows, depth) @ (groups, depth, columns); ``transposed`` operands lie the other way round in memory."""
    first = (groups, depth, rows) if transposed[0] else (groups, rows, depth)
    second = (groups, columns, depth) if transposed[1] else (groups, depth, columns)
    a, b = strides_of(first), strides_of(second)
    left = Index((a[2], a[0], a[1]) if transposed[0] else (a[1], a[0], a[2]))
    right = Index((b[0], b[1], b[2]) if transposed[1] else (b[0], b[2], b[1]))
    kernel = Contraction(rows, groups, depth, columns, (), Load(0, left), Load(1, right), (), (dtype, dtype), (dtype,),
                         scheme)
    name = f"matmul_{groups}x{rows}x{depth}x{columns}_{scheme}_{dtype}" + "t" * transposed[0] + "_t" * transposed[1]
    return ContractionCase(name, _plain(kernel, (1, 0, 2)), (first, second))


def convolution(batch: int, groups: int, in_channels: int, out_channels: int, size: tuple[int, ...],
                window: tuple[int, ...], *, stride: Each = 1, padding: Each = 0, dilation: Each = 1,
                transposed: bool = False, output_padding: Each = 0, scheme: str = "fp16x3", dtype: str = "float32"
                ) -> ContractionCase:
    """A convolution over NCHW tensors; channels are per group. A number stands for one of each axis."""
    axes = []
    name = f"convolution_{'t_' if transposed else ''}{batch}_{groups}x{in_channels}x{out_channels}_" \
        f"{'x'.join(map(str, size))}_k{'x'.join(map(str, window))}_s{stride}_p{padding}_d{dilation}_{scheme}_{dtype}"
    each = [value if isinstance(value, tuple) else (value,) * len(size)
            for value in (stride, padding, dilation, output_padding)]
    for length, k, stride, padding, dilation, output_padding in zip(size, window, *each, strict=True):
        if transposed:
            out = (length - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1
            phases = [(i * dilation - padding) % stride for i in range(k)]
            taps = tuple(Tap(i, p, (p + padding - i * dilation) // stride) for i, p in enumerate(phases))
            axes.append(ContractionAxis(length, out, k, 1, stride, taps))
        else:
            out = (length + 2 * padding - dilation * (k - 1) - 1) // stride + 1
            axes.append(ContractionAxis(length, out, k, stride, 1,
                                        tuple(Tap(i, 0, i * dilation - padding) for i in range(k))))
    x = (batch, groups * in_channels, *size)
    left = Index(strides_of((batch, groups, in_channels, *size)))
    if transposed:
        w = (groups * in_channels, out_channels, *window)
        g, c, o, *k = strides_of((groups, in_channels, out_channels, *window))
        right = Index((g, o, c, *k))
    else:
        w = (groups * out_channels, in_channels, *window)
        right = Index(strides_of((groups, out_channels, in_channels, *window)))
    kernel = Contraction(batch, groups, in_channels, out_channels, tuple(axes), Load(0, left), Load(1, right), (),
                         (dtype, dtype), (dtype,), scheme)
    return ContractionCase(name, _plain(kernel), (x, w))


def with_epilogue(case: ContractionCase) -> ContractionCase:
    """The case with 2 * relu(sum + bias[g, o]) + residual as its store, and relu of the left operand as it is read."""
    kernel = case.kernel
    store = kernel.stores[0]
    channel = Index((0, kernel.out_channels, 1, *[0] * len(kernel.axes)))
    value = Apply("relu", (Apply("add", (Reduced(0), Load(2, channel))),))
    value = Apply("add", (Apply("mul", (value, Constant(2.0))), Load(3, store.index)))
    changed = replace(kernel, left=Apply("relu", (kernel.left,)), stores=(Store(0, store.index, value),),
                      input_dtypes=(*kernel.input_dtypes, "float32", "float32"))
    size = 1 + store.index.offset + sum(s * (d - 1) for s, d in zip(store.index.strides, kernel.domain, strict=True))
    return ContractionCase(case.name + "_epilogue", changed,
                           (*case.shapes, (kernel.groups * kernel.out_channels,), (size,)))


def cases(scheme: str = "fp16x3", dtype: str = "float32") -> list[ContractionCase]:
    """Every family, with sizes that no tile divides."""
    kind = {"scheme": scheme, "dtype": dtype}
    found = [matmul(70, 40, 36, **kind), matmul(130, 24, 20, groups=3, transposed=(True, True), **kind),
             matmul(33, 100, 150, transposed=(False, True), **kind), matmul(1, 19, 5, transposed=(True, False), **kind)]
    for transposed in (False, True):
        found += [convolution(2, 1, 5, 12, (17,), (3,), padding=1, transposed=transposed, **kind),
                  convolution(3, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1, transposed=transposed, **kind),
                  convolution(2, 1, 16, 24, (11, 8), (3, 2), dilation=2, stride=2, transposed=transposed, **kind),
                  convolution(1, 1, 20, 7, (4, 5, 6), (3, 3, 3), padding=1, transposed=transposed, **kind),
                  convolution(2, 1, 8, 8, (9, 9), (1, 1), stride=3, transposed=transposed, **kind)]
    return found + [with_epilogue(found[0]), with_epilogue(found[5])]


def two_phase_cases(scheme: str = "fp16x3", dtype: str = "float32") -> list[ContractionCase]:
    """Transposed convolutions whose last axis has a stride of 2, with taps of both phases: even and odd outputs, as
    many taps of either phase or not, classes without any, taps too far apart for one run of rows; some with an
    epilogue."""
    kind = {"scheme": scheme, "dtype": dtype, "transposed": True}
    found = [convolution(2, 1, 16, 24, (7, 9), (3, 3), stride=2, padding=1, output_padding=1, **kind),
             convolution(2, 1, 9, 12, (6, 10), (4, 4), stride=2, padding=1, **kind),
             convolution(3, 1, 20, 13, (5, 8), (5, 5), stride=2, **kind),
             convolution(2, 2, 8, 16, (5, 6), (2, 2), stride=2, **kind),
             convolution(3, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1, **kind),
             convolution(2, 1, 5, 7, (6, 9), (3, 4), stride=(1, 2), padding=(1, 1), **kind),
             convolution(1, 1, 20, 40, (3, 4, 5), (3, 3, 3), stride=2, padding=1, output_padding=1, **kind),
             convolution(2, 3, 6, 5, (21,), (5,), stride=2, padding=2, output_padding=1, **kind),
             convolution(2, 1, 16, 8, (5, 7), (1, 3), stride=2, **kind),
             convolution(2, 1, 24, 16, (180,), (4,), stride=2, dilation=151, **kind)]
    return found + [with_epilogue(found[0]), with_epilogue(found[4]), with_epilogue(found[7])]


def few_channel_cases(scheme: str = "fp16x3", dtype: str = "float32") -> list[ContractionCase]:
    """Convolutions of 1 to 8 channels: runs of even and odd numbers of taps, of one, of more than a step has room for,
    windows of one entry and of more than a tile of the weights' packing; one and two output phases; some with an
    epilogue."""
    kind = {"scheme": scheme, "dtype": dtype}
    found = [convolution(2, 1, 3, 12, (5, 110), (3, 3), padding=1, **kind),
             convolution(3, 1, 1, 7, (150,), (4,), padding=2, **kind),
             convolution(2, 2, 8, 10, (7, 9), (3, 3), stride=2, padding=1, **kind),
             convolution(2, 1, 5, 24, (11, 8), (3, 2), dilation=2, stride=(1, 3), **kind),
             convolution(1, 3, 2, 9, (4, 5, 6), (3, 3, 3), padding=1, **kind),
             convolution(2, 1, 7, 40, (9, 9), (1, 1), stride=3, **kind),
             convolution(2, 1, 4, 5, (300,), (33,), dilation=2, **kind),
             convolution(2, 1, 6, 20, (7, 9), (3, 3), stride=2, padding=1, transposed=True, **kind),
             convolution(2, 2, 5, 13, (6, 9), (4, 5), stride=(1, 2), padding=(1, 2), transposed=True, **kind),
             convolution(1, 1, 8, 40, (3, 4, 5), (3, 3, 3), stride=2, padding=1, output_padding=1, transposed=True,
                         **kind),
             convolution(2, 1, 3, 8, (90,), (5,), stride=2, dilation=35, transposed=True, **kind),
             convolution(2, 1, 8, 16, (7, 6), (2, 2), stride=2, transposed=True, **kind)]
    return found + [with_epilogue(found[0]), with_epilogue(found[7])]
