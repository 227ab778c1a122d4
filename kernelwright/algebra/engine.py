"""Stage 4, REWRITE: rules to a fixpoint; a linear operator is collapsed only where the roofline gains."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

from kernelwright.algebra.attention import ATTENTION
from kernelwright.algebra.collapse import COLLAPSE
from kernelwright.algebra.compose import COMPOSE
from kernelwright.algebra.cropped import CROPPED
from kernelwright.algebra.filled import FILLED
from kernelwright.algebra.identities import IDENTITIES
from kernelwright.algebra.local import Decisions, NoFixpoint
from kernelwright.algebra.moments import MOMENT_RULES
from kernelwright.algebra.norms import NORMS
from kernelwright.algebra.parts import PART_RULES
from kernelwright.algebra.precision import PRECISION
from kernelwright.algebra.ranges import RANGES
from kernelwright.algebra.repeated import REPEATED
from kernelwright.algebra.replaced import Replaced
from kernelwright.algebra.rows import ROW_RULES
from kernelwright.algebra.rule import Application, Context, Dropped, Rule
from kernelwright.algebra.scans import SCAN_RULES
from kernelwright.algebra.views import VIEW_RULES
from kernelwright.ir.graph import BufferUpdate, Graph, copied, in_own_memory, is_given, memory
from kernelwright.ir.node import Node, made_for, rebuild, users, walk
from kernelwright.roofline.cost import graph_seconds
from kernelwright.roofline.devices import Device

RULES: tuple[Rule, ...] = (*FILLED, *IDENTITIES, *ATTENTION, *RANGES, *NORMS, *MOMENT_RULES, *COLLAPSE, *COMPOSE,
                          *PRECISION, *SCAN_RULES, *PART_RULES, *CROPPED, *VIEW_RULES, *ROW_RULES, *REPEATED)
_BY_ROOT: dict[str, tuple[Rule, ...]] = {}


def register(*rules: Rule) -> None:
    """Have further rules applied in this process, at each of their roots after those that are there."""
    for one in rules:
        for root in one.roots:
            _BY_ROOT[root] = (*_BY_ROOT.get(root, ()), one)


register(*RULES)

# A rule set that does not end is a bug of ours; this many applications, and for each node so many more, report it.
_MOST_STEPS, _STEPS_PER_NODE = 10_000, 20
_GAIN = 0.97  # collapse where the estimate of what changes falls below this share


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A rewritten graph with the rules that were applied, those that might not be, and the estimates before and after.
    """

    graph: Graph
    applications: tuple[Application, ...]
    seconds_before: float
    seconds_after: float
    dropped: Dropped = frozenset()


def rewrite(graph: Graph, device: Device, dropped: Dropped = frozenset()) -> Rewriting:
    """Apply the rules where they pay on ``device``, but those of the ``dropped`` classes and uses.

    Identities always apply. Linear operators that some rule could collapse are decided one by one, each by the nodes
    that appear and disappear with it (:mod:`kernelwright.algebra.local`).
    """
    before = graph_seconds(graph.roots(), device)
    context = Context(dropped=dropped)
    best, applied = rewrite_with(graph, context)
    cost = graph_seconds(best.roots(), device)
    if context.used:
        # What a torch call updates by itself has to be computed where nothing is left of the call.
        roots = (*graph.outputs, *(e.value for e in graph.effects), *(c.value for c in graph.checks))
        allowed = Decisions(roots, _replacement, device, dropped, _GAIN, _MOST_STEPS).decide()
        if allowed:
            attempt, steps = rewrite_with(graph, Context(allowed, dropped=dropped))
            attempt_cost = graph_seconds(attempt.roots(), device)
            if attempt_cost < max(1.0, _GAIN) * cost:  # each paid by itself: together they must not cost more
                best, applied, cost = attempt, steps, attempt_cost
    return Rewriting(best, applied, before, cost, dropped)


def _applied(built: Node, context: Context) -> tuple[Rule, Node] | None:
    """The first rule that applies to a node whose inputs are in normal form, and what it makes of it."""
    for candidate in _BY_ROOT.get(built.op, ()):
        if not context.may_apply(candidate, built.origin):
            continue
        with made_for(built.origin):
            replacement = candidate.rewrite(built, context)
        if replacement is not None and replacement is not built:
            return candidate, replacement
    return None


def _replacement(built: Node, context: Context) -> Node | None:
    found = _applied(built, context)
    return found[1] if found is not None else None


