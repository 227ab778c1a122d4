"""Axes of a region sum: joining neighbours, and cutting an axis where the membership changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, lcm
from typing import TypeVar

from kernelwright.plan.kernels import Progression, RegionSum

Classes = tuple[tuple[Progression, ...], ...]

MAXIMAL_ATOMS = 1024
Key = TypeVar("Key", bound=Hashable)


class TooFineError(Exception):
    """The classes cut the input into more pieces than a streaming plan is good for."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis after joining: ``classes`` is None where it is kept; strides are in elements."""

    size: int
    classes: Classes | None
    stride: int
    output_stride: int

    @property
    def outputs(self) -> int:
        """Number of entries of the output along the axis."""
        return self.size if self.classes is None else len(self.classes)

    @property
    def full(self) -> bool:
        """Whether the axis is reduced by a single class that contains every position."""
        return (
            self.classes is not None and len(self.classes) == 1 and _positions(self.classes[0]) == self.size
        )


def _positions(progressions: Iterable[Progression]) -> int:
    return sum(len(range(*p)) for p in progressions)


def _clean(classes: Classes, size: int) -> Classes:
    result = []
    for one in classes:
        kept = []
        for start, stop, step in one:
            if step <= 0 or start < 0 or (start < stop and range(start, stop, step)[-1] >= size):
                raise ValueError(f"progression ({start}, {stop}, {step}) leaves an axis of size {size}")
            if start < stop:
                last = range(start, stop, step)[-1]
                kept.append((start, last + 1, step if last > start else 1))
        result.append(tuple(kept))
    return tuple(result)


def join_axes(kernel: RegionSum) -> tuple[Axis, ...]:
    """The kernel's axes without unit axes and with neighbours of one kind joined.

    Raises ValueError where a progression leaves its axis or the tuples differ in length.
    """
    strides, output_strides = [1], [1]
    for size, outputs in zip(reversed(kernel.shape[1:]), reversed(kernel.output_shape[1:]), strict=True):
        strides.append(strides[-1] * size)
        output_strides.append(output_strides[-1] * outputs)
    axes: list[Axis] = []
    for size, classes, stride, output_stride in zip(
        kernel.shape, kernel.classes, reversed(strides), reversed(output_strides), strict=True
    ):
        axis = Axis(size, None if classes is None else _clean(classes, size), stride, output_stride)
        if size == 1 and (classes is None or axis.full):
            continue
        if axes and ((axis.classes is None and axes[-1].classes is None) or (axis.full and axes[-1].full)):
            joined = axes.pop().size * size
            axis = Axis(joined, None if classes is None else (((0, joined, 1),),), stride, output_stride)
        elif axis.full:
            axis = Axis(size, (((0, size, 1),),), stride, output_stride)
        axes.append(axis)
    return tuple(axes)


def _contains(progressions: tuple[Progression, ...], position: int) -> bool:
    return any(a <= position < b and (position - a) % step == 0 for a, b, step in progressions)


def signature(classes: Classes, position: int) -> tuple[int, ...]:
    """The classes that contain the position."""
    return tuple(u for u, one in enumerate(classes) if _contains(one, position))


def period_of(classes: Classes) -> int:
    """The number of positions after which membership repeats, away from the ends of progressions."""
    return lcm(*(step for one in classes for _, _, step in one))


Found = tuple[int, int, int]
"""Start, count and step of a progression found by :func:`split_by_key`."""


def split_by_key(
    size: int, cuts: Iterable[int], period: int, key: Callable[[int], Key | None]
) -> list[tuple[Key, Found]]:
    """Progressions of ``range(size)`` on which ``key`` is constant; a key of None is left out.

    Between two cuts the key must have the given period. Raises TooFineError.
    """
    edges = sorted({0, size} | {cut for cut in cuts if 0 < cut < size})
    if len(edges) > 2 * MAXIMAL_ATOMS:
        raise TooFineError
    found: dict[Key, list[Found]] = {}
    pieces = 0
    for low, high in pairwise(edges):
        step = min(period, high - low)
        if step > MAXIMAL_ATOMS:
            raise TooFineError
        keys = [key(low + i) for i in range(step)]
        divisor = next(
            d
            for d in range(1, step + 1)
            if (step % d == 0 or step < period) and all(keys[i] == keys[i % d] for i in range(step))
        )
        for i in range(divisor):
            if (own := keys[i]) is not None:
                count = len(range(low + i, high, divisor))
                found.setdefault(own, []).append((low + i, count, divisor if count > 1 else 1))
                pieces += 1
        if pieces > 2 * MAXIMAL_ATOMS:
            raise TooFineError
    result = [(k, one) for k, several in found.items() for one in _fuse(several)]
    return sorted(result, key=lambda pair: pair[1])


def _fuse(progressions: list[Found]) -> list[Found]:
    result: list[Found] = []
    for start, count, step in sorted(progressions):
        if result:
            start0, count0, step0 = result[-1]
            gap = start - (start0 + (count0 - 1) * step0)
            if gap > 0 and (count0 == 1 or gap == step0) and (count == 1 or gap == step):
                result[-1] = (start0, count0 + count, gap)
                continue
        result.append((start, count, step))
    return result


def row_atoms(classes: Classes, size: int, block: int) -> list[tuple[tuple[tuple[int, ...], ...], Found]]:
    """Progressions of rows of ``block`` positions each, with the signature of each position."""
    edges = {edge for one in classes for a, b, _ in one for edge in (a, b)}
    cuts = {row + i for edge in edges for row in (edge // block,) for i in (0, 1)}
    period = period_of(classes)

    def key(row: int) -> tuple[tuple[int, ...], ...] | None:
        stop = min(size, (row + 1) * block)
        pattern = tuple(signature(classes, q) for q in range(row * block, stop))
        return pattern if any(pattern) else None

    return split_by_key(-(-size // block), cuts, period // gcd(period, block), key)
