"""Right values in wrong places: transposed, reversed, shifted, another index, another call's, another output's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import torch

from kernelwright.judge.diagnose.evidence import Evidence
from kernelwright.judge.diagnose.leaf import Leaf, axis_word, coordinates, take
from kernelwright.judge.diagnose.slices import grid
from kernelwright.judge.diagnose.values import ENOUGH, Sample, Seen, sample
from kernelwright.verify.flatten import flatten

#: Axes up to this length are searched for a map from wrong to right positions.
LONGEST_MAP = 2048


def find_moved(leaf: Leaf, evidence: Evidence) -> list[Seen]:
    """Where the candidate's values stand in the model's results, the best explanation first."""
    wrong = sample(leaf, leaf.wrong_at)
    found = []
    constant = float(wrong.got.min()) == float(wrong.got.max())
    if leaf.size <= 8 or (leaf.count >= 4 and not constant):  # equal values are right elsewhere by chance
        found += [*_stale(wrong, evidence), *_inputs(wrong, evidence), *_outputs(wrong, evidence)]
    if leaf.count >= 4 and not constant and float(wrong.best.std()) > 1e-9 * leaf.scale:
        found += [*_permuted(wrong), *_mapped(leaf), *_shifted(wrong)]
    return sorted(found, key=lambda seen: -seen.explained - seen.strength)


def _stale(wrong: Sample, evidence: Evidence) -> Iterator[Seen]:
    if not bool(wrong.got.any()) or (wrong.got.numel() > 2 and float(wrong.got.std()) <= 1e-3 * wrong.leaf.scale):
        return  # near a constant, which many results are
    for before in evidence.earlier:
        if (share := _same(wrong, flatten(before).get(wrong.leaf.path))) >= ENOUGH:
            yield Seen("stale", "are those of an earlier call with other inputs",
                       "compute from this call's inputs: a stored result, a captured graph whose inputs are not copied "
                       "in, or a cache with too small a key", share, 1.7)
            return
    # What nothing writes is the same for other inputs, too, and another on poisoned memory.
    again = flatten(evidence.repeated).get(wrong.leaf.path) if evidence.repeated is not None else None
    if isinstance(again, torch.Tensor) and again.shape == wrong.leaf.got.shape and _same(wrong, again) < 0.5:
        return
    # A result that was stored even before that: other inputs give it, too, where the model gives another.
    own = flatten(evidence.own_earlier).get(wrong.leaf.path)
    model = flatten(evidence.earlier[0]).get(wrong.leaf.path) if evidence.earlier else None
    if isinstance(model, torch.Tensor) and model.shape == wrong.leaf.got.shape and _same(wrong, own) >= ENOUGH and \
            float((take(model.to(wrong.got.device), wrong.at) == wrong.eager).double().mean()) < 0.5:
        yield Seen("stale", "are the same for other inputs: a stored result, or inputs that are not read",
                   "compute from this call's inputs: look for a result kept from the first call, or a cache with too "
                   "small a key", ENOUGH, 1.2)


def _inputs(wrong: Sample, evidence: Evidence) -> Iterator[Seen]:
    for index, value in enumerate(evidence.inputs):
        if (share := _equals(wrong, value)) >= ENOUGH:
            yield Seen("returns-input", f"are input {index} itself",
                       "the input comes back unchanged: compute the result, and store it in the output", share, 0.7,
                       {"input": index})
    if evidence.on_changed is not None:
        share = _equals(wrong, flatten(evidence.on_changed).get(wrong.leaf.path))
        if share >= ENOUGH:
            yield Seen("right-for-changed-input", "are what the model gives for the input as the candidate left it",
                       "leave the inputs as they are, and compute from them", share, 1.3)


def _outputs(wrong: Sample, evidence: Evidence) -> Iterator[Seen]:
    for path, other in flatten(evidence.reference).items():
        if path != wrong.leaf.path and (share := _equals(wrong, other)) >= ENOUGH:
            yield Seen("swapped-outputs", f"are those of the model's {path}",
                       f"return the results in the model's order: {wrong.leaf.path} holds what belongs in {path}",
                       share, 1.1, {"belongs_to": path})


def _same(wrong: Sample, other: Any) -> float:
    """The same as `_equals`, to rounding alone."""
    if not isinstance(other, torch.Tensor) or other.shape != wrong.leaf.got.shape or other.is_complex():
        return 0.0
    off = (take(other.to(wrong.got.device), wrong.at) - wrong.got).abs()
    return float((off <= torch.minimum(wrong.noise, 1e-5 * wrong.got.abs())).double().mean())


def _equals(wrong: Sample, other: Any) -> float:
    """Share of the wrong elements that equal those of ``other``; 0 where it is no such tensor."""
    if not isinstance(other, torch.Tensor) or other.shape != wrong.leaf.got.shape or other.is_complex():
        return 0.0
    return wrong.explained(take(other.to(wrong.got.device), wrong.at))


def _from(wrong: Sample, source: torch.Tensor) -> float:
    """Share of the wrong elements whose value is the model's at the flat positions ``source``."""
    return wrong.explained(take(wrong.leaf.best, source))


