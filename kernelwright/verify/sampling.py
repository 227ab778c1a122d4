"""Which batch entries of a trial are run in float64, where all of them would take too much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernelwright.verify.flatten import map_tensors, tensors_of


def sampled_entries(inputs: Sequence[Any], batched: Sequence[bool], outputs: Any, seed: int) -> torch.Tensor | None:
    """Two batch entries, or None for all. A planted NaN or Inf is among them."""
    batch = next((t.shape[0] for t, b in zip(inputs, batched, strict=True) if b), 0)
    if batch < 3 or not all(t.dim() and t.shape[0] == batch for t in tensors_of(outputs)):
        return None
    generator = torch.Generator().manual_seed(seed)
    entries = torch.randperm(batch, generator=generator)[:2]
    for value, has_batch in zip(inputs, batched, strict=True):
        if has_batch and value.dtype.is_floating_point:
            bad = ~torch.isfinite(value.reshape(batch, -1)).all(1)
            if bool(bad.any()) and not bool(bad[entries.to(bad.device)].any()):
                entries[0] = int(bad.to(torch.uint8).argmax())
    return entries.unique().sort().values


def batched_inputs(inputs: Sequence[Any], declared: Sequence[bool] | None) -> list[bool]:
    """Which positional arguments have the batch in axis 0: as ``declared``, else by equal size."""
    if declared is not None:
        return [
            index < len(declared) and declared[index] and isinstance(v, torch.Tensor)
            for index, v in enumerate(inputs)
        ]
    size = next((v.shape[0] for v in inputs if isinstance(v, torch.Tensor) and v.dim()), None)
    return [isinstance(v, torch.Tensor) and v.dim() > 0 and v.shape[0] == size for v in inputs]


def take(outputs: Any, entries: torch.Tensor) -> Any:
    """The entries of axis 0 of every tensor in nested outputs, in memory of their own."""
    return map_tensors(outputs, lambda t: t.detach().index_select(0, entries.to(t.device)))
