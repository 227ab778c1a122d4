"""VERIFY's judgement of one set of outputs: a candidate against float64, beside eager's own error.

Floating outputs are judged by :mod:`kernelwright.verify.floating`. Integers and booleans must be equal, and so must the
nesting, shapes, dtypes and devices.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from kernelwright.verify.flatten import flatten
from kernelwright.verify.floating import Allowance, judge
from kernelwright.verify.observe import identical
from kernelwright.verify.records import Comparison, OutputError
from kernelwright.verify.statistics import (
    MOST_MOVED,
    Statistics,
    by_draws,
    is_own_reference,
    measure_error,
    plain_tensor,
    spread,
    widen,
)
from kernelwright.verify.tolerance import Tolerance


def compare(
    candidate: Any,
    eager: Any,
    reference: Any,
    *,
    tolerance: Tolerance | None = None,
    root: str = "output",
    allowances: dict[str, Allowance] | None = None,
    moved: Mapping[str, Sequence[Statistics]] | None = None,
) -> Comparison:
    """Compare nested outputs leaf by leaf.

    ``candidate`` and ``eager`` must agree in nesting, shape, dtype and device; ``reference`` has the nesting
    and shapes, its floating leaves in float64, on any device. ``tolerance`` defaults to
    `Tolerance()`. ``moved``: further draws of eager's error by path (:mod:`kernelwright.verify.sensitivity`).
    Nothing is modified; nothing is raised for a wrong candidate.
    """
    leaves = [flatten(value, root) for value in (candidate, eager, reference)]
    structure = []
    for path in leaves[1]:
        if path not in leaves[0]:
            structure.append(f"{path} is missing.")
    for path in leaves[0]:
        if path not in leaves[1]:
            structure.append(f"{path} is not among the model's outputs.")
    outputs = []
    for path, eager_leaf in leaves[1].items():
        if path in leaves[0]:
            outputs.append(_leaf(path, leaves[0][path], eager_leaf, leaves[2].get(path, eager_leaf), tolerance,
                                 (allowances or {}).get(path), (moved or {}).get(path, ())))
    return Comparison(not structure and all(o.passed for o in outputs), tuple(outputs), tuple(structure))


def equal_bits(candidate: Any, eager: Any) -> bool:
    """Whether two nestings of tensors hold the same bits, so that no reference is needed: what is off by as much as
    eager is no worse than it. Of a subclass, which may answer for itself, nothing is asked."""
    leaves = flatten(candidate).values()
    return all(not isinstance(leaf, torch.Tensor) or type(leaf) is torch.Tensor for leaf in leaves) \
        and identical(candidate, eager)


def taken_as_equal(eager: Any, root: str = "output") -> Comparison:
    """What a comparison says of tensors that :func:`equal_bits` found equal to ``eager``."""
    return Comparison(True, tuple(
        OutputError(path, True, (), **(_facts(leaf, leaf) if isinstance(leaf, torch.Tensor) else {}))
        for path, leaf in flatten(eager, root).items()))


def compare_changed(
    candidate: Mapping[str, Any],
    eager: Mapping[str, Any],
    reference: Mapping[str, Any],
    *,
    tolerance: Tolerance | None = None,
    root: str,
    moved: Mapping[str, Sequence[Statistics]] | None = None,
) -> Comparison:
    """`compare` of entries of the same names; those that hold eager's bits are not measured."""
    same = {name: value for name, value in eager.items() if equal_bits(candidate[name], value)}
    others = {name: value for name, value in eager.items() if name not in same}
    taken = taken_as_equal(same, root)
    found = compare({name: candidate[name] for name in others}, others, {name: reference[name] for name in others},
                    tolerance=tolerance, root=root, moved=moved)
    return Comparison(found.passed, (*taken.outputs, *found.outputs), found.structure)


def compare_with_eager(
    candidate: Any,
    eager: Any,
    sampled: Comparison,
    *,
    tolerance: Tolerance | None = None,
    root: str = "output",
) -> Comparison:
    """Compare full outputs with eager's, where float64 was affordable for the ``sampled`` entries only."""
    return compare(candidate, eager, eager, tolerance=tolerance, root=root, allowances=from_sample(sampled, tolerance))


def from_sample(sampled: Comparison, tolerance: Tolerance | None = None) -> dict[str, Allowance]:
    """What outputs may be off from eager's, by their paths, where float64 ran the ``sampled`` entries only.

    Eager is off by as much as it was found to be in ``sampled``; a candidate that keeps the rule there is at
    most ``1 + multiple`` times that away from eager (doubled for single elements, whose extreme over the
    whole output is larger than over a sample). No element is wrong that is off by no more than that of eager's largest
    error.
    """
    multiple = (tolerance or Tolerance()).multiple
    share = (1 + multiple) / multiple
    return {output.path: Allowance(2 * share * output.eager_units, share * output.eager_relative, 0.01,
                                   share * multiple * output.eager_worst_absolute
                                   if math.isfinite(output.eager_worst_absolute) else 0.0)
            for output in sampled.outputs}


