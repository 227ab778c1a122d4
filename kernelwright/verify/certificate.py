"""VERIFY: certify a candidate module against the model in float64, beside eager's own error."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from kernelwright.device_lock import clock
from kernelwright.problem.memory import is_out_of_memory, release
from kernelwright.problem.seeds import others_kept
from kernelwright.problem.state import in_mode_of
from kernelwright.progress import counted
from kernelwright.verify.distributions import DISTRIBUTIONS
from kernelwright.verify.gradient_checks import GradientChecks
from kernelwright.verify.gradient_parts import BY_PART
from kernelwright.verify.kept import Kept
from kernelwright.verify.observe import first_line
from kernelwright.verify.plain import plain
from kernelwright.verify.plan import Plan, default_trials
from kernelwright.verify.records import CandidateLacksMemory, Comparison, Refused, Skipped, Trial, TrialPlan
from kernelwright.verify.reference import STRICT, UNCHANGED
from kernelwright.verify.state import State, float64_copy
from kernelwright.verify.trial import Bench

__all__ = ["Certificate", "Plan", "Skipped", "certify", "default_trials"]


@dataclass(frozen=True)
class Certificate:
    """The verdict and everything it rests on. ``why`` is empty where passed; times in seconds.

    ``deterministic`` is None where no call was repeated. ``sampled`` says that float64 covered a pair of
    batch entries only. ``eager_error`` and ``candidate_error`` are the worst relative errors
    (rms(error)/rms(float64)) over all outputs of the gating trials, but for those whose inputs are made to cost digits
    (`Distribution.costs_digits`); ``gradients`` holds those that were compared.
    ``separate`` says in words what of eager's results is farther from float64's than rounding explains: then the two
    are not one computation, and nothing can be certified; empty where nothing is. ``recorded`` is the certificate with
    gradients recorded, where both were asked for (`certify_both`): both passed, or ``why`` says why not. ``given_up``:
    it is of kernels that are not in the file, whose result is eager's.
    """

    passed: bool
    why: tuple[str, ...]
    trials: tuple[Trial, ...]
    skipped: tuple[Skipped, ...]
    deterministic: bool | None
    uses_randomness: bool
    state_copied: bool
    state_problems: tuple[str, ...]
    sampled: bool
    gradients: Comparison | None
    candidate_error: float
    eager_error: float
    seconds: float
    budget_seconds: float
    environment: dict[str, str]
    recording: bool = False
    separate: str = ""
    recorded: Certificate | None = None
    given_up: bool = False

    def without_recorded(self) -> Certificate:
        """What it says of calls that record no gradients, of a candidate that passed in these."""
        return replace(self, recorded=None, passed=True, why=(), separate="")

    @property
    def is_of_original(self) -> bool:
        """Whether nothing was replaced in what passed."""
        return self.passed and all(trial.reference == UNCHANGED for trial in self.trials)

    @property
    def is_other_computation(self) -> bool:
        """Whether float64, or a candidate that gives float64's results, does not compute what eager does."""
        return any(kind in ("separate", "other-computation") for found in (self, self.recorded) if found is not None
                   for trial in found.trials for kind in trial.kinds)

    def sentence(self) -> str:
        """Say the verdict in words."""
        scope = " (float64 on two batch entries, eager for the others)" if self.sampled else ""
        skipped = f"; {len(self.skipped)} trials did not run" if self.skipped else ""
        if self.given_up or self.is_of_original:
            return "The original computation, unchanged: its result is eager's."
        if self.passed:
            both = f" {self.recorded.sentence()}" if self.recorded is not None else ""
            return (
                f"Passed {self._trials()} against float64{scope}: relative error {self.candidate_error:.2g} (PyTorch's "
                f"own: {self.eager_error:.2g}){self._about_gradients()}{skipped}.{both}"
            )
        return "Failed: " + " ".join(self.why[:3])

    def _trials(self) -> str:
        gating = sum(trial.gates for trial in self.trials)
        return f"{gating} trial{'s' * (gating != 1)}" + (" with gradients recorded" if self.recording else "")

    def _about_gradients(self) -> str:
        outputs = self.gradients.outputs if self.gradients else ()
        found = [o for o in outputs if o.elements and o.path.startswith("gradient")]
        compared = [o for o in outputs if o.reference_rms and not o.is_noise]
        if found and not any(o.reference_rms for o in found):
            return "; gradients are eager's, bit for bit"
        # What float64 found of a part says how good they are, eager beside the whole does not.
        compared = [o for o in compared if BY_PART in o.path] or compared
        if not compared:
            return ""
        own, eager = max(o.relative for o in compared), max(o.eager_relative for o in compared)
        return f"; of gradients {own:.2g} (PyTorch's own: {eager:.2g})"

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with the sentence."""
        return {**plain(self), "sentence": self.sentence()}


def certify(
    make_model: Callable[[], nn.Module],
    make_candidate: Callable[[], nn.Module],
    make_inputs: Callable[[int], Sequence[Any]],
    *,
    plan: Plan | None = None,
    make_float64: Callable[[nn.Module], nn.Module] = float64_copy,
    kept: Kept | None = None,
    begun: Certificate | None = None,
) -> Certificate:
    """Run ``plan``'s trials and return the certificate.

    ``make_model`` builds the model as PyTorch runs it (eager); ``make_candidate`` the module to be judged, in
    the same mode and on the same device; ``make_inputs(seed)`` returns the positional inputs on that device,
    fresh for each seed. ``make_float64(model)`` returns the float64 copy. The candidate gets the model's
    parameters and buffers by name. Calls run under no_grad unless ``plan.recording``; PyTorch's random state is
    restored. ``kept`` is filled by the first and used by the further certifications of other candidates under the same
    functions and plan, but for its tolerances and budget. ``begun`` is what trials of the same candidate have found:
    those that ran are not run again, and the certificate is of all.

    A trial whose estimated cost exceeds what is left of the budget is skipped and recorded; the first always
    runs. Raises only what ``make_model`` and ``make_inputs`` raise, and what `is_out_of_memory` accepts where
    memory does not do for the first trial, or for the candidate in any (``plan.must_fit``).
    """
    plan = plan or Plan()
    if begun is not None and {trial.plan for trial in begun.trials}.issuperset(plan.trials):
        return begun
    started = clock()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices), others_kept():
        return _certify(make_model, make_candidate, make_inputs, plan, make_float64, kept or Kept(), begun, started)


def look_ahead(
    make_model: Callable[[], nn.Module],
    make_inputs: Callable[[int], Sequence[Any]],
    plan: Plan,
    kept: Kept,
    going_on: Callable[[], bool],
    make_float64: Callable[[nn.Module], nn.Module] = float64_copy,
) -> None:
    """Find what a certification under ``plan`` holds a candidate against, before there is one; ``kept`` gets it.

    going_on: asked before each trial whether there is time for it. Arguments are otherwise those of `certify`. A model
    that builds parts in its calls, or raises, leaves nothing: its certification looks at it from the beginning. Raises
    what ``make_model`` and ``make_inputs`` raise, and what `is_out_of_memory` accepts.
    """
    if plan.unchanged or not kept.truth_bytes or not going_on():
        return
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices), others_kept():
        model = kept.model = make_model() if kept.model is None else kept.model
        if kept.rebuilds(model):
            return
        bench = _bench(model, model, plan, make_inputs, make_float64, kept)
        try:
            for trial_plan in plan.trials:
                if not going_on():
                    break
                bench.look_ahead(trial_plan)
        except BaseException:
            kept.leave_model()
            raise
        if kept.rebuilds(model):
            kept.leave_model()
        else:
            bench.original.apply(model)


def _bench(
    model: nn.Module,
    candidate: nn.Module,
    plan: Plan,
    make_inputs: Callable[[int], Sequence[Any]],
    make_float64: Callable[[nn.Module], nn.Module],
    kept: Kept,
) -> Bench:
    """What trials run on; what ``kept`` lacks of the model for that is made."""
    if kept.original is None:
        kept.original = State.of(model)
    if kept.double is None and not kept.without_double and not plan.unchanged:
        # A model that cannot be copied is compared in strict float32, and the trial says so.
        try:
            kept.double = make_float64(model)
        except Exception as error:
            kept.without_double = f"the model cannot be copied to float64 ({first_line(error)})"
    return Bench(
        model,
        candidate,
        kept.double,
        kept.original,
        make_inputs,
        plan.tolerance,
        plan.tolerance_for("normal"),
        plan.sample_axis0,
        plan.batched_arguments,
        plan.poison,
        plan.unchanged,
        kept,
        plan.recording,
        plan.lenient,
    )


def _certify(
    make_model: Callable[[], nn.Module],
    make_candidate: Callable[[], nn.Module],
    make_inputs: Callable[[int], Sequence[Any]],
    plan: Plan,
    make_float64: Callable[[nn.Module], nn.Module],
    kept: Kept,
    begun: Certificate | None,
    started: float,
) -> Certificate:
    model = kept.model = make_model() if kept.model is None else kept.model
    try:
        candidate = make_candidate()
    except Exception as error:  # a candidate that cannot be built is a verdict
        why = f"the candidate cannot be constructed: {type(error).__name__}: {first_line(error)}"
        return _certificate(plan, [], [], None, (), None, [why], started)
    in_mode_of(candidate, model)
    if kept.rebuilds(model):  # the candidate has not made the call in which that was done
        with suppress(Exception), torch.no_grad():  # trials show what it raises
            candidate(*make_inputs(plan.trials[0].seed))
    bench = _bench(model, candidate, plan, make_inputs, make_float64, kept)
    original = bench.original
    state_problems = _state_problems(model, candidate, original)
    why = []
    if state_problems and plan.require_state:
        why.append("the model's state does not fit the candidate: " + "; ".join(state_problems[:3]) + ".")
    trials: list[Trial] = list(begun.trials) if begun is not None else []
    done = {trial.plan for trial in trials}
    skipped: list[Skipped] = [s for s in begun.skipped if s.plan in done] if begun is not None else []
    # The first one may have included a build.
    estimate, budget = max((trial.seconds for trial in trials[1:]), default=0.0), plan.budget_seconds
    checks = GradientChecks(bench, plan, clock, begun.gradients if begun is not None else None, trials)
    for trial_plan in plan.trials:
        if trial_plan in done:
            continue
        place = len(trials) + len(skipped)
        counted(place, len(plan.trials))
        left = budget * (3 if place < plan.wanted else 1) - (clock() - started)
        if place >= plan.required and trials and estimate > left:
            skipped.append(
                Skipped(trial_plan, f"would take about {estimate:.2g} s, {max(0.0, left):.2g} s are left")
            )
            continue
        repeats = plan.repeats if not trials else min(plan.repeats, 1) if len(trials) == 1 else 0
        result = _run(bench, plan, trial_plan, repeats, may_lack=bool(trials))
        if isinstance(result, Refused):
            skipped.append(Skipped(trial_plan, result.why))
            continue
        trials.append(result)
        left = budget * (3 if place < plan.wanted else 1) - (clock() - started)
        budget += checks.after(result, left)
        # The candidate's first call may include a build: neither an estimate nor the budget counts it.
        again = result.candidate_seconds if result.repeat_seconds is None else result.repeat_seconds
        build = max(0.0, result.candidate_seconds - again) if len(trials) == 1 else 0.0
        budget += build
        once = result.seconds - build - repeats * again
        estimate = max(0.0, once if len(trials) <= 2 else max(estimate, once))
        if trials[0].comparison is None:
            skipped += [Skipped(p, "the candidate did not run at all") for p in plan.trials[len(trials) :]]
            break
        if plan.stop_at_failure and result.gates and not result.passed:
            tried = len(trials) + len(skipped)
            skipped += [Skipped(p, "a trial before it failed") for p in plan.trials[tried:]]
            break
        if "separate" in result.kinds:
            tried = len(trials) + len(skipped)
            skipped += [Skipped(p, "eager and float64 are not one computation") for p in plan.trials[tried:]]
            break
    original.apply(model)
    skipped += checks.skipped
    before = begun.seconds if begun is not None else 0.0
    return _certificate(plan, trials, skipped, original, state_problems, checks.together(), why, started - before)


def _run(bench: Bench, plan: Plan, trial: TrialPlan, repeats: int, may_lack: bool) -> Trial | Refused:
    """Run a trial; where memory runs out, what was kept is let go. may_lack: whether a trial may be left out for that.

    With ``plan.must_fit`` a candidate is tried again then, and is to run. Raises what `is_out_of_memory` accepts.
    """
    gates, refused = trial.distribution not in plan.informative, Refused("")
    for turn in (1, 2):
        try:
            return bench.run(trial, repeats=repeats, gates=gates)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            bench.kept.forget()
            release()
            by_candidate = isinstance(error, CandidateLacksMemory)
            if not may_lack or (by_candidate and plan.must_fit and turn == 2):
                raise (error.__cause__ or error) if by_candidate else error from None
            refused = Refused(f"not enough memory: {first_line(error)}")
        if not (by_candidate and plan.must_fit):
            break
    return refused


def _state_problems(model: nn.Module, candidate: nn.Module, original: State) -> tuple[str, ...]:
    """Say what keeps the model's state_dict from loading into the candidate and back."""
    problems = list(original.apply(candidate))
    mine, theirs = set(model.state_dict()), set(candidate.state_dict())
    problems += [f"{name} is not in the candidate's state_dict" for name in sorted(mine - theirs)]
    problems += [f"{name} is not in the model's state_dict" for name in sorted(theirs - mine)]
    return tuple(dict.fromkeys(problems))