def _permuted(wrong: Sample) -> Iterator[Seen]:
    """Axes exchanged: in place (equal sizes), or written in another order of the axes into the same memory."""
    shape, rank = wrong.leaf.shape, len(wrong.leaf.shape)
    if rank < 2 or rank > 5:
        return
    few = _thinned(wrong, 4096)
    own = coordinates(few.at, shape)
    for order in permutations(range(rank)):
        if order == tuple(range(rank)):
            continue
        named = f"axes {order[0]} and {order[1]}" if rank == 2 else "axes " + ", ".join(map(str, order))
        if all(shape[a] == size for a, size in zip(order, shape, strict=True)):
            if (share := _from(few, _flat([own[order.index(a)] for a in range(rank)], shape))) >= ENOUGH:
                swapped = [a for a in range(rank) if order[a] != a]
                yield Seen("transposed", f"are the model's with axes {_and(swapped)} exchanged",
                           f"exchange the indices of axes {_and(swapped)} when reading or writing", share, 0.9,
                           {"axes": list(order)})
        elif sum(size > 1 for size in shape) > 1:
            # Memory that holds the result permuted by ``order``, read as if it were in the output's own order.
            moved = tuple(shape[a] for a in order)
            inside = coordinates(few.at, moved)
            source = _flat([inside[order.index(a)] for a in range(rank)], shape)
            if not bool((source == few.at).all()) and (share := _from(few, source)) >= ENOUGH:
                yield Seen("transposed", f"are the model's, written in the order of {named} as if they were "
                           f"{tuple(shape)}", "address the output with the strides of its own shape, or return the "
                           "permuted tensor as such", share, 0.9, {"axes": list(order)})


