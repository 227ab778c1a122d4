"""Gradients of a candidate against eager's and float64's: of inputs and parameters, by all outputs and each alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.problem.memory import is_out_of_memory
from kernelwright.verify import sensitivity
from kernelwright.verify.choices import decided_otherwise, may_be_chosen, with_choices_of
from kernelwright.verify.compare import compare, equal_bits, from_sample, taken_as_equal
from kernelwright.verify.computation import settled
from kernelwright.verify.differentiate import Found, differentiated, directions_of, tensors_by_path
from kernelwright.verify.flatten import flatten
from kernelwright.verify.floating import Allowance
from kernelwright.verify.gradient_parts import BY_PART, Part, Parts, allowed, in_parts, largest, only
from kernelwright.verify.observe import first_line, identical
from kernelwright.verify.records import Comparison, OutputError
from kernelwright.verify.sensitivity import Rounding, add, may_be_rounding
from kernelwright.verify.state import OwnTypes, State
from kernelwright.verify.statistics import MOST_MOVED, Statistics
from kernelwright.verify.ties import chosen_otherwise, has_wrong_signs, with_signs_of
from kernelwright.verify.tolerance import Tolerance

_OUTPUTS = "outputs where inputs require gradients"
#: How many times as many calls under other rounding are made where slices of gradients are near their limits.
_MORE = 4


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
    parts: Parts | None = None,
    lost: bool = False,
    types: OwnTypes = OwnTypes(),
    of_inputs: bool = True,
    part: Part | None = None,
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
    how far outputs are off in the batch entries that float64 ran, where it ran no others. ``parts`` says then how
    ``double`` finds gradients a few entries at a time: of all, or of a part, which is compared by itself; where eager
    is the reference, it is off by as much as was found where float64 ran. ``lost``: eager's type does not hold
    all that the model computes, and what it has lost decides nothing (`settled`). ``types``: what is known of the types
    that the model has without us (`own_types`). Without ``of_inputs`` no input requires a gradient. ``part``: outputs
    are not compared, and gradients are those that it says.
    """
    combinations: list[str] | None = None if strict and alone else [""]
    directions = part.directions if part is not None else None
    found: list[Found] = []
    are_eagers = False
    entries: torch.Tensor | None = None
    for module in (model, candidate, double):
        if module is double and len(found) == 2 and not found[1].error:
            are_eagers = equal_bits(found[1].gradients, found[0].gradients)
            combinations = [] if are_eagers else combinations
        if module is None or (module is double and are_eagers and (not strict or sampled is not None)):
            found.append(part.exact if part is not None else found[0])
            continue
        if module is double and are_eagers and known is not None \
                and identical(tensors_by_path(known[0]), found[0].outputs):
            found.append(Found(tensors_by_path(known[1])))
            continue
        try:
            if module is double and parts is not None:
                made, entries = in_parts(module, inputs, parts, state, seed, combinations, found[0],
                                         directions_of(found[0].outputs, seed), strict=strict, types=types,
                                         of_inputs=of_inputs)
            else:
                state.apply(module)
                made = differentiated(module, inputs, seed, combinations, found[0] if found else None,
                                      in_float64=module is double, strict=strict, types=types, of_inputs=of_inputs,
                                      directions=directions)
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
    compares_outputs = strict and part is None

    by_part: Comparison | None = None
    more: dict[str, Allowance] = {}
    if entries is not None:
        by_part = check_gradients(
            model, candidate, None, inputs, state, seed=seed, tolerance=tolerance, strict=strict, alone=alone,
            words=f"{words} {BY_PART}", types=types, of_inputs=of_inputs,
            part=Part(reference, only(directions_of(eager.outputs, seed), entries)))
        reference = eager
        if by_part is not None:
            share = len(entries) / len(next(iter(eager.outputs.values())))
            more = allowed(by_part, tolerance, share, (f"{words} {BY_PART}", words))
    off = from_sample(sampled, tolerance) if sampled is not None and reference is eager else {}
    most = largest(*off.values())

    def decided(values: Any, by_eager: Any, exact: Any) -> tuple[Any, Any, Any]:
        return settled(values, by_eager, exact) if lost else (values, by_eager, exact)

    def compared(moved: Mapping[str, Sequence[Statistics]] | None = None) -> list[Comparison]:
        verdicts = [compare(*decided(mine, right, reference.outputs), tolerance=tolerance, root=_OUTPUTS, moved=moved,
                            allowances={f"{_OUTPUTS}[{path!r}]": allowance for path, allowance in off.items()})
                    ] if compares_outputs else []
        for by, gradients in eager.gradients.items():
            root = _root(words, by)
            verdicts.append(taken_as_equal(gradients, root) if are_eagers else compare(
                *decided(own.gradients.get(by, {}), gradients, _exact(reference, by, gradients)), tolerance=tolerance,
                root=root, moved=moved, allowances={path: allowance for path in flatten(gradients, root)
                                                    if (allowance := largest(most, more.get(path))) is not None}))
        return verdicts

    mine = own.outputs
    verdicts = compared()
    if compares_outputs and has_wrong_signs(verdicts[0]):
        others = [tensors_by_path(given) for given in chosen_otherwise(model, inputs, state, seed, recording=True)]
        right = with_signs_of(own.outputs, eager.outputs, others)
        verdicts = compared()
    limits = tolerance or Tolerance()
    if compares_outputs and may_be_chosen(verdicts[0]):
        others = [tensors_by_path(given) for given in decided_otherwise(model, inputs, state, seed, recording=True)]
        mine = with_choices_of(own.outputs, right, others, limits, verdicts[0], _OUTPUTS)
        verdicts = compared()
    if may_be_rounding(limits, *verdicts):
        moved: dict[str, list[Statistics]] = {}
        for numbers in (range(sensitivity.DRAWS), range(sensitivity.DRAWS, _MORE * sensitivity.DRAWS)):
            for draw, is_wide in _drawn(model, inputs, state, seed, numbers, combinations, eager, strict, of_inputs,
                                        directions):
                if compares_outputs:
                    _, by_eager, exact = decided(mine, right, reference.outputs)
                    add(moved, draw.outputs, by_eager, exact, _OUTPUTS, limits, is_wide)
                for by, gradients in eager.gradients.items():
                    _, by_eager, exact = decided(own.gradients.get(by, {}), gradients,
                                                 _exact(reference, by, gradients))
                    add(moved, draw.gradients.get(by, {}), by_eager, exact, _root(words, by), limits, is_wide)
            again = compared(moved)
            if all(verdict.passed for verdict in again):
                verdicts = again
                break
            if not _are_near(again):
                break
    for verdict in (*verdicts, *([by_part] if by_part is not None else [])):
        outputs += verdict.outputs
        structure += verdict.structure
    return Comparison(not structure and all(o.passed for o in outputs), tuple(outputs), tuple(structure))


def _are_near(verdicts: Sequence[Comparison]) -> bool:
    """Whether all that failed are slices beside their limits: what rounding decides in a slice (the side of a ReLU on
    which a value lies) is another draw in each call, and the most of a few draws is not yet the most of many slices."""
    return all(not verdict.structure and all(
        output.passed or (set(output.kinds) == {"slice"} and all(
            worst.relative <= MOST_MOVED * worst.limit for worst in output.worst_slices))
        for output in verdict.outputs) for verdict in verdicts)


def _drawn(model: nn.Module, inputs: Sequence[Any], state: State, seed: int, numbers: Sequence[int],
           combinations: list[str] | None, like: Found, strict: bool, of_inputs: bool,
           directions: Mapping[str, torch.Tensor] | None) -> Iterator[tuple[Found, bool]]:
    """Calls of ``model`` under other rounding, of their backward passes, too, each with whether nothing but float64 was
    rounded; ``numbers`` choose it. Fewer where memory runs out: what they would have excused is refused."""
    for number in numbers:
        state.apply(model)
        try:
            rounding = Rounding(seed + number)
            found = differentiated(model, inputs, seed, combinations, like, in_float64=False, strict=strict,
                                   rounding=rounding, of_inputs=of_inputs, directions=directions)
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
