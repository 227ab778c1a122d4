"""Submodules that stay with PyTorch inside a graph: a call of one is a node, which calls the module itself.

So it is where a submodule has hooks, which are any Python, or does what no graph holds (decides by values, changes a
parameter): the rest of the model need not stay as it is for that. A real call is looked at first: what goes in, what
comes out, and what it leaves changed.
"""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kernelwright.capture.forms import HOOKS
from kernelwright.capture.values import NotCapturable, dtype_name
from kernelwright.containers import Unsupported, restored, structure_of
from kernelwright.ir.node import Node, walk
from kernelwright.ir.ops.leaves import PART
from kernelwright.problem.arguments import split
from kernelwright.problem.inputs import fresh_copy, map_tensors, random_like
from kernelwright.problem.seeds import random_states, seeded
from kernelwright.problem.state import differences, plain_attributes, tensors

_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_numbers = itertools.count()
_calls: weakref.WeakValueDictionary[int, PartCall] = weakref.WeakValueDictionary()


@dataclass(slots=True, eq=False, weakref_slot=True)
class PartCall:
    """One call of a submodule; the nodes of its graph keep it.

    arguments: structure of the list of positional arguments and the dictionary of the others, with numbers for tensors;
    result: the structure of what it returns. kinds: shape, strides, type and device of each tensor of the result.
    pure: whether it draws no random numbers and leaves the module as it was, which has no hooks.
    """

    path: str
    module: torch.nn.Module
    arguments: Any
    result: Any
    kinds: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device], ...]
    pure: bool
    number: int = field(default_factory=_numbers.__next__)


def numbered(value: Any) -> tuple[Any, list[Tensor]]:
    """The structure of a value, and its tensors by number. Raises Unsupported."""
    found: list[Tensor] = []

    def number(tensor: Tensor) -> int:
        found.append(tensor)
        return len(found) - 1

    return structure_of(value, number), found


@torch.library.custom_op("kernelwright::part", mutates_args=())
def _part(given: list[Tensor], parameters: list[Tensor], number: int) -> list[Tensor]:
    call = _calls[number]
    positional, named = restored(call.arguments, given)
    wide = next((t.dtype for t in given if t.dtype == torch.float64), None)
    own = call.module if wide is None else call.module.double()
    return [t.clone() for t in numbered(own(*positional, **named))[1]]


@_part.register_fake
def _(given: list[Tensor], parameters: list[Tensor], number: int) -> list[Tensor]:
    return [torch.empty_strided(shape, strides, dtype=dtype, device=device)
            for shape, strides, dtype, device in _calls[number].kinds]


def hooked(model: torch.nn.Module) -> dict[str, str]:
    """The outermost submodules with hooks, and why they stay with PyTorch."""
    found: dict[str, str] = {}
    for path, module in model.named_modules():
        if path and any(getattr(module, name) for name in (*HOOKS, *_BACKWARD_HOOKS)) and not _inside(path, found):
            found[path] = "it has a hook"
    return found


def alike(model: torch.nn.Module, path: str) -> list[str]:
    """A submodule that is in the way of a trace, and those of its class in the same place of other blocks, which will
    be as well: a trace for each of them would take long."""
    kind, place = type(model.get_submodule(path)), re.sub(r"\d+", "0", path)
    return [other for other, module in model.named_modules()
            if type(module) is kind and re.sub(r"\d+", "0", other) == place]


def drawing(model: torch.nn.Module, inputs: Sequence[Any], recording: bool) -> str:
    """The path of the first innermost submodule that moves a generator of random numbers other than PyTorch's in a real
    call, which is the caller's to spend; "" where the model's own forward does, or none."""
    names = {id(module): path for path, module in model.named_modules()}
    waiting: list[dict[str, bytes]] = []
    found: list[str] = []

    def before(module: torch.nn.Module, _: Any) -> None:
        waiting.append(random_states())

    def after(module: torch.nn.Module, _: Any, result: Any) -> None:
        was, now = waiting.pop(), random_states()
        if any(was.get(name, state) != state for name, state in now.items() if name != "torch"):
            found.append(names[id(module)])

    hooks = [hook for module in model.modules() for hook in (
        module.register_forward_pre_hook(before, prepend=True), module.register_forward_hook(after))]
    positional, named = split(inputs)
    try:
        with seeded(0), torch.set_grad_enabled(recording), suppress(Exception):
            model(*positional, **named)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else ""


def _inside(path: str, paths: Iterable[str]) -> bool:
    return any(path == outer or path.startswith(f"{outer}.") for outer in paths)


def module_of(error: BaseException, model: torch.nn.Module) -> str:
    """The path of the innermost submodule in whose forward an error was raised; "" where it was in none."""
    paths = {id(vars(module)): path for path, module in model.named_modules()}
    found, trace = "", error.__traceback__
    while trace is not None:
        own = trace.tb_frame.f_locals.get("self")
        if isinstance(own, torch.nn.Module) and trace.tb_frame.f_code.co_name == "forward":
            found = paths.get(id(own.__dict__), found)
        trace = trace.tb_next
    return found


