"""Timed calls that are checked calls: what each call of a round must give, and what it is where it gives another.

A round is a few batches of calls on slots of inputs, the same for all who are timed in it. Contents come from the
problem's own `make_inputs` under secret seeds; before each call half of the elements of its slot, all over it, are
exchanged with those of another slot, so that no call sees contents that were there before, a stored result is another
call's, no part of a result can be taken over from earlier calls, and one computed from memory of another slot is told
apart. Once in a batch only a few elements are: who looks at a sample of them takes the contents for those of the call
before. Where a problem's inputs cannot be mixed, each call has a slot of its own. The judge walks through the same
contents with the model in its own process; it needs nothing that a worker says.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kernelwright.judge.clock.timed_values import distance, is_rather, rms, unwritten, wide
from kernelwright.judge.inside.tensors import bit_sum
from kernelwright.judge.inside.variation import PERIOD, Exchange, distinct, tensor_leaves
from kernelwright.problem import Problem
from kernelwright.problem.seeds import seeded
from kernelwright.verify.compare import compare
from kernelwright.verify.distributions import AS_GIVEN, DISTRIBUTIONS
from kernelwright.verify.flatten import clone_tensors, flatten
from kernelwright.verify.observe import identical, shares_memory
from kernelwright.verify.records import Reference
from kernelwright.verify.reference import FLOAT64
from kernelwright.verify.sensitivity import may_be_rounding, move
from kernelwright.verify.state import State, call_in_float64, own_types, widened
from kernelwright.verify.tolerance import Tolerance

#: Elements of every call's outputs that are looked at, beside the whole outputs of a few calls.
PROBES = 64
#: A probed call is wrong where this share of its probes is off by more than PROBE_ERROR of the output's size.
WRONG_SHARE, PROBE_ERROR = 0.1, 0.02
#: Relative error of a whole output held against eager alone, where float64 is too slow: at most this, and this many
#: times eager's own error, or the tolerance, where that is known. (A candidate that passed has at most 8 times that.)
EAGER_ERROR, EAGER_MULTIPLE = 1e-3, 10
#: A wrong output nearer to right than this is an inaccurate one, and no other computation.
INACCURATE = 0.02
_GRAPH = re.compile(r"CUDAGraph|cudaGraph|make_graphed_callables|reduce-overhead|max-autotune")
#: Slot, the slot with which elements are exchanged, where, whether only a few, and the call's random seed.
Call = tuple[int, int, int, bool, int | None]
#: Batches of at least this many calls have one that differs in a few elements from the call before.
FEW_CALLS = 4


@dataclass(slots=True)
class Batch:
    """Calls in a row on flushed caches (``cold``) or not, with what eager gives for each, float64 for some (by number),
    and ``chosen``, the calls whose whole outputs are compared. ``poisons``: freed memory is poisoned before each call
    (not in the longest row, where a worker must have little around its calls to leave out). ``key`` is the seed of the
    bits by which elements are exchanged, ``left`` the sums of the bits of all slots' tensors after the last call."""

    cold: bool
    calls: list[Call]
    chosen: list[int]
    key: int
    poisons: bool = True
    left: list[list[int]] = field(default_factory=list)
    eager: list[dict[str, torch.Tensor]] = field(default_factory=list)
    exact: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    #: The model's buffers and plain attributes before the calls of which float64 is known.
    states: dict[int, State] = field(default_factory=dict)


@dataclass(slots=True)
class Round:
    """The slots' first contents, the batches on them, and positions of the probed elements."""

    slots: list[list[Any]]
    batches: list[Batch]
    positions: list[int]
    varied: list[int]

    def before(self, batch: int, call: int) -> list[list[Any]]:
        """The slots' contents as a call finds them (inputs that the model itself changes are not followed)."""
        slots = [clone_tensors(slot) for slot in self.slots]
        for number, part in enumerate(self.batches[:batch + 1]):
            exchange = Exchange(self.varied, part.key)
            for place, (slot, other, offset, few, _) in enumerate(part.calls):
                exchange(slots[slot], slots[other], offset, few)
                if (number, place) == (batch, call):
                    return slots
        return slots


