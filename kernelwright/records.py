"""The frozen records of which a result is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from kernelwright.roofline.devices import Device
    from kernelwright.timing.baselines import Timing
    from kernelwright.verify.certificate import Certificate


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
    """loop, scan, extremum, recurrence, attention, batched product, contraction, region sum or spectral energy."""
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


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a program, a kernel or a call of PyTorch's, and what it costs by the roofline's cost model.

    name: the kernel's, or the operator's. where: the user's line (``file:line: text``) or the module's path; "" where
    neither is known. operations: floating point. bytes: to and from memory. seconds: of arithmetic or of memory,
    whichever takes longer, without the launch. least_seconds: what no version of this step alone can beat.
    reads: numbers of the steps, in the same program, whose results it reads. replaces: of a step of the file's program,
    numbers of the captured operators whose work it does.
    """

    name: str
    where: str
    operations: int
    bytes: int
    seconds: float
    least_seconds: float
    reads: tuple[int, ...] = ()
    replaces: tuple[int, ...] = ()
    is_kernel: bool = False


@dataclass(frozen=True, slots=True)
class RegionUse:
    """Kernels that together replace some operators, as measured in the running program: seconds of these kernels, and
    torch_seconds of the torch calls that they replace."""

    kernels: tuple[str, ...]
    seconds: float
    torch_seconds: float


@dataclass(frozen=True, slots=True)
class BackwardUse:
    """A program of the file that finds gradients of calls in this mode, where these record gradients.

    of: whose gradients: inputs and parameters, inputs, or parameters alone. steps: the program in order, of each kernel
    and call what it costs; they replace no captured operators. floor_seconds: the time that no version of it can beat
    on this device. saved: the operators whose results a call hands over to it, as ``name (file:line)``. saved_bytes: of
    these results, which are kept from a call to its backward.
    """

    of: str
    kernels: tuple[KernelUse, ...]
    kept: tuple[Kept, ...]
    steps: tuple[Step, ...]
    floor_seconds: float
    floor_words: str
    saved: tuple[str, ...]
    saved_bytes: int


#: How a note begins that says what there was no time for.
UNTRIED = "There was no time to "
#: What one has that says that a mode was given up for want of time to find out more.
LATE = "There was no time left to give up less of it."


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
    certificate: Certificate | None = None
    """None where nothing was checked."""
    timing: Timing | None = None
    """None where nothing was timed."""
    graph: str = ""
    rewritten: str = ""
    simplification: str = ""
    """constant: no output depends on the inputs; eliminated: a contraction was removed and with it most of the
    operations; "" otherwise. Speed-ups of such modes say little about kernels, and are counted apart."""
    layout: str = ""
    """Which convolutions run channels-last, and what that gave; "" where none does."""
    launched: str = ""
    """graph: the program is launched as one CUDA graph, where a call asks for no gradient; direct: kernel by kernel; ""
    where the file has no program for the mode, and the original computation stays."""

    captured_steps: tuple[Step, ...] = ()
    """The captured operators in order, but for views."""
    rewritten_operators: int = 0
    """How many operators the rules left, but for views, and for casts that kernels do on the way."""
    rewritten_seconds: float = 0.0
    """What these would take, each by itself, by the cost model and without launches."""
    steps: tuple[Step, ...] = ()
    """The program of the file in order: kernels and what stays a torch call. Empty where the original stays."""
    regions: tuple[RegionUse, ...] = ()
    """Kernels that were measured beside the torch calls that they replace."""
    backward: tuple[BackwardUse, ...] = ()
    """Programs of the file that find gradients; none where the original computation finds them."""

    @property
    def runs(self) -> bool:
        """Whether the file has a program for the mode."""
        return bool(self.kernels) or bool(self.launched)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a run: a stage, or a moment in which it said something.

    name: the stage's. words: what of it, such as a mode, or what was said. start: seconds from the command's start.
    seconds: how long it took; None for a moment. Stages that lie within others come after these.
    """

    name: str
    words: str
    start: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """What a result consists of: see :class:`kernelwright.result.Result`, which callers get."""

    name: str
    source: str
    path: Path | None
    target: str
    device: str
    modes: tuple[Mode, ...]
    notes: tuple[str, ...] = ()
    stages: dict[str, float] = field(default_factory=dict)
    module: nn.Module | None = None
    construction: str = "ModelNew(*get_init_inputs())"
    figures: Device | None = None
    """What the device can do at most; None where that was not asked."""
    spans: tuple[Span, ...] = ()
    """The stages of the run as they came, and what it said within them."""
    trace: Path | None = None
    """Where the run and its program are written as a trace; None where they are not."""
    kept_since: str | None = None
    """When an earlier run of the same command made this result, whose figures are of then, as ISO 8601; None where this
    run did."""
