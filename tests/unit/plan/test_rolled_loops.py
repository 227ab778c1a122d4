"""Loops that are written out, one subgraph for each step: which become recurrences, and what these compute."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from graph_tools import all_anchors, examples
from hypothesis import given
from hypothesis import strategies as st
from test_planner import Of, check_model, kinds
from test_recurrent_layers import recurrences, results
from torch import nn

from kernelwright.algebra.engine import rewrite_with
from kernelwright.capture.export import capture
from kernelwright.ir.node import Node
from kernelwright.plan.kernels import LoopKernel, Recurrence
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Plan, Unrolled
from kernelwright.plan.rolling.roll import roll

STEPS, BATCH, INSIDE, HIDDEN = 6, 3, 4, 5


def planned(function: Callable, *inputs: torch.Tensor, rewrite: bool = True, **parts: object) -> Plan:
    """The plan of a function of (module, inputs...), which gives what the function gives."""
    return check_model(Of(function, **parts), inputs, rewrite=rewrite)


def x_of(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (STEPS, BATCH, INSIDE)))


def one(plan: Plan) -> Recurrence:
    """The only recurrence of a plan, which does the work of all of its steps."""
    found = recurrences(plan)
    assert len(found) == 1, kinds(plan)
    step = next(s for s in plan.kernels if s.kernel is found[0])
    assert step.rolls and len(step.covers) >= found[0].steps
    return found[0]


# Cells of torch.nn --------------------------------------------------------------------------------


@st.composite
def cells(draw: st.DrawFn) -> tuple[nn.Module, bool, bool, str, bool, int]:
    """A cell, whether steps run backwards, whether it begins with zeros, what is shown, and the axis of steps."""
    kind = draw(st.sampled_from((nn.GRUCell, nn.LSTMCell, nn.RNNCell)))
    more = {"nonlinearity": draw(st.sampled_from(("tanh", "relu")))} if kind is nn.RNNCell else {}
    return (kind(INSIDE, HIDDEN, bias=draw(st.booleans()), **more), draw(st.booleans()), draw(st.booleans()),
            draw(st.sampled_from(("stacked", "last", "both", "joined", "some", "backwards"))), draw(st.booleans()),
            draw(st.integers(0, 1)))


@given(cells(), st.integers(4, 7), st.integers(1, 3))
@examples(25)
def test_cells_of_torch(drawn, steps, batch):
    cell, backwards, from_zero, shown, rewrite, axis = drawn
    two = isinstance(cell, nn.LSTMCell)

    def forward(m, x, *initial):
        states = list(initial) or [x.new_zeros(x.shape[1 - axis], HIDDEN)] * (1 + two)
        found = []
        for step in reversed(range(steps)) if backwards else range(steps):
            new = m.cell(x.select(axis, step), tuple(states) if two else states[0])
            states = list(new) if two else [new]
            found.append(states[0])
        return shows(shown, found, states)

    inputs = [torch.randn((steps, batch, INSIDE) if not axis else (batch, steps, INSIDE))]
    inputs += [] if from_zero else [torch.randn(batch, HIDDEN) for _ in range(1 + two)]
    plan = planned(forward, *inputs, rewrite=rewrite, cell=cell)
    kernel = one(plan)
    assert kernel.steps == steps and kernel.gates == (4 if two else 3 if isinstance(cell, nn.GRUCell) else 1)
    assert not any(isinstance(s.kernel, LoopKernel) for s in plan.kernels)


def shows(how: str, found: Sequence[torch.Tensor], states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    match how:
        case "stacked":
            return [torch.stack(list(found), 1)]
        case "last":
            return list(states)
        case "both":
            return [torch.stack(list(found)), *states]
        case "joined":
            return [torch.cat(list(found), 1), states[-1]]
        case "backwards":
            return [torch.stack(list(found)[::-1]), torch.stack(list(found), 2)]
    return [found[1], torch.cat((found[0], found[2], found[3], states[0]), 0)]


# Cells of any form --------------------------------------------------------------------------------


@st.composite
def written(draw: st.DrawFn) -> Callable:
    """A step of one or two states that is drawn from products, pointwise operators and operands of all kinds."""
    pointwise = st.sampled_from(("tanh", "sigmoid", "relu", "sin", "softsign"))
    layers = draw(st.sampled_from(("none", "one", "two", "gates")))
    names = [draw(pointwise) for _ in range(3)]
    second, own_scale, per_row, jump = (draw(st.booleans()) for _ in range(4))

    def step(m, h, c, x, row):
        own = m.inside(x)
        if layers == "one":
            own = own + m.first(h)
        elif layers == "two":
            own = own * torch.sigmoid(m.first(h)) + m.second(h)
        elif layers == "gates":
            left, right = m.gates(h).chunk(2, 1)
            own = getattr(torch, names[0])(own + left) if names[0] != "softsign" else own - right
        value = getattr(torch, names[1])(own + 0.3 * h) if names[1] != "softsign" else nn.functional.softsign(own)
        value = value * m.scale if own_scale else value - 0.1 * h
        value = value * row if per_row else value
        value = torch.where(value > 0.2, value - 0.1, value) if jump else value
        if second:
            c = 0.5 * c + value
            value = torch.tanh(c) - h
        return value, c

    return step


@given(written(), st.booleans(), st.booleans())
@examples(25)
def test_cells_that_are_written_out(step, from_zero, rewrite):
    def forward(m, x, rows, h, c):
        h, c = (torch.zeros_like(h), torch.zeros_like(c)) if from_zero else (h, c)
        found = []
        for t in range(STEPS):
            h, c = step(m, h, c, x[t], rows[:, t:t + 1])
            found.append(h)
        return torch.stack(found), c

    plan = planned(forward, x_of(), torch.rand(BATCH, STEPS), torch.randn(BATCH, HIDDEN), torch.randn(BATCH, HIDDEN),
                   rewrite=rewrite, inside=nn.Linear(INSIDE, HIDDEN), first=nn.Linear(HIDDEN, HIDDEN, bias=False),
                   second=nn.Linear(HIDDEN, HIDDEN), gates=nn.Linear(HIDDEN, 2 * HIDDEN), scale=torch.rand(HIDDEN))
    # Where neither state is read by the next step in the drawn cell, there is no loop.
    assert len(recurrences(plan)) <= 1


@pytest.mark.parametrize("rewrite", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_layer_of_the_input_beside_the_state(rewrite, first):
    """The vanilla cell of KernelBench: its product with the inputs is one for all steps, whatever rules did."""

    def forward(m, x, h):
        found = []
        for t in range(STEPS):
            h = torch.tanh(m.layer(torch.cat((x[t], h) if first else (h, x[t]), 1)))
            found.append(m.head(h))
        return torch.stack(found), h

    plan = planned(forward, x_of(), torch.rand(BATCH, HIDDEN), rewrite=rewrite,
                   layer=nn.Linear(INSIDE + HIDDEN, HIDDEN), head=nn.Linear(HIDDEN, 2))
    kernel = one(plan)
    assert (kernel.steps, kernel.shape, kernel.gates) == (STEPS, (BATCH, HIDDEN), 1)
    assert kinds(plan).count("linear") <= (2 if rewrite else 1 + STEPS)


def test_a_leaky_neuron():
    """Without products: it begins with zeros that rules have put into its first step, and shows what is no state."""

    def forward(m, x):
        memory, spikes = x.new_zeros(BATCH, HIDDEN), []
        for t in range(STEPS):
            memory = 0.9 * memory + m.layer(x[t])
            spikes.append((memory > 0.5).float())
            memory = memory - spikes[-1]
        return torch.stack(spikes, 1), memory

    plan = planned(forward, x_of(), layer=nn.Linear(INSIDE, HIDDEN))
    kernel = one(plan)
    assert kernel.steps == STEPS and not kernel.weights and sorted(results(kernel)) == ["last", "states"]
    assert planned(forward, x_of(), layer=nn.Linear(INSIDE, HIDDEN), rewrite=False).kernels


@pytest.mark.parametrize("given", [False, True])
def test_a_moving_average(given):
    def forward(m, x, h):
        average = h if given else x[:, 0]
        found = [average]
        for t in range(1, x.shape[1]):
            average = m.decay * average + (1 - m.decay) * x[:, t]
            found.append(average)
        return torch.stack(found, 1)

    kernel = one(planned(forward, x_of(BATCH, 9, HIDDEN), torch.randn(BATCH, HIDDEN), decay=torch.rand(HIDDEN)))
    assert kernel.steps == 8 and not kernel.weights and kernel.shape == (BATCH, HIDDEN)


def test_a_state_of_four_axes():
    """A selective scan: states of (batch, heads, width, size), with operands that lack some of these axes."""

    def forward(m, x, dt, b, c):
        state = x.new_zeros(2, 3, 4, 5)
        found = []
        for t in range(STEPS):
            state = torch.exp(dt[t] * m.a).unsqueeze(-1) * state + (dt[t] * x[t]).unsqueeze(-1) * b[t].unsqueeze(2)
            found.append((state * c[t].unsqueeze(2)).sum(-1))
        return torch.stack(found)

    plan = planned(forward, x_of(STEPS, 2, 3, 4), torch.rand(STEPS, 2, 3, 1), x_of(STEPS, 2, 3, 5),
                   x_of(STEPS, 2, 3, 5), a=-torch.rand(3, 1))
    assert len(recurrences(plan)) <= 1


def test_states_of_two_steps_before():
    def forward(m, x, y, before):
        found = []
        for t in range(STEPS):
            y, before = 0.5 * y - 0.25 * before + x[t], y
            found.append(y)
        return torch.stack(found), before

    kernel = one(planned(forward, x_of(STEPS, BATCH, HIDDEN), torch.randn(BATCH, HIDDEN), torch.randn(BATCH, HIDDEN)))
    assert kernel.steps == STEPS and len(kernel.updates) == 2


def test_a_loop_without_a_batch():
    def forward(m, x, h):
        for t in range(STEPS):
            h = torch.tanh(m.inside(x[t]) + m.own(h))
        return h

    kernel = one(planned(forward, x_of(STEPS, INSIDE), torch.randn(HIDDEN), inside=nn.Linear(INSIDE, HIDDEN),
                         own=nn.Linear(HIDDEN, HIDDEN)))
    assert kernel.shape == (1, HIDDEN) and results(kernel) == ["last"]


def test_a_state_that_is_a_number():
    """Of no axes, as the relaxation of a loss is."""
    def forward(m, x):
        y = x.square().mean()
        for _ in range(STEPS):
            y = y - 0.1 * (torch.tanh(y) - x.sum())
        return y

    planned(forward, x_of(BATCH, HIDDEN))


def test_a_loop_above_another_one():
    """Two layers, step by step: the second one's operand is what the first one gives at each step."""

    def forward(m, x):
        h, g = x.new_zeros(BATCH, HIDDEN), x.new_zeros(BATCH, HIDDEN)
        found = []
        for t in range(STEPS):
            h = m.below(x[t], h)
            g = m.above(h, g)
            found.append(g)
        return torch.stack(found), h

    plan = planned(forward, x_of(), below=nn.GRUCell(INSIDE, HIDDEN), above=nn.GRUCell(HIDDEN, HIDDEN))
    assert [k.steps for k in recurrences(plan)] == [STEPS] * 2 and kinds(plan).count("linear") == 2
    assert not any(isinstance(s.kernel, LoopKernel) for s in plan.kernels)


