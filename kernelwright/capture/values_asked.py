"""What Python asks of the values of tensors during a trace, which knows none.

Where the code goes on from an answer that only raises an error otherwise, the trace gets a check. What is asked of
buffers, and of inputs of whole numbers, is known (`kernelwright.capture.deciding`).
"""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor

from kernelwright.capture.deciding import Deciding, Sizes, node_of, without_values
from kernelwright.capture.tracing import is_of_model

#: The message of a check that Python makes itself, and so waits for.
ASKED = "asked by Python"
#: How Python asks for the values of a tensor.
_ASKS = ("item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__complex__", "__array__")


def _expected(frame: FrameType) -> bool | None:
    """The truth value with which the code of a frame goes on, where it raises an error with the other one; or None.

    So it is in ``assert condition`` and in ``if condition: raise ...``, of the user's code or of PyTorch's own.
    """
    return _wanted(*_running(frame))


def _running(frame: FrameType) -> tuple[list[dis.Instruction], int]:
    """The instructions of a frame, and the place of the one that runs."""
    code = list(dis.get_instructions(frame.f_code))
    # A call of a Python function stands at what the interpreter keeps behind the instruction.
    return code, sum(instruction.offset <= frame.f_lasti for instruction in code) - 1


def _wanted(code: list[dis.Instruction], place: int) -> bool | None:
    """The truth value with which code goes on from a jump at ``place`` where it raises with the other one; or None."""
    place += place < len(code) and code[place].opname == "TO_BOOL"
    if place + 1 >= len(code) or "JUMP" not in code[place].opname or "_IF_" not in code[place].opname:
        return None
    target = next(i for i, instruction in enumerate(code) if instruction.offset == code[place].argval)
    ahead, beyond = _raises(code[place + 1:]), _raises(code[target:])
    return ahead == ("IF_TRUE" in code[place].opname) if ahead != beyond else None


#: How many values the instructions take from the stack by which a bound is read: by the starts of their names.
_TAKEN = {"LOAD_ATTR": 1, "LOAD_METHOD": 1, "LOAD_SUPER": 3, "LOAD_": 0, "PUSH_NULL": 0, "KW_NAMES": 0, "CACHE": 0,
          "EXTENDED_ARG": 0, "BINARY_SLICE": 3, "BINARY_": 2, "UNARY_": 1}


def _is_compared(code: list[dis.Instruction], place: int) -> bool:
    """Whether what a call at ``place`` gives is compared with something, and nothing else is done with it, in order to
    raise an error: ``assert lengths.max().item() <= limit``."""
    depth = 1  # of the stack, from the call's result on
    for at in range(place + 1, len(code)):
        instruction = code[at]
        name, argument = instruction.opname, instruction.arg
        if name == "COMPARE_OP":
            return depth <= 2 and _wanted(code, at + 1) is not None
        if name == "PRECALL":  # of Python 3.11, before each CALL
            continue
        taken = argument + 2 if name == "CALL" and argument is not None else \
            next((count for start, count in _TAKEN.items() if name.startswith(start)), None)
        if taken is None or depth - taken < 1:
            return False
        depth += 1 - taken if name == "CALL" else dis.stack_effect(instruction.opcode, argument, jump=False)
    return False


