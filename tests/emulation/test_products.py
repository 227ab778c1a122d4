"""Products along axes and logarithms of sums in kernels, with eager's values."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from native_tools import Natively, planned

from kernelwright.codegen.generate import TARGETS
from kernelwright.plan.kernels import LoopKernel

G = torch.Generator().manual_seed(11)
X = torch.rand(6, 5, 40, generator=G) + 0.5
LONG = 1 + torch.randn(3, 70000, generator=G) * 1e-3
TALL = 1 + torch.randn(70000, 3, generator=G) * 1e-3
#: Rows with nothing special, a zero, a negative one, an infinity, both of these, and NaN.
SPECIAL = torch.rand(7, 33, generator=G) + 0.5
for _row, _special in enumerate(((), (0.0,), (-0.0,), (inf,), (-inf, -0.0), (nan,), (inf, -1.0))):
    SPECIAL[_row, 3:3 + len(_special)] = torch.tensor(_special)
#: Products of all are usual, those of the first ones are none of float32.
FAR = torch.tensor([1e30] * 10 + [1e-30] * 10).repeat(3, 1)
WHOLE = torch.randint(-3, 4, (9, 6), generator=G)
ZEROS = torch.tensor([0.0, -0.0, 1.0, -1.7, inf, -inf, nan, 1e30, 88.0, -200.0])

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    **{f"axis {axis}": (lambda x, axis=axis: (x * 1.5).prod(axis) - 1, (X,)) for axis in range(3)},
    "all": (lambda x: (x * 1.1).prod() * 2, (X[0],)),
    "kept": (lambda x: x / x.prod(-1, keepdim=True), (X,)),
    "of a product": (lambda x: (x.prod(1) * 2).prod(1) - 1, (X[:, :, :7],)),
    "long rows": (lambda x: (x * 1.0).prod(1) - 1, (LONG,)),
    "long columns": (lambda x: (x * 1.0).prod(0) - 1, (TALL,)),
    "few": (lambda x: (x[..., :3] * 2).prod(-1) - x[..., 0], (X,)),
    "special": (lambda x: (x * 2).prod(1).neg(), (SPECIAL,)),
    "special columns": (lambda x: (x.T * 2).prod(0).neg(), (SPECIAL,)),
    "through what float32 lacks": (lambda x: (x.sort(1)[0] * 2).prod(1) + 1, (FAR,)),
    "into float64": (lambda x: (x * 2).prod(1, dtype=torch.float64) * 2, (SPECIAL,)),
    "of 16 bits": (lambda x: (x.half() * 2).prod(1).float() + 1, (X,)),
    "of bfloat16": (lambda x: (x.bfloat16()[..., :9] * 2).prod(-1).float() + 1, (X,)),
    "of truth values": (lambda x: (x > 0.6).prod(2) * 2 + 1, (X,)),
    "of bytes": (lambda n: (n.to(torch.int8) * 2)[:, :3].prod(1) - 1, (WHOLE,)),
    "of floats from whole numbers": (lambda n: n.float().prod(1) * 2, (WHOLE,)),
    "beside a sum": (lambda x: x.prod(2) + x.sum(2) * x.amax(2), (X,)),
    "windows": (lambda x: x.unfold(2, 4, 2).prod(-1) * 2, (X,)),
    **{f"{name}{' of float64' * wide}": (lambda x, name=name, wide=wide: getattr(torch, name)(
        *((x.double() if wide else x)[:, None], (x.double() if wide else x) * 1)) * 2, (ZEROS,))
       for name in ("logaddexp", "logaddexp2") for wide in (False, True)},
    "truth": (lambda x: (x > 1).any(2).float() + (x > 0.6).all(1).float().mean(), (X,)),
}


@pytest.fixture(scope="module", params=TARGETS)
def natively(request, tmp_path_factory) -> Natively:
    return Natively(CASES, request.param, tmp_path_factory.mktemp("products"))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str, natively: Natively) -> None:
    function, inputs = CASES[name]
    if name.startswith(("long", "through")):  # eager multiplies in float32
        inputs = tuple(i.double() for i in inputs)
    expected = function(*inputs).to((ours := natively(name)[0]).dtype)
    ours = ours.reshape(expected.shape)
    # Eager rounds on the way to what 16 bits hold.
    least = {"of 16 bits": 3e-3, "of bfloat16": 3e-2}.get(name, 2e-5)
    torch.testing.assert_close(ours, expected, equal_nan=True, rtol=least, atol=1e-5)
    assert torch.equal(ours[~expected.isnan()].signbit(), expected[~expected.isnan()].signbit())


@pytest.mark.parametrize("name", CASES)
def test_kernels_multiply(name: str) -> None:
    """Nothing but what is put in order stays with PyTorch."""
    _, plan = planned(*CASES[name])
    kinds = {r.kind for step in plan.kernels if isinstance(step.kernel, LoopKernel) for r in step.kernel.reductions}
    assert ("product" in kinds) == (not name.startswith(("log", "truth", "of truth")))
    assert all("sort" in node.get("target", "sort") for node in plan.kept)
