"""Loop kernels of CUDA for several sizes: run under the emulation at every size, and compiled where nvcc is."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from dynamic_tools import Several, of_shape, same_state, several
from emitted_tools import assert_like, kernels_run
from torch import nn

from kernelwright.build.module import compile_cuda, find_cuda_compiler


class Softmax(nn.Module):
    def forward(self, x):
        return torch.softmax(F.gelu(x) * 2, -1)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.after = nn.LayerNorm(24), nn.Linear(24, 8)

    def forward(self, x):
        return F.relu(self.after(self.norm(x).relu() + x)) * 0.5


@cache
def made(name: str) -> tuple[nn.Module, list[torch.Tensor], Several]:
    torch.manual_seed(1)
    model, inputs, dynamic = {
        "softmax": (Softmax(), [torch.randn(8, 40)], ("x:0=1..17",)),
        "norm": (Norm(), [torch.randn(4, 5, 24)], ("x:0=1..5", "x:1=1..6")),
    }[name]
    return model, inputs, several(model, inputs, *dynamic, target="cuda")


@pytest.mark.parametrize(("name", "changes"), [
    ("softmax", [((0, 0, n),) for n in range(1, 18)]),
    ("norm", [((0, 0, n), (0, 1, m)) for n in range(1, 6) for m in range(1, 7)]),
])
def test_kernels_of_cuda_serve_every_size(name, changes) -> None:
    model, inputs, found = made(name)
    assert all(len(points) == len(changes) for points in found.made.served.values()), found.made.notes
    new = same_state(model.eval(), found.model())
    assert any(variant.moves for own, _ in found.made.kernels.values() for variant in own)
    assert all(len(own) < len(changes) / 2 for own, _ in found.made.kernels.values())
    with torch.no_grad():
        for seed, change in enumerate(changes):
            given = of_shape(inputs, *change, seed=seed)
            with kernels_run(found.module, 1):
                assert_like(new(*given), model(*given))


@pytest.mark.skipif(find_cuda_compiler() is None, reason="no nvcc")
@pytest.mark.parametrize("name", ["softmax", "norm"])
def test_kernels_of_several_sizes_compile(name) -> None:
    assert compile_cuda(made(name)[2].made.sized.kernels.text) == ""