class _Compared:
    """A number that a forward compares in order to raise an error: what comparisons with numbers give are tensors.

    They compare as Python does: integers as they are, and with the digits of float64 where one of two is none. With
    anything else the number itself is compared, which a trace does not know.
    """

    def __init__(self, tensor: torch.Tensor, number: Callable[[], Any]) -> None:
        self.tensor, self.number = tensor.reshape(()), number

    def _with(self, other: Any, compare: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, _Compared):
            both = self.tensor, other.tensor
            whole = not any(t.is_floating_point() for t in both)
            return compare(*both) if whole else compare(*(t.double() for t in both))
        if type(other) is float or (type(other) is int and abs(other) < 1 << 53):
            is_whole = type(other) is int and not self.tensor.is_floating_point()
            return compare(self.tensor if is_whole else self.tensor.double(), other)
        return compare(self.number(), other)

    def __lt__(self, other: Any) -> Any:
        return self._with(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._with(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._with(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._with(other, operator.ge)

    def __eq__(self, other: Any) -> Any:
        return self._with(other, operator.eq)

    def __ne__(self, other: Any) -> Any:
        return self._with(other, operator.ne)


#: Comparisons of numbers that are at least 0 and less than 1 with a bound: what they say of all of them, where it lies
#: beyond.
_OF_UNIT = {"lt": (False, True), "ge": (True, False), "le": (False, True), "gt": (True, False)}


def _known_truth(tensor: FakeTensor) -> bool | None:
    """The truth value of a comparison of uniform random numbers with a bound that none of them passes; or None.

    So layers are dropped at random: ``if torch.rand([]) < self.layerdrop``, with a probability of 0 in most models.
    """
    mode = proxy_tensor.get_proxy_mode()
    node = None if mode is None else node_of(tensor, mode.tracer)
    if node is None or not isinstance(node.target, torch._ops.OpOverload) or len(node.args) != 2:
        return None
    name, (drawn, bound) = node.target.overloadpacket.__name__, node.args
    if name not in _OF_UNIT or not isinstance(bound, (int, float)) or not isinstance(drawn, torch.fx.Node) \
            or getattr(getattr(drawn.target, "overloadpacket", None), "__name__", "") != "rand":
        return None
    below, above = _OF_UNIT[name]
    is_below = bound < 0 or (bound == 0 and name in ("lt", "ge"))
    return below if is_below else above if bound >= 1 else None


#: What operators that look for numbers which are not finite give where all are finite.
_OF_FINITE = {"isfinite": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}
#: Operators that keep a truth value, of one element or of all.
_KEEPING = frozenset(("all", "any", "amax", "amin", "reshape", "view", "squeeze", "unsqueeze", "clone", "detach",
                      "contiguous", "flatten", "expand", "_to_copy", "to"))


def _where_finite(tensor: FakeTensor) -> bool | None:
    """The truth value of a question whether numbers are finite, where they all are; None for any other question.

    So layers clamp what left the range of float16: ``if not torch.isfinite(x).all()``.
    """
    mode = proxy_tensor.get_proxy_mode()
    return None if mode is None else _given_finite(node_of(tensor, mode.tracer))


def _given_finite(node: Any) -> bool | None:
    if not isinstance(node, torch.fx.Node) or not isinstance(node.target, torch._ops.OpOverload):
        return None
    name = node.target.overloadpacket.__name__
    if name in _OF_FINITE:
        return _OF_FINITE[name]
    if name in _KEEPING:
        return _given_finite(node.args[0])
    if name in ("logical_not", "bitwise_not"):
        inner = _given_finite(node.args[0])
        return None if inner is None else not inner
    if name in ("logical_or", "bitwise_or", "logical_and", "bitwise_and", "__or__", "__and__"):
        both = [_given_finite(part) for part in node.args[:2]]
        return None if None in both else any(both) if "or" in name else all(both)
    return None


def _raises(code: list[dis.Instruction]) -> bool:
    """Whether code comes to a raise, with nothing to decide before."""
    return next((i.opname == "RAISE_VARARGS" for i in code if i.opname == "RAISE_VARARGS" or "RETURN" in i.opname
                 or i.opcode in dis.hasjrel or i.opcode in dis.hasjabs), False)


#: What an answer was that is no plain value: the tensor itself, for a truth value that is asked for next, or a number
#: that is compared.
_ITSELF, _TO_COMPARE = object(), object()
#: Gives the answer to a question: how it is asked, of which tensor, what asks PyTorch itself, and the frame that asks.
_Answer = Callable[[str, torch.Tensor, Callable[[torch.Tensor], Any], FrameType], Any]


@contextmanager
def values_read(found: list[str], deciding: Deciding) -> Iterator[None]:
    """While active, ``found`` gets how Python asks for the values of a tensor whose values the trace knows: what it
    makes of them stands in the trace as plain numbers. So does what it makes of buffers and of inputs of whole numbers,
    which ``deciding`` gets, with all answers in order.

    Where the trace does not know a truth value, and the code asks for it in order to raise an error, the trace gets a
    check and goes on without the error. So where it asks for a number, and compares it, for that; and where it asks
    whether numbers are finite, in order to do something about it, the trace goes on as for finite ones.
    """

    def answer(name: str, tensor: torch.Tensor, ask: Callable[[torch.Tensor], Any], frame: FrameType) -> Any:
        if not isinstance(tensor, FakeTensor) or tensor.constant is not None:
            found.append(name)
            return ask(tensor)
        told = _told(name, tensor, ask, frame, deciding)
        if told is not None or is_of_model(frame):  # the exporter itself asks for the ends of slices
            deciding.answers.append(_ITSELF if isinstance(told, torch.Tensor) else
                                    _TO_COMPARE if isinstance(told, _Compared) else told)
        return ask(tensor) if told is None else told

    def number(part: torch.Tensor) -> Any:
        told = deciding.number(part)
        deciding.answers.append(told)
        return told

    with _answered_by(answer), Sizes(number) if deciding.values or deciding.has_numbers else nullcontext():
        yield


@contextmanager
def answered_as_before(answers: Sequence[Any]) -> Iterator[None]:
    """While active, what Python asks of tensors without data has the answers of an earlier trace, in order."""
    if all(told is None for told in answers):
        yield
        return
    waiting = iter(answers)

    def answer(name: str, tensor: torch.Tensor, ask: Callable[[torch.Tensor], Any], frame: FrameType) -> Any:
        if not without_values(tensor) or not is_of_model(frame):
            return ask(tensor)
        told = next(waiting, None)
        if told is _ITSELF:
            return tensor.reshape(())
        if told is _TO_COMPARE:
            return _Compared(tensor, lambda: ask(tensor))
        return ask(tensor) if told is None else told

    with _answered_by(answer), Sizes(lambda part: next(waiting, None)):
        yield


def _told(name: str, tensor: FakeTensor, ask: Callable[[torch.Tensor], Any], frame: FrameType, deciding: Deciding
          ) -> Any:
    """What Python is told that asks for the values of a traced tensor; None where PyTorch itself is asked."""
    if name == "__bool__" and (known := _known_truth(tensor)) is not None:
        return known
    if (answer := deciding.answer(tensor, ask)) is not None:
        return answer
    if name == "__bool__" and tensor.numel() == 1 and (wanted := _expected(frame)) is not None:
        torch.ops.aten._assert_async.msg(tensor if wanted else torch.logical_not(tensor), ASKED)
        return wanted
    if name in ("__bool__", "item") and deciding.supposes_finite and tensor.numel() == 1 \
            and (supposed := _where_finite(tensor)) is not None:
        torch.ops.aten._assert_async.msg(tensor if supposed else torch.logical_not(tensor), ASKED)
        deciding.supposed = True
        return supposed
    if name == "item" and tensor.numel() == 1 and not tensor.is_complex():
        code, place = _running(frame)
        if _wanted(code, place + 1) is not None:  # a truth value, which is asked for next
            return tensor.reshape(())
        if _is_compared(code, place):
            return _Compared(tensor, lambda: ask(tensor))
    return deciding.answer_by_inputs(tensor, ask)


@contextmanager
def _answered_by(answer: _Answer) -> Iterator[None]:
    """While active, ``answer`` answers what Python asks of tensors."""
    originals = {name: getattr(torch.Tensor, name) for name in _ASKS}
    own = {name: vars(torch.Tensor)[name] for name in _ASKS if name in vars(torch.Tensor)}
    by_fake: Any = FakeTensor.tolist  # asks the elements one by one

    def asking(name: str) -> Any:
        def ask(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            return answer(name, tensor, lambda t: originals[name](t, *arguments, **named), sys._getframe(1))
        return ask

    def tolist(self: FakeTensor) -> Any:
        return answer("tolist", self, lambda t: (by_fake if isinstance(t, FakeTensor) else originals["tolist"])(t),
                      sys._getframe(1))

    for name in _ASKS:
        setattr(torch.Tensor, name, asking(name))
    FakeTensor.tolist = tolist
    try:
        yield
    finally:
        FakeTensor.tolist = by_fake
        for name in _ASKS:
            if name in own:
                setattr(torch.Tensor, name, own[name])
            else:
                delattr(torch.Tensor, name)