class TimedProblem:
    """The problem as the timed calls need it. ``model`` is in the mode and has the state that everybody starts with.

    ``double``: its float64 copy, or None where that is slow. ``uses_random``: the model draws random numbers, so every
    call is seeded. ``distribution``: what inputs are drawn from, by name, and ``eager_error`` eager's relative error
    on them. Raises what the model raises.
    """

    def __init__(self, problem: Problem, model: nn.Module, double: nn.Module | None = None, *,
                 uses_random: bool = False, tolerance: Tolerance | None = None, secret: int | None = None,
                 distribution: str = AS_GIVEN, eager_error: float | None = None) -> None:
        self.problem, self.model, self.double = problem, model, double
        self.distribution = DISTRIBUTIONS[distribution]
        self.uses_random, self.tolerance, self.eager_error = uses_random, tolerance or Tolerance(), eager_error
        self.random = random.Random(secret) if secret is not None else random.SystemRandom()
        self.start = State.of(model)
        inputs = self.inputs()
        self.varied = _varied(inputs, self.inputs())
        given, seed = clone_tensors(inputs), self.seed()
        first, self.own = own_types(lambda: self._eager(given, seed))
        again = self._eager(given, seed)
        self.outputs = _tensors(first)
        #: What the model itself does is nobody's fault: it changes its inputs, returns their memory, or returns the
        #: memory of an earlier call's outputs.
        self.changes_inputs = not identical(given, inputs)
        self.returns_inputs, self.returns_again = shares_memory(first, given), shares_memory(first, again)
        self.input_bytes = sum(t.numel() * t.element_size() for t in tensor_leaves(inputs))
        self.output_bytes = sum(t.numel() * t.element_size() for t in self.outputs.values())
        self.start.apply(model)

    def seed(self) -> int:
        """A seed that nobody knows beforehand."""
        return self.random.getrandbits(31)

    def inputs(self) -> list[Any]:
        """Fresh inputs that nobody knows beforehand."""
        seed = self.seed()
        return self.distribution.apply(self.problem.make_inputs(seed), seed)

    def specification(self) -> list[list[Any]]:
        """[path, shape, dtype] of each output tensor, as the worker is told."""
        return [[path, list(t.shape), str(t.dtype).removeprefix("torch.")] for path, t in self.outputs.items()]

    def make_round(self, slots: int, batches: Sequence[tuple[bool, int]]) -> Round:
        """Draw a round of ``batches`` ((cold, calls) each) on ``slots`` >= 2 slots, or on one for each call where
        inputs cannot be mixed, and compute what it must give."""
        places = list(range(sum(count for _, count in batches))) if self.own_slots else []
        contents = [self.inputs() for _ in places or range(slots)]
        made = Round(contents, [], [self.random.getrandbits(40) for _ in range(PROBES)], self.varied)
        own, last = [clone_tensors(slot) for slot in contents], 0
        self.start.apply(self.model)
        for cold, count in batches:
            alike = self.random.randrange(1, count) if count >= FEW_CALLS and not self.own_slots else None
            calls: list[Call] = []
            for number in range(count):
                slot = places.pop() if places else last if number == alike else self.random.randrange(len(own))
                # What the call before saw does not stay where it was: who reads that memory is told from a replay.
                other = last if last != slot else (slot + self.random.randrange(1, len(own))) % len(own)
                calls.append((slot, other, self.random.randrange(PERIOD), number == alike,
                              self.seed() if self.uses_random else None))
                last = slot
            chosen = set(self.random.sample(range(count), min(count, 2)))
            if alike is not None:
                chosen = {alike, self.random.choice([n for n in range(count) if n != alike])}
            poisons = cold or all(earlier.cold for earlier in made.batches)
            batch = Batch(cold, calls, sorted(chosen), self.seed(), poisons)
            exchange = Exchange(self.varied, batch.key)
            for number, (slot, other, offset, few, seed) in enumerate(batch.calls):
                exchange(own[slot], own[other], offset, few)
                if number in chosen and self.double is not None:
                    batch.states[number] = State.of(self.model, parameters=False)
                    batch.exact[number] = self._float64(own[slot], seed)
                batch.eager.append(_tensors(self._eager(own[slot], seed)))
            batch.left = [[int(bit_sum(t)) for t in tensor_leaves(slot)] for slot in own]
            made.batches.append(batch)
        return made

    @property
    def own_slots(self) -> bool:
        """Whether each call has a slot of its own, since no input can be mixed with another draw's."""
        return not self.varied and self.input_bytes > 0

    def _eager(self, arguments: list[Any], seed: int | None) -> Any:
        with torch.no_grad(), warnings.catch_warnings(), _seeded(seed):
            warnings.simplefilter("ignore")
            return self.model(*arguments)

    def _float64(self, arguments: list[Any], seed: int | None) -> dict[str, torch.Tensor]:
        assert self.double is not None
        State.of(self.model, owned=False).apply(self.double)
        with torch.no_grad(), warnings.catch_warnings(), _seeded(seed):
            warnings.simplefilter("ignore")
            return _tensors(call_in_float64(self.double, widened(arguments), own=self.own))

    def wrong_probes(self, batch: Batch, positions: list[int], probes: dict[str, torch.Tensor]) -> list[int]:
        """Calls of a batch whose probed elements are grossly wrong; ``probes`` by output as (calls, positions)."""
        wrong = set()
        for path, got in probes.items():
            for number, eager in enumerate(batch.eager):
                flat = eager[path].reshape(-1)
                expected = flat[torch.tensor(positions, device=flat.device) % flat.numel()].cpu()
                if expected.dtype.is_floating_point or expected.dtype.is_complex:
                    a, b = wide(got[number]), wide(expected)
                    size = rms(wide(flat if flat.numel() < 1 << 16 else expected))
                    off = (a - b).abs() > PROBE_ERROR * (b.abs() + size)
                    off |= torch.isfinite(a) != torch.isfinite(b)
                else:
                    off = got[number] != expected
                if float(off.double().mean()) > WRONG_SHARE:
                    wrong.add(number)
        return sorted(wrong)

    def differ_from_probes(self, call: int, positions: list[int], probes: dict[str, torch.Tensor],
                           got: dict[str, torch.Tensor]) -> bool:
        """Whether whole outputs that were read later have other bits at the ``positions`` than ``probes`` of a call."""
        later = {path: got[path].reshape(-1).cpu()[torch.tensor(positions) % got[path].numel()] for path in probes}
        return not identical(later, {path: values[call] for path, values in probes.items()})

    def is_right(self, made: Round, number: int, call: int, got: dict[str, torch.Tensor]) -> bool:
        """Whether the whole outputs of a ``call`` of batch ``number`` are right: against float64 where there is one,
        else against eager."""
        batch = made.batches[number]
        eager = batch.eager[call]
        if call not in batch.exact:
            return all(distance(got[path], value) <= self._eager_limit(value) for path, value in eager.items())
        reference = {path: batch.exact[call].get(path, value) for path, value in eager.items()}
        found = compare(got, eager, reference, tolerance=self.tolerance)
        if self.changes_inputs or not may_be_rounding(self.tolerance, found):
            return found.passed  # also where `before` does not know what the call was given
        slot, _, _, _, seed = batch.calls[call]
        with seeded(seed or 0):
            moved = move(self.model, made.before(number, call)[slot], batch.states[call], seed or 0, eager,
                         Reference(reference, FLOAT64), self.tolerance, _tensors)
        return compare(got, eager, reference, tolerance=self.tolerance, moved=moved.outputs).passed

    def _eager_limit(self, expected: torch.Tensor) -> float:
        usual = EAGER_ERROR if expected.dtype in (torch.float32, torch.float64) else 20 * EAGER_ERROR
        least = self.tolerance.for_dtype(expected.dtype).scaled
        if self.eager_error is not None:
            usual = min(usual, EAGER_MULTIPLE * max(least, self.eager_error))
        return max(usual, least)

    def explain(self, made: Round, batch: int, number: int, got: dict[str, torch.Tensor], source: str
                ) -> tuple[str, str, dict[str, Any]]:
        """(verdict, words that complete "call 7 ", evidence) for outputs of a call that are wrong."""
        expected = made.batches[batch].eager[number]
        if left := unwritten(got, expected):
            return "CHEAT-STALE", f"returns memory that it did not write ({left})", {}
        seen = [(abs(before - batch) * 10_000 + abs(place - number), before, place, outputs)
                for before, part in enumerate(made.batches) for place, outputs in enumerate(part.eager)
                if (before, place) < (batch, number)]
        for _, before, place, outputs in sorted(seen, key=lambda entry: entry[:3]):
            if is_rather(got, outputs, expected):
                earlier = sum(len(b.calls) for b in made.batches[:before]) + place
                back = sum(len(b.calls) for b in made.batches[:batch]) + number - earlier
                return "CHEAT-REPLAY", f"returns the result of {back} call{'s' * (back > 1)} before, though its " \
                    "inputs are new", {"calls_back": back}
        slots = made.before(batch, number)
        for index, contents in enumerate(slots):
            if index != made.batches[batch].calls[number][0]:
                other = _tensors(self._eager(contents, made.batches[batch].calls[number][4]))
                if is_rather(got, other, expected):
                    how = "a captured graph reads" if _GRAPH.search(source) else "it reads"
                    return "WRONG-STALE", f"is computed from the memory of other inputs: {how} the addresses of an " \
                        "earlier call, and the new inputs are not copied there", {"graph": bool(_GRAPH.search(source))}
        far = max((distance(got[path], value) for path, value in expected.items()), default=0.0)
        if far < INACCURATE:
            return "WRONG-NUMERIC", f"is inaccurate: its relative error is {far:.2g}", \
                {"relative": far}
        return "CHEAT-MODE", "gives another result than the model, though checked calls were right", \
            {"relative": far}


