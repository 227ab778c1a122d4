"""DIFFERENTIATE, operators that move, sum, normalise and multiply: their gradients are those of PyTorch's own calls."""

from __future__ import annotations

from math import inf

import pytest
import torch
from adjoint_tools import check
from graph_tools import examples, leaf
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelwright.adjoint.graph import gradients
from kernelwright.adjoint.table import NoAdjoint
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, constant, make


def shapes(draw: st.DrawFn, low: int, high: int, most: int = 4, least: int = 1) -> tuple[int, ...]:
    return tuple(draw(st.integers(least, most)) for _ in range(draw(st.integers(low, high))))


def axes_in(draw: st.DrawFn, rank: int) -> tuple[int, ...]:
    return tuple(sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=rank))))


def of(name: str, *shape: int, dtype: str = "float64") -> Node:
    return leaf(name, *shape, dtype=dtype)


def tried(node: Node, seed: int, tolerance: float = 1e-10, ties: bool = False) -> None:
    """On normal values; ``ties``: on few whole numbers. A name that starts with "positive" holds positive ones."""
    generator = torch.Generator().manual_seed(seed)

    def value(shape: tuple[int, ...]) -> torch.Tensor:
        if ties:
            return torch.randint(-1, 2, shape, generator=generator).double()
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    values = {i["name"]: value(i.shape).abs() + 0.5 if i["name"].startswith("positive") else value(i.shape)
              for i in node.inputs if i.op != "constant"}
    check(node, values, torch.randn(node.shape, generator=generator, dtype=torch.float64), tolerance)


@st.composite
def moves(draw: st.DrawFn) -> Node:
    shape = shapes(draw, 1, 4)
    x, rank = of("x", *shape), len(shape)
    axis = draw(st.integers(0, rank - 1))
    kind = draw(st.sampled_from(("reshape", "permute", "expand", "flip", "slice", "concatenate", "pad", "roll",
                                 "upsample_nearest", "triangle", "cumsum", "cast")))
    match kind:
        case "reshape":
            return make(kind, x, shape=(x.size,))
        case "permute":
            return make(kind, x, axes=tuple(draw(st.permutations(range(rank)))))
        case "expand":
            small = of("x", *(1 if draw(st.booleans()) else s for s in shape))
            return make(kind, small, shape=(*shapes(draw, 0, 1), *shape))
        case "flip":
            return make(kind, x, axes=axes_in(draw, rank))
        case "slice":
            x = of("x", *shape[:axis], draw(st.integers(1, 9)), *shape[axis + 1:])
            start = draw(st.integers(0, x.shape[axis] - 1))
            return make(kind, x, axis=axis, start=start, stop=draw(st.integers(start, x.shape[axis])),
                        step=draw(st.integers(1, 4)))
        case "concatenate":
            other = of("y", *(draw(st.integers(1, 3)) if a == axis else s for a, s in enumerate(shape)))
            return make(kind, x, other, axis=axis)
        case "pad":
            amounts = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in shape)
            return make(kind, x, amounts=amounts, value=1.5)
        case "roll":
            axes = axes_in(draw, rank)
            return make(kind, x, shifts=tuple(draw(st.integers(-2, 2)) for _ in axes), axes=axes)
        case "upsample_nearest":
            x = of("x", 2, 3, *shapes(draw, 1, 2, 3))
            return make(kind, x, factors=tuple(draw(st.integers(1, 3)) for _ in x.shape[2:]))
        case "triangle":
            square = of("x", *shapes(draw, 2, 3))
            return make(kind, square, lower=draw(st.booleans()), diagonal=draw(st.integers(-2, 2)))
        case "cumsum":
            return make(kind, x, axis=axis)
        case _:
            return make(kind, x, to="float32", shape=shape, dtype="float32")


@given(moves(), st.integers(0, 9))
@examples(150)
def test_moves(node, seed):
    tried(node, seed, 1e-6 if node.op == "cast" else 1e-12)


