"""How long checking, tuning and timing may take, by effort."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds for each of the stages that measure, and for torch.compile of the baseline. For contractions: seconds of
    measuring, how many forms of each may be tried, and how many of all."""

    tune_seconds: float
    verify_seconds: float
    time_seconds: float
    compile_seconds: float
    contraction_seconds: float = 0.0
    contraction_forms: int = 0
    contraction_kernels: int = 0

    @property
    def measures(self) -> bool:
        """Whether anything is timed: without it every kernel that is right stays."""
        return self.time_seconds > 0


UNMEASURED = Budget(0, 5, 0, 0)
_BUDGETS = {
    ("quick", "cpp"): Budget(2, 5, 3, 60), ("normal", "cpp"): Budget(5, 25, 8, 120),
    ("thorough", "cpp"): Budget(30, 120, 60, 300), ("quick", "cuda"): Budget(1, 3, 2, 60, 2, 8, 32),
    ("normal", "cuda"): Budget(3, 6, 4, 120, 8, 8, 64),
    ("thorough", "cuda"): Budget(20, 60, 20, 300, 60, 16, 320),
}


def budget_of(effort: str, target: str) -> Budget:
    """The budget of an effort on a target."""
    return _BUDGETS[effort, target]
