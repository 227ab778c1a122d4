"""What a candidate is worth by the rules of others: their seeds, trials and comparisons, in our isolation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kernelwright.judge.records import ByRules, CandidateResult
from kernelwright.judge.rules import RuleSet
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.judge.worker.process import WorkerFailure
from kernelwright.judge.worker.remote import CandidateRaised, NotHandedOver, RemoteCandidate
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.verify.flatten import tensors_of
from kernelwright.verify.observe import call, first_line, seed_all

#: Constructs the candidate anew in its process, under a seed and cast to a type (None: as it is).
Construct = Callable[[int, torch.dtype | None], RemoteCandidate]
_MODEL_RAISES = "the model itself raises"


def judged_by(rules: RuleSet, problem: Problem, construct: Construct, seed: int) -> ByRules:
    """The verdict by ``rules``. ``seed``: the run's own. Nothing that a candidate does is raised, and PyTorch's random
    state is left as it was."""
    devices = list(range(torch.cuda.device_count())) if problem.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        own_seed, seeds = rules.seeds(seed)
        model = problem.make_model(own_seed)
        given = tensors_of([*model.parameters(), *model.buffers(), problem.make_inputs(seeds[0])])
        dtype = rules.cast(given)
        if dtype is not None:
            model = model.to(dtype)
        passed, why = 0, ""
        try:
            candidate = construct(own_seed, dtype)
            for trial in seeds:
                inputs = [_cast(value, dtype) for value in problem.make_inputs(trial)]
                seed_all(trial)
                called = call(model, inputs)
                if called.error is not None:
                    why = f"{_MODEL_RAISES} on what it is given there, {called.error}, so nobody is right"
                    break
                RemoteCandidate.expect(candidate, called.outputs)
                found = rules.compare(dtype, called.outputs, candidate(*inputs))
                passed += not found
                why = why or found
        except (CandidateRaised, WorkerFailure, NotHandedOver) as error:
            why = why or _raised(error)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return ByRules(rules.name, rules.title, None, f"memory does not suffice: {first_line(error)[:200]}", passed,
                           len(seeds))
    return ByRules(rules.name, rules.title, passed == len(seeds), why, passed, len(seeds))


def disputed(result: CandidateResult) -> CandidateResult:
    """``result``, limited where it passed and no rules of others under which it was constructed anew call it right: one
    that chooses how to compute by its own clock, say, may be right once and wrong the next time."""
    tried = [by for by in result.by_rules if by.right is not None and not by.why.startswith(_MODEL_RAISES)]
    if not VERDICTS[result.verdict].passed or not tried or any(by.right for by in tried):
        return result
    limit = f"where it was constructed again, it is wrong by the rules of {tried[-1].title}: {tried[-1].why}"
    return replace(result, verdict="OK-BUT", limits=(limit, *result.limits),
                   reason=f"{limit[:1].upper()}{limit[1:]}; {'; '.join(result.limits)}".rstrip("; ") + ".")


def not_tried(rules: RuleSet, verdict: str) -> ByRules:
    """What is said of a candidate that has no process in which it could run: one that does not build is wrong by any
    rules."""
    if verdict.startswith("BUILD-"):
        return ByRules(rules.name, rules.title, False, f"it does not build ({verdict})")
    return ByRules(rules.name, rules.title, None, f"it could not be run here ({verdict})")


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and dtype is not None else value


def _raised(error: Exception) -> str:
    if isinstance(error, WorkerFailure):
        return error.sentence.rstrip(".")[:1].lower() + error.sentence.rstrip(".")[1:]
    if isinstance(error, CandidateRaised):
        return f"it raises {error.error['type']}: {first_line(error)[:200]}"
    return f"the problem's arguments cannot be handed over: {first_line(error)[:200]}"