def _mapped(leaf: Leaf) -> Iterator[Seen]:
    """Along one axis, the position from which the values seem to come."""
    for axis in range(len(leaf.shape)):
        positions = leaf.shape[axis]
        if not 2 <= positions <= LONGEST_MAP or leaf.size // positions < (1 if positions > 8 else 3):
            continue
        at = grid(leaf, axis)[:, :128]
        got, best = (v.view(at.shape) for v in (leaf.values(at.flatten())[:2]))
        if not bool(torch.isfinite(got).all()) or not bool(torch.isfinite(best).all()):
            continue
        distance = torch.cdist(got, best, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distance.min(1)
        own = distance.diagonal()
        size = best.square().sum(1).sqrt()
        limit = 1e-3 * torch.minimum(size, size.mean()) if at.shape[1] > 1 else 1e-6 * size
        hit = nearest.values <= torch.maximum(limit, 1e-12 * size)
        source = torch.where(own <= limit, torch.arange(positions, device=own.device), nearest.indices)
        moved = hit & (source != torch.arange(positions, device=own.device))
        bad = own > limit
        if not bool(bad.any()) or float(moved[bad].double().mean()) < 0.85 or int(moved.sum()) < 1:
            continue
        # Equal rows map to each other without telling anything.
        if torch.unique(best[:, : min(8, best.shape[1])], dim=0).shape[0] < 2:
            continue
        words = _map_words(source.cpu(), moved.cpu(), positions, axis_word(len(leaf.shape), axis), axis)
        if words is not None:
            kind, told, fix, strength = words
            share = float(moved[bad].double().mean())
            yield Seen(kind, told, fix, max(share, 0.975 if share > 0.85 else 0.0), strength,
                       {"axis": axis, "from": source[:16].tolist()})


def _map_words(source: torch.Tensor, moved: torch.Tensor, size: int, word: str, axis: int
               ) -> tuple[str, str, str, float] | None:
    place = torch.arange(size)
    own, there = place[moved], source[moved]
    fix = f"look at how the {word} (axis {axis}) becomes an address"
    if int(there.min()) == int(there.max()):
        only = int(there[0])
        if int(moved.sum()) > 1:
            return ("one-for-all", f"are those of {word} {only} for every {word} (axis {axis})",
                    f"{fix}: it does not advance", 1.0)
        return "wrong-index", f"at {word} {int(own[0])} are those of {word} {only} (axis {axis})", fix, 0.6
    if bool((there == size - 1 - own).all()):
        return "reversed", f"are in reversed order along axis {axis}", f"reverse axis {axis}", 0.95
    step = there - own
    if int(step.min()) == int(step.max()):
        by = int(step[0])
        return ("shifted", f"are shifted along axis {axis}: at {word} i stands what belongs to {word} i {by:+d}",
                f"{fix}: it is off by {abs(by)} (for a scan: inclusive against exclusive)", 0.9)
    wrapped = step % size
    if int(wrapped.min()) == int(wrapped.max()):
        return ("rolled", f"are rolled along axis {axis} by {size - int(wrapped[0])}", fix, 0.9)
    for name, function in _MAPS.items():
        for factor in range(2, min(size, 65)):
            if bool((function(own, factor, size) == there).all()):
                return "wrong-index", f"at {word} i are those of {word} {name.format(k=factor)} (axis {axis})", fix, 0.8
    return "permuted-slices", f"belong to other positions along axis {axis}", fix, 0.5


_MAPS: dict[str, Callable[[torch.Tensor, int, int], torch.Tensor]] = {
    "i mod {k}": lambda i, k, n: i % k,
    "i // {k}": lambda i, k, n: torch.div(i, k, rounding_mode="floor"),
    "i * {k} mod the size": lambda i, k, n: i * k % n,
    "i rounded down to a multiple of {k}": lambda i, k, n: torch.div(i, k, rounding_mode="floor") * k,
    "i xor 1": lambda i, k, n: torch.bitwise_xor(i, 1),
    "of the transposed order by {k}": lambda i, k, n: i % k * (n // k) + torch.div(i, k, rounding_mode="floor"),
}


def _shifted(wrong: Sample) -> Iterator[Seen]:
    """Everything one or a few elements further in memory."""
    few = _thinned(wrong, 4096)
    for by in (1, -1, 2, -2, 3, -3, 4, -4, 8, -8, 16, -16, 32, -32):
        source = few.at + by
        inside = (source >= 0) & (source < wrong.leaf.size)
        if float(inside.double().mean()) > 0.9 and _from(few, source.clamp(0, wrong.leaf.size - 1)) >= 0.95:
            yield Seen("shifted", f"are shifted in memory: at element i stands what belongs to element i {by:+d}",
                       f"an index is off by {abs(by)}", ENOUGH, 0.5, {"by": by})
            return


def _thinned(values: Sample, most: int) -> Sample:
    every = math.ceil(values.at.numel() / most)
    return Sample(values.leaf, values.at[::every], values.got[::every], values.best[::every], values.eager[::every],
                  values.noise[::every])


def _flat(index: list[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    flat = torch.zeros_like(index[0])
    for coordinate, size in zip(index, shape, strict=True):
        flat = flat * size + coordinate
    return flat


def _and(axes: list[int]) -> str:
    return " and ".join(map(str, axes)) if len(axes) == 2 else ", ".join(map(str, axes))