@st.composite
def reductions(draw: st.DrawFn) -> Node:
    x = of("x", *shapes(draw, 1, 4))
    kind = draw(st.sampled_from(("sum", "mean", "amax", "amin", "logsumexp", "var", "std", "softmax", "log_softmax",
                                 "vector_norm")))
    axes, keepdim = axes_in(draw, x.rank), draw(st.booleans())
    if kind in ("softmax", "log_softmax"):
        return make(kind, x, axis=axes[0])
    if kind in ("var", "std"):
        node = make(kind, x, axes=axes, keepdim=keepdim, correction=draw(st.integers(0, 1)))
        assume(x.size // max(1, node.size) > 1)
        return node
    if kind == "vector_norm":
        return make(kind, x, axes=axes, keepdim=keepdim, ord=draw(st.sampled_from((1.0, 2.0))))
    return make(kind, x, axes=axes, keepdim=keepdim)


@given(reductions(), st.integers(0, 9), st.booleans())
@examples(200)
def test_reductions(node, seed, ties):
    tried(node, seed, ties=ties)


@pytest.mark.parametrize("op", ["std", "vector_norm"])
def test_a_root_of_zero_has_no_slope(op):
    more = {"correction": 1} if op == "std" else {"ord": 2.0}
    check(make(op, of("x", 2, 5), axes=(1,), keepdim=False, **more), {"x": torch.zeros(2, 5, dtype=torch.float64)},
          torch.ones(2, dtype=torch.float64))


def test_a_sum_of_exponentials_beside_infinity():
    x = torch.tensor([[0.0, -inf], [-inf, 2.0], [1.0, 3.0]], dtype=torch.float64)
    check(make("logsumexp", of("x", 3, 2), axes=(1,), keepdim=False), {"x": x}, torch.ones(3, dtype=torch.float64))


@st.composite
def norms(draw: st.DrawFn) -> Node:
    kind = draw(st.sampled_from(("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm_training",
                                 "batch_norm_inference")))
    eps = draw(st.sampled_from((1e-5, 0.3)))
    if kind in ("layer_norm", "rms_norm"):
        x = of("x", *shapes(draw, 1, 4, least=2))
        axes = draw(st.integers(1, x.rank))
        count = draw(st.integers(0, 1 if kind == "rms_norm" else 2))
        extras = [of(n, *x.shape[x.rank - axes:]) for n in "wb"[:count]]
        affine = bool(count) if kind == "rms_norm" else ("none", "weight", "both")[count]
        return make(kind, x, *extras, axes=axes, eps=eps, affine=affine)
    groups, inner = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    x = of("x", draw(st.integers(2, 3)), groups * inner, *shapes(draw, 1, 2, least=2))
    extras = [of(n, groups * inner) for n in "wb"] if draw(st.booleans()) else []
    more = {"batch_norm_training": {"momentum": 0.1, "running": None}, "group_norm": {"groups": groups}}.get(kind, {})
    fixed = [of("m", x.shape[1]), of("positive", x.shape[1])] if kind == "batch_norm_inference" else []
    return make(kind, x, *fixed, *extras, eps=eps, affine=bool(extras), **more)


@given(norms(), st.integers(0, 9))
@examples(120)
def test_norms(node, seed):
    if node.op != "batch_norm_inference":
        return tried(node, seed)
    statistics = {i["name"]: (torch.randn(i.shape, dtype=torch.float64).abs() + 0.5) for i in node.inputs[1:3]}
    x, _, _, *rest = node.inputs
    fixed = [make("buffer", name=n["name"], shape=n.shape, dtype=n.dtype) for n in node.inputs[1:3]]
    turned = make(node.op, x, *fixed, *rest, **dict(node.attributes))
    generator = torch.Generator().manual_seed(seed)
    values = {i["name"]: torch.randn(i.shape, generator=generator, dtype=torch.float64) for i in (x, *rest)}
    check(turned, values | statistics, torch.randn(node.shape, generator=generator, dtype=torch.float64), 1e-10)
    return None


@st.composite
def products(draw: st.DrawFn) -> Node:
    kind = draw(st.sampled_from(("linear", "matmul", "contract")))
    rows, depth, columns = (draw(st.integers(1, 4)) for _ in range(3))
    if kind == "linear":
        extras = [of("b", columns)] if draw(st.booleans()) else []
        return make(kind, of("x", *shapes(draw, 0, 2), depth), of("w", columns, depth), *extras)
    if kind == "matmul":
        batch = shapes(draw, 0, 2)
        some = tuple(s if draw(st.booleans()) else 1 for s in batch)
        left = (depth,) if draw(st.booleans()) and draw(st.booleans()) else (*batch, rows, depth)
        right = (depth,) if draw(st.booleans()) and draw(st.booleans()) else \
            (*some[draw(st.integers(0, len(some))):], depth, columns)
        return make(kind, of("x", *left), of("y", *right))
    return make(kind, of("x", rows, depth, 2), of("y", depth, columns, 2),
                equation=draw(st.sampled_from(("abi,bci->aci", "abi,bci->ac", "abi,bci->cai"))))


@given(products(), st.integers(0, 9))
@examples(120)
def test_products(node, seed):
    tried(node, seed)


@st.composite
def windows(draw: st.DrawFn) -> Node:
    rank = draw(st.integers(1, 3))

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    kind = draw(st.sampled_from(("convolution", "max_pool", "average_pool", "adaptive_average_pool")))
    size, kernel, stride = per_axis(3, 6), per_axis(1, 3), per_axis(1, 3)
    if kind == "convolution":
        groups, inner, outer, transposed = draw(st.integers(1, 2)), 2, 1, draw(st.booleans())
        weight = (groups * inner, outer, *kernel) if transposed else (groups * outer, inner, *kernel)
        extras = [of("b", groups * outer)] if draw(st.booleans()) else []
        return make(kind, of("x", 2, groups * inner, *size), of("w", *weight), *extras, stride=stride,
                    padding=per_axis(0, 1) if not transposed else (0,) * rank, dilation=(1,) * rank, groups=groups,
                    transposed=transposed, output_padding=(0,) * rank)
    x = of("x", 2, 2, *size)
    if kind == "adaptive_average_pool":
        small = tuple(draw(st.sampled_from([d for d in range(1, s + 1) if s % d == 0])) for s in size)
        return make(kind, x, size=small)
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    common = {"kernel": kernel, "stride": stride, "padding": padding, "ceil": draw(st.booleans())}
    if kind == "max_pool":
        return make(kind, x, **common, dilation=(1,) * rank)
    return make(kind, x, **common, include_padding=draw(st.booleans()), divisor=None)


@given(windows(), st.integers(0, 9), st.booleans())
@examples(100)
def test_windows(node, seed, ties):
    tried(node, seed, ties=ties and node.op == "max_pool")


@st.composite
def regions(draw: st.DrawFn) -> Node:
    x = of("x", *shapes(draw, 2, 3, 6, least=2))

    def progressions(size: int) -> tuple[tuple[int, int, int], ...]:
        return tuple((start, draw(st.integers(start, size)), draw(st.integers(1, 3)))
                     for start in [draw(st.integers(0, size)) for _ in range(draw(st.integers(1, 2)))])

    classes = tuple(tuple(progressions(s) for _ in range(draw(st.integers(1, 3)))) if draw(st.booleans()) else None
                    for s in x.shape)
    return make("region_sum", x, classes=classes, scale=draw(st.sampled_from((1.0, 0.25))), dtype="float64")


@given(regions(), st.integers(0, 9))
@examples(80)
def test_sums_over_regions(node, seed):
    tried(node, seed)


# Losses: at the places where they bend, too -----------------------------------------------------------------------

OF_VALUES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", OF_VALUES)
def test_losses_of_values(name, reduction):
    more = {"smooth_l1_loss": {"beta": 0.5}, "huber_loss": {"delta": 0.5}}.get(name, {})
    x = torch.tensor([0.0, 0.5, -0.5, 1.0, 0.25, -3.0, 2.0], dtype=torch.float64)
    node = make(name, of("x", 7), of("y", 7), reduction=reduction, **more)
    check(node, {"x": x, "y": torch.zeros(7, dtype=torch.float64)}, torch.ones(node.shape, dtype=torch.float64))


@pytest.mark.parametrize("optionals", [(), ("weight",), ("pos_weight",), ("weight", "pos_weight")])
def test_loss_of_logits(optionals):
    x = torch.tensor([0.0, 0.5, -0.5, 40.0, -40.0, 3.0], dtype=torch.float64)
    t = torch.tensor([0.0, 1.0, 0.3, 1.0, 0.0, 0.0], dtype=torch.float64)
    fixed = [make("buffer", name=n, shape=(6,), dtype="float64") for n in optionals]
    target = make("buffer", name="t", shape=(6,), dtype="float64")
    node = make("binary_cross_entropy_with_logits", of("x", 6), target, *fixed, optionals=optionals, reduction="mean")
    values = {n: torch.linspace(0.5, 2.0, 6, dtype=torch.float64) for n in optionals}
    check(node, {"x": x, "t": t, **values}, torch.tensor(2.0, dtype=torch.float64))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["cross_entropy_loss", "nll_loss"])
