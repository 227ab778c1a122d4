"""How accurate a contraction is, and the torch call that it replaces, against float64 at some points of its domain.

Both are given the same operands, from several distributions. The sums of the reference are those of
:mod:`kernelwright.tune.contraction_points`; the epilogue, reductions included, follows in float64 for the reference and
in float32 on the torch call's sums, so that what is compared is what the next operator would read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import inf, nan

import torch

from kernelwright.ir.node import Node
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Expression, Load, Reduced
from kernelwright.plan.kernels import Store
from kernelwright.tune.contraction_points import Points, is_once, points_of, position_of, values_at

#: Distributions of what the model does not give itself: of both signs, of one, and of several magnitudes.
DISTRIBUTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as given": lambda normal: normal,
    "positive": torch.abs,
    "wide": lambda normal: normal * torch.exp2(2.0 * normal.flip(-1)),
}
#: By so much errors of two equally good summations differ, their rms at that many points and the largest of them: a
#: tenth is a seventh of a bit. Sums of float32 products in float32 differ by more from one order to another.
_RMS_NOISE, _MAX_NOISE, _ORDER_NOISE = 1.1, 1.5, 1.25
#: What a unit in the last place of float32 is of a result at most, half a unit up or down; and what is granted to the
#: largest of many such errors. An error that rounding the results themselves may have is no worse than any.
_ROUNDED, _LARGEST_ROUNDED = 2.0**-24, 2.0**-22
#: The rms of fewer results than this differs by more: twice as much, of a quarter of them.
_MANY = 512


@dataclass(frozen=True, slots=True)
class Error:
    """Errors of a result against float64, rms and largest, over the rms of the result; at ``count`` points."""

    rms: float
    largest: float
    count: int = _MANY

    def no_worse_than(self, other: Error, *, ordered: bool = False) -> bool:
        """Whether this error is no larger than another one, but for what sets equally good summations apart, or than
        rounding to float32 may be. NaN is.

        ordered: both are sums of the same float32 products, in two orders.
        """
        if self.rms <= _ROUNDED and self.largest <= _LARGEST_ROUNDED:
            return True
        few = min(self.count, other.count, _MANY)
        noise = 1.0 + ((_ORDER_NOISE if ordered else _RMS_NOISE) - 1.0) * (_MANY / max(1, few)) ** 0.5
        return self.rms <= noise * other.rms and self.largest <= max(_MAX_NOISE, noise) * other.largest


def true_float32(device: torch.device) -> AbstractContextManager:
    """A block in which the libraries do not round float32 operands to TF32, and cuDNN adds nothing by atomics."""
    if device.type != "cuda":
        return nullcontext()
    return _TrueFloat32()


class _TrueFloat32:
    def __enter__(self) -> None:
        cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
        self.before = cudnn.allow_tf32, products.allow_tf32, cudnn.deterministic
        cudnn.allow_tf32 = products.allow_tf32 = False
        cudnn.deterministic = True

    def __exit__(self, *_: object) -> None:
        cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
        cudnn.allow_tf32, products.allow_tf32, cudnn.deterministic = self.before


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
    """What a kernel stored for `some_points`, in the order of its stores, each of (rows, points of a row) or of (rows,
    1) where it is stored once for a row; results that are not floating are left out."""
    shape = torch.broadcast_shapes(*(p.shape for p in points))
    found = []
    for store in _floating(kernel):
        place = position_of(store.index, points_of(kernel, store, points)).broadcast_to(_shape(kernel, store, shape))
        found.append(outputs[store.buffer].reshape(-1)[place])
    return found


def results_at(kernel: Contraction, points: Points, sums: torch.Tensor, inputs: Sequence[torch.Tensor], *,
               exact: bool, off: Sequence[float] = ()) -> list[torch.Tensor]:
    """What follows from sums at `some_points`, as in `stored_at`: in float64, or in float32 and rounded to the results'
    types. off: by what share each element is larger that the first reductions take."""
    dtype = torch.float64 if exact else torch.float32
    reduced = {Reduced(0): sums}
    for number, reduction in enumerate(kernel.all_reductions, 1):
        value = values_at(reduction.expression, points, inputs, dtype, reduced).broadcast_to(sums.shape)
        if number <= len(off):
            value = value * (1.0 + off[number - 1])
        for component, result in enumerate(_of_rows(reduction.kind, value)):
            reduced[Reduced(number, component)] = result[:, None]
    found = [values_at(s.expression, points_of(kernel, s, points), inputs, dtype, reduced).broadcast_to(
        _shape(kernel, s, sums.shape)) for s in _floating(kernel)]
    return found if exact else [value.to(torch_dtype(kernel.output_dtypes[s.buffer]))
                                for value, s in zip(found, _floating(kernel), strict=True)]


def granted(kernel: Contraction, points: Points, exact: torch.Tensor, sums: torch.Tensor,
            inputs: Sequence[torch.Tensor]) -> tuple[Error, ...]:
    """The errors that reductions over positions would have if all elements that they take had the torch call's error,
    to the same side.

    A kernel that stores its elements is held to the torch call's error in each, whatever that leaves in a mean of them,
    which PyTorch takes then: of independent errors next to nothing, and all of what is the same in every element. A
    kernel that takes the mean itself is held to no less than that. () of kernels without reductions over positions.

    exact, sums: the sums at the points, and as the torch call has them.
    """
    if not kernel.position_reductions:
        return ()
    off = []
    for total in kernel.position_reductions:
        wanted, found = (values_at(total.expression, points, inputs, dtype, {Reduced(0): values}).double()
                         for dtype, values in ((torch.float64, exact), (torch.float32, sums)))
        legal = wanted.isfinite() & found.isfinite()
        scale = float(wanted[legal].square().mean().sqrt()) if legal.any() else 0.0
        off.append(float((found - wanted)[legal].square().mean().sqrt()) / scale if scale > 0.0 else 0.0)
    return errors_of(results_at(kernel, points, exact, inputs, exact=True, off=off),
                     results_at(kernel, points, exact, inputs, exact=True))


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


def _shape(kernel: Contraction, store: Store, shape: Sequence[int]) -> tuple[int, int]:
    """The shape of a store's results, where points have ``shape``."""
    return shape[0], 1 if is_once(kernel, store) else shape[1]


