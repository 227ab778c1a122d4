"""What a model's constructor makes the same whatever the seed: windows, masks, filters, ones and zeros of norms.

The judge loads the model's parameters and buffers over a candidate's, as a user loads a checkpoint, so that
constructors may draw in another order. Fixed values need no loading: a candidate that makes others of them is right
only where somebody loads the model's.
"""

from __future__ import annotations

import torch
from torch import nn

from kernelwright.errors import KernelwrightError
from kernelwright.problem import Problem
from kernelwright.problem.load import load_problem
from kernelwright.problem.seeds import seeded
from kernelwright.verify.observe import identical

#: Larger tensors are not kept.
_MOST_ELEMENTS = 1 << 20
#: Functions of numbers (windows, filters) may be rounded otherwise: by this share of a value, and of the largest or 1.
_CLOSE = 1e-5
#: Sines of large numbers are off by more where their arguments are rounded; all that are, by this share of their norm.
_CLOSE_IN_NORM = 2e-4


def fixed_state(problem: Problem, model: nn.Module, seed: int, tiny: bool = False) -> dict[str, torch.Tensor]:
    """The parameters and buffers, by name and on the CPU, that the constructor made for ``model``, under ``seed``, and
    makes the same under another one, under which its file is run anew, too: the file itself may draw. None of a model
    that is an instance, or that cannot be made so. ``tiny``: as for `load_problem`."""
    if problem.is_instance:
        return {}
    first = _values(model)
    try:
        other = _values(problem.make_model(seed + 1, _run_anew(problem, seed + 1, tiny)))
    except KernelwrightError:
        return {}
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


def _run_anew(problem: Problem, seed: int, tiny: bool) -> type[nn.Module]:
    """The model's class as its file makes it under ``seed``; the one there is where that cannot be had."""
    if problem.path is None:
        return problem.model_class
    try:
        with seeded(seed):
            return load_problem(problem.path, init_inputs=problem.init_inputs, device=problem.device,
                                tiny=tiny, model=problem.asked).model_class
    except KernelwrightError:  # operators are registered once in a process, say
        return problem.model_class


def _values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in (*module.named_parameters(),
            *module.named_buffers()) if tensor.layout == torch.strided and 0 < tensor.numel() <= _MOST_ELEMENTS}


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return True  # said elsewhere
    if not one.dtype.is_floating_point and not one.dtype.is_complex:
        return torch.equal(one, other)
    precise = torch.complex128 if one.dtype.is_complex else torch.float64
    close = max(_CLOSE, 2 * torch.finfo(one.dtype).eps)
    one, other = one.to(precise), other.to(precise)  # not every type has the operations below
    largest = float(other.abs().nan_to_num(0, 0, 0).max())
    off = ~torch.isclose(one, other, rtol=close, atol=close * min(1, largest), equal_nan=True)
    error, size = (one - other)[off].norm(), other[off].norm()
    return bool(size.isfinite() and error <= _CLOSE_IN_NORM * size)