def test_losses_of_classes(name, weighted, reduction):
    torch.manual_seed(0)
    more = {"smoothing": 0.0} if name == "cross_entropy_loss" else {}
    optionals = ("weight",) if weighted else ()
    fixed = [make("buffer", name=n, shape=(5,), dtype="float64") for n in optionals]
    target = leaf("t", 4, 3, dtype="int64")
    node = make(name, of("x", 4, 5, 3), target, *fixed, optionals=optionals, reduction=reduction, ignore=2, **more)
    values = {"x": torch.randn(4, 5, 3, dtype=torch.float64), "t": torch.randint(0, 5, (4, 3)),
              "weight": torch.rand(5, dtype=torch.float64)}
    check(node, values, torch.randn(node.shape, dtype=torch.float64))


# Graphs -------------------------------------------------------------------------------------------------------------


def test_a_value_that_is_read_twice_gets_both_gradients():
    x = of("x", 3)
    node = make("mul", make("exp", x), make("add", x, constant(1.0)))
    found = gradients(Graph((x,), (node, x), (0, 1), (), True), (0, 1), {0})
    assert found.gives == (0,) and found.of == (0, 1)
    from kernelwright.ir.evaluate import evaluate
    values = {"x": torch.randn(3, dtype=torch.float64), **{i["name"]: torch.ones(3, dtype=torch.float64)
                                                          for i in found.graph.inputs[1:] if i is not None}}
    own, = evaluate(found.graph.outputs, values)
    v = values["x"].clone().requires_grad_()
    torch.autograd.backward([v.exp() * (v + 1), v.view_as(v)], [torch.ones(3).double()] * 2)
    torch.testing.assert_close(own, v.grad)


