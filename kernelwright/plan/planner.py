"""Stage 5, PLAN: a rewritten graph becomes steps, kernels where they pay and torch calls elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from kernelwright.algebra.build import MOMENTS
from kernelwright.capture.checks import conditions_of
from kernelwright.failures import is_ours, told
from kernelwright.ir.graph import BufferUpdate, Check, Graph
from kernelwright.ir.node import Node, number_of
from kernelwright.ir.scalar import FUNCTIONS
from kernelwright.plan.compile.extrema import ExtremumLoop, compile_extremum
from kernelwright.plan.compile.loops import Apart, Loop, compile_group
from kernelwright.plan.compile.scans import ScanLoop, compile_scan
from kernelwright.plan.compile.special import special_kernel
from kernelwright.plan.contraction.compile import ContractionLoop, compile_contraction
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Element, Expression, Load, buffers_of
from kernelwright.plan.expressions import walk as walk_expression
from kernelwright.plan.groups import Group, Grouping, base
from kernelwright.plan.kernels import Attention, BatchedProduct, Extremum, LoopKernel, Recurrence, Scan
from kernelwright.plan.lowering.fused import with_fused
from kernelwright.plan.lowering.lower import lowerable
from kernelwright.plan.prepare import Lowered, prepare
from kernelwright.plan.reading.access import MustStore
from kernelwright.plan.records import KernelConfig, KernelStep, Plan, Step, TorchStep, kept_whole, unrolled
from kernelwright.plan.rolling.roll import roll
from kernelwright.plan.traversal import alternating

_COMPILERS = {"loop": compile_group, "place": compile_extremum, "scan": compile_scan}
_Compiled = Loop | ExtremumLoop | ScanLoop | ContractionLoop
_DEAR = 10
# Of the last, kernels may compute places first and elements then.
_DEAR_ALONE = ("logsumexp", *MOMENTS, "argmax", "argmin", "sampled")
# What one refusal changes may answer another one near it, so of these one is answered at a time, but where there are
# many.
_ONE_BY_ONE = 50
# A reduction of fewer bytes takes no longer than its launch.
_LARGE_REDUCTION = 1 << 23
ALONE = "one operator that PyTorch does well; nothing fuses with it"


class _Failed(Exception):
    """A group could not be compiled for a reason of ours; ``nodes`` of the graph are what it is for."""

    def __init__(self, nodes: tuple[Node, ...], cause: Exception) -> None:
        super().__init__(repr(nodes))
        self.nodes, self.cause = nodes, cause


def make_plan(graph: Graph, captured: Graph, kept: dict[Node, str] | None = None, *, move_bias: bool = False,
              channels_last: frozenset[Node] = frozenset(), contractions: Mapping[Node, KernelConfig] | None = None,
              fused_products: tuple[str, ...] = (), known: dict[Hashable, Any] | None = None) -> Plan:
    """The steps of ``graph`` (rewritten from ``captured``).

    kept: nodes of the graph that must stay torch calls, with reasons; of a contraction with a
    :class:`kernelwright.plan.records.LibraryCall` the bias may move, and one that is
    :class:`kernelwright.plan.records.Unrolled` is in no recurrence, and that alone. Operators of the captured graph
    that would become a kernel all alone are kept, too. move_bias: see :func:`kernelwright.plan.lowering.lower.lower`.
    channels_last: convolutions of the graph, or calls for gradients of some, to run so
    (:func:`kernelwright.plan.layouts.channels_last.lay_out`).
    contractions: those of the graph that become kernels, each of which
    :func:`kernelwright.plan.contraction.products.can_contract` takes; they are neither kept nor channels-last.
    fused_products: the kinds of kernels that products may become with what stands around them, of
    :data:`kernelwright.plan.lowering.fused.FUSED`.
    known: what plans of the same graph have compiled of groups by then, to which this one adds: what they have in
    common is not compiled again. It keeps their nodes alive, and lives no longer than a run.
    """
    kept, known = dict(kept or {}), {} if known is None else known
    products = {n: c for n, c in (contractions or {}).items() if n not in kept and n not in channels_last}
    captured_operators = {(n.op, id(n.origin), n.dtype) for n in captured.nodes()}
    while True:
        try:
            plan = _attempt(graph, kept, move_bias, channels_last, products, fused_products, known)
        except _Failed as failed:  # what is at fault stays with PyTorch, and the rest is planned
            nodes = [n for n in failed.nodes if n not in kept_whole(kept)]
            if not nodes:
                raise failed.cause from None
            kept |= dict.fromkeys(nodes, told(failed.cause))
            products = {n: c for n, c in products.items() if n not in kept}
            continue
        staged = {n for step in plan.kernels if isinstance(step.kernel, Contraction)
                  and (step.kernel.position_reductions or step.kernel.pools)
                  for n in step.covers}  # maybe: a stage is not alone
        alone = {n: str(kept.get(n, ALONE)) for step in plan.kernels
                 if (n := _lone(step, captured_operators, bool(channels_last))) is not None
                 and n not in plan.kept_whole and n not in staged}
        if not alone:
            return plan
        kept |= alone


def _lone(step: KernelStep, captured_operators: set[tuple[str, int, str]], channels_last: bool) -> Node | None:
    """The one captured operator that a kernel replaces, if it replaces only one and that one is simple.

    An operator whose inputs were rewritten is another node, of the same kind and origin. Norms, windows, large
    reductions and dear functions may gain from a kernel of their own: tuning measures them.
    """
    if isinstance(step.kernel, (Contraction, Recurrence, Attention, BatchedProduct)):
        return None
    if step.covers[0].kind == "special":  # it has no torch call
        return None
    if step.copies or (channels_last and step.transposes):  # the torch call would need a copy besides
        return None
    node = step.covers[0]
    captured = (node.op, id(node.origin), node.dtype) in captured_operators
    dear = node.kind in ("row", "norm", "window", "loss") or node.op in _DEAR_ALONE or (
        node.kind == "pointwise" and node.op in FUNCTIONS and FUNCTIONS[node.op].cost >= _DEAR) or (
        node.kind == "reduction" and node.inputs[0].bytes >= _LARGE_REDUCTION)
    return node if len(step.covers) == 1 and captured and not dear else None


def _attempt(graph: Graph, kept: dict[Node, str], move_bias: bool, channels_last: frozenset[Node],
             products: dict[Node, KernelConfig], fused_products: tuple[str, ...],
             known: dict[Hashable, Any]) -> Plan:
    """One plan under a set of kept nodes; grouping is refined until every access is affine.

    Reductions are taken in two stages for the sake of contractions that take the first one: those that none took stay
    whole.
    """
    # A norm that stays a torch call updates its statistics by itself.
    effects = tuple(e for e in graph.effects if e.owner is None or (e.owner not in kept and lowerable(e.owner)))
    asked = _asked(graph, kept_whole(kept))
    roots = list(dict.fromkeys([*graph.outputs, *(e.value for e in effects), *(c.value for c in asked)]))
    whole: set[Node] = set()
    apart = frozenset((*kept_whole(kept), *unrolled(kept), *products, *channels_last))
    rolled = "rolled", fused_products, *roots, apart
    if rolled not in known:
        known[rolled] = roll(roots, apart)
        if fused_products:
            known[rolled] = with_fused(roots, apart, known[rolled], fused_products)
    while True:
        lowered = prepare(roots, kept_whole(kept), move_bias, channels_last, products, whole,
                          known[rolled])
        grouping, loops = _grouped(lowered, known)
        alone = {reduction for first, reduction, _ in lowered.firsts if grouping.home[first].kind != "contraction"}
        if not alone:
            break
        whole |= alone
    steps = _steps(grouping, loops, lowered)
    results = tuple(lowered.values[n] for n in graph.outputs)
    updates = tuple(BufferUpdate(e.name, lowered.values[e.value]) for e in effects)
    steps, written = _write_buffers(steps, updates, results)
    left = tuple(u for u in updates if u.name not in written)
    checks = tuple(replace(c, value=lowered.values[c.value]) for c in asked if c.is_truth)
    return Plan(graph, tuple(alternating(steps)), results, left, kept, channels_last, contractions=products,
                checks=checks, fused_products=fused_products)


def _asked(graph: Graph, kept: Collection[Node]) -> list[Check]:
    """The graph's checks but for those of operators that stay torch calls, which refuse values by themselves."""
    by_calls, by_others = set[Node](), set[Node]()
    for node in graph.nodes() if graph.checks else ():
        (by_calls if node in kept else by_others).update(conditions_of(node))
    return [c for c in graph.checks if c.value not in by_calls or c.value in by_others]


