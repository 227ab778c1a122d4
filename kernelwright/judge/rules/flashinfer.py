"""Rules like FlashInfer-Bench's (flashinfer-ai/flashinfer-bench, ``flashinfer_bench/bench``).

Three trials on inputs whose seed nobody is told. Every output must have the reference's shape and type and no NaN or
infinity, and an element is wrong only where its absolute and its relative error both exceed 0.01, in float32. By
default no element may be (some families of operators are allowed one in twenty there). Its own inputs are normal
numbers of a definition's shapes; here they are the problem's.
"""

from __future__ import annotations

from typing import Any

import torch

from kernelwright.judge.rules.record import RuleSet, kind_of
from kernelwright.verify.flatten import flatten

TRIALS, TOLERANCE = 3, 1e-2
#: Added to sizes before a relative error is taken.
_LEAST = 1e-8


def _compare(dtype: torch.dtype | None, expected: Any, got: Any) -> str:
    wanted, found = flatten(expected), flatten(got)
    if wanted.keys() != found.keys():
        return f"it returns {len(found)} outputs instead of {len(wanted)}, or others"
    for path, right in wanted.items():
        own = found[path]
        if not isinstance(right, torch.Tensor) or not isinstance(own, torch.Tensor):
            if type(own) is not type(right) or own != right:
                return f"{path} is {kind_of(own)} instead of {kind_of(right)}, or another value"
            continue
        if own.shape != right.shape:
            return f"{path} has shape {tuple(own.shape)} instead of {tuple(right.shape)}"
        if own.dtype != right.dtype:
            return f"{path} is {own.dtype} instead of {right.dtype}"
        own, right = own.to(torch.float32), right.to(torch.float32)
        if not bool(torch.isfinite(own).all()):
            return f"{path} has NaN or an infinity, whatever the model has there"
        error = (own - right).abs()
        far = (error > TOLERANCE) & (error / (right.abs() + _LEAST) > TOLERANCE)
        if bool(far.any()):
            return (f"{int(far.sum())} of {far.numel()} elements of {path} are off by more than {TOLERANCE:g} and by "
                    f"more than {TOLERANCE:g} of their size, at most by {float(error.max()):.2g}")
    return ""


FLASHINFER = RuleSet(
    name="flashinfer", title="FlashInfer-Bench",
    words="three trials on the problem's own inputs, shapes and types equal, no NaN or infinity, no element off by "
          "more than 0.01 and 1 % both",
    source="https://github.com/flashinfer-ai/flashinfer-bench",
    seeds=lambda seed: (seed, tuple(seed + 9001 + n for n in range(TRIALS))), cast=lambda tensors: None,
    compare=_compare)
