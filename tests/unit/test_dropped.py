"""Dropout on a processor is a product with numbers that PyTorch draws, bit for bit; elsewhere it stays one call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from graph_tools import evaluate, values_of
from plan_tools import Of

from kernelwright.capture.export import capture
from kernelwright.ir.node import walk


def drawn(function, x: torch.Tensor, *, on_host: bool = True) -> list[str]:
    """What of the graph are torch calls, where it gives eager's values and leaves the generator as eager does."""
    model = Of(function)
    graph = capture(model, (x,), on_host=on_host)
    torch.manual_seed(7)
    expected, after = model(x), torch.rand(3)
    torch.manual_seed(7)
    (found,) = evaluate(graph.outputs, values_of(model, graph, (x,)))
    assert torch.equal(found, expected) and torch.equal(torch.rand(3), after)
    return [n["target"] for n in walk(graph.outputs) if n.op == "opaque"]


def _chain(m: object, x: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.dropout(x.relu(), 0.1).exp(), 0.7) + 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_is_a_product(dtype: torch.dtype) -> None:
    x = torch.randn(40, 51, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert drawn(_chain, x) == ["aten.bernoulli.p"] * 2
    assert drawn(lambda m, x: F.dropout(x + 1, 0.3, inplace=True) * 2, x) == ["aten.bernoulli.p"]


@pytest.mark.parametrize("function", [
    lambda m, x: F.dropout(x, 1.0) + 1, lambda m, x: F.dropout(x.t(), 0.3) + 1, lambda m, x: F.feature_alpha_dropout(
        x, 0.3, True)], ids=["all", "in another order", "another kind"])
def test_other_dropout_stays(function) -> None:
    x = torch.randn(40, 51, generator=torch.Generator().manual_seed(0))
    assert "aten.bernoulli.p" not in drawn(function, x)


def test_dropout_elsewhere_stays() -> None:
    x = torch.randn(40, 51, generator=torch.Generator().manual_seed(0))
    assert drawn(_chain, x, on_host=False) == ["aten.dropout.default"] * 2
    assert drawn(lambda m, x: F.dropout(x, 0.0) + 1, x) == []
