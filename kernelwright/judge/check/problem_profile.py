"""The problem profile: what must be known of a problem before a candidate is judged on it, found on the model alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernelwright.device_lock import clock
from kernelwright.judge.check.facts import (
    Roof,
    TensorFacts,
    captured,
    eager_errors_by_tf32,
    find_effects,
    find_roof,
    parameters_without_effect,
    tensor_facts,
    unused_inputs,
)
from kernelwright.judge.check.probes import ENOUGH, PARTIAL, TRIVIAL, Probed, judged_trials, needed_trials, run_probes
from kernelwright.judge.check.remembered import Remembered, find_remembered
from kernelwright.problem import Problem, run_forward
from kernelwright.problem.state import in_mode_of
from kernelwright.verify.along.trials import along_trials
from kernelwright.verify.certificate import Plan
from kernelwright.verify.kept import Kept
from kernelwright.verify.plain import plain
from kernelwright.verify.records import TrialPlan
from kernelwright.verify.state import State, float64_copy, to_float64
from kernelwright.verify.trial import Bench

#: Distributions on which much is wrong that is right on usual inputs: an exponential without its maximum overflows on
#: large ones, a wrong epsilon shows on small ones, and a NaN that is swallowed where there is one.
UNUSUAL_VALUES = ("large", "small", "with NaN")
#: Float64 is left out where one call of the model takes this share of the budget.
_FLOAT64_SHARE = 0.05
#: Shares of the budget after which probes, and then parameters one by one, are given up.
_PROBES_SHARE, _PARAMETERS_SHARE = 0.7, 0.8


@dataclass(frozen=True, slots=True)
class ProblemProfile:
    """What is known of a problem.

    ``stateful`` names buffers, parameters and plain attributes that a call changes; ``changed_inputs`` and
    ``unused_inputs`` are positions. ``random``: it draws random numbers; ``random_by_values``: how many depends on
    values. ``without_effect`` names parameters of which other values change nothing beyond the tolerance on the
    problem's own inputs (None: there was no time to see). ``eager_error``: eager's worst relative error
    (rms(error)/rms(float64)) on the problem's own inputs, "as set", and on a GPU with "tf32 on" and "tf32 off".

    ``telling`` names the trials in which every candidate that does not compute is refused for finite values,
    ``varying`` the distributions of which a stored result of another draw is refused: a clock's inputs. ``needed``
    are the trials that a candidate's check must not leave out. ``trivial`` names the probes (zeros, constant,
    identity, replay) that passed every trial, ``partial`` those that look at parameters only (blind) or at inputs
    only (frozen) and passed every trial. ``complete``: no trial was left out for want of time.
    ``placed`` are the trials for what the model does along an axis, ``remembered`` what those of states show.
    """

    problem: str
    device: str
    seed: int
    training: bool
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    deterministic: bool
    random: bool
    random_by_values: bool | None
    stateful: tuple[str, ...]
    changed_inputs: tuple[int, ...]
    unused_inputs: tuple[int, ...]
    parameters: int
    without_effect: tuple[str, ...] | None
    roof: Roof
    eager_seconds: float
    eager_error: dict[str, float]
    probes: tuple[Probed, ...]
    telling: tuple[str, ...]
    varying: tuple[str, ...]
    needed: tuple[TrialPlan, ...]
    trivial: tuple[str, ...]
    partial: tuple[str, ...]
    complete: bool
    placed: tuple[TrialPlan, ...]
    remembered: tuple[Remembered, ...]
    words: tuple[str, ...]
    seconds: float

    @property
    def floor_seconds(self) -> float:
        """The time that no version can beat, by the roofline."""
        return self.roof.floor_seconds

    def error_on(self, distribution: str) -> float | None:
        """Eager's worst relative error on inputs of a distribution with the parameters of construction, where known."""
        return next((p.eager_error for p in self.probes if p.plan.distribution == distribution and not p.redrawn), None)

    @property
    def is_trivial(self) -> bool:
        """Whether PROBLEM-TRIVIAL holds: a candidate that does not compute passes as many trials as that takes, and no
        state tells it, either."""
        return bool(self.trivial) and not self.stateful and (self.complete or len(self.probes) >= ENOUGH)

    @property
    def rests_on(self) -> str:
        """The trials that were probed, in words."""
        names = [p.name for p in self.probes]
        listed = ", ".join(f"{name} ({names.count(name)} times)" if names.count(name) > 1 else name
                           for name in dict.fromkeys(names))
        return f"{len(names)} trial{'s' * (len(names) != 1)} of the model ({listed})"

    @property
    def doubt(self) -> str:
        """What limits a verdict where a candidate that does not compute passed all trials that there were, too few for
        `is_trivial`; else empty."""
        if not self.trivial or self.stateful or self.is_trivial:
            return ""
        return f"{_listed(TRIVIAL[n] for n in self.trivial)} would pass as well in {self.rests_on}, too few to say more"

    @property
    def forgets(self) -> str:
        """What limits a verdict where on no inputs it shows what stood half of the steps before, though the model hands
        on a state; else empty."""
        if not self.remembered or any(r.is_long for r in self.remembered):
            return ""
        best = max(self.remembered, key=lambda r: (r.reach, r.influence))
        return (f"not tried whether it remembers what stood more than {best.reach} of {best.steps} steps before: on no "
                "inputs and parameters that were tried the model does")

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return plain(self)


