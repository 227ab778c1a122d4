"""Rules that compose an average pool with a linear operator beside it: the value stays, and each condition holds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from graph_tools import anchor, check_rewrite, examples, graph_of, has_positions, leaf, rewritten
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelwright.algebra import compose, engine
from kernelwright.algebra.compose import COMPOSE, axis_taps
from kernelwright.ir.node import Node, make
from kernelwright.roofline.devices import GENERIC_CPU

FIRST, OF_POOL, POOL_OF, TWICE, LINEAR = (rule.name for rule in COMPOSE)
NAMES = {rule.name for rule in COMPOSE}


@pytest.fixture(autouse=True)
def of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long sums may be is tested by itself."""
    monkeypatch.setattr(compose, "_MOST_TERMS", 1 << 20)
    monkeypatch.setattr(compose, "_MOST_WINDOW", 1 << 20)


def convolution(x: Node, kernel: tuple[int, ...], out: int = 4, *, groups: int = 1, bias: bool = True, **more: Any
                ) -> Node:
    rank = len(kernel)
    geometry = {"stride": (1,) * rank, "padding": (0,) * rank, "dilation": (1,) * rank, "transposed": False,
                "output_padding": (0,) * rank, **more}
    shape = (x.shape[1], out // groups, *kernel) if geometry["transposed"] else (out, x.shape[1] // groups, *kernel)
    inputs = [x, leaf("w", *shape, op="parameter", dtype=x.dtype)]
    inputs += [leaf("b", out, op="parameter", dtype=x.dtype)] if bias else []
    return anchor("convolution", *inputs, groups=groups, **geometry)


def pool(x: Node, kernel: tuple[int, ...], *, name: str = "pool", **more: Any) -> Node:
    """An average pool with an origin of its own, which is where it may be composed."""
    geometry = {"stride": kernel, "padding": (0,) * len(kernel), "ceil": False, "include_padding": True,
                "divisor": None, **more}
    return anchor("average_pool", x, kernel=kernel, **geometry)


@st.composite
def pools(draw: st.DrawFn, x: Node, rank: int) -> Node:
    """Any average pool of the last axes that PyTorch takes."""
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    for k, p, size in zip(kernel, padding, x.shape[-rank:], strict=True):
        assume(size + 2 * p * (rank < 3) >= k)
    divisor = draw(st.sampled_from((None, None, 3))) if rank > 1 else None
    return pool(x, kernel, stride=tuple(draw(st.integers(1, 4)) for _ in kernel), padding=padding, divisor=divisor,
                ceil=draw(st.booleans()), include_padding=draw(st.booleans()))


@st.composite
def convolved(draw: st.DrawFn, x: Node) -> Node:
    """Any convolution of x, of one to three axes."""
    rank = x.rank - 2
    kernel, stride, dilation, padding = (tuple(draw(st.integers(low, high)) for _ in range(rank))
                                         for low, high in ((1, 3), (1, 3), (1, 2), (0, 2)))
    for size, k, p, d in zip(x.shape[2:], kernel, padding, dilation, strict=True):
        assume(size + 2 * p >= d * (k - 1) + 1)
    groups = draw(st.sampled_from([g for g in (1, 2) if x.shape[1] % g == 0]))
    y = convolution(x, kernel, groups * draw(st.integers(1, 2)), groups=groups, stride=stride, padding=padding,
                    dilation=dilation, bias=draw(st.booleans()))
    assume(has_positions(y))
    return y


@st.composite
def images(draw: st.DrawFn) -> Node:
    rank = draw(st.integers(1, 3))
    size = tuple(draw(st.integers(1, {1: 13, 2: 8, 3: 5}[rank])) for _ in range(rank))
    return leaf("x", draw(st.integers(1, 2)), draw(st.integers(1, 4)), *size)


def divides_by_one_number(node: Node) -> bool:
    """By the windows themselves: PyTorch's divisor of each is what the pool of ones has to be multiplied by."""
    rank = len(node["kernel"])
    lengths = node.inputs[0].shape[-rank:]
    for length, outputs, k, s, p in zip(lengths, node.shape[-rank:], node["kernel"], node["stride"], node["padding"],
                                        strict=True):
        starts = [n * s - p for n in range(outputs)]
        whole = all(start + k <= length + p for start in starts)
        inside = all(start >= 0 and start + k <= length for start in starts)
        if not whole or not (inside or node["include_padding"] or node["divisor"] or not p):
            return False
    return not any(node["padding"]) or node["include_padding"] or node["divisor"] is not None


def pads_alike(y: Node, inner: Node) -> bool:
    """Whether windows of a pool where a convolution has its padding would have nothing of x."""
    for axis, (k, s, p) in enumerate(zip(inner["kernel"], inner["stride"], inner["padding"], strict=True)):
        last = (y.shape[2 + axis] - 1) * y["stride"][axis] - y["padding"][axis] + \
            (y.inputs[1].shape[2 + axis] - 1) * y["dilation"][axis]
        beyond = [u for u in range(-y["padding"][axis], last + 1) if not 0 <= u < inner.shape[2 + axis]]
        if any(u * s - p < inner.inputs[0].shape[2 + axis] and u * s - p + k > 0 for u in beyond):
            return False
    return True


def has_gaps(y: Node, outer: Node, *, of_pool: bool) -> bool:
    """Whether x has elements within the window of one result of a convolution and a pool that none of the two reads.
    of_pool: the convolution is of the pool."""
    for axis, (k, s) in enumerate(zip(outer["kernel"], outer["stride"], strict=True)):
        step, step_in = (y["dilation"][axis] * s, 1) if of_pool else (y["dilation"][axis], y["stride"][axis])
        read = {t * step + i * step_in for t in range(y.inputs[1].shape[2 + axis]) for i in range(k)}
        apart = {b - a for a, b in pairwise(sorted(read))}
        if len(apart) > 1:
            return True
    return False


@examples(400)
@given(st.data())
def test_convolution_of_a_pool(data: st.DataObject) -> None:
    x = data.draw(images())
    inner = data.draw(pools(x, x.rank - 2))
    y = data.draw(convolved(inner))
    names = check_rewrite(graph_of(y))
    assert names == ([OF_POOL] if divides_by_one_number(inner) and pads_alike(y, inner)
                     and not has_gaps(y, inner, of_pool=True) else [])


@examples(400)
@given(st.data())
def test_pool_of_a_convolution(data: st.DataObject) -> None:
    y = data.draw(convolved(data.draw(images())))
    outer = data.draw(pools(y, y.rank - 2))
    names = [n for n in check_rewrite(graph_of(outer)) if n in NAMES]
    if divides_by_one_number(outer) and not any(outer["padding"]) and not has_gaps(y, outer, of_pool=False):
        assert names[:1] in ([POOL_OF], [FIRST])
    elif names:
        assert names[0] == FIRST and {*y.inputs[1].shape[2:], *y["stride"]} == {1} and not any(y["padding"])


@examples(300)
@given(st.data())
def test_pool_of_a_pool(data: st.DataObject) -> None:
    x = data.draw(images())
    inner = data.draw(pools(x, x.rank - 2))
    outer = data.draw(pools(inner, x.rank - 2))
    names = [n for n in check_rewrite(graph_of(outer)) if n in NAMES]
    touch = all(k == s or window == 1 for k, s, window in zip(inner["kernel"], inner["stride"], outer["kernel"],
                                                              strict=True))
    room = all(k * window <= length for k, window, length in zip(inner["kernel"], outer["kernel"], x.shape[2:],
                                                                 strict=True))
    fits = touch and room and divides_by_one_number(inner) and divides_by_one_number(outer) and not any(
        outer["padding"])
    assert names == ([TWICE] if fits else [])


@examples(300)
@given(st.data())
def test_pool_of_a_linear_layer(data: st.DataObject) -> None:
    lead = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    inner, features = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    bias = [leaf("b", features, op="parameter")] if data.draw(st.booleans()) else []
    y = anchor("linear", leaf("x", *lead, inner), leaf("w", features, inner, op="parameter"), *bias)
    if len(lead) == 1 or data.draw(st.booleans()):
        y = make("reshape", y, shape=(data.draw(st.sampled_from(((1,), (1, 1)))) + lead)[-3:] + (features,))
    outer = data.draw(pools(y, data.draw(st.sampled_from([n for n in (y.rank - 2, y.rank - 1) if 1 <= n <= 3]))))
    names = [n for n in check_rewrite(graph_of(outer)) if n in NAMES]
    if not divides_by_one_number(outer) or any(outer["padding"]):
        assert names == []
    elif y.op == "linear" and (outer["kernel"][-1], outer["stride"][-1]) != (1, 1):
        assert names == [LINEAR]


X = leaf("x", 2, 4, 9, 10)
UP = convolution(X, (3, 3), transposed=True)
HALF = leaf("x", 2, 4, 8, 8, dtype="float16")
W, B = leaf("v", 12, 5, op="parameter"), leaf("c", 12, op="parameter")
ROWS = anchor("linear", leaf("r", 3, 6, 5), W, B)
#: A graph for each condition, in which it fails, and the rule that it is of.
KEPT: dict[str, tuple[str, Node]] = {
    "padding that counts for nothing": (OF_POOL, convolution(
        pool(X, (3, 3), padding=(1, 1), include_padding=False), (2, 2))),
    "a window that is cut": (OF_POOL, convolution(pool(X, (2, 2), ceil=True), (2, 2))),
    "a pool that would reach into x from before it": (OF_POOL, convolution(
        pool(X, (3, 3), stride=(2, 2)), (2, 2), padding=(1, 0))),
    "a pool that leaves something of x at its end": (OF_POOL, convolution(pool(X, (2, 2)), (2, 2), padding=(1, 0))),
    "a transposed convolution of a pool": (OF_POOL, convolution(pool(X, (2, 5)), (2, 2), transposed=True)),
    "halves": (OF_POOL, convolution(pool(HALF, (2, 2)), (2, 2))),
    "gaps between windows that a convolution reads": (OF_POOL, convolution(pool(X, (2, 2), stride=(3, 3)), (2, 2))),
    "gaps between windows that a pool reads": (POOL_OF, pool(convolution(X, (2, 2), stride=(3, 3)), (2, 2))),
    "padding around a convolution": (POOL_OF, pool(convolution(X, (3, 3)), (2, 2), padding=(1, 0))),
    "a cut window of a convolution": (POOL_OF, pool(convolution(X, (3, 3)), (2, 3), ceil=True)),
    "a pool of a transposed convolution": (POOL_OF, pool(UP, (2, 2))),
    "a pool of halves": (POOL_OF, pool(convolution(HALF, (3, 3)), (2, 2))),
    "a pool over channels": (POOL_OF, pool(convolution(leaf("x", 2, 4, 9), (3,)), (2, 2))),
    "inner windows that overlap": (TWICE, pool(pool(X, (3, 3), stride=(2, 2)), (2, 2))),
    "inner windows with gaps": (TWICE, pool(pool(X, (2, 2), stride=(3, 3)), (2, 2))),
    "outer padding": (TWICE, pool(pool(X, (2, 2)), (2, 2), padding=(1, 1))),
    "inner windows that are cut": (TWICE, pool(pool(X, (2, 3), ceil=True), (2, 2))),
    "a pool of a pool of halves": (TWICE, pool(pool(HALF, (2, 2)), (2, 2))),
    "features with padding": (LINEAR, pool(ROWS, (4,), padding=(1,))),
    "positions with padding": (LINEAR, pool(ROWS, (2, 3), padding=(1, 0))),
    "positions alone": (LINEAR, pool(ROWS, (2, 1))),
    "positions through a reshape": (LINEAR, pool(make("reshape", ROWS, shape=(3, 3, 2, 12)), (2, 3))),
    "features in other rows": (LINEAR, pool(make("reshape", ROWS, shape=(3, 12, 6)), (3,))),
    "a bias that padding has not": (FIRST, pool(convolution(X, (1, 1)), (2, 2), padding=(1, 1))),
    "a bias that another divisor changes": (FIRST, pool(convolution(X, (1, 1)), (2, 2), divisor=3)),
    "a pointwise convolution to fewer channels": (FIRST, pool(
        convolution(leaf("x", 2, 64, 9, 9), (1, 1), 1), (3, 3), stride=(1, 1), padding=(1, 1), include_padding=False)),
    "a stride": (FIRST, pool(convolution(X, (1, 1), stride=(2, 1)), (2, 2))),
    "a border": (FIRST, pool(convolution(X, (1, 1), padding=(0, 1)), (2, 2))),
    "pointwise halves": (FIRST, pool(convolution(HALF, (1, 1)), (2, 2))),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_does_not_compose(name: str) -> None:
    rule, node = KEPT[name]
    assert rule not in check_rewrite(graph_of(node))


@pytest.mark.parametrize(("rule", "node"), [
    (FIRST, pool(convolution(X, (1, 1), 8), (2, 2))), (FIRST, pool(convolution(X, (1, 1), 8), (2, 2), ceil=True)),
    (FIRST, pool(convolution(X, (1, 1), 8), (3, 3), padding=(1, 1), include_padding=False)),
    (FIRST, pool(convolution(X, (1, 1), 8, bias=False), (3, 3), padding=(1, 1))),
    (FIRST, anchor("adaptive_average_pool", convolution(X, (1, 1), 8), size=(4, 3))),
    (OF_POOL, convolution(anchor("adaptive_average_pool", X, size=(3, 2)), (2, 2))),
    (OF_POOL, convolution(pool(leaf("x", 2, 4, 8, 8), (2, 2)), (3, 3), padding=(1, 1), groups=4)),
    (OF_POOL, convolution(pool(leaf("x", 2, 4, 8, 8), (2, 2), divisor=3), (3, 3), padding=(2, 1))),
    (POOL_OF, pool(convolution(X, (3, 3), padding=(1, 1), dilation=(1, 2)), (2, 3), stride=(1, 2), divisor=5)),
    (TWICE, pool(pool(X, (2, 2), divisor=3), (2, 2))), (TWICE, pool(pool(X, (3, 3), stride=(1, 2)), (1, 1))),
    (LINEAR, pool(make("reshape", ROWS, shape=(3, 6, 1, 12)), (1, 4))), (LINEAR, pool(ROWS, (2, 3), divisor=7)),
], ids=lambda value: value if isinstance(value, str) else "")
def test_what_composes(rule: str, node: Node) -> None:
    assert check_rewrite(graph_of(node))[0] == rule


def test_no_tf32_and_one_rounding_of_the_weight() -> None:
    """What the original's many roundings averaged out: a composed convolution has true float32, and its weight is
    summed in float64."""
    for node in (pool(convolution(X, (3, 3)), (2, 2)), convolution(pool(X, (3, 2)), (2, 2)),
                 pool(convolution(X, (1, 1), 8), (2, 2))):
        (result,) = rewritten(graph_of(node))[0].outputs
        assert result.op == "convolution" and result["exact"] and result.dtype == "float32"
        weight = result.inputs[1]
        if weight.op != "parameter":
            assert weight.op == "cast" and weight.inputs[0].op == "region_sum" and weight.inputs[0].dtype == "float64"


def test_sums_of_many_terms_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager takes a mean of short sums, whose roundings are fewer."""
    monkeypatch.undo()
    for rule, short, long in (
            (POOL_OF, pool(convolution(leaf("x", 2, 3, 9, 9), (3, 3)), (2, 2)), pool(convolution(X, (3, 3)), (2, 2))),
            (OF_POOL, convolution(pool(X, (2, 2)), (3, 3), groups=4), convolution(pool(X, (2, 2)), (3, 3), groups=2)),
            (TWICE, pool(pool(X, (2, 2)), (2, 2)), pool(pool(X, (2, 3)), (2, 3)))):
        assert check_rewrite(graph_of(short)) == [rule] and check_rewrite(graph_of(long)) == []


def test_pools_compose_where_the_roofline_gains() -> None:
    """A pool that another operator reads stays; and taps far apart are no gain."""
    image = leaf("x", 16, 32, 64, 64)
    y = convolution(image, (3, 3), 32, padding=(1, 1))
    alone = engine.rewrite(graph_of(pool(y, (2, 2))), GENERIC_CPU)
    assert [a.rule.name for a in alone.applications] == [POOL_OF] and alone.seconds_after < alone.seconds_before
    shared = engine.rewrite(graph_of(pool(y, (2, 2)), make("relu", y)), GENERIC_CPU)
    assert not {a.rule.name for a in shared.applications} & NAMES
    dense = engine.rewrite(graph_of(convolution(pool(image, (2, 2)), (3, 3), 32)), GENERIC_CPU)
    assert not {a.rule.name for a in dense.applications} & NAMES
    pointwise = engine.rewrite(graph_of(pool(convolution(image, (1, 1), 64), (2, 2))), GENERIC_CPU)
    assert [a.rule.name for a in pointwise.applications] == [FIRST]
    wide = anchor("linear", leaf("x", 512, 1024), leaf("w", 1024, 1024, op="parameter"))
    features = engine.rewrite(graph_of(pool(make("reshape", wide, shape=(512, 1, 1024)), (8,))), GENERIC_CPU)
    assert LINEAR in [a.rule.name for a in features.applications]


@examples(200)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_taps_of_a_composition(kernel: int, step: int, window: int, step_in: int) -> None:
    """Each pair of taps meets once, where its own steps lead."""
    classes, dilation = axis_taps(kernel, step, window, step_in)
    found = sorted((t * dilation, k) for t, runs in enumerate(classes) for start, stop, _ in runs
                   for k in range(start, stop))
    assert found == sorted((k * step + i * step_in, k) for k in range(kernel) for i in range(window))
    weight = torch.randn(1, 1, kernel, dtype=torch.float64)
    assert len(classes) == ((kernel - 1) * step + (window - 1) * step_in) // dilation + 1 and weight.numel() == kernel
