"""Converters of recurrent cells, one step each (see :mod:`kernelwright.capture.converters.table`): two linear layers,
of the input and of the state, and pointwise operators between their gates, in the order in which PyTorch computes them.
A cell with two states (LSTM) stays PyTorch's: a pointwise kernel has one result, and would compute one of them for the
other.
"""

from __future__ import annotations

from kernelwright.capture.converters.table import Arguments, NotConvertible, converts, part
from kernelwright.ir.node import Node, make

_TYPES = ("float32", "float64")


def _gates(a: Arguments, state: Node, count: int) -> list[list[Node]]:
    """What the linear layers of the input and of the state give each of ``count`` gates."""
    x = a["input"]
    # In 16 bits PyTorch's kernels round once where these operators round one by one.
    if x.dtype not in _TYPES or x.rank != 2 or state.rank != 2:
        raise NotConvertible("a type or shape of which PyTorch's cell is another computation")
    width = state.shape[1]
    found = []
    for value, weight, bias in ((x, a["w_ih"], a["b_ih"]), (state, a["w_hh"], a["b_hh"])):
        layer = make("linear", value, weight, *([bias] if bias is not None else []))
        found.append([part(layer, 1, gate * width, (gate + 1) * width) for gate in range(count)])
    return found


@converts("gru_cell.default")
def _gru_cell(a: Arguments) -> Node:
    hidden = a["hx"]
    of_input, of_state = _gates(a, hidden, 3)
    reset, update = (make("sigmoid", make("add", h, x)) for x, h in zip(of_input[:2], of_state[:2], strict=True))
    new = make("tanh", make("add", of_input[2], make("mul", of_state[2], reset)))
    return make("add", make("mul", make("sub", hidden, new), update), new)


@converts("rnn_tanh_cell.default", "rnn_relu_cell.default")
def _rnn_cell(a: Arguments) -> Node:
    of_input, of_state = _gates(a, a["hx"], 1)
    return make(a["operator"].split("_")[1], make("add", of_state[0], of_input[0]))
