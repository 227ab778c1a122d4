"""What a run of the judge was asked to do."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from kernelwright.codegen.device_kind import HOST, device_kind
from kernelwright.errors import InvalidOption, NoCudaDevice
from kernelwright.judge import rules as rule_sets
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.settings import Effort, Target, settings_of
from kernelwright.verify.plain import plain

PRECISIONS = ("match", "strict", "any")
SANITIZE = ("auto", "off", "on")
#: Seconds for two stages, as the option has them: "300,20" is (300.0, 20.0), and "60" is 60.0.
Limit = float | str | tuple[float, float] | None
#: Bits of a seed that nobody gave: beyond guessing, and short enough to be typed again.
SEED_BITS = 48
#: Settings that say how the result is shown, not what it is.
SHOWN = ("prompt", "output", "report", "force", "quiet", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """Options of ``kernelwright judge``. Raises InvalidOption (KW403) for a value that an option does not take.

    >>> JudgeSettings(effort="quick", time=False).precision
    'match'
    """

    target: Target = "auto"
    """Where model and candidates run: those of cuda on a GPU, others on the CPU; auto is cuda where PyTorch sees a CUDA
    device."""
    device: int | None = None
    """The GPU, as PyTorch counts them; None: the first."""
    precision: Literal["match", "strict", "any"] = "match"
    """match: never less accurate than eager; strict: float32; any: TF32 and 16-bit arithmetic are accepted, in classes
    of their own."""
    effort: Effort = "normal"
    """quick, normal or thorough: how much time checks, diagnosis and clock may take."""
    backward: bool = False
    """Compare gradients of inputs and parameters, too."""
    own_kernels: bool = False
    """Refuse (CHEAT-GHOST) a candidate whose result does not come from its own kernels."""
    seed: int | None = None
    """Seed of everything drawn. None: one is drawn from the operating system here, so that no candidate can know it;
    the attribute is always a number."""
    threads: int | None = None
    """CPU threads of model and candidates; None: PyTorch's number."""
    time: bool = True
    """Whether candidates that pass are timed and ranked."""
    verdict_only: bool = False
    """Nothing but verdicts: no times, no diagnosis, and a check that ends with the first trial that fails."""
    diagnose_budget: float | None = None
    """Seconds after which the diagnosis of a wrong candidate ends; 0: there is none; None: the effort's."""
    tiny: bool = False
    """Give the problem file's globals the small values of its dictionary TINY."""
    model: str | None = None
    """Name of the model's class in its file; None: Model, else the only module class that no other one uses."""
    sanitize: Literal["auto", "off", "on"] = "auto"
    """Whether the kernels of candidates that pass run under compute-sanitizer, on a GPU. auto: where it is there, and
    not with ``verdict_only``; on: always, and what could not be looked at limits a candidate."""
    rules: str = rule_sets.OWN
    """kernelwright: our own verdict alone; kernelbench, flashinfer, several with commas between them, or all: what the
    rules of others say stands beside it."""
    known: tuple[Path, ...] = ()
    """Files with which candidates' texts are compared, beside each other and the model's; folders stand for those in
    them. They are read and never run."""
    limit: Limit = None
    """Seconds that a candidate may take for each stage: to build, and for a call; one number is for both. None: the
    judge's own limits."""
    memory: float | None = None
    """GiB of host memory that a candidate may use; None: a share of what is free."""
    prompt: bool = False
    """Whether the command prints prompts that ask for repairs, in place of the report."""
    output: Path | None = None
    """File that gets the JSON document, or None."""
    report: Path | None = None
    """An HTML page of all candidates, or None."""
    force: bool = False
    """Replace ``output`` and ``report`` if they exist."""
    json: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        # The values of the options that every command has are checked in one place.
        settings_of(target=self.target, effort=self.effort, threads=self.threads, tiny=self.tiny, model=self.model,
                 force=self.force, json=self.json, quiet=self.quiet, seed=0 if self.seed is None else self.seed)
        if self.precision not in PRECISIONS:
            raise _invalid("precision", self.precision, " or ".join(PRECISIONS), PRECISIONS[0])
        if self.sanitize not in SANITIZE:
            raise _invalid("sanitize", self.sanitize, " or ".join(SANITIZE), SANITIZE[0])
        try:
            rule_sets.chosen(self.rules)
        except (ValueError, AttributeError):
            raise _invalid("rules", self.rules, f"{', '.join(rule_sets.NAMES)}, or several with commas between them",
                           rule_sets.OWN) from None
        for name in ("backward", "own_kernels", "time", "verdict_only", "prompt"):
            if not isinstance(getattr(self, name), bool):
                raise _invalid(name.replace("_", "-"), getattr(self, name), "True or False", False)
        if self.limit is not None:
            try:
                object.__setattr__(self, "limit", _stage_limits(self.limit))
            except (ValueError, TypeError):
                raise _invalid("limit", self.limit, "a number of seconds above 0, or two with a comma between them, to "
                               "build and for a call", "the judge's limits of each stage") from None
        if self.memory is not None and not 0 < self.memory < float("inf"):
            raise _invalid("memory", self.memory, "a number above 0", "a share of what is free")
        if self.diagnose_budget is not None and not 0 <= self.diagnose_budget < float("inf"):
            raise _invalid("diagnose-budget", self.diagnose_budget, "a number of seconds from 0 on", "the effort's")
        if self.verdict_only and self.diagnose_budget:
            raise _invalid("diagnose-budget", self.diagnose_budget, "0, or nothing, with --verdict-only, which "
                           "diagnoses nothing", "the effort's")
        if self.verdict_only:
            object.__setattr__(self, "time", False)
        kind = device_kind(self.target)
        if self.device is not None and (kind == HOST or not 0 <= self.device < 1024):
            alone = f", and not with --target {self.target}" if kind == HOST else ""
            raise _invalid("device", self.device, f"the number of a GPU{alone}", "the first")
        for name, ending in (("output", ".json"), ("report", ".html")):
            if getattr(self, name) is not None and Path(getattr(self, name)).suffix != ending:
                raise _invalid(name, str(getattr(self, name)), f"the path of a file ending in {ending}", "no file")
        object.__setattr__(self, "known", tuple(Path(path) for path in self.known))
        for name in ("output", "report"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        if self.seed is None:
            object.__setattr__(self, "seed", secrets.randbits(SEED_BITS))

    def place(self) -> torch.device:
        """Where the model and its candidates run. Raises NoCudaDevice (KW302) for a GPU that is not there."""
        kind = device_kind(self.target)
        if kind == HOST or (not kind and self.device is None and not torch.cuda.is_available()):
            return torch.device(HOST)
        index, count = self.device or 0, torch.cuda.device_count()
        if index >= count:
            raise NoCudaDevice(device=f"cuda:{index}", found=f"PyTorch sees {count} CUDA device(s)")
        return torch.device("cuda", index)

    @property
    def other_rules(self) -> tuple[rule_sets.RuleSet, ...]:
        """The sets of rules that are asked for beside our own."""
        return rule_sets.chosen(self.rules)

    def limits(self) -> Limits:
        """What a candidate's process may use."""
        limits = Limits()
        if self.limit is not None:
            given = _stage_limits(self.limit)
            build, run = given if isinstance(given, tuple) else (given, given)
            limits = replace(limits, build_seconds=build, run_seconds=run)
        return replace(limits, memory_bytes=int(self.memory * 2**30)) if self.memory is not None else limits

    def as_json(self) -> dict[str, Any]:
        """What bears on the verdicts, as plain data; the seed stands beside it in the result."""
        return {option.name: plain(getattr(self, option.name)) for option in fields(self)
                if option.name not in (*SHOWN, "seed")}


def _stage_limits(given: str | float | Sequence[float]) -> float | tuple[float, float]:
    """``given`` as one number, or as two that differ. Raises ValueError and TypeError for what is neither."""
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, Sequence) else (given,)
    numbers = [float(part) for part in parts]
    if not 1 <= len(numbers) <= 2 or not all(0 < number < float("inf") for number in numbers):
        raise ValueError(given)
    return numbers[0] if len(set(numbers)) == 1 else (numbers[0], numbers[1])


def _invalid(option: str, value: object, choices: str, default: object) -> InvalidOption:
    return InvalidOption(option=f"--{option}", value=repr(value), choices=choices, default=default)
