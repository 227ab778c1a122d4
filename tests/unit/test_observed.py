"""What is seen of a call's results: cheaply on the meta device, and the same as on fake tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from kernelwright.capture import observed
from kernelwright.capture.export import capture
from kernelwright.capture.observed import observe


class Of(nn.Module):
    def __init__(self, behind: Callable[[nn.Module, torch.Tensor], object]) -> None:
        super().__init__()
        self.behind = behind
        self.convolution, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> object:
        return self.behind(self, x)


def in_scope(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = m.convolution(x)
    return x * 2 + y


def asks_a_device(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(device_type=x.device.type, enabled=False):
        return x * m.weight


def attention(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x * m.weight)


MODELS = [
    (lambda m, x: m.norm(m.convolution(x)), 1), (lambda m, x: (x, m.weight, x * m.weight, 3), 1),
    (lambda m, x: [x.relu()] * 2, 1), (in_scope, 1), (lambda m, x: (x * m.weight).detach(), 1),
    (lambda m, x: x.transpose(1, 2).mul(2).add_(m.weight), 1), (lambda m, x: x.sum(), 1),
    (attention, None), (asks_a_device, 0)]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each run whether it was one on the meta device that came to an end."""
    found: list[bool] = []
    run = observed._run

    def noted(*arguments):
        found.append(False)
        results = run(*arguments)
        found[-1] = arguments[6] is observed.without_data
        return results

    monkeypatch.setattr(observed, "_run", noted)
    return found


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize(("behind", "cheap"), MODELS)
def test_meta_tells_what_fake_tensors_tell(behind, cheap, recording, runs):
    model, inputs = Of(behind), [torch.randn(2, 4, 6, 6)]
    with_fakes = observe(model, inputs, {}, {}, recording=recording, as_they_are=False)
    assert runs == [False]
    state = {name: (value, value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    strides = [result.strides for result in with_fakes[0] if result.strides is not None]
    assert observe(model, inputs, {}, {}, recording=recording, as_they_are=False, traced=strides) == with_fakes
    assert cheap is None or (runs[1:] == [True]) == bool(cheap)
    # The model has its own parameters and buffers again, and their values.
    for name, value in model.state_dict(keep_vars=True).items():
        assert value is state[name][0] and torch.equal(value, state[name][1])


def test_other_strides_than_traced_are_looked_at_on_fake_tensors(runs):
    observe(Of(in_scope), [torch.randn(2, 4, 6, 6)], {}, {}, recording=True, as_they_are=False, traced=[(1, 2, 3, 4)])
    assert runs == [True, False]


def test_a_capture_runs_no_model_on_fake_tensors_twice(runs):
    capture(Of(MODELS[0][0]).eval(), [torch.randn(2, 4, 6, 6)], recording=True)
    assert runs == [True]