def _leaf(
    path: str,
    candidate: Any,
    eager: Any,
    reference: Any,
    tolerance: Tolerance | None,
    allowance: Allowance | None,
    moved: Sequence[Statistics],
) -> OutputError:
    if not isinstance(eager, torch.Tensor):
        named = _name_of(eager)
        if named == _name_of(candidate) if named else type(candidate) is type(eager) and _same_value(candidate, eager):
            return OutputError(path, True, ())
        return OutputError(path, False, (f"is {candidate!r:.80} instead of {eager!r:.80}",), kinds=("value",))
    if type(candidate) not in (type(eager), torch.Tensor):
        # A subclass may answer comparisons for itself, so it is refused before anything is asked of it.
        found = f"is a {type(candidate).__name__}, not a {type(eager).__name__}"
        answers = hasattr(type(candidate), "__torch_function__") and type(candidate) is not torch.nn.Parameter
        return OutputError(path, False, (found,), kinds=("type" if answers else "value",))
    facts = _facts(candidate, eager)
    problems = {
        f"{name} is {got} instead of {expected}": name
        for name, got, expected in (
            ("shape", tuple(candidate.shape), tuple(eager.shape)),
            ("dtype", candidate.dtype, eager.dtype),
            ("device", candidate.device, eager.device),
            ("layout", candidate.layout, eager.layout),
        )
        if got != expected
    }
    if not problems and tuple(reference.shape) != tuple(eager.shape):
        problems[f"the reference has shape {tuple(reference.shape)}: it cannot be compared"] = "reference"
    if problems:
        return OutputError(path, False, tuple(problems), kinds=tuple(problems.values()), **facts)
    candidate, eager, reference = (plain_tensor(t) for t in (candidate, eager, reference))
    if not candidate.dtype.is_floating_point:
        return _equal(path, candidate, eager, reference, facts)
    limits = (tolerance or Tolerance()).for_dtype(candidate.dtype)
    statistics = measure_error(
        candidate,
        eager,
        reference,
        atol=limits.atol,
        rtol=limits.rtol,
        nonfinite=limits.nonfinite,
    )
    # A step in a narrower type is one of the model's, and no error of the reference.
    if moved and all(draw.is_wide for draw in moved) and is_own_reference(facts["dtype"], statistics.eager_worst_units):
        by_draws(statistics, moved)
    if moved:
        widen(statistics, moved, limits.multiple, MOST_MOVED if limits.unit is None else math.inf)
    found = judge(path, statistics, limits, allowance, facts)
    return replace(found, spread=spread(candidate, reference), eager_spread=spread(eager, reference))


def _facts(candidate: torch.Tensor, eager: torch.Tensor) -> dict[str, Any]:
    """The fields of an `OutputError` that say what the tensors are."""
    return {
        "shape": tuple(candidate.shape),
        "dtype": str(candidate.dtype),
        "device": str(candidate.device),
        "strides": tuple(candidate.stride()) if candidate.layout == torch.strided else (),
        "eager_strides": tuple(eager.stride()) if eager.layout == torch.strided else (),
        "elements": candidate.numel(),
    }


def _name_of(value: Any) -> tuple[str, ...]:
    """What a class, or a member of an enumeration, is called: a candidate has those of the user's file in its own;
    () for anything else."""
    if isinstance(value, enum.Enum):
        return type(value).__qualname__, value.name
    return (value.__qualname__,) if isinstance(value, type) else ()


def _same_value(left: Any, right: Any) -> bool:
    if isinstance(left, float) and math.isnan(left) and math.isnan(right):
        return True
    return bool(left == right)


def _equal(
    path: str, candidate: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor, facts: dict[str, Any]
) -> OutputError:
    """Integers and booleans: each element equals eager's, or the reference's where they differ (ties)."""
    eager, reference = eager.to(candidate.device), reference.to(candidate.device)
    wrong = (candidate != eager) & (candidate != reference)
    count = int(wrong.sum())
    if not count:
        return OutputError(path, True, (), **facts)
    first = int(wrong.flatten().to(torch.uint8).argmax())
    index = (
        tuple(int(i) for i in torch.unravel_index(torch.tensor(first), wrong.shape)) if wrong.dim() else ()
    )
    got, expected = float(candidate[index]), float(eager[index])
    share = count / max(1, wrong.numel())
    problem = f"{count} of {wrong.numel()} values differ, first at {index}: {got:g} instead of {expected:g}"
    return OutputError(
        path, False, (problem,), failing_share=share, worst_index=index, expected=expected, got=got,
        kinds=("whole-numbers",), **facts
    )