def test_two_ways_with_the_same_weights():
    def forward(m, x):
        h, g = x.new_zeros(BATCH, HIDDEN), x.new_zeros(BATCH, HIDDEN)
        for t in range(STEPS):
            h = m.cell(x[t], h)
        for t in reversed(range(STEPS)):
            g = m.cell(x[t], g)
        return torch.cat((h, g), 1)

    assert [k.steps for k in recurrences(planned(forward, x_of(), cell=nn.GRUCell(INSIDE, HIDDEN)))] == [STEPS] * 2


def test_what_a_step_makes_of_its_operand_alone():
    """Norms and masks of the inputs are no part of the recurrence, but values of each step."""

    def forward(m, x, mask):
        h = x.new_zeros(BATCH, HIDDEN)
        for t in range(STEPS):
            new = torch.tanh(m.norm(m.inside(x[t])) + m.own(h))
            h = torch.where(mask[:, t].unsqueeze(1), new, h)
        return h

    plan = planned(forward, x_of(), torch.rand(BATCH, STEPS) > 0.3, inside=nn.Linear(INSIDE, HIDDEN),
                   norm=nn.LayerNorm(HIDDEN), own=nn.Linear(HIDDEN, HIDDEN))
    assert one(plan).steps == STEPS and kinds(plan).count("layer_norm") + len(plan.kernels) <= 4


