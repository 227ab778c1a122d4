"""The energy of a convolution's channels by way of transforms: its taps, the lengths of the transforms, and its cost.

The energy is a sum over pairs of taps of one phase, of the correlation of two channels of x at the difference of their
offsets, the lag (see :func:`kernelwright.ir.ops.special.channel_energy`, and codegen/*/fft_energy/ for the kernels).
"""

from __future__ import annotations

from math import prod

from kernelwright.ir.registry import Applied

Taps = tuple[tuple[tuple[int, int], ...], ...]
"""For each spatial axis, (phase, offset) of each tap along it."""


def taps(node: Applied) -> Taps:
    """The taps of a channel_energy node."""
    found = []
    for size, stride, dilation in zip(node.inputs[1].shape[2:], node["stride"], node["dilation"], strict=True):
        # Both forms slide over x; a convolution reads its taps the other way round.
        order = range(size) if node["transposed"] else range(size - 1, -1, -1)
        step = stride if node["transposed"] else 1
        found.append(tuple((k * dilation % step, k * dilation // step) for k in order))
    return tuple(found)


def lags(taps: Taps) -> tuple[int, ...]:
    """Per axis, the largest difference of two offsets within one phase."""
    result = []
    for axis in taps:
        phases: dict[int, list[int]] = {}
        for phase, offset in axis:
            phases.setdefault(phase, []).append(offset)
        result.append(max(max(o) - min(o) for o in phases.values()))
    return tuple(result)


def lengths(size: tuple[int, ...], lags: tuple[int, ...]) -> tuple[int, ...]:
    """Per axis, the length of the transform of x, which has ``size`` positions: no lag in use wraps around."""
    return tuple(n + d for n, d in zip(size, lags, strict=True))


def grid(lags: tuple[int, ...]) -> tuple[int, ...]:
    """Per axis, the number of lags, which is the length of the transform of the weights."""
    return tuple(2 * d + 1 for d in lags)


def operations(node: Applied) -> int:
    """Multiply-adds (times 2) of the transform of x, the Gram matrices, their fold and the quadratic form."""
    x, groups, all_taps = node.inputs[0], node["groups"], taps(node)
    batch, in_channels, size = x.shape[0], x.shape[1] // groups, x.shape[2:]
    out_channels = node.inputs[1].shape[1] if node["transposed"] else node.inputs[1].shape[0] // groups
    points_of_lags = grid(lags(all_taps))
    volumes = batch * groups * in_channels
    transform, done = 0.0, 1.0
    for axis, (count, length) in enumerate(zip(size, lengths(size, lags(all_taps)), strict=True)):
        rest = prod(size[axis + 1:])
        complexity = 4.0 if axis else 1.0  # the half spectrum halves a complex output, and the input is real
        transform += volumes * done * rest * count * min(length, 96) * complexity
        done *= length / 2 + 1 if axis == 0 else length
    frequencies = done
    pairs = in_channels * (in_channels + 1) / 2 * groups
    gram = 4.0 * frequencies * pairs * batch
    fold = 2.0 * frequencies * pairs * points_of_lags[-1] * 1.5
    points = prod(points_of_lags) / 2
    phases = prod(len({p for p, _ in axis}) for axis in all_taps)
    form = 4.0 * points * groups * in_channels ** 2 * out_channels * phases
    return int(2 * (transform + gram + fold + form))
