"""Contractions on a GPU: measured, chosen, emitted, verified."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plan_tools import Of
from torch import nn

import kernelwright
from kernelwright.report import render_text
from kernelwright.tune import contractions as tune

pytestmark = pytest.mark.gpu

MODELS = {
    "product": (lambda m, x: F.gelu(m.a(x)), lambda: {"a": nn.Linear(2048, 2048)}, (1024, 2048), torch.float32),
    "convolution": (lambda m, x: F.relu(m.a(x) + x), lambda: {"a": nn.Conv2d(64, 64, 3, padding=1)}, (16, 64, 64, 64),
                    torch.float32),
    "transposed convolution": (lambda m, x: torch.tanh(m.a(x)) * 2, lambda: {"a": nn.ConvTranspose2d(
        64, 64, 4, stride=2, padding=1)}, (16, 64, 32, 32), torch.float32),
    "grouped transposed convolution": (lambda m, x: F.relu(m.a(x)), lambda: {"a": nn.ConvTranspose3d(
        32, 32, (3, 5, 7), stride=2, padding=(1, 2, 3), output_padding=1, groups=4)}, (4, 32, 6, 12, 24),
        torch.float32),
    "depthwise": (lambda m, x: F.hardswish(m.a(x)), lambda: {"a": nn.Conv2d(64, 64, 3, padding=1, groups=64)},
                  (16, 64, 128, 128), torch.float32),
    "batched": (lambda m, x: torch.softmax(x @ x.mT, -1), dict, (32, 512, 256), torch.float32),
    "softmax of channels": (lambda m, x: torch.softmax(m.a(x), 1), lambda: {"a": nn.Conv2d(64, 64, 3, padding=1)},
                            (16, 64, 64, 64), torch.float32),
    "minimum of channels": (lambda m, x: torch.tanh(m.a(x).amin(1, keepdim=True)), lambda: {
        "a": nn.ConvTranspose2d(64, 128, 3, stride=2, padding=1, output_padding=1)}, (16, 64, 32, 32), torch.float32),
    "norm of a product": (lambda m, x: F.layer_norm(m.a(x), (192,)), lambda: {"a": nn.Linear(1024, 192)}, (4096, 1024),
                          torch.float32),
    "16 bits": (lambda m, x: F.silu(m.a(x)), lambda: {"a": nn.Linear(1024, 1024)}, (2048, 1024), torch.bfloat16),
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("precision", ["match", "strict"])
@pytest.mark.parametrize("name", MODELS)
def test_chosen_and_verified(name: str, precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Whatever the clock says a kernel is taken if it is accurate; then the whole file must pass its checks."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(tune, "_WIN", 1e9)
    monkeypatch.setattr(tune, "_WIN_ALONE", 1e9)
    monkeypatch.setattr("kernelwright.selection.is_slower", lambda timing: False)
    function, parts, shape, dtype = MODELS[name]
    torch.manual_seed(0)
    model = Of(function, **parts()).to("cuda", dtype)
    result = kernelwright.optimize(model, (torch.randn(shape, device="cuda", dtype=dtype),), target="cuda",
                                   budget=600, baselines="none", precision=precision, contractions="measured")
    print(render_text(result))
    uses = [k.contraction for k in result.modes[0].kernels if k.contraction is not None]
    assert len(uses) == 1, ([k.reason for k in result.modes[0].kept], result.notes)
    assert result.certificate.passed and uses[0].seconds > 0
    noise = 1.25 if uses[0].scheme == "float32" else 1.1
    assert uses[0].error <= noise * uses[0].torch_error and uses[0].scheme != "fp16" * (precision == "strict")
    assert (tmp_path / "contractions").is_dir()
