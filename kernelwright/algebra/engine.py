"""Stage 4, REWRITE: rules to a fixpoint; a linear operator is collapsed only where the roofline gains."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from kernelwright.algebra.collapse import COLLAPSE
from kernelwright.algebra.filled import FILLED
from kernelwright.algebra.identities import IDENTITIES
from kernelwright.algebra.moments import MOMENT_RULES
from kernelwright.algebra.norms import NORMS
from kernelwright.algebra.precision import PRECISION
from kernelwright.algebra.ranges import RANGES
from kernelwright.algebra.rule import Application, Context, Exactness, Rule
from kernelwright.algebra.scans import SCAN_RULES
from kernelwright.ir.graph import BufferUpdate, Graph, copied, in_own_memory, is_given, memory
from kernelwright.ir.node import Node, made_for, rebuild, walk
from kernelwright.roofline.cost import graph_seconds
from kernelwright.roofline.devices import Device

RULES: tuple[Rule, ...] = (*FILLED, *IDENTITIES, *RANGES, *NORMS, *MOMENT_RULES, *COLLAPSE, *PRECISION, *SCAN_RULES)
_BY_ROOT: dict[str, tuple[Rule, ...]] = {
    root: tuple(r for r in RULES if root in r.roots) for root in {op for r in RULES for op in r.roots}
}
_MOST_STEPS = 10_000  # a rule set that does not end is a bug of ours; this bound reports it
_GAIN = 0.97  # collapse where the estimate falls below this share


class NoFixpoint(RuntimeError):
    """The rules did not come to an end."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A rewritten graph with the rules that were applied and the estimates before and after."""

    graph: Graph
    applications: tuple[Application, ...]
    seconds_before: float
    seconds_after: float


def rewrite(graph: Graph, device: Device, dropped: frozenset[Exactness] = frozenset()) -> Rewriting:
    """Apply the rules where they pay on ``device``, but those of the ``dropped`` classes.

    Identities always apply. For each linear operator that some rule could collapse, the graph is
    rewritten with and without that permission, and the cheaper one is kept.
    """
    before = graph_seconds(graph.roots(), device)
    context = Context(dropped=dropped)
    best, applied = rewrite_with(graph, context)
    cost = graph_seconds(best.roots(), device)
    allowed: frozenset[int] = frozenset()
    tried: set[int] = set()
    while candidates := context.used - tried - allowed:
        for candidate in _in_order(graph, candidates):
            tried.add(candidate)
            context = Context(allowed | {candidate}, dropped=dropped)
            attempt, steps = rewrite_with(graph, context)
            attempt_cost = graph_seconds(attempt.roots(), device)
            if attempt_cost < _GAIN * cost:
                best, applied, cost, allowed = attempt, steps, attempt_cost, context.allowed
                break
    return Rewriting(best, applied, before, cost)


def _in_order(graph: Graph, origins: set[int]) -> list[int]:
    return list(dict.fromkeys(id(n.origin) for n in graph.nodes() if id(n.origin) in origins))


def rewrite_with(graph: Graph, context: Context) -> tuple[Graph, tuple[Application, ...]]:
    """The fixpoint of all rules under the permissions of ``context``."""
    applications: list[Application] = []
    results: dict[Node, Node] = {}
    steps = 0

    def simplify(node: Node, context: Context) -> Node:
        """The normal form of a node: its inputs first, then rules until none applies."""
        nonlocal steps
        for current in walk([node]):
            if current in results:
                continue
            built = rebuild(current, tuple(results[i] for i in current.inputs))
            for candidate in _BY_ROOT.get(built.op, ()):
                if candidate.exactness in context.dropped:
                    continue
                with made_for(built.origin):
                    replacement = candidate.rewrite(built, context)
                if replacement is not None and replacement is not built:
                    steps += 1
                    if steps > _MOST_STEPS:
                        raise NoFixpoint(f"rule {candidate.name!r} at {built!r}")
                    applications.append(Application(candidate, repr(built), repr(replacement), built.origin))
                    built = simplify(replacement, context)
                    break
            results[current] = built
            results.setdefault(built, built)
        return results[node]

    taken: dict[Node, Hashable] = {}
    outputs = tuple(in_own_memory(_fresh(simplify(n, context), n), memory(n), taken) for n in graph.outputs)
    values = {e.name: simplify(e.value, context) for e in graph.effects if e.owner is None}
    checks = tuple(replace(c, value=simplify(c.value, context)) for c in graph.checks)
    alive = set(walk((*outputs, *values.values(), *(c.value for c in checks))))
    owners: dict[str, Node] = {}
    for effect in graph.effects:
        if effect.owner is None:
            continue
        owner = results.get(effect.owner)
        if owner in alive:
            owners[effect.name] = owner
            # What a torch call updates by itself asks for no permission to collapse anything.
            values[effect.name] = simplify(effect.value, Context(dropped=context.dropped))
        else:
            values[effect.name] = simplify(effect.value, context)
            alive.update(walk([values[effect.name]]))
    effects = tuple(BufferUpdate(e.name, values[e.name], owners.get(e.name)) for e in graph.effects)
    return replace(graph, outputs=outputs, effects=effects, checks=checks), tuple(applications)


def _fresh(result: Node, before: Node) -> Node:
    """The result, in memory of its own where a rule left nothing of the operator that made such."""
    return copied(result) if is_given(result) and not is_given(before) else result
