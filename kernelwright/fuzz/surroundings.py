"""Productions: what a forward asks of its surroundings, states that loops carry along, and paths of PyTorch's own."""

from __future__ import annotations

import torch

from kernelwright.fuzz.draw import Draw, Refused, Value
from kernelwright.fuzz.productions import line, production

line("asks for recording", "{x} * (2.0 if torch.is_grad_enabled() else 3.0)", weight=0.25)
line("asks for training", "{x} + (0.5 if self.training else 1.5)", weight=0.25)
line("asks for a gradient", "{x} - (0.5 if {x}.requires_grad else 1.0)", weight=0.15)
line("asks for autocast", "{x} + (1.0 if torch.is_autocast_enabled('cpu') else 0.5)", weight=0.08)
line("cut off and on", "{x}.detach() + {x} * 0.5", weight=0.25)
line("cut off", "{x}.detach() * 2", weight=0.2)
line("whole numbers beside", "{x}.argmax({axis})", weight=0.2, ranks=(1, 6), bits=5.0)

#: Functions that stand above the class, by name.
_FUNCTIONS = {
    "unrecorded": "def unrecorded(x):\n    with torch.no_grad():\n        return x.tanh() + 1",
    "spiking": "def spiking(x):\n    v = torch.zeros_like(x[:, 0])\n    n = v\n    for t in range(x.shape[1]):\n"
               "        v = v * 0.9 + x[:, t]\n        s = (v > 0.5).to(v.dtype)\n        v = v - s\n"
               "        n = n + s\n    return v, n",
    "relaxed": "def relaxed(x):\n    y = x\n    for _ in range(8):\n"
               "        y = y - 0.1 * (torch.tanh(y) - x)\n    return y",
    "crossed": "def crossed(x):\n    a = b = x\n    for _ in range(6):\n"
               "        a, b = torch.relu(a) - b * 0.5, a * 0.5 + b\n    return a + b",
    "smoothed": "def smoothed(x):\n    y = x[..., 0]\n    for t in range(1, x.shape[-1]):\n"
                "        y = torch.where(y > x[..., t], y * 0.5, y + x[..., t])\n    return y",
}


def _called(name: str, weight: float, ranks: tuple[int, int], results: int = 1) -> None:
    @production(f"function {name}", weight, ranks)
    def _add(d: Draw, x: Value) -> None:
        if name in ("spiking", "smoothed") and (0 in x.shape or max(x.shape[1:], default=1) > 16 or x.shape[-1] > 16):
            raise Refused("too many steps")
        d.above(_FUNCTIONS[name])
        d.emit(f"{name}({d.tamed(x, 3.0)})", results=results, bits=5.0)


_called("unrecorded", 0.25, (0, 5))
_called("spiking", 0.3, (2, 4), 2)
_called("relaxed", 0.25, (0, 5))
_called("crossed", 0.25, (0, 5))
_called("smoothed", 0.2, (1, 4))


#: Functions that decide by whole numbers. While a model is made up there are none: values are on the meta device.
_DECIDING = {
    "repeated": "def repeated(x, n):\n    for _ in range(2 if n.is_meta else int(n.max())):\n"
                "        x = torch.tanh(x) + 0.5\n    return x",
    "chosen": "def chosen(x, n):\n    if n.is_meta or (n > 2).any():\n        return x * 2\n"
              "    return torch.relu(x) - 1",
    "counted": "def counted(x, n):\n    return x * (1.0 if n.is_meta else n.float().mean().item()) + n.sum()",
    "listed": "def listed(x, n):\n    for k in [1] if n.is_meta else n.tolist():\n        x = x * 0.5 + k\n"
              "    return x",
}


def _decided(name: str) -> None:
    @production(f"decided by whole numbers: {name}", 0.12, (0, 6))
    def _add(d: Draw, x: Value) -> None:
        d.above(_DECIDING[name])
        d.emit(f"{name}({d.tamed(x, 6.0)}, {d.indices([d.number(1, 4)], 4)})", bits=8.0)


for _name in _DECIDING:
    _decided(_name)


@production("a number of the file", 0.4)
def _number(d: Draw, x: Value) -> None:
    name = d.above(f"NAME = {d.real(-2, 2)}")
    d.emit(d.one_of([f"{x} * {name}", f"{x} + {name}", f"{name} - {x}", f"torch.clamp({x}, max={name})"]),
           bits=x.bits + 1)


