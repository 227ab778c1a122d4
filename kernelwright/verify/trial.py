"""One trial: the model, its float64 copy and the candidate on the same inputs, state and random numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kernelwright.timing.turns import clock
from kernelwright.verify.compare import Comparison, Tolerance, compare, compare_with_eager
from kernelwright.verify.distributions import AS_GIVEN, DISTRIBUTIONS
from kernelwright.verify.flatten import clone_tensors, map_tensors, tensors_of
from kernelwright.verify.kept import ByModel, Kept
from kernelwright.verify.memory import poison_before, poisoned_empty
from kernelwright.verify.observe import (
    Called,
    aliases,
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
    without_tf32,
)
from kernelwright.verify.state import State, call_in_float64, redraw, widened

#: An eager result further than this from float64 (relative) means that the two did not compute the same.
SAME_COMPUTATION = 0.05
#: The usual reference, and that of a candidate that is the original computation.
FLOAT64 = "float64"
UNCHANGED = "eager itself: nothing is replaced"


@dataclass(frozen=True)
class TrialPlan:
    """Which inputs and parameters a trial uses; ``distribution`` names an entry of `DISTRIBUTIONS`."""

    seed: int
    distribution: str = AS_GIVEN
    redrawn_parameters: bool = False

    def words(self) -> str:
        """Describe the trial."""
        return f"seed {self.seed}, {self.distribution}" + (
            ", other parameters" if self.redrawn_parameters else ""
        )


@dataclass(frozen=True)
class Trial:
    """What one trial found.

    ``comparison`` is against ``reference``; ``against_eager`` covers the whole output where float64 covered
    sampled entries only; ``state`` compares buffers, plain tensor attributes and inputs that the model
    changes. Times in seconds; ``repeat_seconds`` is the last repeated candidate call, whose first one may
    include a build. ``kinds`` has a name for each problem, in their order: raises, random-state, alias,
    parameter-changed, input-changed, poisoned (other bits on poisoned memory), nondeterministic, shared-memory,
    sampling or state-missing.
    """

    plan: TrialPlan
    passed: bool
    gates: bool
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    reference: str
    comparison: Comparison | None
    against_eager: Comparison | None
    state: Comparison | None
    deterministic: bool | None
    uses_randomness: bool
    seconds: float
    eager_seconds: float
    candidate_seconds: float
    repeat_seconds: float | None
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """The model itself could not run on these inputs, so there is nothing to compare with."""

    why: str


@dataclass(frozen=True)
class Expected:
    """What the model gave for some inputs: its outputs as PyTorch runs it, and the ``reference``, of which ``words``
    say what it is. ``state`` are buffers and plain tensor attributes after the call, ``inputs`` the arguments."""

    outputs: Any
    reference: Any
    words: str
    uses_randomness: bool
    state: dict[str, Any]
    inputs: Sequence[Any]
    seconds: float


@dataclass
class Bench:
    """The three modules of a certification and what is needed to run trials on them.

    ``original`` is the model's state after construction; ``double`` is None where the model cannot be copied
    to float64. ``kept`` is what earlier candidates' trials have left.
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

    def run(self, plan: TrialPlan, *, repeats: int, gates: bool) -> Trial | Refused:
        """Run one trial with ``repeats`` further candidate calls that must give the same bits."""
        started = clock()
        self.original.apply(self.eager)
        if plan.redrawn_parameters:
            redraw(self.eager, plan.seed)
        unfit = State.of(self.eager, owned=False).apply(self.candidate) if plan.redrawn_parameters else ()
        if unfit:
            return Refused("changed parameters cannot be copied by name: " + "; ".join(unfit[:3]))
        problems: dict[str, str] = {}  # kind by sentence
        State.of(self.eager, owned=False).apply(self.candidate)
        model = self._by_model(plan)
        inputs, before, arguments, by_eager = model.inputs, model.before, model.arguments, model.called
        if by_eager.error is not None:
            return Refused(f"the model itself fails on these inputs: {by_eager.error}")
        random_before, random_after, uses_randomness = model.random_before, model.random_after, model.uses_randomness

        first: Called | None = None
        deterministic: bool | None = None
        repeat_seconds: float | None = None
        notes: list[str] = []
        state: dict[str, Any] = {}
        own: list[Any] = []
        for turn in range(1 + repeats):
            before.apply(self.candidate)
            own = clone_tensors(inputs)
            if self.poison:
                poison_before(self.candidate, tensors_of(by_eager.outputs))
            seed_all(plan.seed)
            # The first repeat also fills what is allocated during the call.
            with poisoned_empty() if self.poison and turn == 1 else nullcontext():
                called = call(self.candidate, own)
            if called.error is not None:
                when = "" if turn == 0 else f" (call {turn + 1} of the same inputs)"
                problems[f"the candidate raises{when} {called.error}"] = "raises"
                break
            if first is None:
                first = called
                random_own = random_state()
                if not uses_randomness and not equal_states(random_before, random_own):
                    problems["the candidate changes PyTorch's random state, the model does not"] = "random-state"
                elif uses_randomness and not equal_states(random_after, random_own):
                    notes.append("the random state after the call is not the model's")
                problems |= dict.fromkeys(aliases(called.outputs, own, by_eager.outputs, arguments), "alias")
                problems |= dict.fromkeys(changed_parameters(self.eager, self.candidate), "parameter-changed")
                problems |= dict.fromkeys(changed_inputs(inputs, arguments, own), "input-changed")
                state = State.of(self.candidate, parameters=False).tracked()
                notes += called.notes
                first_inputs = own
            else:
                repeat_seconds = called.seconds
                same = identical(first.outputs, called.outputs)
                deterministic = same if deterministic is None else deterministic and same
                if not same:
                    found, kind = "a repeated call gives other bits", "nondeterministic"
                    if turn == 1 and self.poison:
                        found, kind = "a repeated call on poisoned memory gives other bits", "poisoned"
                    # A library's call that eager makes as well may add in any order.
                    if self._eager_varies(plan, inputs, before, by_eager):
                        notes.append(found + ", as eager does")
                    else:
                        problems[found] = kind
                if shares_memory(first.outputs, called.outputs) and not returns_own_state(
                    self.eager, by_eager
                ):
                    problems["every call returns the same memory, so an earlier result is overwritten"] = (
                        "shared-memory"
                    )
            del called

        comparison = against_eager = state_comparison = None
        reference = "none"
        if first is not None:
            judged = self._judge(plan, model, first, first_inputs, state)
            comparison, against_eager, state_comparison, reference, more = judged
            problems |= more
        passed = not problems and all(
            c is None or c.passed for c in (comparison, against_eager, state_comparison)
        )
        return Trial(
            plan,
            passed and comparison is not None,
            gates,
            tuple(problems),
            tuple(dict.fromkeys(notes)),
            reference,
            comparison,
            against_eager,
            state_comparison,
            deterministic,
            uses_randomness,
            clock() - started,
            by_eager.seconds,
            first.seconds if first else 0.0,
            repeat_seconds,
            tuple(problems.values()),
        )

    def expect(
        self,
        inputs: Sequence[Any],
        seed: int,
        *,
        keep_as: TrialPlan | None = None,
        like: TrialPlan | None = None,
    ) -> Expected | Refused:
        """What the model in its present state gives for ``inputs`` under ``seed``; its state goes on from there.

        ``keep_as`` is the trial that this is, so that it need not be made again. ``like`` is the trial of the same
        inputs, seed and state: where its float64 results were kept, they are the reference.
        """
        before = State.of(self.eager, parameters=False)
        arguments = clone_tensors(list(inputs))
        random_before = seed_all(seed)
        called = call(self.eager, arguments)
        if called.error is not None:
            return Refused(f"the model itself fails on these inputs: {called.error}")
        made = ByModel(list(inputs), before, arguments, called, random_before, random_state())
        state = State.of(self.eager, parameters=False).tracked()
        known = self.kept.trials.get(like) if like is not None else None
        if known is not None and known.reference is not None and known.reference[1] == FLOAT64:
            made.reference = known.reference
        else:
            made.reference = self._reference(
                TrialPlan(seed), inputs, before, called, None, made.uses_randomness
            )
        if keep_as is not None and self.double is not None:
            self.kept.keep(keep_as, made, self.eager)
        reference, words, _, _ = made.reference
        return Expected(called.outputs, reference, words, made.uses_randomness, state, arguments, called.seconds)

    def _by_model(self, plan: TrialPlan) -> ByModel:
        """The model's call of a trial, in the state that it is in; or the kept one."""
        if plan in self.kept.trials:
            return self.kept.trials[plan]
        inputs = DISTRIBUTIONS[plan.distribution].apply(list(self.make_inputs(plan.seed)), plan.seed)
        before = State.of(self.eager, parameters=False)
        arguments = clone_tensors(inputs)
        random_before = seed_all(plan.seed)
        called = call(self.eager, arguments)
        return ByModel(inputs, before, arguments, called, random_before, random_state())

    def _eager_varies(self, plan: TrialPlan, inputs: Any, before: State, by_eager: Called) -> bool:
        """Whether the model itself gives other bits in one of a few further calls."""
        after = State.of(self.eager, parameters=False)
        varies = False
        for _ in range(3):
            before.apply(self.eager)
            seed_all(plan.seed)
            again = call(self.eager, clone_tensors(inputs))
            varies = again.error is None and not identical(by_eager.outputs, again.outputs)
            if varies:
                break
        after.apply(self.eager)
        return varies

    def _judge(
        self,
        plan: TrialPlan,
        model: ByModel,
        first: Called,
        own: Any,
        state: dict[str, Any],
    ) -> tuple[Comparison, Comparison | None, Comparison | None, str, dict[str, str]]:
        problems: dict[str, str] = {}
        inputs, before, arguments, by_eager = model.inputs, model.before, model.arguments, model.called
        tolerance = self.given_tolerance if plan.distribution == AS_GIVEN else self.derived_tolerance
        eager_state = State.of(self.eager, parameters=False).tracked()
        entries = self._entries(inputs, by_eager.outputs, plan.seed)
        if model.reference is None:
            model.reference = self._reference(plan, inputs, before, by_eager, entries, model.uses_randomness)
            self.kept.keep(plan, model, self.eager)
        reference, words, state_reference, input_reference = model.reference
        against_eager = None
        if entries is None:
            comparison = compare(first.outputs, by_eager.outputs, reference, tolerance=tolerance)
        else:
            comparison = compare(
                _take(first.outputs, entries),
                _take(by_eager.outputs, entries),
                reference,
                tolerance=tolerance,
            )
            against_eager = compare_with_eager(
                first.outputs, by_eager.outputs, comparison, tolerance=tolerance
            )
            if any(
                o.eager_relative > SAME_COMPUTATION and o.reference_rms > 1e-12 for o in comparison.outputs
            ):
                problems[
                    "the model's own entries differ from the same entries computed alone: outputs do not "
                    "depend on each entry of axis 0 separately, so sampling proves nothing"
                ] = "sampling"
        # State: buffers, plain attributes and those inputs that the model changes.
        wanted: dict[str, Any] = {}
        for name, value in eager_state.items():
            if name in state:
                wanted[name] = value
            elif not identical(before.tracked()[name], value):
                problems[f"the model updates {name}, the candidate does not have it"] = "state-missing"
        got = {name: state[name] for name in wanted}
        expected = {name: (state_reference or {}).get(name, value) for name, value in wanted.items()}
        for index, (given, after) in enumerate(zip(inputs, arguments, strict=True)):
            if not identical(given, after):
                wanted[f"input {index}"], got[f"input {index}"] = after, own[index]
                expected[f"input {index}"] = after if input_reference is None else input_reference[index]
        state_comparison = (
            compare(got, wanted, expected, tolerance=tolerance, root="state") if wanted else None
        )
        return comparison, against_eager, state_comparison, words, problems

    def _entries(self, inputs: Sequence[Any], outputs: Any, seed: int) -> torch.Tensor | None:
        """Two batch entries for float64, or None for all. A planted NaN or Inf is among them."""
        batch = next((t.shape[0] for t, b in zip(inputs, self._batched(inputs), strict=True) if b), 0)
        if not self.sample_axis0 or batch < 3:
            return None
        if not all(t.dim() and t.shape[0] == batch for t in tensors_of(outputs)):
            return None
        generator = torch.Generator().manual_seed(seed)
        entries = torch.randperm(batch, generator=generator)[:2]
        for value, batched in zip(inputs, self._batched(inputs), strict=True):
            if batched and value.dtype.is_floating_point:
                bad = ~torch.isfinite(value.reshape(batch, -1)).all(1)
                if bool(bad.any()) and not bool(bad[entries.to(bad.device)].any()):
                    entries[0] = int(bad.to(torch.uint8).argmax())
        return entries.unique().sort().values

    def _batched(self, inputs: Sequence[Any]) -> list[bool]:
        """Which positional arguments have the batch in axis 0 (by declaration, else by equal size)."""
        if self.batched_arguments is not None:
            return [
                index < len(self.batched_arguments)
                and self.batched_arguments[index]
                and isinstance(v, torch.Tensor)
                for index, v in enumerate(inputs)
            ]
        size = next((v.shape[0] for v in inputs if isinstance(v, torch.Tensor) and v.dim()), None)
        return [isinstance(v, torch.Tensor) and v.dim() > 0 and v.shape[0] == size for v in inputs]

    def _reference(
        self,
        plan: TrialPlan,
        inputs: Any,
        before: State,
        by_eager: Called,
        entries: torch.Tensor | None,
        uses_randomness: bool,
    ) -> tuple[Any, str, dict[str, Any] | None, Any]:
        """Return (outputs, words, state after the call or None, inputs after the call or None)."""
        if self.unchanged:
            return (by_eager.outputs if entries is None else _take(by_eager.outputs, entries)), UNCHANGED, None, None
        why = "the model cannot be copied to float64"
        if self.double is not None:
            try:
                State.of(self.eager, owned=False).apply(self.double)
                before.apply(self.double)
                chosen = (
                    inputs
                    if entries is None
                    else [
                        v[entries.to(v.device)] if b else v
                        for v, b in zip(inputs, self._batched(inputs), strict=True)
                    ]
                )
                arguments = widened(chosen)
                seed_all(plan.seed)
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    outputs = call_in_float64(self.double, arguments)
                words = FLOAT64
                if entries is not None:
                    words = f"float64 on entries {entries.tolist()} of axis 0, eager for the others"
                    return outputs, words, None, None
                if not uses_randomness or _close(by_eager.outputs, outputs):
                    return outputs, words, State.of(self.double, parameters=False).tracked(), arguments
                return by_eager.outputs, "eager itself: float64 draws other random numbers", None, None
            except Exception as error:  # out of memory, an operator without float64, ...
                why = f"float64 failed ({first_line(error)})"
        after = State.of(self.eager, parameters=False)
        before.apply(self.eager)
        seed_all(plan.seed)
        with without_tf32():
            strict = call(self.eager, clone_tensors(inputs))
        after.apply(self.eager)
        outputs = by_eager.outputs if strict.error is not None else strict.outputs
        return (
            (outputs if entries is None else _take(outputs, entries)),
            f"eager with TF32 off: {why}",
            None,
            None,
        )


def _take(outputs: Any, entries: torch.Tensor) -> Any:
    return map_tensors(outputs, lambda t: t.detach().index_select(0, entries.to(t.device)))


def _close(outputs: Any, reference: Any) -> bool:
    found = compare(outputs, outputs, reference)
    return not found.structure and all(
        o.eager_relative <= SAME_COMPUTATION and not o.misplaced_nonfinite for o in found.outputs
    )
