"""What a hypothesis must reproduce: the candidate's values at sampled positions, and how well another result does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.ir.node import Node
from kernelwright.judge.diagnose.evidence import Evidence
from kernelwright.judge.diagnose.graph_values import GraphValues
from kernelwright.judge.diagnose.leaf import SAMPLE, Leaf, leaves_of, measure, plain_tensor, take
from kernelwright.judge.diagnose.values import sample
from kernelwright.verify.flatten import flatten
from kernelwright.verify.observe import identical
from kernelwright.verify.tolerance import DEFAULT_TOLERANCE

#: A hypothesis holds where it reproduces this share of the elements.
HOLDS = 0.97
#: Most wrong outputs that are compared.
MOST = 6


@dataclass(frozen=True, slots=True)
class Score:
    """``explained``: the least share of elements, over wrong and all sampled ones, that the hypothesis reproduces to
    rounding or to 2 % of their error. ``exact``: the same to rounding alone. ``left``: rms of what it leaves of the
    error, as a share of the error."""

    explained: float
    exact: float
    left: float

    @property
    def holds(self) -> bool:
        return self.explained >= HOLDS and self.left < 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """One wrong output: its node, the candidate's tensor, and samples of it. ``at`` are flat positions."""

    path: str
    node: Node
    got: torch.Tensor
    at: torch.Tensor
    values: torch.Tensor
    best: torch.Tensor | None
    noise: torch.Tensor
    wrong: torch.Tensor

    def score(self, result: Any) -> Score:
        """How well ``result``, another value of the node, reproduces the candidate's."""
        if not isinstance(result, torch.Tensor) or result.shape != self.got.shape:
            return Score(0.0, 0.0, 1.0)
        told = take(plain_tensor(result), self.at)
        off = (told - self.values).abs()
        same = (told == self.values) | (torch.isnan(told) & torch.isnan(self.values))
        exact = same | (off <= self.noise)
        if self.best is None:
            share = float(exact.double().mean())
            return Score(share, share, 0.0 if share >= HOLDS else 1.0)
        error = (self.values - self.best).abs()
        near = exact | ((off <= 0.02 * error) & torch.isfinite(error))  # Inf is near nothing else
        shares = [min(float(s[self.wrong].double().mean()), float(s.double().mean())) for s in (near, exact)]
        finite = self.wrong & torch.isfinite(off) & torch.isfinite(error)
        whole = float(error[finite].square().sum())
        left = (float(off[finite].square().sum()) / whole) ** 0.5 if whole else 0.0
        return Score(shares[0], shares[1], left)


def find_targets(values: GraphValues, evidence: Evidence) -> list[Target]:
    """The outputs that are wrong and belong to a node, also those of a wrong shape; buffers where no output is."""
    found = [_target(leaf, values.outputs[leaf.path]) for leaf in leaves_of(evidence) if leaf.path in values.outputs]
    expected = flatten(evidence.eager)
    for path, got in flatten(evidence.candidate).items():
        wanted = expected.get(path)
        if type(got) is torch.Tensor and isinstance(wanted, torch.Tensor) and got.shape != wanted.shape and \
                path in values.outputs and got.numel():
            found.append(_misshapen(path, values.outputs[path], got))
    if found:  # state is often wrong because of the same fault; it need not be
        return found[:MOST]
    by_eager, own = evidence.changed
    for path, node in values.outputs.items():
        name = path.removeprefix("state ")
        got, wanted = own.get(name), by_eager.get(name)
        if isinstance(got, torch.Tensor) and name in evidence.state.buffers and identical(
                got, evidence.state.buffers[name]):
            continue  # not updated at all, which needs no hypothesis
        if path != name and isinstance(got, torch.Tensor) and isinstance(wanted, torch.Tensor) and \
                got.shape == wanted.shape and got.dtype == wanted.dtype and got.numel():
            leaf = measure(path, *(plain_tensor(t) for t in (got.to(wanted.device), wanted, wanted)))
            if leaf.count:
                found.append(_target(leaf, node))
    return found[:MOST]


def _target(leaf: Leaf, node: Node) -> Target:
    # Half of what is looked at is wrong, so that a fault of few elements counts.
    at = torch.cat((leaf.wrong_at, leaf.all_at))
    values = sample(leaf, at)
    wrong = torch.zeros(at.numel(), dtype=torch.bool, device=at.device)
    wrong[:leaf.wrong_at.numel()] = True
    return Target(leaf.path, node, leaf.got, at, values.got, values.best, values.noise, wrong)


def _misshapen(path: str, node: Node, got: torch.Tensor) -> Target:
    got = plain_tensor(got)
    at = torch.arange(0, got.numel(), max(1, got.numel() // SAMPLE), device=got.device)
    values = take(got, at)
    finite = values[torch.isfinite(values)]
    size = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    tolerance = 10 * DEFAULT_TOLERANCE.get(got.dtype, 0.0)
    noise = tolerance * (values.abs().nan_to_num(0, 0, 0) + size)
    return Target(path, node, got, at, values, None, noise, torch.ones_like(at, dtype=torch.bool))


def joint(scores: list[Score]) -> Score:
    """The score of one hypothesis over all wrong outputs: the worst of each figure."""
    return Score(min(s.explained for s in scores), min(s.exact for s in scores), max(s.left for s in scores))