@production("a table of the file", 0.4, (1, 5))
def _table(d: Draw, x: Value) -> None:
    if x.shape[-1] > 64:
        raise Refused("a long table")
    name = d.above(f"NAME = torch.linspace(-1, 1, {x.shape[-1]}{d.type_text})")
    d.emit(d.one_of([f"{x} * {name}", f"{x} + {name}", f"torch.maximum({x}, {name})", f"{x} - {name}.sum()"]),
           bits=x.bits + 2)


@production("an attribute", 0.2)
def _attribute(d: Draw, x: Value) -> None:
    d.emit(f"{x} * {d.member(str(d.real(-2, 2)))}", bits=x.bits + 1)


@production("in place on an input", 0.15, (1, 5))
def _input_in_place(d: Draw, x: Value) -> None:
    if not x.name.startswith("x") or "expand" in dict(d.inputs)[x.name]:
        raise Refused("no input of its own memory")
    d.effect(f"{x}.{d.one_of(['mul_(2.0)', 'add_(0.5)', 'clamp_(-1, 1)', 'zero_()'])}")
    d.emit(f"{x} + 1")


def _heads(d: Draw, x: Value) -> tuple[int, int]:
    width = x.shape[-1]
    heads = [h for h in (1, 2, 3, 4) if width % h == 0]
    if d.dtype != torch.float32 or 0 in x.shape or width < 2:
        raise Refused("no heads")
    return width, d.one_of(heads)


def _padding(d: Draw, x: Value) -> str:
    """An input that says which places are padding: none of a row's first."""
    kind = d.one_of(["none", "none", "last", "some"])
    if kind == "none" or x.shape[1] < 2:
        return ""
    text = f"torch.arange({x.shape[1]}).expand({x.shape[0]}, -1) >= torch.randint(1, {x.shape[1]}, ({x.shape[0]}, 1))"
    if kind == "some":
        text = f"torch.cat([torch.zeros({x.shape[0]}, 1), torch.rand({x.shape[0]}, {x.shape[1] - 1})], 1) > 0.6"
    return str(d.input(x.shape[:2], text, bits=0.0))


@production("encoder layer with padding", 0.35, (3, 3))
def _encoder(d: Draw, x: Value) -> None:
    width, heads = _heads(d, x)
    layer = f"nn.TransformerEncoderLayer({width}, {heads}, {2 * width}, dropout=0.0, batch_first=True" + d.one_of(
        ["", "", ", norm_first=True", ", activation='gelu'"]) + ")"
    mask = _padding(d, x)
    if d.chance(0.3):
        layer = f"nn.TransformerEncoder({layer}, 2)"
    d.emit(f"{d.member(layer)}({x}{f', src_key_padding_mask={mask}' if mask else ''})", bits=2.0)


@production("several heads", 0.35, (3, 3))
def _several_heads(d: Draw, x: Value) -> None:
    width, heads = _heads(d, x)
    mask = _padding(d, x)
    member = d.member(f"nn.MultiheadAttention({width}, {heads}, batch_first=True)")
    more = f", key_padding_mask={mask}" if mask else ""
    if d.chance(0.5):
        d.emit(f"{member}({x}, {x}, {x}{more})", results=2, bits=x.bits + 2)
    else:
        d.emit(f"{member}({x}, {x}, {x}, need_weights=False{more})[0]", bits=x.bits + 2)


@production("recurrent layer", 0.3, (2, 3))
def _recurrent(d: Draw, x: Value) -> None:
    if d.dtype != torch.float32 or 0 in x.shape or x.shape[-2] > 12:
        raise Refused("too many steps")
    kind = d.one_of(["nn.LSTM", "nn.GRU", "nn.RNN"])
    more = d.one_of(["", ", bidirectional=True", ", num_layers=2"])
    d.emit(f"{d.member(f'{kind}({x.shape[-1]}, {d.size(6)}{more}, batch_first=True)')}({x})[0]", bits=0.0)


