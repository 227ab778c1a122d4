"""What the variants of a problem are made of, and what one of them found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kernelwright.judge.records import Finding
from kernelwright.verify.plain import plain
from kernelwright.verify.records import Comparison

Inputs = Callable[[], list[Any]]


@dataclass(frozen=True, slots=True)
class Step:
    """One call. ``inputs`` makes the same ones whenever it is asked. ``into_last``: written into the tensors of the
    call before, at the same addresses. ``instance``: 0 or 1, a second one with other parameters. ``redraw``: a seed
    from which parameters are drawn anew in place before the call. ``switched``: in the other one of training and
    inference. ``gradients``: with inputs that require gradients."""

    inputs: Inputs
    into_last: bool = False
    instance: int = 0
    redraw: int | None = None
    switched: bool = False
    gradients: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """Calls whose results must be the model's. ``gates``: a wrong one is the ``verdict``; otherwise ``limit`` says
    what the candidate is good for if it raises, and ``silent`` if it is wrong without a word.
    ``own_layout``: the model itself must take the inputs' layout, too. ``batch``: the size of axis 0. ``both_alive``:
    two instances are used in turns."""

    name: str
    meaning: str
    steps: tuple[Step, ...]
    gates: bool = False
    verdict: str = ""
    limit: str = ""
    silent: str = ""
    fix: str = ""
    own_layout: bool = False
    batch: int | None = None
    both_alive: bool = False

    @property
    def changes_parameters(self) -> bool:
        """Whether parameters are written by name between its calls, or into a second instance."""
        return any(step.redraw is not None or step.instance for step in self.steps)


@dataclass(frozen=True, slots=True)
class VariantResult:
    """``outcome`` is "right", "wrong", "raised" or "skipped". ``verdict`` is set where a gating variant is wrong,
    ``limit`` where a limiting one is. ``call``: which call of the sequence, from 1."""

    name: str
    gates: bool
    outcome: str
    sentence: str = ""
    verdict: str = ""
    limit: str = ""
    fix: str = ""
    call: int | None = None
    comparison: Comparison | None = field(default=None, repr=False)
    seconds: float = 0.0

    @property
    def wrong(self) -> bool:
        """Whether it ran and is not right."""
        return self.outcome in ("wrong", "raised")

    @property
    def finding(self) -> Finding:
        """The result as a finding."""
        output = next((o for o in self.comparison.outputs if not o.passed), None) if self.comparison else None
        evidence = {"variant": self.name, "outcome": self.outcome, "call": self.call}
        if output is not None:
            evidence |= {"output": output.path, "index": output.worst_index, "expected": output.expected,
                         "got": output.got, "error": output.relative, "eager_error": output.eager_relative}
        return Finding("variant-" + self.name.replace(" ", "-"), self.sentence, fix=self.fix, evidence=plain(evidence))
