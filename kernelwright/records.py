"""The frozen records that the pipeline hands to its callers, and their JSON form."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RuleUse:
    """A rule that was applied: its name, law, condition and exactness, where, and how often."""

    name: str
    law: str
    condition: str
    exactness: str
    where: str
    """The user's line (``file:line: text``) or the module's path; "" where neither is known."""
    before: str
    after: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class ContractionUse:
    """How a kernel forms products, and what was measured of it: zero where nothing was.

    scheme: see :class:`kernelwright.plan.contraction.record.Contraction`. tiling: in words. torch_seconds: of the torch
    calls that the kernel replaces. error and torch_error: rms against float64, over the rms of the result.
    share_of_floor: the time that no version of this contraction beats, over the kernel's.
    """

    scheme: str
    tiling: str
    operations: int
    seconds: float = 0.0
    torch_seconds: float = 0.0
    error: float = 0.0
    torch_error: float = 0.0
    share_of_floor: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelUse:
    """A kernel of the emitted file and the operators whose work it does."""

    name: str
    kind: str
    """loop, scan, extremum, contraction, region sum or spectral energy."""
    meaning: str
    covers: tuple[str, ...]
    """Operators, as ``name (file:line)``."""
    contraction: ContractionUse | None = None
    """Of a contraction alone."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An operator that stays a torch call, and why."""

    operator: str
    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class Work:
    """Operations (floating point) and bytes to and from memory of one forward."""

    operations: int
    bytes: int


def words_of(mode: str) -> str:
    """A mode's name in words: "training with gradients"."""
    return mode.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Mode:
    """Everything that is known of one mode of the model.

    name: training or inference, with ``_with_gradients`` where the model computes something else while gradients are
    recorded.
    """

    name: str
    operators: int
    """Captured operators that compute something."""
    replaced: int
    """How many of them the kernels replace."""
    rules: tuple[RuleUse, ...]
    kernels: tuple[KernelUse, ...]
    kept: tuple[Kept, ...]
    before: Work
    after: Work
    floor_seconds: float
    """The time that no version can beat on this device: bytes and operations after rewriting, at the peaks."""
    floor_words: str
    certificate: Any = None
    """A verify.Certificate, or None where nothing was checked."""
    timing: Any = None
    """A timing.Timing, or None where nothing was timed."""
    graph: str = ""
    rewritten: str = ""
    simplification: str = ""
    """constant: no output depends on the inputs; eliminated: a contraction was removed and with it most of the
    operations; "" otherwise. Speed-ups of such modes say little about kernels, and are counted apart."""
    layout: str = ""
    """Which convolutions run channels-last, and what that gave; "" where none does."""


@dataclass(frozen=True, slots=True)
class Result:
    """What ``optimize`` returns.

    source: text of the emitted file. path: where it was written, or None. target: its name.
    module: a live ModelNew with the problem's parameters, or None where it can't run here.
    notes: plain sentences that the user should read (what was not done, and why).
    stages: seconds spent in each stage, by name. construction: how the model is constructed, as text.
    """

    name: str
    source: str
    path: Path | None
    target: str
    device: str
    modes: tuple[Mode, ...]
    notes: tuple[str, ...] = ()
    stages: dict[str, float] = field(default_factory=dict)
    module: Any = None
    construction: str = "ModelNew(*get_init_inputs())"

    @property
    def certificate(self) -> Any:
        """The certificate of the mode as constructed."""
        return self.modes[0].certificate if self.modes else None

    @property
    def timing(self) -> Any:
        """The times of the mode as constructed."""
        return self.modes[0].timing if self.modes else None
