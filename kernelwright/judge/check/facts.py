"""Facts about a problem's model, each from a few calls of it: effects, unused inputs, eager's error, the roofline."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kernelwright.algebra.engine import rewrite
from kernelwright.capture.carried import Carries
from kernelwright.capture.export import capture
from kernelwright.device_lock import clock
from kernelwright.errors import describe
from kernelwright.ir.graph import Graph
from kernelwright.problem import Problem
from kernelwright.problem.inputs import map_tensors
from kernelwright.problem.probe import carried_attributes
from kernelwright.problem.state import in_mode_of, modes_of
from kernelwright.roofline.cost import floor, graph_work, least_bytes
from kernelwright.roofline.peaks import current_device
from kernelwright.verify.certificate import Plan
from kernelwright.verify.compare import compare
from kernelwright.verify.flatten import flatten, tensors_of
from kernelwright.verify.observe import Called, call, equal_states, identical, random_state, seed_all
from kernelwright.verify.records import Refused, TrialPlan
from kernelwright.verify.state import State, redraw
from kernelwright.verify.trial import Bench


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One input or output: its path, shape, dtype and strides (in elements)."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Roof:
    """What any version must do at least. Seconds are the device's roofline; ``cached`` says that everything fits into
    its last cache, so that they hold for cold caches only. ``operations`` is None where the model was not captured."""

    least_bytes: int
    operations: int | None
    floor_seconds: float
    words: str
    cached: bool


@dataclass(frozen=True, slots=True)
class Effects:
    """What calls of the model showed. ``outputs`` and ``seconds`` are of a call with the problem's own inputs."""

    outputs: Any
    seconds: float
    deterministic: bool
    random: bool
    random_by_values: bool | None
    stateful: tuple[str, ...]
    changed_inputs: tuple[int, ...]


def tensor_facts(value: Any, root: str) -> tuple[TensorFacts, ...]:
    """The tensors of nested ``value``."""
    return tuple(TensorFacts(path, tuple(t.shape), str(t.dtype), tuple(t.stride()))
                 for path, t in flatten(value, root).items() if isinstance(t, torch.Tensor))


def find_effects(problem: Problem, model: nn.Module, seed: int) -> Effects:
    """Call a new ``model`` two or three times; its state is restored. Call it under ``torch.random.fork_rng``."""
    original = State.of(model)
    given, arguments = problem.make_inputs(seed), problem.make_inputs(seed)
    first, drawn = _called(model, arguments, seed)
    after = State.of(model)
    original.apply(model)
    again, _ = _called(model, problem.make_inputs(seed), seed)
    repeated = State.of(model)
    before = original.tracked() | original.parameters
    now = after.tracked() | after.parameters
    changed = [n for n, v in now.items() if n in before and not identical(before[n], v)]
    if new := now.keys() - before.keys():  # caches are the same after calls on other inputs
        original.apply(model)
        _called(model, problem.make_inputs(seed + 1), seed)
        other = State.of(model).tracked()
        changed += [name for name in now if name in new and not identical(now[name], other.get(name))]
    same = all(identical(v, (repeated.tracked() | repeated.parameters).get(n)) for n, v in now.items() if n in before)
    uses_random = not equal_states(seed_all(seed), drawn)
    by_values = None
    if uses_random:
        original.apply(model)
        by_values = not equal_states(drawn, _called(model, problem.make_inputs(seed + 1), seed)[1])
    original.apply(model)
    return Effects(first.outputs, min(first.seconds, again.seconds), same and identical(first.outputs, again.outputs),
                   uses_random, by_values, tuple(changed),
                   tuple(i for i, (a, b) in enumerate(zip(given, arguments, strict=True)) if not identical(a, b)))


def _called(model: nn.Module, arguments: Sequence[Any], seed: int) -> tuple[Called, list[torch.Tensor]]:
    seed_all(seed)
    called = call(model, arguments)
    return called, random_state()


def unused_inputs(problem: Problem, bench: Bench, outputs: Any, seed: int) -> tuple[int, ...]:
    """Positions of floating inputs whose values change no bit of the outputs, even where they are NaN."""
    found = []
    for index, value in enumerate(problem.make_inputs(seed)):
        if not any(t.dtype.is_floating_point for t in tensors_of([value])):
            continue
        arguments = problem.make_inputs(seed)
        arguments[index] = map_tensors(
            arguments[index], lambda t: torch.full_like(t, math.nan) if t.dtype.is_floating_point else t)
        bench.original.apply(bench.eager)
        called, _ = _called(bench.eager, arguments, seed)
        if called.error is None and identical(called.outputs, outputs):
            found.append(index)
    bench.original.apply(bench.eager)
    return tuple(found)


