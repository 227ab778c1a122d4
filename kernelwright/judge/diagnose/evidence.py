"""What a diagnosis looks at: one trial of VERIFY made again, with everything kept that VERIFY measures and drops."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from kernelwright.device_lock import clock
from kernelwright.problem.memory import available_memory
from kernelwright.problem.state import in_mode_of
from kernelwright.verify.drawn import inputs_of, set_state
from kernelwright.verify.flatten import clone_tensors, flatten, tensors_of
from kernelwright.verify.memory import poison_before, poisoned_empty
from kernelwright.verify.observe import call, identical, seed_all, without_tf32
from kernelwright.verify.records import TrialPlan
from kernelwright.verify.state import State, call_in_float64, float64_copy, widened

#: Added to a trial's seed for the input that the candidate sees before the trial's own.
EARLIER = 1009
#: Larger numbers come from poison, if the model has none.
POISON = 1e20
#: So few values, or one value everywhere, are met by many explanations: other inputs tell them apart.
FEW = 4
#: Such inputs: their number with the trial's own distribution, and other distributions.
AGAIN, ELSEWHERE = 2, ("normal", "scaled")
#: Share of the free memory that one of them may take: as much again is made of each, more than once.
MEMORY_SHARE = 1 / 16
#: Results of other trials are kept up to this size.
MOST_KNOWN_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Evidence:
    """One trial's tensors. Outputs are nested as the model returns them; nothing in here is the candidate's memory.

    ``inputs`` are the positional arguments before any call. ``reference`` is the model in float64, or eager with TF32
    off where it has no float64. ``repeated`` is a further call of the candidate on the same inputs and poisoned
    memory where that gave other bits, else None. ``earlier`` holds the expected outputs of inputs that the candidate
    saw before, ``own_earlier`` what it gave for them (None where it raised). ``state`` is the model's before the call,
    ``original`` what it had before parameters were redrawn; ``changed`` what eager and candidate hold after it (buffers
    and plain attributes by path), ``changed_inputs`` the candidate's arguments after its call, and ``on_changed`` what
    eager returns for those, where they differ from what was given. ``error`` is what the candidate raised.
    """

    trial: TrialPlan
    inputs: tuple[Any, ...]
    candidate: Any
    eager: Any
    reference: Any
    state: State
    original: State = field(default_factory=State)
    training: bool = False
    repeated: Any = None
    earlier: tuple[Any, ...] = ()
    changed: tuple[dict[str, Any], dict[str, Any]] = field(default_factory=lambda: ({}, {}))
    changed_inputs: tuple[Any, ...] | None = None
    on_changed: Any = None
    error: str | None = None
    own_earlier: Any = None
    others: tuple[Evidence, ...] = ()
    """The same on other inputs (`on_other_inputs`): only ``inputs``, ``candidate``, ``eager``, ``reference`` and state
    are set."""


def collect(make_model: Callable[[], nn.Module], candidate: nn.Module, make_inputs: Callable[[int], Sequence[Any]],
            plan: TrialPlan, *, make_float64: Callable[[nn.Module], nn.Module] = float64_copy,
            before: Sequence[TrialPlan] = ()) -> Evidence:
    """Make the trial ``plan`` again and keep what it shows.

    The candidate sees an earlier input first (of another seed), then the trial's, then the trial's once more with
    poison in freed memory: what it never writes is then NaN, where the call before left something else. ``before`` are
    trials that the candidate was in already; what the model gives for a few of them counts as earlier, too. Random
    state is left as it was found. Raises what ``make_model`` and ``make_inputs`` raise,
    RuntimeError where the model itself fails on these inputs, and what `is_out_of_memory` accepts.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        return _collect(make_model(), candidate, make_inputs, plan, make_float64, before)


def _collect(model: nn.Module, candidate: nn.Module, make_inputs: Callable[[int], Sequence[Any]], plan: TrialPlan,
             make_float64: Callable[[nn.Module], nn.Module], trials: Sequence[TrialPlan]) -> Evidence:
    in_mode_of(candidate, model)
    original = State.of(model)
    known = _known(model, original, make_inputs, [t for t in trials if t != plan])
    set_state(model, original, plan, make_inputs)
    before = State.of(model)
    inputs = _drawn(make_inputs, plan, plan.seed)

    # An earlier input, so that a result which is kept from it can be told.
    earlier_inputs = _drawn(make_inputs, plan, plan.seed + EARLIER)
    earlier = _called(model, before, earlier_inputs, plan.seed)[0]
    before.apply(candidate)
    seed_all(plan.seed)
    before_it = call(candidate, clone_tensors(list(earlier_inputs)))
    own_earlier = clone_tensors(before_it.outputs) if before_it.error is None else None
    eager, eager_state, _ = _called(model, before, inputs, plan.seed)
    if eager is None:
        raise RuntimeError("the model itself fails on these inputs")

    before.apply(candidate)
    arguments = clone_tensors(list(inputs))
    # Poison of earlier calls must not lie where the outputs will: what is never written is zero in the first call.
    cleared = [torch.zeros_like(t) for t in tensors_of(eager)]
    del cleared
    seed_all(plan.seed)
    first = call(candidate, arguments)
    outputs = clone_tensors(first.outputs)
    own_state = State.of(candidate, parameters=False).tracked()
    repeated = None
    for _ in range(2 if first.error is None else 0):  # in another process, patterns of poison take turns
        before.apply(candidate)
        poison_before(candidate, tensors_of(eager))
        seed_all(plan.seed)
        with poisoned_empty():
            again = call(candidate, clone_tensors(list(inputs)))
        if again.error is None and not identical(outputs, again.outputs) and _poisoned(again.outputs) >= \
                _poisoned(repeated):
            repeated = clone_tensors(again.outputs)
    after = on_changed = None
    if first.error is None and not identical(list(inputs), arguments):
        after = tuple(clone_tensors(arguments))
        on_changed = _called(model, before, after, plan.seed)[0]
    reference = _reference(model, before, inputs, eager, plan.seed, make_float64)
    original.apply(model)
    return Evidence(plan, inputs, outputs, eager, reference, before, original, model.training, repeated,
                    (*([earlier] if earlier is not None else ()), *known), (eager_state, own_state), after, on_changed,
                    first.error, own_earlier)


