"""How inputs change between timed calls. Used by both sides, which must make the same contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

_view, _copy, _where, _no_grad = torch.Tensor.view, torch.Tensor.copy_, torch.where, torch.no_grad
_reshape, _permute, _narrow, _empty = torch.Tensor.reshape, torch.Tensor.permute, torch.Tensor.narrow, torch.empty
_generator, _randint, _tile, _size = torch.Generator, torch.randint, torch.Tensor.repeat, torch.Tensor.size
_stride, _is_contiguous, _numel = torch.Tensor.stride, torch.Tensor.is_contiguous, torch.Tensor.numel
_element_size, _less, _xor, _and = torch.Tensor.element_size, torch.lt, torch.bitwise_xor, torch.bitwise_and
#: Drawn numbers repeat after this many elements: a prime, so that they stand differently in each row of a tensor.
PERIOD = 65521
_RANGE = 1 << 16
#: Share of elements that is exchanged where few are, and how many are about the least.
FEW_SHARE, FEW = 1 / 1024, 16
#: Elements that are exchanged at once, in periods: what fits into a processor's cache; on a GPU few launches.
_PERIODS = {"cpu": 8, "cuda": 256}
#: Elements are moved as integers of their width, which any device can do.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tensor_leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensor_leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensor_leaves(item)


class Exchange:
    """Exchanges elements of inputs with those of others at the same places, which are drawn from ``seed``.

    ``varied`` are the numbers of the tensors that are exchanged. They may have any layout in which no two elements
    overlap, but for axes that repeat their memory. What it needs beside them it keeps: memory that it freed would lie
    there for a candidate to return, with inputs in it instead of poison.
    """

    def __init__(self, varied: Sequence[int], seed: int) -> None:
        self.varied = varied
        self._drawn = _randint(_RANGE, (PERIOD,), generator=_generator().manual_seed(seed), dtype=torch.int32)
        self._numbers: dict[torch.device, torch.Tensor] = {}
        self._memory: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
        self._masks: dict[tuple[torch.dtype, int], torch.Tensor] = {}

    def __call__(self, arguments: Any, others: Any, offset: int, few: bool) -> None:
        """Exchange, in place, about half of the elements of ``arguments`` with those of ``others``, or a ``few``; at
        other places for each ``offset`` (below `PERIOD`).

        Values stay where they are valid: both are draws of the problem's own. They are exchanged, not copied: slots
        that take each other's values are soon alike, and a replayed result is right then. The places are spread over
        all of a tensor: were they a block, or a row, results of the other rows could be taken over from earlier calls.
        """
        if not self.varied:
            return
        targets, sources = list(tensor_leaves(arguments)), list(tensor_leaves(others))
        with _no_grad():
            for index in self.varied:
                self._one(targets[index], sources[index], offset, few)

    def _one(self, here: torch.Tensor, there: torch.Tensor, offset: int, few: bool) -> None:
        here, there = distinct(here), distinct(there)
        share = min(0.5, max(FEW_SHARE, FEW / _numel(here))) if few else 0.5
        limit = int(share * _RANGE)
        if (kind := _INTEGERS.get(_element_size(here))) is not None:
            here, there = _view(here, kind), _view(there, kind)
        if (line := in_order(here)) is None:
            numbers = _narrow(self._spread(here, _numel(here)), 0, offset, _numel(here))
            self._exchange(here, there, _reshape(numbers, _size(here)), limit)
            return
        other = in_order(there)
        assert other is not None  # what varies has the same strides in every draw
        here, there = line, other
        step = PERIOD * _PERIODS.get(here.device.type, 8)
        most = min(step, _numel(here))
        mask = self._mask(kind, limit, most) if kind is not None and here.device.type == "cpu" else None
        numbers = self._spread(here, most) if mask is None else mask
        for begin in range(0, _numel(here), step):
            count = min(step, _numel(here) - begin)
            parts = _narrow(here, 0, begin, count), _narrow(there, 0, begin, count), _narrow(numbers, 0, offset, count)
            if mask is None:
                self._exchange(*parts, limit)
            else:
                self._exchange_masked(*parts)

    def _exchange(self, here: torch.Tensor, there: torch.Tensor, numbers: torch.Tensor, limit: int) -> None:
        bits, held = self._kept(here, torch.bool), self._kept(here, here.dtype)
        _less(numbers, limit, out=bits)
        _where(bits, there, here, out=held)
        _where(bits, here, there, out=there)
        _copy(here, held)

    def _exchange_masked(self, here: torch.Tensor, there: torch.Tensor, mask: torch.Tensor) -> None:
        """The same by exclusive ors, on a processor: a tenth of the time, all of which is around timed calls."""
        held = self._kept(here, here.dtype)
        _xor(here, there, out=held)
        _and(held, mask, out=held)
        _xor(here, held, out=here)
        _xor(there, held, out=there)

    def _mask(self, kind: torch.dtype, limit: int, count: int) -> torch.Tensor:
        """All bits of integers of type ``kind`` set where the drawn numbers are below ``limit``, for ``count`` elements
        from any offset on."""
        found = self._masks.get((kind, limit))
        if found is None or len(found) < count + PERIOD:
            bits = _where(_less(self._drawn, limit), -1, 0).to(kind)
            found = self._masks[kind, limit] = _tile(bits, (-(-count // PERIOD) + 1,))
        return found

    def _kept(self, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Memory for as many elements as a tensor has, in its shape."""
        found = self._memory.get((like.device, dtype))
        if found is None or _numel(found) < _numel(like):
            found = self._memory[like.device, dtype] = _empty(_numel(like), dtype=dtype, device=like.device)
        return _reshape(_narrow(found, 0, 0, _numel(like)), _size(like))

    def _spread(self, like: torch.Tensor, count: int) -> torch.Tensor:
        """The drawn numbers on a tensor's device, repeated, for ``count`` elements from any offset on."""
        found = self._numbers.get(like.device)
        if found is None or len(found) < count + PERIOD:
            found = self._numbers[like.device] = _tile(self._drawn.to(like.device), (-(-count // PERIOD) + 1,))
        return found


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is left where axes that repeat their memory (a stride of zero) count once."""
    for axis, (size, stride) in enumerate(zip(_size(tensor), _stride(tensor), strict=True)):
        if stride == 0 and size > 1:
            tensor = _narrow(tensor, axis, 0, 1)
    return tensor


def in_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements as one axis in the order in which they lie in memory, without a copy; None where there are gaps."""
    if not _is_contiguous(tensor):
        strides = _stride(tensor)
        tensor = _permute(tensor, sorted(range(len(strides)), key=lambda axis: -strides[axis]))
    return _view(tensor, -1) if _is_contiguous(tensor) else None