def test_what_is_not_reached_gets_none():
    x, y = of("x", 3), of("y", 3)
    found = gradients(Graph((x, y), (make("exp", x), make("sin", y)), (0, 1), (), True), (0,), {0, 1})
    assert found.gives == (0,)


def test_an_operator_without_a_rule_is_named():
    x = of("x", 3)
    with pytest.raises(NoAdjoint, match="erfcx has no backward of kernels"):
        gradients(Graph((x,), (make("erfcx", x),), (0,), (), True), (0,), {0})
    with pytest.raises(NoAdjoint, match="no input and no parameter is reached"):
        gradients(Graph((x,), (make("cast", make("gt", x, constant(0.0)), to="float64", shape=(3,), dtype="float64"),),
                        (0,), (), True), (0,), {0})


@pytest.mark.parametrize("kernel, size", [((2,), (9,)), ((2, 3), (4, 7)), ((2, 1, 2), (5, 2, 4))])
def test_windows_side_by_side_have_one_greatest_element_each(kernel, size):
    """The first of equal ones, and the last NaN; what no window has gets no gradient."""
    rank = len(kernel)
    shape = (2, 3, *(n // k for n, k in zip(size, kernel, strict=True)))
    node = make("max_pool", of("x", 2, 3, *size), kernel=kernel, stride=kernel, padding=(0,) * rank,
                dilation=(1,) * rank, ceil=False)
    generator = torch.Generator().manual_seed(rank)
    x = torch.randint(-1, 2, (2, 3, *size), generator=generator).double()
    x[1][torch.rand(x[1].shape, generator=generator) < 0.3] = torch.nan
    x[0, 0] = -torch.inf
    check(node, {"x": x}, torch.randn(shape, generator=generator, dtype=torch.float64))
