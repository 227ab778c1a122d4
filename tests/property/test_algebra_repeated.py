"""Stage 4, REWRITE: layers that a loop calls once a step become one call where nothing of the loop is in between."""

from __future__ import annotations

import pytest
import torch
from graph_tools import anchor, check_rewrite, examples, graph_of, leaf, rewritten
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kernelwright.algebra.engine import rewrite_with
from kernelwright.algebra.repeated import REPEATED
from kernelwright.algebra.rule import Context
from kernelwright.capture.export import capture
from kernelwright.codegen.reference.plan import values_of
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, make, walk

STEP, BESIDE, TOGETHER = (rule.name for rule in REPEATED)


def step(x: Node, axis: int, place: int) -> Node:
    """What x has at a place of an axis."""
    piece = make("slice", x, axis=axis, start=place, stop=place + 1, step=1)
    return make("reshape", piece, shape=(*x.shape[:axis], *x.shape[axis + 1:]))


def together(values: list[Node], axis: int) -> Node:
    shape = values[0].shape
    wide = [make("reshape", v, shape=(*shape[:axis], 1, *shape[axis:])) for v in values]
    return make("concatenate", *wide, axis=axis, dtype=values[0].dtype,
                shape=(*shape[:axis], len(values), *shape[axis:]))


def linear(x: Node, name: str, width: int, bias: bool = True) -> Node:
    more = [leaf(f"{name}.b", width, op="parameter", dtype=x.dtype)] if bias else []
    return anchor("linear", x, leaf(f"{name}.w", width, x.shape[-1], op="parameter", dtype=x.dtype), *more)


def beside(*values: Node) -> Node:
    first, rank = values[0], values[0].rank
    return make("concatenate", *values, axis=rank - 1, dtype=first.dtype,
                shape=(*first.shape[:-1], sum(v.shape[-1] for v in values)))


@st.composite
def loops(draw: st.DrawFn) -> list[Node]:
    """Loops over steps along any axis, with layers alone, or beside a state at either side, or a second value, with
    results that are returned one by one, together, or both; some of them leave steps out, or change their weights."""
    rank = draw(st.integers(2, 4))
    axis = draw(st.integers(0, rank - 1))
    sizes = [draw(st.integers(1, 3)) for _ in range(rank)]
    sizes[axis] = draw(st.integers(2, 7))
    x = leaf("x", *sizes)
    x = make("sin", x) if draw(st.booleans()) else x
    inner = [s for a, s in enumerate(sizes) if a != axis]
    width = draw(st.integers(1, 4))
    state: Node = leaf("h", *inner[:-1], width)
    other = leaf("z", *inner[:-1], 2)
    kind = draw(st.sampled_from(["alone", "before", "after", "between", "plus"]))
    bias, odd = draw(st.booleans()), draw(st.sampled_from([-1, -1, -1, 0, 2]))
    places = list(range(sizes[axis]))
    if draw(st.integers(0, 4)) == 0:
        places.remove(draw(st.sampled_from(places)))
    if draw(st.integers(0, 4)) == 0:
        places.append(draw(st.sampled_from(places)) if places else 0)
    results = []
    for number in places:
        name = "odd" if number == odd else "w"
        now = step(x, axis, number)
        if kind == "alone":
            state = make("tanh", linear(now, name, width, bias))
        elif kind == "plus":
            state = make("tanh", make("add", linear(now, name, width, bias), linear(state, "u", width, False)))
        else:
            parts = {"before": (now, state), "after": (state, now), "between": (other, now, state)}[kind]
            state = make("tanh", linear(beside(*parts), name, width, bias))
        results.append(linear(state, "v", 3) if draw(st.booleans()) or number % 2 else
                       linear(state, "v", 3, draw(st.booleans())))
    shown = draw(st.sampled_from(["together", "one by one", "both"]))
    read = [together(results, draw(st.integers(0, results[0].rank - 1)))] if results and shown != "one by one" else []
    if shown != "together":
        read += [make("exp", r) if draw(st.booleans()) else r for r in results]
    return read or [x]


@examples(500)
@given(loops())
def test_values_stay_and_rewriting_ends(read: list[Node]) -> None:
    graph = graph_of(*read)
    check_rewrite(graph)
    result, _ = rewritten(graph)
    before, after = ([n for n in walk(g.outputs) if n.op == "linear"] for g in (graph, result))
    assert len(after) <= 2 * len(before)


def used(graph: Graph) -> list[str]:
    return [a.rule.name for a in rewritten(graph)[1] if a.rule in REPEATED]