def test_values_of_each_step_are_put_side_by_side():
    """As those of an operator that no kernel has."""

    def forward(m, x):
        h = x.new_zeros(BATCH, HIDDEN)
        for t in range(STEPS):
            h = torch.tanh(x[t].cumsum(0).sort(1).values + m.own(h))
        return h

    assert one(planned(forward, x_of(STEPS, BATCH, HIDDEN), own=nn.Linear(HIDDEN, HIDDEN))).steps == STEPS


def test_parts_of_a_row_are_steps():
    def forward(m, x, h):
        for part in x.chunk(STEPS, 1):
            h = torch.tanh(part + m.own(h))
        return h

    assert one(planned(forward, x_of(BATCH, STEPS * HIDDEN), torch.randn(BATCH, HIDDEN),
                       own=nn.Linear(HIDDEN, HIDDEN))).steps == STEPS


def test_products_written_as_matrices():
    def forward(m, x, h):
        for t in range(STEPS):
            h = torch.tanh(x[t] @ m.inside + h @ m.own + m.bias)
        return h

    assert one(planned(forward, x_of(), torch.randn(BATCH, HIDDEN), inside=torch.randn(INSIDE, HIDDEN),
                       own=torch.randn(HIDDEN, HIDDEN), bias=torch.randn(HIDDEN))).gates == 1


