"""Steps of training with dropout: calls hand their backward what was drawn, and what computes a call again draws the
same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emitted_tools import emit, kernels_run, models
from torch.utils.checkpoint import checkpoint

TEXT = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(24, 32), nn.Linear(32, 24)
            self.norm, self.conv = nn.LayerNorm(24), nn.Conv2d(2, 4, 3)
            self.drop, self.channels = nn.Dropout(0.2), nn.Dropout2d(0.5)

        def forward(self, x, image):
            hidden = self.drop(F.gelu(self.first(x)))
            found = self.norm(x + F.dropout(self.last(hidden), 0.1, self.training))
            return found * 2.0, self.channels(torch.relu(self.conv(image))).sum((2, 3)), self.drop(x.t()).exp()

    def get_inputs():
        return [torch.randn(8, 24), torch.randn(2, 2, 6, 6)]
"""
Made = tuple[Any, Any, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return emit(tmp_path_factory.mktemp("dropout"), "dropout", TEXT)


def step(model: torch.nn.Module, inputs: list[torch.Tensor], *, twice: bool = False, checkpointed: bool = False
         ) -> list[torch.Tensor]:
    """The results of a call, their gradients, and the random state afterwards. twice: with gradients of gradients."""
    torch.manual_seed(5)
    given = [x.clone().requires_grad_() for x in inputs]
    results = checkpoint(model, *given, use_reentrant=False) if checkpointed else model(*given)
    state = torch.get_rng_state()
    wanted = [*given, *model.parameters()]
    loss = sum((r * torch.linspace(-1, 1, r.numel()).view(r.shape)).sum() for r in results)
    found = list(torch.autograd.grad(loss, wanted, create_graph=twice))
    if twice:
        found += torch.autograd.grad(sum(g.square().sum() for g in found), wanted, allow_unused=True)
    assert torch.equal(torch.get_rng_state(), state)
    return [*(r.detach() for r in results), *(torch.zeros(()) if g is None else g for g in found), state]


@pytest.mark.parametrize("how", [{}, {"twice": True}, {"checkpointed": True}], ids=str)
def test_steps_drop_what_eager_drops(made: Made, how: dict[str, bool]) -> None:
    old, new, inputs = models(*made[:2])
    with kernels_run(made[1]):
        torch.testing.assert_close(step(new, inputs, **how), step(old, inputs, **how), rtol=1e-4, atol=1e-5)
    assert not new.why()


def test_gradients_of_what_was_dropped_are_none(made: Made) -> None:
    """Where an input is zero its result does not tell whether it was dropped."""
    old, new, (x, image) = models(*made[:2])
    inputs = [torch.zeros_like(x), image]
    with kernels_run(made[1]):
        torch.testing.assert_close(step(new, inputs), step(old, inputs), rtol=1e-4, atol=1e-5)


def test_no_step_draws_twice(made: Made) -> None:
    """The forward of a step alone draws; and two calls before their backward passes draw anew."""
    old, new, inputs = models(*made[:2])
    found = []
    for model in (old, new):
        torch.manual_seed(1)
        losses = [sum(r.square().sum() for r in model(*inputs)) for _ in range(2)]
        assert losses[0] != losses[1]
        found.append(torch.autograd.grad(losses, list(model.parameters())))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_calls_that_record_nothing_draw_as_eager_does(made: Made) -> None:
    old, new, inputs = models(*made[:2])
    found = []
    for model in (old, new):
        torch.manual_seed(2)
        with torch.no_grad():
            found.append([*model(*inputs), torch.get_rng_state()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
