"""One trial: the model, its float64 copy and the candidate on the same inputs, state and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from kernelwright.device_lock import clock
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.problem.state import classes_of
from kernelwright.verify.choices import CHOSEN, decided_otherwise, may_be_chosen, with_choices_of
from kernelwright.verify.compare import compare, compare_changed, compare_with_eager
from kernelwright.verify.computation import settled
from kernelwright.verify.distributions import AS_GIVEN, DISTRIBUTIONS
from kernelwright.verify.drawn import inputs_of, set_state
from kernelwright.verify.flatten import clone_tensors, tensors_of
from kernelwright.verify.form import differences, forms
from kernelwright.verify.kept import ByModel, Kept
from kernelwright.verify.memory import differ_by_poison, poison_before, poisoned_empty
from kernelwright.verify.observe import (
    Called,
    call,
    changed_inputs,
    changed_parameters,
    equal_states,
    first_line,
    identical,
    random_state,
    returns_own_state,
    seed_all,
    shares_memory,
)
from kernelwright.verify.records import CandidateLacksMemory, Comparison, Expected, Reference, Refused, Trial, TrialPlan
from kernelwright.verify.reference import FLOAT64, SAME_COMPUTATION, STRICT, UNCHANGED, reference_of
from kernelwright.verify.sampling import batched_inputs, sampled_entries, take
from kernelwright.verify.sensitivity import STANDS_IN, WIDENED, Moved, drawn, may_be_rounding, move, while_memory_lasts
from kernelwright.verify.state import State, apart
from kernelwright.verify.ties import chosen_otherwise, has_wrong_signs, with_signs_of
from kernelwright.verify.tolerance import Tolerance


@dataclass
class _Calls:
    """What the candidate's calls showed. ``first`` is the first call, if it gave outputs; ``inputs`` are its arguments,
    ``state`` the candidate's buffers and plain tensor attributes after it. ``problems`` are kinds by sentence."""

    first: Called | None = None
    inputs: Any = None
    state: dict[str, Any] = field(default_factory=dict)
    deterministic: bool | None = None
    repeat_seconds: float | None = None
    problems: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass
