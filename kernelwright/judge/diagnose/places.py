"""Where an output is wrong: a tail, edges, every k-th, single slices, tiles. From counts along the axes and samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelwright.judge.diagnose.leaf import Leaf, axis_word, take
from kernelwright.judge.diagnose.positions import (
    EDGE_FIX,
    PERIODS,
    TAIL_FIX,
    describe,
    ends,
    listed_residues,
    tile_before,
)

#: A region counts as wrong where at least this share of it is, of the elements that tell.
DENSE = 0.25
#: Longest axis whose positions are told one by one.
LONGEST = 1 << 22


@dataclass(frozen=True, slots=True)
class Place:
    """Where: a kind of finding, words that follow "wrong only in", and what would mend it."""

    kind: str
    words: str
    fix: str
    strength: float
    evidence: dict[str, Any] = field(default_factory=dict)


def find_places(leaf: Leaf) -> list[Place]:
    """The regions to which the wrong elements are confined, the most telling first; nothing where all is wrong."""
    if leaf.share > 0.99 or leaf.size < 2 or not leaf.count:
        return []
    telling = _telling(leaf)
    found = (_edges(leaf, telling), _product(leaf, telling), _flat_tail(leaf, telling), _period(leaf))
    return sorted((place for place in found if place is not None), key=lambda place: -place.strength)


def _product(leaf: Leaf, telling: torch.Tensor) -> Place | None:
    """The smallest box of index sets that holds all wrong elements, if it is a part of the output and mostly wrong."""
    rank = len(leaf.shape)
    if max(leaf.shape) > LONGEST:
        return None
    sets = [leaf.wrong.sum(dim=_others(leaf, axis)) > 0 if rank > 1 else leaf.wrong for axis in range(rank)]
    # Elements that are wrong by chance (a rounding beyond its limit) must not widen the box.
    sizes = [int(s.sum()) for s in sets]
    if math.prod(sizes) >= leaf.size:
        return None
    box = int(_inside(telling, sets).sum())
    if leaf.count < DENSE * box:
        return None
    silent = [~_inside(telling, sets, but=axis).sum(dim=_others(leaf, axis)).bool() if rank > 1 else ~telling
              for axis in range(rank)]
    named = [(axis, *describe(sets[axis].cpu(), silent[axis].cpu(), rank, axis))
             for axis in range(rank) if not bool((sets[axis] | silent[axis]).all())]
    # One structured axis beside scattered ones tells most; scattered sets of few elements are chance.
    named.sort(key=lambda entry: -entry[1])
    if not named or named[0][1] <= 0.2:
        return None
    told = [entry for entry in named if entry[1] > 0.2]
    _, strength, kind, _, fix, evidence = told[0]
    words = " of ".join(entry[3] for entry in told)
    evidence = {**evidence, "axis": told[0][0], "elements": leaf.count}
    return Place(kind, words, fix, strength * min(1.0, 0.5 + leaf.count / box), evidence)


def _others(leaf: Leaf, axis: int) -> list[int]:
    return [a for a in range(len(leaf.shape)) if a != axis]


def _telling(leaf: Leaf) -> torch.Tensor:
    """Elements that tell whether they are computed: where all wrong ones hold the same value (zero, mostly), a right
    one that holds it tells nothing, as one does that a ReLU makes zero."""
    values = take(leaf.got, leaf.wrong_at)
    if not bool((values == values[0]).all()):
        return torch.ones_like(leaf.wrong)
    return leaf.wrong | (leaf.got != values[0].to(leaf.got.dtype))


def _inside(mask: torch.Tensor, sets: list[torch.Tensor], but: int | None = None) -> torch.Tensor:
    """The part of a mask at the given positions of every axis, ``but`` for one whose positions all stay."""
    for axis, at in enumerate(sets):
        if axis != but and not bool(at.all()):
            mask = mask.index_select(axis, at.nonzero().flatten())
    return mask


def _edges(leaf: Leaf, telling: torch.Tensor) -> Place | None:
    """Wrong at the first or last positions of the axes behind channels, right inside."""
    rank = len(leaf.shape)
    if rank < 2 or max(leaf.shape) > LONGEST:
        return None
    axes = range(2 if rank > 2 else 0, rank)
    bounds = {}
    for axis in axes:
        others = [a for a in range(rank) if a != axis]
        part, of = leaf.wrong, telling
        # Positions at which something is right, once the wrong margins of the other axes are left out.
        for other in axes:
            if other != axis and leaf.shape[other] > 4:
                margin = max(1, leaf.shape[other] // 4)
                part, of = (m.narrow(other, margin, leaf.shape[other] - 2 * margin) for m in (part, of))
        bad = part.sum(dim=others).double() / of.sum(dim=others).clamp_(min=1)
        low, high = ends((bad > DENSE).cpu())
        if (low or high) and low + high < leaf.shape[axis] / 2:
            bounds[axis] = (low, high)
    if not bounds:
        return None
    inside, of = leaf.wrong, telling
    for axis, (low, high) in bounds.items():
        inside, of = (m.narrow(axis, low, leaf.shape[axis] - low - high) for m in (inside, of))
    stray = int(inside.sum())
    if stray > 0.001 * leaf.count or leaf.count < DENSE * int(telling.sum() - of.sum()):
        return None
    both = any(low and high for low, high in bounds.values()) or len(bounds) > 1
    if not both and all(not low for low, _ in bounds.values()):
        return None  # a tail
    words = " and ".join(
        (f"the first {low} and the last {high}" if low and high else f"the first {low}" if low else f"the last {high}")
        + f" {axis_word(rank, axis, 2)} (axis {axis} of size {leaf.shape[axis]})"
        for axis, (low, high) in bounds.items())
    margins = {"margins": {str(axis): list(margin) for axis, margin in bounds.items()}}
    if all(not low for low, _ in bounds.values()):
        return Place("tail", words, TAIL_FIX, 1.05, margins)
    return Place("edges", f"the edges: {words}", EDGE_FIX, 1.05 if both else 0.75, margins)


def _flat_tail(leaf: Leaf, telling: torch.Tensor) -> Place | None:
    """The last elements in the order of memory, of the whole output or of each row of several trailing axes."""
    rank = len(leaf.shape)
    for kept in range(rank - 1):
        outer = math.prod(leaf.shape[:kept])
        length = leaf.size // max(1, outer)
        if kept and (outer > LONGEST or outer == 1):
            continue
        flat = leaf.wrong.reshape(outer, length)
        any_wrong = flat.any(0) if outer > 1 else flat[0]
        first = int(any_wrong.to(torch.uint8).argmax())
        rest = length - first
        if rest > length / 2:
            continue
        there = int(telling.reshape(outer, length)[:, first:].sum())
        if leaf.count < DENSE * there:
            continue
        # A tail that begins in the middle of a row; others are told by their axis.
        inner = math.prod(leaf.shape[kept + 1:])
        if first % inner == 0:
            continue
        tile = tile_before(first, length)
        after = f": the tail after full tiles of {tile}" if tile else ""
        which = "the output in memory order" if not kept else f"each of the {outer} blocks of axes {kept}.."
        full = leaf.count > 0.9 * there
        return Place("tail", f"the last {rest} of the {length} elements of {which}{after}", TAIL_FIX,
                     1.06 if full else 0.8, {"first": first, "size": length, "tile": tile})
    return None


def _period(leaf: Leaf) -> Place | None:
    """Wrong exactly at some residues of the flat position modulo a period."""
    if leaf.share > 0.6 or leaf.size < 8 or leaf.wrong_at.numel() < 4:
        return None
    bad = torch.zeros(0)
    flags = leaf.wrong.reshape(-1)[leaf.all_at] if leaf.wrong.is_contiguous() else None
    if flags is None:
        return None
    for period in PERIODS:
        if period > leaf.size // 4 or period > 1024:
            return None
        bad = torch.zeros(period, dtype=torch.bool, device=flags.device)
        bad[leaf.wrong_at % period] = True
        which = int(bad.sum())
        if which > period // 2:
            continue
        inside = bad[leaf.all_at % period]
        if int(inside.sum()) >= 4 and float(flags[inside].double().mean()) > 0.9:
            residues = bad.nonzero().flatten().tolist()
            words = f"the elements whose position in memory is {listed_residues(residues)} modulo {period}"
            return Place("every-kth", words,
                         f"one lane of {period} is wrong: look at unrolled or vectorised code with {period} steps",
                         0.86, {"step": period, "residues": residues})
    return None


