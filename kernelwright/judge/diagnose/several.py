"""What the candidate's results on several inputs show together: of one number, and of one number everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from kernelwright.judge.diagnose.evidence import Evidence, is_constant
from kernelwright.judge.diagnose.leaf import Leaf, measure, plain_tensor
from kernelwright.judge.diagnose.values import Seen
from kernelwright.verify.flatten import flatten


def on_all_inputs(leaf: Leaf, evidence: Evidence) -> Leaf:
    """A small output on all inputs that the candidate saw, in a row: one relation for all of them tells more."""
    tensors = [[leaf.got], [leaf.eager], [leaf.best]]
    for other in evidence.others:
        found = _at(leaf.path, (other.candidate, other.eager, other.reference))
        if len(found) == 3 and all(plain_tensor(t).shape == leaf.got.shape for t in found):
            for row, tensor in zip(tensors, found, strict=True):
                row.append(plain_tensor(tensor).to(leaf.got.device))
    if len(tensors[0]) == 1:
        return leaf
    # Each input has a size of its own, by which its values are wrong or not.
    parts = [measure(leaf.path, *(t.to(r[0].dtype) for t, r in zip(three, tensors, strict=True)))
             for three in zip(*tensors, strict=True)]
    got, eager, best, wrong = (torch.cat([getattr(part, which).flatten() for part in parts])
                               for which in ("got", "eager", "best", "wrong"))
    row = measure(leaf.path, got, eager, best)
    count = int(wrong.sum())
    return replace(row, few=True, wrong=wrong, count=count, wrong_at=wrong.nonzero().flatten()) if count else leaf


def _at(path: str, values: Iterable[Any]) -> list[torch.Tensor]:
    """What there is at a place of each value, where that is a tensor."""
    return [found for value in values if isinstance(found := flatten(value).get(path), torch.Tensor)]


def one_value(leaf: Leaf, evidence: Evidence) -> Iterator[Seen]:
    """The same number everywhere, on all inputs, where the model's results differ: nothing was computed."""
    outputs = [leaf.got, *_at(leaf.path, [other.candidate for other in evidence.others])]
    wanted = [leaf.eager, *_at(leaf.path, [other.eager for other in evidence.others])]
    whole = len(outputs) == len(wanted) == 1 + len(evidence.others)
    if len(outputs) < 3 or not whole or not all(t.numel() for t in (*outputs, *wanted)):
        return
    value = float(outputs[0].reshape(-1)[0])
    differ = not all(is_constant(t) and float(t.reshape(-1)[0]) == float(wanted[0].reshape(-1)[0]) for t in wanted)
    if not differ or not all(is_constant(t) and float(t.reshape(-1)[0]) == value for t in outputs):
        return
    if math.isinf(value):
        yield Seen("infinite", f"are all {value:g}, as on all {len(outputs)} inputs that were tried", "look for a "
                   "maximum or minimum that keeps its start value (a comparison the wrong way), the logarithm of zero, "
                   "or a division by zero", 1.0, 1.2)
    elif value == 0:
        yield Seen("zeros", f"are all zero, as on all {len(outputs)} inputs that were tried: nothing wrote them, or "
                   "they were not computed", "see that the kernel is launched, that it writes to the tensor that is "
                   "returned, and that no factor of zero stands before it (1 / n of two whole numbers is 0)", 1.0, 1.9)
    else:
        yield Seen("constant", f"are all {value:.6g}, as on all {len(outputs)} inputs that were tried: they do not "
                   "depend on the inputs", "compute the result from the inputs: look at what is stored", 1.0, 1.2,
                   {"value": value})
