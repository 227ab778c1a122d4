"""How accurate a contraction is, and the torch call that it replaces, against float64 at some points of its domain.

Both are given the same operands, from several distributions. The reference gathers the operands of each point and
sums in float64; the epilogue follows in float64 for the reference and in float32 on the torch call's sums, so that
what is compared is what the next operator would read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from math import inf, nan, prod

import torch

from kernelwright.ir.node import Node
from kernelwright.ir.registry import torch_dtype
from kernelwright.ir.scalar import KERNEL_FUNCTIONS
from kernelwright.plan.expressions import Apply, Constant, Expression, Index, Load, Reduced, is_whole, walk
from kernelwright.plan.kernels import Contraction, Store

#: Distributions of what the model does not give itself: of both signs, of one, and of several magnitudes.
DISTRIBUTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as given": lambda normal: normal,
    "positive": torch.abs,
    "wide": lambda normal: normal * torch.exp2(2.0 * normal.flip(-1)),
}
# Points of the domain that are looked at, and elements of operands that are gathered for them at a time.
_POINTS, _GATHERED = 8192, 1 << 25
#: By so much errors of two equally good summations differ, their rms at that many points and the largest of them: a
#: tenth is a seventh of a bit. Sums of float32 products in float32 differ by more from one order to another.
_RMS_NOISE, _MAX_NOISE, _ORDER_NOISE = 1.1, 1.5, 1.25
Points = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Error:
    """Errors against float64, rms and largest, over the rms of the result; each the worst of several results."""

    rms: float
    largest: float

    def no_worse_than(self, other: Error, *, ordered: bool = False) -> bool:
        """Whether this error is no larger than another one, but for what sets equally good summations apart. NaN is.

        ordered: both are sums of the same float32 products, in two orders.
        """
        noise = _ORDER_NOISE if ordered else _RMS_NOISE
        return self.rms <= noise * other.rms and self.largest <= _MAX_NOISE * other.largest


def some_points(kernel: Contraction, device: torch.device) -> Points:
    """Random points of a contraction's domain: one int64 tensor for each of its axes, the same on every call.

    Where output channels are reduced all of them follow each other, at each of the other axes' places.
    """
    depth = kernel.in_channels * prod(len(a.taps) for a in kernel.axes) * _row(kernel)
    count = max(512, min(_POINTS, (1 << 29) // depth))
    generator = torch.Generator().manual_seed(1)
    points = [torch.randint(0, size, (count,), generator=generator) for size in kernel.domain]
    if kernel.reductions:
        points = [p.repeat_interleave(_row(kernel)) for p in points]
        points[2] = torch.arange(_row(kernel)).repeat(count)
    return [p.to(device) for p in points]


def _row(kernel: Contraction) -> int:
    """How many of `some_points` follow each other that differ in the output channel alone."""
    return kernel.out_channels if kernel.reductions else 1


def values_at(root: Expression, points: Points, inputs: Sequence[torch.Tensor], dtype: torch.dtype,
              reduced: Mapping[Reduced, torch.Tensor] | None = None) -> torch.Tensor:
    """The value of an expression at points of its domain, computed in ``dtype``.

    reduced: the sums, and what reductions give at the points. float64 rounds nothing in between. Raises TypeError for
    what is no expression of a contraction.
    """
    known = reduced or {}
    memo: dict[Expression, torch.Tensor] = {}
    for node in walk(root):
        match node:
            case Constant(value=number):
                memo[node] = torch.full((), number, dtype=torch.int64 if isinstance(number, int) else dtype,
                                        device=points[0].device)
            case Reduced() if node in known:
                memo[node] = known[node].to(dtype)
            case Load(buffer=buffer, index=index, guards=guards, otherwise=otherwise):
                place = _position(index, points)
                legal = torch.ones_like(place, dtype=torch.bool)
                for guard in guards:
                    at = _position(guard.index, points)
                    legal = legal & (at >= 0) & (at < guard.size)
                place, legal = torch.broadcast_tensors(place, legal)
                loaded = inputs[buffer].reshape(-1)[torch.where(legal, place, 0)]
                loaded = loaded.to(torch.int64 if node.whole else dtype)
                memo[node] = torch.where(legal, loaded, torch.full((), otherwise, dtype=loaded.dtype,
                                                                   device=loaded.device)) if guards else loaded
            case Apply(function=function, arguments=arguments):
                if function.startswith("round_") and dtype == torch.float64:
                    memo[node] = memo[arguments[0]]
                    continue
                values = torch.broadcast_tensors(*(memo[a] for a in arguments))
                memo[node] = KERNEL_FUNCTIONS[function].reference(*values).to(torch.int64 if is_whole(node) else dtype)
            case _:
                raise TypeError(f"not an expression of a contraction: {node!r}")
    return memo[root]


def _position(index: Index, points: Points) -> torch.Tensor:
    place = torch.full((), index.offset, dtype=torch.int64, device=points[0].device)
    for stride, point in zip(index.strides, points, strict=True):
        place = place + stride * point
    return place


def exact_sums(kernel: Contraction, points: Points, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sums at the points, in float64."""
    result = torch.zeros(points[0].shape, dtype=torch.float64, device=points[0].device)
    width = max(1, _GATHERED // kernel.in_channels)
    for first in range(0, len(result), width):
        n, g, o, *p = (axis[first:first + width, None] for axis in points)
        channels = torch.arange(kernel.in_channels, device=result.device)[None]
        for taps in product(*(a.taps for a in kernel.axes)):
            legal = torch.ones_like(n, dtype=torch.bool)
            read = []
            for axis, tap, place in zip(kernel.axes, taps, p, strict=True):
                u = (place - tap.phase) // axis.out_stride
                q = axis.in_stride * u + tap.offset
                legal = legal & (place >= tap.phase) & ((place - tap.phase) % axis.out_stride == 0) & (q >= 0) \
                    & (q < axis.in_size)
                read.append(torch.where(legal, q, 0).clamp(0, axis.in_size - 1))
            x = values_at(kernel.left, [n, g, channels, *read], inputs, torch.float64)
            entries = [torch.full_like(n, tap.number) for tap in taps]
            w = values_at(kernel.right, [g, o, channels, *entries], inputs, torch.float64)
            terms = torch.where(legal, x * w, 0.0)
            result[first:first + width] += terms.broadcast_to(len(n), kernel.in_channels).sum(-1)
    return result


def true_float32(device: torch.device) -> AbstractContextManager:
    """A block in which the libraries do not round float32 operands to TF32."""
    if device.type != "cuda":
        return nullcontext()
    return _TrueFloat32()


class _TrueFloat32:
    def __enter__(self) -> None:
        self.before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    def __exit__(self, *_: object) -> None:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = self.before


def torch_sums(kernel: Contraction, node: Node, points: Points, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sums at the points as PyTorch computes them for ``node``, the contraction that the kernel replaces."""
    dtype = torch_dtype(node.dtype)
    x = _whole(kernel.left, kernel.left_domain, inputs, dtype)
    w = _whole(kernel.right, kernel.right_domain, inputs, dtype)
    if node.op == "convolution":
        batch, place = kernel.batch, 3  # rows that were split stand behind the channels
        while batch < node.shape[0]:
            batch *= kernel.left_domain[place]
            place += 1
        split = list(range(3, place))
        shape = (kernel.batch, *(kernel.domain[a] for a in split), *kernel.domain[1:3], *kernel.domain[place:])
        x = x.movedim(split, list(range(1, 1 + len(split)))).reshape(node.inputs[0].shape)
        if node["transposed"]:
            w = w.transpose(1, 2)
        attributes = {name: value for name, value in node.attributes if name != "exact"}
        with true_float32(x.device) if node.get("exact") else nullcontext():
            result = node.operator.reference(x, w.reshape(node.inputs[1].shape), **attributes)
        result = result.reshape(shape).movedim(list(range(1, 1 + len(split))), split)
    else:
        rank = len(kernel.axes)
        rows = x.permute(1, 0, *range(3, 3 + rank), 2).reshape(kernel.groups, -1, kernel.in_channels)
        result = rows @ w.reshape(kernel.groups, kernel.out_channels, kernel.in_channels).mT
        sizes = tuple(a.out_size for a in kernel.axes)
        result = result.reshape(kernel.groups, kernel.batch, *sizes, kernel.out_channels)
        result = result.permute(1, 0, 2 + rank, *range(2, 2 + rank))
    return result[tuple(points)]


def _whole(root: Expression, domain: tuple[int, ...], inputs: Sequence[torch.Tensor], dtype: torch.dtype
           ) -> torch.Tensor:
    """An operand over its whole domain."""
    device = inputs[0].device
    if isinstance(root, Load) and not root.guards and min(root.index.strides) >= 0:
        return inputs[root.buffer].reshape(-1).as_strided(domain, root.index.strides, root.index.offset).to(dtype)
    points = [torch.arange(size, device=device).reshape([-1 if a == axis else 1 for a in range(len(domain))])
              for axis, size in enumerate(domain)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return values_at(root, points, inputs, wide).broadcast_to(domain).to(dtype)


def stored_at(kernel: Contraction, points: Points, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a kernel stored for `some_points`, in the order of its stores; results that are not floating are left out,
    and what stands once for all channels is there once."""
    return [outputs[s.buffer].reshape(-1)[_position(s.index, points)][::_step(kernel, s)] for s in _floating(kernel)]


def results_at(kernel: Contraction, points: Points, sums: torch.Tensor, inputs: Sequence[torch.Tensor], *,
               exact: bool) -> list[torch.Tensor]:
    """What follows from sums at `some_points`, as in `stored_at`: in float64, or in float32 and rounded to the results'
    types."""
    dtype = torch.float64 if exact else torch.float32
    reduced = {Reduced(0): sums}
    for number, reduction in enumerate(kernel.reductions, 1):
        value = values_at(reduction.expression, points, inputs, dtype, reduced).broadcast_to(sums.shape)
        for component, result in enumerate(_of_rows(reduction.kind, value.reshape(-1, _row(kernel)))):
            reduced[Reduced(number, component)] = result.repeat_interleave(_row(kernel))
    found = [values_at(s.expression, points, inputs, dtype, reduced).broadcast_to(sums.shape)[::_step(kernel, s)]
             for s in _floating(kernel)]
    return found if exact else [value.to(torch_dtype(kernel.output_dtypes[s.buffer]))
                                for value, s in zip(found, _floating(kernel), strict=True)]


def _of_rows(kind: str, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The components of a reduction of each row."""
    match kind:
        case "sum":
            return (values.sum(-1),)
        case "max":
            return (values.amax(-1),)
        case "min":
            return (values.amin(-1),)
        case "logsumexp":
            return (values.logsumexp(-1),)
        case _:
            return values.mean(-1), values.var(-1, correction=0)


def _step(kernel: Contraction, store: Store) -> int:
    """From one result of a store to the next among `some_points`."""
    return 1 if store.index.strides[2] else _row(kernel)


def _floating(kernel: Contraction) -> list[Store]:
    return [s for s in kernel.stores if kernel.output_dtypes[s.buffer] != "bool"]


def error_of(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Error:
    """The error of results against what is expected of them; NaN where there is nothing to compare, or a NaN."""
    rms, largest = [0.0 if found else nan], [0.0 if found else nan]
    for value, wanted in zip(found, expected, strict=True):
        legal = wanted.isfinite()
        difference = (value.double() - wanted)[legal]
        scale = float(wanted[legal].square().mean().sqrt()) if legal.any() else 0.0
        if scale > 0.0:
            rms.append(float(difference.square().mean().sqrt()) / scale)
            largest.append(float(difference.abs().max()) / scale)
        elif difference.any():  # of zeros there is no relative error
            rms.append(inf)
            largest.append(inf)
    worst = [nan if any(e != e for e in errors) else max(errors) for errors in (rms, largest)]
    return Error(*worst)


def operands(inputs: Sequence[Node], own: Mapping[Node, torch.Tensor], distribution: str, device: torch.device
             ) -> list[torch.Tensor]:
    """Values of a kernel's inputs: the model's own for its tensors, for others as the distribution draws them.

    own: tensors of the model, and for the distribution "as given" its example inputs.
    """
    generator = torch.Generator(device=device).manual_seed(7)
    result = []
    for node in inputs:
        known = own.get(node)
        if known is not None and (distribution == "as given" or node.op != "input"):
            result.append(known)
            continue
        value = torch.randn(node.shape, generator=generator, device=device) if node.rank else \
            torch.randn(1, generator=generator, device=device).reshape(())
        if node.dtype == "bool":
            result.append(value > 0)
            continue
        changed = DISTRIBUTIONS[distribution](value) if node.rank else value
        result.append(changed.to(torch_dtype(node.dtype)))
    return result
