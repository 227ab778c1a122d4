"""DIFFERENTIATE, pointwise operators: their gradients are those of PyTorch's own calls, at kinks, ties and special
points, too."""

from __future__ import annotations

from itertools import product
from math import inf, nan

import pytest
import torch
from adjoint_tools import check
from graph_tools import examples, leaf
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.adjoint.pointwise import _TERMS, STEPS
from kernelwright.ir.node import constant, make

#: Around the places where pointwise functions have kinks, and what no rule may trip over.
POINTS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 6.0, 0.3, -0.7, 1e-30, 25.0, -25.0, 90.0, nan, inf,
          -inf)
#: Numbers that operators take beside tensors.
NUMBERS = {"leaky_relu": (0.01,), "elu": (1.5,), "celu": (0.5,), "softplus": (2.0, 6.0), "threshold": (1.0, 3.0),
           "softshrink": (0.5,), "hardshrink": (0.5,), "clamp_min": (-0.5,), "clamp_max": (0.5,),
           "nan_to_num": (0.0, 1.0, -1.0), "fmod": (0.5,), "remainder": (0.5,)}
OF_TWO = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "fmax", "fmin", "hypot", "prelu", "atan2",
          "logaddexp", "logaddexp2", "xlogy")


@pytest.mark.parametrize("name", [n for n in _TERMS if n not in (*OF_TWO, "where", "copy", *NUMBERS)])
def test_gradients_of_one_tensor(name):
    x = torch.tensor(POINTS, dtype=torch.float64)
    node = make(name, leaf("x", len(POINTS), dtype="float64"))
    check(node, {"x": x}, torch.linspace(0.5, 2.0, len(POINTS), dtype=torch.float64),
          tolerance=1e-7 if name == "hardsigmoid" else 1e-12)  # whose sixth PyTorch has in float32


@pytest.mark.parametrize("name", NUMBERS)
def test_gradients_beside_numbers(name):
    points = (*POINTS, *NUMBERS[name], *(-n for n in NUMBERS[name]))
    node = make(name, leaf("x", len(points), dtype="float64"), *map(constant, NUMBERS[name]))
    check(node, {"x": torch.tensor(points, dtype=torch.float64)},
          torch.linspace(0.5, 2.0, len(points), dtype=torch.float64))


@pytest.mark.parametrize("name", [n for n in OF_TWO if n != "prelu"])
def test_gradients_of_two_tensors(name):
    pairs = torch.tensor(list(product(POINTS, POINTS)), dtype=torch.float64)
    values = {"x": pairs[:, 0].contiguous(), "y": pairs[:, 1].contiguous()}
    node = make(name, *(leaf(n, len(pairs), dtype="float64") for n in "xy"))
    check(node, values, torch.linspace(0.5, 2.0, len(pairs), dtype=torch.float64))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("turned", [False, True])
def test_gradients_beside_a_number(name, turned):
    x = leaf("x", len(POINTS), dtype="float64")
    node = make(name, *((constant(3), x) if turned else (x, constant(3))))
    check(node, {"x": torch.tensor(POINTS, dtype=torch.float64)}, torch.ones(len(POINTS), dtype=torch.float64))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, 2, 3.0, -1.0, 2.5, -2.0])
def test_gradients_of_powers(exponent):
    node = make("pow", leaf("x", len(POINTS), dtype="float64"), constant(exponent))
    check(node, {"x": torch.tensor(POINTS, dtype=torch.float64)}, torch.ones(len(POINTS), dtype=torch.float64))


def test_gradients_of_a_choice():
    condition = torch.arange(len(POINTS)) % 2 == 0
    values = {"c": condition, "x": torch.tensor(POINTS, dtype=torch.float64),
              "y": torch.tensor(POINTS[::-1], dtype=torch.float64)}
    node = make("where", leaf("c", len(POINTS), dtype="bool"), *(leaf(n, len(POINTS), dtype="float64") for n in "xy"))
    check(node, values, torch.tensor(POINTS[::-1], dtype=torch.float64))


@st.composite
def broadcasts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast, empty axes and none among them."""
    shape = draw(st.lists(st.integers(0, 3), min_size=0, max_size=3))
    one, other = ([s if draw(st.booleans()) else 1 for s in shape] for _ in range(2))
    cut = draw(st.integers(0, len(shape)))
    return tuple(one), tuple(other[cut:])


@given(broadcasts(), st.sampled_from([n for n in OF_TWO if n not in ("prelu", "pow", "hypot")]), st.integers(0, 9))
@examples(60)
def test_broadcast_operands_get_sums(shapes, name, seed):
    torch.manual_seed(seed)
    values = {n: torch.randn(shape, dtype=torch.float64) for n, shape in zip("xy", shapes, strict=True)}
    node = make(name, *(leaf(n, *shape, dtype="float64") for n, shape in zip("xy", shapes, strict=True)))
    check(node, values, torch.randn(node.shape, dtype=torch.float64))


def test_gradients_of_prelu():
    x = torch.tensor(POINTS[:-3], dtype=torch.float64).reshape(1, -1, 1).expand(2, -1, 3).contiguous()
    values = {"x": x, "slope": torch.linspace(-1, 1, x.shape[1], dtype=torch.float64).reshape(1, -1, 1)}
    node = make("prelu", leaf("x", *x.shape, dtype="float64"), leaf("slope", 1, x.shape[1], 1, dtype="float64"))
    check(node, values, torch.randn(x.shape, dtype=torch.float64))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gelu_erf", "gelu_tanh", "silu", "sigmoid", "tanh", "exp", "sqrt", "relu", "mish"])
def test_narrow_types_are_rounded_once(name, dtype):
    kind = getattr(torch, dtype)
    torch.manual_seed(0)
    x = torch.rand(257).add(0.1).to(kind)
    node = make(name, leaf("x", 257, dtype=dtype))
    eps = torch.finfo(kind).eps
    check(node, {"x": x}, torch.randn(257).to(kind), tolerance=eps)


def test_mixed_types_are_those_of_the_operands():
    node = make("mul", leaf("x", 4, 3, dtype="float16"), leaf("y", 4, 3, dtype="float32"))
    torch.manual_seed(0)
    check(node, {"x": torch.randn(4, 3).half(), "y": torch.randn(4, 3)}, torch.randn(4, 3), tolerance=1e-3)


def test_every_step_gives_zeros():
    assert set(STEPS) < set(_TERMS)