# What is no such loop -----------------------------------------------------------------------------


def gru_steps(m, x, h):
    for t in range(STEPS):
        h = m.cell(x[t], h)
    return h


def test_an_odd_step_ends_the_loop():
    """What comes before an odd step is one loop, what comes after it another one."""

    def forward(m, x, h):
        for t in range(11):
            h = torch.tanh(x[t] + m.own(h))
            h = torch.relu(h) if t == 4 else h
        return h

    plan = planned(forward, x_of(11, BATCH, HIDDEN), torch.randn(BATCH, HIDDEN), own=nn.Linear(HIDDEN, HIDDEN))
    assert sorted(k.steps for k in recurrences(plan)) == [5, 6]


def test_another_weight_ends_the_loop():
    def forward(m, x, h):
        for t in range(9):
            h = torch.tanh(x[t] + (m.other if t == 2 else m.own)(h))
        return h

    plan = planned(forward, x_of(9, BATCH, HIDDEN), torch.randn(BATCH, HIDDEN), own=nn.Linear(HIDDEN, HIDDEN),
                   other=nn.Linear(HIDDEN, HIDDEN))
    assert [k.steps for k in recurrences(plan)] == [6]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_few_steps_are_no_loop(steps):
    def forward(m, x, h):
        for t in range(steps):
            h = torch.tanh(x[t] + m.own(h))
        return h

    assert not recurrences(planned(forward, x_of(STEPS, BATCH, HIDDEN), torch.randn(BATCH, HIDDEN),
                                   own=nn.Linear(HIDDEN, HIDDEN)))


def test_steps_at_uneven_places_are_no_loop():
    def forward(m, x, h):
        for t in (0, 1, 3, 4, 7, 9):
            h = torch.tanh(x[t] + m.own(h))
        return h

    assert not recurrences(planned(forward, x_of(10, BATCH, HIDDEN), torch.randn(BATCH, HIDDEN),
                                   own=nn.Linear(HIDDEN, HIDDEN)))


def test_a_state_that_is_used_twice():
    """The state before the last one is read by all later steps: a value of one step, which is looked up."""

    def forward(m, x, h):
        first = None
        for t in range(STEPS):
            h = torch.tanh(x[t] + m.own(h))
            first = h if t == 0 else first
        return h + first

    assert one(planned(forward, x_of(STEPS, BATCH, HIDDEN), torch.randn(BATCH, HIDDEN),
                       own=nn.Linear(HIDDEN, HIDDEN))).steps == STEPS


