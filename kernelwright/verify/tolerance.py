"""What errors are held against."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Default tolerances by dtype: far above rounding for float32 and float64, about two units in the last place
#: for half precisions.
DEFAULT_TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


@dataclass(frozen=True)
class Tolerance:
    """What an error is held against. All are dimensionless but ``atol`` (in units of the output).

    ``atol``, ``rtol`` and ``scaled`` are `DEFAULT_TOLERANCE` of the output's dtype where None. ``multiple``:
    how many times eager's own error is still accepted. ``noise_units``: how many times ``atol`` a result may
    be off where eager has no correct digit. ``nonfinite``: "exact" tells NaN, +Inf and -Inf apart, "position"
    only asks that non-finite values stand at the same places.
    """

    atol: float | None = None
    rtol: float | None = None
    scaled: float | None = None
    multiple: float = 2.0
    noise_units: float = 1.0
    nonfinite: str = "exact"

    def for_dtype(self, dtype: torch.dtype) -> Limits:
        """Return the numbers for outputs of ``dtype``."""
        usual = DEFAULT_TOLERANCE.get(dtype, 1e-5)
        atol, rtol, scaled = (usual if v is None else v for v in (self.atol, self.rtol, self.scaled))
        return Limits(atol, rtol, scaled, self.multiple, self.noise_units, self.nonfinite == "exact")


@dataclass(frozen=True)
class Limits:
    """The numbers of a `Tolerance` for one dtype; ``exact_kind`` where NaN, +Inf and -Inf are told apart."""

    atol: float
    rtol: float
    scaled: float
    multiple: float
    noise_units: float
    exact_kind: bool
