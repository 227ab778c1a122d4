"""Running variants: model and candidate through the same calls, each result compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from kernelwright.device_lock import clock
from kernelwright.judge.check.lacking import LacksMemory, Memory, bytes_of
from kernelwright.judge.check.layouts import batch_of
from kernelwright.judge.check.variant_records import Step, Variant, VariantResult
from kernelwright.judge.worker.process import WorkerFailure
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.problem.state import modes_of, set_modes
from kernelwright.verify.compare import compare
from kernelwright.verify.computation import settled
from kernelwright.verify.flatten import flatten, tensors_of
from kernelwright.verify.memory import poison_before
from kernelwright.verify.observe import call, first_line, identical, seed_all
from kernelwright.verify.records import Comparison, Expected, Refused
from kernelwright.verify.reference import STRICT
from kernelwright.verify.sensitivity import may_be_rounding, move
from kernelwright.verify.state import State, float64_copy, redraw
from kernelwright.verify.tolerance import Tolerance
from kernelwright.verify.trial import Bench

#: Float64 is left out where one call of the model takes this share of the budget.
_FLOAT64_SHARE = 0.03
#: Outputs larger than this are not kept for the next variant that asks for the same.
_MOST_KEPT_BYTES = 256 << 20
_SEED = 271


class _Skipped(Exception):
    """The variant says nothing here; the message says why. ``limit``: what is not known of the candidate for that,
    where it is the candidate's doing."""

    def __init__(self, why: str, limit: str = "") -> None:
        super().__init__(why)
        self.limit = limit


@dataclass
class _Pair:
    """One instance of the model, with its float64 copy and reference rule, and the candidate's."""

    bench: Bench
    candidate: nn.Module
    modes: dict[str, bool]
    redrawn: int | None = None

    def reset(self) -> None:
        for module in (self.bench.eager, self.candidate):
            set_modes(module, self.modes)
            self.bench.original.apply(module)
        self.redrawn = None


