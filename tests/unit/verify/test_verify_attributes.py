"""VERIFY where calls leave tensors in plain attributes: what a candidate leaves is compared, from several states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kernelwright.verify.certificate import Certificate, Plan, certify, default_trials
from kernelwright.verify.state import State


class Membrane(nn.Module):
    """A state that every call reads and assigns, made by the first call where ``late``, and what it spiked."""

    late = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.mem = None if self.late else torch.zeros(4, 8)
        self.last = None

    def start(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x) if self.mem is None else self.mem

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mem = 0.9 * self.start(x) + torch.tanh(self.layer(x))
        self.last = torch.sigmoid(self.mem)
        return self.last * 2


class Late(Membrane):
    late = True


def _forgets(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.last = torch.sigmoid(0.9 * m.start(x) + torch.tanh(m.layer(x)))
    return m.last * 2


def _starts_anew(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.mem = torch.tanh(m.layer(x))
    m.last = torch.sigmoid(m.mem)
    return m.last * 2


def _keeps_elsewhere(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.own = 0.9 * getattr(m, "own", torch.zeros_like(x)) + torch.tanh(m.layer(x))
    m.mem = m.own.clone()
    m.last = torch.sigmoid(m.own)
    return m.last * 2


def _leaves_one_out(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.mem = 0.9 * m.start(x) + torch.tanh(m.layer(x))
    return torch.sigmoid(m.mem) * 2


def _other_strides(m: Any, x: torch.Tensor) -> torch.Tensor:
    result = Membrane.forward(m, x)
    m.mem = m.mem.t().contiguous().t()
    return result


def _certified(kind: type[Membrane], function: Callable[[Any, torch.Tensor], torch.Tensor] | None) -> Certificate:
    class Candidate(kind):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if function is None else function(self, x)

    def made(kind: type[Membrane]) -> Membrane:
        torch.manual_seed(0)
        return kind()

    return certify(lambda: made(kind), lambda: made(Candidate),
                   lambda seed: [torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))],
                   plan=Plan(trials=default_trials(0)[:5], repeats=2, budget_seconds=60.0))


@pytest.mark.parametrize("kind", [Membrane, Late])
def test_a_candidate_that_keeps_the_state_passes(kind: type[Membrane]) -> None:
    found = _certified(kind, None)
    assert found.passed, found.why
    assert all(trial.state is not None and trial.state.passed for trial in found.trials)


@pytest.mark.parametrize("kind", [Membrane, Late])
@pytest.mark.parametrize("function", [_forgets, _starts_anew, _keeps_elsewhere, _leaves_one_out, _other_strides])
def test_one_that_does_not_is_found(kind: type[Membrane], function: Callable[..., Any]) -> None:
    found = _certified(kind, function)
    assert not found.passed, found.sentence()
    words = " ".join(found.why)
    said = {_leaves_one_out: "state['last']", _other_strides: "attribute mem has strides"}
    assert said.get(function, "") in words, words


def test_a_state_is_restored_as_it_was_before_a_first_call() -> None:
    model = Late()
    before = State.of(model)
    model(torch.randn(4, 8))
    model.more = torch.zeros(3)
    after = State.of(model)
    before.apply(model)
    assert model.mem is None and model.last is None and not hasattr(model, "more")
    other = nn.Module()
    other.mem, other.more = torch.zeros(2), torch.zeros(2)  # of another class: it keeps what is its own
    before.apply(other)
    assert other.mem is None and other.more is not None
    after.apply(model)  # where there is nothing, what is kept is set as well
    assert torch.equal(model.mem, after.attributes["mem"])
    wide = Late().double()
    after.apply(wide)
    assert wide.mem.dtype is torch.float64 and torch.equal(wide.mem.float(), model.mem)
