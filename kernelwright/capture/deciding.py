"""What a forward decides by the values of its buffers, and of inputs of whole numbers.

Layers keep sizes and states in buffers of one element (a stride, whether they were initialised, how far they are), and
their forwards ask for these: ``int(self.stride)``, ``if self.started:``. A trace knows no values of buffers. Here it
gets them: what Python makes of them stands in the graph as plain numbers, which holds as long as the buffers have the
same values. So they belong to what a call is checked for (`kernelwright.emit.runtime_guard`).

So it is with lengths and masks that a forward is given: ``int(lengths.max())`` is the size of what follows. What Python
asks of them is computed for the example, and a call is checked for giving the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from kernelwright.ir.graph import Graph

#: Operators between buffers or inputs and a value that is asked for.
_MOST_STEPS = 64
#: Numbers that are asked of inputs at once, and characters of what makes them.
_MOST_NUMBERS, _MOST_CHARACTERS = 64, 2000
#: Characters of such an expression that the report and messages show.
_MOST_WORDS = 60
#: Functions that take a number, or numbers, for a size.
_SIZED = frozenset((torch.nn.functional.pad, torch.arange))


class Deciding:
    """By what the forward of ``model`` decides in a call with the tensors and plain values ``given``: ``found`` has
    buffers of one element by name with their values, ``asked`` what is made of inputs of whole numbers or truth values,
    as an expression of the tensors among the ``inputs``, with the list of numbers, or the number, that it gives."""

    def __init__(self, model: torch.nn.Module, given: Sequence[Any] = ()) -> None:
        self.model = model
        self.given = [value.detach() if isinstance(value, torch.Tensor) else None for value in given]
        self.has_numbers = any(map(_is_whole, self.given))
        self.supposes_finite = self.supposed = False
        """Whether a question whether numbers are finite is answered as if they were; whether one was."""
        self.traced: list[Any] = []
        self.answers: list[Any] = []
        """What Python was told that asked for values, in order; None where PyTorch itself was asked."""
        self.asked: dict[str, Any] = {}
        self.values = {name: buffer.detach().cpu().clone() for name, buffer in model.named_buffers()
                       if type(buffer) is torch.Tensor and buffer.numel() == 1 and not buffer.is_complex()
                       and buffer.layout is torch.strided
                       and buffer.untyped_storage().nbytes() == buffer.element_size()}  # no part of another tensor
        self.numbers = {name: value.item() for name, value in self.values.items()}
        self.found: dict[str, bool | int | float] = {}
        if self.has_numbers:
            model.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True)

    def _begin(self, _: torch.nn.Module, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.traced = pytree.tree_leaves((positional, keywords))

    def number(self, part: Any) -> Any:
        """The number that a traced tensor of one element holds, where it is known; None for others."""
        known = self.answer(part, torch._C.TensorBase.item)
        return self.answer_by_inputs(part, torch._C.TensorBase.item) if known is None else known

    def answer_by_inputs(self, tensor: FakeTensor, ask: Callable[[torch.Tensor], Any]) -> Any:
        """What ``ask`` gives for a traced tensor that is made of inputs of whole numbers and of numbers alone, with the
        values of the example; None for others."""
        mode = proxy_tensor.get_proxy_mode()
        node = None if mode is None or not self.has_numbers or tensor.numel() > _MOST_NUMBERS \
            else node_of(tensor, mode.tracer)
        if node is None or mode is None or len(self.traced) != len(self.given):
            return None
        tensors = [(t, f) for t, f in zip(self.given, self.traced, strict=True) if t is not None]
        leaves = {leaf: place for place, (value, fake) in enumerate(tensors) if _is_whole(value)
                  and (leaf := node_of(fake, mode.tracer)) is not None and leaf.op == "placeholder"}
        order = _steps(node, leaves)
        if order is None:
            return None
        leaves = {leaf: leaves[leaf] for leaf in (node, *(n for step in order for n in step.all_input_nodes))
                  if leaf in leaves}
        if any(map(_is_written, [*leaves, *order])):
            return None
        texts: dict[torch.fx.Node, str] = {leaf: f"inputs[{place}]" for leaf, place in leaves.items()}
        for step in order:
            text = _call_text(step, texts)
            if text is None or len(text) > _MOST_CHARACTERS:
                return None
            texts[step] = text
        values = {leaf: tensors[place][0] for leaf, place in leaves.items()}
        found = _computed(node, order, values, lambda value: (
            ask(value), torch._C.TensorBase.tolist(value), torch._C.TensorBase.item(value.isfinite().all())))
        if found is None or not found[2]:
            return None
        self.asked[f"{texts[node]}.tolist()"] = found[1]
        return found[0]

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
        answer = _computed(node, order, {leaf: self.values[names[leaf]] for leaf in read}, ask)
        if answer is not None:
            self.found |= {names[leaf]: self.numbers[names[leaf]] for leaf in read}
        return answer


def asked_in_words(text: str, graph: Graph) -> str:
    """An expression of ``graph.asked_of_inputs`` as a user would write it, with the names of the inputs; of a long one
    these alone."""
    names = [node["name"] for node in graph.inputs if node is not None]
    words = re.sub(r"torch\.ops\.aten\.(\w+)\.\w+", r"\1", text.removesuffix(".tolist()"))
    words = re.sub(r"inputs\[(\d+)\]", lambda found: names[int(found[1])], words)
    asked = dict.fromkeys(names[int(place)] for place in re.findall(r"inputs\[(\d+)\]", text))
    return words if len(words) <= _MOST_WORDS else f"what is made of {' and '.join(asked)}"


def decided_by(graph: Graph) -> str:
    """By what values the forward of a graph decided, as a sentence for the report; "" where by none."""
    found = [*(f"buffer {name} is {value!r}" for name, value in graph.decided),
             *(f"{asked_in_words(text, graph)} is {value!r}" for text, value in graph.asked_of_inputs)]
    return f"The forward decides by values: kernels run in calls in which {', '.join(found)}." if found else ""


def _is_whole(value: torch.Tensor | None) -> bool:
    """Whether something is a plain tensor of whole numbers or truth values."""
    return type(value) is torch.Tensor and value.layout is torch.strided and not value.is_floating_point() \
        and not value.is_complex() and not value.is_quantized


def _computed(node: torch.fx.Node, order: Sequence[torch.fx.Node], values: Mapping[torch.fx.Node, torch.Tensor],
              ask: Callable[[torch.Tensor], Any]) -> Any:
    """What ``ask`` gives for the tensor of a node that the operators in ``order`` make of ``values``; None where these
    are on a device, or have a form, for which it gives nothing."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():  # the trace sees none of it
        known = {leaf: value.clone() for leaf, value in values.items()}
        try:
            for step in order:
                args, kwargs = torch.fx.map_arg((step.args, step.kwargs), known.__getitem__)
                known[step] = step.target(*args, **kwargs)  # pyrefly: ignore[not-callable]  # an operator
            return ask(known[node])
        except (RuntimeError, TypeError, ValueError):
            return None


