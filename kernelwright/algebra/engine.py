"""Stage 4, REWRITE: rules to a fixpoint; a linear operator is collapsed only where the roofline gains."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from kernelwright.algebra.collapse import COLLAPSE
from kernelwright.algebra.filled import FILLED
from kernelwright.algebra.identities import IDENTITIES
from kernelwright.algebra.moments import MOMENT_RULES
from kernelwright.algebra.norms import NORMS
from kernelwright.algebra.precision import PRECISION
from kernelwright.algebra.ranges import RANGES
from kernelwright.algebra.rule import Application, Context, Exactness, Rule, Use
from kernelwright.algebra.scans import SCAN_RULES
from kernelwright.ir.graph import BufferUpdate, Graph, copied, in_own_memory, is_given, memory
from kernelwright.ir.node import Node, made_for, rebuild, walk
from kernelwright.roofline.cost import graph_seconds
from kernelwright.roofline.devices import Device

RULES: tuple[Rule, ...] = (*FILLED, *IDENTITIES, *RANGES, *NORMS, *MOMENT_RULES, *COLLAPSE, *PRECISION, *SCAN_RULES)
_BY_ROOT: dict[str, tuple[Rule, ...]] = {
    root: tuple(r for r in RULES if root in r.roots) for root in {op for r in RULES for op in r.roots}
}
# A rule set that does not end is a bug of ours; this many applications, and for each node so many more, report it.
_MOST_STEPS, _STEPS_PER_NODE = 10_000, 20
#: Attempts to collapse one operator each, times nodes of the graph: what is tried beyond would take minutes.
_MOST_VISITS = 200_000
_GAIN = 0.97  # collapse where the estimate falls below this share


class NoFixpoint(RuntimeError):
    """The rules did not come to an end."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A rewritten graph with the rules that were applied, those that might not be, and the estimates before and after.
    """

    graph: Graph
    applications: tuple[Application, ...]
    seconds_before: float
    seconds_after: float
    dropped: frozenset[Exactness | Use] = frozenset()


def rewrite(graph: Graph, device: Device, dropped: frozenset[Exactness | Use] = frozenset()) -> Rewriting:
    """Apply the rules where they pay on ``device``, but those of the ``dropped`` classes and uses.

    Identities always apply. For each linear operator that some rule could collapse, the graph is
    rewritten with and without that permission, and the cheaper one is kept.
    """
    before = graph_seconds(graph.roots(), device)
    context = Context(dropped=dropped)
    best, applied = rewrite_with(graph, context)
    cost = graph_seconds(best.roots(), device)
    allowed: frozenset[int] = frozenset()
    tried: set[int] = set()
    most = max(1, _MOST_VISITS // max(1, len(list(graph.nodes()))))
    while len(tried) < most and (candidates := [o for o in context.used if o not in tried and o not in allowed]):
        for candidate in _in_order(graph, candidates)[:most - len(tried)]:
            tried.add(candidate)
            context = Context(allowed | {candidate}, dropped=dropped)
            attempt, steps = rewrite_with(graph, context)
            attempt_cost = graph_seconds(attempt.roots(), device)
            if attempt_cost < _GAIN * cost:
                best, applied, cost, allowed = attempt, steps, attempt_cost, context.allowed
                break
    return Rewriting(best, applied, before, cost, dropped)


def _in_order(graph: Graph, origins: Sequence[int]) -> list[int]:
    """Origins in the order of the graph; last those of no node of it, as what a rule makes may be an equal node of
    another graph."""
    known = dict.fromkeys(id(n.origin) for n in graph.nodes())
    asked = set(origins)
    return [*(o for o in known if o in asked), *(o for o in origins if o not in known)]


def rewrite_with(graph: Graph, context: Context) -> tuple[Graph, tuple[Application, ...]]:
    """The fixpoint of all rules under the permissions of ``context``."""
    applications: list[Application] = []
    results: dict[Node, Node] = {}
    replacements: dict[Node, Node] = {}
    most = _MOST_STEPS + _STEPS_PER_NODE * sum(1 for _ in walk(graph.roots()))

    def rewritten(built: Node, context: Context) -> Node | None:
        """What the first rule that applies makes of a node whose inputs are in normal form."""
        for candidate in _BY_ROOT.get(built.op, ()):
            if not context.may_apply(candidate, built.origin):
                continue
            with made_for(built.origin):
                replacement = candidate.rewrite(built, context)
            if replacement is not None and replacement is not built:
                applications.append(Application(candidate, repr(built), repr(replacement), built.origin))
                return replacement
        return None

    def simplify(root: Node, context: Context) -> Node:
        """The normal form of a node: its inputs first, then rules until none applies."""
        stack = [root]
        while stack:
            node = stack[-1]
            needed = node.inputs if node not in replacements else (replacements[node],)
            missing = [n for n in needed if n not in results]
            if node in results:
                stack.pop()
            elif missing:
                stack.extend(reversed(missing))
                # A node that waits for its replacement is replaced by what contains it, or replacements never end.
                if any(n in replacements for n in missing) or len(applications) > most:
                    raise NoFixpoint(f"rule {applications[-1].rule.name!r} at {node!r}")
            elif node in replacements:
                results[node] = results[replacements.pop(node)]
                stack.pop()
            else:
                built = rebuild(node, tuple(results[i] for i in node.inputs))
                replacement = rewritten(built, context)
                if replacement is not None:
                    replacements[node] = replacement
                else:
                    results[node] = built
                    results.setdefault(built, built)
                    stack.pop()
        return results[root]

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
