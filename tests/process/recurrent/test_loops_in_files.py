"""Files for models whose loops are recurrences: right as eager is, in values, strides, memory and gradients."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from emitted_tools import emit, kernels_run, models, original_runs
from test_recurrent import flat

HEAD = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            {parts}

        def forward(self, x, h, c):
            found = []
            for t in {steps}:
                {step}
                found.append(h)
            {result}

    def get_inputs():
        return [torch.randn(7, 9, {width}), torch.randn(9, 20), torch.randn(9, 20)]

    def get_init_inputs():
        return []
"""
FORWARDS = "range(x.shape[0])"
CASES = {
    "gru": ("self.cell = nn.GRUCell(12, 20)", FORWARDS, "h = self.cell(x[t], h)",
            "return torch.stack(found, 1), h", 12),
    "lstm": ("self.cell = nn.LSTMCell(12, 20)", "reversed(range(x.shape[0]))", "h, c = self.cell(x[t], (h, c))",
             "return torch.stack(found), torch.stack(found[::-1], 2), c", 12),
    "vanilla": ("self.layer, self.head = nn.Linear(32, 20), nn.Linear(20, 3)", FORWARDS,
                "h = torch.tanh(self.layer(torch.cat((x[t], h), 1)))",
                "return torch.stack([self.head(h) for h in found]), found[2]", 12),
    "leaky": ("self.decay = nn.Parameter(torch.rand(20))", FORWARDS,
              "h = torch.where(h > 1, h - 1, h * self.decay + x[t])", "return torch.cat(found, 1), h", 20),
    "two": ("self.below, self.above = nn.GRUCell(12, 20), nn.GRUCell(20, 20)", FORWARDS,
            "h = self.below(x[t], h); c = self.above(h, c)", "return torch.stack(found), c", 12),
}


def emitted_for(folder: Path, name: str):
    parts, steps, step, result, width = CASES[name]
    return emit(folder, name, HEAD.format(parts=parts, steps=steps, step=step, result=result, width=width))


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_eager(name, tmp_path):
    original, emitted, source = emitted_for(tmp_path, name)
    assert "_recurrence(" in source
    old, new, inputs = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted, 1):
        found = flat(new(*inputs))
    exact = flat(copy.deepcopy(old).double()(*[value.double() for value in inputs]))
    given = [value.clone() for value in inputs]
    with torch.no_grad():
        eager = flat(old(*inputs))
    assert all(map(torch.equal, given, inputs))
    for ours, theirs, right in zip(found, eager, exact, strict=True):
        assert ours.stride() == theirs.stride() and ours.dtype == theirs.dtype
        errors = [float((value - right).abs().max() / right.abs().max()) for value in (ours, theirs)]
        assert errors[0] <= 2 * errors[1] + 3e-7
    assert len({t.untyped_storage().data_ptr() for t in found}) == len(found)
    if name == "leaky":
        assert all(map(torch.equal, found, eager))


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite_is_as_eagers(name, tmp_path):
    original, emitted, _ = emitted_for(tmp_path, name)
    old, new, inputs = models(original, emitted)
    inputs[0][3, 1, 2], inputs[0][5, 4, 0], inputs[1][2, 3] = float("nan"), float("inf"), -float("inf")
    with torch.no_grad(), kernels_run(emitted, 1):
        found = flat(new(*inputs))
    with torch.no_grad():
        for ours, theirs in zip(found, flat(old(*inputs)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", list(CASES)[::2])
def test_gradients_are_eagers(name, tmp_path):
    original, emitted, _ = emitted_for(tmp_path, name)
    old, new, inputs = models(original, emitted)
    for model in (old, new):
        sum(value.square().sum() for value in flat(model(*inputs))).backward()
    for one, other in zip(old.parameters(), new.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_another_length_is_pytorchs(tmp_path):
    original, emitted, _ = emitted_for(tmp_path, "gru")
    old, new, (x, *states) = models(original, emitted)
    longer = torch.cat([x, x])
    with torch.no_grad(), original_runs(emitted):
        found = flat(new(longer, *states))
    with torch.no_grad():
        assert all(map(torch.equal, found, flat(old(longer, *states))))