def _grouped(lowered: Lowered, known: dict[Hashable, Any]) -> tuple[Grouping, dict[Group, _Compiled]]:
    """The groups, and what those compile to that become loops or contractions. known: by the forms of groups what they
    compile to, or what is asked of the grouping for it, to which more is added."""
    compilers: dict[str, Callable[..., _Compiled]] = {
        **_COMPILERS, "contraction": partial(compile_contraction, configs=lowered.anchors)}
    stored = set(lowered.stored)
    apart: set[Node] = set()
    rounds, grouping = 0, None
    while True:
        grouping = Grouping(lowered.values.values(), lowered.kept, stored, apart, lowered.anchors, grouping)
        loops: dict[Group, _Compiled] = {}
        wanted: set[Node] = set()
        changed: set[Node] = set()
        for group in (g for g in grouping.groups if g.kind in compilers):
            form = _form(group, grouping, lowered.anchors)
            try:
                if form not in known:
                    known[form] = _compiled(compilers[group.kind], group, grouping)
                if isinstance(known[form], _Asked):
                    raise known[form].problem()
                loops[group] = known[form]
            except (MustStore, Apart) as problem:
                near = grouping.surroundings(group)
                if rounds < _ONE_BY_ONE and not changed.isdisjoint(near):
                    continue
                changed |= near
                told_of = stored if isinstance(problem, MustStore) else apart
                if problem.node in told_of and problem.node not in wanted:
                    raise _failed(group, grouping, lowered, problem) from problem
                told_of.add(problem.node)
                wanted.add(problem.node)
            except Exception as error:
                if not is_ours(error):
                    raise
                raise _failed(group, grouping, lowered, error) from error
        if not wanted:
            return grouping, loops
        rounds += 1


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a group asks of the grouping before it can be compiled."""

    kind: type[MustStore | Apart]
    node: Node

    def problem(self) -> MustStore | Apart:
        return self.kind(self.node)


def _compiled(compiler: Callable[..., _Compiled], group: Group, grouping: Grouping) -> _Compiled | _Asked:
    try:
        return compiler(group, grouping.is_loaded)
    except (MustStore, Apart) as problem:
        return _Asked(type(problem), problem.node)


def _form(group: Group, grouping: Grouping, anchors: Mapping[Node, KernelConfig]) -> Hashable:
    """All that a group's kernel depends on: rounds of grouping leave most groups as they were, and so do plans of one
    model."""
    computed = _computed(group, grouping)
    loaded = frozenset(i for n in computed for i in n.inputs if grouping.is_loaded(i))
    settled = frozenset(n for n in computed if n in group.settled)
    config = anchors[group.nodes[0]] if group.kind == "contraction" else None
    how = config and (config.scheme, config.tiling, config.exact_functions)
    return group.kind, group.domain, group.axes, group.over, tuple(group.nodes), loaded, settled, how


def _failed(group: Group, grouping: Grouping, lowered: Lowered, cause: Exception) -> _Failed:
    nodes = dict.fromkeys(lowered.source[n] for n in _computed(group, grouping))
    return _Failed(tuple(n for n in nodes if n.kind not in ("leaf", "view")), cause)


def _ordered(groups: list[Group]) -> list[Group]:
    """Groups so that what is read comes first, otherwise in their first order."""
    result: list[Group] = []
    done: set[Group] = set()

    stack = [(group, False) for group in reversed(groups)]
    while stack:
        group, ready = stack.pop()
        if ready:
            result.append(group)
        elif group not in done:
            done.add(group)
            stack.append((group, True))
            stack.extend((needed, False) for needed in reversed(group.reads))
    return result


def _steps(grouping: Grouping, loops: dict[Group, _Compiled], lowered: Lowered) -> list[Step]:
    staged: dict[Node, list[Node]] = {}
    for first, _, node in lowered.firsts:
        staged.setdefault(first, []).append(node)
    wanted = set(grouping.roots)
    for loop in loops.values():
        wanted.update(loop.inputs)
    for group in grouping.groups:
        if group not in loops:
            wanted.update(base(i) if group.kind == "special" else i for n in group.nodes for i in n.inputs)
    steps: list[Step] = []
    numbers = count()
    beside: dict[Node, list[Node]] = {}
    for group in grouping.groups:
        if group.kind == "torch" and group.nodes[0].kind != "view":
            beside.setdefault(lowered.source[group.nodes[0]], []).append(group.nodes[0])
    for group in _ordered(grouping.groups):
        node = group.nodes[0]
        if group.kind == "torch":
            steps.append(TorchStep(node))
            continue
        if group.kind == "special":
            read = [base(i) for i in node.inputs]
            inputs = tuple(dict.fromkeys(read))
            covers = dict.fromkeys(own for n in group.nodes for own in lowered.covered(n))
            kernel = special_kernel(group.nodes, [inputs.index(i) for i in read])
            steps.append(KernelStep(_name(numbers, [node]), kernel, inputs, tuple(group.nodes), tuple(covers),
                                    beside=tuple(beside.get(lowered.source[node], ()))))
            continue
        loop = loops[group]
        outputs = tuple(n for n in group.nodes if n in wanted)
        computed = [n for n in _computed(group, grouping) if n.kind != "view"]
        sources = (node for n in computed for node in (*lowered.covered(n), *staged.get(n, ())))
        covers = tuple(dict.fromkeys(n for n in sources if n.kind != "view"))
        step = _loop_step(_name(numbers, group.nodes), loop, outputs, covers)
        steps.append(replace(step, pass_number=_pass_number(node, lowered)) if group.kind == "contraction" else step)
    return steps


def _pass_number(anchor: Node, lowered: Lowered) -> int:
    """See :attr:`kernelwright.plan.records.KernelStep.pass_number`."""
    return 2 if anchor.get("recompute") else 1 if lowered.anchors[anchor].recompute is not None else 0


def _loop_step(name: str, loop: _Compiled, outputs: tuple[Node, ...], covers: tuple[Node, ...]) -> KernelStep:
    """The step of a loop, without inputs that only dropped stores read."""
    kernel = loop.kernel(outputs)
    used = sorted(_buffers(kernel))
    if len(used) == len(loop.inputs):
        return KernelStep(name, kernel, loop.inputs, outputs, covers)
    raise AssertionError(f"{name}: an input of a store that nobody wants")  # every stored pointwise node is wanted


def _buffers(kernel: LoopKernel | Scan | Extremum | Contraction) -> set[int]:
    if isinstance(kernel, Contraction):
        roots = [kernel.left, kernel.right, *(part.expression for part in (*kernel.all_reductions, *kernel.stores))]
    else:
        kernel = kernel if isinstance(kernel, LoopKernel) else kernel.as_loop
        roots = [r.expression for r in kernel.reductions]
        roots += [s.expression for s in (*kernel.row_stores, *kernel.outer_stores)]
    return buffers_of(*roots)


def _computed(group: Group, grouping: Grouping) -> list[Node]:
    """The primitives that a group evaluates, operands on the fly included."""
    result: list[Node] = []
    seen: set[Node] = set()
    stack = list(reversed(group.nodes))
    while stack:
        node = stack.pop()
        if node in seen or number_of(node) is not None:
            continue
        seen.add(node)
        if node not in group.nodes and grouping.is_loaded(node):
            continue
        result.append(node)
        stack += reversed(node.inputs)
    return result


_SHORT = {"region_sum": "region_sum", "channel_energy": "channel_energy", "logsumexp": "logsumexp", "amax": "max",
          "amin": "min", "prod": "product", "var": "moments", "std": "moments", "mean": "mean", "sum": "sum"}


def _name(numbers: Iterator[int], nodes: Iterable[Node]) -> str:
    """A stable name such as k0_region_sum or k1_sum_gelu_erf."""
    words = list(dict.fromkeys(_SHORT.get(n.op, n.op) for n in nodes))
    return "_".join([f"k{next(numbers)}", *words[:3]])


def _write_buffers(steps: list[Step], updates: Iterable[BufferUpdate], results: tuple[Node, ...]
                   ) -> tuple[list[Step], set[str]]:
    """Let kernels update the model's buffers in place, where nobody else reads or returns the value."""
    made = {n: place for place, step in enumerate(steps) if isinstance(step, KernelStep) for n in step.outputs}
    read = {n for step in steps for n in _reads(step)} | set(results)
    readers: dict[str, list[int]] = {}  # of buffers
    for place, step in enumerate(steps):
        for name in dict.fromkeys(n["name"] for n in _reads(step) if n.op == "buffer"):
            readers.setdefault(name, []).append(place)
    written: set[str] = set()
    for update in updates:
        place = made.get(update.value)
        if place is None or update.value in read:
            continue
        step = steps[place]
        if not isinstance(step, KernelStep) or not isinstance(step.kernel, LoopKernel) or \
                set(readers.get(update.name, ())) - {place}:
            continue
        buffer = next((i for i in step.inputs if i.op == "buffer" and i["name"] == update.name), None)
        number = step.outputs.index(update.value)
        same = buffer is None or _same_place(step.kernel, step.inputs.index(buffer), number)
        if same and not any(name == update.name for _, name in step.buffers):
            steps[place] = replace(step, buffers=(*step.buffers, (number, update.name)))
            written.add(update.name)
    return steps, written


def _reads(step: Step) -> tuple[Node, ...]:
    return step.inputs if isinstance(step, KernelStep) else step.node.inputs


def _same_place(kernel: LoopKernel, buffer: int, output: int) -> bool:
    """Whether only the output's own store loads the buffer, and at the very element that it writes."""
    store = next((s for s in kernel.outer_stores if s.buffer == output), None)
    if store is None:
        return False
    others = [*(r.expression for r in kernel.reductions),
              *(s.expression for s in (*kernel.row_stores, *kernel.outer_stores) if s is not store)]

    def loads(root: Expression) -> list[Load | Element]:
        return [e for e in walk_expression(root) if isinstance(e, (Load, Element)) and e.buffer == buffer]

    return not any(loads(root) for root in others) and all(
        isinstance(e, Load) and e.index == store.index for e in loads(store.expression))
