"""Distributions along an axis: what only shows where the first values count for the last, or where the largest stand.

A kernel goes along an axis tile by tile. One that restarts a state at a tile, or forgets what stands further back than
some steps, is right where the first values hardly count for the last: so they are loud here, and what follows quiet.
One that takes the maximum or the scale of the first tile, or does not rescale what it has summed when a larger value
comes, is right where all tiles are alike: so one tile is loud here, or the end. Each function changes a tensor in place
and returns it; ``axis`` is where values stand, from 0. All keep the signs of the problem's own values but `near_one`.
"""

from __future__ import annotations

import torch

#: The first few: an eighth of an axis, and no more than this.
MOST_FIRST = 8
#: Factors of what is loud and quiet beside the first few, and of what is quiet before the end.
_LOUD, _QUIET, _TINY = 16.0, 2.0**-6, 2.0**-12
#: Sizes of what is loud at the end and in a tile: exponentials of the first overflow beside a maximum of the rest.
_END, _TILE = 64.0, 32.0


def first_few(size: int) -> int:
    """How many of the values along an axis are loud at its start."""
    return min(MOST_FIRST, max(1, size // 8))


def loud_start(tensor: torch.Tensor, axis: int, generator: torch.Generator) -> torch.Tensor:
    """The problem's values, the first few times 16, the others times 2**-6."""
    size = tensor.shape[axis]
    tensor.narrow(axis, 0, first_few(size)).mul_(_LOUD / _QUIET)
    return tensor.mul_(_QUIET)


def quiet(tensor: torch.Tensor, axis: int, generator: torch.Generator) -> torch.Tensor:
    """The problem's values times 2**-6: those of `loud_start` but for the first few. A result that does not depend on
    these is wrong there or here, where the two differ."""
    return tensor.mul_(_QUIET)


def loud_end(tensor: torch.Tensor, axis: int, generator: torch.Generator) -> torch.Tensor:
    """The problem's values times 2**-12, but for the last quarter, whose size is 64."""
    size = tensor.shape[axis]
    before = size - max(1, size // 4)
    factor = _factor(tensor, _END)
    tensor.narrow(axis, before, size - before).mul_(factor)
    tensor.narrow(axis, 0, before).mul_(_TINY)
    return tensor


def loud_tile(tensor: torch.Tensor, axis: int, generator: torch.Generator) -> torch.Tensor:
    """The problem's values, of which a tile of neighbours has the size 32: the first of its axis, the last, one across
    the border of two, or any, in turns along the axes before it."""
    size = tensor.shape[axis]
    width = 128 if size >= 512 else 64 if size >= 128 else max(1, size // 4)
    whole = max(1, size // width)

    def draw(below: int) -> int:
        return int(torch.randint(below, (1,), generator=generator, device=tensor.device))

    border = width * (1 + draw(max(1, whole - 1))) - width // 2
    starts = [0, size - width, min(border, size - width), width * draw(whole)]
    rows = tensor.shape[:axis].numel()
    turn = (torch.arange(rows, device=tensor.device) + draw(len(starts))) % len(starts)
    begin = torch.tensor(starts, device=tensor.device)[turn].unsqueeze(1)
    place = torch.arange(size, device=tensor.device)
    loud = ((place >= begin) & (place < begin + width)).reshape(*tensor.shape[: axis + 1],
                                                                *[1] * (tensor.dim() - axis - 1))
    return tensor.mul_(torch.where(loud, _factor(tensor, _TILE), 1.0).to(tensor.dtype))


def near_one(tensor: torch.Tensor, axis: int, generator: torch.Generator) -> torch.Tensor:
    """1 and an eighth of the problem's deviations over the root of the axis' size: products of all stay near 1, and the
    first counts as much as the last."""
    wide = tensor.double()
    deviation = float(wide.std(correction=0)) or 1.0
    steps = ((wide - wide.mean()) / deviation).clamp_(-4, 4) / (8 * max(1, tensor.shape[axis]) ** 0.5)
    return tensor.copy_(1 + steps)


def _factor(tensor: torch.Tensor, size: float) -> float:
    """What makes values of a size, the root of their mean square, of the tensor's own."""
    own = float(tensor.double().square().mean().sqrt())
    return size / own if own > 0 and own < float("inf") else 1.0