def _certificate(
    plan: Plan,
    trials: list[Trial],
    skipped: list[Skipped],
    original: State | None,
    state_problems: tuple[str, ...],
    gradients: Comparison | None,
    why: list[str],
    started: float,
) -> Certificate:
    gating = [trial for trial in trials if trial.gates]
    for trial in gating:
        if not trial.passed:
            parts = list(trial.problems)
            for comparison in (trial.comparison, trial.against_eager, trial.state):
                if comparison is not None and not comparison.passed:
                    parts.append(comparison.sentence())
            # Of what differs from eager by more than the tolerance eager itself may be the cause.
            against = f" (against {trial.reference})" if trial.reference.startswith(STRICT) else ""
            why.append(f"With {trial.plan.words()}{against}: " + "; ".join(parts))
    if not gating and not why:
        reasons = "; ".join(dict.fromkeys(s.why for s in skipped)) or "no trial was planned"
        why.append(f"no trial could run: {reasons}.")
    if gradients is not None and not gradients.passed:
        why.append("Gradients: " + gradients.sentence())
    separate = next((p for t in trials for p, kind in zip(t.problems, t.kinds, strict=True) if kind == "separate"), "")
    if separate and not why:  # in a trial that decides nothing else
        why.append(f"{separate}.")
    outputs = [o for t in gating if t.comparison is not None and not DISTRIBUTIONS[t.plan.distribution].costs_digits
               for o in t.comparison.outputs]
    # Trials in which eager itself has no digits say nothing about anybody's error.
    telling = [o for o in outputs if not o.is_noise and o.reference_rms]
    verdicts = [trial.deterministic for trial in trials if trial.deterministic is not None]
    return Certificate(
        passed=not why,
        why=tuple(why),
        trials=tuple(trials),
        skipped=tuple(skipped),
        deterministic=all(verdicts) if verdicts else None,
        uses_randomness=any(trial.uses_randomness for trial in trials),
        state_copied=not state_problems,
        state_problems=state_problems,
        sampled=any(trial.against_eager is not None for trial in trials),
        gradients=gradients,
        candidate_error=max((o.relative for o in telling), default=0.0),
        eager_error=max((o.eager_relative for o in telling), default=0.0),
        seconds=clock() - started,
        budget_seconds=plan.budget_seconds,
        environment=_environment(original),
        recording=plan.recording,
        separate=separate,
    )


def _environment(original: State | None) -> dict[str, str]:
    states = list(original.parameters.values()) if original else []
    cuda = any(t.is_cuda for t in states)
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
    }
    if cuda:
        facts["device"] = torch.cuda.get_device_name(states[0].device)
        facts["cudnn.allow_tf32"] = str(torch.backends.cudnn.allow_tf32)
    return facts
