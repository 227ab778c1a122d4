"""What a wrong structure, shape or type is a sign of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from kernelwright.judge.diagnose.evidence import Evidence
from kernelwright.judge.diagnose.leaf import axis_word
from kernelwright.judge.records import Finding
from kernelwright.verify.flatten import flatten


def find_forms(evidence: Evidence) -> list[Finding]:
    """Differences of nesting, shape, dtype and device, one finding each."""
    got, expected = flatten(evidence.candidate), flatten(evidence.eager)
    missing = [path for path in expected if path not in got]
    extra = [path for path in got if path not in expected]
    if missing or extra:
        return [_structure(evidence.candidate, evidence.eager, missing, extra)]
    found = []
    for path, wanted in expected.items():
        found += _leaf(path, got[path], wanted)
    return found


def _structure(candidate: Any, eager: Any, missing: list[str], extra: list[str]) -> Finding:
    told = {"missing": missing, "extra": extra, "got": _kind(candidate), "expected": _kind(eager)}
    if candidate is None:
        return Finding("returns-nothing", "forward returns None, the model returns " + _kind(eager) + ".",
                       fix="end forward with a return statement", evidence=told)
    sentence = f"forward returns {_kind(candidate)}, the model returns {_kind(eager)}"
    parts = [f"{', '.join(missing)} is missing" if missing else "", f"{', '.join(extra)} is too much" if extra else ""]
    return Finding("structure", sentence + ": " + " and ".join(p for p in parts if p) + ".",
                   fix=f"return {_kind(eager)}", evidence=told)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return "a mapping with the keys " + ", ".join(map(repr, value))
    return f"{value!r:.40}" if value is None or isinstance(value, (int, float)) else f"a {type(value).__name__}"


def _leaf(path: str, got: Any, wanted: Any) -> Iterator[Finding]:
    if not isinstance(wanted, torch.Tensor):
        if type(got) is not type(wanted) or (got != wanted and not (got != got and wanted != wanted)):
            yield Finding("plain-value", f"{path} is {got!r:.60} instead of {wanted!r:.60}.",
                          fix=f"return {wanted!r:.60}")
        return
    if got is None:
        yield _structure(None, wanted, [], [])
        return
    if type(got) not in (torch.Tensor, type(wanted)):
        yield Finding("output-object", f"{path} is a {type(got).__name__}, not a plain torch.Tensor.",
                      fix=f"return a plain torch.Tensor of shape {tuple(wanted.shape)} and type {wanted.dtype}",
                      evidence={"type": type(got).__name__})
        return
    if got.shape != wanted.shape:
        sign, fix = shape_sign(tuple(got.shape), tuple(wanted.shape))
        yield Finding("shape", f"{path} has shape {tuple(got.shape)} instead of {tuple(wanted.shape)}: {sign}.",
                      fix=fix, evidence={"got": list(got.shape), "expected": list(wanted.shape)})
    if got.dtype != wanted.dtype:
        yield Finding("dtype", f"{path} is {got.dtype} instead of {wanted.dtype}.",
                      fix=f"store the result as {wanted.dtype}",
                      evidence={"got": str(got.dtype), "expected": str(wanted.dtype)})
    if got.device != wanted.device:
        yield Finding("device", f"{path} is on {got.device} instead of {wanted.device}.",
                      fix="allocate the output on the input's device",
                      evidence={"got": str(got.device), "expected": str(wanted.device)})


def shape_sign(got: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[str, str]:
    """What a wrong shape is a sign of, and what would mend it, from the two shapes alone."""
    squeezed = tuple(s for s in got if s != 1), tuple(s for s in wanted if s != 1)
    if squeezed[0] == squeezed[1]:
        if len(got) < len(wanted):
            axis = next((a for a, s in enumerate(wanted) if s == 1), 0)
            return "an axis of size 1 is dropped", f"keep it: keepdim=True, or unsqueeze({axis})"
        if len(got) > len(wanted):
            axis = next((a for a, s in enumerate(got) if s == 1), 0)
            return "an axis of size 1 is kept", f"drop it: keepdim=False, or squeeze({axis})"
        return "the axes of size 1 stand elsewhere", "put the axes in the model's order"
    if sorted(got) == sorted(wanted):
        return "the axes are in another order", "permute the output"
    if math.prod(got) == math.prod(wanted):
        return "the elements are as many, in another shape", f"reshape the output to {wanted}"
    if len(got) == len(wanted):
        differing = [a for a in range(len(got)) if got[a] != wanted[a]]
        words = ", ".join(f"{got[a]} instead of {wanted[a]} {axis_word(len(wanted), a, 2)} (axis {a})"
                          for a in differing)
        if any(got[a] in (0, 1) for a in differing):
            return f"{words}: an axis is reduced too far", "do not reduce over that axis"
        if all(wanted[a] == 1 for a in differing):
            return f"{words}: an axis is not reduced", "reduce over that axis too"
        if all(a >= 2 for a in differing) and len(wanted) >= 3:
            steps = [got[a] - wanted[a] for a in differing]
            if len(set(steps)) == 1 and abs(steps[0]) <= 8:
                return (f"{words}: {abs(steps[0])} {'more' if steps[0] > 0 else 'fewer'}, as from another padding, "
                        "output_padding, kernel size or rounding of the output size",
                        "compute the output size as the model's layer does: floor((n + 2 padding - dilation (k - 1) - "
                        "1) / stride) + 1; transposed: (n - 1) stride - 2 padding + dilation (k - 1) + "
                        "output_padding + 1")
            return (f"{words}: as from another stride or scale", "compute the output size from the layer's stride")
        return words, "allocate the output with the model's sizes"
    if len(got) == len(wanted) + 1 and any(got[:a] + got[a + 1:] == wanted for a in range(len(got))):
        axis = next(a for a in range(len(got)) if got[:a] + got[a + 1:] == wanted)
        return f"axis {axis} of size {got[axis]} is not reduced", f"reduce over axis {axis}"
    if len(got) + 1 == len(wanted) and any(wanted[:a] + wanted[a + 1:] == got for a in range(len(wanted))):
        axis = next(a for a in range(len(wanted)) if wanted[:a] + wanted[a + 1:] == got)
        return f"axis {axis} of size {wanted[axis]} is missing", f"do not reduce over axis {axis}"
    return (f"{len(got)} instead of {len(wanted)} axes" if len(got) != len(wanted) else "other sizes",
            f"return a tensor of shape {wanted}")
