"""Losses, distances and vector norms as kernels: the values of PyTorch's own functions in float64, and those of special
arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from graph_tools import exact, graph_of, leaf
from test_capture import Of
from test_planner import check_graph, check_model, kinds

from kernelwright.capture.export import capture
from kernelwright.codegen.reference.plan import run_plan, values_of
from kernelwright.ir.node import make
from kernelwright.plan.planner import make_plan

GENERATOR = torch.Generator().manual_seed(3)
X = torch.rand(6, 5, generator=GENERATOR) * 0.98 + 0.01
Y = torch.rand(6, 5, generator=GENERATOR) * 0.98 + 0.01
W = torch.rand(5, generator=GENERATOR) + 0.1

# Of x and y in (0, 1) and the reduction.
ELEMENTWISE: dict[str, Callable] = {
    "mse": lambda x, y, r: F.mse_loss(x, y, reduction=r),
    "l1": lambda x, y, r: F.l1_loss(x, y, reduction=r),
    "smooth_l1": lambda x, y, r: F.smooth_l1_loss(x, y, beta=0.3, reduction=r),
    "smooth_l1_without_beta": lambda x, y, r: F.smooth_l1_loss(x, y, beta=0.0, reduction=r),
    "huber": lambda x, y, r: F.huber_loss(x, y, delta=0.3, reduction=r),
    "kl_div": lambda x, y, r: F.kl_div(x.log(), y, reduction=r),
    "kl_div_of_logarithms": lambda x, y, r: F.kl_div(x, y.log(), reduction=r, log_target=True),
    "probabilities": lambda x, y, r: F.cross_entropy(x, y, reduction=r),
    "smoothed_probabilities": lambda x, y, r: F.cross_entropy(x, y, W.to(x), reduction=r, label_smoothing=0.1),
    "binary": lambda x, y, r: F.binary_cross_entropy(x, y, reduction=r),
    "binary_weighted": lambda x, y, r: F.binary_cross_entropy(x, y, y + 1, reduction=r),
    "logits": lambda x, y, r: F.binary_cross_entropy_with_logits(x - 0.5, y, reduction=r),
    "logits_weighted": lambda x, y, r: F.binary_cross_entropy_with_logits(x, y, y, pos_weight=x[0], reduction=r),
    "hinge": lambda x, y, r: F.hinge_embedding_loss(x, (y - 0.5).sign(), 0.7, reduction=r),
    "ranking": lambda x, y, r: F.margin_ranking_loss(x, y, (y - 0.5).sign(), 0.2, reduction=r),
    "cosine": lambda x, y, r: F.cosine_embedding_loss(x, y, (y[:, 0] - 0.5).sign(), 0.2, reduction=r),
    "cosine_of_one": lambda x, y, r: F.cosine_embedding_loss(x[0], y[0], (y[0, 0] - 0.5).sign(), 0.2, reduction=r),
    "soft_margin": lambda x, y, r: F.soft_margin_loss(x, (y - 0.5).sign(), reduction=r),
    "poisson": lambda x, y, r: F.poisson_nll_loss(x, y * 3, full=True, reduction=r),
    "poisson_of_rates": lambda x, y, r: F.poisson_nll_loss(x, y, log_input=False, reduction=r),
    "triplet": lambda x, y, r: F.triplet_margin_loss(x, y, x * y, reduction=r),
    "triplet_swapped": lambda x, y, r: F.triplet_margin_loss(x, y, y - x, p=1.0, swap=True, reduction=r),
}
ROWS: dict[str, Callable] = {
    **{f"similarity_{d}": lambda x, y, d=d: F.cosine_similarity(x, y, dim=d) for d in (0, 1, -1)},
    "similarity_broadcast": lambda x, y: F.cosine_similarity(x[:, None], y[None], dim=-1),
    "similarity_of_axes_of_one": lambda x, y: F.cosine_similarity(x[:, None], y[None], dim=1),
    "distance": lambda x, y: F.pairwise_distance(x, y),
    "distance_3": lambda x, y: F.pairwise_distance(x, y, p=3.0, keepdim=True),
    "distance_inf": lambda x, y: F.pairwise_distance(x, y, p=inf),
    **{f"norm_{o}": lambda x, y, o=o: torch.linalg.vector_norm(x - y, o, 1, True)
       for o in (1, 2, 3, 0.5, -1, inf, -inf)},
    **{f"norm_of_all_{o}": lambda x, y, o=o: torch.linalg.vector_norm(x - y, o) for o in (1, 2, inf)},
    "norm_by_name": lambda x, y: x / torch.norm(x, p="fro") + torch.norm(y, p=2, dim=0),
    "linalg_norm": lambda x, y: torch.linalg.norm(x, dim=1) * torch.linalg.norm(y),
    "normalize": lambda x, y: F.normalize(x) + F.normalize(y, p=1.0, dim=0),
}


def lowered(function: Callable, *inputs: torch.Tensor) -> list[str]:
    """Check the plan of a function; the kinds of its steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch on kl_div's mean
        return kinds(check_model(Of(lambda m, *x: function(*x)), inputs))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_loss(name: str) -> None:
    steps = lowered(lambda x, y: tuple(ELEMENTWISE[name](x, y, r) for r in ("none", "mean", "sum")), X, Y)
    assert "LoopKernel" in steps


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    assert "LoopKernel" in lowered(ROWS[name], X, Y)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("ignore", [-100, 3])
@pytest.mark.parametrize("shape", [(6, 5), (3, 5, 2, 4), (5,)])
def test_classes(shape: tuple[int, ...], ignore: int, reduction: str) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3
    target = torch.randint(0, 5, (*shape[:1], *shape[2:]) if len(shape) > 1 else (),
                           generator=torch.Generator().manual_seed(2))
    if ignore < 0 and target.dim():
        target.view(-1)[3] = ignore

    def losses(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        options = {"ignore_index": ignore, "reduction": reduction}
        entropies = [F.cross_entropy(x, t, weight, label_smoothing=smoothing, **options)
                     for weight in (None, w) for smoothing in (0.0, 0.2)]
        return *entropies, F.nll_loss(x, t, **options), F.nll_loss(x, t, w, **options)

    steps = lowered(losses, x, target, W)
    assert "class_entry" in steps and "LoopKernel" in steps


def test_all_ignored_is_nan() -> None:
    lowered(lambda x, t: F.cross_entropy(x, t), torch.randn(3, 4), torch.full((3,), -100))


SPECIAL = torch.tensor([0.0, 1.0, nan, inf, -inf, 0.5, -0.0, 1e-30, 2.0, -1.0])


@pytest.mark.parametrize("name", ["mse", "l1", "smooth_l1", "huber", "kl_div_of_logarithms", "hinge", "ranking",
                                  "soft_margin", "logits", "poisson_of_rates"])
def test_special_values(name: str) -> None:
    x, y = (t.reshape(-1).contiguous() for t in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    lowered(lambda x, y: ELEMENTWISE[name](x, y, "none"), x, y)


def test_limits_of_logarithms() -> None:
    """0 log 0 is 0, and logarithms of a binary loss end at -100."""
    x = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5, 1e-40])
    y = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    lowered(lambda x, y: F.binary_cross_entropy(x, y, reduction="none"), x, y)
    lowered(lambda x, y: F.kl_div(x, y, reduction="none"), x, y)