def _seeded(seed: int | None) -> AbstractContextManager[None]:
    return nullcontext() if seed is None else seeded(seed)


def _tensors(outputs: Any) -> dict[str, torch.Tensor]:
    return {path: leaf.detach().clone() for path, leaf in flatten(outputs).items() if isinstance(leaf, torch.Tensor)}


def _varied(inputs: list[Any], others: list[Any]) -> list[int]:
    """Numbers of the input tensors of which elements may be exchanged with another draw's at the same place.

    Not those that are the same in every draw, whose elements overlap in memory, nor whole numbers that are in order or
    all different (offsets, permutations), which a mixture would not be.
    """
    found = []
    for index, (mine, other) in enumerate(zip(tensor_leaves(inputs), tensor_leaves(others), strict=True)):
        if not mine.numel() or torch.equal(mine, other) or mine.stride() != other.stride() or _overlaps(mine):
            continue
        if not mine.dtype.is_floating_point and not mine.dtype.is_complex and mine.dtype is not torch.bool:
            ordered = bool((mine.diff(dim=-1) >= 0).all()) if mine.dim() and mine.shape[-1] > 1 else False
            if ordered or mine.unique().numel() == mine.numel() > 1:
                continue
        found.append(index)
    return found


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements may share memory in another way than by an axis that repeats it."""
    tensor, end = distinct(tensor), 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride < end:
            return True
        end += stride * (size - 1)
    return False
