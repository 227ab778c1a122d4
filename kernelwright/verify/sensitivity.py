"""How far eager's result moves when every operator's result is rounded one unit in the last place up or down.

Eager's error is one draw: another order of the same sums has another one. Where a model amplifies rounding (batch norms
over few values, sums that cancel) such draws differ by far more than the factor that a candidate may have. So before a
candidate is refused for rounding alone, eager is called a few times more with its inputs and the result of each of its
operators a unit off at random (Monte Carlo arithmetic: Parker, Monte Carlo Arithmetic: exploiting randomness in
floating-point arithmetic, 1997, section 4), and the largest of the errors found counts as its own: up to `MOST_MOVED`
times what it was, lest a model that jumps (a comparison, a floor) excuses anything.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.problem.memory import available_memory, is_out_of_memory
from kernelwright.verify.flatten import clone_tensors, flatten, map_tensors, tensors_of
from kernelwright.verify.observe import call, identical, seed_all
from kernelwright.verify.records import Comparison, OutputError, Reference
from kernelwright.verify.state import State
from kernelwright.verify.statistics import MOST_MOVED, Statistics, is_own_reference, measure_error, plain_tensor
from kernelwright.verify.tolerance import Tolerance

#: What a trial notes in which a call under other rounding stands for eager, which is the reference itself.
STANDS_IN = ("eager is the reference here: its error is that of a call in which each operator's result is rounded one "
             "unit in the last place up or down")
#: How many calls of eager are made.
DRAWS = 4
#: Of the memory that is free, what results of draws take that are held side by side.
_SHARE_OF_MEMORY = 0.25
#: What is noted where that decided.
WIDENED = ("eager's errors are the largest of a few calls, in which each operator's result is rounded one unit in the "
           "last place up or down")
#: Of results of less than 32 bits, which operators compute in more and round once, one in so many is moved: that has
#: the variance of a rounding. Results of 32 bits and more are all moved, as sums in them have several roundings.
SELDOM = 24
#: The largest label. All numbers are whole in float16 from 1024 on, and in bfloat16 from 128.
_LABELS = 64
#: A prime, so that no axis of a tensor keeps step with it.
_PERIOD = 131071
#: Of more elements than these, and than this share of them, rounding is not the reason of a jump.
_FEW, _FEW_SHARE = 8, 0.01
#: Kinds of problems that rounding can be the reason of.
ROUNDING = frozenset(("elements", "output", "slice"))


#: Operators that add: in another order their partial sums are others, and have a rounding each that is no smaller than
#: a term's. Terms of less than 32 bits are added in 32.
SUMS = frozenset((
    "sum", "mean", "cumsum", "var", "var_mean", "std", "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot",
    "convolution", "avg_pool2d", "avg_pool3d", "linear"))

#: Operators that cast, move or choose, and round nothing of their own.
MOVES = frozenset((
    "_to_copy", "clone", "copy", "copy_", "cat", "stack", "index", "index_select", "gather", "flip", "roll", "where",
    "constant_pad_nd", "repeat", "embedding", "max", "min", "amax", "amin", "maximum", "minimum", "neg", "abs", "relu",
    "clamp", "clamp_min", "clamp_max", "sort", "topk", "cummax", "cummin"))


@dataclass
class Moved:
    """Statistics of eager's results under other rounding, by the path of each output and of each state."""

    outputs: dict[str, list[Statistics]] = field(default_factory=dict)
    state: dict[str, list[Statistics]] = field(default_factory=dict)


def are_few(count: float, elements: int) -> bool:
    """Whether rounding alone may decide so many of an output's elements: the side of a jump, what is left of a sum."""
    return count <= max(_FEW, _FEW_SHARE * elements)


def may_be_rounding(tolerance: Tolerance, *comparisons: Comparison | None, by_eager: bool = False) -> bool:
    """Whether one of ``comparisons`` failed, and all that did for errors that eager's draws may be as large as.
    by_eager: eager itself is the reference, which has no error against itself."""
    failed = [c for c in comparisons if c is not None and not c.passed]
    return bool(failed) and all(
        not c.structure and all(o.passed or _in_reach(o, tolerance, by_eager) for o in c.outputs)
        for c in failed)


def _in_reach(output: OutputError, tolerance: Tolerance, by_eager: bool) -> bool:
    multiple = tolerance.multiple
    if not set(output.kinds) <= ROUNDING:
        return False
    if tolerance.unit is not None or by_eager or output.is_noise or is_own_reference(output.dtype, output.eager_units):
        return True
    return (
        output.units <= MOST_MOVED * max(1.0, multiple * output.eager_units)
        and ("output" not in output.kinds or output.relative <= MOST_MOVED * multiple * output.eager_relative)
    )


