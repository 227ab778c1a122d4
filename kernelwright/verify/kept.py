"""What the model gave in trials, kept for the next candidate that is held against it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kernelwright.problem.state import classes_of
from kernelwright.verify.flatten import tensors_of
from kernelwright.verify.form import Form
from kernelwright.verify.observe import Called, equal_states, identical, returns_own_state
from kernelwright.verify.records import Reference, TrialPlan
from kernelwright.verify.state import OwnTypes, State


@dataclass
class ByModel:
    """What the model gave in a trial. ``before`` are its buffers and plain attributes before the call, ``arguments``
    the inputs after it; ``reference`` is what `Bench` takes for the truth, once it was needed; ``forms`` are those of
    the outputs, by path, and of the plain attributes ``changed`` by the call."""

    inputs: list[Any]
    before: State
    arguments: Any
    called: Called
    random_before: list[torch.Tensor]
    random_after: list[torch.Tensor]
    reference: Reference | None = None
    forms: dict[str, Form] = field(default_factory=dict)
    changed: tuple[str, ...] = ()

    @property
    def uses_randomness(self) -> bool:
        """Whether the call changed PyTorch's random state."""
        return not equal_states(self.random_before, self.random_after)

    def bytes(self) -> int:
        """Bytes of all tensors in it."""
        return _bytes([self.inputs, self.arguments, self.called.outputs, self.reference or ()])


@dataclass
class Kept:
    """The model's side of certifications that differ in the candidate and in tolerances alone: made once, for all.

    ``without_double`` says why there is no float64 copy. ``trials`` holds what the model gave in trials that leave its
    state as it was, up to ``most_bytes`` in all: 0, the default, is right for a model whose calls change its
    parameters, too. ``own`` is what `call_in_float64` needs to know of the model's types (None: not looked for yet);
    ``separate`` says that eager and float64 were found not to be one computation. ``truths`` holds what eager gave in
    trials and what was found to be the truth about it, up to ``truth_bytes`` in all: who gets the same bits of eager
    again, in the other gradient mode, for another candidate, or in another mode that is the same computation and has
    the same ``truths``, has the same truth.
    """

    most_bytes: int = 0
    truth_bytes: int = 0
    model: nn.Module | None = None
    double: nn.Module | None = None
    without_double: str = ""
    original: State | None = None
    own: OwnTypes | None = None
    classes: dict[str, str] | None = None
    """`classes_of` the model, when it was made and after the trials of each candidate."""
    rebuilt: bool = False
    """Whether calls have changed these: some models build parts of themselves in their first call."""
    separate: bool = False
    carries: bool = False
    """Whether calls change what plain attributes hold."""
    left: dict[str, Any] = field(default_factory=dict)
    """What the first call left in attributes that held no tensor before it: another call leaves other values there
    where it is no cache."""
    trials: dict[TrialPlan, ByModel] = field(default_factory=dict)
    truths: dict[TrialPlan, tuple[Any, Reference]] = field(default_factory=dict)
    bytes: int = 0

    @property
    def bytes_of_truths(self) -> int:
        """Bytes of all tensors in ``truths``."""
        return _bytes(list(self.truths.values()))

    def take_model(self, other: Kept) -> None:
        """Take the model over from what is kept of it in another mode, with what was made of it."""
        self.model, self.double, self.without_double = other.model, other.double, other.without_double
        self.original, self.classes, self.rebuilt = other.original, other.classes, other.rebuilt
        other.model = other.double = None

    def leave_model(self) -> None:
        """Let go of the model and of all that was found out about it, as if nothing had been made."""
        self.forget()
        self.model = self.double = self.original = self.own = self.classes = None
        self.without_double, self.rebuilt, self.separate, self.carries, self.left = "", False, False, False, {}

    def truth(self, plan: TrialPlan, given: Any) -> Reference | None:
        """The truth about a trial in which eager gave ``given`` (outputs, state and arguments); None if unknown."""
        known = self.truths.get(plan)
        return known[1] if known is not None and identical(known[0], given) else None

    def keep_truth(self, plan: TrialPlan, given: Any, by_model: ByModel, model: nn.Module) -> None:
        """Keep the truth about a trial of ``model`` in which it gave ``given``, where that goes."""
        size = _bytes([given, by_model.reference])
        if plan in self.truths or not self.truth_bytes or self.bytes_of_truths + size > self.truth_bytes \
                or by_model.reference is None or by_model.reference.separate \
                or returns_own_state(model, by_model.called):
            return
        self.truths[plan] = given, by_model.reference

    def keep(self, plan: TrialPlan, by_model: ByModel, model: nn.Module) -> None:
        """Keep a trial of ``model``, where that goes."""
        size = by_model.bytes()
        if plan in self.trials or not self.most_bytes or self.bytes + size > self.most_bytes:  # of no bytes, too
            return
        unchanged = identical(by_model.before.tracked(), State.of(model, parameters=False, owned=False).tracked())
        if unchanged and not returns_own_state(model, by_model.called):
            self.trials[plan] = by_model
            self.bytes += size

    def rebuilds(self, model: nn.Module) -> bool:
        """Whether ``model`` has built other submodules in its calls. What it gave before is forgotten then: it is
        of another model."""
        classes = classes_of(model)
        if self.classes is not None and classes != self.classes:
            self.rebuilt = True
            self.forget()
        self.classes = classes
        return self.rebuilt

    def forget(self) -> None:
        """Let go of the trials."""
        self.trials.clear()
        self.truths.clear()
        self.bytes = 0


def _bytes(values: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors_of(values))
