"""The records of VERIFY: what a comparison of outputs and a trial found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.plain import plain
from kernelwright.verify.state import State


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
    nonfinite, zero-sign, elements, output or slice. ``zero_signs``: zeros of another sign than eager and the reference
    agree on. ``spread`` and ``eager_spread`` are absolute errors over rms(reference) that so many of a sample of
    elements do not exceed: half, nine of ten, 99 of 100, all (``SPREAD``); empty where nothing was compared."""

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
    zero_signs: int = 0
    worst_slices: tuple[SliceError, ...] = ()
    #: Eager's own result has no correct digit here, so nothing can be told from this output.
    is_noise: bool = False
    kinds: tuple[str, ...] = ()
    spread: tuple[float, ...] = ()
    eager_spread: tuple[float, ...] = ()

    def sentence(self) -> str:
        """Say the verdict in words."""
        if not self.passed:
            return f"{self.path}: " + "; ".join(self.problems) + "."
        if not self.reference_rms or not self.elements:
            return f"{self.path}: equal in every checked respect."
        noise = " Eager itself has no correct digits here." if self.is_noise else ""
        return (
            f"{self.path}: relative error {self.relative:.2g} (PyTorch's own: {self.eager_relative:.2g}), "
            f"largest {self.worst_absolute:.2g} (PyTorch's own: {self.eager_worst_absolute:.2g}).{noise}"
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
class Opened:
    """How elements ``start`` to ``stop`` of a parameter, in the order of memory, change so that a state is kept: times
    ``scale``, plus ``shift``, and then ``identity`` times the identity is added to the whole. Of an input, whose name
    is its path, all elements change."""

    name: str
    start: int
    stop: int
    shift: float = 0.0
    scale: float = 1.0
    identity: float = 0.0


@dataclass(frozen=True)
class TrialPlan:
    """Which inputs and parameters a trial uses; ``distribution`` names an entry of `DISTRIBUTIONS`.

    ``along``: of a distribution whose values depend on where they stand, the inputs (paths as of `flatten` with the
    root "input") or, where none decides, the parameters that have it, and along which axis. ``opened``: what changes in
    parameters so that a recurrence keeps its state. ``triangular``: matrices that the problem makes triangular stay so.
    """

    seed: int
    distribution: str = AS_GIVEN
    redrawn_parameters: bool = False
    along: tuple[tuple[str, int], ...] = ()
    opened: tuple[Opened, ...] = ()
    triangular: bool = False

    @property
    def changes_parameters(self) -> bool:
        """Whether parameters are others than those of construction."""
        names = (*(path for path, _ in self.along), *(change.name for change in self.opened))
        return self.redrawn_parameters or not all(map(is_input, names))

    def words(self) -> str:
        """Describe the trial."""
        return f"seed {self.seed}, {self._values()}" + (", other parameters" if self.redrawn_parameters else "")

    @property
    def kind(self) -> str:
        """The trial without its seed, in words."""
        return self._values() + (" with other parameters" if self.redrawn_parameters else "")

    def _values(self) -> str:
        where = " and ".join(f"axis {axis} of {path}" for path, axis in self.along[:3])
        return self.distribution + (f" along {where}" if where else "") + (" and open gates" if self.opened else "")


def is_input(path: str) -> bool:
    """Whether a path of `TrialPlan.along` is that of an input, not of a parameter."""
    return path.startswith("input[")


@dataclass(frozen=True)
class Trial:
    """What one trial found.

    ``comparison`` is against ``reference``; ``against_eager`` covers the whole output where float64 covered
    sampled entries only; ``state`` compares buffers, plain tensor attributes and inputs that the model
    changes. Times in seconds; ``repeat_seconds`` is the last repeated candidate call, whose first one may
    include a build. ``kinds`` has a name for each problem, in their order: raises, does-not-raise (where the model
    does), random-state, random-state-after (the model draws, and leaves another state), strides, requires-grad, leaf,
    alias, alias-missing, parameter-changed, input-changed, poisoned (other bits on poisoned memory), nondeterministic,
    shared-memory, sampling, state-missing, separate (eager and float64 are not one computation) or other-computation
    (the candidate gives float64's where that is not what eager computes). ``lenient`` are the kinds of those that are
    notes, see `Plan.lenient`.
    """

    plan: TrialPlan
    passed: bool
    gates: bool
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    reference: str
    comparison: Comparison | None
    against_eager: Comparison | None
    state: Comparison | None
    deterministic: bool | None
    uses_randomness: bool
    seconds: float
    eager_seconds: float
    candidate_seconds: float
    repeat_seconds: float | None
    kinds: tuple[str, ...] = ()
    lenient: tuple[str, ...] = ()


@dataclass(frozen=True)
class Skipped:
    """A trial that did not run, and why."""

    plan: TrialPlan
    why: str


class CandidateLacksMemory(MemoryError):
    """The candidate's call raised what `is_out_of_memory` accepts, in these words; the model's call did not."""


@dataclass(frozen=True)
class Refused:
    """The model itself could not run on these inputs, so there is nothing to compare with."""

    why: str


class Reference(NamedTuple):
    """What a trial takes for the truth, and what ``words`` say that it is. ``state`` are buffers and plain tensor
    attributes after the call, ``inputs`` the arguments; None where they are not known better than eager's. ``other``:
    what the model gives in float64 where that is not the truth. ``separate``: in words what of eager's is farther from
    it than rounding explains, so that eager is the truth. ``lost``: eager's type lost elements, of which there is
    no truth (`kernelwright.verify.computation.settled`)."""

    outputs: Any
    words: str
    state: dict[str, Any] | None = None
    inputs: Any = None
    other: Any = None
    separate: str = ""
    lost: bool = False


@dataclass(frozen=True)
class Expected:
    """What the model gave for some inputs: its outputs as PyTorch runs it, and the ``reference`` for them.

    ``before`` and ``state`` are buffers and plain tensor attributes before and after the call, ``inputs`` the arguments
    after it. Seconds are wall time of the model's call."""

    outputs: Any
    reference: Reference
    uses_randomness: bool
    before: State
    state: dict[str, Any]
    inputs: Sequence[Any]
    seconds: float
