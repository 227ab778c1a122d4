"""Which trials of a certification have their gradients compared, within its budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernelwright.problem.memory import is_out_of_memory
from kernelwright.verify.drawn import inputs_of, set_parameters
from kernelwright.verify.gradient_parts import Parts
from kernelwright.verify.gradients import check_gradients
from kernelwright.verify.observe import first_line
from kernelwright.verify.plan import Plan
from kernelwright.verify.records import Comparison, Skipped, Trial
from kernelwright.verify.reference import ENTRIES, FLOAT64, RANGE
from kernelwright.verify.sampling import batched_inputs, sampled_entries
from kernelwright.verify.state import OwnTypes, State
from kernelwright.verify.trial import Bench


class GradientChecks:
    """The gradient checks of one certification: on the first trial's inputs whatever the budget, and where calls record
    gradients on those of the first right trial with other parameters. A backward pass is most of a training step.

    found, trials: of a certification that is continued."""

    def __init__(self, bench: Bench, plan: Plan, clock: Callable[[], float], found: Comparison | None = None,
                 trials: Sequence[Trial] = ()) -> None:
        self.bench, self.plan, self.clock = bench, plan, clock
        self.skipped: list[Skipped] = []
        self._found = [found] if found is not None else []
        self._waits_for_given = (plan.check_gradients or plan.recording) and not plan.unchanged and not trials
        self._waits_for_redrawn = plan.recording and not plan.unchanged \
            and not any(t.plan.redrawn_parameters and t.passed for t in trials)
        self._seconds = 0.0

    def after(self, trial: Trial, left: float) -> float:
        """Check gradients where ``trial`` is one to do so after and, but for the first, ``left`` seconds do. Returns
        the seconds that no budget counts."""
        if trial.comparison is None or (self.plan.stop_at_failure and not trial.passed):
            return 0.0
        if self._waits_for_given:
            self._waits_for_given = False
            started = self.clock()
            self._check(trial)
            if self.plan.parameters_alone:
                self._check(trial, of_inputs=False)
            self._seconds = self.clock() - started
            return self._seconds
        if self._waits_for_redrawn and trial.plan.redrawn_parameters and trial.passed:
            self._waits_for_redrawn = False
            if self._seconds <= left:
                self._check(trial)
            else:
                self.skipped.append(Skipped(trial.plan, f"gradients would take about {self._seconds:.2g} s, "
                                            f"{max(0.0, left):.2g} s are left"))
        return 0.0

    def together(self) -> Comparison | None:
        """All that was compared; None where nothing was."""
        if not self._found:
            return None
        return Comparison(all(c.passed for c in self._found), tuple(o for c in self._found for o in c.outputs),
                          tuple(words for c in self._found for words in c.structure))

    def _check(self, trial: Trial, *, of_inputs: bool = True) -> None:
        bench, seed = self.bench, trial.plan.seed
        inputs = inputs_of(trial.plan, self.plan.gradient_inputs or bench.make_inputs)
        bench.original.apply(bench.eager)
        set_parameters(bench.eager, trial.plan)
        lost = trial.reference == RANGE and trial.against_eager is None
        truth = None if self.plan.gradient_inputs is not None else bench.kept.truths.get(trial.plan)
        in_parts = trial.against_eager is not None and trial.reference.startswith(ENTRIES)
        known = (truth[0][0], truth[1].outputs) if truth and truth[1].words == trial.reference else None
        try:
            found = check_gradients(
                bench.eager, bench.candidate,
                bench.double if lost or in_parts or trial.reference == FLOAT64 else None, inputs,
                State.of(bench.eager), seed=seed, tolerance=self.plan.tolerance_for(trial.plan.distribution),
                strict=self.plan.recording,
                # Which outputs a backward pass reaches is no matter of the parameters' values.
                alone=not trial.plan.redrawn_parameters,
                known=known, of_inputs=of_inputs,
                words="gradient with other parameters" if trial.plan.redrawn_parameters else
                "gradient" if of_inputs else "gradient of parameters alone",
                sampled=trial.comparison if trial.against_eager is not None else None, lost=lost,
                parts=self._parts(inputs, seed) if in_parts else None,
                types=bench.kept.own or OwnTypes())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            bench.kept.forget()
            self.skipped.append(Skipped(trial.plan, f"gradients: not enough memory: {first_line(error)}"))
        else:
            self._found += [found] if found is not None else []

    def _parts(self, inputs: Sequence[Any], seed: int) -> Parts | None:
        """How float64 runs entries of inputs of which all would take too much; None where these are few."""
        batched = batched_inputs(inputs, self.plan.batched_arguments)
        first = sampled_entries(inputs, batched, (), seed)
        return Parts(batched, first, self.plan.budget_seconds, self.clock) if first is not None else None
