"""What a trial observes around a call: random state, memory, changed inputs and parameters, exact bits."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kernelwright.device_lock import clock
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.problem.outside import read_outside
from kernelwright.problem.seeds import seed_generators, seed_others
from kernelwright.verify.flatten import flatten, tensors_of
from kernelwright.verify.state import State


@dataclass
class Called:
    """One call's outputs, or the error in one line and the name of its class; wall seconds; the warnings it gave."""

    outputs: Any = None
    error: str | None = None
    raised: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


def identical(left: Any, right: Any) -> bool:
    """Whether two nested values are equal bit by bit: NaN equals NaN of the same bits, and 0.0 is not -0.0."""
    lefts, rights = flatten(left), flatten(right)
    if lefts.keys() != rights.keys():
        return False
    for path, a in lefts.items():
        b = rights[path]
        if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
            return False
        if not isinstance(a, torch.Tensor):
            if a is not b and not bool(a == b):
                return False
            continue
        if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
            return False
        if a.layout is not torch.strided or b.layout is not torch.strided:
            if a.layout is not b.layout or not identical(a.to_dense(), b.to_dense()):
                return False
            continue
        if not torch.equal(_bits(a), _bits(b)):
            return False
    return True


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers, which compare by all of their bits."""
    if tensor.dtype is torch.bool or tensor.is_quantized:
        return tensor
    real = tensor.detach().resolve_conj().resolve_neg()
    real = torch.view_as_real(real) if real.is_complex() else real
    return real.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[real.element_size()])


def call(module: nn.Module, arguments: Sequence[Any], *, recording: bool = False) -> Called:
    """Call under no_grad, or with gradients recorded; device errors surface here, warnings become notes. Raises what
    `is_out_of_memory` accepts."""
    devices = {t.device for t in tensors_of(list(arguments)) if t.device.type == "cuda"}
    started = clock()
    with torch.set_grad_enabled(recording), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outputs = module(*arguments)
            for device in devices:
                torch.cuda.synchronize(device)
        except Exception as error:
            if is_out_of_memory(error):  # says something about the machine, whose memory others may hold
                raise
            # Whatever else a candidate raises is its verdict.
            return Called(error=f"{type(error).__name__}: {first_line(error)}", raised=type(error).__name__)
    notes = tuple(dict.fromkeys(str(w.message).splitlines()[0] for w in caught if str(w.message)))
    return Called(outputs, seconds=clock() - started, notes=notes)


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def random_state() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return states


def seed_all(seed: int) -> list[torch.Tensor]:
    """Seed every global generator; where those of torch stand then."""
    seed_generators(seed)
    seed_others(seed)
    return random_state()


def equal_states(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def _memory(value: Any) -> set[int]:
    return {
        t.untyped_storage().data_ptr() for t in tensors_of(value) if t.layout == torch.strided and t.numel()
    } - {0}


def shares_memory(left: Any, right: Any) -> bool:
    return bool(_memory(left) & _memory(right))


def returns_own_state(module: nn.Module, called: Called) -> bool:
    own = _memory(
        [*module.parameters(), *module.buffers(), *State.of(module, owned=False).attributes.values(),
         *read_outside(module).tensors.values()]
    )
    return bool(own & _memory(called.outputs))


def changed_parameters(eager: nn.Module, candidate: nn.Module) -> list[str]:
    mine = dict(candidate.named_parameters())
    return [
        f"the call changes parameter {name}"
        for name, value in eager.named_parameters()
        if name in mine
        and mine[name].shape == value.shape
        and mine[name].dtype == value.dtype
        and not identical(mine[name].detach(), value.detach())
    ][:3]


def changed_inputs(given: Sequence[Any], by_eager: Sequence[Any], by_candidate: Sequence[Any]) -> list[str]:
    return [
        f"the candidate changes input {index}, the model does not"
        for index, (before, eager, own) in enumerate(zip(given, by_eager, by_candidate, strict=True))
        if identical(before, eager) and not identical(before, own)
    ]


class without_tf32:
    """Context in which float32 products are float32 products."""

    def __enter__(self) -> None:
        self.saved = (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    def __exit__(self, *_: object) -> None:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = self.saved
