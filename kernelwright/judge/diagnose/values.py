"""How wrong values relate to the right ones: zeros, sign, factor, offset, a missing or wrong activation, non-finite."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelwright.judge.diagnose.evidence import Evidence, like_poison
from kernelwright.judge.diagnose.leaf import MULTIPLE, Leaf, take
from kernelwright.verify.flatten import flatten, tensors_of
from kernelwright.verify.tolerance import DEFAULT_TOLERANCE

#: Share of the wrong elements that a pattern must reproduce.
ENOUGH = 0.97


@dataclass(frozen=True, slots=True)
class Seen:
    """How values are wrong. ``words`` complete "the candidate's values ..."; ``explained`` is the share of the wrong
    elements that the pattern reproduces, ``strength`` how much it tells beside others that explain as much."""

    kind: str
    words: str
    fix: str
    explained: float
    strength: float
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """Values at some positions, float64: candidate, float64 and eager; and what counts as rounding."""

    leaf: Leaf
    at: torch.Tensor
    got: torch.Tensor
    best: torch.Tensor
    eager: torch.Tensor
    noise: torch.Tensor

    def explained(self, predicted: torch.Tensor, got: torch.Tensor | None = None) -> float:
        """Share of the elements that ``predicted`` reproduces, to rounding or, of many, at least to 2 % of their
        error."""
        got = self.got if got is None else got
        error = (got - predicted).abs()
        whole = (self.got - self.best).abs().nan_to_num(0.0, 0.0, 0.0)
        if self.leaf.few:  # to rounding, and so that most of an error is explained that is hardly more than rounding
            near = error <= torch.minimum(self.noise, 0.1 * whole + 1e-7 * self.best.abs())
        else:
            near = error <= torch.maximum(self.noise, 0.02 * whole)
        same = near | (torch.isnan(got) & torch.isnan(predicted)) | (got == predicted)
        return float(same.double().mean()) if same.numel() else 0.0


def sample(leaf: Leaf, at: torch.Tensor) -> Sample:
    """The values at flat positions."""
    got, best, eager = leaf.values(at)
    tolerance = DEFAULT_TOLERANCE.get(leaf.got.dtype, 1e-5) if leaf.floating else 0.0
    usual = (eager - best).abs()
    finite = torch.isfinite(usual)
    noise = float(usual[finite].square().mean().sqrt()) if bool(finite.any()) else 0.0
    allowed = tolerance * (best.abs() + min(1.0, leaf.scale)) + 2 * MULTIPLE * noise
    if leaf.few:  # of several inputs, each with a size of its own
        allowed = tolerance * best.abs() + 2 * MULTIPLE * usual
    return Sample(leaf, at, got, best, eager, allowed.nan_to_num(0.0, 0.0, 0.0))


def find_values(leaf: Leaf, evidence: Evidence) -> list[Seen]:
    """Relations that hold for the wrong elements, the best explanation first."""
    wrong, everywhere = sample(leaf, leaf.wrong_at), sample(leaf, leaf.all_at)
    found = list(_nonfinite(wrong, everywhere, evidence))
    if found and found[0].explained > ENOUGH:
        return found
    found += [*_constants(wrong, evidence), *_simple(wrong), *_bounds(wrong, everywhere)]
    found = [seen for seen in found if seen.explained >= ENOUGH or seen.kind in _NONFINITE]
    return sorted(found, key=lambda seen: -seen.explained - seen.strength)


_NONFINITE = ("nan", "overflow", "nan-swallowed", "unwritten", "infinite", "fp16-overflow")


def _nonfinite(wrong: Sample, everywhere: Sample, evidence: Evidence) -> Iterator[Seen]:
    leaf = wrong.leaf
    if not leaf.floating:
        return
    poisoned = _unwritten(wrong, evidence)
    if poisoned is not None:
        yield poisoned
        return
    best_finite, got_finite = torch.isfinite(wrong.best), torch.isfinite(wrong.got)
    made = best_finite & ~got_finite
    lost = ~best_finite & (got_finite | (torch.isnan(wrong.best) != torch.isnan(wrong.got)))
    share_made, share_lost = (float(m.double().mean()) for m in (made, lost))
    if share_made > 0.01:
        nan = float(torch.isnan(wrong.got[made]).double().mean())
        largest = _largest(evidence)
        if nan < 0.5 and float((wrong.best[made].abs() > 3e4).double().mean()) > 0.9:
            yield Seen("fp16-overflow", "are infinite where the model's exceed 65504, the largest float16",
                       "accumulate and store in float32 (or bfloat16): float16 ends at 65504", share_made, 0.6)
        what = "NaN" if nan > 0.5 else "infinite"
        clean = all(bool(torch.isfinite(t).all()) for t in tensors_of(list(evidence.inputs))
                    if t.dtype.is_floating_point)
        given = any(t.dtype.is_floating_point and t.numel() for t in tensors_of(list(evidence.inputs)))
        if given and clean and largest < 1e-30:
            yield Seen("division-by-zero", f"are {what} where the model's are numbers, on inputs that are zero or "
                       "nearly", "guard the division, root or logarithm against zero as the model does (an epsilon, a "
                       "clamp)", share_made, 0.6)
            return
        if clean and largest > 20:
            yield Seen("overflow", f"are {what} where the model's are numbers, on inputs up to {largest:.3g}: an "
                       "intermediate value overflows (exp does above 88.7 in float32), or a logarithm gets the zero to "
                       "which a probability was rounded",
                       "subtract the row's maximum before exp (softmax, log-sum-exp), or use the stable form (the "
                       "logarithm of a probability from the scores, by log1p)",
                       share_made, 0.5, {"largest_input": largest})
        elif float(wrong.got[made].min()) == float(wrong.got[made].max()):
            stuck = wrong.got[made]
            yield Seen("infinite", f"are all {float(stuck[0]):g} where the model's are numbers",
                       "look for a maximum or minimum that keeps its start value (a comparison the wrong way), the "
                       "logarithm of zero, or a division by zero", share_made, 0.8)
        else:
            yield Seen("nan" if nan > 0.5 else "infinite", f"are {what} where the model's are numbers",
                       "look for 0/0, the square root or logarithm of a negative number, memory that is never written, "
                       "or NaN carried over from other elements", share_made, 0.4)
    if share_lost > 0.01:
        yield Seen("nan-swallowed", "are numbers where the model's are NaN or Inf",
                   "comparisons with NaN are false: write max, min and ReLU so that NaN passes (x < 0 ? 0 : x)",
                   share_lost, 0.6)


def _unwritten(wrong: Sample, evidence: Evidence) -> Seen | None:
    """Memory that was never written: other values in the call on poisoned memory, or poison itself."""
    if evidence.repeated is None:
        return None
    again = flatten(evidence.repeated).get(wrong.leaf.path)
    if type(again) is not torch.Tensor or again.shape != wrong.leaf.got.shape or not again.dtype.is_floating_point:
        return None
    second = take(again, wrong.at)
    poison = like_poison(second) & torch.isfinite(wrong.best)
    share = float(poison.double().mean())
    if share < 0.5:
        return None
    return Seen("unwritten", "were never written: they hold what lay in memory before",
                "write every element of the output (a kernel that is not launched, a loop or grid that ends too early, "
                "torch.empty where torch.zeros is meant)", max(share, 0.98), 0.9, {"share_unwritten": share})


def _largest(evidence: Evidence) -> float:
    largest = 0.0
    for tensor in tensors_of(list(evidence.inputs)):
        if tensor.dtype.is_floating_point and tensor.numel():
            low, high = torch.aminmax(tensor.detach())
            largest = max(largest, abs(float(low)), abs(float(high)))
    return largest if math.isfinite(largest) else 0.0


def _all_negative(evidence: Evidence) -> bool:
    given = [t for t in tensors_of(list(evidence.inputs)) if t.dtype.is_floating_point and t.numel()]
    return bool(given) and all(float(t.max()) <= 0 for t in given)


def _constants(wrong: Sample, evidence: Evidence) -> Iterator[Seen]:
    got = wrong.got
    if bool((got == 0).all()) and bool((wrong.best < 0).all()) and _all_negative(evidence):
        yield Seen("extremum-start", "are zero where the model's are negative, on inputs without positive values",
                   "start a maximum at -infinity (at the first element), not at 0", 1.0, 0.9)
    elif float((got == 0).double().mean()) > ENOUGH and float((wrong.best != 0).double().mean()) > 0.5:
        yield Seen("zeros", "are zero", "the result never arrives there: a kernel that does not run or does not reach "
                   "these elements, or one that returns its initial value", 1.0, 0.5)
    elif got.numel() > 4 and float(got.min()) == float(got.max()) and float(wrong.best.std()) > 1e-6 * wrong.leaf.scale:
        yield Seen("constant", f"are all {float(got[0]):.6g}",
                   "the result does not depend on the inputs: look at what is stored", 1.0, 0.4,
                   {"value": float(got[0])})


def _simple(wrong: Sample) -> Iterator[Seen]:
    """One relation for all wrong elements: sign, factor, offset, square and so on."""
    got, best = wrong.got, wrong.best
    usable = torch.isfinite(got) & torch.isfinite(best)
    if float(usable.double().mean()) < 0.5 or not wrong.leaf.floating:
        return
    if (share := wrong.explained(-best)) >= ENOUGH:
        yield Seen("sign", "have the wrong sign", "negate the result, or exchange the operands of a subtraction", share,
                   0.6, {"factor": -1.0})
    large = usable & (best.abs() > 1e-2 * wrong.leaf.scale) & (best.abs() > 1e-30)
    if int(large.sum()) >= 1:
        factor = float((got[large] / best[large]).median())
        if math.isfinite(factor) and factor not in (0.0, -1.0, 1.0) and int(large.sum()) >= 3:
            if (share := wrong.explained(factor * best)) >= ENOUGH:
                yield Seen("factor", f"are {factor:.6g} times the model's", "correct the scale", share, 0.5,
                           {"factor": factor})
        elif math.isfinite(factor) and wrong.leaf.size <= 2 and factor not in (0.0, 1.0):
            yield Seen("factor", f"are {factor:.6g} times the model's", "correct the scale", 1.0, 0.1,
                       {"factor": factor})
    offset = float((got - best)[usable].median())
    if offset and wrong.leaf.size > 2 and (share := wrong.explained(best + offset)) >= ENOUGH:
        yield Seen("offset", f"are {abs(offset):.6g} too {'large' if offset > 0 else 'small'} everywhere",
                   "look for a constant or a scalar bias that is missing, doubled or of the wrong sign", share, 0.5,
                   {"offset": offset})
    if (share := wrong.explained(best.abs())) >= ENOUGH and bool((best < 0).any()):
        yield Seen("absolute", "are the absolute values of the model's", "keep the sign", share, 0.75)
    affine = _affine(wrong, usable)
    if affine is not None:
        yield affine


def _affine(wrong: Sample, usable: torch.Tensor) -> Seen | None:
    got, best = wrong.got[usable], wrong.best[usable]
    if got.numel() < 8:
        return None
    centre = best - best.mean()
    square = float((centre * centre).sum())
    if square <= 1e-20 * max(wrong.leaf.scale, 1e-30) ** 2 * got.numel():
        return None
    slope = float((centre * (got - got.mean())).sum()) / square
    shift = float(got.mean() - slope * best.mean())
    share = wrong.explained(slope * wrong.best + shift)
    if share < ENOUGH or not slope:
        return None
    return Seen("affine", f"are {slope:.6g} times the model's plus {shift:.6g}",
                "one scale and one shift differ: look at a constant before an addition, or at a mean that is not "
                "subtracted", share, 0.4, {"factor": slope, "offset": shift})


def _bounds(wrong: Sample, everywhere: Sample) -> Iterator[Seen]:
    """Values cut off, or not cut off: activations and clamps."""
    got, best, leaf = wrong.got, wrong.best, wrong.leaf
    if not leaf.floating or (leaf.share > 0.999 and leaf.size > 2) or wrong.at.numel() < (2 if leaf.size < 64 else 1):
        return
    # The model is constant where the candidate is wrong: an activation or clamp is missing.
    level = float(best[0])
    if float((best - best[0]).abs().max()) <= 1e-6 * max(1.0, abs(level)) and math.isfinite(level):
        right = everywhere.best
        low, high = bool((got < level).all()), bool((got > level).all())
        beyond = float(right.min()) >= level - 1e-6 if low else float(right.max()) <= level + 1e-6 if high else False
        if (low or high) and beyond:
            side = "below" if low else "above"
            name = "ReLU (or a clamp at 0)" if level == 0 and low else f"clamp {'from below' if low else 'from above'}"
            yield Seen("missing-activation", f"go {side} {level:.6g}, where the model's end: the {name} is missing",
                       f"apply the {name} to the result", 1.0, 0.8, {"bound": level, "side": side})
        return
    # The candidate is constant where it is wrong: a clamp too many, or saturated.
    stuck = float(got[0])
    if float((got - got[0]).abs().max()) <= 1e-6 * max(1.0, abs(stuck)) and math.isfinite(stuck):
        below, above = bool((best < stuck + 1e-12).all()), bool((best > stuck - 1e-12).all())
        if (below and float(everywhere.got.min()) >= stuck - 1e-6) or \
                (above and float(everywhere.got.max()) <= stuck + 1e-6):
            side = "below" if below else "above"
            yield Seen("cut-off", f"stop at {stuck:.6g}, the model's go {side} it: an activation or clamp too many",
                       f"remove the {'ReLU' if stuck == 0 and below else 'clamp'} that the model does not have", 1.0,
                       0.8, {"bound": stuck, "side": side})
        return
    for side, part in (("negative", best < 0), ("positive", best > 0)):
        if bool(part.all()) and float((everywhere.best * (1 if side == "negative" else -1)).max()) > 0:
            slope = float((got / best).median())
            fitted = wrong.explained(slope * best)
            if fitted >= ENOUGH:
                yield Seen("negative-part" if side == "negative" else "positive-part",
                           f"are right except where the model's are {side}: there they are {slope:.6g} times as large",
                           "the slope of the activation there is another one (leaky ReLU, PReLU)", fitted, 0.7,
                           {"factor": slope})
            else:
                yield Seen("negative-part" if side == "negative" else "positive-part",
                           f"are right except where the model's are {side}",
                           f"look at the {side} branch of the activation", 0.975, 0.1)
