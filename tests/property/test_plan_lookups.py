"""Elements that indices choose, borders, resampling, whole divisions: plans of random ones give eager's values."""

from __future__ import annotations

from functools import partial
from math import inf, nan

import torch
import torch.nn.functional as F
from graph_tools import examples
from hypothesis import given
from hypothesis import strategies as st
from test_planner import Of, check_model

from kernelwright.plan.expressions import Element, walk
from kernelwright.plan.records import Plan

SPECIAL = (nan, inf, -inf, -0.0, 0.0, 1e300, -1e-300)


def values(shape: list[int], seed: int) -> torch.Tensor:
    """Random numbers, some of them special."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    places = torch.rand(shape, generator=generator) < 0.2
    special = torch.tensor(SPECIAL, dtype=torch.float64)[torch.randint(0, len(SPECIAL), shape, generator=generator)]
    return torch.where(places, special, x)


def looks_up(plan: Plan) -> bool:
    return any(isinstance(e, Element) for step in plan.kernels for store in (*step.kernel.row_stores,
               *step.kernel.outer_stores) for e in walk(store.expression))


@examples(25)
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), like=st.lists(st.integers(1, 4), max_size=3),
       seed=st.integers(0, 999), kind=st.sampled_from(["rows", "numbers", "gather", "along", "embedding"]),
       narrow=st.booleans(), data=st.data())
def test_chosen(shape: list[int], like: list[int], seed: int, kind: str, narrow: bool, data: st.DataObject) -> None:
    axis, x = data.draw(st.integers(0, len(shape) - 1)), values(shape, seed)
    generator, size = torch.Generator().manual_seed(seed), shape[axis]
    if kind in ("gather", "along"):
        sizes = [data.draw(st.integers(1, 2 * s)) if a == axis else
                 s if kind == "along" else data.draw(st.integers(1, s)) for a, s in enumerate(shape)]
        index = torch.randint(0, size, sizes, generator=generator)
        function = torch.gather if kind == "gather" else lambda x, axis, i: torch.take_along_dim(x, i, axis)
        check_model(Of(lambda m, x, i: function(x * 2, axis, i).neg() * 3), (x, index))
        return
    if kind == "embedding":
        x, size = x.reshape(shape[0], -1), shape[0]
        index = torch.randint(0, size, like or [2], generator=generator)
        function = lambda x, i: F.embedding(i, x)  # noqa: E731
    elif kind == "rows":
        index = torch.randint(0, size, like[:1] or [3], generator=generator)
        function = lambda x, i: x.index_select(axis, i)  # noqa: E731
    else:
        index = torch.randint(-size, size, like or [2], generator=generator)
        function = lambda x, i: x[(*[slice(None)] * axis, i)]  # noqa: E731
    index = index.int() if narrow else index
    plan = check_model(Of(lambda m, x, i: function(x, i).neg() * 3), (x, index))
    assert looks_up(plan) or size == 1 or not index.numel()


@examples(40)
@given(shape=st.lists(st.integers(1, 5), min_size=2, max_size=5), seed=st.integers(0, 999),
       like=st.lists(st.integers(1, 4), min_size=1, max_size=3), data=st.data())
def test_chosen_along_several_axes(shape: list[int], like: list[int], seed: int, data: st.DataObject) -> None:
    """Adjacent or not, of indices that are broadcast together and count from either end."""
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=2, max_size=3)))
    generator, indices = torch.Generator().manual_seed(seed), []
    for axis in axes:
        lead = data.draw(st.integers(0, len(like) - 1))  # without axes it would be a number of Python
        own = [data.draw(st.sampled_from([1, s])) for s in like[lead:]]
        indices.append(torch.randint(-shape[axis], shape[axis], own, generator=generator))

    def function(m: object, x: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
        chosen = dict(zip(axes, indices, strict=True))
        return x[tuple(chosen.get(axis, slice(None)) for axis in range(max(axes) + 1))].neg() * 3

    plan = check_model(Of(function), (values(shape, seed), *indices))
    assert looks_up(plan) or all(shape[a] == 1 for a in axes)


@examples(20)
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), like=st.lists(st.integers(1, 4), max_size=3),
       seed=st.integers(0, 999), kind=st.sampled_from(["take", "flat", "broadcast"]), data=st.data())
def test_chosen_of_all(shape: list[int], like: list[int], seed: int, kind: str, data: st.DataObject) -> None:
    """Of all elements in a row, and along an axis of operands that are broadcast along others."""
    x, generator = values(shape, seed), torch.Generator().manual_seed(seed)
    if kind == "broadcast":
        axis = data.draw(st.integers(0, len(shape) - 1))
        sizes = [3 if a == axis else data.draw(st.sampled_from([1, 4 if s == 1 else s])) for a, s in enumerate(shape)]
        index = torch.randint(0, shape[axis], sizes, generator=generator)
        check_model(Of(lambda m, x, i: torch.take_along_dim(x * 2, i, axis).neg() * 3), (x, index))
        return
    least = -x.numel() if kind == "take" else 0
    index = torch.randint(least, x.numel(), like, generator=generator)
    function = torch.take if kind == "take" else torch.take_along_dim
    check_model(Of(lambda m, x, i: function(x, i).neg() * 3), (x, index))


@examples(40)
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 999), count=st.integers(1, 9),
       kind=st.sampled_from(["scatter", "scatter_add", "index_add", "index_copy"]), data=st.data(),
       dtype=st.sampled_from([torch.float64, torch.int64, torch.int32]))
def test_scattered(shape: list[int], seed: int, count: int, kind: str, dtype: torch.dtype, data: st.DataObject) -> None:
    """At places that some name several times, zeros of both signs included: in the order in which a CPU does it."""
    axis, generator = data.draw(st.integers(0, len(shape) - 1)), torch.Generator().manual_seed(seed)
    sizes = [count if a == axis else s for a, s in enumerate(shape)]
    x, source = values(shape, seed), values(sizes, seed + 1)
    if dtype != torch.float64:
        x, source = (torch.randint(-9, 9, t.shape, generator=generator).to(dtype) for t in (x, source))
    index = torch.randint(0, shape[axis], sizes if kind.startswith("scatter") else [count], generator=generator)
    function = getattr(torch, kind)
    model = Of(lambda m, x, i, s: function(x * 1, axis, i, s * 2).neg() * 3)
    plan = check_model(model, (x, index, source), tolerance=0.0)
    assert any(n.op == "scattered" for step in plan.kernels for n in step.covers) == (count <= 8)


@examples(25)
@given(rows=st.integers(1, 5), size=st.integers(2, 6), seed=st.integers(0, 999), axis=st.integers(0, 1),
       source=st.sampled_from(["product", "scan", "extremum", "row"]), chosen=st.booleans(), after=st.booleans())
def test_chosen_by_what_kernels_make(rows: int, size: int, seed: int, axis: int, source: str, *, chosen: bool,
                                     after: bool) -> None:
    """Indices that kernels of other kinds make, and elements of their results: such kernels look nothing up."""
    x = values([rows, size], seed).nan_to_num(0.5, 2.0, -2.0).clamp(-2, 2)
    makes = {"product": lambda x: x @ x.mT @ x, "scan": lambda x: x.cumsum(axis),
             "extremum": lambda x: x.argmax(axis, keepdim=True), "row": lambda x: x.softmax(axis)}

    def function(m: object, x: torch.Tensor) -> torch.Tensor:
        made = makes[source](x)
        index = (made.double().abs() * 3).long() % x.shape[axis]
        result = (made * 1.0 if chosen else x).gather(axis, index % made.shape[axis] if chosen else index)
        return result.neg() * 2 + made if after else result

    check_model(Of(function), (x,))


@examples(20)
@given(sizes=st.lists(st.integers(2, 6), min_size=1, max_size=3), seed=st.integers(0, 999),
       mode=st.sampled_from(["reflect", "replicate", "circular"]), data=st.data())
def test_borders(sizes: list[int], seed: int, mode: str, data: st.DataObject) -> None:
    widths = [data.draw(st.integers(0, s - 1)) for s in reversed(sizes) for _ in range(2)]
    x = values([2, 3, *sizes], seed)
    plan = check_model(Of(lambda m, x: F.pad(x, widths, mode=mode).neg() * 2), (x,))
    assert looks_up(plan) == any(widths)


@examples(20)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3), seed=st.integers(0, 999), aligned=st.booleans(),
       mode=st.sampled_from(["nearest", "nearest-exact", "linear", "bicubic"]), scaled=st.booleans(),
       special=st.booleans(), data=st.data())
def test_resampled(sizes: list[int], seed: int, aligned: bool, mode: str, scaled: bool, special: bool,
                   data: st.DataObject) -> None:
    sizes = (sizes * 2)[:2] if mode == "bicubic" else sizes
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(sizes)] if mode == "linear" else mode
    to: dict = {"scale_factor": tuple(data.draw(st.sampled_from([0.5, 0.7, 1.0, 1.3, 2.0, 3.7])) for _ in sizes)} \
        if scaled and all(s > 1 for s in sizes) else {"size": tuple(data.draw(st.integers(1, 9)) for _ in sizes)}
    if "linear" in mode or mode == "bicubic":
        to["align_corners"] = aligned
    if special and "size" in to:
        to["size"] = tuple(data.draw(st.sampled_from([s, n])) for s, n in zip(sizes, to["size"], strict=True))
    x = torch.randn([2, 3, *sizes], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x = values([2, 3, *sizes], seed) if special else x
    check_model(Of(lambda m, x: F.interpolate(x, mode=mode, **to).neg() * 2 + 1), (x,))


@examples(40)
@given(sizes=st.lists(st.integers(1, 6), min_size=4, max_size=4), seed=st.integers(0, 999), aligned=st.booleans(),
       mode=st.sampled_from(["bilinear", "nearest"]), padding=st.sampled_from(["zeros", "border", "reflection"]),
       far=st.sampled_from([0.9, 1.3, 7.0]), special=st.booleans())
def test_sampled(sizes: list[int], seed: int, aligned: bool, mode: str, padding: str, far: float,
                 special: bool) -> None:
    """Within and beyond, at halves of elements, at what is no number, and of what is none."""
    batch, channels, rows, columns = sizes
    generator = torch.Generator().manual_seed(seed)
    x, grid = values([batch, channels, columns, rows], seed), torch.rand(batch, rows, columns, 2, generator=generator)
    grid = (grid.double() * 2 - 1) * far
    grid[:, ::2] = (grid[:, ::2] * 12).round() / 12
    if special:
        strange = torch.tensor([nan, inf, -inf, 1e12]).repeat(grid.numel() // 4 + 1)[:grid.numel()].reshape(grid.shape)
        grid = torch.where(torch.rand(grid.shape, generator=generator) < 0.2, strange, grid)
    plan = check_model(Of(lambda m, x, g: F.grid_sample(x * 1.0, g, mode, padding, aligned).neg() * 2), (x, grid))
    assert looks_up(plan) or columns == rows == 1


@examples(25)
@given(seed=st.integers(0, 999), name=st.sampled_from(["floor_divide", "remainder", "fmod", "trunc"]),
       types=st.tuples(*[st.sampled_from([torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])] * 2))
def test_whole_divisions(seed: int, name: str, types: tuple[torch.dtype, torch.dtype]) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(-140, 140, (5, 7), generator=generator).to(t) for t in types)
    y = torch.where(y == 0, 1, y)
    divide = getattr(torch, name) if name != "trunc" else partial(torch.div, rounding_mode="trunc")
    plan = check_model(Of(lambda m, x, y: (divide(x, y) + 1) * 2), (x, y))
    assert plan.kernels