def make_profile(problem: Problem, seed: int, budget_seconds: float, plan: Plan | None = None,
                 kept: Kept | None = None) -> ProblemProfile:
    """Look at a problem's model for about ``budget_seconds``. ``plan`` holds the tolerances of the judgement; what the
    model gave in trials goes into ``kept``, for the checks of candidates.

    Raises ForwardRaised (KW114) where the model fails on its own inputs, and what making model and inputs raises.
    """
    started, plan = clock(), plan or Plan()
    devices = list(range(torch.cuda.device_count())) if problem.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        return _profile(problem, seed, budget_seconds, plan, kept or Kept(), started)


def trials(profile: ProblemProfile) -> tuple[TrialPlan, ...]:
    """The trials of a candidate's check: one on the problem's own inputs first, then those that tell, then those of
    unusual values, then the others in their usual order. The first ``required(profile)`` must run whatever the budget.
    """
    first = _first(profile)
    return first + tuple(t for t in (*profile.placed, *judged_trials(profile.seed)) if t not in first)


def required(profile: ProblemProfile) -> int:
    """How many of `trials` no budget may leave out (`Plan.required`): at least two, as the first result of a candidate
    that replays it is right."""
    usual = judged_trials(profile.seed)[0]
    return max(2, len(dict.fromkeys((usual, *profile.needed, *_of_memory(profile)))))


def wanted(profile: ProblemProfile) -> int:
    """How many of `trials` run until three times the budget (`Plan.wanted`): on a machine that others use the budget is
    soon over, and what is wrong must not depend on that."""
    first = _first(profile)
    return max(required(profile), len(first) + sum(t not in first for t in profile.placed))


def _first(profile: ProblemProfile) -> tuple[TrialPlan, ...]:
    usual = judged_trials(profile.seed)
    front = dict.fromkeys((usual[0], *profile.needed, *_of_memory(profile)))
    unusual = sorted((t for t in usual if t.distribution in UNUSUAL_VALUES),
                     key=lambda t: UNUSUAL_VALUES.index(t.distribution))
    return tuple(dict.fromkeys((*front, *unusual)))


def _of_memory(profile: ProblemProfile) -> tuple[TrialPlan, ...]:
    """The trial in which most shows of what stood far before, and its pair."""
    seen = [r for r in profile.remembered if r.reach]
    if not seen:
        return ()
    best = max(seen, key=lambda r: (r.reach, r.influence)).plan
    return tuple(t for t in profile.placed if t == best or (
        t.distribution == "quiet" and (t.seed, t.along, t.opened) == (best.seed, best.along, best.opened)))


