"""Mending a candidate by its verdict alone: a scripted stand-in for a language model that follows our diagnosis.

:func:`mended` reads the judge's JSON document of a candidate (kinds of findings, their ``fix`` and ``evidence``) and
the candidate's text, and nothing else: neither the model's file, nor the right candidate, nor what was done to it. It
gives other texts, the likeliest first, each with one change at one place. Which of them is right the judge says. What
is mended so shows that the diagnosis suffices; a language model has more ideas, and may be told no less.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mutations.mend_conduct import (
    conditions,
    deterministic,
    exact,
    fresh,
    not_swallowed,
    own_memory,
    read_again,
    states,
    types,
    updates,
    whole_results,
)
from mutations.mend_functions import (
    axes,
    clamps,
    comparisons,
    constants,
    divisors,
    epsilons,
    extrema,
    extremum_start,
    halved,
    masks,
    moments,
    normalised,
    operators,
    roots,
    shifted_exponents,
    variances,
    without_factors,
)
from mutations.mend_places import (
    additions,
    affine,
    empty,
    exchanges,
    exclusive,
    factors,
    indices,
    loops,
    signs,
    subtractions,
)
from mutations.mend_text import Rule, nodes_of, tree_of

#: Texts that are given for one verdict at most: what four rounds of eight answers would be.
MOST = 32


def mended(text: str, verdict: Mapping[str, Any]) -> list[str]:
    """Texts in which the first thing that the verdict names is mended, the likeliest first; at most ``MOST``."""
    found: dict[str, None] = {}
    tree = tree_of(text)
    own, nodes = ast.unparse(tree), nodes_of(tree)
    for rule, finding in rules_for(verdict):
        for node, source in rule(tree, finding):
            changed = _replaced(text, nodes.index(node), source)
            if changed is not None and changed != own:
                found.setdefault(changed)
    return list(found)[:MOST]


def rules_for(verdict: Mapping[str, Any]) -> Iterator[tuple[Rule, Mapping[str, Any]]]:
    """The rules that a verdict asks for, in its order: by what findings name, then by the code of the verdict."""
    for finding in verdict["findings"]:
        if finding["source"] in ("run", "build"):
            for name in (finding["kind"], str(finding["evidence"].get("holds", ""))):
                for rule in RULES.get(name, ()):
                    yield rule, finding
    words = {"kind": "", "fix": verdict.get("fix") or "", "sentence": verdict.get("reason") or "", "evidence": {}}
    for rule in BY_VERDICT.get(verdict["verdict"], ()):
        yield rule, words


@functools.lru_cache(maxsize=4096)
def _replaced(text: str, place: int, source: str) -> str | None:
    tree = ast.parse(text)
    target = list(ast.walk(tree))[place]
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return None
    if isinstance(target, ast.expr):
        if len(body) != 1 or not isinstance(body[0], ast.Expr):
            return None
        new: ast.AST | list[ast.stmt] = body[0].value
    else:
        new = list(body) or [ast.Pass()]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return new if node is target else self.generic_visit(node)

    try:
        return ast.unparse(ast.fix_missing_locations(Replace().visit(tree)))
    except (AttributeError, TypeError, ValueError):
        return None


_LOOPS: Sequence[Rule] = (loops,)
RULES: dict[str, Sequence[Rule]] = {
    **dict.fromkeys(("tail", "one-slice", "edges", "every-kth", "blocks", "head", "reduction-cut", "slice",
                     "scan-not-carried", "counted-twice"), _LOOPS),
    "all-but-one": (without_factors, loops),
    **dict.fromkeys(("unwritten", "nondeterministic", "sum-start", "not-reset"), (empty,)),
    **dict.fromkeys(("shifted", "rolled", "wrong-index", "permuted-slices", "one-for-all", "roll", "transposed",
                     "reversed", "input-index", "bias-index", "kernel-flipped", "transposed-weight"), (indices, loops)),
    "exclusive-scan": (exclusive, loops), "missing-bias": (additions,), "bias-subtracted": (signs,),
    "bias-wrong-axis": (indices,), "affine-ignored": (affine, factors, additions), "missing-weight": (factors,),
    "parameter-ignored": (factors, additions), "sign": (signs,), "operands-exchanged": (exchanges,),
    "wrong-constant": (constants,), "scaled": (constants, halved), "factor": (halved,), "offset": (additions, signs),
    "offset-per-slice": (moments, additions, signs), "factor-per-slice": (moments, factors, divisors),
    "missing-operator": (constants, operators, additions, factors),
    "missing-last-operators": (clamps, operators, additions, factors),
    "missing-addend": (operators, additions), "wrong-operator": (operators, moments, comparisons, extrema),
    "returns-input": (operators,), "missing-activation": (operators,), "wrong-activation": (operators, constants),
    "missing-factor": (constants,), "missing-clamp": (clamps,), "cut-off": (constants, clamps),
    "missing-root": (roots,), "biased-variance": (variances,),
    "mean-not-subtracted": (subtractions,), "sum-for-mean": (moments,), "mean-for-sum": (moments,),
    "wrong-divisor": (divisors, moments), "not-normalised": (normalised, divisors), "eps": (epsilons,),
    "extremum-start": (extremum_start,), "other-extremum": (extrema,), "ties": (comparisons,),
    "missing-condition": (masks, comparisons), "wrong-axis": (axes,), "nan-swallowed": (not_swallowed,),
    "infinity-clamped": (not_swallowed,), "nan": (shifted_exponents, not_swallowed, epsilons), "infinite": (
        extrema, extremum_start, shifted_exponents, not_swallowed, epsilons),
    "finite": (not_swallowed,), "shape": (whole_results,), "keepdim": (whole_results,), "structure": (whole_results,),
    "returns-nothing": (whole_results,), "plain-value": (whole_results,), "swapped-outputs": (whole_results,),
    "dtype": (types,), "stale": (fresh,), "not-repeatable": (fresh,), "parameters-as-constructed": (read_again, fresh),
    "order-exchanged": (operators, additions), "state-momentum": (states,), "state-factor": (states,),
    "state-not-updated": (updates, states), "clamp": (clamps,), "wrong-branch": (comparisons, operators),
    "padding-value": (extremum_start, constants), "wrong-values": (without_factors, loops, moments, axes, signs),
    "overflow": (shifted_exponents,), "max-not-subtracted": (shifted_exponents,), "batch-statistics": (conditions,),
    "eval-for-training": (conditions,), "statistics-ignored": (subtractions, conditions),
    "constants-exchanged": (comparisons,), "loss-formula": (comparisons, without_factors, clamps),
    **dict.fromkeys(("precision", "precision-bfloat16", "precision-float16", "precision-half"), (exact,)),
}
BY_VERDICT: dict[str, Sequence[Rule]] = {
    "WRONG-PRECISION": (exact,), "WRONG-SHAPE": (whole_results,), "WRONG-STRUCTURE": (whole_results,),
    "WRONG-DTYPE": (types,), "WRONG-MUTATES-INPUT": (own_memory,), "WRONG-ALIAS": (own_memory,),
    "WRONG-RANDOM": (deterministic,), "WRONG-NONDETERMINISTIC": (deterministic, empty, fresh),
    "WRONG-STALE": (fresh,), "CHEAT-REPLAY": (fresh,), "CHEAT-STALE": (empty,), "WRONG-PARAMETERS": (read_again,),
    "CHEAT-INPUT-MUTATION": (own_memory,), "WRONG-NONFINITE": (not_swallowed, clamps),
    "WRONG-NUMERIC": (clamps, constants, operators), "WRONG-DISTRIBUTION": (clamps, constants, epsilons),
    "WRONG-STATE": (states,),
}
