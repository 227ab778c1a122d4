"""Masks that are known at planning time leave attention, and no other ones do."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph_tools import assert_same, check_rewrite, examples, graph_of, leaf, values_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kernelwright.algebra import attention
from kernelwright.algebra.engine import rewrite
from kernelwright.algebra.rule import Context
from kernelwright.capture.export import capture
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.node import make
from kernelwright.roofline.devices import GENERIC_CPU

LENGTH = 7


def of_places(q: torch.Tensor) -> torch.Tensor:
    place = torch.arange(q.shape[-2], device=q.device)
    hidden_nothing = torch.ones(2, q.shape[-2], device=q.device).to(q.device, torch.bool)  # the padding of nobody
    return (place[:, None] >= place[None, :])[None, None] & hidden_nothing[:, None, None, :]


MASKS: dict[str, tuple[Any, str]] = {
    "places": (of_places, "causal"),
    "lower triangle": (lambda q: torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(), "causal"),
    "added": (lambda q: torch.full((LENGTH, LENGTH), -math.inf, dtype=q.dtype).triu(1), "causal"),
    "all": (lambda q: torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool), "no mask"),
    "zeros": (lambda q: torch.zeros(LENGTH, LENGTH, dtype=q.dtype), "no mask"),
    "one more": (lambda q: torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(1), ""),
    "band": (lambda q: torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().triu(-2), ""),
    "one entry": (lambda q: torch.cat([torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril(),
                                       torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)]), ""),
    "a little": (lambda q: torch.full((LENGTH, LENGTH), -1e4, dtype=q.dtype).triu(1), ""),
    "values": (lambda q: q[:, :1, :, :1] > -9.0, ""),
}


class Attends(nn.Module):
    def __init__(self, mask: Any, dropped: float = 0.0, keys: int = LENGTH) -> None:
        super().__init__()
        self.mask, self.dropped, self.keys = mask, dropped, keys

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, torch.cat([k[..., :0, :], k * 2], dim=-2), self.mask(q),
                                              self.dropped if self.training else 0.0)


def applied(model: nn.Module, *, keys: int = LENGTH) -> tuple[list[str], list[Any]]:
    """The rules that were applied to a model's graph, and the arguments of its attention; both compute the same."""
    torch.manual_seed(0)
    given = [torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (LENGTH, keys)]
    graph = capture(model, given)
    found = rewrite(graph, GENERIC_CPU)
    values = values_of(model, graph, given)
    if not model.training:
        for before, after in zip(evaluate(graph.outputs, values), evaluate(found.graph.outputs, values), strict=True):
            assert_same(after, before, 1e-12)
    (call,) = [n for n in found.graph.nodes() if "attention" in n.get("target", "")]
    return [a.rule.name for a in found.applications], list(call["template"])


@pytest.mark.parametrize("name", MASKS)
def test_a_known_mask(name: str) -> None:
    mask, kind = MASKS[name]
    rules, template = applied(Attends(mask).eval())
    assert ("attention under a known mask" in rules) == bool(kind)
    assert template[5] is (kind == "causal") and (template[3] is None) == bool(kind)
    assert "concatenation of one tensor" in rules  # as a cache has it in the first step


def test_not_where_more_keys_than_queries_are_there() -> None:
    def mask(q: torch.Tensor) -> torch.Tensor:
        return torch.ones(LENGTH, 9, dtype=torch.bool).tril()

    assert "attention under a known mask" not in applied(Attends(mask).eval(), keys=9)[0]


def test_not_where_numbers_are_drawn() -> None:
    """Another kernel of a library may draw them in another order."""
    assert "attention under a known mask" not in applied(Attends(of_places, 0.25).train())[0]


def test_what_is_large_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_MOST_ELEMENTS", LENGTH * LENGTH)
    assert "attention under a known mask" not in applied(Attends(of_places).eval())[0]


def test_a_mask_of_more_entries_than_there_are_queries_widens_the_result() -> None:
    q = leaf("q", 1, 3, LENGTH, 4)
    mask = make("literal", value=True, shape=(2, 1, LENGTH, LENGTH), dtype="bool")
    template = (*(("input", 0),) * 3, ("input", 1), 0.0, False)
    for entries, holds in ((2, False), (1, True)):
        node = make("opaque", q, mask, target="aten.scaled_dot_product_attention.default", template=template,
                    keywords=(), shape=(entries, 3, LENGTH, 4), dtype="float32", types=None, serial=-1)
        assert (attention.known_mask.rewrite(node, Context(frozenset())) is not None) == holds


def test_what_cannot_be_evaluated_is_another_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object, **__: object) -> None:
        raise NotImplementedError("no kernel for the CPU")

    monkeypatch.setattr(attention, "evaluate", lacking)
    assert "attention under a known mask" not in applied(Attends(of_places).eval())[0]


@examples(60)
@given(st.data())
def test_one_tensor_beside_empty_ones(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 3)] * data.draw(st.integers(1, 3))))
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(st.sampled_from([0, 0, 2]), min_size=1, max_size=4))
    operands = [leaf(f"x{i}", *shape[:axis], n, *shape[axis + 1:]) for i, n in enumerate(sizes)]
    whole = (*shape[:axis], sum(sizes), *shape[axis + 1:])
    node = make("concatenate", *operands, axis=axis, shape=whole, dtype="float32")
    rules = check_rewrite(graph_of(make("tanh", node)))
    assert ("concatenation of one tensor" in rules) == (sizes.count(2) == 1)
