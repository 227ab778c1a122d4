"""What a set of positions along one axis is: a tail, a head, every k-th, edges, tiles, single slices."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernelwright.judge.diagnose.leaf import axis_word

#: Periods looked for, the shortest first.
PERIODS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 192, 255, 256,
           257, 384, 512, 768, 1023, 1024, 1025, 2048, 4096)
TAIL_FIX = ("compute the tail: round the number of blocks up, and guard the last one by the size instead of leaving "
             "it out")
EDGE_FIX = "check the padding: what is read beyond the border, and where the border lies"


def describe(seen: torch.Tensor, silent: torch.Tensor, rank: int, axis: int
             ) -> tuple[float, str, str, str, dict[str, Any]]:
    """Strength, kind, words, fix and evidence for a set of positions along an axis.

    seen: (size,) where something is wrong; silent: (size,) where nothing could be told, see `with_silent`.
    """
    wrong, size = with_silent(seen, silent), seen.numel()
    at = wrong.nonzero().flatten()
    first, last, count = int(at[0]), int(at[-1]), int(at.numel())
    words, word = axis_word(rank, axis, 2), axis_word(rank, axis)
    solid = last - first + 1 == count
    if count == 1:
        if first == size - 1 and size > 2:
            return (0.9, "tail", f"the last {word} ({first} of 0..{size - 1}, axis {axis})", TAIL_FIX,
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
        tile = tile_before(first, size)
        after = f": the tail after full tiles of {tile}" if tile else ""
        if equal := count - int(seen.sum()):
            after += f" (in {equal} of these {count} {words} the model's values are the same)"
        return (1.0, "tail", f"{words} >= {first} of {size} (axis {axis}){after}", TAIL_FIX,
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
    low, high = ends(wrong)
    if low or high:
        return (0.8, "edges", f"the first {low} and last {high} of the {size} {words} (axis {axis})", EDGE_FIX,
                {"low": low, "high": high, "size": size})
    residues = _residues(at, size)
    if residues:
        period, which = residues
        return (0.85, "every-kth", f"the {words} that are {listed_residues(which)} modulo {period} (axis {axis})",
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


def with_silent(wrong: torch.Tensor, silent: torch.Tensor) -> torch.Tensor:
    """Positions that are wrong, and those of a tail that could not show it.

    A position is silent where the candidate has the value that stands at all wrong places, and the model happens to
    have it, too: columns that a ReLU makes 0 throughout tell nothing of a candidate that leaves them at 0. Where two
    or more wrong positions and silent ones are at most the latter half of the axis, all of it is taken for wrong. It
    may begin at any of the silent positions before the first wrong one: at the one that most powers of two divide.
    """
    at, size = wrong.nonzero().flatten(), wrong.numel()
    if not bool(silent.any()) or at.numel() < 2:
        return wrong
    told = (~(wrong | silent)).nonzero().flatten()
    lowest, first = int(told[-1]) + 1 if told.numel() else 0, int(at[0])
    starts = range(max(lowest, size - size // 2), first + 1)
    if lowest > first or not starts:
        return wrong
    return torch.arange(size, device=wrong.device) >= max(starts, key=lambda start: (start & -start, start))


def ends(wrong: torch.Tensor) -> tuple[int, int]:
    """How many positions are wrong at the start and at the end, where all between are right; else (0, 0)."""
    right = (~wrong).nonzero().flatten()
    if not right.numel():
        return 0, 0
    first, last = int(right[0]), int(right[-1])
    return (first, wrong.numel() - 1 - last) if last - first + 1 == right.numel() else (0, 0)


def tile_before(first: int, size: int) -> int | None:
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


def listed_residues(residues: list[int]) -> str:
    if len(residues) > 3 and residues[-1] - residues[0] + 1 == len(residues):
        return f"{residues[0]} to {residues[-1]}"
    return ", ".join(map(str, residues[:6])) + (", ..." if len(residues) > 6 else "")


def ordinal(number: int) -> str:
    """"2nd", "3rd", "4th"."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}" + {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
