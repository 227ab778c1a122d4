"""Long models: loops of many steps are planned and written in time near linear in them, and without deep recursion.

Work is counted in calls of functions, not in seconds, so that no other program on the machine matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from graph_tools import assert_close, calls, graph_of, leaf, random_values, run_plan
from native_tools import other_skeletons

from kernelwright.algebra.build import reduce
from kernelwright.algebra.engine import rewrite
from kernelwright.codegen.generate import TARGETS, KernelFailed, generate
from kernelwright.emit.program import make_program
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, constant, make
from kernelwright.plan import groups
from kernelwright.plan.describe import describe
from kernelwright.plan.expressions import Apply, Constant, Expression, Index, Load, Whole, replaced, varies, walk
from kernelwright.plan.kernels import LoopKernel, Recurrence
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Unrolled
from kernelwright.roofline.devices import GENERIC_CPU

X = Load(0, Index((1, 0)))


# Expressions --------------------------------------------------------------------------------------


def twice(depth: int) -> Apply:
    """x doubled ``depth`` times: as many functions, and 2^depth paths to x."""
    result = X
    for _ in range(depth):
        result = Apply("add", (result, result))
    return result


def test_equal_expressions_are_one_object():
    assert Apply("mul", (X, Constant(2.0))) is Apply("mul", (Load(0, Index((1, 0))), Constant(2.0)))
    assert Constant(0.0) is not Constant(-0.0)
    assert len({Constant(1.0), Whole(1), Constant(float("nan")), Constant(float("nan"))}) == 3
    assert Load(0, Index((1, 0)), (), 0.0) is not Load(0, Index((1, 0)), (), -0.0)
    assert twice(3000) is twice(3000)


def test_walks_visit_what_is_shared_once():
    deep = twice(3000)
    asked: list[object] = []
    assert len(list(walk(deep, deep))) == 3001
    assert list(walk(deep, into=lambda node: node is deep)) == [deep.arguments[0], deep]
    assert replaced(deep, lambda node: asked.append(node)) is deep and len(asked) == 3001
    other = replaced(deep, lambda node: Load(1, Index((0, 1))) if node is X else None)
    assert varies(other, [1]) and not varies(other, [0]) and len(repr(other)) < 100 * 3001


# Graphs -------------------------------------------------------------------------------------------


def step_of(x: Node, number: int) -> Node:
    """Column ``number`` of x."""
    return make("reshape", make("slice", x, axis=1, start=number, stop=number + 1, step=1), shape=x.shape[:1])


def neuron(steps: int, every: bool) -> list[Node]:
    """A state that is read twice at each step; its spikes, at every step or their number."""
    x = leaf("x", 16, steps)
    state, total = step_of(x, 0), constant(0.0)
    spikes = []
    for number in range(1, steps):
        state = make("add", make("mul", state, constant(0.9)), step_of(x, number))
        spike = make("cast", make("gt", state, constant(1.0)), to="float32", shape=(16,), dtype="float32")
        state = make("sub", state, spike)
        total = make("add", spike, total)
        spikes.append(spike)
    return [state, *(spikes if every else [total])]


def solver(steps: int) -> list[Node]:
    x = y = leaf("x", 4, 8)
    for _ in range(steps):
        y = make("sub", y, make("mul", make("sub", make("tanh", y), x), constant(0.02)))
    return [y]


def additions(steps: int) -> list[Node]:
    """The sum of as many parameters."""
    total = leaf("x", 4, 8)
    for number in range(steps):
        total = make("add", total, leaf(f"p{number}", 8, op="parameter"))
    return [total]


def recurrent(steps: int) -> list[Node]:
    """A cell with products and a norm at each step."""
    x, w = leaf("x", 4, steps), leaf("w", 8, 8, op="parameter")
    h = make("expand", make("reshape", step_of(x, 0), shape=(4, 1)), shape=(4, 8))
    for number in range(1, steps):
        added = make("add", make("matmul", h, w), make("reshape", step_of(x, number), shape=(4, 1)))
        h = make("tanh", make("sub", added, reduce("mean", added, (1,))))
    return [h]


def means(steps: int) -> list[Node]:
    """The mean of a sum of as many terms, which rules take apart."""
    return [reduce("mean", additions(steps)[0], (1,))]


GRAPHS: dict[str, Callable[[int], list[Node]]] = {
    "state": lambda n: neuron(n, False), "steps": lambda n: neuron(n, True), "solver": solver,
    "additions": additions, "recurrent": recurrent, "means": means,
}
#: Those that are recurrences, which are planned step by step, too.
LOOPS = ("state", "steps")
WAYS = [*((name, False) for name in GRAPHS), *((name, True) for name in LOOPS)]


def expressions(kernel: LoopKernel | Recurrence) -> Iterator[Expression]:
    """All that a kernel computes."""
    if isinstance(kernel, Recurrence):
        yield from (*kernel.initial, *kernel.updates, *(store.expression for store in kernel.stores))
    else:
        yield from (part.expression for part in (*kernel.reductions, *kernel.outer_stores))


def written(graph: Graph, target: str, *, apart: bool = False) -> Iterator[int]:
    """The numbers of nodes that the kernels of a graph load and compute, written and described on the way. apart: no
    loop is a recurrence, as where that is slower."""
    rewriting = rewrite(graph, GENERIC_CPU)
    kept = dict.fromkeys(rewriting.graph.nodes(), Unrolled("slower")) if apart else {}
    plan = make_plan(rewriting.graph, graph, kept)
    (plan,), sources = generate([plan], target)
    make_program("inference", plan, sources, target=TARGETS[target])
    describe("inference", graph, rewriting, plan, GENERIC_CPU, texts=("", ""))
    for step in plan.kernels:
        yield len(list(walk(*expressions(step.kernel))))


@pytest.mark.parametrize("target", ["cpp", "cuda"])
@pytest.mark.parametrize(("name", "apart"), WAYS)
def test_work_is_near_linear(name, apart, target, monkeypatch):
    monkeypatch.setattr(groups, "MOST_NODES", 40)  # so that the shortest of these loops is a long one
    graphs = [graph_of(*GRAPHS[name](steps)) for steps in (60, 120, 240)]
    work = [calls(lambda graph=graph: list(written(graph, target, apart=apart))) for graph in graphs]
    assert work[2] < 2.4 * work[1] < 2.4 * 2.4 * work[0], work


@pytest.mark.parametrize(("name", "apart"), WAYS)
def test_long_loops_are_planned(name, apart):
    """No recursion is as deep as the model is long, and no kernel is as long as it."""
    sizes = list(written(graph_of(*GRAPHS[name](400)), "cpp", apart=apart))
    assert max(sizes, default=0) <= 2 * groups.MOST_NODES
    if name in LOOPS:
        assert len(sizes) > 3 if apart else max(sizes) < 30


@pytest.mark.parametrize(("name", "apart"), WAYS)
def test_cut_chains_keep_their_values(name, apart):
    roots = GRAPHS[name](180)
    graph = graph_of(*roots)
    values = random_values(roots)
    rewritten = rewrite(graph, GENERIC_CPU).graph
    plan = make_plan(rewritten, graph, dict.fromkeys(rewritten.nodes(), Unrolled("slower")) if apart else {})
    for actual, expected in zip(run_plan(plan, values)[0], evaluate(roots, values, torch.float64), strict=True):
        assert_close(actual, expected, 1e-6)


def test_a_kernel_that_cannot_be_written_is_named(monkeypatch):
    from kernelwright.codegen import generate as module

    def fails(kernel, name):
        raise RecursionError("too deep")

    monkeypatch.setattr(module, "TARGETS", other_skeletons(lambda made: fails))
    graph = graph_of(*solver(3))
    plan = make_plan(graph, graph)
    with pytest.raises(KernelFailed, match="too deep") as failed:
        generate([plan], "cpp")
    assert [step.covers for step in failed.value.steps] == [plan.kernels[0].covers]
