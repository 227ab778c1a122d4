"""Contractions that become kernels: which are taken, what joins them, and that plans mean what their graphs mean."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plan_tools import Of, contractions, kinds, narrow_plan, planned
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.ir.node import make
from kernelwright.plan.contraction.products import MOST_REDUCED, as_product, can_contract
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Apply, Load
from kernelwright.plan.kernels import LoopKernel
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# One kernel for an anchor and what follows it -----------------------------------------------------

ONE = {
    "linear": (lambda m, x: F.relu(m.a(x)) * 2, {"a": nn.Linear(12, 7)}, (5, 12)),
    "linear without bias": (lambda m, x: m.a(x), {"a": nn.Linear(12, 7, bias=False)}, (5, 12)),
    "rows of two axes": (lambda m, x: F.gelu(m.a(x)), {"a": nn.Linear(6, 5)}, (2, 3, 6)),
    "rows of three axes, residual": (lambda m, x: m.a(x) + x, {"a": nn.Linear(6, 6)}, (2, 3, 4, 6)),
    "one row": (lambda m, x: torch.tanh(m.a(x)), {"a": nn.Linear(6, 5)}, (6,)),
    "rows from a slice": (lambda m, x: m.a(x[:, 1:4]), {"a": nn.Linear(6, 5)}, (3, 5, 6)),
    "rows from a transposed tensor": (lambda m, x: m.a(x.transpose(0, 1)) - 1, {"a": nn.Linear(6, 5)}, (3, 4, 6)),
    "channels that are not contiguous": (lambda m, x: m.a(x.mT), {"a": nn.Linear(6, 5)}, (6, 4)),
    "transposed result": (lambda m, x: torch.exp(m.a(x).transpose(1, 2)), {"a": nn.Linear(6, 5)}, (2, 4, 6)),
    "result as heads": (lambda m, x: torch.relu(m.a(x).view(2, 4, 3, 2)), {"a": nn.Linear(5, 6)}, (2, 4, 5)),
    "two results": (lambda m, x: (torch.relu(m.a(x)), m.a(x)), {"a": nn.Linear(6, 5)}, (4, 6)),
    "flipped result": (lambda m, x: torch.relu(m.a(x).flip(1)), {"a": nn.Linear(6, 5)}, (4, 6)),
    "prologue": (lambda m, x: m.a(F.silu(x) * 3), {"a": nn.Linear(6, 5)}, (4, 6)),
    "a computed weight": (lambda m, x: F.linear(x, m.w * 2, m.b), {"w": torch.randn(5, 6), "b": torch.randn(5)},
                          (4, 6)),
    "a broadcast operand": (lambda m, x: m.a(x) * m.s, {"a": nn.Linear(6, 5), "s": torch.randn(4, 1)}, (4, 6)),
    "a comparison": (lambda m, x: m.a(x) > 0.1, {"a": nn.Linear(6, 5)}, (4, 6)),
    "matmul": (lambda m, x: (x @ m.w).abs(), {"w": torch.randn(6, 5)}, (4, 6)),
    "matmul from the left": (lambda m, x: m.w @ x + 1, {"w": torch.randn(3, 6)}, (2, 6, 5)),
    "matrix and vector": (lambda m, x: x @ m.w, {"w": torch.randn(6)}, (3, 4, 6)),
    "vector and matrix": (lambda m, x: m.w @ x, {"w": torch.randn(6)}, (6, 5)),
    "dot product": (lambda m, x: x @ m.w, {"w": torch.randn(6)}, (6,)),
    "batched": (lambda m, x: torch.sigmoid(torch.bmm(x, m.w)), {"w": torch.randn(3, 6, 5)}, (3, 4, 6)),
    "batches of two axes": (lambda m, x: x @ m.w, {"w": torch.randn(2, 3, 6, 5)}, (2, 3, 4, 6)),
    "both transposed": (lambda m, x: x.mT @ m.w.mT, {"w": torch.randn(5, 6)}, (6, 4)),
    "einsum": (lambda m, x: torch.einsum("bik,bjk->bij", x, m.w) * 0.5, {"w": torch.randn(3, 5, 6)}, (3, 4, 6)),
    "einsum of several axes": (lambda m, x: torch.einsum("bijl,lk->bijk", x, m.w), {"w": torch.randn(6, 5)},
                               (2, 3, 4, 6)),
    "addmm": (lambda m, x: torch.addmm(m.b, x, m.w, alpha=2.0), {"b": torch.randn(5), "w": torch.randn(6, 5)}, (4, 6)),
    "conv1d": (lambda m, x: torch.relu(m.a(x)), {"a": nn.Conv1d(4, 6, 3, padding=1)}, (2, 4, 9)),
    "conv2d": (lambda m, x: m.a(x).clamp(min=0.1) * m.s, {"a": nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, dilation=2),
                                                         "s": torch.randn(6, 1, 1)}, (2, 4, 9, 8)),
    "conv3d": (lambda m, x: m.a(x) / 2, {"a": nn.Conv3d(4, 6, (1, 3, 2), groups=2)}, (2, 4, 3, 5, 4)),
    "unbatched": (lambda m, x: m.a(x) / 2, {"a": nn.Conv2d(4, 6, 3)}, (4, 5, 6)),
    "residual": (lambda m, x: F.relu(m.a(x) + x), {"a": nn.Conv2d(4, 4, 3, padding=1)}, (2, 4, 6, 5)),
    "depthwise": (lambda m, x: F.hardswish(m.a(x)), {"a": nn.Conv2d(4, 4, 3, padding=1, groups=4)}, (2, 4, 6, 5)),
    "transposed convolution": (lambda m, x: m.a(x) * 0.3 - 1, {
        "a": nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)}, (2, 4, 5, 4)),
    "transposed 3-D": (lambda m, x: F.mish(m.a(x)), {"a": nn.ConvTranspose3d(3, 2, 3, stride=3, dilation=2)},
                       (2, 3, 2, 3, 2)),
    "patches": (lambda m, x: m.a(x).flatten(2).transpose(1, 2) + m.p,
                {"a": nn.Conv2d(3, 8, 2, stride=2), "p": torch.randn(1, 6, 8)}, (2, 3, 4, 6)),
    "windows of one": (lambda m, x: F.relu(m.a(x)), {"a": nn.Conv2d(4, 6, 1)}, (2, 4, 5, 6)),
    "rolled": (lambda m, x: m.a(x.roll(2, 3) * 2), {"a": nn.Conv2d(4, 6, 3)}, (2, 4, 5, 6)),
    "padded": (lambda m, x: m.a(F.pad(x, (1, 0, 2, 0))), {"a": nn.Conv2d(4, 6, 3)}, (2, 4, 5, 6)),
    "channels of two tensors": (lambda m, x: m.a(torch.cat([x, x * 2], 1)), {"a": nn.Conv2d(8, 6, 3)}, (2, 4, 5, 6)),
}


@pytest.mark.parametrize("name", ONE)
def test_one_kernel(name):
    function, parts, shape = ONE[name]
    plan = planned(Of(function, **parts), (torch.randn(shape),))
    assert kinds(plan).count("Contraction") == 1
    work = [k for k in kinds(plan) if k not in ("Contraction", "reshape", "permute")]
    assert not work or name == "two results", kinds(plan)


def test_rows_stand_together_where_nothing_moves_them():
    plan = planned(Of(lambda m, x: F.gelu(m.a(x) + x), a=nn.Linear(6, 6)), (torch.randn(2, 3, 4, 6),))
    (kernel,) = contractions(plan)
    assert (kernel.batch, kernel.axes) == (24, ())
    plan = planned(Of(lambda m, x: m.a(x.transpose(0, 1)), a=nn.Linear(6, 5)), (torch.randn(3, 4, 6),))
    (kernel,) = contractions(plan)
    assert (kernel.batch, [a.out_size for a in kernel.axes]) == (4, [3])


def test_space_without_windows_is_one_axis():
    plan = planned(Of(lambda m, x: m.a(x), a=nn.Conv3d(4, 6, 1)), (torch.randn(2, 4, 3, 5, 6),))
    (kernel,) = contractions(plan)
    assert (kernel.batch, [a.out_size for a in kernel.axes]) == (2, [90])


# Programs -----------------------------------------------------------------------------------------


def test_softmax_after_a_batched_product():
    model = Of(lambda m, q, k: torch.softmax(q @ k.mT * 0.25, -1))
    plan = planned(model, (torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)), reduces=False)
    assert kinds(plan) == ["Contraction", "LoopKernel"]
    assert len(contractions(plan)[0].stores) == 1


def test_attention():
    def forward(m, x):
        q, k, v = m.a(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return m.b((torch.softmax(q @ k.mT * 0.5, -1) @ v).transpose(1, 2).reshape(2, 5, 8)) + x

    plan = planned(Of(forward, a=nn.Linear(8, 24), b=nn.Linear(8, 8)), (torch.randn(2, 5, 8),))
    assert kinds(plan).count("Contraction") == 4 and "matmul" not in kinds(plan) and "linear" not in kinds(plan)


def test_batches_that_broadcast():
    plan = planned(Of(lambda m, x: x @ m.w, w=torch.randn(2, 1, 6, 5)), (torch.randn(3, 4, 6),))
    assert kinds(plan).count("Contraction") == 1 and "matmul" not in kinds(plan)


def test_shared_weights():
    layer = nn.Linear(6, 6)
    plan = planned(Of(lambda m, x: m.a(torch.relu(m.a(x))) + m.a(x * 2), a=layer), (torch.randn(4, 6),))
    assert kinds(plan) == ["Contraction"] * 3


def test_training_batch_norm_after_a_convolution():
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 4, 3, padding=1))
    plan = planned(model, (torch.randn(4, 3, 6, 6),))
    first, second = contractions(plan)
    assert not any(isinstance(s.expression, type(first.left)) for s in first.stores)  # no bias: the norm takes it away
    assert len(second.input_dtypes) > 3  # the norm and the relu are computed where the second packs its operand


def test_network():
    def forward(m, x):
        y = F.max_pool2d(F.relu(m.n(m.a(x))), 2)
        y = F.relu(m.b(y) + y)
        return F.log_softmax(m.d(F.relu(m.c(y).flatten(1))), 1)

    model = Of(forward, a=nn.Conv2d(3, 4, 3, padding=1), n=nn.BatchNorm2d(4), b=nn.Conv2d(4, 4, 3, padding=1),
               c=nn.ConvTranspose2d(4, 2, 2, stride=2), d=nn.Linear(128, 10)).eval()
    plan = planned(model, (torch.randn(2, 3, 8, 8),))
    assert kinds(plan).count("Contraction") == 4
    assert not {"convolution", "linear"} & set(kinds(plan))


@pytest.mark.parametrize("scheme", ["fp16x3", "float32"])
def test_dear_operands_are_computed_once(scheme):
    def forward(m, x):
        y = torch.lgamma(x.abs() + 1) * torch.erf(x) + torch.tanh(torch.sin(x) * torch.cos(x) + torch.exp(-x * x))
        return m.a(F.gelu(y))

    plan = planned(Of(forward, a=nn.Conv2d(4, 6, 3)), (torch.randn(2, 4, 20, 20),), scheme)
    assert kinds(plan)[-2:] == ["LoopKernel", "Contraction"] if scheme == "float32" else \
        kinds(plan)[-1] == "Contraction"


def test_chains_end_in_the_epilogue():
    plan = planned(Of(lambda m, x: m.b(F.gelu(m.a(x))), a=nn.Linear(6, 6), b=nn.Linear(6, 5)), (torch.randn(4, 6),))
    first, second = contractions(plan)
    assert isinstance(second.left, Load) and not isinstance(first.stores[0].expression, Load)
    plan = planned(Of(lambda m, x: F.max_pool2d(F.relu(m.a(x)), 3), a=nn.Conv2d(4, 6, 3)), (torch.randn(2, 4, 8, 8),))
    assert [s.expression.function for s in contractions(plan)[0].stores] == ["relu"]
    # Sums that somebody else needs are stored, and what follows is computed where it is read.
    plan = planned(Of(lambda m, x: m.b(torch.relu(m.a(x))) + m.a(x).mean(), a=nn.Linear(6, 6), b=nn.Linear(6, 5)),
                   (torch.randn(4, 6),))
    assert len(contractions(plan)[0].stores) == 1 and isinstance(contractions(plan)[1].left, Apply)
    # A norm's statistics need the sums first.
    plan = planned(Of(lambda m, x: m.b(F.layer_norm(m.a(x), (6,))), a=nn.Linear(6, 6), b=nn.Linear(6, 5)),
                   (torch.randn(4, 6),), reduces=False)
    assert kinds(plan) == ["Contraction", "LoopKernel", "Contraction"]


def test_results_that_do_not_live_on_the_output_stand_apart():
    plan = planned(Of(lambda m, x: torch.relu(m.a(x)) + torch.relu(m.a(x)).mT, a=nn.Linear(6, 6)),
                   (torch.randn(6, 6),))
    assert kinds(plan) == ["Contraction", "LoopKernel"]
    plan = planned(Of(lambda m, x: m.a(x).tril() * 2, a=nn.Linear(6, 6)), (torch.randn(6, 6),))
    assert kinds(plan)[0] == "Contraction" and len(kinds(plan)) > 1
    plan = planned(Of(lambda m, x: F.pad(m.a(x), (1, 1)) * 2, a=nn.Linear(6, 6)), (torch.randn(6, 6),))
    assert kinds(plan)[0] == "Contraction" and len(kinds(plan)) > 1
    plan = planned(Of(lambda m, x: m.a(x)[:, None] * x[:, :, None], a=nn.Linear(6, 6)), (torch.randn(4, 6),))
    assert kinds(plan) == ["Contraction", "LoopKernel"]


def test_wider_types_stay_outside():
    plan = planned(Of(lambda m, x: m.a(x).double() * 0.1, a=nn.Linear(6, 6)), (torch.randn(4, 6),))
    assert kinds(plan)[0] == "Contraction" and len(kinds(plan)) == 2
    plan = planned(Of(lambda m, x, i: m.a(x) * i, a=nn.Linear(6, 6)), (torch.randn(4, 6), torch.arange(6)))
    assert kinds(plan)[0] == "Contraction" and len(kinds(plan)) == 2


# Reductions of output channels --------------------------------------------------------------------


def image(channels: int = 6, **options: Any) -> nn.Module:
    return nn.Conv2d(4, channels, 3, padding=1, **options)


SOFTMAX, IMAGE, ROWS = ["max", "sum"], (2, 4, 6, 5), (4, 7)
# By name: the function, its parts, its input, the reductions of its kernels, and how many results each stores.
REDUCED = {
    "softmax of a product": (lambda m, x: torch.softmax(m.a(x), -1), {"a": nn.Linear(7, 6)}, ROWS, SOFTMAX, 1),
    "log-softmax": (lambda m, x: F.log_softmax(m.a(x) * 2, -1), {"a": nn.Linear(7, 6)}, ROWS, SOFTMAX, 1),
    "softmax of a batched product": (lambda m, x: torch.softmax(x @ x.mT * 0.25, -1), {}, (2, 3, 5, 8), SOFTMAX, 1),
    "softmax of channels": (lambda m, x: torch.softmax(m.a(x), 1), {"a": image()}, IMAGE, SOFTMAX, 1),
    "softmax of channels that were moved": (lambda m, x: torch.softmax(m.a(x).permute(0, 2, 3, 1).relu(), -1) * 2,
                                            {"a": image()}, IMAGE, SOFTMAX, 1),
    "softmax and greatest": (lambda m, x: (torch.softmax(m.a(x), 1), m.a(x).amax(1)), {"a": image()}, IMAGE, SOFTMAX,
                             2),
    "log-sum-exp": (lambda m, x: torch.logsumexp(m.a(x).clamp(-1, 1), 1, keepdim=True), {"a": image()}, IMAGE,
                    ["logsumexp"], 1),
    "minimum, then pointwise": (lambda m, x: torch.tanh(m.a(x).amin(1, keepdim=True)) * m.s,
                                {"a": image(), "s": torch.randn(6, 5)}, IMAGE, ["min"], 1),
    "mean of a transposed convolution": (lambda m, x: F.gelu(m.a(x)).mean(1), {
        "a": nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)}, IMAGE, ["sum"], 1),
    "sum of bare sums": (lambda m, x: m.a(x).sum(1), {"a": image(bias=False)}, IMAGE, ["sum"], 1),
    "variance": (lambda m, x: m.a(x).relu().var(1), {"a": image()}, IMAGE, ["moments"], 1),
    "length": (lambda m, x: F.normalize(m.a(x), dim=1), {"a": image()}, IMAGE, ["sum"], 1),
    "layer norm": (lambda m, x: F.gelu(m.n(m.a(x))), {"a": nn.Linear(7, 6), "n": nn.LayerNorm(6)}, (2, *ROWS),
                   ["moments"], 1),
    "norm of channels, residual": (lambda m, x: m.n((m.a(x) + x).permute(0, 2, 3, 1)),
                                   {"a": image(4), "n": nn.LayerNorm(4)}, IMAGE, ["moments"], 1),
    "groups": (lambda m, x: m.a(x).view(2, 2, 3, 6, 5).amax(2), {"a": image(groups=2)}, IMAGE, ["max"], 1),
    "flipped, transposed": (lambda m, x: m.a(x).flip(0, 1).mT.exp().sum(0), {"a": nn.Linear(7, 6)}, ROWS, ["sum"], 1),
    "two axes of channels": (lambda m, x: m.a(x).view(4, 3, 2).amin((1, 2)), {"a": nn.Linear(7, 6)}, ROWS, ["min"], 1),
    "the sums as well": (lambda m, x: (m.a(x), m.a(x).amax(-1)), {"a": nn.Linear(7, 6)}, ROWS, ["max"], 2),
    "the chain as well": (lambda m, x: (m.a(x).relu(), m.a(x).relu().sum(-1)), {"a": nn.Linear(7, 6)}, ROWS, ["sum"],
                          2),
}


@pytest.mark.parametrize("name", REDUCED)
def test_reductions_of_channels_join(name):
    function, parts, shape, reductions, stores = REDUCED[name]
    plan = planned(Of(function, **deepcopy(parts)), (torch.randn(shape),))
    (kernel,) = contractions(plan)
    assert {k for k in kinds(plan) if k not in ("reshape", "permute")} == {"Contraction"} and len(plan.kernels) == 1
    assert [r.kind for r in kernel.reductions] == reductions and len(kernel.stores) == stores
    plan = planned(Of(function, **deepcopy(parts)), (torch.randn(shape),), reduces=False)
    assert not any(c.reductions for c in contractions(plan)) and len(plan.steps) > 1


def test_what_is_no_reduction_of_all_channels_stands_apart():
    for function, shape in ((lambda y: y.amax((0, 2)), (2, 4, 3, 5)), (lambda y: y.amax((1, 2)), IMAGE),
                            (lambda y: y.view(2, 3, 2, 30).amax(2), IMAGE), (lambda y: y.max(1)[1], IMAGE),
                            (lambda y: y[:, 1:].amax(1), IMAGE), (lambda y: F.pad(y, (1, 1)).amax(1), IMAGE),
                            (lambda y: F.batch_norm(y, None, None, training=True), IMAGE)):
        plan = planned(Of(lambda m, x, f=function: f(m.a(x)), a=image()), (torch.randn(shape),))
        assert not contractions(plan)[0].reductions and len(plan.steps) > 1
    for channels, joins in ((MOST_REDUCED, True), (MOST_REDUCED + 1, False)):
        plan = planned(Of(lambda m, x: m.a(x).amax(-1), a=nn.Linear(3, channels)), (torch.randn(2, 3),))
        assert bool(contractions(plan)[0].reductions) == joins


def test_a_result_of_a_reduction_that_reads_a_channel_stands_apart():
    plan = planned(Of(lambda m, x: m.a(x).amax(1) + m.a(x)[:, 0], a=image()), (torch.randn(IMAGE),))
    assert kinds(plan) == ["Contraction", "LoopKernel"] and len(contractions(plan)[0].stores) == 2


def test_what_follows_reductions_is_stored_at_its_end():
    plan = planned(Of(lambda m, x: F.max_pool2d(torch.softmax(m.a(x), 1), 2, 1), a=image()), (torch.randn(IMAGE),))
    (kernel,) = contractions(plan)
    assert kinds(plan)[:2] == ["Contraction", "LoopKernel"] and len(kernel.stores) == 1 and len(kernel.reductions) == 2
    plan = planned(Of(lambda m, x: torch.softmax(x @ x.mT, -1) @ x), (torch.randn(2, 5, 8),))
    first, second = contractions(plan)
    assert kinds(plan) == ["Contraction"] * 2 and isinstance(second.left, Load) and len(first.reductions) == 2
    plan = planned(Of(lambda m, x: m.a(x).amin(1, keepdim=True).sum(2), a=image()), (torch.randn(IMAGE),))
    assert kinds(plan) == ["Contraction", "sum"] and len(contractions(plan)[0].stores) == 1


def test_reductions_of_one_contraction_that_another_joins():
    def forward(m, x):
        first, second = m.a(x), m.b(x)
        return torch.softmax(first, 1) * second.amax(1, keepdim=True) + (first + second).logsumexp(1, keepdim=True)

    plan = planned(Of(forward, a=image(), b=image()), (torch.randn(IMAGE),))
    assert sum(bool(k.reductions) for k in contractions(plan)) == 2


# Types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_operands_are_read_as_they_lie(dtype):
    name = str(dtype).removeprefix("torch.")
    (kernel,) = contractions(narrow_plan(lambda m, x: F.gelu(m.a(x) + x), dtype, (4, 6), a=nn.Linear(6, 6)))
    assert set(kernel.input_dtypes) == set(kernel.output_dtypes) == {name} and kernel.scheme == "native"
    (kernel,) = contractions(narrow_plan(lambda m, x: torch.softmax(m.a(x), -1), dtype, (4, 6), a=nn.Linear(6, 6)))
    assert len(kernel.reductions) == 2 and kernel.output_dtypes == (name,)
    plan = narrow_plan(lambda m, x: m.a((x.float() * 2).to(dtype)), dtype, (4, 6), a=nn.Linear(6, 6))
    assert set(contractions(plan)[0].input_dtypes) == {name}
    model = Of(lambda m, x: m.a(x.to(dtype)), a=nn.Linear(6, 6).to(dtype))
    graph = capture(model, (torch.randn(4, 6),))
    plan = make_plan(graph, graph, contractions={n: KernelConfig("native") for n in graph.nodes() if can_contract(n)})
    assert kinds(plan) == ["cast", "Contraction"]  # the conversion is stored: rows are packed from one type
    assert set(contractions(plan)[0].input_dtypes) == {name}


def leaf(name: str, *shape: int, dtype: str = "float32"):
    return make("input", name=name, shape=shape, dtype=dtype)


def test_what_no_record_holds_is_not_taken():
    assert not can_contract(make("matmul", leaf("a", 3, 4, dtype="float64"), leaf("b", 4, 5, dtype="float64")))
    assert not can_contract(make("matmul", leaf("a", 0, 4), leaf("b", 4, 5)))
    assert not can_contract(make("contract", leaf("a", 3, 4), leaf("b", 3, 4), equation="ab,ab->ab"))
    assert not can_contract(make("contract", leaf("a", 3, 4), leaf("b", 4, 5), equation="ab,bc->c"))
    assert not can_contract(make("relu", leaf("a", 3, 4)))
    assert can_contract(make("contract", leaf("a", 3, 4, 2), leaf("b", 4, 5, 2), equation="abd,bcd->acd"))


def test_a_kept_contraction_stays():
    graph = capture(nn.Linear(6, 5), (torch.randn(4, 6),))
    (node,) = (n for n in graph.nodes() if n.op == "linear")
    plan = make_plan(graph, graph, {node: "a reason"}, contractions={node: KernelConfig("fp16x3")})
    assert not plan.kernels and not plan.contractions
    plan = make_plan(graph, graph, contractions={node: KernelConfig("fp16x3")})
    assert plan.contractions == {node: KernelConfig("fp16x3")}


def test_products_have_the_shape_of_what_they_replace():
    for first, second in (((3,), (3,)), ((3,), (4, 3, 2)), ((4, 1, 5, 3), (2, 3, 6)), ((5, 3), (2, 2, 3, 1))):
        node = make("matmul", leaf("a", *first), leaf("b", *second))
        assert as_product(node).shape == node.shape


def test_loops_around_a_contraction_keep_their_kernels():
    plan = planned(Of(lambda m, x: torch.softmax(m.a(F.layer_norm(x, (6,))), -1), a=nn.Linear(6, 6)),
                   (torch.randn(2, 4, 6),), reduces=False)
    assert kinds(plan) == ["LoopKernel", "Contraction", "LoopKernel"]
    assert all(isinstance(s.kernel, (LoopKernel, Contraction)) for s in plan.kernels)
