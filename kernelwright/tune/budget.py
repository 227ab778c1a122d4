"""The time of one run: what it may take until the file is written, and what each stage may use of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelwright.device_lock import clock

#: Seconds of a run by effort, where nobody says otherwise: without compiled baselines and with torch.compile. The
#: compiler of others takes as long for a network as a quick run of ours does.
SECONDS = {"quick": (30.0, 60.0), "normal": (120.0, 120.0), "thorough": (900.0, 900.0)}
#: Seconds more where all that torch.compile offers is compiled: its max-autotune takes minutes.
_ALL_SECONDS = 180.0
#: The share of a run, by effort, that is kept for compiled baselines until their turn comes, at the end.
_KEPT = {"quick": 0.5, "normal": 0.25, "thorough": 0.25}
#: What the stages that measure get of the time that is left, in parts of all that are still to come, and the share of
#: the budget, without what is kept for baselines, that each needs at most. Baselines are the compilers of others, whose
#: times stand in the report: they share with their timing alone, as what they need is kept for them.
SHARES = {"tune": (4.0, 0.5), "verify": (3.0, 0.2), "time": (1.0, 0.1), "baselines": (4.0, 1.0)}
#: Of contractions on a GPU, by effort: the share of the budget in which their candidates are timed, how many candidates
#: of each may be tried, and how many of all.
_CONTRACTIONS = {"quick": (0.07, 8, 32), "normal": (0.07, 8, 64), "thorough": (0.07, 16, 320)}


@dataclass(slots=True)
class Budget:
    """A deadline, and shares of what is left until then. Made once for a run; its clock starts then, or before.

    seconds: of the run without compiled baselines, for which kept_seconds are added when `baselines_begin`. measures:
    whether anything is timed; without it every kernel that is right stays.
    contraction_seconds, contraction_candidates, contraction_kernels: seconds of timing contractions, how many
    candidates of each may be tried, and how many of all.
    """

    seconds: float
    measures: bool = True
    kept_seconds: float = 0.0
    contraction_seconds: float = 0.0
    contraction_candidates: int = 0
    contraction_kernels: int = 0
    baselines_run: bool = False
    begun: float = field(default_factory=lambda: clock())
    coming: set[str] = field(default_factory=lambda: set(SHARES))

    def until_end(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self.seconds + self.kept_seconds - (clock() - self.begun))

    def left(self) -> float:
        """Seconds until the deadline, or until compiled baselines have their turn."""
        return self.until_end() if self.baselines_run else max(0.0, self.until_end() - self.kept_seconds)

    def share(self, stage: str) -> float:
        """Seconds that ``stage``, one of `SHARES`, may take from now on."""
        parts, most = SHARES[stage]
        others = sum(SHARES[other][0] for other in self.coming - {stage}
                     if other != "baselines" or self.baselines_run or not self.kept_seconds)
        whole = max(self.seconds, self.kept_seconds) if stage == "baselines" else self.seconds
        return min(self.left() * parts / (parts + others), most * whole)

    def baselines_begin(self) -> None:
        """Give what was kept for baselines to them, and to their timing."""
        self.baselines_run = True

    def done(self, *stages: str) -> None:
        """Leave the shares of stages that need no more to the others."""
        self.coming.difference_update(stages)


def budget_of(effort: str, seconds: float | None = None, *, baselines: str = "compile", spent: float = 0.0) -> Budget:
    """The budget of a run that began ``spent`` seconds ago. seconds: what was asked for; None leaves it to the effort.
    baselines: the setting of that name, which says whether models are compiled by others, too."""
    compiled = baselines in ("compile", "all")
    whole = SECONDS[effort][compiled] if seconds is None else seconds
    kept = _KEPT[effort] * whole if compiled else 0.0
    if baselines == "all" and seconds is None:
        whole, kept = whole + _ALL_SECONDS, kept + _ALL_SECONDS
    share, candidates, kernels = _CONTRACTIONS[effort]
    budget = Budget(whole - kept, True, kept, share * (whole - kept), candidates, kernels, begun=clock() - spent)
    if not compiled:
        budget.done("baselines")
    return budget


def unmeasured(seconds: float) -> Budget:
    """The budget of a run that checks and times nothing."""
    budget = Budget(seconds, measures=False)
    budget.done("tune", "time", "baselines")
    return budget