def loop(steps: int = 5, *, dtype: str = "float32", width: int = 4, layers: tuple[str, ...] = ("w",), left: int = 0,
         order: tuple[int, int] = (0, 1)) -> tuple[Graph, list[Node]]:
    """A recurrence beside steps of x, whose states are read by a layer each; all of these together."""
    x, state = leaf("x", steps, 3, width, dtype=dtype), leaf("h", 3, width, dtype=dtype)
    results = []
    for number in range(steps - left):
        parts = (step(x, 0, number), state)
        state = make("tanh", linear(beside(*(parts[n] for n in order)), layers[number % len(layers)], width))
        results.append(linear(state, "v", 2))
    return graph_of(together(results, 0)), results


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_loop_keeps_its_recurrence_alone(order: tuple[int, int]) -> None:
    graph, _ = loop(order=order)
    assert used(graph) == [BESIDE] * 5 + [TOGETHER]
    result, _ = rewritten(graph)
    found = [n for n in walk(result.outputs) if n.op == "linear"]
    # One of all steps, one of a state for each, one of all states.
    assert sorted(n.shape for n in found) == sorted([(5, 3, 4), *[(3, 4)] * 5, (5, 3, 2)])
    assert sum(n.op == "concatenate" for n in walk(result.outputs)) == 1


@pytest.mark.parametrize(("how", "rules"), [
    ({"steps": 3}, set()), ({"left": 1}, {TOGETHER}), ({"layers": ("w", "u")}, {TOGETHER}),
    ({"dtype": "bfloat16"}, {TOGETHER}), ({"width": 1 << 17}, set()), ({"dtype": "float64"}, {BESIDE, TOGETHER})])
def test_what_is_no_such_loop(how: dict, rules: set[str]) -> None:
    """Too few steps, one that is not read, other weights, 16 bits that would be rounded in between, large layers."""
    assert set(used(loop(**how)[0])) == rules


def test_layers_that_others_read_stay_apart() -> None:
    graph, results = loop()
    assert TOGETHER not in used(graph_of(*graph.outputs, results[2]))
    assert TOGETHER not in used(graph_of(*graph.outputs, make("exp", results[2])))


def test_results_have_memory_of_their_own() -> None:
    """Steps of one product share memory, which eager's results do not."""
    x = leaf("x", 5, 3, 4)
    layers = [linear(step(x, 0, n), "w", 2) for n in range(5)]
    assert used(graph_of(*[make("exp", y) for y in layers])) == [STEP] * 5
    assert used(graph_of(*layers)) == []
    shown = make("reshape", layers[1], shape=(6,))
    assert used(graph_of(*[make("exp", y) for y in layers], shown)) == [STEP] * 4


class Cells(nn.Module):
    """A cell of PyTorch, called once a step."""

    def __init__(self, kind: type[nn.Module], **options: object) -> None:
        super().__init__()
        self.cell, self.last = kind(3, 4, **options), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        found = []
        for now in x.unbind(1):
            h = self.cell(now, h)
            found.append(self.last(h))
        return torch.stack(found, 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "more"), [(nn.GRUCell, {}), (nn.RNNCell, {}), (nn.RNNCell, {"nonlinearity": "relu"})])
def test_cells_of_pytorch(kind: type[nn.Module], more: dict, bias: bool) -> None:
    model = Cells(kind, bias=bias, **more).double().eval()
    inputs = [torch.randn(2, 6, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)]
    graph = capture(model, inputs)
    result, applications = rewrite_with(graph, Context())
    assert [a.rule.name for a in applications if a.rule in REPEATED].count(STEP) == 6
    assert sum(n.op == "linear" for n in walk(result.outputs)) == 8
    with torch.no_grad():
        wanted = model(*inputs)
    for outputs in (graph.outputs, result.outputs):
        assert torch.allclose(evaluate(outputs, values_of(model, graph, inputs))[0], wanted, rtol=1e-12, atol=1e-12)


def test_cells_in_sixteen_bits_stay_pytorchs() -> None:
    """PyTorch's kernels round once where operators round one by one."""
    model = Cells(nn.GRUCell).to(torch.bfloat16).eval()
    graph = capture(model, [torch.randn(2, 6, 3, dtype=torch.bfloat16), torch.randn(2, 4, dtype=torch.bfloat16)])
    assert sum(n.get("target") == "aten.gru_cell.default" for n in graph.nodes()) == 6


def test_a_long_loop_is_rewritten_in_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all steps have in common is found out once, and not at each of them."""
    from kernelwright.algebra import repeated

    counted, told, steps = [], [], repeated._steps
    for length in (32, 128):
        asked: list[int] = []
        monkeypatch.setattr(repeated, "_steps", lambda *a, asked=asked: (asked.append(1), steps(*a))[1])
        result, applications = rewritten(loop(length)[0])
        assert [a.rule.name for a in applications].count(BESIDE) == length
        counted.append(len(asked))
        told.append(sum(map(len, result.replaces.values())))
    assert counted[0] == counted[1] <= 2
    assert told[1] < 5 * told[0], "what nodes stand for grows with the steps, not with their square"
