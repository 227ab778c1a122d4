"""Products of batches in plans: which are found, with what around them, that permutations are no copies, which stay
with the library, and that plans give what models give."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from graph_tools import assert_same, eager, examples, run_plan
from hypothesis import given
from hypothesis import strategies as st
from test_planner import Of, check_order

from kernelwright.algebra.engine import rewrite
from kernelwright.capture.export import capture
from kernelwright.codegen.reference.plan import filled, values_of
from kernelwright.ir.graph import Graph
from kernelwright.plan.describe import meaning
from kernelwright.plan.kernels import Attention, BatchedProduct
from kernelwright.plan.lowering.fused import FUSED, fused
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelStep, Plan, TorchStep, Unrolled
from kernelwright.roofline.devices import H200


def drawn(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def agrees(plan: Plan, graph: Graph, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """A plan gives what the model gives in float64."""
    check_order(plan)
    double = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    expected, _ = eager(deepcopy(model).double(), double)
    with torch.no_grad():
        found, _ = run_plan(plan, values_of(deepcopy(model).double(), graph, double))
    assert_same(filled(plan.graph.structure, found), expected, 1e-9)


def batched(plan: Plan) -> list[KernelStep]:
    return [s for s in plan.kernels if isinstance(s.kernel, BatchedProduct)]


def copying(plan: Plan) -> list[str]:
    """The operators that PyTorch computes, and kernels that only copy."""
    return [s.node.op for s in plan.steps if isinstance(s, TorchStep) and s.node.kind not in ("view", "leaf")] + [
        s.name for s in plan.kernels if s.copies]


def planned(function: Callable, inputs: tuple[torch.Tensor, ...], *, rewritten: bool = False) -> Plan:
    """The plan of a function of (module, inputs...), with batched products, which gives what the function gives: so do
    the plan without them, and the one in which each was left for being slower."""
    model = Of(function).eval()
    graph = capture(model, inputs)
    final = rewrite(graph, H200).graph if rewritten else graph
    plan = make_plan(final, graph, fused_products=FUSED)
    agrees(plan, graph, model, inputs)
    assert not batched(make_plan(final, graph))
    left: dict = {}
    for step in batched(plan):
        assert step.kernel.input_dtypes == tuple(n.dtype for n in step.inputs)
        assert step.rolls == (len(step.covers) > 1)
        assert all(isinstance(reason, Unrolled) == step.rolls for reason in step.left("slower").values())
        left |= step.left("slower")
    if left:
        again = make_plan(final, graph, left, fused_products=FUSED)
        assert not batched(again)
        agrees(again, graph, model, inputs)
        assert set(left) <= fused(final, {}, FUSED) and not set(left) & fused(final, left, FUSED)
    return plan


B, L, H, D, N = 16, 32, 8, 16, 12  # batch, length, heads, elements, states


def heads(*sizes: int) -> tuple[torch.Tensor, ...]:
    return drawn(*((B, L, H, size) for size in sizes))


def chunks(m, x, a, b, c):
    """A state-space model in chunks, as its authors write it out."""
    x, b, c = (t.unflatten(1, (2, L // 2)) for t in (x, b, c))
    sums = a.unflatten(1, (2, L // 2)).permute(0, 3, 1, 2).cumsum(-1)

    def between(s):
        mask = torch.ones(s.shape[-1], s.shape[-1], dtype=torch.bool).tril()
        return (s[..., :, None] - s[..., None, :]).masked_fill(~mask, -torch.inf).exp()

    near = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, between(sums), x)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, (sums[..., -1:] - sums).exp(), x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    states = torch.einsum("bhzc,bchpn->bzhpn", between(F.pad(sums[..., -1], (1, 0))), states)[:, :-1]
    return (near + torch.einsum("bclhn,bchpn,bhcl->bclhp", c, states, sums.exp())).flatten(1, 2)


# name: (function, inputs, rows x columns x depth of each product with its groups, operators that it does the work of)
FOUND: dict[str, tuple[Callable, tuple[torch.Tensor, ...], list[tuple], list[set[str]]]] = {
    "heads between": (lambda m, x, y: x.transpose(1, 2) @ y.permute(0, 2, 3, 1), heads(D, D),
                      [(B * H, L, L, D)], [{"matmul"}]),
    "an einsum": (lambda m, x, y: torch.einsum("blhn,blhp->bhpn", x, y), heads(N, D), [(B * H, N, D, L)], [{"matmul"}]),
    "the result's order": (lambda m, x, y: (x.transpose(1, 2) @ y).transpose(1, 2).flatten(2),
                           (*heads(D), *drawn((B, H, D, N))), [(B * H, L, N, D)], [{"matmul"}]),
    "a decay": (lambda m, x, y, a: torch.einsum("blhn,bhl,blhp->bhpn", x, (a[..., -1:] - a).exp(), y),
                (*heads(N, D), *drawn((B, H, L))), [(B * H, N, D, L)], [{"matmul", "mul", "exp", "sub"}]),
    "an epilogue": (lambda m, x, y, z: F.relu(torch.bmm(x, y) * 0.3 + z), drawn((64, 40, 8), (64, 8, 40), (64, 40, 40)),
                    [(64, 40, 40, 8)], [{"matmul", "mul", "add", "relu"}]),
    "a padded operand": (lambda m, x, y: torch.bmm(F.pad(x, (1, 0)), y), drawn((128, 32, 15), (128, 16, 32)),
                         [(128, 32, 32, 16)], [{"matmul", "pad"}]),
    "two that are added": (lambda m, x, y, z: x.transpose(1, 2) @ y + z.transpose(1, 2) @ y,
                           (heads(D)[0], drawn((B, H, D, N))[0], heads(D)[0] + 1),
                           [(B * H, L, N, D)] * 2, [{"matmul", "add"}, {"matmul"}]),
}

@pytest.mark.parametrize("name", FOUND)
def test_products_are_found_with_what_stands_around_them(name):
    function, inputs, sizes, covers = FOUND[name]
    plan = planned(function, inputs)
    found = batched(plan)
    assert sorted((s.kernel.groups, *s.kernel.sizes) for s in found) in (
        sorted(sizes), sorted((g, n, m, k) for g, m, n, k in sizes))
    assert sorted(sorted({n.op for n in s.covers}) for s in found) == sorted(map(sorted, covers))
    assert not copying(plan), plan.steps
    assert all("which are read where they lie" in meaning(step) for step in found)


def test_a_state_space_model_is_kernels_alone():
    """All of its products, with decays, masks and sums; what is left are two masks of truth values, made once."""
    inputs = (*heads(D), drawn((B, L, H))[0] * 0.3, *heads(N, N))
    plan = planned(chunks, inputs, rewritten=True)
    assert len(batched(plan)) == 3 and sum(isinstance(s.kernel, Attention) for s in plan.kernels) <= 1
    left = [s.node for s in plan.steps if isinstance(s, TorchStep) and s.node.kind not in ("view", "leaf")]
    assert all(n.dtype == "bool" for n in left), left
    assert not any(s.copies for s in plan.kernels)
    last = plan.kernels[-1]
    assert isinstance(last.kernel, BatchedProduct) and {n.op for n in last.covers} >= {"matmul", "mul", "add", "exp"}


def test_states_alone_are_two_kernels_of_products():
    def states(m, x, a, b):
        x, b = (t.unflatten(1, (2, L // 2)) for t in (x, b))
        sums = a.unflatten(1, (2, L // 2)).permute(0, 3, 1, 2).cumsum(-1)
        made = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, (sums[..., -1:] - sums).exp(), x)
        return torch.einsum("bhc,bchpn->bhpn", (sums[..., -1:].sum(-2) - sums[..., -1]).exp(), made)

    x, a, b = drawn((6 * B, L, H, D), (6 * B, L, H), (6 * B, L, H, N))
    plan = planned(states, (x, a * 0.3, b), rewritten=True)
    assert [s.kernel.sizes for s in batched(plan)] == [(D, N, L // 2), (1, N * D, 2)] and copying(plan) == ["sum"]


LEFT: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {
    "nothing around": (lambda m, x, y: torch.bmm(x, y), drawn((256, 32, 16), (256, 16, 32))),
    "a transposed operand, which the library takes": (lambda m, x, y: torch.bmm(x, y.mT), drawn(*[(256, 32, 16)] * 2)),
    "long sums": (lambda m, x, y: x.transpose(1, 2) @ y.permute(0, 2, 3, 1), drawn(*[(4, 16, 8, 300)] * 2)),
    "few products": (lambda m, x, y: x.transpose(1, 2) @ y.permute(0, 2, 3, 1), drawn(*[(2, 128, 4, 64)] * 2)),
    "much arithmetic": (lambda m, x, y: x.transpose(1, 2) @ y.permute(0, 2, 3, 1), drawn(*[(8, 192, 4, 192)] * 2)),
    "little of everything": (lambda m, x, y: x.transpose(1, 2) @ y.permute(0, 2, 3, 1), drawn(*[(8, 8, 8, 8)] * 2)),
    "a weight": (lambda m, x, w: F.linear(x.transpose(1, 2), w), (*heads(D), *drawn((N, D)))),
    "a vector": (lambda m, x, v: x.transpose(1, 2) @ v, (*heads(D), *drawn((D,)))),
    "no sum": (lambda m, x, y: torch.einsum("blhn,blhp->blhnp", x, y), heads(N, D)),
    "float64": (lambda m, x, y: x.transpose(1, 2) @ y.permute(0, 2, 3, 1), tuple(x.double() for x in heads(D, D))),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_stay_as_they_were(name):
    function, inputs = LEFT[name]
    model = Of(function).eval()
    graph = capture(model, inputs)
    plan, plain = (make_plan(graph, graph, fused_products=fuses) for fuses in (FUSED, ()))
    assert plan.steps == plain.steps and not batched(plan)


def test_results_that_several_read_are_stored_once():
    def twice(m, x, y):
        product = x.transpose(1, 2) @ y
        return product * 2, product.exp()

    plan = planned(twice, (*heads(D), *drawn((B, H, D, N))))
    (step,) = batched(plan)
    assert [n.op for n in step.covers] == ["matmul"]


def test_what_the_caller_gets_is_stored():
    """A sum that is returned ends its kernel, and what follows is another one's."""
    def shown(m, x, y):
        product = x.transpose(1, 2) @ y
        return product, F.silu(product)

    plan = planned(shown, (*heads(D), *drawn((B, H, D, N))))
    (step,) = batched(plan)
    assert step.outputs == (plan.results[0],)


