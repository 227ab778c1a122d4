"""Hypotheses: the model with one change that gives what the candidate gives.

The model's captured graph is evaluated on the trial's inputs; then, within a budget, one node at a time is computed
otherwise, the likeliest change first. A change that reproduces the candidate's wrong values (to rounding, or all but a
small part of their error) is named, with the operator and its line in the model's file. Where the outputs are few
numbers, or one number everywhere, it must also reproduce what the candidate gives for other inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from time import thread_time as clock  # others' load on the machine must not decide what is found

import torch
from torch import nn

from kernelwright.ir.node import Node
from kernelwright.judge.diagnose import changes_whole as whole
from kernelwright.judge.diagnose.branches import alone, together
from kernelwright.judge.diagnose.change import Change, Generator, Number
from kernelwright.judge.diagnose.changes_layers import moves, numbers, pools
from kernelwright.judge.diagnose.changes_linear import linear
from kernelwright.judge.diagnose.changes_norms import norms, roots
from kernelwright.judge.diagnose.changes_pointwise import constants, pointwise, twice
from kernelwright.judge.diagnose.changes_reduction import reductions
from kernelwright.judge.diagnose.changes_rows import losses, rows
from kernelwright.judge.diagnose.evidence import Evidence
from kernelwright.judge.diagnose.graph_values import GraphValues, NoGraph
from kernelwright.judge.diagnose.leaf import measure, plain_tensor
from kernelwright.judge.diagnose.targets import HOLDS, Score, Target, find_targets, joint
from kernelwright.judge.efforts import Deadline
from kernelwright.judge.records import Finding
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.verify.flatten import flatten

_GENERATORS: tuple[Generator, ...] = (pointwise, reductions, rows, losses, linear, norms, roots, pools, moves,
                                      whole.flags)
#: Exact hypotheses after which others are still tried: those that are no likelier cannot be told apart.
ENOUGH = 3
#: Share of the error that a hypothesis may leave, even where what it leaves is within rounding.
MOST_LEFT = 0.5
#: Steps of the search for a number.
STEPS = 5


def find_hypotheses(problem: Problem, evidence: Evidence, budget_seconds: float,
                    deadline: Deadline | None = None) -> list[Finding]:
    """The changes of the model that reproduce the candidate's outputs, best first; none where the model has no graph.

    ``budget_seconds`` are of processor time; ``deadline`` ends the search besides, and hears what was not tried.

    Each finding's evidence holds ``weight`` (comparable with `patterns.find_patterns`), ``exact`` and ``explained``
    (the share of elements reproduced to rounding, and nearly), ``left`` (what remains of the error).
    """
    model = problem.make_model(0)
    if model.training is not evidence.training:
        model.train(evidence.training)
    return explain(model, evidence, budget_seconds, str(problem.path) if problem.path else None, deadline)


def explain(model: nn.Module, evidence: Evidence, budget_seconds: float, file: str | None = None,
            deadline: Deadline | None = None) -> list[Finding]:
    """The same for a model that is there already; its state is overwritten with the trial's."""
    started = clock()
    if evidence.error is not None:
        return []
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        try:
            values = GraphValues(model, evidence, file)
            targets = find_targets(values, evidence)
        except Exception as error:
            if not isinstance(error, NoGraph) and not is_out_of_memory(error):
                raise
            return []
        if not targets:
            return []
        search = _Search(values, targets, started + budget_seconds, list(_elsewhere(values, evidence)),
                         deadline or Deadline(None))
        search.run()
        search.tell_untried()
    return search.findings()


def _elsewhere(values: GraphValues, evidence: Evidence) -> Iterator[GraphValues]:
    for other in evidence.others:
        try:
            yield values.on(other)
        except (NoGraph, RuntimeError, IndexError):  # inputs on which the model's graph is another one
            continue