def rewrite_with(graph: Graph, context: Context) -> tuple[Graph, tuple[Application, ...]]:
    """The fixpoint of all rules under the permissions of ``context``.

    Rules know who reads what in the graph as it is at first. Where they changed that a slice may be the only reader of
    what stands there now, so graphs with slices are walked until nothing changes.
    """
    result, applications = _once(graph, context)
    last = applications
    while last and any(n.op == "slice" for n in result.nodes()):
        if len(applications) > _most(graph):
            raise NoFixpoint(f"rule {last[-1].rule.name!r} in walk after walk")
        again, last = _once(result, replace(context, laid=set(), original={}, readers={}, known={}, forms={}))
        result, applications = replace(again, replaces=_through(again, result, graph)), (*applications, *last)
    return result, applications


def _most(graph: Graph) -> int:
    """More applications of rules than these never end."""
    return _MOST_STEPS + _STEPS_PER_NODE * len(list(graph.nodes()))


def _everything(graph: Graph) -> tuple[Node, ...]:
    """The results, all that is updated, also by a torch call itself, and what is checked."""
    return *graph.outputs, *(e.value for e in graph.effects), *(c.value for c in graph.checks)


def _through(again: Graph, result: Graph, graph: Graph) -> dict[Node, tuple[Node, ...]]:
    """What nodes of a graph that was rewritten twice stand for in the first one."""
    place = {node: number for number, node in enumerate(walk(_everything(graph)))}
    return {form: tuple(sorted({old for n in nodes for old in result.replaces.get(n, ())}, key=place.__getitem__))
            for form, nodes in again.replaces.items()}


def _once(graph: Graph, context: Context) -> tuple[Graph, tuple[Application, ...]]:
    """The graph after a walk in which rules are applied to each node until none does."""
    applications: list[Application] = []
    results: dict[Node, Node] = {}
    replacements: dict[Node, Node] = {}
    order, most = list(graph.nodes()), _most(graph)
    replaced = Replaced(_everything(graph))
    context.laid |= _laid(graph.outputs, order)
    context.readers, context.roots = users(graph.roots()), frozenset(graph.roots())

    def rewritten(built: Node, context: Context) -> Node | None:
        """What the first rule that applies makes of a node whose inputs are in normal form."""
        found = _applied(built, context)
        if found is None:
            return None
        made = frozenset((n.op, n.origin) for n in _new(found[1], results) if n.kind == "special")
        applications.append(Application(found[0], repr(built), repr(found[1]), built.origin, made))
        replaced.applied(built, found[1], results, context.forms)
        return found[1]

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
                replaced.becomes(node, results[node])
                stack.pop()
            else:
                built = rebuild(node, tuple(results[i] for i in node.inputs))
                replaced.becomes(node, built)
                if node in context.laid:
                    context.laid.add(built)
                if node in context.readers:
                    context.original.setdefault(built, node)
                replacement = rewritten(built, context)
                if replacement is not None:
                    replacements[node] = replacement
                    if node in context.laid:
                        context.laid.update(_views([replacement]))
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
    rewritten_graph = replace(graph, outputs=outputs, effects=effects, checks=checks,
                              replaces=replaced.result((*outputs, *values.values(), *(c.value for c in checks))))
    return rewritten_graph, tuple(applications)


def _laid(outputs: Iterable[Node], order: Iterable[Node]) -> set[Node]:
    """The views that results show, and those that are given to calls that draw numbers."""
    return _views([*outputs, *(i for n in order if n.get("serial", -1) >= 0 for i in n.inputs)])


def _views(stack: list[Node]) -> set[Node]:
    """The views among these nodes, and those below them."""
    found: set[Node] = set()
    while stack:
        node = stack.pop()
        if node.kind == "view" and node not in found:
            found.add(node)
            stack += node.inputs
    return found


def _new(made: Node, known: Container[Node]) -> Iterator[Node]:
    """The nodes below one that a rule made that are not known yet, itself included."""
    seen, stack = {made}, [made]
    while stack:
        node = stack.pop()
        if node not in known:
            yield node
            stack += [i for i in node.inputs if i not in seen]
            seen.update(node.inputs)


def _fresh(result: Node, before: Node) -> Node:
    """The result, in memory of its own where a rule left nothing of the operator that made such."""
    return copied(result) if is_given(result) and not is_given(before) else result