def test_an_operand_that_others_read_is_stored_and_read():
    def shared(m, x, y):
        operand = torch.sigmoid(x)
        return operand.transpose(1, 2) @ y, operand * 2

    plan = planned(shared, (*heads(D), *drawn((B, H, D, N))))
    (step,) = batched(plan)
    assert [n.op for n in step.covers] == ["matmul"]


def test_sixteen_bits():
    inputs = tuple(x.to(torch.bfloat16).repeat(4, 1, 1, 1) for x in heads(N, D))
    graph = capture(Of(lambda m, x, y: torch.einsum("blhn,blhp->bhpn", x * 0.5, y)).eval(), inputs)
    (step,) = batched(make_plan(graph, graph, fused_products=FUSED))
    assert step.kernel.input_dtypes == ("bfloat16", "bfloat16") and step.kernel.output_dtypes == ("bfloat16",)


@st.composite
def products(draw: st.DrawFn) -> tuple[Callable, tuple[torch.Tensor, ...]]:
    """A product whose operands and result lie in drawn orders, some with a factor."""
    sizes = dict(zip("bghmnk", (draw(st.integers(2, 5)), draw(st.integers(1, 4)), draw(st.integers(8, 10)),
                                *(draw(st.integers(3, 40)) for _ in range(3))), strict=True))
    terms = ["".join(draw(st.permutations(letters))) for letters in ("bghmk", "bghkn", "bghmn")]
    equation = f"{terms[0]},{terms[1]}->{terms[2]}"
    inputs = drawn(*([sizes[c] for c in term] for term in terms))
    scaled, added, joined = (draw(st.booleans()) for _ in range(3))

    def function(m, x, y, z):
        x = x * torch.sigmoid(x[..., :1]) if scaled else x
        found = torch.einsum(equation, x, y)
        found = torch.tanh(found + z) * 2 if added else found
        return found.flatten(0, 2) if joined else found

    return function, inputs


@examples(40)
@given(products())
def test_products_in_any_order_of_axes(drawn_product):
    function, inputs = drawn_product
    plan = planned(function, inputs)
    assert not any(s.copies for s in plan.kernels) or not batched(plan)
