"""Losses as whole operators; ``reduction`` is "none", "mean" or "sum". Kernels compute their formulas (see
:mod:`kernelwright.plan.lowering.losses`); kept, they stay the torch call that the user wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from kernelwright.ir.registry import declare

REDUCTIONS = ("none", "mean", "sum")
"""Names of torch's numbers 0, 1, 2."""


def kl_div(x: torch.Tensor, target: torch.Tensor, *, reduction: str, log_target: bool) -> torch.Tensor:
    """t (log t - x), with 0 where t = 0; exp(t) (t - x) where the target is given as a logarithm."""
    return torch.kl_div(x, target, REDUCTIONS.index(reduction), log_target=log_target)


def poisson_nll(x: torch.Tensor, target: torch.Tensor, *, reduction: str, log_input: bool, full: bool,
                eps: float) -> torch.Tensor:
    """exp(x) - t x, or x - t log(x + eps); ``full`` adds Stirling's term for t > 1."""
    return torch.poisson_nll_loss(x, target, log_input, full, eps, REDUCTIONS.index(reduction))


def optional(names: tuple[str, ...], rest: tuple) -> dict[str, Any]:
    """The optional inputs by name; ``names`` tells which are there."""
    return dict(zip(names, rest, strict=True))


def cross_entropy(x: torch.Tensor, target: torch.Tensor, *rest: torch.Tensor, optionals: tuple[str, ...],
                  reduction: str, ignore: int, smoothing: float) -> torch.Tensor:
    """-log softmax(x)[target] over axis 1 (0 of a vector); the target holds classes, or their probabilities."""
    return F.cross_entropy(x, target, **optional(optionals, rest), reduction=reduction, ignore_index=ignore,
                           label_smoothing=smoothing)


def nll(x: torch.Tensor, target: torch.Tensor, *rest: torch.Tensor, optionals: tuple[str, ...], reduction: str,
        ignore: int) -> torch.Tensor:
    """-x[target] over axis 1 (0 of a vector), weighted by class."""
    return F.nll_loss(x, target, **optional(optionals, rest), reduction=reduction, ignore_index=ignore)


def class_entry(x: torch.Tensor, target: torch.Tensor, *, axis: int, ignore: int) -> torch.Tensor:
    """x at the class that the target names along ``axis``; at class 0 where the target is ``ignore``."""
    return torch.gather(x, axis, torch.where(target == ignore, 0, target).unsqueeze(axis)).squeeze(axis)


def class_weight(weight: torch.Tensor, target: torch.Tensor, *, ignore: int) -> torch.Tensor:
    """The weight of the class that the target names; of class 0 where it is ``ignore``."""
    return torch.take(weight, torch.where(target == ignore, 0, target))


def binary_cross_entropy(x: torch.Tensor, target: torch.Tensor, *rest: torch.Tensor, optionals: tuple[str, ...],
                         reduction: str) -> torch.Tensor:
    """-(t log x + (1 - t) log(1 - x)), logarithms not below -100."""
    return F.binary_cross_entropy(x, target, **optional(optionals, rest), reduction=reduction)


def binary_cross_entropy_with_logits(x: torch.Tensor, target: torch.Tensor, *rest: torch.Tensor,
                                     optionals: tuple[str, ...], reduction: str) -> torch.Tensor:
    """The same of sigmoid(x), without its rounding; ``pos_weight`` multiplies the part of t = 1."""
    return F.binary_cross_entropy_with_logits(x, target, **optional(optionals, rest), reduction=reduction)


def _named(inputs: list[str], node: Any, plain: int) -> list[str]:
    pairs = zip(node.get("optionals", ()), inputs[plain:], strict=True)
    return [*inputs[:plain], *(f"{name}={text}" for name, text in pairs)]


def _code(function: str, plain: int, keywords: tuple[tuple[str, str], ...]) -> Callable[[list[str], Any], str]:
    """The text of a torch call: ``keywords`` are its names and the attributes that they take."""
    def code(inputs: list[str], node: Any) -> str:
        given = [f'{name}="{node[attribute]}"' if isinstance(node[attribute], str) else f"{name}={node[attribute]!r}"
                 for name, attribute in keywords]
        return f"{function}({', '.join([*_named(inputs, node, plain), *given])})"

    return code


