"""VERIFY's judgement of one set of outputs: a candidate against float64, beside eager's own error.

For each floating output four figures are taken, each with its limit (see `Tolerance`):

- the worst element, in units of ``atol + rtol |reference|``: at most 1 (which is `torch.allclose`);
- the relative error of the whole output, ``rms(error) / rms(reference)``: at most ``scaled``;
- the same for every slice along axis 0 and along axis 1, so that neither a tiny output nor a tiny channel
  can pass vacuously under an absolute tolerance;
- and in each of them a candidate may instead be no worse than ``multiple`` times eager's own error.

NaN and Inf must stand where they stand for eager and reference. Integers and booleans must be equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.verify.flatten import flatten
from kernelwright.verify.plain import plain
from kernelwright.verify.statistics import SliceSums, Statistics, measure_error

#: Slices of fewer elements than this are held to eager's worst slice: eager's error there is too much luck.
FEW_ELEMENTS = 16
#: A reference below this share of its surroundings is zero as far as float64 can tell: it has no scale.
ZERO_SHARE = 1e-12
#: Where eager has no correct digit, both results are rounding noise and only its order of magnitude counts
#: (a batch norm of a constant multiplies one rounding error by 1/sqrt(eps): one draw, not a measure).
NOISE_MARGIN = 32.0
#: Relative error from which eager counts as noise.
NOISE_SHARE = 0.5


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

    def for_dtype(self, dtype: torch.dtype) -> _Limits:
        """Return the numbers for outputs of ``dtype``."""
        usual = DEFAULT_TOLERANCE.get(dtype, 1e-5)
        atol, rtol, scaled = (usual if v is None else v for v in (self.atol, self.rtol, self.scaled))
        return _Limits(atol, rtol, scaled, self.multiple, self.noise_units, self.nonfinite == "exact")


@dataclass(frozen=True)
class _Limits:
    atol: float
    rtol: float
    scaled: float
    multiple: float
    noise_units: float
    exact_kind: bool


@dataclass(frozen=True)
class SliceError:
    """The slice along ``axis`` at ``index`` that is worst against its limit; figures relative to its rms."""

    axis: int
    index: int
    relative: float
    limit: float


@dataclass(frozen=True)
class OutputError:
    """One output tensor's verdict. ``relative`` figures are rms(error)/rms(reference); ``units`` are errors
    over ``atol + rtol |reference|``; ``failing_share`` is the share of elements with units above 1. ``kinds`` has a
    name for each problem, in their order: value, type, shape, dtype, device, layout, reference, whole-numbers,
    nonfinite, elements, output or slice."""

    path: str
    passed: bool
    problems: tuple[str, ...]
    shape: tuple[int, ...] = ()
    dtype: str = ""
    device: str = ""
    strides: tuple[int, ...] = ()
    eager_strides: tuple[int, ...] = ()
    elements: int = 0
    worst_absolute: float = 0.0
    eager_worst_absolute: float = 0.0
    relative: float = 0.0
    eager_relative: float = 0.0
    units: float = 0.0
    eager_units: float = 0.0
    failing_share: float = 0.0
    eager_failing_share: float = 0.0
    reference_rms: float = 0.0
    worst_index: tuple[int, ...] = ()
    expected: float | None = None
    got: float | None = None
    misplaced_nonfinite: int = 0
    worst_slices: tuple[SliceError, ...] = ()
    #: Eager's own result has no correct digit here, so nothing can be told from this output.
    is_noise: bool = False
    kinds: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Say the verdict in words."""
        if not self.passed:
            return f"{self.path}: " + "; ".join(self.problems) + "."
        if not self.reference_rms or not self.elements:
            return f"{self.path}: equal in every checked respect."
        noise = " Eager itself has no correct digits here." if self.is_noise else ""
        return (
            f"{self.path}: error {self.relative:.2g} of the output's size (eager {self.eager_relative:.2g}), "
            f"largest {self.worst_absolute:.2g} (eager {self.eager_worst_absolute:.2g}).{noise}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return plain(self)


@dataclass(frozen=True)
class Comparison:
    """All outputs' verdicts; ``structure`` says what differs in the nesting (empty where nothing does)."""

    passed: bool
    outputs: tuple[OutputError, ...]
    structure: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Say in words what failed, or how good it is."""
        parts = list(self.structure)
        shown = [o for o in self.outputs if o.passed == self.passed] if not self.passed else self.outputs
        parts += [output.sentence() for output in shown]
        return " ".join(parts) if parts else "No outputs."

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with the sentence."""
        return {**plain(self), "sentence": self.sentence()}


@dataclass(frozen=True)
class _Allowance:
    """Eager's error known from elsewhere (from the sampled batch entries), for a reference that is eager;
    ``slices``: the relative error that a slice may have, as eager's own error in each is unknown."""

    units: float
    relative: float
    slices: float


def compare(
    candidate: Any,
    eager: Any,
    reference: Any,
    *,
    tolerance: Tolerance | None = None,
    root: str = "output",
    allowances: dict[str, _Allowance] | None = None,
) -> Comparison:
    """Compare nested outputs leaf by leaf.

    ``candidate`` and ``eager`` must agree in nesting, shape, dtype and device; ``reference`` has the nesting
    and shapes, its floating leaves in float64, on any device. ``tolerance`` defaults to
    `Tolerance()`. Nothing is modified; nothing is raised for a wrong candidate.
    """
    leaves = [flatten(value, root) for value in (candidate, eager, reference)]
    structure = []
    for path in leaves[1]:
        if path not in leaves[0]:
            structure.append(f"{path} is missing.")
    for path in leaves[0]:
        if path not in leaves[1]:
            structure.append(f"{path} is not among the model's outputs.")
    outputs = []
    for path, eager_leaf in leaves[1].items():
        if path in leaves[0]:
            allowance = (allowances or {}).get(path)
            outputs.append(
                _leaf(
                    path, leaves[0][path], eager_leaf, leaves[2].get(path, eager_leaf), tolerance, allowance
                )
            )
    return Comparison(not structure and all(o.passed for o in outputs), tuple(outputs), tuple(structure))


def compare_with_eager(
    candidate: Any,
    eager: Any,
    sampled: Comparison,
    *,
    tolerance: Tolerance | None = None,
    root: str = "output",
) -> Comparison:
    """Compare full outputs with eager's, where float64 was affordable for the ``sampled`` entries only.

    Eager is off by as much as it was found to be in ``sampled``; a candidate that keeps the rule there is at
    most ``1 + multiple`` times that away from eager (doubled for single elements, whose extreme over the
    whole output is larger than over a sample).
    """
    allowances = {}
    for output in sampled.outputs:
        multiple = (tolerance or Tolerance()).multiple
        share = (1 + multiple) / multiple
        allowances[output.path] = _Allowance(2 * share * output.eager_units, share * output.eager_relative, 0.01)
    return compare(candidate, eager, eager, tolerance=tolerance, root=root, allowances=allowances)


def _leaf(
    path: str,
    candidate: Any,
    eager: Any,
    reference: Any,
    tolerance: Tolerance | None,
    allowance: _Allowance | None,
) -> OutputError:
    if not isinstance(eager, torch.Tensor):
        if type(candidate) is type(eager) and _same_value(candidate, eager):
            return OutputError(path, True, ())
        return OutputError(path, False, (f"is {candidate!r:.80} instead of {eager!r:.80}",), kinds=("value",))
    if type(candidate) not in (type(eager), torch.Tensor):
        # A subclass may answer comparisons for itself, so it is refused before anything is asked of it.
        found = f"is a {type(candidate).__name__}, not a {type(eager).__name__}"
        answers = hasattr(type(candidate), "__torch_function__") and type(candidate) is not torch.nn.Parameter
        return OutputError(path, False, (found,), kinds=("type" if answers else "value",))
    facts: dict[str, Any] = {
        "shape": tuple(candidate.shape),
        "dtype": str(candidate.dtype),
        "device": str(candidate.device),
        "strides": tuple(candidate.stride()) if candidate.layout == torch.strided else (),
        "eager_strides": tuple(eager.stride()) if eager.layout == torch.strided else (),
        "elements": candidate.numel(),
    }
    problems = {
        f"{name} is {got} instead of {expected}": name
        for name, got, expected in (
            ("shape", tuple(candidate.shape), tuple(eager.shape)),
            ("dtype", candidate.dtype, eager.dtype),
            ("device", candidate.device, eager.device),
            ("layout", candidate.layout, eager.layout),
        )
        if got != expected
    }
    if not problems and tuple(reference.shape) != tuple(eager.shape):
        problems[f"the reference has shape {tuple(reference.shape)}: it cannot be compared"] = "reference"
    if problems:
        return OutputError(path, False, tuple(problems), kinds=tuple(problems.values()), **facts)
    candidate, eager, reference = (_plain_tensor(t) for t in (candidate, eager, reference))
    if not candidate.dtype.is_floating_point:
        return _equal(path, candidate, eager, reference, facts)
    limits = (tolerance or Tolerance()).for_dtype(candidate.dtype)
    statistics = measure_error(
        candidate,
        eager,
        reference,
        atol=limits.atol,
        rtol=limits.rtol,
        exact_kind=limits.exact_kind,
    )
    return _judge(path, statistics, limits, allowance, facts)


def _same_value(left: Any, right: Any) -> bool:
    if isinstance(left, float) and math.isnan(left) and math.isnan(right):
        return True
    return bool(left == right)


def _plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _equal(
    path: str, candidate: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor, facts: dict[str, Any]
) -> OutputError:
    """Integers and booleans: each element equals eager's, or the reference's where they differ (ties)."""
    eager, reference = eager.to(candidate.device), reference.to(candidate.device)
    wrong = (candidate != eager) & (candidate != reference)
    count = int(wrong.sum())
    if not count:
        return OutputError(path, True, (), **facts)
    first = int(wrong.flatten().to(torch.uint8).argmax())
    index = (
        tuple(int(i) for i in torch.unravel_index(torch.tensor(first), wrong.shape)) if wrong.dim() else ()
    )
    got, expected = float(candidate[index]), float(eager[index])
    share = count / max(1, wrong.numel())
    problem = f"{count} of {wrong.numel()} values differ, first at {index}: {got:g} instead of {expected:g}"
    return OutputError(
        path, False, (problem,), failing_share=share, worst_index=index, expected=expected, got=got,
        kinds=("whole-numbers",), **facts
    )


def _judge(
    path: str, found: Statistics, limits: _Limits, allowance: _Allowance | None, facts: dict[str, Any]
) -> OutputError:
    count = max(1, found.compared)
    rms = math.sqrt(found.square_error / count)
    eager_rms = math.sqrt(found.eager_square_error / count)
    scale = math.sqrt(found.square_reference / count)
    eager_units = found.eager_worst_units
    if allowance is not None:
        eager_units, eager_rms = allowance.units, allowance.relative * scale
    # A reference that is zero to float64's own rounding has no scale: the absolute tolerance alone decides.
    has_scale = scale > limits.atol * 1e-9
    is_noise = _ratio(eager_rms, scale) > NOISE_SHARE
    multiple = limits.multiple * (NOISE_MARGIN if is_noise else 1.0)
    problems: dict[str, str] = {}
    if found.misplaced:
        expected, got, by_eager = found.at_misplaced
        problems[
            f"NaN or Inf stands wrong at {found.misplaced} of {found.elements} elements, first at "
            f"{found.first_misplaced}: {got:g} instead of {by_eager:g} (float64: {expected:g})"
        ] = "nonfinite"
    floor = limits.noise_units if is_noise or not has_scale else 1.0
    if found.worst_units > max(floor, multiple * eager_units):
        expected, got, by_eager = found.at_worst
        problems[
            f"{found.failing} of {found.elements} elements are outside atol={limits.atol:g}, "
            f"rtol={limits.rtol:g} and beyond {multiple:g} times eager's error, worst at "
            f"{found.worst_index}: {got:.9g} instead of {expected:.9g} (eager {by_eager:.9g})"
        ] = "elements"
    # Below: what an output that is noise may be off, where the caller says so.
    noise = limits.noise_units * limits.atol if is_noise and limits.noise_units > 1 else 0.0
    if has_scale and rms > max(limits.scaled * scale, multiple * eager_rms, noise):
        problems[
            f"the error is {rms / scale:.2g} of the output's size, eager's is {eager_rms / scale:.2g} "
            f"(limit {max(limits.scaled, multiple * eager_rms / scale):.2g})"
        ] = "output"
    worst_slices = []
    if has_scale:
        for sums in found.slices:
            if sums.elements == 1:  # judged above, element by element
                continue
            worst = _worst_slice(sums, limits, scale, eager_rms / scale, noise)
            worst_slices.append(worst)
            # Where eager's own error in a slice is unknown: sums that cancel may be small, and a slice that is
            # wrong, rather than rounded otherwise, is off by far more.
            if worst.relative > max(worst.limit, allowance.slices if allowance is not None else 0.0):
                problems[
                    f"slice {worst.index} of axis {worst.axis} is wrong by {worst.relative:.2g} of its size "
                    f"(limit {worst.limit:.2g})"
                ] = "slice"
    expected, got, _ = found.at_worst
    return OutputError(
        path=path,
        passed=not problems,
        problems=tuple(problems),
        worst_absolute=found.worst_absolute,
        eager_worst_absolute=found.eager_worst_absolute,
        relative=_ratio(rms, scale),
        eager_relative=_ratio(eager_rms, scale),
        units=found.worst_units,
        eager_units=eager_units,
        failing_share=found.failing / max(1, found.elements),
        eager_failing_share=found.eager_failing / max(1, found.elements),
        reference_rms=scale,
        worst_index=found.worst_index,
        expected=expected,
        got=got,
        misplaced_nonfinite=found.misplaced,
        worst_slices=tuple(worst_slices),
        is_noise=is_noise,
        kinds=tuple(problems.values()),
        **facts,
    )


def _ratio(error: float, scale: float) -> float:
    return error / scale if scale else (0.0 if not error else math.inf)


def _worst_slice(sums: SliceSums, limits: _Limits, scale: float, typical: float, least: float) -> SliceError:
    """Find the slice that is worst against its own limit.

    A slice's limit is the largest of ``scaled`` times its size; ``multiple`` times eager's error in it, with
    a margin for chance that vanishes with the number of elements; and ``multiple`` times eager's relative
    error in the whole output, in the median slice, or (up to 1 %) in its worst slice. Slices of few
    elements may have eager's largest error; those of a ReLU's zeros have no error and do not count.
    """
    error, eager, size = (
        torch.sqrt(t / sums.elements) for t in (sums.error, sums.eager_error, sums.reference)
    )
    by_size = torch.full_like(size, limits.scaled) * size
    # A slice that is zero to rounding (a dead channel) is held against the whole output's size.
    limit = torch.where(size <= ZERO_SHARE * scale, torch.full_like(size, limits.scaled * scale), by_size)
    # As many as all elements where a reference of zeros is approached, not met.
    telling = torch.where(sums.nonzero > 0, sums.nonzero, float(sums.elements))
    chance = 1 + 4 / torch.sqrt(telling)
    own = torch.where(telling >= FEW_ELEMENTS, eager, eager.max())
    noise = torch.where(own > NOISE_SHARE * size, NOISE_MARGIN, 1.0)
    limit = torch.maximum(limit, limits.multiple * chance * noise * own)
    relative = eager / size.clamp_min(torch.finfo(size.dtype).tiny)
    typical = max(typical, float(torch.median(relative)))
    # Small values may be less accurate in any slice (a softmax's are exponentials of rounding errors), so
    # eager's worst slice counts for all; but not one in which eager has lost its digits.
    worst = float(torch.where(relative > NOISE_SHARE, 0.0, relative).max())
    usual = max(min(limits.multiple * typical, 0.5), limits.multiple * min(worst, 0.01))
    limit = torch.maximum(limit, usual * size)
    limit = limit.clamp_min(least)
    excess = error / limit.clamp_min(torch.finfo(limit.dtype).tiny)
    index = int(excess.argmax())
    against = float(size[index]) if float(size[index]) > ZERO_SHARE * scale else scale
    return SliceError(sums.axis, index, float(error[index]) / against, float(limit[index]) / against)
