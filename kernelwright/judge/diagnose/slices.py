"""Errors that depend on the position along one axis alone: a bias that is missing or lies along the wrong axis, a
scale per channel, an error that grows. Parameters of the model are compared by value."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernelwright.judge.diagnose.evidence import Evidence
from kernelwright.judge.diagnose.leaf import SAMPLE, Leaf, axis_word, coordinates
from kernelwright.judge.diagnose.values import ENOUGH, Sample, Seen, sample

#: Axes of more positions than this are not fitted one by one.
MOST_POSITIONS = 1 << 14


def find_slices(leaf: Leaf, evidence: Evidence) -> list[Seen]:
    """Relations with one number for each position of an axis, the best explanation first."""
    if not leaf.floating:
        return []
    vectors = _vectors(evidence, leaf)
    found = list(_indexed(leaf, vectors))
    for axis in range(len(leaf.shape)):
        positions = leaf.shape[axis]
        if 2 <= positions <= MOST_POSITIONS and leaf.size // positions >= 4:
            found += _fitted(leaf, axis, vectors)
    return sorted(found, key=lambda seen: -seen.explained - seen.strength)


def grid(leaf: Leaf, axis: int) -> torch.Tensor:
    """Flat positions (size of the axis, K): the same K random places of the other axes for each position."""
    positions, others = leaf.shape[axis], leaf.size // leaf.shape[axis]
    count = min(others, max(4, min(512, SAMPLE // positions)))
    generator = torch.Generator().manual_seed(leaf.size)
    chosen = torch.randperm(others, generator=generator)[:count] if others <= SAMPLE else \
        torch.randint(others, (count,), generator=generator)
    inner = 1
    for size in leaf.shape[axis + 1:]:
        inner *= size
    chosen = chosen.to(leaf.got.device)
    base = torch.div(chosen, inner, rounding_mode="floor") * (inner * positions) + chosen % inner
    return base[None, :] + (torch.arange(positions, device=base.device) * inner)[:, None]


def _vectors(evidence: Evidence, leaf: Leaf) -> dict[str, torch.Tensor]:
    """Parameters and buffers by path, as float64 vectors, that are as long as some axis."""
    state = evidence.state
    return {name: value.detach().to(device=leaf.got.device, dtype=torch.float64).flatten()
            for name, value in (*state.parameters.items(), *state.buffers.items())
            if value.dtype.is_floating_point and 2 <= value.numel() <= MOST_POSITIONS
            and value.numel() in leaf.shape}


def _fitted(leaf: Leaf, axis: int, vectors: dict[str, torch.Tensor]) -> Iterator[Seen]:
    at = grid(leaf, axis)
    found = sample(leaf, at.flatten())
    got, best = found.got.view(at.shape), found.best.view(at.shape)
    finite = torch.isfinite(got) & torch.isfinite(best)
    if not bool(finite.all()):
        return
    words = axis_word(len(leaf.shape), axis)
    offsets = (got - best).median(1).values
    share = _explained(found, (best + offsets[:, None]).flatten())
    if share >= ENOUGH:
        named = _named_offset(offsets, vectors, words, share)
        yield named or Seen("offset-per-slice", f"are off by one number for each {words} (axis {axis}): "
                            f"{_numbers(offsets)}", f"look at what is added for each {words}: a bias that is missing, "
                            "doubled, or read at another index", share, 0.35, {"axis": axis})
        return
    ratios = got / torch.where(best.abs() > 1e-2 * leaf.scale, best, torch.full_like(best, torch.nan))
    factors = ratios.nanmedian(1).values
    if bool(torch.isfinite(factors).all()):
        share = _explained(found, (factors[:, None] * best).flatten())
        if share >= ENOUGH:
            named = _named_factor(factors, vectors, words, share)
            named = named or _counted(factors, words, share)
            yield named or Seen("factor-per-slice", f"are off by one factor for each {words} (axis {axis}): "
                                f"{_numbers(factors)}", f"look at what is multiplied or divided for each {words}: a "
                                "weight, a norm, a sum over the wrong axis", share, 0.3, {"axis": axis})
            return
    if at.shape[1] >= 12:
        centre = best - best.mean(1, keepdim=True)
        square = (centre * centre).sum(1)
        slopes = (centre * (got - got.mean(1, keepdim=True))).sum(1) / square.clamp_min(1e-300)
        shifts = got.mean(1) - slopes * best.mean(1)
        share = _explained(found, (slopes[:, None] * best + shifts[:, None]).flatten())
        if share >= ENOUGH and bool((slopes.abs() > 1e-12).all()):
            yield Seen("affine-per-slice", f"are a scale and a shift away from the model's, other ones for each "
                       f"{words} (axis {axis}): scale {_numbers(slopes)}, shift {_numbers(shifts)}",
                       "a normalisation over this axis is wrong or missing: its mean and variance, its weight and "
                       "bias, running statistics in place of the batch's or the reverse", share, 0.25, {"axis": axis})


def _explained(found: Sample, predicted: torch.Tensor) -> float:
    """As `Sample.explained`, of the elements that are wrong, and none may be made wrong."""
    wrong = (found.got - found.best).abs() > found.noise
    near = (found.got - predicted).abs() <= torch.maximum(found.noise, 0.02 * (found.got - found.best).abs())
    if not bool(wrong.any()) or float(near[~wrong].double().sum()) < 0.97 * int((~wrong).sum()):
        return 0.0
    return float(near[wrong].double().mean())


def _named_offset(offsets: torch.Tensor, vectors: dict[str, torch.Tensor], words: str, share: float) -> Seen | None:
    for name, vector in vectors.items():
        if vector.numel() != offsets.numel():
            continue
        times = _multiple(offsets, vector)
        if times is None:
            continue
        scaled = "" if abs(abs(times) - 1) < 1e-3 else f" times {abs(times):.6g}"
        if abs(times + 2) < 1e-3:
            return Seen("bias-subtracted", f"differ by -2 {name}[{words}]: it is subtracted instead of added",
                        f"add {name}", share, 0.9, {"parameter": name, "factor": times})
        if times < 0:
            return Seen("missing-bias", f"differ by exactly -{name}[{words}]{scaled}: it is not added",
                        f"add {name}, one number for each {words}", share, 0.9, {"parameter": name, "factor": times})
        return Seen("bias-twice", f"differ by exactly +{name}[{words}]{scaled}: it is added once too often",
                    f"add {name} once", share, 0.9, {"parameter": name, "factor": times})
    return None


def _named_factor(factors: torch.Tensor, vectors: dict[str, torch.Tensor], words: str, share: float) -> Seen | None:
    for name, vector in vectors.items():
        if vector.numel() != factors.numel():
            continue
        if _multiple(factors, vector) is not None:
            return Seen("weight-twice", f"are {name}[{words}] times the model's: it is multiplied once too often",
                        f"multiply by {name} once", share, 0.8, {"parameter": name})
        if _multiple(1 / factors, vector) is not None:
            return Seen("missing-weight", f"lack the factor {name}[{words}]",
                        f"multiply by {name}, one for each {words}", share, 0.8, {"parameter": name})
    return None


def _counted(factors: torch.Tensor, words: str, share: float) -> Seen | None:
    """Factors n / (n + 1) and the like along an axis: a running count that is off."""
    place = torch.arange(factors.numel(), dtype=factors.dtype, device=factors.device)
    for right in (1, 2):
        for wrong in (0, 1, 2, 3):
            expected = (place + right) / (place + wrong)
            if wrong != right and bool(torch.isclose(factors, expected, rtol=1e-4)[1:].all()):
                return Seen("wrong-divisor", f"are divided by i + {wrong} instead of i + {right} at {words} i",
                            f"count the elements up to {words} i as i + {right}", share, 0.9, {"off_by": wrong - right})
    return None


def _multiple(left: torch.Tensor, right: torch.Tensor) -> float | None:
    """The number t with left = t right, if there is one and right is not constant."""
    if float(right.std()) < 1e-3 * float(right.abs().max()):
        return None
    square = float((right * right).sum())
    times = float((left * right).sum()) / square if square else 0.0
    rest = float((left - times * right).square().sum())
    return times if times and rest <= 1e-4 * float(left.square().sum()) else None


def _indexed(leaf: Leaf, vectors: dict[str, torch.Tensor]) -> Iterator[Seen]:
    """A bias that is read at another index: error = k (p[other] - p[own axis])."""
    if not vectors:
        return
    found = sample(leaf, leaf.all_at)
    error = found.got - found.best
    if not bool(torch.isfinite(error).all()):
        return
    rank = len(leaf.shape)
    axes = coordinates(leaf.all_at, leaf.shape)
    for name, vector in vectors.items():
        if float(vector.std()) < 1e-3 * float(vector.abs().max()):
            continue
        length = vector.numel()
        for own in (axis for axis in range(rank) if leaf.shape[axis] == length):
            others = {f"the {axis_word(rank, axis)} (axis {axis})": axes[axis] % length
                      for axis in range(rank) if axis != own and leaf.shape[axis] > 1}
            others |= {"the position in memory": leaf.all_at % length,
                       "a neighbouring index": (axes[own] + 1) % length,
                       "the index before": (axes[own] - 1) % length,
                       "always index 0": torch.zeros_like(axes[own]),
                       "the reversed index": length - 1 - axes[own]}
            for place, index in others.items():
                wanted = vector[index] - vector[axes[own]]
                square = float((wanted * wanted).sum())
                times = float((error * wanted).sum()) / square if square else 0.0
                if not times or found.leaf.scale == 0:
                    continue
                share = _explained(found, found.best + times * wanted)
                if share >= ENOUGH:
                    yield Seen("bias-wrong-axis", f"have {name} added by {place} instead of the "
                               f"{axis_word(rank, own)} (axis {own})",
                               f"index {name} by the {axis_word(rank, own)} (axis {own} of the output)", share, 1.0,
                               {"parameter": name, "axis": own})
                    return


def find_growth(leaf: Leaf) -> list[Seen]:
    """An error whose size grows steadily along an axis."""
    found = []
    for axis in range(len(leaf.shape)):
        positions = leaf.shape[axis]
        if not 16 <= positions <= MOST_POSITIONS:
            continue
        values = sample(leaf, grid(leaf, axis).flatten())
        error = (values.got - values.best).abs().view(positions, -1)
        if not bool(torch.isfinite(error).all()):
            continue
        parts = torch.stack([part.mean() for part in error.chunk(8)])
        if parts.numel() < 8 or not float(parts[-1]):
            continue
        order = torch.argsort(parts)
        rising = float((parts[1:] >= parts[:-1]).double().mean())
        size = values.best.abs().view(positions, -1)
        sizes = torch.stack([part.mean() for part in size.chunk(8)])
        growth = float(parts[-1] / parts[0].clamp_min(1e-300))
        usual = float(sizes[-1] / sizes[0].clamp_min(1e-300))
        if rising > 0.8 and int(order[-1]) == 7 and growth > 4 * max(1.0, usual):
            found.append(Seen("grows-along-axis", f"have an error that grows along axis {axis}, from "
                              f"{float(parts[0]):.2g} in the first eighth to {float(parts[-1]):.2g} in the last",
                              "something is carried along this axis: a running sum that loses digits, an index that "
                              "drifts, a step of the recurrence that differs", 0.98, 0.15,
                              {"axis": axis, "by_eighths": parts.tolist()}))
    return found


def _numbers(values: torch.Tensor) -> str:
    listed = ", ".join(f"{float(v):.4g}" for v in values[:3])
    return listed + (", ..." if values.numel() > 3 else "")
