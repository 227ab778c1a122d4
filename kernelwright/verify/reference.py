"""What a trial takes for the truth: the model in float64, or eager where that cannot be."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.verify.compare import compare
from kernelwright.verify.flatten import clone_tensors
from kernelwright.verify.kept import ByModel
from kernelwright.verify.observe import call, first_line, seed_all, without_tf32
from kernelwright.verify.records import Reference
from kernelwright.verify.sampling import take
from kernelwright.verify.state import State, call_in_float64, widened

#: An eager result further than this from float64 (relative) means that the two did not compute the same.
SAME_COMPUTATION = 0.05
#: The usual reference, and that of a candidate that is the original computation.
FLOAT64 = "float64"
UNCHANGED = "eager itself: nothing is replaced"
#: How the words of a reference begin that is the model in float32.
STRICT = "eager with TF32 off"


def reference_of(
    model: ByModel,
    eager: nn.Module,
    double: nn.Module | None,
    seed: int,
    entries: torch.Tensor | None,
    batched: Sequence[bool],
    without_double: str = "",
) -> Reference:
    """The truth about the call ``model`` of ``eager``, with the random numbers of ``seed``.

    ``double`` is the float64 copy of ``eager`` (None where it cannot be copied, as ``without_double`` says), and runs
    only the batch ``entries`` of the inputs that are ``batched``, or all where None. Whatever it raises makes eager the
    truth.
    """
    by_eager = model.called.outputs
    why = without_double or "the model cannot be copied to float64"
    if double is not None:
        try:
            State.of(eager, owned=False).apply(double)
            model.before.apply(double)
            chosen = model.inputs
            if entries is not None:
                chosen = [v[entries.to(v.device)] if b else v for v, b in zip(chosen, batched, strict=True)]
            arguments = widened(chosen)
            seed_all(seed)
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs = call_in_float64(double, arguments)
            if entries is not None:
                words = f"float64 on entries {entries.tolist()} of axis 0, eager for the others"
                return Reference(outputs, words)
            if not model.uses_randomness or _close(by_eager, outputs):
                return Reference(outputs, FLOAT64, State.of(double, parameters=False).tracked(), arguments)
            return Reference(by_eager, "eager itself: float64 draws other random numbers")
        except Exception as error:  # out of memory, an operator without float64, ...
            why = f"float64 failed ({first_line(error)})"
    after = State.of(eager, parameters=False)
    model.before.apply(eager)
    seed_all(seed)
    with without_tf32():
        strict = call(eager, clone_tensors(model.inputs))
    after.apply(eager)
    outputs = by_eager if strict.error is not None else strict.outputs
    return Reference(outputs if entries is None else take(outputs, entries), f"{STRICT}: {why}")


def _close(outputs: Any, reference: Any) -> bool:
    found = compare(outputs, outputs, reference)
    return not found.structure and all(
        o.eager_relative <= SAME_COMPUTATION and not o.misplaced_nonfinite for o in found.outputs
    )
