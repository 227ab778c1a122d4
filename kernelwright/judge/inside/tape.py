"""What PyTorch's operators do in a call, recorded, and done again without the candidate: are its own kernels needed?

A call's operators are written down with the storages that they read and write. Then the same operators run on copies of
what was there before the call, and nothing else does: what the candidate's own code would have written stays as it
was, or poison where nothing was. If outputs and state come out with the same bits, the own kernels had no part in them.

Whatever does not fit this picture says "not known": operators that depend on values (a number read from a tensor may
come from an own kernel), tensors without storages, an operator that raises in the repetition, operators that run only
where they are recorded (kernels that need tensors' memory step back under such a mode, as those of our own files do).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from inside.state import places, value_of
from inside.tensors import whole
from inside.timed_calls import named_leaves, timed_calls
from inside.variation import tensor_leaves
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

_storage, _equal, _clone, _fill, _copy = (torch.Tensor.untyped_storage, torch.equal, torch.Tensor.clone,
                                          torch.Tensor.fill_, torch.Tensor.copy_)
_seed, _no_grad, _join = torch.manual_seed, torch.no_grad, torch.cuda.synchronize
#: Operators of these libraries are PyTorch's; one of any other is the candidate's own.
_LIBRARIES = frozenset(("aten", "prims", "mkl", "mkldnn", "onednn", "quantized", "quantized_decomposed", "torchvision"))
#: What they return holds nothing yet.
_EMPTY = frozenset(("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"))
_NAN, _NOTHING = 0xFF, 0  # all bits of a floating number set are a NaN; a whole number of poison must be an index


class NotKnown(Exception):
    """A call does something that cannot be repeated without the candidate."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: a storage by number, and which of its elements."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Step:
    """An operator with its arguments and results, tensors as places."""

    operator: Any
    arguments: Any
    results: Any


class Tape(TorchDispatchMode):
    """Records the operators of the calls that are made under it. ``outside``: storages that no operator has made."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.storages: dict[int, torch.UntypedStorage] = {}  # which keeps them alive, so that numbers stay theirs
        self.outside: dict[int, torch.dtype] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        own = getattr(func, "namespace", "") not in _LIBRARIES
        before = None if own else tree_map(lambda leaf: self.place(leaf, made=False), given)
        results = func(*args, **(kwargs or {}))
        if not own:
            self.steps.append(Step(func, before, tree_map(lambda leaf: self.place(leaf, made=True), results)))
        return results

    def place(self, leaf: Any, *, made: bool) -> Any:
        """The place of a tensor; anything else as it is. ``made``: an operator has just returned it."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.is_nested or leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_conj() or leaf.is_neg():
            raise NotKnown("a tensor without plain memory")
        storage = _storage(leaf)
        number, offset = storage._cdata, int(leaf.storage_offset())
        if number not in self.storages:
            above = None if made else self._within(storage)
            if above is None:
                self.storages[number] = storage
                if not made:
                    self.outside[number] = leaf.dtype
            else:  # another storage's memory under a name of its own, as NumPy's arrays are
                number, skipped = above
                if skipped % leaf.element_size():
                    raise NotKnown("a tensor across the elements of another")
                offset += skipped // leaf.element_size()
        return Place(number, leaf.dtype, tuple(leaf.size()), tuple(leaf.stride()), offset)

    def _within(self, storage: torch.UntypedStorage) -> tuple[int, int] | None:
        """The known storage in whose memory another one lies, and how many bytes after its beginning."""
        begin, count = storage.data_ptr(), storage.nbytes()
        for number, known in self.storages.items():
            first = known.data_ptr()
            if count and known.device == storage.device and first <= begin and begin + count <= first + known.nbytes():
                return number, begin - first
        return None

    def form(self) -> list[str]:
        """All of the steps but the tensors: what must not depend on values."""
        return [f"{step.operator}{tree_map(_shape, (step.arguments, step.results))}" for step in self.steps]

    def counts(self) -> Counter[str]:
        """How often each operator ran, by its name as a profiler has it."""
        return Counter(step.operator.name().partition(".")[0] for step in self.steps)


def _shape(leaf: Any) -> Any:
    return (leaf.dtype, leaf.size, leaf.stride) if isinstance(leaf, Place) else leaf


class Repetition:
    """The steps of a tape on memory of their own. ``start``: bytes that storages begin with, by number."""

    def __init__(self, tape: Tape, start: dict[int, torch.Tensor]) -> None:
        self.tape = tape
        self.storages = {number: _storage(_clone(content)) for number, content in start.items()}

    def run(self) -> None:
        """Run all steps. Raises NotKnown, and what an operator raises."""
        for step in self.tape.steps:
            arguments, options = tree_map(self.tensor, step.arguments)
            results, form = tree_flatten(step.operator(*arguments, **options))
            wanted, expected = tree_flatten(step.results)
            if form != expected:
                raise NotKnown(f"{step.operator} returns something else when it is repeated")
            for result, place in zip(results, wanted, strict=True):
                self._take(step, result, place)
            del results

    def _take(self, step: Step, result: Any, place: Any) -> None:
        if not isinstance(place, Place):
            if repr(result) != repr(place):
                raise NotKnown(f"{step.operator} gives another number when it is repeated")
            return
        if (tuple(result.size()), tuple(result.stride()), result.dtype) != (place.size, place.stride, place.dtype):
            raise NotKnown(f"{step.operator} returns something else when it is repeated")
        if place.storage not in self.storages:
            self.storages[place.storage] = _storage(result)
            if step.operator.overloadpacket.__name__ in _EMPTY:
                _poison(self.storages[place.storage], place.dtype)

    def tensor(self, place: Any) -> Any:
        """The tensor at a place; poison where no step has written. Anything else as it is."""
        if not isinstance(place, Place):
            return place
        if place.storage not in self.storages:
            like = self.tape.storages[place.storage]
            self.storages[place.storage] = _storage(torch.empty(like.nbytes(), dtype=torch.uint8, device=like.device))
            _poison(self.storages[place.storage], place.dtype)
        return _at(self.storages[place.storage], place)