def _norm_of_the_state(m, x, h):
    for t in range(STEPS):
        h = torch.tanh(m.norm(x[t] + m.own(h)))
    return h


def _product_of_a_product(m, x, h):
    for t in range(STEPS):
        reset = torch.sigmoid(m.own(h))
        h = torch.tanh(x[t] + m.other(reset * h))
    return h


def _attention_to_states(m, x, h):
    found = [h]
    for t in range(STEPS):
        h = torch.tanh(x[t] + torch.stack(found).mean(0))
        found.append(h)
    return h


def _other_weights(m, x, h):
    for t in range(STEPS):
        h = h + torch.tanh(m.layers[t](h))
    return h


@pytest.mark.parametrize("forward", [_norm_of_the_state, _product_of_a_product, _attention_to_states, _other_weights])
def test_what_stays_as_it_is(forward):
    plan = planned(forward, x_of(STEPS, BATCH, HIDDEN), torch.randn(BATCH, HIDDEN), own=nn.Linear(HIDDEN, HIDDEN),
                   other=nn.Linear(HIDDEN, HIDDEN), norm=nn.LayerNorm(HIDDEN),
                   layers=nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(STEPS)))
    assert not recurrences(plan)


@pytest.mark.parametrize(("batch", "count"), [(100, 1), (2000, 0)])
def test_large_products_are_the_librarys(batch, count):
    graph = capture(Of(gru_steps, cell=nn.GRUCell(INSIDE, 128)), (x_of(STEPS, batch, INSIDE), torch.randn(batch, 128)))
    assert len(recurrences(make_plan(graph, graph))) == count


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_stay_as_they_are(dtype):
    graph = capture(Of(gru_steps, cell=nn.GRUCell(INSIDE, HIDDEN).to(dtype)),
                    (x_of().to(dtype), torch.randn(BATCH, HIDDEN, dtype=dtype)))
    assert not recurrences(make_plan(graph, graph))


# What becomes of it -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
def test_a_loop_that_is_given_up_is_planned_step_by_step(kind):
    """As it would be if there were no recurrences: its kernels fuse what they can, and a cell is a call."""
    two = kind is nn.LSTMCell

    def forward(m, x, h, c):
        for t in range(STEPS):
            h, c = m.cell(x[t], (h, c)) if two else (m.cell(x[t], h), c)
        return h, c

    graph = capture(Of(forward, cell=kind(INSIDE, HIDDEN)),
                    (x_of(), torch.randn(BATCH, HIDDEN), torch.randn(BATCH, HIDDEN)))
    plan = make_plan(graph, graph)
    step = next(s for s in plan.kernels if isinstance(s.kernel, Recurrence))
    assert step.rolls and len(step.covers) >= STEPS
    again = make_plan(graph, graph, step.left("slower"))
    assert not recurrences(again) and all(isinstance(r, Unrolled) for n, r in again.kept.items() if n in again.unrolled)
    if two:
        assert not again.kernels and sum(k == "opaque" for k in kinds(again)) == STEPS
    else:
        assert len(again.kernels) >= STEPS
    kept = make_plan(graph, graph, dict.fromkeys(step.covers, "slower"))
    assert not kept.kernels


def test_long_loops_take_time_in_proportion():
    """Calls of Python's functions, which no load of the machine changes."""
    def calls(steps: int) -> int:
        def forward(m, x, h):
            for t in range(steps):
                h = m.cell(x[t], h)
            return h

        graph = capture(Of(forward, cell=nn.GRUCell(2, 2)), (torch.randn(steps, 1, 2), torch.randn(1, 2)))
        roots: list[Node] = list(rewrite_with(graph, all_anchors(graph))[0].outputs)
        count = 0

        def counted(frame, event, argument):
            nonlocal count
            count += event == "call"

        sys.setprofile(counted)
        try:
            assert roll(roots, ()) is not None
        finally:
            sys.setprofile(None)
        return count

    few, many = calls(20), calls(80)
    assert many < 5 * few

