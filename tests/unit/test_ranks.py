"""Tensors without axes, with one to seven, and without elements: what eager gives, and what it refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.algebra.engine import rewrite
from kernelwright.capture.export import NotCapturable, capture
from kernelwright.codegen.generate import generate
from kernelwright.codegen.reference.plan import run_plan, values_of
from kernelwright.errors import ForwardRaised
from kernelwright.plan.planner import make_plan
from kernelwright.roofline.devices import GENERIC_CPU

#: By axis 0 or -1, by no axes, and by none at all.
CALLS = {
    "softmax": lambda z: z.softmax(0), "softmax of another type": lambda z: z.softmax(0, dtype=torch.float64),
    "log_softmax": lambda z: z.log_softmax(-1), "softmin": lambda z: F.softmin(z, 0),
    "logsumexp": lambda z: z.logsumexp(0), "sum": lambda z: z.sum(0) * 2,
    "kept sum": lambda z: z.sum(-1, keepdim=True) * 2, "sum over ()": lambda z: z.sum(dim=()) + 1,
    "sum over []": lambda z: z.sum(dim=[]) + 1, "mean": lambda z: z.mean(-1), "whole mean": lambda z: z.mean(),
    "amax": lambda z: z.amax(0), "amin over ()": lambda z: z.amin(()), "prod": lambda z: z.prod(0),
    "norm": lambda z: z.norm(dim=0), "norm 1": lambda z: z.norm(1, dim=-1),
    "vector_norm over ()": lambda z: torch.linalg.vector_norm(z, 3, dim=()),
    "var": lambda z: z.var(0, correction=0), "std": lambda z: z.std(-1, correction=0),
    "max": lambda z: z.max(0)[0], "place of max": lambda z: z.max(0)[1], "min": lambda z: z.min(-1).values,
    "argmax": lambda z: z.argmax(0), "whole argmax": lambda z: z.argmax(), "all": lambda z: z.all(0),
    "any": lambda z: z.any(-1), "normalize": lambda z: F.normalize(z, dim=0), "flip": lambda z: z.flip(0),
    "flip of no axes": lambda z: z.flip(()), "sort": lambda z: z.sort(0)[0], "argsort": lambda z: z.argsort(-1),
    "cumsum": lambda z: z.cumsum(0), "cumprod": lambda z: z.cumprod(0), "cummax": lambda z: z.cummax(0)[0],
    "logcumsumexp": lambda z: z.logcumsumexp(0), "topk": lambda z: z.topk(1, 0)[0],
    "median": lambda z: z.median(0)[0], "squeeze": lambda z: z.squeeze(0) + 1,
    "transpose": lambda z: z.transpose(0, -1) * 2, "movedim": lambda z: z.movedim(0, 0) * 2,
    "cosine_similarity": lambda z: F.cosine_similarity(z, z * 2, dim=0), "stack": lambda z: torch.stack([z, z * 2], 0),
    "broadcast": lambda z: z + torch.ones(3, 2).sum(), "nansum": lambda z: torch.nansum(z, 0),
    "count_nonzero": lambda z: z.count_nonzero(0), "unsqueeze": lambda z: z.unsqueeze(0).softmax(0),
    "several": lambda z: z.square().sum(0, keepdim=True).rsqrt() * z,
}
SHAPES = [(), (3,), (2, 3), (1, 2, 1, 2, 1, 2, 2), (0,), (0, 3), (3, 0)]


class Calls(nn.Module):
    """One call."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, z):
        return self.call(z)


def results(call, z):
    """Of the captured graph as planned, in float64; its kernels have texts for both targets."""
    model = Calls(call).eval()
    graph = capture(model, [z])
    plan = make_plan(rewrite(graph, GENERIC_CPU).graph, graph)
    for target in ("cpp", "cuda"):
        generate([plan], target)
    return graph, run_plan(plan, values_of(model, graph, [z]))[0]


@pytest.mark.parametrize("shape", [(), (2, 3), (0, 3)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_axis_of_any_tensor(name, shape):
    check(CALLS[name], shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["softmax", "sum", "mean", "cumsum", "argmax", "norm", "flip", "sum over ()"])
def test_ranks_from_0_to_7(name, shape):
    check(CALLS[name], shape)


def check(call, shape):
    z = torch.linspace(-0.7, 0.9, max(1, torch.Size(shape).numel()))[:torch.Size(shape).numel()].reshape(shape)
    try:
        expected = call(z)
    except (RuntimeError, IndexError):
        with pytest.raises((NotCapturable, ForwardRaised, IndexError)):
            results(call, z)
        return
    graph, (actual,) = results(call, z)
    assert actual.shape == expected.shape and graph.outputs[0].dtype == str(expected.dtype).removeprefix("torch.")
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-5, atol=1e-6, equal_nan=True)