def _at(storage: torch.UntypedStorage, place: Place) -> torch.Tensor:
    return torch.empty(0, dtype=place.dtype, device=storage.device).set_(storage, place.offset, place.size,
                                                                         place.stride)


def _poison(storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
    _fill(whole(storage), _NAN if dtype.is_floating_point or dtype.is_complex else _NOTHING)


class Alone:
    """Calls of a candidate on the timed calls' first slot, recorded and repeated."""

    def __init__(self, session: Any) -> None:
        self.candidate, self.cuda, self.device = session.candidate, session.place.cuda, session.place.device
        self.slots = timed_calls(session).slots
        self.form: list[str] | None = None  # None: no call has been recorded that tells
        self.kept: dict[int, tuple[torch.UntypedStorage, torch.dtype]] = {}
        self.constant: set[int] | None = None

    def learn(self) -> None:
        """Record a call: which steps there are, and which storages outlive calls beside inputs and state. Raises
        NotKnown where the candidate runs other operators under a record than without."""
        tape, _ = self._recorded()
        if added := tape.counts() - self._profiled():
            raise NotKnown(f"only a call that is recorded runs {', '.join(sorted(added))}")
        given = self._given()
        self.form = tape.form()
        self.kept = {number: (tape.storages[number], dtype) for number, dtype in tape.outside.items()
                     if number not in given and tape.storages[number].nbytes()}

    def same(self, names: list[str], seed: int) -> bool:
        """Whether PyTorch's operators alone give outputs and state (``names``) with the same bits, on inputs and
        parameters other than those of the calls before. Raises NotKnown, and what the candidate raises."""
        if self.constant is None:
            self.constant = self._constant()
        given = self._given() | {number: self.kept[number][0] for number in self.constant}
        start = {number: _clone(whole(storage)) for number, storage in given.items()}
        _seed(seed)
        tape, result = self._recorded()
        if tape.form() != self.form:
            raise NotKnown("which operators run depends on values")
        # A kept storage that a call writes begins as poison: what an earlier call left there must not be taken for
        # what PyTorch's operators made.
        again = Repetition(tape, start)
        leaves = [leaf for leaf in named_leaves(result).values() if isinstance(leaf, torch.Tensor)]
        leaves += [*tensor_leaves(self.slots[0]), *self._state(names)]
        ends = [tape.place(leaf.detach(), made=False) for leaf in leaves]
        _seed(seed)
        with _no_grad():
            again.run()
            self._wait()
            return all(_same_bits(leaf.detach(), again.tensor(end)) for leaf, end in zip(leaves, ends, strict=True))

    def _recorded(self) -> tuple[Tape, Any]:
        with _no_grad(), Tape() as tape:
            result = self.candidate(*self.slots[0])
        self._wait()
        return tape, result

    def _profiled(self) -> Counter[str]:
        """How often each operator runs in a call that nobody records."""
        from torch.profiler import ProfilerActivity, profile

        with _no_grad(), profile(activities=[ProfilerActivity.CPU]) as profiler:
            self.candidate(*self.slots[0])
            self._wait()
        return Counter(str(event.name) for event in profiler.events() or ())

    def _wait(self) -> None:
        if self.cuda:
            _join(self.device)

    def _given(self) -> dict[int, torch.UntypedStorage]:
        """Storages of inputs, parameters and buffers."""
        tensors = [*tensor_leaves(self.slots[0]), *(value_of(kind, owner, name) for kind, _, owner, name in
                                                    places(self.candidate) if kind != "a")]
        return {storage._cdata: storage for storage in map(_storage, tensors)}

    def _state(self, names: list[str]) -> list[torch.Tensor]:
        """The tensors of the state that the model has, too."""
        return [leaf for kind, path, owner, name in places(self.candidate) if path in names
                for leaf in tensor_leaves(value_of(kind, owner, name))]

    def _constant(self) -> set[int]:
        """Kept storages that a call only reads: those that still hold the poison in which it found them. One that held
        it before is none, as nothing can be told of it."""
        if not self.kept:
            return set()
        saved = {number: _clone(whole(storage)) for number, (storage, _) in self.kept.items()}
        poison = {}
        for number, (storage, dtype) in self.kept.items():
            _poison(storage, dtype)
            poison[number] = _clone(whole(storage))
        try:
            with _no_grad():
                self.candidate(*self.slots[0])
            self._wait()
            return {number for number, (storage, _) in self.kept.items()
                    if _equal(whole(storage), poison[number]) and not _equal(saved[number], poison[number])}
        finally:
            for number, (storage, _) in self.kept.items():
                _copy(whole(storage), saved[number])


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if _equal(left, right):
        return True
    return _equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (left, right)))


def _alone(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """``learn``: record a call, and tell nothing. Else whether PyTorch's operators alone give the same: true, false, or
    null with the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if payload["learn"]:
                session.alone = Alone(session)
                session.alone.learn()
                return {"same": None, "why": ""}
            return {"same": session.alone.same(payload["state"], payload["seed"]), "why": ""}
    except Exception as error:  # a candidate that cannot be called so is told nothing of
        return {"same": None, "why": f"{type(error).__name__}: {error}"[:300]}


HANDLERS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {"alone": _alone}
