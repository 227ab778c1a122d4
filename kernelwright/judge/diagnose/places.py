"""Where an output is wrong: a tail, edges, every k-th, single slices, tiles. From counts along the axes and samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelwright.judge.diagnose.leaf import Leaf, axis_word

#: A region counts as wrong where at least this share of it is (zeros may be right by chance).
DENSE = 0.25
#: Longest axis whose positions are told one by one.
LONGEST = 1 << 22
#: Periods looked for, the shortest first.
PERIODS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 192, 255, 256,
           257, 384, 512, 768, 1023, 1024, 1025, 2048, 4096)


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
    found = [place for place in (_edges(leaf), _product(leaf), _flat_tail(leaf), _period(leaf)) if place is not None]
    return sorted(found, key=lambda place: -place.strength)


def _axis_counts(leaf: Leaf) -> list[torch.Tensor]:
    rank = len(leaf.shape)
    return [leaf.wrong.sum(dim=[a for a in range(rank) if a != axis]) if rank > 1 else leaf.wrong.long()
            for axis in range(rank)]


def _product(leaf: Leaf) -> Place | None:
    """The smallest box of index sets that holds all wrong elements, if it is a part of the output and mostly wrong."""
    rank = len(leaf.shape)
    if max(leaf.shape) > LONGEST:
        return None
    counts = _axis_counts(leaf)
    sets = [(c > 0) for c in counts]
    # Elements that are wrong by chance (a rounding beyond its limit) must not widen the box.
    sizes = [int(s.sum()) for s in sets]
    box = math.prod(sizes)
    if box >= leaf.size or leaf.count < DENSE * box:
        return None
    named = [(axis, *_describe(sets[axis].cpu(), leaf.shape[axis], rank, axis))
             for axis in range(rank) if sizes[axis] < leaf.shape[axis]]
    # One structured axis beside scattered ones tells most; scattered sets of few elements are chance.
    named.sort(key=lambda entry: -entry[1])
    if named[0][1] <= 0.2:
        return None
    told = [entry for entry in named if entry[1] > 0.2]
    _, strength, kind, _, fix, evidence = told[0]
    words = " of ".join(entry[3] for entry in told)
    evidence = {**evidence, "axis": told[0][0], "elements": leaf.count}
    return Place(kind, words, fix, strength * min(1.0, 0.5 + leaf.count / box), evidence)


def _describe(wrong: torch.Tensor, size: int, rank: int, axis: int) -> tuple[float, str, str, str, dict[str, Any]]:
    """Strength, kind, words, fix and evidence for a set of positions along an axis."""
    at = wrong.nonzero().flatten()
    first, last, count = int(at[0]), int(at[-1]), int(at.numel())
    words, word = axis_word(rank, axis, 2), axis_word(rank, axis)
    solid = last - first + 1 == count
    if count == 1:
        if first == size - 1 and size > 2:
            return (0.9, "tail", f"the last {word} ({first} of 0..{size - 1}, axis {axis})", _TAIL_FIX,
                    {"first": first, "size": size})
        return (0.95, "one-slice", f"{word} {first} of {size} (axis {axis})",
                f"look at how {word} {first} is addressed or initialised", {"position": first, "size": size})
    if count == size - 1:
        right = int((~wrong).nonzero().flatten()[0])
        fix = f"reset sums, maxima and flags for every {word}, and let its index reach every address"
        if side := {0: "before", size - 1: "after"}.get(right):  # the one with nothing there is right
            fix += f"; where one {word} reads those {side} it (a mask, a scan), look at what it takes from them"
        return (0.9, "all-but-one", f"all {words} but {word} {right} (axis {axis} of size {size})", fix,
                {"right": right, "size": size})
    if solid and last == size - 1:
        tile = _tile(first, size)
        after = f": the tail after full tiles of {tile}" if tile else ""
        return (1.0, "tail", f"{words} >= {first} of {size} (axis {axis}){after}", _TAIL_FIX,
                {"first": first, "size": size, "tile": tile})
    if solid and first == 0:
        return (0.8, "head", f"the first {count} of {size} {words} (axis {axis})",
                f"look at what differs for {words} below {count}: a prologue, a boundary, an offset", {"size": size})
    steps = torch.unique(at[1:] - at[:-1])
    if steps.numel() == 1 and int(steps) > 1:
        step = int(steps)
        return (0.9, "every-kth", f"every {ordinal(step)} of the {words} (axis {axis}), from {first}",
                f"one lane of {step} is wrong: look at unrolled or vectorised code with {step} steps",
                {"step": step, "first": first, "size": size})
    low, high = _ends(wrong)
    if low or high:
        return (0.8, "edges", f"the first {low} and last {high} of the {size} {words} (axis {axis})", _EDGE_FIX,
                {"low": low, "high": high, "size": size})
    residues = _residues(at, size)
    if residues:
        period, which = residues
        return (0.85, "every-kth", f"the {words} that are {_listed(which)} modulo {period} (axis {axis})",
                f"look at what depends on the {word} modulo {period}: a tile of {period}, its last or first part",
                {"step": period, "residues": which, "size": size})
    block = _block(at, size)
    if block > 1:
        return (0.7, "blocks", f"some tiles of {block} {words} (axis {axis})",
                f"some blocks of {block} do not compute or do not synchronise: look at the grid and at barriers",
                {"block": block, "size": size})
    if solid:
        return (0.6, "slice", f"{words} {first} to {last} of {size} (axis {axis})",
                f"look at how {words} {first} to {last} are addressed", {"first": first, "last": last, "size": size})
    few = count <= 8 and count < size // 2
    listed = ", ".join(str(int(i)) for i in at[:8])
    return (0.4 if few else 0.1, "some-slices", f"{words} {listed} (axis {axis})" if few else
            f"{count} of {size} {words} (axis {axis})", f"look at what these {words} have in common",
            {"positions": at[:64].tolist(), "size": size})


_TAIL_FIX = ("compute the tail: round the number of blocks up, and guard the last one by the size instead of leaving "
             "it out")
_EDGE_FIX = "check the padding: what is read beyond the border, and where the border lies"


def _ends(wrong: torch.Tensor) -> tuple[int, int]:
    """How many positions are wrong at the start and at the end, where all between are right; else (0, 0)."""
    right = (~wrong).nonzero().flatten()
    if not right.numel():
        return 0, 0
    first, last = int(right[0]), int(right[-1])
    return (first, wrong.numel() - 1 - last) if last - first + 1 == right.numel() else (0, 0)


def _tile(first: int, size: int) -> int | None:
    """A tile whose full copies end at ``first`` and leave the rest of ``size``: the likeliest one."""
    rest = size - first
    fits = [tile for tile in range(rest + 1, min(first, 4096) + 1) if first % tile == 0]
    for multiple in (0, 32, 16, 8, 4):
        for tile in fits:
            if (tile & (tile - 1) == 0) if not multiple else tile % multiple == 0:
                return tile
    return None


def _residues(at: torch.Tensor, size: int) -> tuple[int, list[int]] | None:
    """A period of which the positions are exactly some residues."""
    for period in PERIODS:
        if period > size // 2:
            return None
        which = torch.unique(at % period)
        if which.numel() <= period // 2:
            expected = sum((size - int(r) + period - 1) // period for r in which)
            if expected == at.numel():
                return period, [int(r) for r in which]
    return None


def _block(at: torch.Tensor, size: int) -> int:
    """The largest B such that all runs of consecutive positions start and end at multiples of B (or at the end)."""
    cuts = (at[1:] - at[:-1] > 1).nonzero().flatten()
    starts = torch.cat((at[:1], at[cuts + 1])).tolist()
    ends = torch.cat((at[cuts] + 1, at[-1:] + 1)).tolist()
    return math.gcd(*starts, *(e for e in ends if e != size)) if len(starts) > 1 else 0


def _edges(leaf: Leaf) -> Place | None:
    """Wrong at the first or last positions of the axes behind channels, right inside."""
    rank = len(leaf.shape)
    if rank < 2 or max(leaf.shape) > LONGEST:
        return None
    axes = range(2 if rank > 2 else 0, rank)
    bounds = {}
    for axis in axes:
        others = [a for a in range(rank) if a != axis]
        part = leaf.wrong
        # Positions at which something is right, once the wrong margins of the other axes are left out.
        for other in axes:
            if other != axis and leaf.shape[other] > 4:
                margin = max(1, leaf.shape[other] // 4)
                part = part.narrow(other, margin, leaf.shape[other] - 2 * margin)
        bad = part.sum(dim=others).double() / max(1, part.numel() // leaf.shape[axis])
        low, high = _ends((bad > DENSE).cpu())
        if (low or high) and low + high < leaf.shape[axis] / 2:
            bounds[axis] = (low, high)
    if not bounds:
        return None
    inside = leaf.wrong
    for axis, (low, high) in bounds.items():
        inside = inside.narrow(axis, low, leaf.shape[axis] - low - high)
    margin_size = leaf.size - inside.numel()
    stray = int(inside.sum())
    if stray > 0.001 * leaf.count or leaf.count < DENSE * margin_size:
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
        return Place("tail", words, _TAIL_FIX, 1.05, margins)
    return Place("edges", f"the edges: {words}", _EDGE_FIX, 1.05 if both else 0.75, margins)


def _flat_tail(leaf: Leaf) -> Place | None:
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
        if rest > length / 2 or leaf.count < DENSE * rest * outer:
            continue
        # A tail that begins in the middle of a row; others are told by their axis.
        inner = math.prod(leaf.shape[kept + 1:])
        if first % inner == 0:
            continue
        tile = _tile(first, length)
        after = f": the tail after full tiles of {tile}" if tile else ""
        which = "the output in memory order" if not kept else f"each of the {outer} blocks of axes {kept}.."
        full = leaf.count > 0.9 * rest * outer
        return Place("tail", f"the last {rest} of the {length} elements of {which}{after}", _TAIL_FIX,
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
            return Place("every-kth", f"the elements whose position in memory is {_listed(residues)} modulo {period}",
                         f"one lane of {period} is wrong: look at unrolled or vectorised code with {period} steps",
                         0.86, {"step": period, "residues": residues})
    return None


def _listed(residues: list[int]) -> str:
    if len(residues) > 3 and residues[-1] - residues[0] + 1 == len(residues):
        return f"{residues[0]} to {residues[-1]}"
    return ", ".join(map(str, residues[:6])) + (", ..." if len(residues) > 6 else "")


def ordinal(number: int) -> str:
    """"2nd", "3rd", "4th"."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}" + {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