def _floating(kernel: Contraction) -> list[Store]:
    return [s for s in kernel.stores if kernel.output_dtypes[s.buffer] != "bool"]


def errors_of(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> tuple[Error, ...]:
    """The error of each result against what is expected of it, NaN where there is one; NaN where there is no result."""
    return tuple(_error(value, wanted) for value, wanted in zip(found, expected, strict=True)) or (Error(nan, nan),)


def _error(value: torch.Tensor, wanted: torch.Tensor) -> Error:
    legal = wanted.isfinite()
    difference = (value.double() - wanted)[legal]
    scale = float(wanted[legal].square().mean().sqrt()) if legal.any() else 0.0
    if scale > 0.0:
        return Error(float(difference.square().mean().sqrt()) / scale, float(difference.abs().max()) / scale,
                     difference.numel())
    if difference.any():  # of zeros there is no relative error
        return Error(inf, inf, difference.numel())
    return Error(0.0, 0.0, difference.numel())


def operands(inputs: Sequence[Node], own: Mapping[Node, torch.Tensor], distribution: str, device: torch.device,
             statistics: Collection[Node] = ()) -> list[torch.Tensor]:
    """Values of a kernel's inputs: the model's own for its tensors, for others as the distribution draws them.

    own: tensors of the model, and for the distribution "as given" its example inputs. statistics: inputs that lie
    between 0.5 and 1: they are to scale and to shift results, not to hide them.
    """
    generator = torch.Generator(device=device).manual_seed(7)
    result = []
    for node in inputs:
        known = own.get(node)
        if node in statistics:
            drawn = torch.rand(node.shape, generator=generator, device=device)
            result.append((0.5 + 0.5 * drawn).to(torch_dtype(node.dtype)))
            continue
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
