"""KernelBench's rules (ScalingIntelligence/KernelBench, ``src/kernelbench/eval.py`` of March 2026).

Model and candidate are constructed under seed 42, in the mode in which their constructors leave them, and cast to one
floating type, float32 where nothing else is asked for; so is every tensor among the inputs, whole numbers too. The
seeds of the trials' inputs are drawn from 42, five by its scripts. The model is called first, then the candidate with
the same tensors and the random state that the model left. Results are one tensor of the same shape, and
``torch.allclose`` with the type's tolerance, relative to the candidate's values, decides.

Until the end of 2025 nothing was cast, and both tolerances were 1e-2 for every type: the rules by which candidates that
were published until then had been called right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from kernelwright.judge.rules.record import RuleSet, kind_of

SEED, TRIALS = 42, 5
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
TOLERANCE_2025 = {torch.float32: 1e-2}


def trial_seeds() -> tuple[int, ...]:
    """The seeds of the trials' inputs."""
    generator = torch.Generator().manual_seed(SEED)
    return tuple(int(torch.randint(0, 2**32 - 1, (1,), generator=generator)) for _ in range(TRIALS))


def _cast(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """The 16-bit type that all floating tensors have, as its runs in that precision cast to; else float32."""
    kinds = {tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point}
    return next(iter(kinds)) if len(kinds) == 1 and kinds <= TOLERANCE.keys() else torch.float32


def _compare(tolerances: Mapping[torch.dtype, float], dtype: torch.dtype | None, expected: Any, got: Any) -> str:
    if not isinstance(expected, torch.Tensor):
        return f"the model returns {kind_of(expected)}, and its comparison takes one tensor, so nobody is right"
    if not isinstance(got, torch.Tensor):
        return f"it returns {kind_of(got)} instead of a tensor"
    if got.shape != expected.shape:
        return f"its result has shape {tuple(got.shape)} instead of {tuple(expected.shape)}"
    if got.dtype != expected.dtype:
        return f"its result is {got.dtype} instead of {expected.dtype}"
    tolerance = tolerances.get(dtype or torch.float32, tolerances[torch.float32])
    if torch.allclose(expected, got, rtol=tolerance, atol=tolerance):
        return ""
    if not got.dtype.is_floating_point:
        return "its whole numbers are others"
    if bool(torch.isnan(expected).any() | torch.isnan(got).any()):
        return "there is NaN, which equals nothing by its comparison"
    far = (expected - got).abs() > tolerance + tolerance * got.abs()
    return (f"{int(far.sum())} of {far.numel()} elements are off by more than {tolerance:g} + {tolerance:g} of their "
            f"size, at most by {float((expected - got).abs().max()):.2g}")


_SOURCE = "https://github.com/ScalingIntelligence/KernelBench"
KERNELBENCH = RuleSet(
    name="kernelbench", title="KernelBench",
    words="five trials on the problem's own inputs, seeds from 42, everything cast to one type, torch.allclose with "
          "1e-4 in float32 and 1e-2 in 16 bits",
    source=_SOURCE, seeds=lambda seed: (SEED, trial_seeds()), cast=_cast, compare=partial(_compare, TOLERANCE))
KERNELBENCH_2025 = RuleSet(
    name="kernelbench-2025", title="KernelBench 2025",
    words="five trials on the problem's own inputs, seeds from 42, torch.allclose with 1e-2",
    source=_SOURCE, seeds=lambda seed: (SEED, trial_seeds()), cast=lambda tensors: None,
    compare=partial(_compare, TOLERANCE_2025))