class Caller:
    """Runs the variants of one candidate. The arguments are those of `check_variants`."""

    def __init__(self, make_model: Callable[[], nn.Module], candidate: nn.Module, problem: Problem,
                 tolerance: Tolerance, budget_seconds: float, make_second: Callable[[], nn.Module] | None,
                 both_alive: bool, let_go: Callable[[], None]) -> None:
        self._memory, self._let_go_more = Memory(problem.device, self._let_go), let_go
        self._make_model, self._make_second, self._both_alive = make_model, make_second, both_alive
        self._problem, self._tolerance, self._budget = problem, tolerance, budget_seconds
        self._started, self._slowest = clock(), 0.0
        self._ended = ""
        self._kept: dict[Any, Expected] = {}
        self._pairs = {0: self._pair(candidate, make_model())}

    def _pair(self, candidate: nn.Module, model: nn.Module) -> _Pair:
        tolerance = self._tolerance
        bench = Bench(model, candidate, None, State.of(model), self._problem.make_inputs, tolerance, tolerance, False,
                      None, False)
        started = clock()
        call(model, self._problem.make_inputs(_SEED))
        if clock() - started < _FLOAT64_SHARE * self._budget:
            try:
                bench.double = float64_copy(model)
            except Exception:  # what cannot be copied is compared with strict float32
                bench.double = None
        bench.original.apply(model)
        return _Pair(bench, candidate, modes_of(model))

    def run(self, variant: Variant) -> VariantResult:
        """The result of one variant."""
        started = clock()
        result = VariantResult(variant.name, variant.gates, "skipped", fix=variant.fix)
        left = self._budget - (started - self._started)
        needed = self._slowest * len(variant.steps)
        try:
            if self._ended:
                raise _Skipped(f"the candidate's process ended with {self._ended}")
            if left <= 0 or needed > left:
                raise _Skipped(f"would take about {needed:.2g} s, {max(0.0, left):.2g} s are left")
            result = self._sequence(variant, result)
        except _Skipped as why:
            result = replace(result, sentence=f"Not tried: {why}.", fix="", limit=why.limit)
        except LacksMemory as lack:
            result = self._lacking(variant, result, lack)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            result = replace(result, sentence=f"Not tried: not enough memory ({first_line(error)}).", fix="",
                             limit=_without_memory(variant) if variant.gates else "")
        seconds = clock() - started
        if result.outcome != "skipped":
            self._slowest = max(self._slowest, seconds / len(variant.steps))
        self._restore()
        return replace(result, seconds=seconds)

    def _lacking(self, variant: Variant, result: VariantResult, lack: LacksMemory) -> VariantResult:
        """The candidate lacks memory, where the model has what it needs, or says so."""
        if not (variant.gates and lack.refuted):
            return replace(result, sentence=f"Not tried: the candidate says that memory is lacking ({lack}).", fix="",
                           limit=_without_memory(variant))
        return replace(result, outcome="raised", verdict="CRASH-MEMORY",
                       sentence=f"{_capital(variant.meaning)}: the candidate says that memory is lacking ({lack}), "
                       "where as much is free as it had enough with.",
                       fix="Allocate less, or free what is not needed between calls.")

    def _let_go(self) -> None:
        """Free what is only kept for later: results, and the copies in float64."""
        self._let_go_more()
        self._kept.clear()
        for pair in self._pairs.values():
            pair.bench.double = None

    def _restore(self) -> None:
        if not self._ended:
            self._pairs[0].reset()

    def _sequence(self, variant: Variant, result: VariantResult) -> VariantResult:
        steps = list(enumerate(variant.steps, 1))
        try:
            if not self._both_alive and any(s.instance for s in variant.steps):
                # The first instance is called before the second is made, and is gone then.
                self._instance(1, variant)
                steps = [(n, s) for n, s in steps if s.instance]
            pairs = [self._instance(number, variant) for number in sorted({s.instance for _, s in steps})]
        except WorkerFailure as failure:
            return self._raised(variant, result, 1 + [s.instance for s in variant.steps].index(1), failure)
        for pair in pairs:
            pair.reset()
        last: list[Any] = []
        for number, step in steps:
            pair = self._instance(step.instance, variant)
            inputs = self._prepare(variant, step, pair)
            expected = self._expected(variant, step, pair, inputs)
            self._check_batch(variant, expected)
            last = self._arguments(step, last)
            kept = any(other.into_last for other in variant.steps)
            try:
                outputs = self._memory.for_candidate(partial(_asked, pair.candidate, last, expected, step, kept))
            except LacksMemory:
                raise
            except Exception as error:  # whatever else a candidate raises is its result
                return self._raised(variant, result, number, error)
            found = self._compared(pair, step, expected, outputs)
            if not found.passed and (again := self._in_float64(pair, expected, inputs)) is not None:
                found = self._compared(pair, step, again, outputs)
            if not found.passed:
                sentence = f"{_capital(variant.meaning)}: call {number} of {len(variant.steps)} is wrong: "
                return replace(result, outcome="wrong", call=number, comparison=found, sentence=sentence
                               + found.sentence(), verdict=variant.verdict, limit=variant.silent)
        return replace(result, outcome="right", fix="")

    def _in_float64(self, pair: _Pair, expected: Expected, inputs: list[Any]) -> Expected | None:
        """What was expected, with a truth in float64 where there was none to save time: eager's own results have no
        error that a candidate may have, too, and a slow machine is to accuse nobody. None where there is no other."""
        eager = pair.bench.eager
        if pair.bench.double is not None or not expected.reference.words.startswith(STRICT):
            return None
        after = State.of(eager, parameters=False)
        try:
            pair.bench.double = float64_copy(eager)
            expected.before.apply(eager)
            again = pair.bench.expect(inputs, _SEED)
        except Exception:  # what cannot be copied, or has no memory, is compared as before
            pair.bench.double = None
            return None
        finally:
            after.apply(eager)
        if isinstance(again, Refused):
            return None
        self._kept = {key: again if kept is expected else kept for key, kept in self._kept.items()}
        return again

    def _compared(self, pair: _Pair, step: Step, expected: Expected, outputs: Any) -> Comparison:
        right, exact, reference = expected.outputs, expected.reference.outputs, expected.reference
        if reference.lost:
            outputs, right, exact = settled(outputs, right, exact)
        found = compare(outputs, right, exact, tolerance=self._tolerance)
        if not may_be_rounding(self._tolerance, found):
            return found
        moved = move(pair.bench.eager, self._arguments(step, []), expected.before, _SEED, right,
                     reference._replace(outputs=exact), self._tolerance, recording=step.gradients)
        return compare(outputs, right, exact, tolerance=self._tolerance, moved=moved.outputs)

    def _instance(self, number: int, variant: Variant) -> _Pair:
        if number in self._pairs:
            return self._pairs[number]
        if self._make_second is None:
            raise _Skipped("no second instance can be made")
        if variant.both_alive and not self._both_alive:
            raise _Skipped("the candidate's process holds one instance at a time")
        model = self._make_model()
        redraw(model, _SEED)
        # The first instance must have been called before the second one is made.
        first = self._pairs[0]
        first.reset()
        inputs = variant.steps[0].inputs()
        self._memory.for_candidate(lambda: _called(first.candidate, inputs, gradients=False))
        try:
            second = self._memory.for_candidate(self._make_second, more=bytes_of(first.candidate))
        except (LacksMemory, WorkerFailure):
            raise
        except Exception as error:
            raise _Skipped(f"a second instance cannot be made: {first_line(error)}",
                           "only one instance in a process") from error
        self._pairs[number] = self._pair(second, model)
        if not self._both_alive:
            # What the process held before is gone: the new one stands for the candidate from here on.
            self._pairs[0] = self._pair(second, self._make_model())
        return self._pairs[number]

    def _prepare(self, variant: Variant, step: Step, pair: _Pair) -> list[Any]:
        """Bring model and candidate into the step's mode and parameters; the inputs. Raises _Skipped where the model
        itself does not take what the variant hands over."""
        model = pair.bench.eager
        for module in (model, pair.candidate, *((pair.bench.double,) if pair.bench.double is not None else ())):
            if step.switched:
                module.train(not pair.modes[""])
            else:
                set_modes(module, pair.modes)
        if step.redraw is not None:
            redraw(model, step.redraw)
            pair.redrawn = step.redraw
            State.of(model, owned=False).apply(pair.candidate)
        if variant.own_layout or step.gradients:
            before = State.of(model, parameters=False)
            seed_all(_SEED)
            try:
                _called(model, self._arguments(step, []), gradients=step.gradients)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                raise _Skipped(f"the model itself does not take it ({first_line(error)})") from error
            finally:
                before.apply(model)
        return self._arguments(replace(step, into_last=False), [])

    def _expected(self, variant: Variant, step: Step, pair: _Pair, inputs: list[Any]) -> Expected:
        key = (id(step.inputs), step.instance, pair.redrawn, step.switched, step.gradients)
        if key in self._kept:
            return self._kept[key]
        before = State.of(pair.bench.eager, parameters=False)
        pair.bench.recording = step.gradients
        expected = pair.bench.expect(inputs, _SEED)
        if isinstance(expected, Refused):
            raise _Skipped(expected.why)
        size = sum(t.numel() * t.element_size() for t in tensors_of([expected.outputs, expected.reference.outputs]))
        # Inputs of sequences return in other variants; those of layouts and sizes do not.
        if size <= _MOST_KEPT_BYTES and not variant.own_layout and variant.batch is None \
                and identical(before.tracked(), expected.state):
            self._kept[key] = expected
        return expected

    def _check_batch(self, variant: Variant, expected: Expected) -> None:
        """Where results had the batch in axis 0 and have another one now, parameters fix the batch."""
        if variant.batch is None:
            return
        own = self._problem.make_inputs(_SEED)
        batch = batch_of(own)
        called = call(self._pairs[0].bench.eager, own)
        self._pairs[0].reset()
        if called.error is not None:
            return
        now = flatten(expected.outputs)
        for path, value in flatten(called.outputs).items():
            other = now.get(path)
            if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor) and value.dim() \
                    and value.shape[0] == batch and other.shape[:1] != (variant.batch,):
                raise _Skipped("the model's parameters fix the batch")

    def _arguments(self, step: Step, last: list[Any]) -> list[Any]:
        arguments = step.inputs()
        if step.into_last:
            with torch.no_grad():  # the problem's own inputs may require gradients
                for old, new in zip(tensors_of(last), tensors_of(arguments), strict=True):
                    old.copy_(new)
            return last
        if step.gradients:
            for tensor in tensors_of(arguments):
                if tensor.dtype.is_floating_point:
                    tensor.requires_grad_(True)
        return arguments

    def _raised(self, variant: Variant, result: VariantResult, number: int, error: Exception) -> VariantResult:
        words = f"{type(error).__name__}: {first_line(error)}"
        verdict = "CRASH-RAISED" if variant.gates else ""
        if isinstance(error, WorkerFailure):
            self._ended = f'"{variant.name}"'
            words, verdict = error.sentence.rstrip("."), error.verdict if variant.gates else ""
        return replace(result, outcome="raised", call=number, verdict=verdict,
                       sentence=f"{_capital(variant.meaning)}: call {number} of {len(variant.steps)} raises {words}.",
                       limit=variant.limit)


def _asked(candidate: nn.Module, arguments: list[Any], expected: Expected, step: Step, keep_inputs: bool) -> Any:
    """What the candidate returns, in the memory and the random state of a call of a variant."""
    seed_all(_SEED)
    poison_before(candidate, tensors_of(expected.outputs))
    if keep_inputs:
        _keep_inputs(candidate)
    return _called(candidate, arguments, gradients=step.gradients)


def _keep_inputs(module: nn.Module) -> None:
    """The inputs of the next call stay where they are, also where the candidate runs in another process."""
    own = getattr(type(module), "keep_inputs", None)
    if own is not None:
        own(module)


def _called(module: nn.Module, arguments: Sequence[Any], *, gradients: bool) -> Any:
    with torch.set_grad_enabled(gradients), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = module(*arguments)
        for device in {t.device for t in tensors_of(list(arguments)) if t.is_cuda}:
            torch.cuda.synchronize(device)
    return outputs


def _without_memory(variant: Variant) -> str:
    return f"not tried for want of memory: {variant.meaning}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