def _call_text(step: torch.fx.Node, texts: Mapping[torch.fx.Node, str]) -> str | None:
    """A call of an operator as Python text; None where an argument has no text."""
    arguments = [_argument_text(value, texts) for value in step.args]
    named = {key: _argument_text(value, texts) for key, value in step.kwargs.items()}
    if None in arguments or None in named.values():
        return None
    return f"torch.ops.{step.target}({', '.join([*map(str, arguments), *(f'{k}={v}' for k, v in named.items())])})"


def _argument_text(value: Any, texts: Mapping[torch.fx.Node, str]) -> str | None:
    if isinstance(value, torch.fx.Node):
        return texts.get(value)
    if isinstance(value, (list, tuple)):
        parts = [_argument_text(part, texts) for part in value]
        return None if None in parts else f"[{', '.join(map(str, parts))}]"
    if type(value) is float and not isfinite(value):
        return None
    return repr(value) if value is None or type(value) in (bool, int, float, str, torch.dtype) else None


def without_values(tensor: Any) -> bool:
    """Whether a tensor stands for one whose values nobody knows."""
    return isinstance(tensor, torch.Tensor) and (
        tensor.constant is None if isinstance(tensor, FakeTensor) else tensor.is_meta)


class Sizes(TorchFunctionMode):
    """Puts numbers in place of tensors without values that are sizes, as far as ``number`` knows them: those of
    ``F.pad`` and ``torch.arange``, ends of slices, and those in lists that have numbers as well. PyTorch itself would
    ask these tensors for their values, which no Python answers."""

    def __init__(self, number: Callable[[Any], Any]) -> None:
        super().__init__()
        self.number = number

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        are_sizes = func in _SIZED
        if not kwargs and not are_sizes and not any(type(given) in (list, tuple, slice) for given in args):
            return func(*args)  # as of nearly every call
        return func(*(self._numbers(given, are_sizes) for given in args),
                    **{key: self._numbers(given, are_sizes) for key, given in (kwargs or {}).items()})

    def _numbers(self, given: Any, are_sizes: bool) -> Any:
        if without_values(given):
            return self._number(given) if are_sizes else given
        if type(given) is slice:
            return slice(*(self._number(part) if without_values(part) else part
                           for part in (given.start, given.stop, given.step)))
        if type(given) is tuple and any(type(part) is slice for part in given):  # of an index
            return tuple(self._numbers(part, False) if type(part) is slice else part for part in given)
        if type(given) not in (list, tuple) or not (
                are_sizes or any(isinstance(part, (int, torch.SymInt)) for part in given)):
            return given
        return type(given)(self._number(part) if without_values(part) else part for part in given)

    def _number(self, part: torch.Tensor) -> Any:
        known = None if part.numel() != 1 or part.is_floating_point() else self.number(part)
        return part if known is None else known


def node_of(tensor: Any, tracer: Any) -> torch.fx.Node | None:
    """The node of a traced tensor; None for what is none."""
    if not isinstance(tensor, FakeTensor):
        return None
    proxy = proxy_tensor.get_proxy_slot(tensor, tracer, None, lambda kept: kept.proxy)
    return None if proxy is None else proxy.node


def _steps(node: torch.fx.Node, leaves: Mapping[torch.fx.Node, Any]) -> list[torch.fx.Node] | None:
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