def parameters_without_effect(problem: Problem, bench: Bench, plan: Plan, outputs: Any, seed: int,
                              budget_seconds: float) -> tuple[str, ...] | None:
    """Names of parameters of which other values leave the outputs for the problem's own inputs within the tolerance;
    None where the time does not do. Parameters are changed alone, or all together where that changes nothing."""
    started = clock()
    names = [n for n, p in bench.original.parameters.items() if p.dtype.is_floating_point and p.numel()]

    def idle(changed: Collection[str]) -> bool:
        bench.original.apply(bench.eager)
        redraw(bench.eager, seed)
        with torch.no_grad():
            for name, parameter in bench.eager.named_parameters():
                if name not in changed:
                    parameter.copy_(bench.original.parameters[name])
            for name, buffer in bench.eager.named_buffers():
                buffer.copy_(bench.original.buffers[name])
        called, _ = _called(bench.eager, problem.make_inputs(seed), seed)
        return called.error is None and compare(called.outputs, outputs, outputs, tolerance=plan.tolerance).passed

    try:
        if not names or idle(names):
            return tuple(names)
        each = clock() - started
        if each * len(names) > budget_seconds - each:
            return None
        return tuple(name for name in names if idle({name}))
    finally:
        bench.original.apply(bench.eager)


def eager_errors_by_tf32(problem: Problem, bench: Bench, plan: Plan, seed: int) -> dict[str, float]:
    """Eager's worst relative error on the problem's own inputs with "tf32 on" and "tf32 off"; nothing on a CPU."""
    found: dict[str, float] = {}
    if problem.device.type != "cuda":
        return found
    for name, allowed in (("tf32 on", True), ("tf32 off", False)):
        bench.original.apply(bench.eager)
        with _tf32(allowed):
            expected = bench.expect(problem.make_inputs(seed), seed, like=TrialPlan(seed))
        if not isinstance(expected, Refused):
            compared = compare(expected.outputs, expected.outputs, expected.reference.outputs, tolerance=plan.tolerance)
            found[name] = max((o.eager_relative for o in compared.outputs if o.reference_rms), default=0.0)
    bench.original.apply(bench.eager)
    return found


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    saved = (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    try:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = saved


def captured(problem: Problem, model: nn.Module, seed: int) -> Graph | Exception:
    """The model's graph, or why there is none."""
    attributes: tuple[str, ...] = ()
    while True:
        try:
            return capture(model, problem.make_inputs(seed), name=problem.class_name,
                           file=str(problem.path) if problem.path else None,
                           fresh=lambda: in_mode_of(problem.make_model(seed), model), attributes=attributes,
                           check_state=lambda changed: carried_attributes(problem, seed, changed, modes_of(model)))
        except Carries as state:
            if set(state.names) <= set(attributes):  # they are there after a first call alone
                return state
            attributes = (*attributes, *state.names)
        except Exception as reason:
            return reason


def find_roof(problem: Problem, model: nn.Module, graph: Graph | Exception, outputs: Any, seed: int,
              idle: Collection[int | str]) -> Roof:
    """The roofline of the captured and rewritten model. ``graph``: what `captured` gave. ``idle``: positions of inputs
    and names of parameters that no version needs to read, which counts where the model cannot be captured."""
    device = current_device(problem.device)
    try:
        if isinstance(graph, Exception):
            raise graph
        rewritten = rewrite(graph, device).graph
        roots = rewritten.roots()
        seconds, words = floor(roots, device)
        moved, operations = least_bytes(roots), graph_work(roots).operations
    except Exception as reason:  # no graph, for whatever reason, leaves a bound from below
        given = [t for i, v in enumerate(problem.make_inputs(seed)) if i not in idle for t in tensors_of([v])]
        tables = {f"{path}.weight".lstrip(".") for path, module in model.named_modules()
                  if isinstance(module, (nn.Embedding, nn.EmbeddingBag))}
        given += [p for name, p in model.named_parameters() if name not in idle and name not in tables]
        moved = sum(t.nbytes for t in (*given, *tensors_of(outputs)))
        operations, seconds = None, moved / device.memory_peak
        words = ("every input and parameter read once and every result written once, at the memory's peak; the model "
                 f"was not captured ({describe(reason)})")
    return Roof(moved, operations, seconds, words, moved <= device.cache_bytes)
