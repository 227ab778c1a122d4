"""How long each part of the judgement of one candidate may take, by effort, and how long it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kernelwright.device_lock import clock
from kernelwright.judge.settings import JudgeSettings


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds: for the problem's profile (once), and for checks, variants, diagnosis, clock and compute-sanitizer of
    each candidate. The check's required trials run whatever they take. Where ``diagnose`` is 0, the first failing trial
    ends a check."""

    profile: float
    check: float
    variants: float
    diagnose: float
    time: float
    sanitize: float


BUDGETS = {
    "quick": Budget(profile=8, check=6, variants=4, diagnose=6, time=4, sanitize=30),
    "normal": Budget(profile=20, check=20, variants=10, diagnose=15, time=8, sanitize=90),
    "thorough": Budget(profile=60, check=120, variants=30, diagnose=60, time=30, sanitize=400),
}
#: Share of an effort's time for checks and variants where nothing but the verdict is asked for: most of that time goes
#: to trials beyond the required ones, in which hardly anybody is wrong who was right until then.
VERDICT_ONLY_SHARE = 0.5


def budget_of(settings: JudgeSettings) -> Budget:
    """The effort's budget, less what is not asked for."""
    budget = BUDGETS[settings.effort]
    if settings.verdict_only:
        share = VERDICT_ONLY_SHARE
        return replace(budget, check=share * budget.check, variants=share * budget.variants, diagnose=0.0)
    return budget if settings.diagnose_budget is None else replace(budget, diagnose=settings.diagnose_budget)


class Deadline:
    """The end of a diagnosis whose seconds somebody gave; without them it has none. ``untried`` gets words for what
    there was no time for."""

    def __init__(self, seconds: float | None) -> None:
        self.until = None if seconds is None else clock() + seconds
        self.untried: list[str] = []

    def left(self) -> float:
        """Seconds until then; infinite where there is no end."""
        return float("inf") if self.until is None else max(0.0, self.until - clock())

    def allows(self, words: str) -> bool:
        """Whether there is time for what ``words`` name; they are kept where there is none."""
        if self.left() > 0:
            return True
        self.untried.append(words)
        return False


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
