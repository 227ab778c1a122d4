"""Strides of results as eager gives them, where PyTorch's rules for tensors without data have others.

A trace runs on tensors without data. In which order a result lies in memory tells which of a later draw's random
numbers stands where (``torch.randn_like`` fills memory in its order), whether a reshape copies, and what strides the
user sees. For some operators PyTorch's rule gives strides that its kernels do not: those are asked of the kernels, with
tensors of zeros that lie as the operands do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch

#: Operators whose kernels, on the CPU or a GPU, give other strides than their rules where an operand is not contiguous.
#: tests/unit/capture/test_strides.py looks for them among all operators.
ASKED = frozenset((
    "binary_cross_entropy", "channel_shuffle", "copysign", "div", "floor_divide", "heaviside", "index", "ldexp",
    "log_sigmoid_forward", "logaddexp", "logaddexp2", "logical_and", "logical_or", "logical_xor",
    "max_pool2d_with_indices", "max_unpool2d", "max_unpool3d", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "native_channel_shuffle", "nll_loss2d_forward",
    "normal", "poisson", "pow", "reflection_pad3d", "replication_pad3d", "roll", "rrelu_with_noise",
    "special_xlog1py", "xlogy"))


@contextmanager
def strides_of_eager() -> Iterator[None]:
    """While active, results of tensors without data have the strides that eager's have."""
    rule = FakeTensorMode.dispatch

    def dispatch(mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = rule(mode, func, types, args, kwargs or {})
        return _as_eager(mode, func, args, kwargs or {}, results) if func.overloadpacket.__name__ in ASKED else results

    FakeTensorMode.dispatch = dispatch  # pyrefly: ignore[bad-assignment]  # around PyTorch's own
    try:
        yield
    finally:
        FakeTensorMode.dispatch = rule


def _as_eager(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any, results: Any) -> Any:
    """``results`` with the strides of eager's, where it can be asked."""
    operands = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    own_memory = all(r.alias_info is None for r in func._schema.returns)
    if not own_memory or all(t.is_contiguous() for t in operands) or not all(map(_is_plain, operands)):
        return results
    own = eager_results(func, args, kwargs)
    if own is None:
        return results
    places, structure = pytree.tree_flatten(results)
    asked = pytree.tree_leaves(own)
    if len(places) != len(asked):
        return results
    return pytree.tree_unflatten([_lying_as(mode, mine, theirs) for mine, theirs in zip(places, asked, strict=True)],
                                 structure)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and all(isinstance(n, int) for n in (*tensor.shape, *tensor.stride()))


def eager_results(func: Any, args: Any, kwargs: Any) -> Any:
    """What eager's kernel gives for tensors of zeros, or of ones where it refuses these, that lie as the given ones do;
    None where it refuses both."""
    for number in (0, 1):
        def real(tensor: torch.Tensor, number: int = number) -> torch.Tensor:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device) \
                .fill_(number)

        try:
            with no_dispatch(), torch.random.fork_rng(_devices(args, kwargs)):
                return func(*_mapped(real, args), **_mapped(real, kwargs))
        except Exception:  # an index out of range, a division by zero, too little memory
            continue
    return None


def _devices(args: Any, kwargs: Any) -> list[torch.device]:
    return list({t.device for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.is_cuda})


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    return pytree.tree_map(lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def _lying_as(mode: FakeTensorMode, result: Any, real: Any) -> Any:
    if not isinstance(result, FakeTensor) or result.constant is not None or tuple(result.shape) != tuple(real.shape) \
            or result.stride() == real.stride():
        return result
    with mode:
        return torch.empty_strided(result.shape, real.stride(), dtype=result.dtype, device=result.device)
