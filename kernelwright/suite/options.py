"""What a suite was asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.errors import InvalidOption
from kernelwright.settings import Settings

#: Settings that say how one run of ``optimize`` shows its result, not what the result is.
SHOWN = ("output", "report", "force", "refresh", "quiet", "json")
RUNNERS = ("local", "ray")
LIMIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOptions:
    """Options of a suite besides those of ``optimize``. Raises InvalidOption (KW403)."""

    settings: Settings = field(default_factory=Settings)
    """How each problem is optimized."""
    output: Path = Path("bench_results")
    """Folder for records, emitted files and the page."""
    resume: bool = False
    """Keep the results that are there and run what is missing or has changed."""
    force: bool = False
    """Replace the results that are there."""
    filters: tuple[str, ...] = ()
    """Shell patterns or parts of names; a problem runs if one of them fits. None: all."""
    workers: int | None = None
    """Processes per device; None: by its kind and the number of CPU cores."""
    devices: tuple[str, ...] = ()
    """``cpu`` or numbers of GPUs as PyTorch counts them; none: all GPUs, else the CPU."""
    limit: float = LIMIT_SECONDS
    """Seconds that a problem may take, not counting those in which it was stopped."""
    memory: float | None = None
    """GiB of the machine's memory that a problem may use; None: until the machine runs short."""
    runner: str = "local"
    """``local`` or ``ray``."""
    address: str = ""
    """Address of a Ray cluster; "": the one that this machine belongs to, else a new one on it."""
    propose: Mapping[str, Any] | None = None
    """Options of ``propose`` (:func:`kernelwright.suite.proposals.read_options`): each problem's candidates are asked
    for, or read, and judged; None: problems are optimized alone."""
    judge: Mapping[str, Any] | None = None
    """Settings of ``judge``, as plain data: each job is a problem with candidates that are judged; None: it is none."""
    work: str = "kernelwright.suite.worker:optimize_problem"
    """``module:function`` that does the work of one problem in its process."""

    def __post_init__(self) -> None:
        if self.runner not in RUNNERS:
            raise _invalid("runner", self.runner, " or ".join(RUNNERS), RUNNERS[0])
        if self.workers is not None and not 1 <= self.workers <= 256:
            raise _invalid("workers", self.workers, "a whole number from 1 to 256", "chosen by the device")
        if not 0 < self.limit < float("inf"):
            raise _invalid("limit", self.limit, "a number of seconds above 0", LIMIT_SECONDS)
        if self.memory is not None and not 0 < self.memory < float("inf"):
            raise _invalid("memory", self.memory, "a number of GiB above 0", "no limit for a single problem")
        known = all(name == "cpu" or name.isdecimal() for name in self.devices)
        if not known or len(set(self.devices)) < len(self.devices):
            raise _invalid("devices", ",".join(self.devices), "cpu, or different numbers of GPUs (0,1)", "all GPUs")
        if self.resume and self.force:
            raise _invalid("resume", True, "True or False, but not together with --force", False)

    @property
    def compiles(self) -> bool:
        """Whether problems are timed beside torch.compile, which a process imports before its problem comes."""
        return self.settings.baselines in ("compile", "all")

    def kept_settings(self) -> dict[str, Any]:
        """The settings that a record keeps: all that bear on the result."""
        if self.judge is not None:
            return dict(self.judge)
        kept = {name: value for name, value in self.settings.as_json().items() if name not in SHOWN}
        return kept if self.propose is None else {**kept, "propose": dict(self.propose)}


def _invalid(option: str, value: object, choices: str, default: object) -> InvalidOption:
    return InvalidOption(option=f"--{option}", value=repr(value), choices=choices, default=default)
