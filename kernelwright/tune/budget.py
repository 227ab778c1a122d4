"""How long checking, tuning and timing may take, by effort."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds for each of the stages that measure, and for torch.compile of the baseline."""

    tune_seconds: float
    verify_seconds: float
    time_seconds: float
    compile_seconds: float


_BUDGETS = {
    ("quick", "cpp"): Budget(2, 5, 3, 60), ("normal", "cpp"): Budget(5, 25, 8, 120),
    ("thorough", "cpp"): Budget(30, 120, 60, 300), ("quick", "cuda"): Budget(1, 3, 2, 60),
    ("normal", "cuda"): Budget(3, 6, 4, 120), ("thorough", "cuda"): Budget(20, 60, 20, 300),
}


def budget_of(effort: str, target: str) -> Budget:
    """The budget of an effort on a target."""
    return _BUDGETS[effort, target]
