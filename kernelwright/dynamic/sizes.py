"""The sizes that a file is asked to serve: axes of arguments with lowest and highest values; and inputs of such."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from kernelwright.capture.forms import flat
from kernelwright.containers import restored
from kernelwright.dynamic.formulas import Sizes
from kernelwright.errors import DynamicSizesInvalid
from kernelwright.problem import Problem
from kernelwright.problem.arguments import forward_signature, received, split
from kernelwright.problem.memory import amount, available_memory
from kernelwright.settings import Axis, axis_of

#: How many draws of the example's inputs stand behind each other along an axis; longer ones repeat them.
MOST_DRAWS = 64
#: A check holds as many times the memory of the inputs: them and those in float64, what the model gives, what the
#: kernels give, and what is compared.
_HELD = 8


@dataclass(frozen=True, slots=True)
class Size:
    """One size. name: in the file's text; example: its value there. places: the arguments, by number among the leaves,
    and their axes; argument: the name of the first one."""

    name: str
    low: int
    high: int
    example: int
    places: tuple[tuple[int, int], ...]
    argument: str


def sizes_of(asked: Sequence[str], model: nn.Module, example: Sequence[Any]) -> tuple[Size, ...]:
    """The sizes that were asked for. Axes of one name are one size; without names, axes of equal size in the example
    and of equal range are.

    Raises DynamicSizesInvalid (KW406) for what does not fit the model's arguments.
    """
    leaves, structure = flat(received(model, example))
    if any(own is not given for own, given in zip(leaves, flat(example)[0], strict=False)):
        raise DynamicSizesInvalid(asked=asked[0], found="hooks of the model change its arguments")
    positional, keywords = split(structure)
    signature = forward_signature(model)
    names = [] if signature is None else [p.name for p in signature.parameters.values()
                                          if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    places = {**dict(zip(names, positional, strict=False)), **keywords}
    found: dict[Any, list[tuple[Axis, int, int]]] = {}
    for text in asked:
        axis = axis_of(text)
        if axis.argument not in places:
            raise DynamicSizesInvalid(asked=text, found=f"forward has no argument {axis.argument} in the example call; "
                                      f"it has {', '.join(places) or 'none'}")
        place = places[axis.argument]
        value = leaves[place] if isinstance(place, int) else None
        if not isinstance(value, torch.Tensor):
            raise DynamicSizesInvalid(asked=text, found=f"the argument {axis.argument} is no tensor")
        if not 0 <= axis.number < value.ndim:
            raise DynamicSizesInvalid(asked=text, found=f"{axis.argument} has {value.ndim} axes, from 0 on")
        size = value.shape[axis.number]
        if not axis.low <= size <= axis.high:
            raise DynamicSizesInvalid(asked=text, found=f"axis {axis.number} of {axis.argument} has {size} elements in "
                                      "the example, which is outside of the range")
        found.setdefault(axis.name or (size, axis.low, axis.high), []).append((axis, place, size))
    result = []
    for axes in found.values():
        first, _, size = axes[0]
        for axis, _, other in axes:
            if (other, axis.low, axis.high) != (size, first.low, first.high):
                raise DynamicSizesInvalid(asked=axis.text(), found=f"{first.text()} has the same name, and another "
                                          "range or another number of elements in the example")
        name = f"size_{first.name}" if first.name else f"size_{first.argument}{first.number}"
        result.append(Size(name, first.low, first.high, size, tuple((place, axis.number) for axis, place, _ in axes),
                           first.argument))
    _require_memory(asked, result, leaves)
    return tuple(result)


def _require_memory(asked: Sequence[str], sizes: Sequence[Size], leaves: Sequence[Any]) -> None:
    """See that the file can be checked where all sizes are the highest. Raises DynamicSizesInvalid (KW406)."""
    highest: dict[int, int] = {}
    for size in sizes:
        for place, axis in size.places:
            tensor = leaves[place]
            highest[place] = highest.get(place, tensor.numel()) // tensor.shape[axis] * size.high
    needed = _HELD * sum(count * leaves[place].element_size() for place, count in highest.items())
    free = available_memory(leaves[next(iter(highest))].device) if highest else None
    if free is not None and needed > free:
        raise DynamicSizesInvalid(asked=", ".join(asked), found=f"to check the highest sizes takes {amount(needed)}, "
                                  f"and {amount(free)} are free")


def of_sizes(problem: Problem, sizes: Sequence[Size], point: Sizes) -> Problem:
    """The problem with inputs of other sizes: elements of the example's kind, along longer axes of several draws."""
    return replace(problem, build_inputs=lambda seed: _inputs(problem, sizes, point, seed, draws=True))


def inputs_like(problem: Problem, example: list[Any], sizes: Sequence[Size], point: Sizes) -> list[Any]:
    """Inputs of some sizes whose elements are the example's, again and again along longer axes."""
    return _inputs(replace(problem, build_inputs=lambda seed: example), sizes, point, 0, draws=False)


def _inputs(problem: Problem, sizes: Sequence[Size], point: Sizes, seed: int, *, draws: bool) -> list[Any]:
    if all(size.example == value for size, value in zip(sizes, point, strict=True)):
        return problem.build_inputs(seed)
    axes: dict[int, list[tuple[int, int]]] = {}
    for size, value in zip(sizes, point, strict=True):
        for place, axis in size.places:
            axes.setdefault(place, []).append((axis, value))
    leaves, structure = flat(problem.build_inputs(seed))

    def drawn(place: int, draw: int) -> torch.Tensor:
        return (flat(problem.build_inputs(seed + 7919 * draw))[0] if draw and draws else leaves)[place]

    made = {place: _resized(lambda draw, place=place: drawn(place, draw), wanted) for place, wanted in axes.items()}
    return restored(structure, [made.get(place, leaf) for place, leaf in enumerate(leaves)])


def _resized(drawn: Any, wanted: Sequence[tuple[int, int]]) -> torch.Tensor:
    """A tensor with other sizes along some axes. drawn: the tensor of each draw."""
    first = drawn(0)
    counts = [-(-value // first.shape[axis]) for axis, value in wanted]
    draws = [min(count, MOST_DRAWS) for count in counts]
    tensors = {places: drawn(number) for number, places in enumerate(itertools.product(*map(range, draws)))}
    for number in reversed(range(len(wanted))):
        axis, value = wanted[number]
        joined: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for places, tensor in tensors.items():
            joined.setdefault(places[:number], []).append(tensor)
        times = -(-counts[number] // draws[number])
        tensors = {places: torch.cat(parts * times, axis).narrow(axis, 0, value) for places, parts in joined.items()}
    result = tensors[()]
    order = sorted(range(first.ndim), key=lambda axis: (-first.stride(axis), axis))  # as the example lies in memory
    laid = torch.empty([result.shape[axis] for axis in order], dtype=result.dtype, device=result.device)
    laid = laid.permute([order.index(axis) for axis in range(first.ndim)]).copy_(result.detach())
    return laid.requires_grad_(first.requires_grad)