def _profile(problem: Problem, seed: int, budget: float, plan: Plan, kept: Kept, started: float) -> ProblemProfile:
    run_forward(problem, problem.make_model(seed), problem.make_inputs(seed))  # raises what is wrong with the problem
    model = problem.make_model(seed)
    effects = find_effects(problem, model, seed)
    double = None
    if effects.seconds < _FLOAT64_SHARE * budget:
        try:
            double = (float64_copy(model) if problem.is_instance
                      else to_float64(in_mode_of(problem.make_model(seed), model)))
        except Exception:  # a model that cannot be copied: strict float32 is the reference, and the probes say so
            double = None
    bench = Bench(model, model, double, State.of(model), problem.make_inputs, plan.tolerance,
                  plan.tolerance_for("normal"), False, None, False, kept=kept)
    probes, complete = run_probes(problem, bench, plan, judged_trials(seed),
                                  _PROBES_SHARE * budget - (clock() - started))
    unused = unused_inputs(problem, bench, effects.outputs, seed) if effects.deterministic else ()
    left = _PARAMETERS_SHARE * budget - (clock() - started)
    idle = (parameters_without_effect(problem, bench, plan, effects.outputs, seed, left) if effects.deterministic
            else None)
    graph = captured(problem, model, seed)
    placed = () if isinstance(graph, Exception) else along_trials(graph, model, problem.make_inputs(seed), seed)
    remembered = () if isinstance(graph, Exception) else find_remembered(problem, bench, plan, placed, graph)
    errors = {"as set": probes[0].eager_error} if probes else {}
    errors |= eager_errors_by_tf32(problem, bench, plan, seed)
    refused = {name for p in probes for name in p.refused}
    passed = {name for p in probes for name in p.passed} - refused
    profile = ProblemProfile(
        problem=problem.name, device=str(problem.device), seed=seed, training=model.training,
        inputs=tensor_facts(problem.make_inputs(seed), "input"), outputs=tensor_facts(effects.outputs, "output"),
        deterministic=effects.deterministic, random=effects.random, random_by_values=effects.random_by_values,
        stateful=effects.stateful, changed_inputs=effects.changed_inputs, unused_inputs=unused,
        parameters=sum(p.numel() for p in model.parameters()), without_effect=idle,
        roof=find_roof(problem, model, graph, effects.outputs, seed, (*unused, *(idle or ()))),
        eager_seconds=effects.seconds, eager_error=errors, probes=probes,
        telling=tuple(dict.fromkeys(p.name for p in probes if p.telling)),
        varying=tuple(dict.fromkeys(p.plan.distribution for p in probes
                                    if "blind" in p.refused and not p.redrawn)),
        needed=needed_trials(probes), trivial=tuple(n for n in TRIVIAL if n in passed),
        partial=tuple(n for n in PARTIAL if n in passed), complete=complete, placed=placed,
        remembered=remembered, words=(), seconds=0.0)
    return replace(profile, words=_words(profile), seconds=clock() - started)


def _words(profile: ProblemProfile) -> tuple[str, ...]:
    said = []
    own = profile.probes[0] if profile.probes else None
    weak = [n for n in TRIVIAL if own is not None and n in own.passed]
    tried = "" if profile.complete else ", as far as there was time to try"
    if profile.is_trivial:
        said.append(f"No inputs tell a right candidate from one that returns "
                    f"{_listed(TRIVIAL[n] for n in profile.trivial)}: this passed all of {profile.rests_on}.")
    elif profile.doubt:
        said.append(f"{profile.doubt[:1].upper()}{profile.doubt[1:]}.")
    elif profile.trivial:
        said.append(f"The outputs do not tell a right candidate from one that returns "
                    f"{_listed(TRIVIAL[n] for n in profile.trivial)}; the state that a call changes does.")
    elif weak:
        said.append(f"On the problem's own inputs a candidate passes that returns {_listed(TRIVIAL[n] for n in weak)}; "
                    f"it is refused with {_listed(profile.telling[:3]) or 'other trials'}.")
    if "blind" in profile.partial and "replay" not in profile.trivial:
        said.append(f"The outputs do not depend on the inputs' values in any trial{tried}: a candidate that follows "
                    "the parameters alone is right.")
    elif own is not None and "blind" in own.passed and "replay" not in weak:
        said.append("On the problem's own inputs the outputs hardly depend on the inputs' values.")
    if "frozen" in profile.partial:
        said.append(f"Other parameters do not change the outputs in any trial{tried}.")
    elif profile.without_effect:
        names = _listed(profile.without_effect[:5])
        said.append(f"On the problem's own inputs other values of {names} change nothing.")
    if profile.unused_inputs:
        said.append("Not used: " + _listed(f"input {i}" for i in profile.unused_inputs) + ".")
    if profile.remembered:
        best = max(profile.remembered, key=lambda r: (r.reach, r.influence))
        said.append(f"{best.words}.")
    if profile.random:
        how = ", as many as the inputs' values decide" if profile.random_by_values else ""
        said.append(f"The model draws random numbers{how}.")
    if not profile.deterministic:
        said.append("The model gives other bits when called again with the same inputs, state and random numbers.")
    if profile.stateful:
        said.append(f"A call changes {_listed(profile.stateful[:5])}.")
    if profile.changed_inputs:
        said.append("A call changes " + _listed(f"input {i}" for i in profile.changed_inputs) + ".")
    return tuple(said)


def _listed(items: Iterable[str]) -> str:
    items = list(items)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " or " + items[-1] if items else ""