@dataclass(frozen=True)
class Draw:
    """A call of eager under other rounding: what it was given and made of it, and the state after it. ``is_wide``:
    whether nothing but float64 was rounded."""

    given: list[Any]
    arguments: list[Any]
    outputs: Any
    state: dict[str, Any]
    is_wide: bool


def drawn(eager: nn.Module, inputs: Sequence[Any], before: State, seed: int, numbers: Iterable[int],
          recording: bool = False, sums: float = 0.0, inexact: bool = False, share: float = 1.0,
          operands: float = 0.0) -> Generator[Draw, None, None]:
    """Call ``eager`` under other rounding from the state ``before``, once for each of ``numbers``, which choose it.

    sums, share, operands: those of `Rounding`. inexact: only what was rounded is rounded otherwise
    (`RoundingOfInexact`), which inputs are not, and labels never. Calls that fail are left out. Its state is as it was
    when all are over. Raises what says that memory is lacking.
    """
    after = State.of(eager, parameters=False)
    try:
        for number in numbers:
            before.apply(eager)
            rounding = RoundingOfInexact(seed + number) if inexact else Rounding(
                seed + number, share=share, sums=sums, operands=operands)
            given = list(inputs) if inexact else map_tensors(list(inputs), rounding.input_off)
            arguments = clone_tensors(given)
            seed_all(seed)
            with rounding:
                called = call(eager, arguments, recording=recording)
            if called.error is None:
                state = State.of(eager, parameters=False, owned=False).tracked()
                yield Draw(given, arguments, called.outputs, state, rounding.is_wide)
    finally:
        after.apply(eager)


