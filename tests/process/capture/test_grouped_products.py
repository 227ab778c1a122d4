"""Grouped products, as layers of experts use them: traced in every type, in float64 beside eager, and served around."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from reported.case import Case
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelwright.capture.tracing import traceable
from kernelwright.fuzz.product import make
from kernelwright.ir.grouped import grouped_products

#: Shapes of both factors and the ends of groups.
FORMS = {"rows": ((10, 16), (3, 16, 8), (3, 3, 10)), "rows left over": ((10, 16), (3, 16, 8), (2, 5, 9)),
         "columns": ((3, 5, 16), (16, 24), (8, 8, 24)), "depth": ((5, 16), (16, 8), (4, 4, 16)),
         "batches": ((3, 5, 16), (3, 16, 8), None)}
TYPES = (torch.float32, torch.float16, torch.bfloat16)


def _given(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    a, b, ends = FORMS[name]
    torch.manual_seed(0)
    return (torch.randn(a).to(dtype), torch.randn(b).to(dtype),
            None if ends is None else torch.tensor(ends, dtype=torch.int32))


@pytest.mark.parametrize("name", FORMS)
def test_in_float64_they_are_pytorch_s(name: str):
    a, b, offs = _given(name, torch.float32)
    found, expected = grouped_products(a.double(), b.double(), offs), F.grouped_mm(a, b, offs=offs)
    assert found.dtype is torch.float64 and found.shape == expected.shape
    rows = 9 if name == "rows left over" else found.shape[0]
    torch.testing.assert_close(found[:rows], expected[:rows].double(), rtol=1e-5, atol=1e-5)
    assert not found[rows:].any()


@pytest.mark.parametrize(("name", "dtype", "columns"), list(itertools.product(FORMS, TYPES, (8, 7))))
def test_a_trace_has_the_shapes_and_strides_of_calls(name: str, dtype: torch.dtype, columns: int):
    a, b, offs = _given(name, dtype)
    if columns == 7 and name in ("columns", "depth"):  # rows of b would be no multiples of 16 bytes
        return
    b = b if columns == 8 else b.transpose(-1, -2).contiguous()[..., :7, :].transpose(-1, -2)
    real = F.grouped_mm(a, b, offs=offs)
    with traceable(), FakeTensorMode() as mode:
        shown = F.grouped_mm(*(mode.from_tensor(t) for t in (a, b)), offs=None if offs is None else
                             mode.from_tensor(offs))
    assert (shown.shape, shown.stride(), shown.dtype) == (real.shape, real.stride(), real.dtype)


_EXPERTS = """\
ends = counts.cumsum(0).to(torch.int32)
h = F.silu(F.grouped_mm(x * 2, self.a.transpose(1, 2), offs=ends)) + 1
return F.pad(h, (0, 1)), h.sum(0)"""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_around_them_is_served(dtype: str, tmp_path: Path):
    """Rows of 7 elements stand 8 apart in what PyTorch gives."""
    case = Case(0, "x, counts", _EXPERTS, f"torch.randn(10, 16, dtype=torch.{dtype}), torch.tensor([3, 0, 7])",
                members=f"self.a = nn.Parameter(torch.randn(3, 7, 16, dtype=torch.{dtype}))")
    path = tmp_path / "experts.py"
    path.write_text(case.text())
    made = make(path)
    assert not made.differences() and made.runs_kernels()
    assert not any("stays with PyTorch" in note for note in made.notes), made.notes