class _Search:
    def __init__(self, values: GraphValues, targets: list[Target], until: float, elsewhere: list[GraphValues],
                 deadline: Deadline) -> None:
        self.values, self.targets, self.until, self.deadline = values, targets, until, deadline
        self.left_out: list[str] = []
        self.roots = [target.node for target in targets]
        self.found: list[tuple[float, Change, Score, list[Target]]] = []
        self.tried = 0
        self.elsewhere = elsewhere
        # One or two values can be met by any number, and NaN by many: numbers are then not fitted.
        self.telling = bool(elsewhere) or any(int((t.wrong & torch.isfinite(t.values)).sum()) >= 3 for t in targets)

    def run(self) -> None:
        single = list(self._changes())
        changes = sorted([*single, *together(single)], key=lambda change: change.prior)
        if not self._run(changes, list(self._numbers())) and not self._exact():
            self._run(sorted(alone(self.values, changes), key=lambda change: change.prior), [])

    def _run(self, changes: list[Change], numbers_left: list[Number]) -> bool:
        """Try changes in their order; whether that ended early, for lack of time or because enough were found."""
        for place, change in enumerate(changes):
            if self._is_over():
                self._leave_out(len(changes) - place, numbers_left)
                return True
            # Numbers are searched for before what hardly ever happens.
            if change.prior >= 2.0 and numbers_left:
                for at, number in enumerate(numbers_left):
                    if self._is_over():
                        self._leave_out(len(changes) - place, numbers_left[at:])
                        return True
                    self._search_number(number)
                numbers_left = []
            exact = self._exact()
            if exact and (len(exact) >= ENOUGH or change.prior > min(exact) + 1.0):
                return True
            self._try(change)
        for at, number in enumerate(numbers_left):
            if self._is_over():
                self._leave_out(0, numbers_left[at:])
                return False
            if not self.found:
                self._search_number(number)
        return False

    def _is_over(self) -> bool:
        return clock() > self.until or self.deadline.left() <= 0

    def _leave_out(self, changes: int, numbers_left: list[Number]) -> None:
        self.left_out = [f"{count} {word}{'s' * (count != 1)}" for count, word in (
            (changes, "change"), (len(numbers_left), "number")) if count]

    def tell_untried(self) -> None:
        """Say what there was no time for, where it could still have been the better explanation."""
        if self.left_out and len(self._exact()) < ENOUGH:
            self.deadline.untried.append(f"{' and '.join(self.left_out)} of the model, after {self.tried} tries")

    def _exact(self) -> list[float]:
        """How likely the changes are that reproduce all wrong outputs to rounding."""
        return [c.prior for _, c, s, t in self.found if s.exact >= HOLDS and t is self.targets]

    def _changes(self) -> Iterator[Change]:
        for target in self.targets:
            yield from whole.intermediate(self.values, target.node, tuple(target.got.shape))
        yield from whole.state(self.values)
        yield from whole.inputs(self.values)
        yield from whole.addresses(self.values)
        yield from whole.parameters(self.values)
        yield from whole.owners_exchanged(self.values)
        yield from whole.constants_exchanged(self.values)
        for node in self._nodes():
            for generator in _GENERATORS:
                yield from generator(node)
            yield from twice(node)

    def _nodes(self) -> list[Node]:
        """Operators, the last first: a change near the output costs least."""
        return [n for n in reversed(list(self.values.order)) if n.kind != "leaf"]

    def _numbers(self) -> Iterator[Number]:
        for node in self._nodes():
            yield from constants(node)
            yield from numbers(node)

    def _try(self, change: Change) -> None:
        """Keep a change that reproduces all wrong outputs, or else the first of them, which is the most wrong."""
        scores = self._scores(change)
        if not self._keep(change, joint(scores), self.targets) and len(scores) > 1 and scores[0].exact >= HOLDS:
            self._keep(change, scores[0], self.targets[:1])

    def _scores(self, change: Change) -> list[Score]:
        self.tried += 1
        try:
            results = self.values.changed(change.changes, self.roots)
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError):
            return [Score(0.0, 0.0, 1.0)]  # shapes that do not fit: no such candidate could have run
        return [target.score(result) for target, result in zip(self.targets, results, strict=True)]

    def _score(self, change: Change) -> Score:
        return joint(self._scores(change))

    def _keep(self, change: Change, score: Score, targets: list[Target]) -> bool:
        # What leaves most of the error says nothing, as where that is hardly more than rounding. One number is near to
        # many.
        holds = score.exact >= HOLDS or (score.holds and self.telling)
        if score.left < MOST_LEFT and holds and self._holds_elsewhere(change, targets):
            weight = (2.6 if score.exact >= HOLDS else 1.9 + 0.1 * score.explained) - 0.05 * min(change.prior, 9.0)
            self.found.append((weight if targets is self.targets else weight - 0.3, change, score, targets))
            return True
        return False

    def _holds_elsewhere(self, change: Change, targets: list[Target]) -> bool:
        """Whether a change gives what the candidate gives for other inputs, too."""
        for values in self.elsewhere:
            own = flatten(values.evidence.candidate)
            try:
                results = values.changed(change.changes, [target.node for target in targets])
            except (RuntimeError, TypeError, IndexError, ValueError, AttributeError):
                return False
            for target, result in zip(targets, results, strict=True):
                got = own.get(target.path)
                if not isinstance(result, torch.Tensor) or not isinstance(got, torch.Tensor) or \
                        result.shape != got.shape:
                    return False
                result, got = plain_tensor(result).to(got.device), plain_tensor(got)
                if measure(target.path, got, result, result).count > (1 - HOLDS) * got.numel():
                    return False
        return True

    def _search_number(self, number: Number) -> None:
        """Other values of one number: likely ones, then the one that fits best (Gauss-Newton on the samples)."""
        value = number.value
        if not any(bool((t.wrong & torch.isfinite(t.values)).any()) for t in self.targets):
            return
        likely = [0.0, 1.0, -value, value * 2, value / 2, value + 1, value - 1, value * 10, value / 10, value * value]
        likely += [1 / value] if value else []
        likely += [1e-5, 1e-6, 1e-8, 1e-3, 1e-12] if abs(value) < 1e-2 else []
        for other in dict.fromkeys(likely):
            if other != value and not self._is_over():
                score = self._score(change := number.change(other))
                if score.exact >= HOLDS:
                    self._keep(change, score, self.targets)
                    return
        if not self.telling:
            return
        fitted = self._fit(value, number.change)
        if fitted is not None and fitted != value:
            change = number.change(fitted)
            self._try(change)

    def _fit(self, start: float, change: Callable[[float], Change]) -> float | None:
        """The value at which the outputs come nearest to the candidate's, or None where they do not depend on it."""
        target = self.targets[0]
        if target.best is None:
            return None

        def outputs(value: float) -> torch.Tensor | None:
            try:
                result = self.values.changed(change(value).changes, [target.node])[0]
            except (RuntimeError, TypeError, IndexError, ValueError):
                return None
            if not isinstance(result, torch.Tensor) or result.shape != target.got.shape:
                return None
            return result.reshape(-1)[target.at].double() if result.is_contiguous() else \
                result.contiguous().reshape(-1)[target.at].double()

        value, noise = start, float(target.noise.square().mean().sqrt())
        for _ in range(STEPS):
            here = outputs(value)
            if here is None:
                return None
            for step in (1e-3 * abs(value) or 1e-3, 1e-2 * abs(value) or 1e-2, 1e-3, 1e-2, 1e-1):
                there = outputs(value + step)
                if there is None or self._is_over():
                    return None
                # A step that rounding hides tells nothing (an eps of 1e-5 beside a variance of 1).
                moved = (there - here)[torch.isfinite(there) & torch.isfinite(here)]
                if moved.numel() and float(moved.square().mean().sqrt()) > 3 * noise:
                    break
            slope, error = (there - here) / step, target.values - here
            usable = torch.isfinite(slope) & torch.isfinite(error)
            square = float(slope[usable].square().sum())
            if not square or not math.isfinite(square):
                return None
            value += float((slope * error)[usable].sum()) / square
            if not math.isfinite(value):
                return None
        # A number that somebody wrote has few digits.
        for digits in (1, 2, 3, 4, 5):
            short = float(f"{value:.{digits}g}")
            if abs(short - value) <= 1e-3 * abs(value):
                return short
        return value

    def findings(self) -> list[Finding]:
        found = []
        for weight, change, score, targets in sorted(self.found, key=lambda entry: -entry[0])[:5]:
            how = "exactly" if score.exact >= HOLDS else f"all but {100 * score.left:.2g} % of the error"
            paths = ", ".join(t.path for t in targets)
            verb = "are" if len(targets) > 1 else "is"
            words = f"{paths} {verb} what the model gives {change.words}" if how == "exactly" else \
                f"{paths} {verb} nearly ({how}) what the model gives {change.words}"
            found.append(Finding(change.kind, f"{words} ({self._example()}).", fix=change.fix, evidence={
                **change.evidence, **self._facts(), "weight": weight, "exact": score.exact,
                "explained": score.explained,
                "left": score.left, "tried": self.tried}))
        return found

    def _facts(self) -> dict[str, object]:
        target = self.targets[0]
        at = int(target.wrong.to(torch.uint8).argmax())
        shape = tuple(target.got.shape)
        index = list(map(int, torch.unravel_index(target.at[at].cpu(), shape))) if shape else []
        expected = self.values.values[target.node]
        told: dict[str, object] = {"output": target.path, "index": index, "got": float(target.values[at])}
        if expected.shape == target.got.shape:
            told["expected"] = float(expected[tuple(index)])
        if target.best is not None:
            told["float64"] = float(target.best[at])
        return told

    def _example(self) -> str:
        told = self._facts()
        wanted = f" instead of {told['expected']:.6g}" if "expected" in told else ""
        precise = f", float64 {told['float64']:.9g}" if "float64" in told else ""
        return f"at {told['index']} {told['got']:.6g}{wanted}{precise}"