def test_a_norm_fuses_with_its_quotient() -> None:
    plan = check_model(Of(lambda m, x: x / x.norm(dim=1, keepdim=True)), (torch.rand(70, 33),))
    assert kinds(plan) == ["LoopKernel"]


def test_a_loss_keeps_its_call() -> None:
    """Where it is left to PyTorch it is one call, as the user wrote it."""
    graph = capture(Of(lambda m, x, y: F.huber_loss(x, y, delta=0.5)), (X, Y))
    (node,) = graph.outputs
    plan = make_plan(graph, graph, {node: "kept"})
    assert kinds(plan) == ["huber_loss"]
    assert node.operator.code(["x", "y"], node) == 'F.huber_loss(x, y, reduction="mean", delta=0.5)'
    found, _ = run_plan(plan, {i["name"]: v for i, v in zip(graph.inputs, (X, Y), strict=True)})
    assert torch.allclose(found[0], F.huber_loss(X.double(), Y.double(), delta=0.5))


@pytest.mark.parametrize("loss", [F.soft_margin_loss, F.huber_loss, F.mse_loss])
def test_a_loss_of_two_types_stays_as_written(loss: Callable) -> None:
    graph = capture(Of(lambda m, x, y: loss(x, y) + 1), (X.bfloat16(), Y))
    assert "opaque" in {n.op for n in graph.nodes()}


def test_counts_stay_with_torch() -> None:
    x = leaf("x", 4, 5)
    graph = graph_of(make("vector_norm", x, ord=0.0, axes=(1,), keepdim=False))
    assert kinds(check_graph(graph)) == ["vector_norm"]


def test_the_target_must_be_a_class() -> None:
    """As in PyTorch: nothing is read beyond the classes."""
    x, t = leaf("x", 3, 4), leaf("t", 3, dtype="int64")
    graph = graph_of(make("nll_loss", x, t, optionals=(), reduction="sum", ignore=-100))
    plan = make_plan(graph, graph_of())
    values = {"x": torch.rand(3, 4, dtype=torch.float64), "t": torch.tensor([0, 3, 4])}
    with pytest.raises((RuntimeError, IndexError)):
        run_plan(plan, values)
    values["t"] = torch.tensor([0, 3, -100])
    assert torch.allclose(run_plan(plan, values)[0][0], exact(graph.outputs, values)[0])


#: Of zeros each of these divides by, or takes the logarithm of, what keeps that from zero where the type can hold it.
GUARDED = {
    "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=-1),
    "poisson": lambda x: F.poisson_nll_loss(x, x + 1, log_input=False, reduction="none"),
    "normalized": lambda x: F.normalize(x, dim=-1) * 2,
    "clamped": lambda x: 1 / x.clamp_min(1e-8),
    "distance": lambda x: 1 / F.pairwise_distance(x, x, eps=1e-9),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", GUARDED)
def test_a_guard_that_the_type_takes_for_zero_is_none(name, dtype):
    """1e-8 is zero in float16: what eager makes infinite, or no number, kernels make so, too."""
    x = torch.zeros(2, 3, dtype=dtype)
    model = Of(lambda m, x: GUARDED[name](x))
    graph = capture(model, [x])
    plan = make_plan(graph, graph, {})
    assert plan.kernels
    (found,), _ = run_plan(plan, values_of(model, graph, [x]))
    eager = model(x).double()
    assert torch.equal(found.isnan(), eager.isnan()) and torch.equal(found.isinf(), eager.isinf())
