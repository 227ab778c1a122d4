"""Functions of angles, hyperbolic functions, remainders and what tells numbers from others, from a model to the values
of its kernels on every target: eager's, in float32, float64 and whole numbers, with special values."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from native_tools import Natively

from kernelwright.codegen.generate import TARGETS

G = torch.Generator().manual_seed(3)
EDGES = torch.tensor([0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, -3.0, 7.0, 1e-30, -1e-30, 40.5,
                      -88.0, 1e6, -1e6, 1e30, -1e30])
PAIRS = torch.cartesian_prod(EDGES, EDGES)
X = torch.cat([PAIRS[:, 0], torch.randn(500, generator=G) * 3]).contiguous()
Y = torch.cat([PAIRS[:, 1], torch.randn(500, generator=G) * 3]).contiguous()
# Of quotients beyond 2^24 or so PyTorch's own vectorised remainders are wrong, or NaN.
FAR = (X.isfinite() & (X.abs() > 1e5)) | (Y.isfinite() & ((Y.abs() > 1e5) | ((Y != 0) & (Y.abs() < 0.01))))
NEAR = (torch.where(FAR, 2.75, X), torch.where(FAR, -0.5, Y))
UNIT = torch.rand(500, generator=G)
WHOLE = torch.randint(-200, 200, (400,), generator=G)
BY = torch.cat([torch.tensor([-1, 1, -3, 7]), torch.randint(1, 9, (396,), generator=G)])

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def angles(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ((x * 0.25).tan() * 2, torch.atan2(x, y) + 1, x.atan() * 3, x.asin() + 1, x.acos() * 2,
            torch.deg2rad(x) + 1, torch.rad2deg(x.atan()) * 2)


def hyperbolic(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.clamp(-80, 80).sinh() * 2, x.clamp(-80, 80).cosh() + 1, x.asinh() * 3, x.acosh() + 1, x.atanh() * 2,
            torch.hypot(x, y) + 1)


def remainders(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.fmod(x, y) * 2, torch.remainder(x, y) + 1, x // y * 2, torch.div(x, y, rounding_mode="floor") - 1,
            torch.div(x, y, rounding_mode="trunc") * 2, x % 0.7 + 1, torch.fmod(x, -2.5) * 2, x // 0.3 + 1)


def told_apart(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.isfinite() & (y > 0), x.isinf() | (y > 1), torch.isposinf(x) | (y > 1), torch.isneginf(x) | (y > 1),
            torch.where(x.isfinite(), x * 2, y), x.nan_to_num() * 0.5, torch.nan_to_num(x, 1.5, 3.0, -4.0) + y.abs(),
            torch.copysign(x, y.nan_to_num(1.0)) * 2, torch.copysign(x, -1.0) + 1, torch.fmax(x, y) * 2,
            torch.fmin(x, y) + 1, torch.heaviside(x, y) * 2, x.sgn() * 3, (x * 2).signbit() & (y > 0) & (x == x),
            torch.nansum(x.reshape(-1, 2) * 2, 1))


def made_of_others(x: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.xlogy(u, u.flip(0)) * 2, torch.sinc(u * 9) + 1, torch.logit(u, 1e-3) * 2, torch.lerp(x, x * 2, u) + 1,
            torch.diff(x * 2) + 1, x.roll(3) * 2, torch.slice_scatter(x * 2, u[:5], 0, 3, 8) + 1,
            torch.var_mean(x.reshape(5, 100), 1)[0] * 2, torch.aminmax(x.reshape(5, 100), dim=1).max + 1,
            x.reshape(5, 100).softmax(1, dtype=torch.float64) * 2, torch.fliplr(x.reshape(5, 100)) + 1)


def whole(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x // y + 1, x % y * 2, torch.fmod(x, y) + 1, torch.div(x, y, rounding_mode="trunc") * 2,
            torch.div(x, -7, rounding_mode="trunc") + 1, torch.fmod(x, 5) * 2, x.nan_to_num() + 1,
            torch.count_nonzero(x.reshape(-1, 4) % 3, 1) * 2, torch.tril((x % 5 > 2).reshape(20, 20)) & True)


PAIR, OTHERS = (X, Y), (torch.randn(500, generator=G), UNIT)
CASES: dict[str, Case] = {
    **{f.__name__: (f, PAIR) for f in (angles, hyperbolic, told_apart)},
    **{f"{f.__name__} in float64": (f, (X.double(), Y.double())) for f in (angles, hyperbolic, told_apart)},
    "remainders": (remainders, NEAR),
    "remainders in float64": (remainders, (NEAR[0].double(), NEAR[1].double())),
    "remainders of 16 bits": (lambda x, y: (torch.fmod(x, y) * 2, x // y + 1, x.isfinite() & (y > 0),
                                            x.nan_to_num() * 0.5), (NEAR[0].half(), NEAR[1].half())),
    "made of others": (made_of_others, OTHERS),
    **{f"whole {dtype}": (whole, (WHOLE.to(dtype), BY.to(dtype)))
       for dtype in (torch.int64, torch.int32, torch.int16, torch.int8)},
}


@pytest.fixture(scope="module", params=TARGETS)
def natively(request, tmp_path_factory) -> Natively:
    return Natively(CASES, request.param, tmp_path_factory.mktemp("elementary"))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str, natively: Natively) -> None:
    function, inputs = CASES[name]
    # Long enough that PyTorch takes its vectorised functions throughout, or none.
    expected = torch.utils._pytree.tree_leaves(function(*inputs))
    for number, (ours, wanted) in enumerate(zip(natively(name), expected, strict=True)):
        wanted = wanted.reshape(ours.shape)
        rtol = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3}.get(wanted.dtype, 0)
        torch.testing.assert_close(ours, wanted, rtol=rtol, atol=rtol / 4, equal_nan=True,
                                   msg=lambda text, number=number: f"{name}, result {number}: {text}")
        if wanted.is_floating_point():
            assert torch.equal(ours.signbit() & ~ours.isnan(), wanted.signbit() & ~wanted.isnan()), number