def says_little(evidence: Evidence) -> bool:
    """Whether an output is so small, or so much the same everywhere, that one trial's explains next to nothing."""
    wanted = flatten(evidence.eager)
    return evidence.error is None and any(
        isinstance(got, torch.Tensor) and got.numel() and isinstance(expected := wanted.get(path), torch.Tensor)
        and got.shape == expected.shape and (got.numel() <= FEW or is_constant(got))
        and not identical(got, expected) for path, got in flatten(evidence.candidate).items())


def is_constant(tensor: torch.Tensor) -> bool:
    """Whether all elements have one value, which is not NaN."""
    return bool((tensor == tensor.reshape(-1)[:1]).all()) if tensor.numel() else False


def on_other_inputs(evidence: Evidence, make_model: Callable[[], nn.Module], candidate: nn.Module,
                    make_inputs: Callable[[int], Sequence[Any]], *,
                    make_float64: Callable[[nn.Module], nn.Module] = float64_copy,
                    budget_seconds: float = math.inf) -> Evidence:
    """``evidence`` with ``others``: one call of the candidate on each of a few other inputs, as far as the time does.
    Those on which model or candidate fails are left out. Raises as `collect`."""
    plan, found, started = evidence.trial, [], clock()
    each = tensors_of([evidence.inputs, evidence.eager])
    size, place = sum(t.nbytes for t in each), next((t.device for t in each), torch.device("cpu"))
    plans = [(i, plan.distribution) for i in range(1, AGAIN + 1)]
    plans += [(AGAIN + 1 + i, kind) for i, kind in enumerate(ELSEWHERE)]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        model, before = make_model(), evidence.state
        for number, kind in plans:
            free = available_memory(place)
            if clock() - started > budget_seconds or (free is not None and size > MEMORY_SHARE * free):
                break
            trial = replace(plan, seed=plan.seed + number * EARLIER, distribution=kind)
            inputs = _drawn(make_inputs, trial, trial.seed)
            eager, _, _ = _called(model, before, inputs, trial.seed)
            own, _, _ = _called(candidate, before, inputs, trial.seed)
            if eager is not None and own is not None:
                reference = _reference(model, before, inputs, eager, trial.seed, make_float64)
                found.append(Evidence(trial, inputs, own, eager, reference, before, evidence.original,
                                      evidence.training))
    return replace(evidence, others=tuple(found))


def like_poison(values: torch.Tensor) -> torch.Tensor:
    """Which of some numbers may be made of poison: NaN, and what is as large as bytes of 0x6B are as a float."""
    return ~(values.abs() < POISON) if values.dtype.is_floating_point else torch.zeros_like(values, dtype=torch.bool)


def _poisoned(outputs: Any) -> int:
    return sum(int(like_poison(t).sum()) for t in tensors_of(outputs))


def _known(model: nn.Module, original: State, make_inputs: Callable[[int], Sequence[Any]],
           plans: Sequence[TrialPlan]) -> list[Any]:
    """What eager gives in other trials, as far as that fits into a modest amount of memory."""
    known: list[Any] = []
    for plan in plans:
        set_state(model, original, plan, make_inputs)
        outputs, _, _ = _called(model, State.of(model), _drawn(make_inputs, plan, plan.seed), plan.seed)
        if outputs is not None:
            known.append(outputs)
            if sum(t.nbytes for t in tensors_of(known)) > MOST_KNOWN_BYTES // 2:
                break
    return known


def _drawn(make_inputs: Callable[[int], Sequence[Any]], plan: TrialPlan, seed: int) -> tuple[Any, ...]:
    return tuple(inputs_of(plan, make_inputs, seed))


def _called(model: nn.Module, before: State, inputs: Sequence[Any], seed: int
            ) -> tuple[Any, dict[str, Any], str | None]:
    """Eager's outputs, its state after the call, and its error."""
    before.apply(model)
    seed_all(seed)
    called = call(model, clone_tensors(list(inputs)))
    if called.error is not None:
        return None, {}, called.error
    return clone_tensors(called.outputs), State.of(model, parameters=False).tracked(), None


def _reference(model: nn.Module, before: State, inputs: Sequence[Any], eager: Any, seed: int,
               make_float64: Callable[[nn.Module], nn.Module]) -> Any:
    before.apply(model)
    try:
        double = make_float64(model)
        before.apply(double)
        seed_all(seed)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return clone_tensors(call_in_float64(double, widened(list(inputs))))
    except Exception:  # out of memory, an operator without float64, a model that cannot be copied
        with without_tf32():
            strict, _, error = _called(model, before, inputs, seed)
        return eager if error is not None else strict
