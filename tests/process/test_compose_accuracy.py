"""An average pool that became one with what stands beside it: near eager's accuracy in float32, in a file that runs."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from emitted_tools import emit, import_path, kernels_run, models, write_problem
from graph_tools import MORE, all_anchors
from torch import nn

import kernelwright
from kernelwright.algebra.compose import COMPOSE
from kernelwright.algebra.engine import rewrite_with
from kernelwright.capture.export import capture
from kernelwright.codegen.reference.plan import values_of
from kernelwright.ir.evaluate import evaluate

NAMES = {rule.name for rule in COMPOSE}
CONVOLUTIONS, POOLS = (nn.Conv1d, nn.Conv2d, nn.Conv3d), (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
DATA = {"normal": torch.randn, "positive": torch.rand, "large mean": lambda shape: torch.randn(shape) + 50}

Form = tuple[nn.Module, tuple[int, ...]]


def _rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def _parts(r: random.Random, kernel: int = 3) -> tuple[int, nn.Module, nn.Module, int]:
    rank, channels = r.choice([1, 2, 3]), r.choice([2, 8])
    convolution = CONVOLUTIONS[rank - 1](channels, channels * r.choice([1, 2]), kernel, stride=r.choice([1, 1, 2]) if
                                         kernel > 1 else 1, groups=r.choice([1, channels]), bias=r.random() < 0.7)
    return rank, convolution, POOLS[rank - 1](r.choice([2, 3]), r.choice([None, 2])), channels


def _pool_of_convolution(r: random.Random) -> Form:
    rank, convolution, pool, channels = _parts(r, r.choice([1, 2, 3]))
    return nn.Sequential(convolution, pool), (2, channels, *(r.randint(12, 16) for _ in range(rank)))


def _convolution_of_pool(r: random.Random) -> Form:
    rank, convolution, pool, channels = _parts(r)
    return nn.Sequential(pool, convolution), (2, channels, *(r.randint(12, 16) for _ in range(rank)))


def _pool_of_pool(r: random.Random) -> Form:
    rank = r.choice([1, 2, 3])
    inner, outer = POOLS[rank - 1](r.choice([2, 3])), POOLS[rank - 1](r.choice([2, 3]), r.choice([1, 2]))
    return nn.Sequential(inner, outer), (2, 3, *(r.randint(12, 16) for _ in range(rank)))


def _pool_of_linear(r: random.Random) -> Form:
    depth, features = r.choice([8, 300]), r.choice([60, 400])
    return nn.Sequential(nn.Linear(depth, features, bias=r.random() < 0.7), nn.AvgPool1d(r.choice([2, 4]))), (
        r.choice([2, 30]), r.choice([1, 5]), depth)


@pytest.mark.parametrize("form", [_pool_of_convolution, _convolution_of_pool, _pool_of_pool, _pool_of_linear])
def test_as_near_float64_as_the_original_but_for_a_factor_of_two(form) -> None:
    composed, worse = 0, []
    for seed in range(8 * MORE):
        r = random.Random(seed)
        torch.manual_seed(seed)
        model, shape = form(r)
        graph = capture(model, [torch.rand(shape)])
        rewritten, applied = rewrite_with(graph, all_anchors(graph))
        composed += any(a.rule.name in NAMES for a in applied)
        double = copy.deepcopy(model).double()
        for data, draw in DATA.items():
            x = draw(shape)
            with torch.no_grad():
                (found,) = evaluate(rewritten.outputs, values_of(model, graph, [x]))
                eager, exact = model(x), double(x.double())
            size, ours, theirs = (_rms(t) for t in (exact, found.double() - exact, eager.double() - exact))
            # A weight that was summed has one rounding of its own.
            if not ours <= 2 * theirs + 1e-7 * size:
                worse.append(f"seed {seed}, {data}, {model}, {shape}: {ours / size:.2g}, eager's {theirs / size:.2g}")
    assert not worse, "\n".join(worse)
    assert composed >= 3 * MORE


COMPOSED = '''
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(6, 10, 3, padding=1, groups=2)
            self.point = nn.Conv2d(6, 20, 1)
            self.each = nn.Conv2d(6, 6, 3, padding=1, groups=6)
            self.linear = nn.Linear(16, 40)

        def forward(self, x):
            return (F.avg_pool2d(self.conv(x), 2).sigmoid(), F.avg_pool2d(self.point(x), 4).relu(),
                    self.each(F.avg_pool2d(x, 2)) * 2, F.avg_pool2d(F.avg_pool2d(x, 2), 2, 1) + 1,
                    F.avg_pool2d(self.linear(x), (1, 4)).tanh())

    def get_inputs():
        return [torch.randn(4, 6, 16, 16)]
'''


def test_a_file_of_composed_operators(tmp_path, monkeypatch) -> None:
    """Each rule once, in a file whose kernels sum the weights; parameters may change between its calls."""
    monkeypatch.setattr("kernelwright.algebra.engine._GAIN", 1e9)  # rules apply whether they pay or not
    original, emitted, text = emit(tmp_path, "composed", COMPOSED)
    assert all(name in text for name in NAMES) and "k0_region_sum" in text
    old, new, (x,) = models(original, emitted)
    for _ in range(2):
        double = copy.deepcopy(old).double()
        with torch.no_grad(), kernels_run(emitted):
            for ours, eager, exact in zip(new(x), old(x), double(x.double()), strict=True):
                size, own, theirs = (_rms(t) for t in (exact, ours.double() - exact, eager.double() - exact))
                assert own <= 1.25 * theirs + 2.0**-24 * size
        with torch.no_grad():
            for a, b in zip(old.parameters(), new.parameters(), strict=True):
                a.mul_(-0.7), b.mul_(-0.7)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_on_the_emulation(tmp_path, monkeypatch) -> None:
    """The whole way on the other target: the report names the rules, and the check of the emulated kernels passes."""
    monkeypatch.setattr("kernelwright.algebra.engine._GAIN", 1e9)
    path = write_problem(tmp_path, "composed", COMPOSED)
    result = kernelwright.optimize(path, effort="quick", target="cuda", output=tmp_path / "composed_new.py")
    assert "Checked by emulation" in " ".join(result.notes)
    assert all({rule.name for rule in mode.rules} >= NAMES and mode.kernels for mode in result.modes)
    assert import_path(result.path).ModelNew