class Bench:
    """The three modules of a certification and what is needed to run trials on them.

    ``original`` is the model's state after construction; ``double`` is None where the model cannot be copied
    to float64. ``kept`` is what earlier candidates' trials have left. ``recording``: calls record gradients.
    ``lenient`` names kinds of problems that are noted and decide nothing.
    """

    eager: nn.Module
    candidate: nn.Module
    double: nn.Module | None
    original: State
    make_inputs: Callable[[int], Sequence[Any]]
    given_tolerance: Tolerance
    derived_tolerance: Tolerance
    sample_axis0: bool
    batched_arguments: tuple[bool, ...] | None
    poison: bool
    unchanged: bool = False
    kept: Kept = field(default_factory=Kept)
    recording: bool = False
    lenient: frozenset[str] = frozenset()

    def run(self, plan: TrialPlan, *, repeats: int, gates: bool) -> Trial | Refused:
        """Run one trial with ``repeats`` further candidate calls that must give the same bits."""
        started = clock()
        self._into_state_of(plan)
        unfit = State.of(self.eager, owned=False).apply(self.candidate) if plan.changes_parameters else ()
        if unfit:
            return Refused("changed parameters cannot be copied by name: " + "; ".join(unfit[:3]))
        State.of(self.eager, owned=False).apply(self.candidate)
        model = self._by_model(plan)
        if model.called.error is not None:
            return self._both_raise(plan, model, gates, started)
        calls = self._call_candidate(plan, model, repeats)
        problems, first = calls.problems, calls.first
        comparison = against_eager = state_comparison = None
        reference = "none"
        if first is not None:
            comparison, against_eager, state_comparison, reference, more = self._judge(plan, model, first, calls)
            problems |= more
        noted = {problem: kind for problem, kind in problems.items() if kind in self.lenient}
        calls.notes += noted
        problems = {problem: kind for problem, kind in problems.items() if kind not in self.lenient}
        passed = not problems and all(
            c is None or c.passed for c in (comparison, against_eager, state_comparison)
        )
        return Trial(
            plan,
            passed and comparison is not None,
            gates,
            tuple(problems),
            tuple(dict.fromkeys(calls.notes)),
            reference,
            comparison,
            against_eager,
            state_comparison,
            calls.deterministic,
            model.uses_randomness,
            clock() - started,
            model.called.seconds,
            first.seconds if first else 0.0,
            calls.repeat_seconds,
            tuple(problems.values()),
            tuple(noted.values()),
        )

    def look_ahead(self, plan: TrialPlan) -> None:
        """Find and keep the truth about a trial before there is a candidate that is held against it."""
        self._into_state_of(plan)
        model = self._by_model(plan)
        if model.called.error is None:
            self._truth(plan, model, self._entries(plan, model))

    def _into_state_of(self, plan: TrialPlan) -> None:
        """Put the model into the state in which a trial calls it."""
        set_state(self.eager, self.original, plan, self.make_inputs, self.kept.carries)

    def _both_raise(self, plan: TrialPlan, model: ByModel, gates: bool, started: float) -> Trial | Refused:
        """A trial on inputs on which the model raises: so must the candidate, an exception of the same class."""
        why = f"the model itself fails on these inputs: {model.called.error}"
        if "does-not-raise" in self.lenient or self.unchanged:
            return Refused(why)
        model.before.apply(self.candidate)
        seed_all(plan.seed)
        called = call(self.candidate, clone_tensors(model.inputs), recording=self.recording)
        if called.raised == model.called.raised:
            return Refused(f"{why}, as does the candidate")
        problem = f"the model raises {model.called.error}, the candidate " + (
            f"raises {called.error}" if called.error is not None else "does not")
        return Trial(plan, False, gates, (problem,), (), "none", None, None, None, None, False, clock() - started,
                     model.called.seconds, called.seconds, None, ("does-not-raise",))

    def _call_candidate(self, plan: TrialPlan, model: ByModel, repeats: int) -> _Calls:
        """Call the candidate as the model was called, and ``repeats`` times more."""
        inputs, by_eager = model.inputs, model.called
        calls = _Calls()
        problems, notes = calls.problems, calls.notes
        # A model that builds parts in its first call may compute another way from then on, and so may the candidate.
        built = self.kept.classes is not None and classes_of(self.eager) != self.kept.classes
        earlier = None
        for turn in range(1 + repeats):
            model.before.apply(self.candidate)
            own = clone_tensors(inputs)
            if self.poison:
                poison_before(self.candidate, tensors_of(by_eager.outputs), finite=turn == 2)
            seed_all(plan.seed)
            # The first repeats also fill what is allocated during the call.
            try:
                with poisoned_empty(finite=turn == 2) if self.poison and turn in (1, 2) else nullcontext():
                    called = call(self.candidate, own, recording=self.recording)
            except Exception as error:
                if is_out_of_memory(error):
                    raise CandidateLacksMemory(first_line(error)) from error
                raise
            if called.error is not None:
                when = "" if turn == 0 else f" (call {turn + 1} of the same inputs)"
                problems[f"the candidate raises{when} {called.error}"] = "raises"
                break
            first = calls.first
            if first is None:
                calls.first, calls.inputs = called, own
                earlier = called
                random_own = random_state()
                if not model.uses_randomness and not equal_states(model.random_before, random_own):
                    problems["the candidate changes PyTorch's random state, the model does not"] = "random-state"
                elif model.uses_randomness and not equal_states(model.random_after, random_own):
                    problems["the random state after the call is not the model's"] = "random-state-after"
                problems |= differences(forms(called.outputs, own, self.candidate, model.changed), model.forms)
                problems |= dict.fromkeys(changed_parameters(self.eager, self.candidate), "parameter-changed")
                problems |= dict.fromkeys(changed_inputs(inputs, model.arguments, own), "input-changed")
                calls.state = State.of(self.candidate, parameters=False).tracked()
                notes += called.notes
                continue
            calls.repeat_seconds = called.seconds
            if earlier is None or (turn == 1 and built):
                earlier = called
                continue
            same = identical(earlier.outputs, called.outputs)
            calls.deterministic = same and calls.deterministic is not False
            if not same:
                found, kind = "a repeated call gives other bits", "nondeterministic"
                if self.poison and (turn == 1 or differ_by_poison(earlier.outputs, called.outputs)):
                    found, kind = "a repeated call on poisoned memory gives other bits", "poisoned"
                # A library's call that eager makes as well may add in any order.
                if self._eager_varies(plan, model):
                    notes.append(found + ", as eager does")
                else:
                    problems[found] = kind
            if shares_memory(earlier.outputs, called.outputs) and not returns_own_state(self.eager, by_eager):
                problems["every call returns the same memory, so an earlier result is overwritten"] = "shared-memory"
            del called  # before the next call
        return calls

    def expect(
        self,
        inputs: Sequence[Any],
        seed: int,
        *,
        keep_as: TrialPlan | None = None,
        like: TrialPlan | None = None,
        extreme: bool = False,
    ) -> Expected | Refused:
        """What the model in its present state gives for ``inputs`` under ``seed``; its state goes on from there.

        ``keep_as`` is the trial that this is, so that it need not be made again. ``like`` is the trial of the same
        inputs, seed and state: where its float64 results were kept, they are the reference. ``extreme`` is that of the
        inputs' distribution.
        """
        before = State.of(self.eager, parameters=False)
        arguments = clone_tensors(list(inputs))
        random_before = seed_all(seed)
        called = call(self.eager, arguments, recording=self.recording)
        if called.error is not None:
            return Refused(f"the model itself fails on these inputs: {called.error}")
        made = self._called(list(inputs), before, arguments, called, random_before)
        state = State.of(self.eager, parameters=False).tracked()
        known = self.kept.trials.get(like) if like is not None else None
        if known is not None and known.reference is not None and known.reference.words == FLOAT64:
            reference = known.reference
        else:
            reference = self._reference(made, seed, None, extreme)
        made.reference = reference
        if keep_as is not None and self.double is not None:
            self.kept.keep(keep_as, made, self.eager)
        return Expected(apart(called.outputs, self.eager), reference, made.uses_randomness, before, state, arguments,
                        called.seconds)

    def _by_model(self, plan: TrialPlan) -> ByModel:
        """The model's call of a trial, in the state that it is in; or the kept one."""
        if plan in self.kept.trials:
            return self.kept.trials[plan]
        inputs = inputs_of(plan, self.make_inputs)
        before = State.of(self.eager, parameters=False)
        arguments = clone_tensors(inputs)
        random_before = seed_all(plan.seed)
        called = call(self.eager, arguments, recording=self.recording)
        return self._called(inputs, before, arguments, called, random_before)

    def _called(self, inputs: list[Any], before: State, arguments: list[Any], called: Called,
                random_before: list[torch.Tensor]) -> ByModel:
        """What the model's call has shown, right after it."""
        drawn, after = random_state(), State.of(self.eager, parameters=False, owned=False)
        changed = tuple(name for name, value in after.attributes.items()
                        if name not in before.attributes or not identical(before.attributes[name], value))
        self.kept.carries = self.kept.carries or bool(changed)
        return ByModel(inputs, before, arguments, called, random_before, drawn,
                       forms=forms(called.outputs, arguments, self.eager, changed), changed=changed)

    def _eager_varies(self, plan: TrialPlan, model: ByModel) -> bool:
        """Whether the model itself gives other bits in one of a few further calls."""
        after = State.of(self.eager, parameters=False)
        varies = False
        for _ in range(3):
            model.before.apply(self.eager)
            seed_all(plan.seed)
            again = call(self.eager, clone_tensors(model.inputs), recording=self.recording)
            varies = again.error is None and not identical(model.called.outputs, again.outputs)
            if varies:
                break
        after.apply(self.eager)
        return varies

    def _entries(self, plan: TrialPlan, model: ByModel) -> torch.Tensor | None:
        """The batch entries that float64 runs; None for all."""
        if not self.sample_axis0:
            return None
        batched = batched_inputs(model.inputs, self.batched_arguments)
        return sampled_entries(model.inputs, batched, model.called.outputs, plan.seed)

    def _truth(self, plan: TrialPlan, model: ByModel, entries: torch.Tensor | None) -> Reference:
        """What is held to be true of the model's call of a trial, after which its state is still as the call left it;
        kept for other candidates, and for the other gradient mode where that gives the same bits. Of a candidate that
        is the original computation only what the model gave is kept: others are held to float64."""
        if self.unchanged:
            self.kept.keep(plan, model, self.eager)
            return self._reference(model, plan.seed, entries, False)
        if model.reference is None:
            given = [model.called.outputs, State.of(self.eager, parameters=False).tracked(), model.arguments]
            model.reference = self.kept.truth(plan, given) or self._reference(
                model, plan.seed, entries, DISTRIBUTIONS[plan.distribution].extreme)
            self.kept.keep_truth(plan, given, model, self.eager)
            self.kept.keep(plan, model, self.eager)
        return model.reference

    def _reference(self, model: ByModel, seed: int, entries: torch.Tensor | None, extreme: bool) -> Reference:
        outputs = model.called.outputs
        if self.unchanged:
            return Reference(outputs if entries is None else take(outputs, entries), UNCHANGED)
        batched = batched_inputs(model.inputs, self.batched_arguments)
        return reference_of(model, self.eager, self.double, seed, entries, batched, self.kept.without_double,
                            kept=self.kept, recording=self.recording, extreme=extreme)

    def _judge(
        self, plan: TrialPlan, model: ByModel, first: Called, calls: _Calls
    ) -> tuple[Comparison, Comparison | None, Comparison | None, str, dict[str, str]]:
        """The comparisons of outputs, of all of them with eager's, and of the state; the reference; problems."""
        problems: dict[str, str] = {}
        inputs, arguments, by_eager = model.inputs, model.arguments, model.called
        tolerance = self.given_tolerance if plan.distribution == AS_GIVEN else self.derived_tolerance
        eager_state = State.of(self.eager, parameters=False).tracked()
        entries = self._entries(plan, model)
        reference = self._truth(plan, model, entries)
        # State: buffers, plain attributes and those inputs that the model changes.
        wanted: dict[str, Any] = {}
        before = model.before.tracked()
        for name, value in eager_state.items():
            if name in calls.state:
                wanted[name] = value
            elif not identical(before.get(name, self.kept.left.setdefault(name, value)), value):
                # What is the same after every call, and was not there before the first one, is a cache.
                problems[f"the model updates {name}, the candidate does not have it"] = "state-missing"
        got = {name: calls.state[name] for name in wanted}
        expected = {name: (reference.state or {}).get(name, value) for name, value in wanted.items()}
        for index, (given, after) in enumerate(zip(inputs, arguments, strict=True)):
            if not identical(given, after):
                wanted[f"input {index}"], got[f"input {index}"] = after, calls.inputs[index]
                expected[f"input {index}"] = after if reference.inputs is None else reference.inputs[index]

        def part(outputs: Any) -> Any:
            return outputs if entries is None else take(outputs, entries)

        own, right, exact = part(first.outputs), part(by_eager.outputs), reference.outputs
        all_own, full = first.outputs, by_eager.outputs
        if reference.lost:
            own, right, exact = settled(own, right, exact)
            all_own, full, _ = (all_own, full, None) if entries is None else settled(all_own, full)
            got, wanted, expected = settled(got, wanted, expected)

        # Where eager's state is the truth about itself nobody knows which of its zeros are numbers that its type lost.
        lost = tolerance.zeros == "sums" and reference.state is None
        of_state = replace(tolerance, zeros="any") if lost else tolerance

        def compared(moved: Moved) -> tuple[Comparison, Comparison | None, Comparison | None]:
            sample = compare(own, right, exact, tolerance=tolerance, moved=moved.outputs)
            whole = state = None
            if entries is not None:
                whole = compare_with_eager(all_own, full, sample, tolerance=tolerance)
            if wanted:
                state = compare_changed(got, wanted, expected, tolerance=of_state, root="state", moved=moved.state)
            return sample, whole, state

        found = compared(Moved())
        by_eager = reference.words.startswith(STRICT)
        if has_wrong_signs(*found) and not self.unchanged:
            others = chosen_otherwise(self.eager, inputs, model.before, plan.seed, self.recording)
            right, full = with_signs_of(own, right, [part(o) for o in others]), with_signs_of(all_own, full, others)
            found = compared(Moved())
        if by_eager and may_be_rounding(tolerance, *found, by_eager=True):
            draws = drawn(self.eager, inputs, model.before, plan.seed, range(1), self.recording)
            for draw in while_memory_lasts(draws):
                right, full = part(draw.outputs), draw.outputs
                found = compared(Moved())
                calls.notes.append(STANDS_IN)
        if may_be_rounding(tolerance, *found) and not self.unchanged:
            again = compared(move(self.eager, inputs, model.before, plan.seed, right, reference._replace(outputs=exact),
                                  tolerance, part, recording=self.recording))
            if all(c is None or c.passed for c in again):
                found = again
                calls.notes.append(WIDENED)
        if may_be_chosen(*found) and not self.unchanged:
            others = decided_otherwise(self.eager, inputs, model.before, plan.seed, self.recording)
            own = with_choices_of(own, right, [part(o) for o in others], tolerance, found[0])
            all_own = with_choices_of(all_own, full, others, tolerance, found[1] or found[0])
            again = compared(Moved())
            if may_be_rounding(tolerance, *again):
                again = compared(move(self.eager, inputs, model.before, plan.seed, right,
                                      reference._replace(outputs=exact), tolerance, part, recording=self.recording))
            if all(c is None or c.passed for c in again):
                found = again
                calls.notes.append(CHOSEN)
        if reference.separate:
            problems[f"PyTorch gives here something else than the model in float64: {reference.separate}"] = "separate"
        if reference.other is not None and not found[0].passed and compare(
                part(first.outputs), part(first.outputs), reference.other,
                tolerance=replace(self.given_tolerance, multiple=0.0)).passed:
            problems["the candidate gives what the model gives in float64, and not what PyTorch gives for the model: "
                     "the two are not one computation here"] = "other-computation"
        if entries is not None and any(
            o.eager_relative > SAME_COMPUTATION and o.reference_rms > 1e-12 for o in found[0].outputs
        ):
            problems[
                "the model's own entries differ from the same entries computed alone: outputs do not "
                "depend on each entry of axis 0 separately, so sampling proves nothing"
            ] = "sampling"
        return *found, reference.words, problems
