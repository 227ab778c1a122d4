"""Timed calls that are checked calls: what each call of a round must give, and what it is where it gives another.

A round is a few batches of calls on slots of inputs, the same for all who are timed in it. Contents come from the
problem's own `make_inputs` under secret seeds; before and after each call elements of its slot are exchanged with those
of another slot, few or many, so that no call sees contents that were there before, a stored result is another call's,
and one computed from memory of another slot is told apart from both. The judge walks through the same contents with the
model in its own process; it needs nothing that a worker says.
"""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kernelwright.judge.inside.variation import tensor_leaves, vary
from kernelwright.problem import Problem
from kernelwright.problem.seeds import seeded
from kernelwright.verify.compare import Tolerance, compare
from kernelwright.verify.distributions import AS_GIVEN, DISTRIBUTIONS
from kernelwright.verify.flatten import clone_tensors, flatten
from kernelwright.verify.state import State, call_in_float64, widened

#: Elements of every call's outputs that are looked at, beside the whole outputs of a few calls.
PROBES = 64
#: A probed call is wrong where this share of its probes is off by more than PROBE_ERROR of the output's size.
WRONG_SHARE, PROBE_ERROR = 0.1, 0.02
#: Relative error of a whole output held against eager alone, where float64 is too slow.
EAGER_ERROR = 1e-3
#: A wrong output nearer to right than this is an inaccurate one, and no other computation.
INACCURATE = 0.02
_GRAPH = re.compile(r"CUDAGraph|cudaGraph|make_graphed_callables|reduce-overhead|max-autotune")
Call = tuple[int, int, list[list[int]], list[list[int]], int | None]


@dataclass(slots=True)
class Batch:
    """Calls in a row on flushed caches (``cold``) or not, with what eager gives for each, float64 for some (by number),
    and ``chosen``, the calls whose whole outputs are compared."""

    cold: bool
    calls: list[Call]
    chosen: list[int]
    eager: list[dict[str, torch.Tensor]] = field(default_factory=list)
    exact: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)


@dataclass(slots=True)
class Round:
    """The slots' first contents, the batches on them, and positions of the probed elements."""

    slots: list[list[Any]]
    batches: list[Batch]
    positions: list[int]

    def before(self, batch: int, call: int) -> list[list[Any]]:
        """The slots' contents as a call finds them (inputs that the model itself changes are not followed)."""
        slots = [clone_tensors(slot) for slot in self.slots]
        for number, part in enumerate(self.batches[:batch + 1]):
            for place, (slot, donor, first, after, _) in enumerate(part.calls):
                vary(slots[slot], slots[donor], first)
                if (number, place) == (batch, call):
                    return slots
                vary(slots[slot], slots[donor], after)
        return slots


