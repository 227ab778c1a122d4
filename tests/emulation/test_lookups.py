"""Elements that indices choose, in kernels: embeddings, rows, gathers, borders, resampling; with eager's values."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native_tools import Natively, planned

from kernelwright.codegen.generate import TARGETS
from kernelwright.plan.expressions import Element, walk
from kernelwright.plan.kernels import LoopKernel

G = torch.Generator().manual_seed(5)
X = torch.randn(4, 6, 8, generator=G)
SPECIAL = torch.tensor([nan, inf, -inf, -0.0, 0.0, 1e30, -1e-30, 3.0]).repeat(24).reshape(X.shape)
TABLE = torch.randn(9, 33, generator=G)
TOKENS = torch.randint(0, 9, (4, 7), generator=G)
ROWS = torch.randint(0, 6, (5,), generator=G)
SIGNED = torch.randint(-6, 6, (3, 2), generator=G)
ALL = torch.randint(0, 6, X.shape, generator=G)
IMAGE = torch.randn(2, 3, 5, 7, generator=G)
VOLUME = torch.randn(1, 2, 3, 4, 5, generator=G)
SCALES = (2, 1.5, 0.7)
PADDINGS = ("zeros", "border", "reflection")
GRID = torch.rand(2, 4, 6, 2, generator=G) * 2.6 - 1.3
GRID[:, 0] = (GRID[:, 0] * 6).round() / 6
GRID[0, 1, :, 0] = torch.tensor([nan, inf, -inf, 1e12, -1.0, 1.0])

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    "embedding": (lambda t, w: F.embedding(t, w) * 2 + 1, (TOKENS, TABLE)),
    "embedding of int32": (lambda t, w: F.embedding(t, w, padding_idx=0).relu() * 3, (TOKENS.int(), TABLE)),
    "embedding, norm": (lambda t, w, p: F.layer_norm(F.embedding(t, w) + p, (33,)), (TOKENS, TABLE, TABLE[:7])),
    "embedding twice": (lambda t, w: (e := F.embedding(t, w) * 2) + e.mean(-1, keepdim=True), (TOKENS, TABLE)),
    "two tables": (lambda t, w: F.embedding(t, w) + F.embedding((t + 1) % 9, w.flip(1)) * 2, (TOKENS, TABLE)),
    "rows": (lambda x, r: (x * 2 + 1).index_select(1, r).relu() * 0.5, (X, ROWS)),
    "rows of the last axis": (lambda x, r: x.index_select(-1, r).sigmoid() + 1, (X, ROWS)),
    "rows, special": (lambda x, r: x[r % 4].neg() * 2, (SPECIAL, ROWS)),
    "numbers from the end": (lambda x, s: x[:, s] * 2 + 1, (X, SIGNED)),
    "first axis": (lambda x, s: x[s % 4].tanh() * 2, (X, SIGNED)),
    "gather": (lambda x, i: torch.gather(x * 2, 1, i) * 3 + 1, (X, ALL)),
    "gather of fewer": (lambda x, i: torch.gather(x, 1, i[:2, :3, :5]).exp() - 1, (X, ALL)),
    "gather along the last axis": (lambda x, i: torch.gather(x, 2, i).sum(-1) * 2, (X, ALL)),
    "gather of rows": (lambda x, i: torch.gather(x, 1, i[:, :3, :1].expand(4, 3, 8)) * x[0, 0] + 1, (X, ALL)),
    "gathered numbers": (lambda x, i: torch.gather(i, 1, i) * 2 + x.sign().long(), (X, ALL)),
    "gathered truth values": (lambda x, i: torch.where(torch.gather(x > 0, 1, i), x * 2, x - 1), (X, ALL)),
    "along": (lambda x, i: torch.take_along_dim(x, i, 1) * 2 - x, (X, ALL)),
    "16 bits": (lambda x, r: x.half()[:, r].float() * 3 + 1, (X, ROWS)),
    "bfloat16": (lambda t, w: F.embedding(t, w.bfloat16()) * 2 + 1, (TOKENS, TABLE)),
    "float64": (lambda t, w: F.embedding(t, w.double()).sin() * 2, (TOKENS, TABLE)),
    "of a product": (lambda t, w: (w @ w.T).gather(1, t.T % 5) * 2 + 1, (TOKENS, TABLE)),
    "of a running sum": (lambda x, i: x.cumsum(1).gather(1, i) * 2 + x, (X, ALL)),
    "by the largest": (lambda x: x.gather(1, x.argmax(1, keepdim=True)).neg() * 2, (X,)),
    "by a running sum": (lambda x, i: x.gather(1, i.clamp(max=1).cumsum(1).clamp(max=5)).neg() * 2, (X, ALL)),
    "permuted": (lambda t, w: F.embedding(t, w).permute(2, 0, 1) * 2 + 1, (TOKENS, TABLE)),
    "padded": (lambda t, w: F.pad(F.embedding(t, w) * 2, (1, 2)) + 1, (TOKENS, TABLE)),
    "pieces": (lambda t, w: torch.cat([F.embedding(t, w) * 2, F.embedding(t, w)[:, :2]], 1) + 1, (TOKENS, TABLE)),
    "bias by number": (lambda t, w: (w[:, :4][t.reshape(-1)].reshape(4, 7, 4).permute(2, 0, 1) + w[:7, 0]).softmax(-1),
                       (TOKENS, TABLE)),
    **{f"border, {mode}": (lambda x, mode=mode: F.pad(x * 2, (2, 1, 0, 3), mode=mode) * 3 + 1, (IMAGE,))
       for mode in ("reflect", "replicate", "circular")},
    "border of rows": (lambda x: F.pad(x, (3, 0), mode="reflect").relu() + F.pad(x, (0, 3), mode="circular"), (X,)),
    "border of a volume": (lambda x: F.pad(x, (1, 2, 0, 1, 2, 0), mode="replicate").exp() * 2, (VOLUME,)),
    "border, special": (lambda x: F.pad(x, (2, 2), mode="reflect").neg() * 2, (SPECIAL,)),
    "border of 16 bits": (lambda x: F.pad(x.half(), (2, 2, 1, 1), mode="reflect").float() * 2 + 1, (IMAGE,)),
    "border, sum": (lambda x: F.pad(x, (2, 2, 1, 1), mode="replicate").sum((2, 3)) * 2, (IMAGE,)),
    **{f"{mode} {size}": (lambda x, mode=mode, size=size: F.interpolate(x, size, mode=mode) * 2 + 1, (IMAGE,))
       for mode in ("nearest", "nearest-exact") for size in ((10, 14), (9, 4), (3, 7))},
    **{f"bilinear {scale} {aligned}": (lambda x, scale=scale, aligned=aligned: F.interpolate(
        x, scale_factor=scale, mode="bilinear", align_corners=aligned) * 2 + 1, (IMAGE,))
       for scale in SCALES for aligned in (False, True)},
    **{f"bilinear to a size {aligned}": (lambda x, aligned=aligned: F.interpolate(
        x, (9, 1), mode="bilinear", align_corners=aligned).relu() - 1, (IMAGE,)) for aligned in (False, True)},
    "bilinear, an axis stays": (lambda x: F.interpolate(x[None] * 2, (6, 11), mode="bilinear").neg() + 1, (SPECIAL,)),
    "linear": (lambda x: F.interpolate(x, 11, mode="linear").tanh() * 2, (X,)),
    "trilinear": (lambda x: F.interpolate(x, (4, 3, 9), mode="trilinear", align_corners=True).tanh() * 2, (VOLUME,)),
    "bilinear of float64": (lambda x: F.interpolate(x.double(), (9, 4), mode="bilinear") * 2 + 1, (IMAGE,)),
    "bilinear of 16 bits": (lambda x: F.interpolate(x.bfloat16(), (9, 4), mode="bilinear").float() * 2 + 1, (IMAGE,)),
    **{f"bicubic {to}": (lambda x, to=to: F.interpolate(x, **to, mode="bicubic") * 2 + 1, (IMAGE,)) for to in (
        {"size": (9, 4)}, {"size": (3, 11), "align_corners": True}, {"scale_factor": (1.5, 0.7)})},
    **{f"{mode} samples, {padding}{', aligned' * aligned}": (
        lambda x, g, how=(mode, padding, aligned): F.grid_sample(x * 1.5, g, *how) * 2 + 1, (IMAGE, GRID))
       for mode in ("bilinear", "nearest") for padding in PADDINGS for aligned in (False, True)},
    "samples of few": (lambda x, g: F.grid_sample(x[:, :, :1] * 2, g, padding_mode="reflection",
                                                  align_corners=True) * 2, (IMAGE, GRID)),
    "samples of float64": (lambda x, g: F.grid_sample(x.double(), g.double(), align_corners=False).sin() * 2,
                           (IMAGE, GRID)),
    "samples where a layer says": (lambda x, g: F.grid_sample(x, (g * 0.5).tanh(), align_corners=False).sum(1) + 1,
                                   (IMAGE, GRID)),
    "bags": (lambda t, w: F.embedding_bag(t, w, mode="sum").relu() * 2, (TOKENS, TABLE)),
    "bags, means": (lambda t, w: F.embedding_bag(t, w * 2).tanh() + w[:4], (TOKENS, TABLE)),
    "weighted bags": (lambda t, w: F.embedding_bag(t, w, mode="sum", per_sample_weights=w[:4, :7]) * 2 + 1,
                      (TOKENS, TABLE)),
    "folded": (lambda x: F.fold(x.reshape(2, -1, 30) * 2, (8, 6), (3, 2)) + 1,
               (torch.randn(2, 6, 60, generator=G),)),
    "folded with gaps": (lambda x: F.fold(x * 2, (7, 11), 2, dilation=2, padding=1, stride=(3, 2)).relu() - 1,
                         (torch.randn(2, 12, 18, generator=G),)),
    "folded side by side": (lambda x: F.fold(x * 2, (6, 4), 2, stride=2) + 1, (torch.randn(2, 12, 6, generator=G),)),
    "uneven averages": (lambda x: F.adaptive_avg_pool2d(x * 2, (3, 4)).exp() - 1, (IMAGE,)),
    "uneven averages, more than there are": (lambda x: F.adaptive_avg_pool1d(x, 11).tanh() * 2, (X,)),
    "averages without padding": (lambda x: F.avg_pool2d(x * 2, 3, 2, 1, True, False).relu() + 1, (IMAGE,)),
    "averages that end beyond": (lambda x: F.avg_pool2d(x, (2, 3), 2, (1, 0), True).tanh() * 2, (IMAGE,)),
    "averages of 16 bits": (lambda x: F.avg_pool2d(x.half(), 3, 2, 1, False, False).float() * 2, (IMAGE,)),
    "scattered": (lambda x, i: torch.scatter(x * 2, 1, i[:, :4], x[:, 1:5]).relu() + 1, (X, ALL)),
    "scattered and added": (lambda x, i: torch.scatter_add(x * 2, 2, i % 8, x.exp()) * 2, (X, ALL)),
    "rows added": (lambda x, r: x.index_add(1, r, x[:, :5] * 2).tanh() + x.sum(1, keepdim=True), (X, ROWS)),
    "rows put in place": (lambda x, r: x.index_copy(1, r, x[:, :5] * 2).softmax(-1) * 2, (X, ROWS)),
    "rows added, special": (lambda x, r: x.index_add(0, r % 4, (x[:1] * 0 - 0.0).expand(5, 6, 8)).neg() * 2,
                            (SPECIAL.nan_to_num(0, 1, 1), ROWS)),
    "one entry of a cache": (lambda x, r: x.index_copy(1, r[:1], x[:, :1] + 1) @ x.mT * 2, (X, ROWS)),
    "skipped and resized": (lambda x, y: torch.cat([F.interpolate(x, (8, 8), mode="bilinear"), y[:2, :, :8]], 1) * 2,
                            (IMAGE, torch.randn(2, 3, 8, 8, generator=G))),
    "two indices": (lambda x, i, j: x[i, j].relu() * 2 + 1, (X, ROWS % 4, ROWS)),
    "two indices, special": (lambda x, i, j: x[i, :, j].neg() * 2, (SPECIAL, ROWS - 4, ROWS)),
    "two of the last axes": (lambda x, i, j: x[:, i, j[:, None, None]] * 2 + 1, (X, SIGNED, ROWS)),
    "indices apart": (lambda x, i, j: x[i % 4, :, j] * 2 + 1, (X, SIGNED, ROWS[:2])),
    "three indices": (lambda x, i, j: (x * 2)[i % 4, j, 1 - i].exp() - 1, (X, SIGNED % 2, ROWS[:1])),
    "indices, sums": (lambda x, i, j: x[i % 4, :, j].sum(-1) * x[i, j].mean(), (X, ROWS % 4, ROWS)),
    "pairs of numbers": (lambda x, i, j: x.long()[i, j] * 2 + i[:, None], (X, ROWS % 4, ROWS)),
    "taken from all": (lambda x, i: torch.take(x, i * 8 - 40) * 2 + 1, (X, SIGNED)),
    "taken along, of all": (lambda x, i: torch.take_along_dim(x, i.abs() * 7).tanh() * 2, (X, SIGNED)),
    "taken along, broadcast": (lambda x, i: torch.take_along_dim(x[:, :1], i[:1], 2) * 2 + 1, (X, ALL)),
    "one hot": (lambda t: F.one_hot(t, 9).float() * 2 + 1, (TOKENS,)),
    "one hot, sums": (lambda t, w: (F.one_hot(t, 9) * 3).sum(1) + F.one_hot(t[0, 0], 9), (TOKENS, TABLE)),
    "windows as columns": (lambda x: F.unfold(x * 2, (3, 2), padding=(1, 0), stride=(2, 1)).exp() * 2, (IMAGE,)),
    "windows, sum": (lambda x: F.unfold(x, 2).sum(1) * 2 + 1, (IMAGE,)),
    "one row": (lambda x, r: x[:1].index_select(0, r[:1] * 0) * 2 + 1, (X, ROWS)),
    "maximum": (lambda t, w: F.embedding(t, w).amax(1) * 2, (TOKENS, TABLE)),
    "scan": (lambda t, w: F.embedding(t, w).cumsum(1) * 2, (TOKENS, TABLE)),
    "product": (lambda t, w: F.embedding(t, w) @ w.T * 2 + 1, (TOKENS, TABLE)),
}


@pytest.fixture(scope="module", params=TARGETS)
def natively(request, tmp_path_factory) -> Natively:
    return Natively(CASES, request.param, tmp_path_factory.mktemp("lookups"))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str, natively: Natively) -> None:
    function, inputs = CASES[name]
    expected = torch.utils._pytree.tree_leaves(function(*inputs))
    for ours, wanted in zip(natively(name), expected, strict=True):
        torch.testing.assert_close(ours.reshape(wanted.shape), wanted, equal_nan=True)
        assert torch.equal(ours.signbit(), wanted.reshape(ours.shape).signbit()) or wanted.isnan().any()


def looked_up(name: str) -> int:
    """The kernels that compute which element they read."""
    _, plan = planned(*CASES[name])
    loops = [step.kernel for step in plan.kernels if isinstance(step.kernel, LoopKernel)]
    return sum(any(isinstance(e, Element) for root in (*k.reductions, *k.row_stores, *k.outer_stores)
                   for e in walk(root.expression)) for k in loops)


#: Which element is read is computed by loops alone, and not beside other pieces of a copy.
ELSEWHERE = ("pieces", "scan", "product", "nearest (10, 14)", "skipped and resized", "one hot", "one hot, sums",
             "windows as columns", "windows, sum", "folded side by side", "averages without padding",
             "averages that end beyond", "averages of 16 bits", "scattered", "scattered and added", "rows added",
             "rows put in place", "rows added, special", "one entry of a cache")


@pytest.mark.parametrize("name", CASES)
def test_loops_look_up(name: str) -> None:
    assert (looked_up(name) == 0) == (name in ELSEWHERE)
