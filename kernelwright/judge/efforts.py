"""How long each part of the judgement of one candidate may take, by effort, and how long it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kernelwright.device_lock import clock


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds: for the problem's profile (once), and for checks, variants, diagnosis and clock of each candidate. The
    check's required trials run whatever they take. Where ``diagnose`` is 0, the first failing trial ends a check."""

    profile: float
    check: float
    variants: float
    diagnose: float
    time: float


BUDGETS = {
    "quick": Budget(profile=8, check=6, variants=4, diagnose=6, time=4),
    "normal": Budget(profile=20, check=20, variants=10, diagnose=15, time=8),
    "thorough": Budget(profile=60, check=120, variants=30, diagnose=60, time=30),
}


@dataclass(slots=True)
class Seconds:
    """Wall seconds of one candidate, by stage."""

    by_stage: dict[str, float] = field(default_factory=dict)

    def during(self, stage: str, work: Callable[[], Any]) -> Any:
        """What ``work`` returns; its time is added to ``stage``, also where it raises."""
        started = clock()
        try:
            return work()
        finally:
            self.by_stage[stage] = self.by_stage.get(stage, 0.0) + clock() - started
