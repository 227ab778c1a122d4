"""Gradients of a candidate against eager's and float64's: of inputs and parameters, by all outputs and each alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kernelwright.problem.memory import is_out_of_memory
from kernelwright.verify import sensitivity
from kernelwright.verify.choices import decided_otherwise, may_be_chosen, with_choices_of
from kernelwright.verify.compare import compare, equal_bits, from_sample, taken_as_equal
from kernelwright.verify.computation import settled
from kernelwright.verify.flatten import clone_tensors, flatten, tensors_of
from kernelwright.verify.floating import Allowance
from kernelwright.verify.observe import first_line, identical, seed_all
from kernelwright.verify.records import Comparison, OutputError
from kernelwright.verify.sensitivity import Rounding, add, may_be_rounding
from kernelwright.verify.state import OwnTypes, State, call_in_float64, widened
from kernelwright.verify.statistics import Statistics
from kernelwright.verify.ties import chosen_otherwise, has_wrong_signs, with_signs_of
from kernelwright.verify.tolerance import Tolerance

#: Outputs of which each is also differentiated alone, at most.
MOST_ALONE = 4
_OUTPUTS = "outputs where inputs require gradients"


@dataclass
class Found:
    """A call with gradients recorded. ``outputs`` are detached; ``flags`` say which of them require gradients;
    ``gradients`` are, for all outputs together ("") and for each alone (its path), those of each input and parameter:
    None where there is none. ``error``: what the backward pass raised, of what class."""

    outputs: Any = None
    flags: dict[str, bool] = field(default_factory=dict)
    gradients: dict[str, dict[str, torch.Tensor | None]] = field(default_factory=dict)
    error: str = ""


def check_gradients(
    model: nn.Module,
    candidate: nn.Module,
    double: nn.Module | None,
    inputs: Sequence[Any],
    state: State,
    *,
    seed: int = 0,
    tolerance: Tolerance | None = None,
    strict: bool = True,
    alone: bool = True,
    known: tuple[Any, Any] | None = None,
    words: str = "gradient",
    sampled: Comparison | None = None,
    lost: bool = False,
    types: OwnTypes = OwnTypes(),
    of_inputs: bool = True,
) -> Comparison | None:
    """Compare the gradients of random linear functions of the outputs; None where the model has none.

    Every floating and complex input and every parameter that requires a gradient has one; outputs require gradients
    where the model's do. ``strict``: a gradient is None where the model's is None (else that counts as zero), several
    outputs that require gradients are differentiated each alone, too, and the outputs themselves are compared, as a
    forward may ask what its inputs are. All three modules start from ``state``; ``double`` may be None, then eager is
    the reference, as it is for what float64 cannot do. Gradients of eager's own bits need none (an emitted file's are
    those of the original forward): float64 then makes no backward pass, and no call where ``known``, outputs of eager's
    with those of float64, are of these bits. Without ``alone`` no output is differentiated by itself. Raises
    what says that memory is lacking; a candidate's error is in the comparison. ``words`` begin the paths. ``sampled``:
    how far outputs are off in the batch entries that float64 ran, where it ran no others (``double`` is None then):
    eager is off by as much elsewhere, and its gradients by as much as the outputs. ``lost``: eager's type does not hold
    all that the model computes, and what it has lost decides nothing (`settled`). ``types``: what is known of the types
    that the model has without us (`own_types`). Without ``of_inputs`` no input requires a gradient.
    """
    combinations: list[str] | None = None if strict and alone else [""]
    found: list[Found] = []
    are_eagers = False
    for module in (model, candidate, double):
        if module is double and len(found) == 2 and not found[1].error:
            are_eagers = equal_bits(found[1].gradients, found[0].gradients)
            combinations = [] if are_eagers else combinations
        if module is None or (module is double and are_eagers and not strict):
            found.append(found[0])
            continue
        if module is double and are_eagers and known is not None and identical(_tensors(known[0]), found[0].outputs):
            found.append(Found(_tensors(known[1])))
            continue
        state.apply(module)
        try:
            made = _differentiated(module, inputs, seed, combinations, found[0] if found else None,
                                   in_float64=module is double, strict=strict, types=types, of_inputs=of_inputs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if module is model:
                return None
            if module is double:
                found.append(found[0])
                continue
            return _refused(words, f"the candidate fails with gradients: {type(error).__name__}: {first_line(error)}")
        if module is model and (not any(made.flags.values()) or made.error):
            return None  # nothing to differentiate, or an operator that has no gradient
        if made.error:
            if module is not double:
                return _refused(words, f"the candidate fails with gradients: {made.error}")
            made = found[0]
        combinations = list(made.gradients) if module is model else combinations
        found.append(made)
    eager, own, reference = found
    flags = [f"{path} {'does not require' if right else 'requires'} gradients, the model's "
             f"{'does' if right else 'does not'}" for path, right in eager.flags.items()
             if own.flags.get(path, right) != right]
    if not any(own.flags.values()):
        flags.append("no output requires a gradient")
    outputs = [OutputError(words, False, tuple(flags), kinds=("requires-grad",) * len(flags))] if flags else []
    structure: list[str] = []
    right = eager.outputs

    off = from_sample(sampled, tolerance) if sampled is not None and double is None else {}
    most = Allowance(*map(max, zip(*((a.units, a.relative, a.slices) for a in off.values())))) if off else None

    def decided(values: Any, by_eager: Any, exact: Any) -> tuple[Any, Any, Any]:
        return settled(values, by_eager, exact) if lost else (values, by_eager, exact)

    def compared(moved: Mapping[str, Sequence[Statistics]] | None = None) -> list[Comparison]:
        parts = [compare(*decided(mine, right, reference.outputs), tolerance=tolerance, root=_OUTPUTS, moved=moved,
                         allowances={f"{_OUTPUTS}[{path!r}]": allowance for path, allowance in off.items()})
                 ] if strict else []
        for by, gradients in eager.gradients.items():
            root = _root(words, by)
            parts.append(taken_as_equal(gradients, root) if are_eagers else compare(
                *decided(own.gradients.get(by, {}), gradients, _exact(reference, by, gradients)), tolerance=tolerance,
                root=root, moved=moved, allowances=dict.fromkeys(flatten(gradients, root), most) if most else None))
        return parts

    mine = own.outputs
    parts = compared()
    if strict and has_wrong_signs(parts[0]):
        others = [_tensors(given) for given in chosen_otherwise(model, inputs, state, seed, recording=True)]
        right = with_signs_of(own.outputs, eager.outputs, others)
        parts = compared()
    limits = tolerance or Tolerance()
    if strict and may_be_chosen(parts[0]):
        others = [_tensors(given) for given in decided_otherwise(model, inputs, state, seed, recording=True)]
        mine = with_choices_of(own.outputs, right, others, limits, parts[0], _OUTPUTS)
        parts = compared()
    if may_be_rounding(limits, *parts):
        moved: dict[str, list[Statistics]] = {}
        for draw, is_wide in _drawn(model, inputs, state, seed, combinations, eager, strict, of_inputs):
            _, by_eager, exact = decided(mine, right, reference.outputs)
            add(moved, draw.outputs, by_eager, exact, _OUTPUTS, limits, is_wide)
            for by, gradients in eager.gradients.items():
                _, by_eager, exact = decided(own.gradients.get(by, {}), gradients, _exact(reference, by, gradients))
                add(moved, draw.gradients.get(by, {}), by_eager, exact, _root(words, by), limits, is_wide)
        again = compared(moved)
        parts = again if all(part.passed for part in again) else parts
    for part in parts:
        outputs += part.outputs
        structure += part.structure
    return Comparison(not structure and all(o.passed for o in outputs), tuple(outputs), tuple(structure))


def _drawn(model: nn.Module, inputs: Sequence[Any], state: State, seed: int, combinations: list[str] | None,
           like: Found, strict: bool, of_inputs: bool) -> Iterator[tuple[Found, bool]]:
    """Calls of ``model`` under other rounding, of their backward passes, too, each with whether nothing but float64 was
    rounded. Fewer where memory runs out: what they would have excused is refused."""
    for number in range(sensitivity.DRAWS):
        state.apply(model)
        try:
            rounding = Rounding(seed + number)
            found = _differentiated(model, inputs, seed, combinations, like, in_float64=False, strict=strict,
                                    rounding=rounding, of_inputs=of_inputs)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return
        if not found.error:
            yield found, rounding.is_wide


def _exact(reference: Found, by: str, gradients: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    """The reference's gradients of an output, and eager's where it has none."""
    return {name: value if value is not None else gradients[name]
            for name, value in reference.gradients.get(by, gradients).items()}


def _root(words: str, by: str) -> str:
    return f"{words} of {by}" if by else words


def _refused(words: str, problem: str) -> Comparison:
    return Comparison(False, (OutputError(words, False, (problem,), kinds=("raises",)),))


def _differentiated(module: nn.Module, inputs: Sequence[Any], seed: int, combinations: list[str] | None,
                    like: Found | None, *, in_float64: bool, strict: bool, rounding: Rounding | None = None,
                    types: OwnTypes = OwnTypes(), of_inputs: bool = True) -> Found:
    """A call of ``module`` and its gradients, of the outputs that require them in ``like``, or in this call. rounding:
    under which both run."""
    context = rounding or nullcontext()
    arguments = widened(list(inputs)) if in_float64 else clone_tensors(list(inputs))
    leaves: dict[str, torch.Tensor] = {}
    for index, value in enumerate(arguments):
        for position, tensor in enumerate(tensors_of([value])):
            if not of_inputs:
                tensor.requires_grad_(False)
            elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                leaves[f"input {index}" + (f".{position}" if position else "")] = tensor.requires_grad_(True)
    leaves |= {name: p for name, p in module.named_parameters() if p.requires_grad}
    seed_all(seed)
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Inputs are leaves; the model sees views of them, because it may work in place.
        seen = [_views(value) for value in arguments]
        with context:
            outputs = call_in_float64(module, seen, own=types) if in_float64 else module(*seen)
        tensors = _tensors(outputs)
        found = Found(_detached(tensors), {path: t.requires_grad for path, t in tensors.items()})
        chosen = {p for p, flag in (like or found).flags.items() if flag} & {p for p, f in found.flags.items() if f}
        given = _directions(tensors, seed)
        if combinations is None:
            combinations = ["", *(sorted(chosen) if 1 < len(chosen) <= MOST_ALONE else ())]
        for number, by in enumerate(combinations, 1):
            paths = [p for p in tensors if p in chosen and by in ("", p)]
            if not paths:
                gradients: Sequence[Any] = [None] * len(leaves)
            else:
                try:
                    with context:
                        gradients = torch.autograd.grad(
                            [tensors[p] for p in paths], list(leaves.values()), [given[p] for p in paths],
                            allow_unused=True, retain_graph=number < len(combinations))
                except Exception as error:
                    if is_out_of_memory(error):
                        raise
                    found.error = f"{type(error).__name__}: {first_line(error)}"
                    return found
            found.gradients[by] = {
                name: gradient if strict or gradient is not None else torch.zeros_like(leaf)
                for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)}
    return found


def _views(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.view_as(value) if value.requires_grad else value
    if type(value) in (list, tuple):
        return type(value)(_views(item) for item in value)
    return {key: _views(item) for key, item in value.items()} if type(value) is dict else value


def _tensors(outputs: Any) -> dict[str, torch.Tensor]:
    return {path: leaf for path, leaf in flatten(outputs).items() if isinstance(leaf, torch.Tensor)}


def _detached(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {path: t.detach().clone() if t.is_leaf else t.detach() for path, t in tensors.items()}


def _directions(tensors: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """What outputs are multiplied by, the same for all modules: random numbers by the outputs' places, drawn where the
    outputs lie (a host draws a large output's for minutes)."""
    generators: dict[torch.device, torch.Generator] = {}
    found = {}
    for path, tensor in tensors.items():
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            device = tensor.device
            if device not in generators:
                generators[device] = torch.Generator(device).manual_seed(seed)
            dtype = torch.complex64 if tensor.dtype.is_complex else torch.float32
            found[path] = torch.randn(tensor.shape, generator=generators[device], dtype=dtype, device=device).to(tensor)
    return found
