"""The steps of a program as rows: those that are alike together, with the time that is known of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernelwright.records import Mode, Step

MEASURED, MODELLED = "measured", "modelled"
#: What a row is of.
CAPTURED, KERNEL, CALL = "captured operator", "kernel", "PyTorch call"
TOGETHER, WHOLE = "kernels together", "whole call"


@dataclass(frozen=True, slots=True)
class Row:
    """Steps that are alike. form: one of those above. count: how many they are; all figures are of one.

    seconds: of one, its launch included where it is modelled. known: `MEASURED` or `MODELLED`. share: of all modelled
    seconds of the program, that of all of them.
    """

    form: str
    name: str
    where: str
    count: int
    operations: int
    bytes: int
    seconds: float
    least_seconds: float
    known: str = MODELLED
    share: float | None = None

    @property
    def intensity(self) -> float:
        """Operations for each byte; 0 where nothing is moved."""
        return self.operations / self.bytes if self.bytes else 0.0

    @property
    def rate(self) -> float:
        """Operations in a second."""
        return self.operations / self.seconds if self.seconds else 0.0


def modelled_seconds(steps: Iterable[Step], launch: float) -> float:
    """What steps take by the cost model, with their launches."""
    return sum(step.seconds + launch for step in steps)


def captured_rows(mode: Mode, launch: float) -> list[Row]:
    """The captured operators, those of one line with the same sizes together, in order."""
    return _rows(mode.captured_steps, launch, {}, CAPTURED)


def program_rows(mode: Mode, launch: float) -> list[Row]:
    """The steps of the file, then kernels that were measured together."""
    rows = _rows(mode.steps, launch, kernel_seconds(mode), CALL)
    steps = {step.name: step for step in mode.steps if step.is_kernel}
    for region, count in Counter(mode.regions).items():
        own = [steps[name] for name in region.kernels if name in steps]
        if len(own) > 1:
            rows.append(Row(TOGETHER, " + ".join(step.name for step in own), own[0].where, count,
                            sum(step.operations for step in own), sum(step.bytes for step in own), region.seconds,
                            sum(step.least_seconds for step in own), MEASURED))
    return rows


def kernel_seconds(mode: Mode) -> dict[str, float]:
    """The measured seconds of kernels that were measured alone, by their names."""
    found = {region.kernels[0]: region.seconds for region in mode.regions if len(region.kernels) == 1}
    return found | {kernel.name: kernel.contraction.seconds for kernel in mode.kernels
                    if kernel.contraction is not None and kernel.contraction.seconds}


def _rows(steps: tuple[Step, ...], launch: float, measured: Mapping[str, float], call: str) -> list[Row]:
    """call: the form of what is no kernel."""
    groups: dict[tuple[object, ...], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.name, step.where, step.operations, step.bytes), []).append(step)
    total = modelled_seconds(steps, launch)
    found = []
    for alike in groups.values():
        step, modelled = alike[0], alike[0].seconds + launch
        seconds = measured.get(step.name) if step.is_kernel else None
        known = (modelled, MODELLED) if seconds is None else (seconds, MEASURED)
        found.append(Row(KERNEL if step.is_kernel else call, step.name, step.where, len(alike), step.operations,
                         step.bytes, known[0], step.least_seconds, known[1],
                         len(alike) * modelled / total if total else None))
    return found