def look_at(make: Any, paths: Sequence[str], inputs: Sequence[Any]) -> dict[str, list[PartCall]]:
    """The calls of submodules in a real call of a model that ``make`` makes.

    Raises NotCapturable of the submodule whose call cannot be a node: it writes into its arguments, returns their
    memory or its own, or gives tensors whose shapes depend on values.
    """
    with seeded(0), torch.no_grad():
        found = _observed(make(), paths, inputs)
        others = _observed(make(), paths, map_tensors(list(inputs), lambda t: fresh_copy(random_like(t), t.device)))
    for path in paths:
        if [(c.arguments, c.result, c.kinds) for c in found[path]] != [
                (c.arguments, c.result, c.kinds) for c in others[path]]:
            raise NotCapturable(f"what {path} gives has another form for other values", path)
        for call, other in zip(found[path], others[path], strict=True):
            call.pure &= other.pure
    return found


def _observed(model: torch.nn.Module, paths: Sequence[str], inputs: Sequence[Any]) -> dict[str, list[PartCall]]:
    found: dict[str, list[PartCall]] = {path: [] for path in paths}
    waiting: list[Any] = []
    hooks_of_ours: list[Any] = []
    for path in paths:
        module = model.get_submodule(path)
        hooks = any(getattr(part, name) for part in module.modules() for name in (*HOOKS, *_BACKWARD_HOOKS))

        def before(module: torch.nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            structure, given = numbered([list(args), dict(named)])
            waiting.append((structure, given, [t._version for t in given], random_states(),
                            tensors(module), plain_attributes(module)))

        def after(module: torch.nn.Module, args: tuple[Any, ...], result: Any, path: str = path, hooks: bool = hooks
                  ) -> None:
            structure, given, versions, state, kept, attributes = waiting.pop()
            form, results = numbered(result)
            own = {t.untyped_storage().data_ptr() for t in (*given, *module.parameters(), *module.buffers())}
            if [t._version for t in given] != versions:
                raise NotCapturable(f"{path} writes into its arguments", path)
            if any(t.untyped_storage().data_ptr() in own for t in results if t.numel()):
                raise NotCapturable(f"{path} returns memory that it was given", path)
            pure = not hooks and state == random_states() and not differences(
                kept, tensors(module)) and not differences(attributes, plain_attributes(module))
            kinds = tuple((tuple(t.shape), tuple(t.stride()), t.dtype, t.device) for t in results)
            found[path].append(PartCall(path, module, structure, form, kinds, pure))

        hooks_of_ours.append(module.register_forward_pre_hook(before, prepend=True, with_kwargs=True))
        hooks_of_ours.append(module.register_forward_hook(after))
    positional, named = split(inputs)
    try:
        model(*positional, **named)
    except Unsupported as error:
        raise NotCapturable(f"a part takes or returns {error}") from error
    finally:
        for hook in hooks_of_ours:
            hook.remove()
    return found


def mark(model: torch.nn.Module, found: dict[str, list[PartCall]]) -> None:
    """Let the submodules of ``model`` be called as nodes of a trace, in the order in which they were found."""
    for path, calls in found.items():
        module = model.get_submodule(path)
        for name in (*HOOKS, *_BACKWARD_HOOKS):
            getattr(module, name).clear()
        vars(module)["forward"] = _Marked(module, calls)


class _Marked:
    """The forward of a submodule that stays with PyTorch, during a trace."""

    def __init__(self, module: torch.nn.Module, calls: Sequence[PartCall]) -> None:
        self._module, self._calls, self._turn = module, calls, 0
        self._others: list[PartCall] = []  # as the trace calls the module, where a real call does otherwise
        _calls.update({call.number: call for call in calls})

    def __call__(self, *args: Any, **named: Any) -> Any:
        if not self._calls:
            raise NotCapturable("a part is called in some calls only")
        call = self._calls[self._turn % len(self._calls)]
        self._turn += 1
        structure, given = numbered([list(args), dict(named)])
        if structure != call.arguments:  # a mask that a real call leaves out where it hides nothing, say
            call = replace(call, arguments=structure, number=next(_numbers))
            self._others.append(call)
            _calls[call.number] = call
        return restored(call.result, torch.ops.kernelwright.part(given, list(self._module.parameters()), call.number))


def parts_of(roots: Iterable[Node]) -> list[PartCall]:
    """The calls of submodules below nodes, in order."""
    return [n["part"] for n in walk(list(roots)) if n.get("target") == PART]


def part_of(number: int) -> PartCall:
    """The call with a number."""
    return _calls[number]


def type_of(call: PartCall) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shape and dtype of each tensor of a call's result."""
    return tuple((shape, dtype_name(dtype)) for shape, _, dtype, _ in call.kinds)
