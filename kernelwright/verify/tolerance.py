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
    be off where eager has no correct digit. ``nonfinite``: "exact" tells NaN, +Inf and -Inf apart; "sign" lets NaN and
    an infinity stand for one another, as the order of a sum decides between them, and tells +Inf from -Inf;
    "position" only asks that non-finite values stand at the same places. ``zeros``: "sign" tells 0.0 from -0.0 where
    eager and the reference agree on it, "sums" only where the result itself is zero, and no number too small for its
    type, whose sign the order of a sum may decide, "any" only counts them (`OutputError.zero_signs`). ``of_size``: the
    share of the whole output's size that any single element may be off, as sums that cancel are in fewer digits.
    ``unit``: the relative error of operands where fewer digits than the model's are accepted: then eager's error is how
    far it moves by such errors of inputs and of what is multiplied; None: digits are those of each type.
    """

    atol: float | None = None
    rtol: float | None = None
    scaled: float | None = None
    multiple: float = 2.0
    noise_units: float = 1.0
    nonfinite: str = "exact"
    zeros: str = "any"
    of_size: float = 0.0
    unit: float | None = None

    def for_dtype(self, dtype: torch.dtype) -> Limits:
        """Return the numbers for outputs of ``dtype``."""
        usual = DEFAULT_TOLERANCE.get(dtype, 1e-5)
        atol, rtol, scaled = (usual if v is None else v for v in (self.atol, self.rtol, self.scaled))
        return Limits(atol, rtol, scaled, self.multiple, self.noise_units, self.nonfinite,
                      self.zeros, self.of_size, self.unit)


@dataclass(frozen=True)
class Limits:
    """The numbers of a `Tolerance` for one dtype; ``nonfinite``, ``zeros``, ``of_size`` and ``unit`` as there."""

    atol: float
    rtol: float
    scaled: float
    multiple: float
    noise_units: float
    nonfinite: str = "exact"
    zeros: str = "any"
    of_size: float = 0.0
    unit: float | None = None
