"""How long each part of the judgement of one candidate may take, by effort."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds: for the problem's card (once), and for checks, variants, diagnosis and clock of each candidate. The
    check's required trials run whatever they take."""

    card: float
    check: float
    variants: float
    diagnose: float
    time: float


BUDGETS = {
    "quick": Budget(card=8, check=6, variants=4, diagnose=6, time=4),
    "normal": Budget(card=20, check=20, variants=10, diagnose=15, time=8),
    "thorough": Budget(card=60, check=120, variants=30, diagnose=60, time=30),
}
