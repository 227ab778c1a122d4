"""What a model's constructor makes the same whatever the seed: windows, masks, filters, ones and zeros of norms.

The judge loads the model's parameters and buffers over a candidate's, as a user loads a checkpoint, so that
constructors may draw in another order. Fixed values need no loading: a candidate that makes others of them is right
only where somebody loads the model's.
"""

from __future__ import annotations

import torch
from torch import nn

from kernelwright.problem import Problem
from kernelwright.verify.observe import identical

#: Larger tensors are not kept.
_MOST_ELEMENTS = 1 << 20
#: Functions of numbers (windows, tables of sines) may be rounded otherwise.
_CLOSE = 1e-5


def fixed_state(problem: Problem, seed: int) -> dict[str, torch.Tensor]:
    """The parameters and buffers, by name and on the CPU, that the model's constructor makes the same under ``seed``
    and another seed; none of a model that is an instance. Raises what the constructor raises."""
    if problem.is_instance:
        return {}
    first, other = _values(problem.make_model(seed)), _values(problem.make_model(seed + 1))
    return {name: value for name, value in first.items() if name in other and identical(value, other[name])}


def otherwise_made(fixed: dict[str, torch.Tensor], candidate: nn.Module) -> str:
    """In words, which of the ``fixed`` values a ``candidate`` as it was constructed has otherwise; "" where none."""
    made = _values(candidate)
    names = [name for name, value in fixed.items() if name in made and not _alike(made[name], value)]
    if not names:
        return ""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"its constructor makes {names[0]}{more} other than the model's does, whatever the seed: it is right only " \
        "where the model's state is loaded"


def _values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in (*module.named_parameters(),
            *module.named_buffers()) if tensor.layout == torch.strided and 0 < tensor.numel() <= _MOST_ELEMENTS}


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return True  # said elsewhere
    if one.dtype.is_floating_point or one.dtype.is_complex:
        return torch.allclose(one, other, rtol=_CLOSE, atol=_CLOSE, equal_nan=True)
    return torch.equal(one, other)
