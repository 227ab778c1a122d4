"""What a trial takes for the truth: the model in float64 where that is the computation that eager makes, else eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.problem.memory import is_out_of_memory, release
from kernelwright.problem.untraced import without_tracer
from kernelwright.verify.compare import compare
from kernelwright.verify.computation import (
    MOST_DRAWS,
    MULTIPLE,
    Spread,
    nonfinite,
    unexplained,
    without_lost,
    without_moved,
)
from kernelwright.verify.distributions import squares_leave_range
from kernelwright.verify.flatten import clone_tensors, tensors_of
from kernelwright.verify.kept import ByModel, Kept
from kernelwright.verify.observe import call, first_line, seed_all, without_tf32
from kernelwright.verify.records import Reference
from kernelwright.verify.sampling import take
from kernelwright.verify.sensitivity import DRAWS, drawn, while_memory_lasts
from kernelwright.verify.state import OwnTypes, State, call_in_float64, own_types, widened

#: An eager result further than this from float64 (relative) means that the two did not draw the same random numbers,
#: or that entries of a batch depend on each other.
SAME_COMPUTATION = 0.05
#: An eager result no further than this from float64 (relative) is not said to be another computation unasked.
NEAR = 1e-3
#: The usual reference, and that of a candidate that is the original computation.
FLOAT64 = "float64"
#: How the words begin of a reference that is float64 on a few batch entries.
ENTRIES = "float64 on entries"
UNCHANGED = "eager itself: nothing is replaced"
#: How the words of a reference begin that is the model in float32.
STRICT = "eager with TF32 off"
#: The references of which another float64 run is known, by the words for what that one leaves out.
FAST_PATH = "float64 on the fast paths that eager takes"
SEPARATE = "eager itself: float64 is another computation"
#: Where inputs leave the range of the model's type.
RANGE = "float64 where eager's type holds what it computes"


def reference_of(
    model: ByModel,
    eager: nn.Module,
    double: nn.Module | None,
    seed: int,
    entries: torch.Tensor | None,
    batched: Sequence[bool],
    without_double: str = "",
    *,
    kept: Kept | None = None,
    recording: bool = False,
    extreme: bool = False,
) -> Reference:
    """The truth about the call ``model`` of ``eager``, with the random numbers of ``seed``.

    ``double`` is the float64 copy of ``eager`` (None where it cannot be copied, as ``without_double`` says), and runs
    only the batch ``entries`` of the inputs that are ``batched``, or all where None. Whatever it raises makes eager the
    truth, as does what `kernelwright.verify.computation` finds. ``recording``: eager's call recorded gradients.
    ``extreme``: the inputs leave the range of the model's type. ``kept`` remembers what holds for all trials.
    """
    why = without_double or "the model cannot be copied to float64"
    run = _Run(model, eager, double, seed, entries, batched, recording, extreme, kept or Kept())
    after = State.of(eager, parameters=False)
    try:
        if double is not None:
            for is_last in (False, True):
                found = None
                try:
                    found = run.float64()
                    return run.checked(found)
                except Exception as error:  # out of memory, an operator without float64, ...
                    if found is not None and not is_out_of_memory(error):
                        raise
                    why = f"float64 failed ({first_line(error)})"
                    if is_last or not is_out_of_memory(error):
                        break
                release()
        outputs = run.part(run.strict())
    finally:
        after.apply(eager)
    return Reference(outputs, f"{STRICT}: {why}")


@dataclass
class _Run:
    """The runs that are needed to find the truth of one call. The state of ``eager`` is the caller's to restore."""

    model: ByModel
    eager: nn.Module
    double: nn.Module | None
    seed: int
    entries: torch.Tensor | None
    batched: Sequence[bool]
    recording: bool
    extreme: bool
    kept: Kept

    def part(self, outputs: Any) -> Any:
        """What of whole outputs is compared."""
        return outputs if self.entries is None else take(outputs, self.entries)

    def checked(self, found: Reference) -> Reference:
        """The truth, where ``found`` is the model in float64."""
        expected = self.part(self.model.called.outputs)
        nothing = Spread()
        # A number that float64 does not have may be one of another branch: see what the model asked for its types.
        if not unexplained(expected, found.outputs, nothing) and not nonfinite(found.outputs, expected):
            return self._in_range(expected, found)
        if not self.model.uses_randomness and _uses_tf32(self.model.inputs):
            expected = self.part(self.strict())
            if not unexplained(expected, found.outputs, nothing) and not nonfinite(found.outputs, expected):
                return self._in_range(expected, found)
        if self.kept.own is None:
            self.kept.own = self._own_types()
            if self.kept.own:
                found = self.float64()
                if not unexplained(expected, found.outputs, nothing):
                    return self._in_range(expected, found)
        if self.model.uses_randomness:
            if (self.entries is not None and not nonfinite(found.outputs, expected)) or _close(
                    expected, found.outputs) or not self._left(expected, found.outputs, Spread(), DRAWS):
                return self._in_range(expected, found)
            if self.extreme:
                return found._replace(words=RANGE, lost=True)
            return Reference(expected, "eager itself: float64 draws other random numbers")
        spread = Spread()
        if not self._left(expected, found.outputs, spread, DRAWS):
            return self._in_range(expected, found)
        fast = self._fast(found)
        if fast is not None and not unexplained(expected, fast.outputs, spread):
            return self._in_range(expected, fast)
        if self.extreme or ((rest := without_lost(expected, found.outputs)) is not None
                            and not unexplained(*rest, spread) and self._leaves_range()):
            return found._replace(words=RANGE, lost=True)
        rounded = self._rounded()
        if rounded is not None and not unexplained(expected, rounded.outputs, spread):
            return found._replace(words=RANGE, lost=True) if rounded.lost else found
        left = self._left(expected, found.outputs, spread, DRAWS if self.kept.separate else MOST_DRAWS)
        if not left or not self._left_far(expected, found.outputs, spread, left):
            return self._in_range(expected, found)
        if self.entries is not None and not unexplained(self._alone(), found.outputs, spread):
            return found
        if _uses_tf32(self.model.inputs) and not unexplained(expected, found.outputs, self._in_tf32(expected), 1.0):
            return self._in_range(expected, found)
        self.kept.separate = True
        return Reference(self.part(self.model.called.outputs), SEPARATE, other=found.outputs, separate=left)

    def _in_range(self, expected: Any, found: Reference) -> Reference:
        """``found``, from which eager's ``expected`` differs in nothing, but for what its type does not hold."""
        lost = nonfinite(expected, found.outputs)
        if lost and found.words != FAST_PATH and not self.extreme and not self.model.uses_randomness:
            fast = self._fast(found)
            found = fast if fast is not None and nonfinite(expected, fast.outputs) < lost else found
        if without_lost(expected, found.outputs) is not None and (self.extreme or self._leaves_range()):
            return found._replace(words=RANGE, lost=True)
        return found

    def _leaves_range(self) -> bool:
        """Whether squares of inputs, or of what an operator of eager's gives, leave the range of their type."""
        watching = _Watching()
        watching.left = squares_leave_range(self.model.inputs)
        if not watching.left:
            with watching:
                self._call_eager(self.model.inputs)
        return watching.left

    def strict(self) -> Any:
        """Eager's outputs without TF32; as they are where that fails."""
        with without_tf32():
            called = self._call_eager(self.model.inputs)
        return self.model.called.outputs if called.error is not None else called.outputs

    def _alone(self) -> Any:
        """Eager's outputs for the entries alone."""
        return self._call_eager(self._chosen()).outputs

    def _chosen(self) -> list[Any]:
        if self.entries is None:
            return self.model.inputs
        return [v[self.entries.to(v.device)] if b else v
                for v, b in zip(self.model.inputs, self.batched, strict=True)]

    def _call_eager(self, inputs: Sequence[Any]) -> Any:
        self.model.before.apply(self.eager)
        seed_all(self.seed)
        return call(self.eager, clone_tensors(list(inputs)), recording=self.recording)

    def float64(self, call_double: Callable[..., Any] = call_in_float64) -> Reference:
        """The model in float64 as the truth. Raises what it raises."""
        double = self.double
        assert double is not None
        State.of(self.eager, owned=False).apply(double)
        self.model.before.apply(double)
        arguments = widened(self._chosen())
        seed_all(self.seed)
        with torch.set_grad_enabled(self.recording), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs = call_double(double, arguments, own=self.kept.own or OwnTypes())
        if self.entries is not None:
            return Reference(outputs, f"{ENTRIES} {self.entries.tolist()} of axis 0, eager for the others")
        return Reference(outputs, FLOAT64, State.of(double, parameters=False).tracked(), arguments)

    def _fast(self, found: Reference) -> Reference | None:
        """The model in float64 on the paths that PyTorch takes where nobody looks at its functions; ``found`` is what
        it is on others."""
        def as_is(double: nn.Module, arguments: Any, **_: Any) -> Any:
            return call_in_float64(double, arguments, as_is=True)

        try:
            return self.float64(as_is)._replace(words=FAST_PATH, other=found.outputs)
        except Exception as error:  # float32 beside float64, as nothing widens what the model itself casts
            if is_out_of_memory(error):
                raise
            return None

    def _rounded(self) -> Reference | None:
        """The model in float64, in which the result of every operator is rounded to eager's type, so that it rounds and
        loses on the way what eager does; None where eager has several types."""
        tensors = tensors_of([*self.model.inputs, *self.eager.parameters(), *self.eager.buffers()])
        kinds = {tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point}
        if len(kinds) != 1:
            return None
        rounding = _RoundingTo(kinds.pop())

        def rounded(double: nn.Module, arguments: Any, **options: Any) -> Any:
            with rounding:
                return call_in_float64(double, arguments, **options)

        try:
            return self.float64(rounded)._replace(lost=rounding.lost)
        except Exception as error:  # an operator that takes no such mode
            if is_out_of_memory(error):
                raise
            return None

    def _own_types(self) -> OwnTypes:
        called, own = own_types(partial(self._call_eager, self.model.inputs))
        return own if called.error is None else OwnTypes()

    def _in_tf32(self, expected: Any) -> Spread:
        """How results move where products are rounded to TF32 otherwise."""
        spread = Spread()
        for draw in while_memory_lasts(drawn(self.eager, self.model.inputs, self.model.before, self.seed, range(DRAWS),
                                             self.recording)):
            spread.add(expected, draw, self.part)
        return spread

    def _left_far(self, expected: Any, found: Any, spread: Spread, left: str) -> str:
        """What is left of ``left`` where few elements may be off by what rounding `MULTIPLE` times as large moves them,
        in calls until that explains all, or there are `MOST_DRAWS`, as far as memory does for them."""
        numbers = range(DRAWS if self.kept.separate else MOST_DRAWS)
        with without_tf32(), closing(drawn(self.eager, self.model.inputs, self.model.before, self.seed, numbers,
                                           self.recording, share=MULTIPLE)) as draws:
            for draw in while_memory_lasts(draws):
                expected = without_moved(expected, found, self.part(draw.outputs))
                if expected is None or not (left := unexplained(expected, found, spread)):
                    break
        return left

    def _left(self, expected: Any, found: Any, spread: Spread, most: int) -> str:
        """What `unexplained` says of eager's ``expected`` and ``found`` with draws added to ``spread`` until they
        explain all, or there are ``most``. Another draw never explains less, and each is a call of the whole model.
        Where memory does not do for them, what is `NEAR` is taken for explained."""
        left = unexplained(expected, found, spread)
        with without_tf32():
            draws = drawn(self.eager, self.model.inputs, self.model.before, self.seed, range(spread.count, most),
                          self.recording, sums=1 / MULTIPLE)
            try:
                with closing(draws):
                    while left and (draw := next(draws, None)) is not None:
                        spread.add(expected, draw, self.part)
                        left = unexplained(expected, found, spread)
            except Exception as error:
                if not is_out_of_memory(error) or not _close(expected, found, NEAR):
                    raise
                left = ""
        return left


