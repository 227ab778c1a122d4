"""What a forward decides by the values of its buffers.

Layers keep sizes and states in buffers of one element (a stride, whether they were initialised, how far they are), and
their forwards ask for these: ``int(self.stride)``, ``if self.started:``. A trace knows no values of buffers. Here it
gets them: what Python makes of them stands in the graph as plain numbers, which holds as long as the buffers have the
same values. So they belong to what a call is checked for (`kernelwright.emit.runtime_guard`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

#: Operators between buffers and a value that is asked for.
_MOST_STEPS = 64


class Deciding:
    """The buffers of one element by whose values the forward of ``model`` decides: ``found`` has these by name."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.values = {name: buffer.detach().cpu().clone() for name, buffer in model.named_buffers()
                       if type(buffer) is torch.Tensor and buffer.numel() == 1 and not buffer.is_complex()
                       and buffer.layout is torch.strided
                       and buffer.untyped_storage().nbytes() == buffer.element_size()}  # no part of another tensor
        self.numbers = {name: value.item() for name, value in self.values.items()}
        self.found: dict[str, bool | int | float] = {}

    def answer(self, tensor: FakeTensor, ask: Callable[[torch.Tensor], Any]) -> Any:
        """What ``ask`` gives for a traced tensor that is made of such buffers and of numbers alone; None for others."""
        mode = proxy_tensor.get_proxy_mode()
        node = None if mode is None else node_of(tensor, mode.tracer)
        if node is None or mode is None or not self.values:
            return None
        names = {leaf: name for name, buffer in self.model.named_buffers() if name in self.values
                 and (leaf := node_of(buffer, mode.tracer)) is not None and leaf.op == "placeholder"}
        order = _steps(node, names)
        if order is None:
            return None
        read = [n for n in dict.fromkeys([node, *(n for step in order for n in step.all_input_nodes)]) if n in names]
        if any(map(_is_written, [*read, *order])):
            return None
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # the trace sees none of it
            known = {leaf: self.values[names[leaf]].clone() for leaf in read}
            try:
                for step in order:
                    args, kwargs = torch.fx.map_arg((step.args, step.kwargs), known.__getitem__)
                    known[step] = step.target(*args, **kwargs)  # pyrefly: ignore[not-callable]  # an operator
                answer = ask(known[node])
            except (RuntimeError, TypeError, ValueError):  # a device or a form that numbers of the host have not
                return None
        self.found |= {names[leaf]: self.numbers[names[leaf]] for leaf in read}
        return answer


class SizesOfBuffers(TorchFunctionMode):
    """Puts the numbers that ``deciding`` knows in place of tensors in lists of sizes: those of ``F.pad``, and lists
    that have numbers as well. PyTorch itself would ask these tensors for their values, which no Python answers."""

    def __init__(self, deciding: Deciding) -> None:
        super().__init__()
        self.deciding = deciding

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if not kwargs and not any(type(given) in (list, tuple) for given in args):  # as of nearly every call
            return func(*args)
        are_sizes = func is torch.nn.functional.pad
        return func(*(self._numbers(given, are_sizes) for given in args),
                    **{key: self._numbers(given, are_sizes) for key, given in (kwargs or {}).items()})

    def _numbers(self, given: Any, are_sizes: bool) -> Any:
        if type(given) not in (list, tuple) or not (
                are_sizes or any(isinstance(part, (int, torch.SymInt)) for part in given)):
            return given
        return type(given)(self._number(part) if isinstance(part, FakeTensor) else part for part in given)

    def _number(self, part: FakeTensor) -> Any:
        if part.numel() != 1 or part.is_floating_point():
            return part
        known = self.deciding.answer(part, torch._C.TensorBase.item)
        return part if known is None else known


def node_of(tensor: Any, tracer: Any) -> torch.fx.Node | None:
    """The node of a traced tensor; None for what is none."""
    if not isinstance(tensor, FakeTensor):
        return None
    proxy = proxy_tensor.get_proxy_slot(tensor, tracer, None, lambda kept: kept.proxy)
    return None if proxy is None else proxy.node


def _steps(node: torch.fx.Node, leaves: dict[torch.fx.Node, str]) -> list[torch.fx.Node] | None:
    """The operators that make a node of ``leaves``, inputs before users; None where others have a part in it."""
    order: dict[torch.fx.Node, None] = {}
    waiting = [(node, False)]
    while waiting:
        step, is_ready = waiting.pop()
        if step in leaves or step in order:
            continue
        if is_ready:
            order[step] = None
        elif not _is_pure(step) or len(waiting) > _MOST_STEPS or len(order) == _MOST_STEPS:
            return None
        else:
            waiting += [(step, True), *((n, False) for n in step.all_input_nodes)]
    return list(order)


def _is_written(node: torch.fx.Node) -> bool:
    """Whether the forward has changed what a node gave, itself or through a view of it."""
    waiting = list(node.users)
    while waiting:
        user = waiting.pop()
        schema = user.target._schema if isinstance(user.target, torch._ops.OpOverload) else None
        if schema is None or schema.is_mutable or "_norm" in schema.name:  # statistics change without being marked
            return True
        if any(result.alias_info is not None for result in schema.returns):
            waiting += user.users
    return False


def _is_pure(node: torch.fx.Node) -> bool:
    """Whether a node is a call of an operator on tensors that gives the same for the same, and changes nothing."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and not target._schema.is_mutable and bool(node.all_input_nodes) \
        and torch.Tag.nondeterministic_seeded not in target.tags
