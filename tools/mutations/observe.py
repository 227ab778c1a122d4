"""Whether a mutant differs from its base at all: both run in this process on all inputs that the judge draws.

Results, forms, effects on inputs, state, random numbers and memory count. What differs from the base in none of them is
an equivalent mutant, which no judge can refuse.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from kernelwright.judge.check.probes import judged_trials
from kernelwright.problem import Problem
from kernelwright.verify.compare import compare
from kernelwright.verify.drawn import inputs_of, set_parameters
from kernelwright.verify.flatten import clone_tensors, flatten, map_tensors, tensors_of
from kernelwright.verify.memory import poisoned_empty
from kernelwright.verify.observe import identical, seed_all
from kernelwright.verify.tolerance import Tolerance

SEEDS = (11, 29)
_TOLERANCE = Tolerance(nonfinite="position")


class Raises(Exception):
    """The mutant raises where its base does not: another fault than the one that was put in."""


def module_of(text: str, name: str) -> types.ModuleType:
    """The text as a module. Raises what it raises."""
    module = types.ModuleType(name)
    module.__file__ = f"<{name}>"
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    return module


def differs(problem: Problem, base: types.ModuleType, mutant: types.ModuleType) -> bool:
    """Whether any observation of the mutant is not the base's. Raises Raises."""
    for seed in SEEDS:
        for plan in judged_trials(seed):
            before = None
            for module in (base, mutant):
                try:
                    observed = list(_observed(problem, module, plan))
                except Exception as error:
                    if module is base:
                        raise
                    raise Raises(f"{type(error).__name__}: {error}") from error
                if before is None:
                    before = observed
                elif not all(_alike(a, b) for a, b in zip(before, observed, strict=True)):
                    return True
    return False


def _alike(left: Any, right: Any) -> bool:
    if not isinstance(left, dict):
        return left == right
    exact = map_tensors(left, lambda t: t.double() if t.dtype.is_floating_point else t)
    return compare(right, left, exact, tolerance=_TOLERANCE).passed


def _observed(problem: Problem, module: types.ModuleType, plan: Any) -> Iterator[Any]:
    """What calls of a new model show, in order: forms and effects as plain data, values as dictionaries."""
    candidate = problem.make_model(plan.seed, kind=module.ModelNew)
    candidate.train(problem.make_model(plan.seed).training)
    set_parameters(candidate, plan)
    last: list[Any] = []
    kept: Any = None
    for call in range(3):
        own = inputs_of(plan, problem.make_inputs, plan.seed + 7 * call)
        arguments = clone_tensors(list(own))
        if call == 1:  # other contents at the same addresses
            for old, new in zip(tensors_of(last), tensors_of(arguments), strict=True):
                old.copy_(new)
            arguments = last
        seed_all(plan.seed)
        with torch.no_grad(), warnings.catch_warnings(), poisoned_empty():
            warnings.simplefilter("ignore")
            outputs = candidate(*arguments)
        yield str(type(outputs)), [(k, str(type(v)), tuple(v.shape), str(v.dtype)) if isinstance(v, torch.Tensor)
                                     else (k, repr(v)) for k, v in flatten(outputs).items()]
        yield {k: v for k, v in flatten(outputs).items() if isinstance(v, torch.Tensor)}
        yield identical(list(own), arguments)
        yield torch.get_rng_state().tolist()
        yield _shares(outputs, [arguments, list(candidate.parameters()), list(candidate.buffers())])
        yield {name: b.clone() for name, b in candidate.named_buffers()}
        if kept is not None:
            yield identical(kept[0], kept[1])  # an earlier result stays as it was
        kept = (outputs, clone_tensors(outputs))
        last = arguments


def _shares(outputs: Any, others: Any) -> bool:
    own = {t.untyped_storage().data_ptr() for t in tensors_of(outputs)}
    return bool(own & {t.untyped_storage().data_ptr() for t in tensors_of(others)})