def _declare(name: str, reference: Callable[..., Any], function: str, keywords: str = "reduction", *, plain: int = 2,
             cost: int = 4) -> None:
    """``keywords``: words of the torch call, or word=attribute."""
    pairs = tuple((word.split("=")[0], word.split("=")[-1]) for word in keywords.split())
    declare(name, "loss", reference, _code(function, plain, pairs),
            operations=lambda node: cost * max(i.size for i in node.inputs))


_declare("mse_loss", F.mse_loss, "F.mse_loss", cost=3)
_declare("l1_loss", F.l1_loss, "F.l1_loss", cost=3)
_declare("smooth_l1_loss", F.smooth_l1_loss, "F.smooth_l1_loss", "reduction beta", cost=6)
_declare("huber_loss", F.huber_loss, "F.huber_loss", "reduction delta", cost=6)
_declare("kl_div", kl_div, "F.kl_div", "reduction log_target", cost=16)
_declare("cross_entropy_loss", cross_entropy, "F.cross_entropy",
         "reduction ignore_index=ignore label_smoothing=smoothing", cost=14)
_declare("nll_loss", nll, "F.nll_loss", "reduction ignore_index=ignore", cost=1)
_declare("binary_cross_entropy", binary_cross_entropy, "F.binary_cross_entropy", cost=32)
_declare("binary_cross_entropy_with_logits", binary_cross_entropy_with_logits, "F.binary_cross_entropy_with_logits",
         cost=36)
_declare("hinge_embedding_loss", F.hinge_embedding_loss, "F.hinge_embedding_loss", "margin reduction", cost=6)
_declare("margin_ranking_loss", F.margin_ranking_loss, "F.margin_ranking_loss", "margin reduction", plain=3, cost=5)
_declare("cosine_embedding_loss", F.cosine_embedding_loss, "F.cosine_embedding_loss", "margin reduction", plain=3,
         cost=6)
_declare("soft_margin_loss", F.soft_margin_loss, "F.soft_margin_loss", cost=28)
_declare("poisson_nll_loss", poisson_nll, "F.poisson_nll_loss", "reduction log_input full eps", cost=14)
_declare("triplet_margin_loss", F.triplet_margin_loss, "F.triplet_margin_loss", "margin p eps swap reduction", plain=3,
         cost=6)
_declare("cosine_similarity", lambda x, y, *, axis, eps: F.cosine_similarity(x, y, axis, eps), "F.cosine_similarity",
         "dim=axis eps", cost=6)
_declare("pairwise_distance", F.pairwise_distance, "F.pairwise_distance", "p eps keepdim", cost=4)


declare("class_entry", "loss", class_entry,
        lambda i, node: f"torch.gather({i[0]}, {node['axis']}, torch.where({i[1]} == {node['ignore']}, 0, {i[1]})"
                        f".unsqueeze({node['axis']})).squeeze({node['axis']})", operations=lambda node: node.size)
declare("class_weight", "loss", class_weight,
        lambda i, node: f"torch.take({i[0]}, torch.where({i[1]} == {node['ignore']}, 0, {i[1]}))",
        operations=lambda node: node.size)


def vector_norm(x: torch.Tensor, *, ord: float, axes: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    """(sum |x|^ord)^(1 / ord) over ``axes``; the extremum of |x| for plus and minus infinity."""
    return torch.linalg.vector_norm(x, ord, axes, keepdim)


def _norm_code(inputs: list[str], node: Any) -> str:
    order = f'float("{node["ord"]}")' if abs(node["ord"]) == float("inf") else repr(node["ord"])
    return f"torch.linalg.vector_norm({inputs[0]}, {order}, {node['axes']}, keepdim={node['keepdim']})"


declare("vector_norm", "norm", vector_norm, _norm_code, operations=lambda node: 2 * node.inputs[0].size)
