"""From a channel_energy node to its kernel record, and what it costs."""

from __future__ import annotations

from math import prod

from kernelwright.ir.node import Node
from kernelwright.plan.kernels import SpectralEnergy


def spectral_kernel(node: Node) -> SpectralEnergy:
    """The record of a channel_energy node (see :func:`kernelwright.ir.ops.special.channel_energy`)."""
    x, weight = node.inputs
    groups, transposed = node["groups"], node["transposed"]
    taps = []
    for size, stride, dilation in zip(weight.shape[2:], node["stride"], node["dilation"], strict=True):
        # Both forms slide over x; a convolution reads its taps the other way round.
        order = range(size) if transposed else range(size - 1, -1, -1)
        step = stride if transposed else 1
        taps.append(tuple((k * dilation % step, k * dilation // step) for k in order))
    in_channels = x.shape[1] // groups
    out_channels = weight.shape[1] if transposed else weight.shape[0] // groups
    return SpectralEnergy(x.shape[0], groups, in_channels, out_channels, x.shape[2:], tuple(taps), transposed)


def spectral_operations(node: Node) -> int:
    """Multiply-adds (times 2) of the transform of x, the Gram matrices, their fold and the quadratic form."""
    kernel = spectral_kernel(node)
    volumes = kernel.batch * kernel.groups * kernel.in_channels
    transform, done = 0.0, 1.0
    for axis, (size, length) in enumerate(zip(kernel.size, kernel.lengths, strict=True)):
        rest = prod(kernel.size[axis + 1:])
        complexity = 4.0 if axis else 1.0  # the half spectrum halves a complex output, and the input is real
        transform += volumes * done * rest * size * min(length, 96) * complexity
        done *= length / 2 + 1 if axis == 0 else length
    frequencies = done
    pairs = kernel.in_channels * (kernel.in_channels + 1) / 2 * kernel.groups
    gram = 4.0 * frequencies * pairs * kernel.batch
    fold = 2.0 * frequencies * pairs * kernel.grid[-1] * 1.5
    points = prod(kernel.grid) / 2
    phases = prod(len({p for p, _ in axis}) for axis in kernel.taps)
    form = 4.0 * points * kernel.groups * kernel.in_channels ** 2 * kernel.out_channels * phases
    return int(2 * (transform + gram + fold + form))
