"""The time of one run: what it may take from loading to the written file, and what each stage may use of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelwright.device_lock import clock

#: Seconds of a run by effort, where nobody says otherwise.
SECONDS = {"quick": 30.0, "normal": 120.0, "thorough": 900.0}
#: What the stages that measure get of the time that is left, in parts of all that are still to come, and the share of
#: the whole budget that each needs at most. Baselines are the compilers of others, whose times stand in the report.
SHARES = {"tune": (4.0, 0.5), "verify": (3.0, 0.2), "time": (1.0, 0.1), "baselines": (2.0, 0.5)}
#: Of contractions on a GPU, by effort: the share of the budget in which their forms are timed, how many forms of each
#: may be tried, and how many of all.
_CONTRACTIONS = {"quick": (0.07, 8, 32), "normal": (0.07, 8, 64), "thorough": (0.07, 16, 320)}


@dataclass(slots=True)
class Budget:
    """A deadline, and shares of what is left until then. Made once for a run; its clock starts then.

    seconds: of the run. measures: whether anything is timed; without it every kernel that is right stays.
    contraction_seconds, contraction_forms, contraction_kernels: seconds of timing contractions, how many forms of each
    may be tried, and how many of all.
    """

    seconds: float
    measures: bool = True
    contraction_seconds: float = 0.0
    contraction_forms: int = 0
    contraction_kernels: int = 0
    begun: float = field(default_factory=lambda: clock())
    coming: set[str] = field(default_factory=lambda: set(SHARES))

    def left(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self.seconds - (clock() - self.begun))

    def share(self, stage: str) -> float:
        """Seconds that ``stage``, one of `SHARES`, may take from now on."""
        parts, most = SHARES[stage]
        others = sum(SHARES[other][0] for other in self.coming if other != stage)
        return min(self.left() * parts / (parts + others), most * self.seconds)

    def done(self, *stages: str) -> None:
        """Leave the shares of stages that need no more to the others."""
        self.coming.difference_update(stages)


def budget_of(effort: str, seconds: float | None = None, *, baselines: bool = True) -> Budget:
    """The budget of a run that begins now. seconds: what was asked for; None leaves it to the effort. baselines:
    whether models are compiled by others, too."""
    whole = SECONDS[effort] if seconds is None else seconds
    share, forms, kernels = _CONTRACTIONS[effort]
    budget = Budget(whole, True, share * whole, forms, kernels)
    if not baselines:
        budget.done("baselines")
    return budget


def unmeasured(seconds: float) -> Budget:
    """The budget of a run that checks and times nothing."""
    budget = Budget(seconds, measures=False)
    budget.done("tune", "time", "baselines")
    return budget