#: Loops over the steps of a tensor along an axis: functions of the steps, a state, and weights of the input's and the
#: state's width.
_LOOPS = {
    "beside": "def beside(x, h, w, v, b, axis):\n    ys = []\n    for t in range(x.shape[axis]):\n"
              "        h = torch.tanh(F.linear(torch.cat([x.select(axis, t), h], -1), torch.cat([w, v], -1), b))\n"
              "        ys.append(h)\n    return torch.stack(ys, axis)",
    "apart": "def apart(x, h, w, v, b, axis):\n    ys = []\n    for step in x.unbind(axis):\n"
             "        h = torch.tanh(F.linear(step, w, b) + F.linear(h, v))\n        ys.append(F.linear(h, v, b))\n"
             "    return torch.stack(ys, 0)",
    "joined": "def joined(x, h, w, v, b, axis):\n    ys = [F.linear(step, w, b).relu() for step in x.unbind(axis)]\n"
              "    return torch.stack([F.linear(y, v) for y in ys], -2)",
    "gated": "def gated(x, h, w, v, b, axis):\n    c = torch.zeros_like(h)\n    ys = []\n"
             "    for t in reversed(range(x.shape[axis])):\n        own = F.linear(x.select(axis, t), w)\n"
             "        beside = F.linear(h, v, b)\n        c = torch.sigmoid(own + beside) * c + own.tanh()\n"
             "        h = torch.where(c > 0.5, c.tanh(), beside * h)\n        ys.append(h.sin())\n"
             "    return torch.stack(ys[::-1], axis) + h.unsqueeze(axis)",
    "leaky": "def leaky(x, h, w, v, b, axis):\n    before, ys = b * h, []\n"
             "    for step in F.linear(x, w).unbind(axis):\n"
             "        h, before = 0.75 * h + step * b.sigmoid() - 0.25 * before, h\n"
             "        ys.append((h > 0.5) * h)\n"
             "    return torch.cat(ys, -1) + before.sum()",
    "alone": "def alone(x, h, w, v, b, axis):\n    ys = [F.linear(step, w, b) for step in x.unbind(axis)]\n"
             "    return ys[0], ys[-1] * h",
}


def _axis_of_steps(d: Draw, x: Value) -> int:
    """An axis but the last one: often one of several steps."""
    many = [axis for axis in range(x.rank - 1) if 4 <= x.shape[axis] <= 9]
    return d.one_of(many) if many and d.chance(0.8) else d.number(0, x.rank - 2)


def _loop(name: str) -> None:
    @production(f"loop over steps: {name}", 0.12, (2, 4))
    def _add(d: Draw, x: Value) -> None:
        axis = _axis_of_steps(d, x)
        if 0 in x.shape or x.shape[axis] > 9 or not d.dtype.is_floating_point:
            raise Refused("no steps")
        d.above(_LOOPS[name])
        shape, width = [s for a, s in enumerate(x.shape) if a != axis], d.size(5)
        state = d.input([*shape[:-1], width])
        weights = (d.parameter([width, shape[-1]]), d.parameter([width, width]), d.parameter([width]))
        d.emit(f"{name}({d.tamed(x, 3.0)}, {state}, {', '.join(weights)}, {axis})", results=2 if name == "alone" else 1,
               bits=6.0)


for _name in _LOOPS:
    _loop(_name)


#: The same with a cell of torch.nn, whose state has two axes: step by step, from zeros or from what is given.
_CELLS = ("def NAME(x, cell, states, axis):\n    ys = []\n    for t in range(x.shape[axis]):\n"
          "        states = cell(x.select(axis, t), states)\n"
          "        ys.append(states[0] if isinstance(states, tuple) else states)\n"
          "    return torch.stack(ys, axis), ys[-1]")


@production("loop over steps: cell", 0.25, (3, 3))
def _cell(d: Draw, x: Value) -> None:
    axis = _axis_of_steps(d, x)
    if 0 in x.shape or x.shape[axis] > 9 or d.dtype not in (torch.float32, torch.float64):
        raise Refused("no steps, or another type")
    kind, width, rows = d.one_of(["nn.LSTMCell", "nn.GRUCell", "nn.RNNCell"]), d.size(6), x.shape[1 - axis]
    states = [str(d.input([rows, width])) if d.chance(0.5) else f"{x}.new_zeros({rows}, {width})" for _ in range(2)]
    given = f"({', '.join(states)})" if kind == "nn.LSTMCell" else states[0]
    cell = d.module(f"{kind}({x.shape[-1]}, {width}, bias={d.chance(0.8)})")
    d.emit(f"{d.above(_CELLS)}({d.tamed(x, 3.0)}, {cell}, {given}, {axis})", results=2, bits=6.0)
