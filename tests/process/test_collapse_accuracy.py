"""A collapse is no less accurate than what it replaces, in float32, also of positive data along axes of any length."""

from __future__ import annotations

import copy
import random
import re

import pytest
import torch
from emitted_tools import assert_like, emit, kernels_run, models
from graph_tools import MORE, all_anchors
from torch import nn

from kernelwright.algebra.collapse import COLLAPSE
from kernelwright.algebra.engine import rewrite_with
from kernelwright.capture.export import capture
from kernelwright.codegen.reference.plan import values_of
from kernelwright.ir.evaluate import evaluate

NAMES = {rule.name for rule in COLLAPSE}


class _Summed(nn.Module):
    """A sum or mean of a linear operator's output over some axes, with a scale between."""

    def __init__(self, operator: nn.Module, axes: tuple[int, ...], mean: bool) -> None:
        super().__init__()
        self.operator, self.axes, self.mean = operator, axes, mean

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        y = self.operator(*inputs) * 0.5
        return y.mean(self.axes) if self.mean else y.sum(self.axes)


class _Product(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y


def _convolution(r: random.Random) -> tuple[nn.Module, list[tuple[int, ...]], list[int]]:
    rank, transposed = r.choice([1, 2, 3]), r.random() < 0.4
    groups = r.choice([1, 1, 2])
    channels, features = groups * r.choice([1, 4, 16]), groups * r.choice([1, 3, 8])
    kernel = tuple(r.randint(1, 4) for _ in range(rank))
    kind = ((nn.Conv1d, nn.Conv2d, nn.Conv3d), (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
    long = r.randrange(rank)
    sizes = [r.choice([300, 700]) if a == long else r.randint(5, 9) for a in range(rank)]
    operator = kind[transposed][rank - 1](channels, features, kernel, stride=r.choice([1, 2]),
                                          padding=r.choice([0, 1]) if min(kernel) > 1 else 0, groups=groups,
                                          bias=r.random() < 0.7)
    spatial = r.sample(range(2, rank + 2), r.randint(0, rank))
    if 2 + long not in spatial and r.random() < 0.8:
        spatial.append(2 + long)
    axes = sorted({*spatial, *([0] if r.random() < 0.3 else []), *([1] if r.random() < 0.3 else [])}) or [1]
    return operator, [(r.choice([1, 3]), channels, *sizes)], axes


def _linear(r: random.Random) -> tuple[nn.Module, list[tuple[int, ...]], list[int]]:
    shape = (*(r.choice([2, 600]) for _ in range(r.choice([1, 2]))), r.choice([8, 300]))
    axes = sorted(r.sample(range(len(shape)), r.randint(1, len(shape))))
    return nn.Linear(shape[-1], r.choice([5, 400])), [shape], axes


def _matmul(r: random.Random) -> tuple[nn.Module, list[tuple[int, ...]], list[int]]:
    rows, depth, columns = (r.choice([3, 500]) for _ in range(3))
    lead = r.choice([(), (3,), (2, 3)])
    first, second = (lead, r.choice([lead, lead[1:]]))[::r.choice([1, -1])]
    rank = len(lead) + 2
    axes = sorted(r.sample([rank - 2, rank - 1], r.choice([1, 1, 2])))
    return _Product(), [(*first, rows, depth), (*second, depth, columns)], axes


def _rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


DATA = {"normal": torch.randn, "positive": torch.rand, "large mean": lambda shape: torch.randn(shape) + 50}


@pytest.mark.parametrize("form", [_convolution, _linear, _matmul])
def test_no_less_accurate_than_the_original(form):
    collapsed, worse = 0, []
    for seed in range(8 * MORE):
        r = random.Random(seed)
        torch.manual_seed(seed)
        operator, shapes, axes = form(r)
        model = _Summed(operator, tuple(axes), r.random() < 0.5)
        graph = capture(model, [torch.rand(s) for s in shapes])
        rewritten, applied = rewrite_with(graph, all_anchors(graph))
        collapsed += any(a.rule.name in NAMES for a in applied)
        double = copy.deepcopy(model).double()
        for data, draw in DATA.items():
            inputs = [draw(s) for s in shapes]
            with torch.no_grad():
                (found,) = evaluate(rewritten.outputs, values_of(model, graph, inputs))
                eager, exact = model(*inputs), double(*[x.double() for x in inputs])
            size, ours, theirs = (_rms(x) for x in (exact, found.double() - exact, eager.double() - exact))
            if not ours <= 1.5 * theirs + 1e-7 * size:
                worse.append(f"seed {seed}, {data}, {operator}, {shapes}, axes {axes}: {ours / size:.2g}, eager's "
                             f"{theirs / size:.2g}")
    assert not worse, "\n".join(worse)
    assert collapsed >= 6 * MORE


#: Data whose sums round alike at every position, or cancel.
HARD = DATA | {"constant": lambda shape: torch.full(shape, 1 / 3), "wide": lambda shape: torch.randn(shape).exp() ** 3,
               "alternating": lambda shape: torch.randn(shape) + 100 * (torch.arange(shape[-1]) % 2 * 2 - 1)}


def test_a_file_with_collapses(tmp_path, monkeypatch):
    """The kernels themselves, for every share of the axes: no error beyond eager's but for the rounding of the result.
    """
    monkeypatch.setattr("kernelwright.algebra.engine._GAIN", 1e9)  # rules apply whether they pay or not
    original, emitted, text = emit(tmp_path, "collapses", '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(24, 48, (3, 2), stride=(1, 2), padding=(1, 0))
                self.alike = nn.Conv2d(24, 64, 3, groups=2)
                self.alike.weight.data.abs_()
                self.deep = nn.Conv3d(6, 10, (3, 2, 1), padding=(1, 0, 0))
                self.up = nn.ConvTranspose1d(8, 12, 4, stride=2)
                self.linear = nn.Linear(8, 30)

            def forward(self, x, y, z):
                a, b = self.conv(x), self.alike(x)
                return (a.sum(1), a.sum(2), a.mean((1, 2, 3)), a.sum((0, 3)), b.sum(1), b.sum((1, 2)),
                        self.deep(y).sum(2), self.up(z).mean((0, 2)), self.up(z).sum(1), self.linear(z.mT).sum(1))

        def get_inputs():
            return [torch.rand(2, 24, 400, 30), torch.rand(2, 6, 700, 6, 5), torch.rand(4, 8, 900)]
    ''')
    assert len(re.findall(r"static const char\* k\d+_region_sum", text)) >= 6
    old, new, inputs = models(original, emitted)
    double, worse = copy.deepcopy(old).double(), []
    for data, draw in HARD.items():
        torch.manual_seed(0)
        given = [draw(tuple(x.shape)) for x in inputs]
        with torch.no_grad(), kernels_run(emitted):
            results = zip(new(*given), old(*given), double(*[x.double() for x in given]), strict=True)
        for place, (ours, eager, exact) in enumerate(results):
            size, own, theirs = (_rms(x) for x in (exact, ours.double() - exact, eager.double() - exact))
            if not own <= 1.25 * theirs + 2.0**-24 * size:
                worse.append(f"{data}, result {place}: {own / size:.2g}, eager's {theirs / size:.2g}")
    assert not worse, "\n".join(worse)


def test_a_variance_whose_spectra_leave_float32(tmp_path, monkeypatch):
    monkeypatch.setattr("kernelwright.algebra.engine._GAIN", 1e9)
    original, emitted, text = emit(tmp_path, "variance", '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.full = nn.ConvTranspose2d(3, 4, 3)

            def forward(self, x):
                return self.full(x).var((0, 2, 3))

        def get_inputs():
            return [torch.randn(4, 3, 9, 7)]
    ''')
    assert "channel_energy" in text
    old, new, (x,) = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted):
        found, huge, unknown = new(x), new(x * 1e25), new(x * torch.nan)
        assert_like(found.double(), copy.deepcopy(old).double()(x.double()), 1e-6)
    assert bool((huge == torch.inf).all()) and bool(unknown.isnan().all())
