"""Recurrent layers of torch.nn in plans: the products with the inputs, and the recurrence as a kernel."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from graph_tools import examples
from hypothesis import given
from hypothesis import strategies as st
from test_planner import Of, check_model, kinds
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.plan.expressions import Constant
from kernelwright.plan.kernels import Recurrence
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelStep, Plan


def recurrences(plan: Plan) -> list[Recurrence]:
    return [s.kernel for s in plan.kernels if isinstance(s.kernel, Recurrence)]


def outputs(layer: nn.Module, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """All results of a layer: the states of all steps, and the last ones."""
    x, *initial = inputs
    states, last = layer(x, initial[0] if len(initial) == 1 else tuple(initial) or None)
    return states, *(last if isinstance(last, tuple) else (last,))


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Module, tuple[torch.Tensor, ...], int]:
    """A layer, inputs with or without initial states, and how many recurrences it has."""
    kind = draw(st.sampled_from((nn.LSTM, nn.GRU, nn.RNN)))
    count, both = draw(st.integers(1, 3)), draw(st.booleans())
    batch_first, hidden = draw(st.booleans()), draw(st.integers(1, 5))
    more = {"nonlinearity": draw(st.sampled_from(("tanh", "relu")))} if kind is nn.RNN else {}
    layer = kind(draw(st.integers(1, 4)), hidden, count, bias=draw(st.booleans()), batch_first=batch_first,
                 bidirectional=both, dropout=0.5 * draw(st.booleans()) * (count > 1), **more).eval()
    steps, batch = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    unbatched = draw(st.booleans())
    outer = (steps,) if unbatched else (batch, steps) if batch_first else (steps, batch)
    inputs = [torch.randn(*outer, layer.input_size)]
    if draw(st.booleans()):
        shape = (count * (1 + both), *(() if unbatched else (batch,)), hidden)
        inputs += [torch.randn(shape) for _ in range(2 if kind is nn.LSTM else 1)]
    return layer, tuple(inputs), count * (1 + both)


@given(layers())
@examples(60)
def test_layers_are_recurrences(drawn):
    layer, inputs, count = drawn
    plan = check_model(Of(lambda m, *given: outputs(m.layer, *given), layer=deepcopy(layer)), inputs)
    assert len(recurrences(plan)) == count
    left = [s.node.get("target") for s in plan.steps if not isinstance(s, KernelStep)]
    assert not {"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"}.intersection(left)


def results(kernel: Recurrence) -> list[str]:
    """What a kernel stores: of all steps, or of the last one."""
    return ["states" if s.index.strides[0] else "last" for s in kernel.stores]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_what_is_not_asked_for_is_not_computed(kind):
    """Of two layers the last state needs both; memories are stored where somebody reads them."""
    layer = kind(3, 4, 2)
    x = torch.randn(5, 2, 3)
    plan = check_model(Of(lambda m, x: m.layer(x)[0][-1], layer=deepcopy(layer)), (x,))
    assert kinds(plan).count("linear") == 2 and [results(k) for k in recurrences(plan)] == [["states"]] * 2
    last = check_model(Of(lambda m, x: outputs(m.layer, x)[-1], layer=deepcopy(layer)), (x,))
    found = [set(results(k)) for k in recurrences(last)]
    assert found == ([{"states", "last"}, {"last"}] if kind is nn.LSTM else [{"states"}] * 2)


def test_zeros_are_not_read():
    layer = nn.LSTM(3, 4)
    x, zeros = torch.randn(5, 2, 3), torch.zeros(1, 2, 4)
    plan = check_model(Of(lambda m, x: m.layer(x)[0], layer=deepcopy(layer)), (x,))
    assert [k.initial for k in recurrences(plan)] == [(Constant(0.0), Constant(0.0))]
    plan = check_model(Of(lambda m, x, h: m.layer(x, (h, torch.zeros_like(h)))[0], layer=deepcopy(layer)), (x, zeros))
    assert [[isinstance(e, Constant) for e in k.initial] for k in recurrences(plan)] == [[False, True]]


@pytest.mark.parametrize(("layer", "inputs"), [
    (nn.LSTM(3, 4, proj_size=2), torch.randn(5, 2, 3)),
    (nn.GRU(3, 4).double(), torch.randn(5, 2, 3).double()),
    (nn.GRU(3, 4).bfloat16(), torch.randn(5, 2, 3).bfloat16()),
    (nn.GRU(3, 4, 2, dropout=0.5).train(), torch.randn(5, 2, 3)),
])
def test_what_stays_with_pytorch(layer, inputs):
    graph = capture(Of(lambda m, x: m.layer(x)[0], layer=layer).train(layer.training), (inputs,))
    assert not recurrences(make_plan(graph, graph))


@pytest.mark.parametrize("both", [False, True])
def test_a_layer_that_is_kept_is_kept_whole(both):
    layer = nn.LSTM(3, 4, 2, bidirectional=both)
    graph = capture(Of(lambda m, x: outputs(m.layer, x), layer=layer), (torch.randn(5, 2, 3),))
    first = make_plan(graph, graph)
    covers = {n for s in first.kernels for n in s.covers}
    assert [n.op for n in covers] == ["opaque"]
    again = make_plan(graph, graph, dict.fromkeys(covers, "slower"))
    assert not again.kernels and kinds(again).count("opaque") == 1 and "linear" not in kinds(again)
