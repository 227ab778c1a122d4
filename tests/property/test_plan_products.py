"""Products along axes and logarithms of sums: plans of random ones give eager's values, special ones among them."""

from __future__ import annotations

import torch
from graph_tools import examples
from hypothesis import given
from hypothesis import strategies as st
from test_plan_lookups import values
from test_planner import Of, check_model, loops


@examples(40)
@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 999), every=st.booleans(),
       keep=st.booleans(), special=st.booleans(), data=st.data())
def test_products(shape: list[int], seed: int, every: bool, keep: bool, special: bool, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = values(shape, seed) if special else torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    function = (lambda x: x.prod()) if every else lambda x: x.prod(axis, keepdim=keep)
    plan = check_model(Of(lambda m, x: function(x * 2).neg() * 3), (x,))
    assert [r.kind for k in loops(plan) for r in k.reductions] == ["product"] or 1 in (shape[axis], x.numel())


@examples(30)
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), seed=st.integers(0, 999), data=st.data(),
       dtype=st.sampled_from([torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]))
def test_products_of_whole_numbers(shape: list[int], seed: int, dtype: torch.dtype, data: st.DataObject) -> None:
    """To the bit: where a floating type does not hold every product, it stays with PyTorch, which wraps around."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    limits = (0, 2) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    x = torch.randint(*limits, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    check_model(Of(lambda m, x: (x.prod(axis) - 1, x.prod())), (x,), tolerance=0.0)


@examples(20)
@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=3), seed=st.integers(0, 999),
       name=st.sampled_from(["logaddexp", "logaddexp2"]))
def test_logarithms_of_sums(shape: list[int], seed: int, name: str) -> None:
    x, y = values(shape, seed), values(shape[-1:], seed + 1)
    plan = check_model(Of(lambda m, x, y: getattr(torch, name)(x, y).neg() * 3), (x, y))
    assert plan.kernels and not any("log" in reason for reason in plan.kept.values())