def are_labels(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are small whole numbers, as labels, masks and signs are: nothing rounded them, and a
    model may ask whether they equal one."""
    kind = tensor.dtype.is_floating_point and tensor.dtype.itemsize >= 2 and tensor.layout == torch.strided
    return kind and not tensor.is_nested and bool(((tensor == tensor.round()) & (tensor.abs() <= _LABELS)).all())


def while_memory_lasts(draws: Iterator[Draw]) -> Iterator[Draw]:
    """Those of ``draws`` that memory does for: what the others would have excused is refused."""
    try:
        yield from draws
    except Exception as error:
        if not is_out_of_memory(error):
            raise


def outputs_of(draws: Generator[Draw, None, None]) -> list[Any]:
    """What eager gave in ``draws``, as many as take `_SHARE_OF_MEMORY` of what is free, and one at least."""
    found: list[Any] = []
    most = 1.0
    with closing(draws):
        for draw in while_memory_lasts(draws):
            if not found:
                tensors = tensors_of(draw.outputs)
                free = min((available_memory(device) or math.inf for device in {t.device for t in tensors}),
                           default=math.inf)
                most = _SHARE_OF_MEMORY * free / max(1, sum(t.numel() * t.element_size() for t in tensors))
            found.append(draw.outputs)
            if len(found) + 1 > most:
                break
    return found


def move(eager: nn.Module, inputs: Sequence[Any], before: State, seed: int, expected: Any, reference: Reference,
         tolerance: Tolerance, part: Callable[[Any], Any] = lambda outputs: outputs, *, recording: bool = False
         ) -> Moved:
    """Call ``eager`` `DRAWS` times under other rounding, from the state ``before``; its state stays as it is.

    part: takes from outputs what is compared; expected, eager's own, and ``reference`` are that already. State means
    buffers, plain attributes and the inputs that a call changes.
    """
    found = Moved()
    eager_state = State.of(eager, parameters=False).tracked()
    truth = {name: (reference.state or {}).get(name, value) for name, value in eager_state.items()}
    for draw in while_memory_lasts(drawn(eager, inputs, before, seed, range(DRAWS), recording,
                                         operands=tolerance.unit or 0.0)):
        add(found.outputs, part(draw.outputs), expected, reference.outputs, "output", tolerance, draw.is_wide)
        add(found.state, draw.state, eager_state, truth, "state", tolerance, draw.is_wide)
        if reference.inputs is not None and not identical(draw.given, draw.arguments):
            changed = [{f"input {n}": value for n, value in enumerate(values)}
                       for values in (draw.arguments, reference.inputs)]
            add(found.state, changed[0], changed[0], changed[1], "state", tolerance, draw.is_wide)
    return found


def _logit(x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    """Where 1 - eps is a bound, 1 - x is little but what rounded that to the type of x."""
    x = x if eps is None else torch.clamp(x, eps, 1 - eps)
    return torch.log(x / (1 - x))


@functools.cache
def written_out() -> dict[Any, Callable[..., Any]]:
    """Operators that round on their way, by what PyTorch makes of them where it has no kernel for the whole.

    One that subtracts within itself (a norm of one value, the tail of an activation) may leave nothing but that
    rounding: its result moves by far more than a unit where another kernel computes it.
    """
    aten = torch.ops.aten
    return {aten.logit.default: _logit} | get_decompositions((
        aten.gelu, aten.silu, aten.mish, aten.softplus, aten.elu, aten.log_sigmoid_forward, aten._softmax,
        aten._log_softmax, aten.logsumexp, aten.native_layer_norm, aten.native_group_norm, aten.native_batch_norm,
        aten._native_batch_norm_legit, aten._fused_rms_norm, aten.gelu_backward, aten.silu_backward,
        aten.mish_backward, aten.softplus_backward, aten.elu_backward, aten.log_sigmoid_backward,
        aten._softmax_backward_data, aten._log_softmax_backward_data, aten.native_layer_norm_backward,
        aten.native_group_norm_backward, aten.native_batch_norm_backward, aten._fused_rms_norm_backward))


#: Operators that add up elements of their largest operand, products of two operands, and what a window covers.
_REDUCTIONS = frozenset((
    "sum", "mean", "var", "var_mean", "std", "std_mean", "nansum", "linalg_vector_norm", "norm", "prod"))
PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "linear"))
WINDOWS = frozenset(("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution"))
#: Units that a convolution's result may be off where a library transforms what it multiplies (Winograd, Fourier).
_TRANSFORMED = 512.0
#: Units of float32 in one of TF32, and the most that a product may be off: no more than one in TF32 is.
_TF32 = 4096.0


def summed_units(name: str, operands: Sequence[Any], result: torch.Tensor) -> float:
    """How many units in the last place the ``result`` of an operator may be off, by how many terms it adds. Of a
    reduction that is the square root of their number (Higham and Mary, A new approach to probabilistic rounding error
    analysis, 2019, theorem 2.4), as nothing says in which order they are added; of a product, whose terms one thread
    adds one after the other, their number (Higham, Accuracy and stability of numerical algorithms, 2002, section 3.1),
    as terms of one sign lose in one direction. 1 for operators that add nothing up."""
    tensors = [value for value in operands if isinstance(value, torch.Tensor) and value.numel()]
    if not result.numel() or not tensors:
        return 1.0
    if name in _REDUCTIONS:
        return math.sqrt(max(t.numel() for t in tensors) / result.numel())
    if name in PRODUCTS and len(tensors) > 1:
        left, right = (tensors[0], tensors[1]) if name == "linear" else tensors[-2:]
        batch = result.shape[0] if left.dim() == 3 == right.dim() else 1
        return min(_TF32, math.sqrt(left.numel() * right.numel() / (result.numel() * batch)))
    if name in WINDOWS and len(tensors) > 1:
        weight = tensors[1]
        return min(_TF32, max(_TRANSFORMED, weight.numel() / min(weight.shape[:2])))
    return 1.0


def _is_in_tf32(name: str, operands: Sequence[Any]) -> bool:
    """Whether a device may round what an operator multiplies to TF32: then another rounding is one of these units."""
    flags = torch.backends.cudnn if name in WINDOWS or name == "convolution_backward" else torch.backends.cuda.matmul \
        if name in PRODUCTS else None
    return flags is not None and bool(flags.allow_tf32) and any(
        isinstance(value, torch.Tensor) and value.is_cuda and value.dtype == torch.float32 for value in operands)


class Rounding(TorchDispatchMode):
    """Rounds the floating results of operators one unit in the last place up or down (one in `SELDOM` of those of less
    than 32 bits), but those that are memory of their operands. Operators that round on their way run as the operators
    that they are made of (`written_out`; there the largest of a softmax is one of its elements), and what a device
    multiplies in TF32 moves by units of that. unit: the relative size of a unit, by default that of each type, which
    is one or two of the last place; share: how much of it. sums: what part of their `summed_units` results move by,
    where that is more than one. operands: the relative error of inputs and of what is multiplied, where those are given
    fewer digits. ``is_wide``: whether all of them were of float64."""

    seldom = SELDOM

    def __init__(self, seed: int, unit: float | None = None, share: float = 1.0, sums: float = 0.0,
                 operands: float = 0.0) -> None:
        super().__init__()
        self.seed, self.unit, self.share, self.sums, self.is_wide = seed, unit, share, sums, True
        self.operands = operands
        self.within = False  # one that is written out
        self.places = random.Random(seed)
        self.pools: dict[tuple[torch.device, int], torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (steps := written_out().get(func)) is not None:
            return self._in_steps(steps, args, kwargs or {})
        name = func.overloadpacket.__name__
        if self.within and name in MOVES and name != "clamp":  # a bound is rounded to the type of what it bounds
            return func(*args, **(kwargs or {}))
        if self.operands and name in PRODUCTS | WINDOWS:
            args = tuple(self.operand_off(v) if isinstance(v, torch.Tensor) else v for v in args)
        elif _is_in_tf32(name, args):
            args = tuple(self.one_unit_off(v, _TF32) if isinstance(v, torch.Tensor) else v for v in args)
        results = func(*args, **(kwargs or {}))
        if any(value.alias_info is not None for value in func._schema.returns):
            return results

        def moved(result: Any) -> Any:
            if not isinstance(result, torch.Tensor):
                return result
            units = self.sums * summed_units(name, args, result) if self.sums else 1.0
            return self.one_unit_off(result, max(1.0, units))

        return type(results)(map(moved, results)) if type(results) in (list, tuple) else moved(results)

    def _in_steps(self, steps: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What an operator gives that runs as others."""
        outer, self.within = self.within, True
        try:
            with self:
                return steps(*args, **kwargs)
        finally:
            self.within = outer

    def one_unit_off(self, tensor: torch.Tensor, units: float = 1.0) -> torch.Tensor:
        """A copy of a floating tensor with elements a unit, or so many, up or down; others, and those of 8 bits, as
        they are."""
        kind = tensor.dtype
        if not kind.is_floating_point or kind.itemsize < 2 or tensor.is_nested or tensor.layout != torch.strided \
                or not tensor.numel() or tensor._is_zerotensor():  # zeros without memory, as the derivative of a sign
            return tensor
        self.is_wide &= kind == torch.float64
        given = tensor.detach()
        wide = given.to(torch.promote_types(kind, torch.float32))
        limits = torch.finfo(kind)
        # Below the smallest normal number units are all of one size; infinities stay, as do zeros. What is rounded to
        # zero keeps its sign.
        unit = units * self.share * (self.unit or limits.eps)
        step = wide.abs().mul_(unit).clamp_(limits.smallest_normal * limits.eps, limits.max * unit)
        step *= self._units(given, self.seldom if kind.itemsize < 4 else 1)
        step *= wide != 0
        moved = step.add_(wide).to(kind)
        signed = torch.copysign(moved, given)
        moved = signed if unit < 1.0 else torch.where(moved == 0, signed, moved)  # less than itself changes no sign
        return moved.requires_grad_(tensor.requires_grad)

    def input_off(self, tensor: torch.Tensor) -> torch.Tensor:
        """An input with elements a unit up or down, if it is none of labels."""
        return tensor if are_labels(tensor) else self.operand_off(tensor)

    def operand_off(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is multiplied with elements a unit off, or in the digits that ``operands`` leaves: rounded to these, by
        which nearly equal values move alike, or in every other call at random."""
        kind = tensor.dtype
        if not self.operands or not kind.is_floating_point or torch.finfo(kind).eps > self.operands:
            return self.one_unit_off(tensor)
        if self.seed % 2:
            return self.one_unit_off(tensor, self.operands / torch.finfo(kind).eps)
        fraction, exponent = torch.frexp(tensor.detach())
        rounded = torch.ldexp(torch.round(fraction / (2 * self.operands)) * (2 * self.operands), exponent)
        return torch.where(rounded.isfinite(), rounded, tensor.detach()).requires_grad_(tensor.requires_grad)

    def terms_off(self, args: Sequence[Any]) -> list[Any]:
        """Operands of one of `SUMS` with each term a unit off."""
        return [self.one_unit_off(value) if isinstance(value, torch.Tensor) and value.dtype.itemsize >= 4 else value
                for value in args]

    def _units(self, like: torch.Tensor, each: int) -> torch.Tensor:
        """1, 0 or -1 for each element: one in 2 ``each`` goes up, as many go down, where ``each`` is above 1; half up
        and half down where it is 1. A stretch of `_PERIOD` numbers, drawn once and repeated, from a place of its own:
        generators of random numbers are slower than most operators."""
        key = like.device, each
        pool = self.pools.get(key)
        if pool is None or pool.numel() < like.numel() + _PERIOD:
            if pool is None:
                drawn = torch.randint(0, 2 * each, (_PERIOD,), generator=torch.Generator().manual_seed(self.seed))
                pool = ((drawn == 0).float() - (drawn == 1).float()).to(like.device)
            pool = self.pools[key] = pool[:_PERIOD].repeat(like.numel() // _PERIOD + 2)
        place = self.places.randrange(_PERIOD)
        return pool[place:place + like.numel()].view(like.shape)


class RoundingOfInexact(Rounding):
    """Moves those results alone that an operator rounded, and equal ones alike: what float32 computes exactly, and ties
    of equal values, stay as they are; but for products of matrices, of which a library adds equal rows in orders that
    depend on their place."""

    seldom = 1
    by_place = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (steps := written_out().get(func)) is not None:
            return self._in_steps(steps, args, kwargs)
        exact = self._exact(func, args, kwargs)
        results = func(*args, **kwargs)
        if exact is None:
            return results
        moved = func(*self.terms_off(args), **kwargs) if func.overloadpacket.__name__ in SUMS else results
        rights, others = iter(tensors_of(exact)), iter(tensors_of(moved))
        self.by_place = func.overloadpacket.__name__ in PRODUCTS | WINDOWS

        def rounded(result: torch.Tensor) -> torch.Tensor:
            right, other = next(rights), next(others)
            if not result.is_floating_point() or result.dtype == torch.float64 or right.shape != result.shape:
                return result
            return torch.where(result.double() == right, result, self.one_unit_off(other))

        found = map_tensors(results, rounded)
        self.by_place = False
        return found

    @staticmethod
    def _exact(func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator gives in float64 for its operands; None where it draws, writes, or takes no float64."""
        if torch.Tag.nondeterministic_seeded in func.tags or func._schema.is_mutable or any(
                value.alias_info is not None for value in func._schema.returns):
            return None
        arguments, named = (map_tensors(value, lambda t: t.double() if t.is_floating_point() else t)
                            for value in (list(args), kwargs))
        if func.overloadpacket.__name__ == "_to_copy":
            return arguments[0]
        try:
            return func(*arguments, **named)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return None

    def _units(self, like: torch.Tensor, each: int) -> torch.Tensor:
        """1 or -1 for each element, by its bits: one of a multiplied hash of them; or by its place."""
        if self.by_place:
            return super()._units(like, 1)
        whole, kept = {2: (torch.int16, torch.int32), 4: (torch.int32, torch.int32),
                       8: (torch.int64, torch.int64)}[like.element_size()]
        # The bit that is taken is made by no higher one: what overflows 32 bits is none of it.
        shift, factor = ((number + 2**31) % 2**32 - 2**31 for number in (self.seed * 7919, 2654435761))
        mixed = (like.contiguous().view(whole).to(kept) + shift).mul_(factor)
        return (mixed >> 17).bitwise_and_(1).mul_(2).sub_(1)


def add(found: dict[str, list[Statistics]], draw: Any, eager: Any, reference: Any, root: str,
        tolerance: Tolerance, is_wide: bool = False) -> None:
    """Add the errors of ``draw`` against ``reference`` to ``found``, by the paths of its leaves. is_wide: that of the
    `Draw`."""
    draws, own, truth = (flatten(value, root) for value in (draw, eager, reference))
    for path, leaf in _leaves(draws):
        mine, exact = own.get(path), truth.get(path)
        if isinstance(mine, torch.Tensor) and isinstance(exact, torch.Tensor) \
                and leaf.shape == mine.shape == exact.shape:
            plain, *others = map(plain_tensor, (leaf, mine, exact))
            limits = tolerance.for_dtype(plain.dtype)
            measured = measure_error(plain, *others, atol=limits.atol, rtol=limits.rtol, nonfinite=limits.nonfinite)
            measured.is_wide = is_wide
            found.setdefault(path, []).append(measured)


def _leaves(draws: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The leaves that have errors: floating and complex tensors."""
    for path, leaf in draws.items():
        if isinstance(leaf, torch.Tensor) and (leaf.dtype.is_floating_point or leaf.dtype.is_complex):
            yield path, leaf
