"""A graph of TorchDynamo as the text of a model, of which the pipeline can make a file.

What the graph is given of a module (its parameters and buffers) becomes parameters and buffers of the model, everything
else stays an argument of its forward.
"""

from __future__ import annotations

import importlib
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import fx, nn


class Refused(Exception):
    """A graph that stays with PyTorch: why."""


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of the model: its name, and the number of the graph's input that it is (None: it is the graph's own,
    under ``attribute``)."""

    name: str
    is_parameter: bool
    number: int | None
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class GraphModel:
    """A graph as a model.

    text: of a module with the class ``Model``, constructed without arguments and without its tensors. arguments:
    numbers of the graph's inputs that its forward takes, in order. sizes: those of them that are whole numbers, and
    scalars: those that the graph is given as tensors only to ask for the number in them. held: its parameters and
    buffers. device: the type of the device of all other tensors. autocast: whether the graph stands under autocast,
    which is then part of the text.
    """

    text: str
    arguments: tuple[int, ...]
    sizes: tuple[int, ...]
    scalars: tuple[int, ...]
    held: tuple[Held, ...]
    device: str
    autocast: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        """The inputs that are numbers, in either form."""
        return tuple(sorted((*self.sizes, *self.scalars)))


def graph_model(module: fx.GraphModule, examples: Sequence[Any]) -> GraphModel:
    """The model of a graph. examples: a tensor or a whole number for each of its inputs.

    Raises Refused where the graph calls other graphs or modules, computes nothing, or is given what no model of ours
    takes.
    """
    graph, values = fx.Graph(), {}
    arguments: list[int] = []
    scalars: list[int] = []
    held: list[Held] = []
    waiting = iter(range(len(examples)))
    for node in module.graph.nodes:
        if node.op == "placeholder":
            number = next(waiting)
            kind = _held_kind(node, examples[number])
            if not kind and _is_scalar(node):
                scalars.append(number)
            if kind:
                values[node] = graph.create_node("get_attr", node.name, name=node.name)
                held.append(Held(node.name, kind == "parameter", number))
            else:
                values[node] = graph.create_node("placeholder", node.name, name=node.name)
                arguments.append(number)
        elif node.op == "get_attr":
            if not isinstance(own := attribute(module, node.target), torch.Tensor):
                raise Refused(f"it calls another graph ({node.target})")
            name = f"constant_{len(held)}"
            values[node] = graph.create_node("get_attr", name, name=name)
            held.append(Held(name, isinstance(own, nn.Parameter), None, node.target))
        elif _asks_number(node) and values[node.args[0]].op == "placeholder" and _is_scalar(node.args[0]):
            values[node] = values[node.args[0]]
        elif node.op == "call_module":
            raise Refused(f"it calls a module ({node.target})")
        elif node.op == "output":
            graph.output(fx.map_arg(node.args[0], values.__getitem__))
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
    if all(node.op in ("placeholder", "get_attr", "output") for node in graph.nodes):
        raise Refused("it computes nothing")
    tensors = [t for number, t in enumerate(examples) if isinstance(t, torch.Tensor) and number not in scalars]
    tensors += [attribute(module, h.attribute) for h in held if h.number is None]
    device = _device_of(tensors)
    autocast = torch.is_autocast_enabled(device)
    return GraphModel(_text(graph, device if autocast else ""), tuple(arguments),
                      tuple(n for n in arguments if not isinstance(examples[n], torch.Tensor)), tuple(scalars),
                      tuple(held), device, autocast)


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor without a class, or a layout, of its own."""
    return type(value) in (torch.Tensor, nn.Parameter) and value.layout is torch.strided


def _asks_number(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _is_scalar(node: fx.Node) -> bool:
    """Whether an input is a number of Python's, which TorchDynamo hands over in a tensor on the host."""
    example = node.meta.get("example_value")
    return isinstance(example, torch.Tensor) and example.dim() == 0 and example.device.type == "cpu" \
        and bool(node.users) and all(map(_asks_number, node.users))


def _held_kind(node: fx.Node, example: Any) -> str:
    """parameter, buffer, or "" for an argument. Raises Refused."""
    if not isinstance(example, torch.Tensor):
        if not isinstance(example, (int, torch.SymInt)) or isinstance(example, bool):
            raise Refused(f"it is given a {type(example).__name__}")
        return ""
    if not is_plain(example):
        raise Refused(f"it is given a tensor of type {type(example).__name__}, {example.layout}")
    if isinstance(example, nn.Parameter):
        return "parameter"
    # Where TorchDynamo found it: "L['self']._modules['norm']._buffers['running_mean']".
    source = getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", "")
    return "buffer" if "._buffers[" in str(name() if callable(name) else name) else ""


def attribute(module: nn.Module, path: str) -> Any:
    """What stands in a module under a dotted path."""
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _device_of(tensors: Sequence[torch.Tensor]) -> str:
    """The type of the one device of all tensors. Raises Refused."""
    devices = {t.device for t in tensors}
    if len(devices) != 1:
        raise Refused("it has tensors on several devices" if devices else "it is given no tensor")
    return devices.pop().type


def _text(graph: fx.Graph, autocast: str) -> str:
    """The text of a module with a graph as its model's forward. autocast: the device type of one around it, or ""."""
    code = graph.python_code("self")
    lines = code.src.strip().split("\n")
    begin = next(place for place, line in enumerate(lines) if line.startswith("def forward("))
    body = lines[begin + 1:]
    if autocast:
        # Within the caller's own autocast, casts of weights would be kept when it ends, though trials change weights.
        opened = f"with torch.autocast({autocast!r}, dtype={torch.get_autocast_dtype(autocast)}, cache_enabled=False):"
        body = [f"    {opened}", *(f"    {line}" for line in body)]
    used = {name for name in code.globals if any(name in line for line in (lines[begin], *body))}
    imports = [_global(name, value) for name, value in sorted(code.globals.items()) if name in used and name != "torch"]
    parts = ['"""A graph of TorchDynamo."""', "\n".join(["import torch", *imports]),
             "class Model(torch.nn.Module):\n" + textwrap.indent("\n".join([lines[begin], *body]), "    ")]
    return "\n\n\n".join(parts) + "\n"


def _global(name: str, value: Any) -> str:
    """The statement that gives a name the value that the graph's code has under it. Raises Refused."""
    if isinstance(value, float):
        return f'{name} = float("{value}")' if not math.isfinite(value) else f"{name} = {value!r}"
    if value is type(None):
        return f"{name} = type(None)"
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if home and own.isidentifier() and getattr(_imported(home), own, None) is value and home != "__main__":
        return f"from {home} import {own} as {name}"
    raise Refused(f"it uses {name}, which is not to be imported")


def _imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def made_model(kind: type[nn.Module], tensors: Mapping[str, torch.Tensor], parameters: Sequence[str]) -> nn.Module:
    """A model of a graph's class in evaluation mode, with these tensors. parameters: names of those that are."""
    model = kind().eval()
    for name, tensor in tensors.items():
        if name in parameters:
            model.register_parameter(name, tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(
                tensor, requires_grad=tensor.requires_grad))
        else:
            model.register_buffer(name, tensor)
    return model
