"""Errors in the last digits (a narrower type somewhere), and errors of whole numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kernelwright.judge.diagnose.evidence import Evidence
from kernelwright.judge.diagnose.leaf import Leaf
from kernelwright.judge.diagnose.slices import grid
from kernelwright.judge.diagnose.values import ENOUGH, Seen, sample

#: Mantissa bits of a product's operands, by type.
BITS = {"bfloat16": 8, "float16": 11, "tf32": 11, "float32": 24}
#: Relative errors above this are no rounding of any type in use.
MOST = 0.03
#: Operands of 8 bits leave at least so many in a sum of products; of fewer results noise cannot be told.
LEAST_BITS, LEAST_SIZE = 6.5, 64
#: Of all elements so many are touched by what is done in a narrower type.
LEAST_SHARE = 0.05
#: The same where there are a few numbers, of which little can be seen.
FEW_MOST = 1e-3
_ORDER = ("accumulate in another order (in blocks, pairwise, or in float64), or use exact functions in place of "
          "approximate ones (--use_fast_math, __expf)")


def find_digits(leaf: Leaf) -> list[Seen]:
    """A loss of digits: rounding noise that is larger than the dtype's own."""
    if leaf.got.dtype not in (torch.float32, torch.float64):
        return []
    if leaf.few:
        return _of_few(leaf)
    if leaf.size < 8:
        return []
    values = sample(leaf, leaf.all_at)
    finite = torch.isfinite(values.got) & torch.isfinite(values.best)
    got, best, eager = values.got[finite], values.best[finite], values.eager[finite]
    if got.numel() < 8 or not leaf.scale:
        return []
    error = got - best
    relative = float(error.square().mean().sqrt()) / leaf.scale
    own = float((eager - best).square().mean().sqrt()) / leaf.scale
    if not 4 * own < relative < MOST:
        return []
    bits = -math.log2(relative)
    stored = _stored_as(got)
    told = {"relative_error": relative, "eager_relative_error": own, "bits": bits}
    if stored is not None:
        return [Seen(f"precision-{stored}", f"are rounded to {stored}: every one is such a number",
                     f"store and accumulate in {str(leaf.got.dtype).removeprefix('torch.')}, not in {stored}", 1.0, 1.0,
                     told)]
    # Noise, and no share of the value: uncorrelated with it, and of both signs.
    centre = best - best.mean()
    spread = float(centre.square().mean().sqrt() * (error - error.mean()).square().mean().sqrt())
    related = abs(float((centre * (error - error.mean())).mean())) / spread if spread else 1.0
    positive = float((error > 0).double().mean())
    if related > 0.9 or not 0.02 < positive < 0.98 or _structured(leaf):
        return []
    # Operands rounded to b bits leave about sqrt(2 / 12) 2^-b of a sum of products.
    kind = "tf32" if bits >= 10.8 else "bfloat16"
    if bits > 14.5:
        times = relative / max(own, 1e-30)
        return [Seen("precision", f"have an error of {relative:.2g} of their size, {times:.3g} times eager's",
                     _ORDER, 0.98, 0.05, told)]
    if bits < LEAST_BITS or leaf.size < LEAST_SIZE:
        return []
    # Rounding is everywhere (but where the result is zero), and no large error of a few.
    touched = (got - eager).abs() > 2 * own * leaf.scale
    if float(touched[best != 0].double().mean()) < LEAST_SHARE:
        return []
    name = "TF32 or float16" if kind == "tf32" else "bfloat16"
    return [Seen(f"precision-{kind}", f"have an error like rounding to {name}: {relative:.2g} of their size, about "
                 f"{bits:.0f} bits, where eager keeps {-math.log2(max(own, 2**-53)):.0f}",
                 "compute products and sums in float32", 0.98, 0.1 if bits > 7 else 0.02, told)]


def _of_few(leaf: Leaf) -> list[Seen]:
    """One number, of several inputs: errors of a small part of it, which are no one share of it."""
    got, best, eager = leaf.values(leaf.wrong_at)
    if got.numel() < 2 or not bool((torch.isfinite(got) & torch.isfinite(best) & (best != 0)).all()):
        return []
    relative, own = (got - best) / best, ((eager - best) / best).abs().max()
    largest = float(relative.abs().max())
    if not 4 * float(own) < largest < FEW_MOST or float(relative.std()) < 0.05 * largest:
        return []
    return [Seen("precision", f"have errors of up to {largest:.2g} of their size, other ones for each input, where "
                 f"eager's are up to {float(own):.2g}", _ORDER, 0.98, 0.2, {"relative_error": largest})]


