"""One output beside what was expected: which elements are wrong, and samples of values, for outputs of any size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.judge.diagnose.evidence import Evidence
from kernelwright.verify.flatten import flatten
from kernelwright.verify.tolerance import DEFAULT_TOLERANCE

#: Elements whose values are looked at, of all and of the wrong ones.
SAMPLE = 1 << 16
#: Elements compared at a time.
BLOCK = {"cpu": 1 << 20, "cuda": 1 << 25}
#: How many times eager's own error is not yet wrong.
MULTIPLE = 4.0

_AXES = {1: ("element",), 2: ("row", "column"), 3: ("entry", "row", "column"),
         4: ("entry", "channel", "row", "column"), 5: ("entry", "channel", "plane", "row", "column")}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One output tensor of a candidate with the shape and dtype that the model gives.

    ``got``, ``eager`` and ``best`` (float64 where there is one) have any strides. ``wrong`` is a boolean mask of the
    same shape; ``count`` its trues. ``all_at`` and ``wrong_at`` are flat positions (row-major) of up to `SAMPLE`
    elements, ascending; ``scale`` is the rms of ``best``'s finite values. ``few``: a few numbers, of which a relation
    must hold to rounding.
    """

    path: str
    got: torch.Tensor
    eager: torch.Tensor
    best: torch.Tensor
    wrong: torch.Tensor
    count: int
    all_at: torch.Tensor
    wrong_at: torch.Tensor
    scale: float
    few: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.got.shape)

    @property
    def size(self) -> int:
        return self.got.numel()

    @property
    def share(self) -> float:
        """Share of the elements that are wrong."""
        return self.count / max(1, self.size)

    @property
    def floating(self) -> bool:
        return self.got.dtype.is_floating_point

    def values(self, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Candidate, float64 and eager at flat positions, as float64 vectors."""
        return take(self.got, at), take(self.best, at), take(self.eager, at)

    def index(self, flat: int) -> tuple[int, ...]:
        """Coordinates of a flat position."""
        return unravel(flat, self.shape)

    def example(self, at: torch.Tensor | None = None) -> dict[str, Any]:
        """Index, candidate, eager and float64 value of one wrong element: the first of those sampled."""
        at = self.wrong_at if at is None else at
        if not at.numel():
            return {}
        got, best, eager = self.values(at[:1])
        return {"index": list(self.index(int(at[0]))), "got": float(got), "expected": float(eager),
                "float64": float(best)}


def unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Coordinates of a row-major position."""
    result = []
    for size in reversed(shape):
        result.append(flat % size)
        flat //= size
    return tuple(reversed(result))


def coordinates(at: torch.Tensor, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Coordinates of row-major positions, one vector an axis."""
    result = []
    for size in reversed(shape):
        result.append(at % size)
        at = torch.div(at, size, rounding_mode="floor")
    return result[::-1]


def take(tensor: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Values at row-major positions, as float64 (whole numbers exactly up to 2**53), without copying the tensor."""
    if not tensor.dim():
        return tensor.reshape(1).to(torch.float64).expand(at.numel())
    return tensor[tuple(coordinates(at.to(tensor.device), tuple(tensor.shape)))].to(torch.float64)


def axis_name(rank: int, axis: int) -> str:
    """What people call an axis: "column (axis 1)"."""
    names = _AXES.get(rank)
    return f"{names[axis]} (axis {axis})" if names else f"index of axis {axis}"


def axis_word(rank: int, axis: int, count: int = 1) -> str:
    """The bare word for an axis, in the plural where count is not 1."""
    names = _AXES.get(rank)
    word = names[axis] if names else f"axis-{axis} index"
    if count == 1:
        return word
    return word[:-1] + "ies" if word.endswith("y") else word + ("es" if word.endswith("x") else "s")


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A dense real tensor."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def leaves_of(evidence: Evidence, candidate: Any = None) -> list[Leaf]:
    """The outputs that can be compared element by element and have wrong ones, the worst first."""
    got = flatten(evidence.candidate if candidate is None else candidate)
    eager, best = flatten(evidence.eager), flatten(evidence.reference)
    found = []
    for path, expected in eager.items():
        own: Any = got.get(path)
        if type(own) not in (torch.Tensor, torch.nn.Parameter) or not isinstance(expected, torch.Tensor):
            continue
        if own.shape != expected.shape or own.dtype != expected.dtype or not own.numel():
            continue
        reference = best.get(path, expected)
        reference = reference if reference.shape == expected.shape else expected
        leaf = measure(path, *(plain_tensor(t) for t in (own, expected, reference)))
        if leaf.count:
            found.append(leaf)
    return sorted(found, key=lambda leaf: -leaf.share)


def measure(path: str, got: torch.Tensor, eager: torch.Tensor, best: torch.Tensor) -> Leaf:
    """Find the wrong elements. An element is wrong where its error exceeds the tolerance of its dtype (relative to
    itself, plus the output's size up to 1) by more than `MULTIPLE` of eager's error."""
    eager, best = eager.to(got.device), best.to(got.device)
    size = got.numel()
    all_at = _spread(size, SAMPLE, got.device)
    _, b, e = (take(t, all_at) for t in (got, best, eager))
    finite = torch.isfinite(b) & torch.isfinite(e)
    rms = lambda t: float(t[finite].square().mean().sqrt()) if bool(finite.any()) else 0.0  # noqa: E731
    scale, noise = rms(b), rms(e - b)
    tolerance = DEFAULT_TOLERANCE.get(got.dtype, 1e-5) if got.dtype.is_floating_point else 0.0
    least = tolerance * min(1.0, scale) + MULTIPLE * noise
    wrong = torch.empty(got.shape, dtype=torch.bool, device=got.device)
    for part in blocks(got):
        wrong[part] = _wrong(got[part], eager[part], best[part], tolerance, least)
    count = int(wrong.sum())
    if not count and got.dtype.is_floating_point:  # a fault of the digits: what eager does not lose counts
        for part in blocks(got):
            wrong[part] = _wrong(got[part], eager[part], best[part], 0.0, 0.5 * tolerance * min(1.0, scale) + noise)
        count = int(wrong.sum())
    return Leaf(path, got, eager, best, wrong, count, all_at, _positions(wrong, count), scale)


def _wrong(got: torch.Tensor, eager: torch.Tensor, best: torch.Tensor, tolerance: float, least: float) -> torch.Tensor:
    if not got.dtype.is_floating_point:
        return (got != eager) & (got != best.to(got.dtype) if best.dtype != got.dtype else got != best)
    g, e, b = (t.to(torch.float64) for t in (got, eager, best))
    allowed = (e - b).abs_().mul_(MULTIPLE).add_(b.abs(), alpha=tolerance).add_(least)
    error = (g - b).abs_() > allowed
    largest = torch.finfo(got.dtype).max
    if bool(torch.isfinite(g.sum() + e.sum())) and bool(b.abs().max() <= largest):
        return error  # what follows is for NaN and Inf
    finite_b, finite_e, finite_g = torch.isfinite(b.to(got.dtype)), torch.isfinite(e), torch.isfinite(g)
    same = ((g == b.to(got.dtype)) | (torch.isnan(g) & torch.isnan(b))) | ((g == e) | (torch.isnan(g) & torch.isnan(e)))
    return torch.where(finite_g & finite_b & finite_e, error, ~same)


def blocks(tensor: torch.Tensor) -> Iterator[tuple[slice, ...]]:
    """Index tuples that cut a tensor of any strides into parts of at most `BLOCK` elements (along its longest axis)."""
    if not tensor.dim():
        yield ()
        return
    axis = max(range(tensor.dim()), key=lambda a: tensor.shape[a])
    step = max(1, BLOCK.get(tensor.device.type, 1 << 20) * tensor.shape[axis] // max(1, tensor.numel()))
    for start in range(0, tensor.shape[axis], step):
        yield (slice(None),) * axis + (slice(start, start + step),)


def _spread(size: int, most: int, device: torch.device) -> torch.Tensor:
    """Up to ``most`` positions over [0, size), ascending: random but the same each time, with both ends."""
    if size <= most:
        return torch.arange(size, device=device)
    generator = torch.Generator().manual_seed(size)
    step = size / most
    jitter = torch.rand(most, generator=generator, dtype=torch.float64)
    at = ((torch.arange(most, dtype=torch.float64) + jitter) * step).long().clamp_(max=size - 1)
    at[0], at[-1] = 0, size - 1
    return at.to(device)


def _positions(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Up to about `SAMPLE` flat positions of true elements, ascending, evenly taken."""
    if not count:
        return torch.zeros(0, dtype=torch.int64, device=mask.device)
    flat = mask.reshape(-1)
    every = math.ceil(count / SAMPLE)
    found, seen = [], 0
    step = BLOCK.get(mask.device.type, 1 << 20)
    for start in range(0, flat.numel(), step):
        at = flat[start:start + step].nonzero().flatten()
        if at.numel():
            first = -seen % every
            seen += at.numel()
            found.append(at[first::every] + start)
    return torch.cat(found)