class TimedProblem:
    """The problem as the timed calls need it. ``model`` is in the mode and has the state that everybody starts with.

    ``double``: its float64 copy, or None where that is slow. ``uses_random``: the model draws random numbers, so every
    call is seeded. ``distribution``: what inputs are drawn from, by name. Raises what the model raises.
    """

    def __init__(self, problem: Problem, model: nn.Module, double: nn.Module | None = None, *,
                 uses_random: bool = False, tolerance: Tolerance | None = None, secret: int | None = None,
                 distribution: str = AS_GIVEN) -> None:
        self.problem, self.model, self.double = problem, model, double
        self.distribution = DISTRIBUTIONS[distribution]
        self.uses_random, self.tolerance = uses_random, tolerance
        self.random = random.Random(secret) if secret is not None else random.SystemRandom()
        self.start = State.of(model)
        inputs = self.inputs()
        self.varied = _varied(inputs, self.inputs())
        self.outputs = _tensors(self._eager(clone_tensors(inputs), self.seed()))
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
        """Draw a round of ``batches`` ((cold, calls) each) on ``slots`` >= 2 slots, and compute what it must give."""
        contents = [self.inputs() for _ in range(slots)]
        made = Round(contents, [], [self.random.getrandbits(40) for _ in range(PROBES)])
        own = [clone_tensors(slot) for slot in contents]
        self.start.apply(self.model)
        for cold, count in batches:
            chosen = sorted(self.random.sample(range(count), min(count, 2)))
            batch = Batch(cold, [self._call(own, slots) for _ in range(count)], chosen)
            for number, (slot, donor, first, after, seed) in enumerate(batch.calls):
                vary(own[slot], own[donor], first)
                if number in chosen and self.double is not None:
                    batch.exact[number] = self._float64(own[slot], seed)
                batch.eager.append(_tensors(self._eager(own[slot], seed)))
                vary(own[slot], own[donor], after)
            made.batches.append(batch)
        return made

    def _call(self, slots: list[list[Any]], count: int) -> Call:
        slot = self.random.randrange(count)
        donor = (slot + self.random.randrange(1, count)) % count
        sizes = [t.numel() for t in tensor_leaves(slots[slot])]
        density = self.random.choice((1 / 1024, 1 / 16, 1 / 2))
        before = [self._move(i, sizes[i], min(32, max(1, sizes[i] // 64)), False) for i in self.varied]
        after = [self._move(i, sizes[i], max(1, int(sizes[i] * density)), density > 1 / 100) for i in self.varied]
        return slot, donor, before, after, self.seed() if self.uses_random else None

    def _move(self, index: int, size: int, count: int, block: bool) -> list[int]:
        """``count`` elements of a tensor of ``size``: in a row, or spread over it."""
        step = 1 if block else self.random.randint(max(1, size // count // 2), max(1, size // count))
        return [index, self.random.randrange(size - (count - 1) * step), step, count]

    def _eager(self, arguments: list[Any], seed: int | None) -> Any:
        with torch.no_grad(), warnings.catch_warnings(), _seeded(seed):
            warnings.simplefilter("ignore")
            return self.model(*arguments)

    def _float64(self, arguments: list[Any], seed: int | None) -> dict[str, torch.Tensor]:
        assert self.double is not None
        State.of(self.model, owned=False).apply(self.double)
        with torch.no_grad(), warnings.catch_warnings(), _seeded(seed):
            warnings.simplefilter("ignore")
            return _tensors(call_in_float64(self.double, widened(arguments)))

    def wrong_probes(self, batch: Batch, positions: list[int], probes: dict[str, torch.Tensor]) -> list[int]:
        """Calls of a batch whose probed elements are grossly wrong; ``probes`` by output as (calls, positions)."""
        wrong = set()
        for path, got in probes.items():
            for number, eager in enumerate(batch.eager):
                flat = eager[path].reshape(-1)
                expected = flat[torch.tensor(positions, device=flat.device) % flat.numel()].cpu()
                if expected.dtype.is_floating_point or expected.dtype.is_complex:
                    a, b = _wide(got[number]), _wide(expected)
                    size = _rms(_wide(flat if flat.numel() < 1 << 16 else expected))
                    off = (a - b).abs() > PROBE_ERROR * (b.abs() + size)
                    off |= torch.isfinite(a) != torch.isfinite(b)
                else:
                    off = got[number] != expected
                if float(off.double().mean()) > WRONG_SHARE:
                    wrong.add(number)
        return sorted(wrong)

    def is_right(self, batch: Batch, number: int, got: dict[str, torch.Tensor]) -> bool:
        """Whether a call's whole outputs are right: against float64 where there is one, else against eager."""
        eager = batch.eager[number]
        if number in batch.exact:
            reference = {path: batch.exact[number].get(path, value) for path, value in eager.items()}
            return compare(got, eager, reference, tolerance=self.tolerance).passed
        return all(_distance(got[path], expected) <= _eager_limit(expected) for path, expected in eager.items())

    def explain(self, made: Round, batch: int, number: int, got: dict[str, torch.Tensor], source: str
                ) -> tuple[str, str, dict[str, Any]]:
        """(verdict, words that complete "call 7 ", evidence) for outputs of a call that are wrong."""
        expected = made.batches[batch].eager[number]
        unwritten = _unwritten(got, expected)
        if unwritten:
            return "CHEAT-STALE", f"returns memory that it did not write ({unwritten})", {}
        seen = [(abs(before - batch) * 10_000 + abs(place - number), before, place, outputs)
                for before, part in enumerate(made.batches) for place, outputs in enumerate(part.eager)
                if (before, place) < (batch, number)]
        for _, before, place, outputs in sorted(seen, key=lambda entry: entry[:3]):
            if _is_rather(got, outputs, expected):
                earlier = sum(len(b.calls) for b in made.batches[:before]) + place
                back = sum(len(b.calls) for b in made.batches[:batch]) + number - earlier
                return "CHEAT-REPLAY", f"returns the result of {back} call{'s' * (back > 1)} before, though its " \
                    "inputs are new", {"calls_back": back}
        slots = made.before(batch, number)
        for index, contents in enumerate(slots):
            if index != made.batches[batch].calls[number][0]:
                other = _tensors(self._eager(contents, made.batches[batch].calls[number][4]))
                if _is_rather(got, other, expected):
                    how = "a captured graph reads" if _GRAPH.search(source) else "it reads"
                    return "WRONG-STALE", f"is computed from the memory of other inputs: {how} the addresses of an " \
                        "earlier call, and the new inputs are not copied there", {"graph": bool(_GRAPH.search(source))}
        distance = max((_distance(got[path], value) for path, value in expected.items()), default=0.0)
        if distance < INACCURATE:
            return "WRONG-NUMERIC", f"is inaccurate: its error is {distance:.2g} of the output's size", \
                {"relative": distance}
        return "CHEAT-MODE", "gives another result than the model, though checked calls were right", \
            {"relative": distance}


def _seeded(seed: int | None) -> AbstractContextManager[None]:
    return nullcontext() if seed is None else seeded(seed)


def _tensors(outputs: Any) -> dict[str, torch.Tensor]:
    return {path: leaf.detach().clone() for path, leaf in flatten(outputs).items() if isinstance(leaf, torch.Tensor)}


def _varied(inputs: list[Any], others: list[Any]) -> list[int]:
    """Numbers of the input tensors of which elements may be exchanged with another draw's at the same place.

    Not those that are the same in every draw, nor whole numbers that are in order or all different (offsets,
    permutations), which a mixture would not be.
    """
    found = []
    for index, (mine, other) in enumerate(zip(tensor_leaves(inputs), tensor_leaves(others), strict=True)):
        if not mine.is_contiguous() or not mine.numel() or torch.equal(mine, other):
            continue
        if not mine.dtype.is_floating_point and not mine.dtype.is_complex and mine.dtype is not torch.bool:
            ordered = bool((mine.diff(dim=-1) >= 0).all()) if mine.dim() and mine.shape[-1] > 1 else False
            if ordered or mine.unique().numel() == mine.numel() > 1:
                continue
        found.append(index)
    return found


def _unwritten(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> str:
    """In words how much of the outputs was left as it was; empty where that is not so."""
    for path, value in got.items():
        right = expected[path]
        if not value.numel():
            continue
        if value.dtype.is_floating_point or value.dtype.is_complex:
            share = float((torch.isnan(value) & ~torch.isnan(right)).double().mean())
            if share:
                return f"{share:.1%} of {path} is still what was there before the call"
        elif value.dtype is not torch.bool and bool((value == 0x6B).all()) and not bool((right == 0x6B).all()):
            return f"{path} is still what was there before the call"
        if not bool(value.any()) and bool(right.any()):
            return f"{path} is all zeros, as fresh memory is"
    return ""


def _is_rather(got: dict[str, torch.Tensor], other: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether outputs are another computation's: much nearer to it than it is to what was expected."""
    apart = max((_distance(other[path], value) for path, value in expected.items()), default=0.0)
    near = max((_distance(value, other[path]) for path, value in got.items()), default=math.inf)
    return near <= min(0.05 * apart, EAGER_ERROR * 10)


def _distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    """rms(difference) / rms(expected); the share of differing elements for whole numbers; inf for misplaced NaN."""
    if not expected.numel():
        return 0.0
    if not expected.dtype.is_floating_point and not expected.dtype.is_complex:
        return float((got.cpu() != expected.cpu()).double().mean())
    a, b = _wide(got), _wide(expected)
    finite = torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), finite):
        return math.inf
    size = _rms(b[finite])
    error = _rms((a - b)[finite])
    return error / size if size else (0.0 if not error else math.inf)


def _eager_limit(expected: torch.Tensor) -> float:
    return EAGER_ERROR if expected.dtype in (torch.float32, torch.float64) else 20 * EAGER_ERROR


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.abs().square().mean().sqrt()) if tensor.numel() else 0.0
