"""Loops that call a layer once a step: a file with one kernel for all steps, near eager's accuracy in float32."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from emitted_tools import emit, kernels_run, models

LOOPS = {
    "beside": ("self.layer, self.last = nn.Linear(6 + 8, 8), nn.Linear(8, 3)",
               "h = torch.tanh(self.layer(torch.cat((now, h), 1)))"),
    "gated": ("self.layer, self.last = nn.GRUCell(6, 8), nn.Linear(8, 3)", "h = self.layer(now, h)"),
    "plain": ("self.layer, self.last = nn.RNNCell(6, 8, nonlinearity='relu'), nn.Linear(8, 3)",
              "h = self.layer(now, h)"),
    "by hand": ("self.layer, self.of_state, self.last = nn.Linear(6, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 3)",
                "h = h + torch.sigmoid(self.layer(now) + self.of_state(h)) * h.cos()"),
}
TEXT = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            {layers}

        def forward(self, x, h):
            found = []
            for now in x.unbind({axis}):
                {step}
                found.append(self.last(h))
            return torch.stack(found, {axis}), h

    def get_inputs():
        return [torch.randn({shape}), torch.randn(4, 8)]

    def get_init_inputs():
        return []
"""


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", LOOPS)
def test_one_kernel_for_all_steps(name: str, axis: int, tmp_path: Path) -> None:
    layers, step = LOOPS[name]
    text = TEXT.format(layers=layers, step=step, axis=axis, shape="12, 4, 6" if axis == 0 else "4, 12, 6")
    original, emitted, source = emit(tmp_path, f"loop_{axis}", text)
    assert source.count("\n//// k") == 1 and source.count("functional.linear(") == 2
    old, new, inputs = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted, 1):
        found = new(*inputs)
    exact = copy.deepcopy(old).double()(*[value.double() for value in inputs])
    for ours, eager, right in zip(found, old(*inputs), exact, strict=True):
        assert ours.stride() == eager.stride() and ours.dtype == eager.dtype
        errors = [float((value - right).abs().max() / right.abs().max()) for value in (ours, eager)]
        assert errors[0] <= 2 * errors[1] + 3e-7


def test_gradients_are_eagers(tmp_path: Path) -> None:
    layers, step = LOOPS["gated"]
    original, emitted, _ = emit(tmp_path, "loop", TEXT.format(layers=layers, step=step, axis=1, shape="4, 12, 6"))
    old, new, inputs = models(original, emitted)
    with kernels_run(emitted, 1):
        results = new(*inputs)
    for outputs in (old(*inputs), results):
        sum(value.square().sum() for value in outputs).backward()
    for one, other in zip(old.parameters(), new.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)
