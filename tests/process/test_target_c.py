"""Whole models through the target c: files of plain C for one core, whose results are eager's; what the target has no
kernels of stays with PyTorch, and rules that would make it are left out."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from emitted_tools import assert_like, emit, gradients, kernels_run, models, write_problem

import kernelwright
from kernelwright.algebra import engine
from kernelwright.codegen import generate
from kernelwright.failures import FAILED
from kernelwright.plan.kernels import Extremum, Scan
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.settings import cache_folder

MODELS = {
    "attributes": None,  # convolutions, which are PyTorch's
    "again": None,  # linear layers and norms
    "nested": None,  # a softmax, nested results
    "chain": """
        class Model(nn.Module):
            def forward(self, x, y):
                z = F.gelu(x * 2 + y) - torch.exp(-y.abs())
                return torch.where(z > 0, z.sqrt(), F.silu(z)), torch.tanh(z).double() + 1

        def get_inputs():
            return [torch.randn(5, 7, 9), torch.randn(7, 1)]
    """,
    "groups": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.GroupNorm(2, 6, eps=0.1)

            def forward(self, x):
                return self.norm(x).clamp(min=-0.56).mean(2).softmax(-2)

        def get_inputs():
            return [torch.randn(4, 6, 2, 1)]
    """,
    "scans": """
        class Model(nn.Module):
            def forward(self, x):
                best, place = x.max(2)
                return torch.tanh(x.cumsum(1) * 0.5), best + 1, place, torch.logsumexp(x, (1, 2)), x.var(0)

        def get_inputs():
            return [torch.randn(3, 20, 33)]
    """,
}


@pytest.mark.parametrize("name", MODELS)
def test_like_eager(name, tmp_path):
    """In both modes, with gradients, too."""
    original, emitted, text = emit(tmp_path, name, MODELS[name], "c")
    assert "#pragma omp" not in text and "load_inline" not in text
    old, new, inputs = models(original, emitted)
    for training in (True, False):
        with torch.no_grad(), kernels_run(emitted, 1):
            assert_like(new.train(training)(*inputs), old.train(training)(*inputs))
    if name in ("attributes", "again"):
        assert_like(gradients(new, inputs, torch.sum), gradients(old, inputs, torch.sum))


def test_rules_that_make_what_it_lacks(monkeypatch, tmp_path):
    """They are left out, at their lines, and what they would have replaced has kernels all the same."""
    monkeypatch.setattr(engine, "_GAIN", 1e9)  # rules apply whether they pay or not
    path = write_problem(tmp_path, "norm")
    covers = {target: {o.split(" ")[0] for m in kernelwright.explain(path, target=target, device=GENERIC_CPU).modes
                       for kernel in m.kernels for o in kernel.covers} for target in ("c", "cpp")}
    assert {"region_sum", "channel_energy"} <= covers["cpp"]
    assert {"mean", "var", "rsqrt"} <= covers["c"] and not {"region_sum", "channel_energy"} & covers["c"]
    notes = kernelwright.explain(path, target="c", device=GENERIC_CPU).notes
    for rule, kind in (("sum of a convolution", "RegionSum"), ("variance of a convolution", "SpectralEnergy")):
        (note,) = (n for n in notes if n.startswith("Training mode is planned without") and kind in n)
        assert f"without the rule {rule} (line 15): the target c writes no kernels" in note
    assert not any(FAILED in note for note in notes)
    original, emitted, _ = emit(tmp_path, "norm", target="c")
    old, new, inputs = models(original, emitted)
    for training in (True, False):
        with torch.no_grad(), kernels_run(emitted, 1):
            assert_like(new.train(training)(*inputs), old.train(training)(*inputs))


def test_kinds_of_the_model_that_it_lacks(monkeypatch, tmp_path):
    """They are PyTorch's, with that reason; what follows them has kernels, and no failure is reported."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))
    whole = generate.TARGETS["c"]
    less = {kind: made for kind, made in whole.skeletons.items() if kind not in (Scan, Extremum)}
    monkeypatch.setitem(generate.TARGETS, "c", dataclasses.replace(whole, skeletons=less))
    path = write_problem(tmp_path, "scans", MODELS["scans"])
    result = kernelwright.explain(path, target="c", device=GENERIC_CPU)
    kept = {k.operator: k.reason for k in result.modes[0].kept}
    assert kept["cumsum"] == "the target c writes no kernels of the kind Scan"
    assert "the target c writes no kernels of the kind Extremum" in kept.values()
    covers = {o.split(" ")[0] for k in result.modes[0].kernels for o in k.covers}
    assert {"mul", "tanh", "logsumexp", "var"} <= covers and "cumsum" not in covers
    assert all("backward: the target c writes no kernels of the kind" in note for note in result.notes)
    assert not (cache_folder() / "tracebacks").exists()


def test_a_whole_run(monkeypatch, tmp_path):
    """Built, certified and timed; rules that were left out stay so where a run plans again."""
    monkeypatch.setattr(engine, "_GAIN", 1e9)
    path = write_problem(tmp_path, "norm")
    result = kernelwright.optimize(path, target="c", effort="quick", baselines="none")
    assert result.path.exists() and result.certificate.passed
    assert not any(FAILED in note for note in result.notes)
    assert len([n for n in result.notes if "planned without" in n and "the kind RegionSum" in n]) <= 2