@without_tracer
class _Watching(TorchDispatchMode):
    """Looks whether squares of a result leave the range of its type."""

    left = False

    def __torch_dispatch__(self, func: torch._ops.OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if "empty" not in func._schema.name:  # of memory that nobody has written yet
            self.left = self.left or squares_leave_range(results)
        return results


@without_tracer
class _RoundingTo(TorchDispatchMode):
    """Rounds what operators give in float64 to ``kind``. ``lost``: whether a number became infinite or zero by that."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind, self.lost = kind, False

    def __torch_dispatch__(self, func: torch._ops.OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not views and "empty" not in func._schema.name:  # of memory that nobody has written yet
            for result in tensors_of(results):
                if result.dtype is torch.float64 and result.layout == torch.strided and not result._is_zerotensor():
                    held = result.to(self.kind)
                    self.lost = self.lost or bool(((held.isinf() | (held == 0)) & (held != result)).any())
                    result.copy_(held)
        return results


def _uses_tf32(inputs: Any) -> bool:
    backends = torch.backends
    return bool(backends.cudnn.allow_tf32 or backends.cuda.matmul.allow_tf32) and torch.cuda.is_available() and any(
        t.is_cuda for t in tensors_of(inputs))


def _close(outputs: Any, reference: Any, relative: float = SAME_COMPUTATION) -> bool:
    found = compare(outputs, outputs, reference)
    return not found.structure and all(
        o.eager_relative <= relative and not o.misplaced_nonfinite for o in found.outputs
    )