def _structured(leaf: Leaf) -> bool:
    """Whether the error is mostly one number for each position of an axis, which rounding is not."""
    for axis, positions in enumerate(leaf.shape):
        if not 2 <= positions <= 4096 or leaf.size // positions < 8:
            continue
        at = grid(leaf, axis)
        values = sample(leaf, at.flatten())
        error = (values.got - values.best).view(at.shape)
        if float(error.mean(1).var(correction=0)) > 0.3 * float(error.var(correction=0)):
            return True
    return False


def _stored_as(got: torch.Tensor) -> str | None:
    """The narrow type in which all values can be written, if they are not few or simple."""
    if torch.unique(got[:4096]).numel() < 8 or bool((got == got.round()).all()):
        return None
    for name, kind in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        if bool((got.to(kind).to(torch.float64) == got).all()):
            return name
    single = got.float()
    kept = (single.view(torch.int32) >> 13 << 13).view(torch.float32)
    return "tf32" if bool((kept.double() == got).all()) else None


def find_whole(leaf: Leaf, evidence: Evidence) -> list[Seen]:
    """Wrong whole numbers: places of extrema, counts, comparisons."""
    if leaf.floating:
        return []
    return sorted(_whole(leaf, evidence), key=lambda seen: -seen.explained - seen.strength)


def _whole(leaf: Leaf, evidence: Evidence) -> Iterator[Seen]:
    values = sample(leaf, leaf.wrong_at)
    got, best = values.got, values.best
    if leaf.got.dtype is torch.bool:
        yield Seen("inverted" if leaf.share > 0.97 else "comparison", "are inverted" if leaf.share > 0.97 else
                   f"differ at {leaf.share:.2g} of the elements", "look at the comparison: < against <=, its operands' "
                   "order, and NaN", 0.98, 0.5)
        return
    difference = got - best
    if int(difference.min()) == int(difference.max()):
        by = int(difference[0])
        yield Seen("off-by-one" if abs(by) == 1 else "offset", f"are {abs(by)} too {'large' if by > 0 else 'small'}",
                   "indices count from 0" if abs(by) == 1 else "look at an index's base", 1.0, 0.8, {"offset": by})
    for index, value in enumerate(evidence.inputs):
        if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
            continue
        for axis in range(value.dim()):
            if tuple(s for a, s in enumerate(value.shape) if a != axis) not in (
                    leaf.shape, tuple(s for a, s in enumerate(leaf.shape) if a != axis)):
                continue
            size = value.shape[axis]
            rest = got % size == best
            if float(rest.double().mean()) >= ENOUGH and bool((got >= size).any()):
                yield Seen("flat-index", f"are indices into the whole tensor: modulo {size} they are right",
                           f"return the index along axis {axis}", 1.0, 1.0, {"axis": axis})
                continue
            if leaf.size > 1 << 22 or value.numel() > 1 << 26 or bool(((got < 0) | (got >= size)).any()):
                continue
            yield from _ties(leaf, value, axis, index)


def _ties(leaf: Leaf, value: torch.Tensor, axis: int, index: int) -> Iterator[Seen]:
    """Another place of the same value; or the place of the other extremum."""
    keep = leaf.got.reshape(tuple(1 if a == axis else s for a, s in enumerate(value.shape))).long()
    right = leaf.eager.reshape(keep.shape).long()
    value = value.to(leaf.got.device)
    there, wanted = value.gather(axis, keep), value.gather(axis, right)
    wrong = leaf.wrong.reshape(keep.shape)
    if bool(((there == wanted) | (torch.isnan(there) & torch.isnan(wanted)))[wrong].all()):
        later = bool((keep > right)[wrong].all())
        yield Seen("ties", f"name {'a later' if later else 'another'} place of the same value of input {index}, where "
                   "the model names the first", "among equal values take the smallest index: compare with > instead of "
                   ">=, and on ties of partial results keep the lower index", 1.0, 1.0, {"axis": axis})
        return
    low, high = value.amin(axis, keepdim=True), value.amax(axis, keepdim=True)
    for name, other, wanted_name in (("smallest", low, "largest"), ("largest", high, "smallest")):
        if bool((there == other)[wrong].all()) and not bool((wanted == other)[wrong].all()):
            yield Seen("other-extremum", f"are the places of the {name} values of input {index}, not of the "
                       f"{wanted_name}", f"compare the other way: the model wants the {wanted_name}", 1.0, 0.9)
