"""An exported program becomes a Graph: in-place operators functional, buffer updates explicit."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from kernelwright.capture import convert_integers as _integers  # noqa: F401  (registers its converters)
from kernelwright.capture import convert_losses as _losses  # noqa: F401  (registers its converters)
from kernelwright.capture import convert_products as _products  # noqa: F401
from kernelwright.capture import convert_scans as _scans  # noqa: F401
from kernelwright.capture import convert_views as _views  # noqa: F401
from kernelwright.capture.aliases import NoInverse, scattered, viewed, writes
from kernelwright.capture.buffers import settle_buffers
from kernelwright.capture.convert import CONVERTERS, NotConvertible
from kernelwright.capture.recurrent import OPERATORS
from kernelwright.ir.graph import BufferUpdate, Graph, copied, memory
from kernelwright.ir.node import Node, Origin, constant, make
from kernelwright.ir.scalar import INTEGERS

_LITERAL_ELEMENTS = 64

class NotCapturable(Exception):
    """The model can't be a graph of ours; the reason is for the report. The original computation stays."""


class Converter:
    """Walks an exported program once."""

    def __init__(self, program: torch.export.ExportedProgram, model: torch.nn.Module, file: str | None) -> None:
        self.program = program
        self.model = model
        self.file = file
        self.values: dict[torch.fx.Node, Any] = {}
        self.group: dict[torch.fx.Node, int] = {}  # values that share memory have the same group
        self.source: dict[torch.fx.Node, torch.fx.Node] = {}  # view -> what it is a view of
        self.buffers: dict[int, str] = {}  # group -> name of the buffer at its root
        self.fixed: dict[int, str] = {}  # group -> input or parameter at its root
        self.updates: dict[str, Node] = {}
        self.owners: dict[str, Node] = {}
        self.serial = 0

    def graph(self, *, training: bool) -> Graph:
        specs = iter(self.program.graph_signature.input_specs)
        inputs: list[Node | None] = []
        results: list[Any] = []
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, next(specs), inputs)
            elif node.op == "output":
                results = list(node.args[0])
            elif node.op == "call_function":
                node.target = OPERATORS.get(node.target, node.target)
                self.values[node] = self._call(node)
            else:
                raise NotCapturable(f"the trace holds a {node.op} of {node.target}")
        outputs: list[Node] = []
        places: list[Any] = []
        given = {self.group[n] for n in self.program.graph.nodes if n.op == "placeholder"}
        for result in results:
            value = self.values[result] if isinstance(result, torch.fx.Node) else result
            if value is None:
                places.append(None)
                continue
            if not isinstance(value, Node):
                raise NotCapturable(f"it returns the plain value {value!r}")
            if memory(value).kind == "leaf" and self.group[result] not in given:  # a clone of an input, say
                value = copied(value)
            if value not in outputs:
                outputs.append(value)
            places.append(outputs.index(value))
        structure = pytree.tree_unflatten(places, self.program.call_spec.out_spec)
        _check_structure(structure)
        effects = tuple(BufferUpdate(n, v, self.owners.get(n)) for n, v in self.updates.items())
        return settle_buffers(Graph(tuple(inputs), tuple(outputs), structure, effects, training))

    def _placeholder(self, node: torch.fx.Node, spec: Any, inputs: list[Node | None]) -> None:
        value = node.meta.get("val")
        self.group[node] = len(self.group)
        if spec.kind == InputKind.USER_INPUT:
            if not isinstance(value, torch.Tensor):
                self.values[node] = value
                inputs.append(None)
                return
            self.fixed[self.group[node]] = "an input"
            leaf = _leaf("input", spec.arg.name, value)
            inputs.append(leaf)
        elif spec.kind == InputKind.PARAMETER:
            self.fixed[self.group[node]] = "a parameter"
            leaf = _leaf("parameter", spec.target, value)
        elif spec.kind == InputKind.BUFFER:
            self.buffers[self.group[node]] = spec.target
            leaf = _leaf("buffer", spec.target, value)
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            tensor = self.program.constants[spec.target]
            leaf = self._constant_tensor(spec.target, tensor)
            if leaf.op == "attribute":
                self.fixed[self.group[node]] = "a plain attribute"
        else:
            raise NotCapturable(f"an argument of kind {spec.kind}")
        self.values[node] = _in_own_order(leaf)

    def _constant_tensor(self, target: str, tensor: torch.Tensor) -> Node:
        owner: Any = self.model
        for part in target.split("."):
            owner = getattr(owner, part, None)
        if isinstance(owner, torch.Tensor):
            return _leaf("attribute", target, tensor)
        if tensor.numel() > _LITERAL_ELEMENTS:
            raise NotCapturable("it makes a large tensor from literals")
        return make("literal", value=_tuples(tensor.tolist()), shape=tuple(tensor.shape), dtype=_name(tensor.dtype))

    def _call(self, node: torch.fx.Node) -> Any:
        if node.target is operator.getitem:
            source = node.args[0]
            if source in self.source:  # a part of a split
                self.source[node] = self.source[source]
            self.group[node] = self.group[source] if source in self.source else self._new_group()
            return self._item(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise NotCapturable(f"it uses the higher-order operator {node.target}")
        target = str(node.target).removeprefix("aten.")
        arguments = self._arguments(node)
        origin = self._origin(node)
        schema = node.target._schema
        mutated = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        source = viewed(node)
        if source is not None:
            self.source[node] = source
        self.group[node] = self.group[source] if source is not None else self._new_group()
        if target == "batch_norm.default":
            return self._batch_norm(node, arguments, origin)
        if mutated:
            return self._in_place(node, target, arguments, mutated, origin)
        if not node.users and not _draws(node.target):
            return None
        return self._convert(node, target, arguments, origin)

    def _item(self, node: torch.fx.Node) -> Any:
        """One of several results."""
        value, index = self.values[node.args[0]], node.args[1]
        if not isinstance(value, Node):
            return value[index]
        meta = node.meta["val"]
        return make("item", value, index=index, shape=tuple(meta.shape), dtype=_name(meta.dtype))

    def _new_group(self) -> int:
        return len(self.group) + len(self.values)

    def _convert(self, node: torch.fx.Node, target: str, arguments: dict[str, Any], origin: Origin) -> Any:
        converter = CONVERTERS.get(target)
        if converter is not None and str(node.target).startswith("aten."):
            used = {u.args[1] for u in node.users if u.target is operator.getitem and u.users}
            try:
                result = converter({**arguments, "operator": target, "results_used": used})
            except NotConvertible:
                pass
            else:
                return self._stamped(result, origin)
        return self._opaque(node, str(node.target), arguments, origin)

    def _stamped(self, result: Any, origin: Origin) -> Any:
        if isinstance(result, Node) and result.kind != "leaf":
            inherited = result.origin is None or any(result.origin is i.origin for i in result.inputs)
            result.origin = origin if inherited else result.origin
        return result

    def _opaque(self, node: torch.fx.Node, target: str, arguments: dict[str, Any], origin: Origin) -> Node:
        nodes: list[Node] = []
        schema = node.target._schema  # type: ignore[union-attr]
        positional = [a.name for a in schema.arguments if not a.kwarg_only]
        template = tuple(_template(arguments[n], nodes) for n in positional)
        keywords = tuple((a.name, _template(arguments[a.name], nodes)) for a in schema.arguments
                         if a.kwarg_only and arguments[a.name] is not None)
        serial = -1
        if _draws(node.target) or "instance_norm" in target:
            serial, self.serial = self.serial, self.serial + 1
        meta = node.meta["val"]
        if isinstance(meta, torch.Tensor):
            shape, dtype, types = tuple(meta.shape), _name(meta.dtype), None
        elif isinstance(meta, (list, tuple)):
            shape, dtype = (), "tuple"
            types = tuple((tuple(m.shape), _name(m.dtype)) if isinstance(m, torch.Tensor) else None for m in meta)
        else:
            raise NotCapturable(f"{target} gives a plain value")
        return make("opaque", *nodes, origin=origin, target=target, template=template, keywords=keywords, shape=shape,
                    dtype=dtype, types=types, serial=serial)

    def _in_place(self, node: torch.fx.Node, target: str, arguments: dict[str, Any], mutated: list[str],
                  origin: Origin) -> Any:
        """Run the functional twin, then let every name of the changed memory mean the new value."""
        schema = node.target._schema  # type: ignore[union-attr]
        if mutated != [schema.arguments[0].name] or not isinstance(node.args[0], torch.fx.Node):
            raise NotCapturable(f"{target} writes into {', '.join(mutated)}")
        changed = node.args[0]
        group = self.group[changed]
        if group in self.fixed:
            raise NotCapturable(f"{target} changes {self.fixed[group]} in place")
        name, overload = target.split(".")
        old = self.values[changed]
        if name == "copy_":
            value = _as_type_of(old, arguments["src"])
        elif name in ("zero_", "fill_"):
            value = _as_type_of(old, arguments.get("value", 0))
        elif name == "detach_":
            value = old
        else:
            functional = getattr(getattr(torch.ops.aten, name.removesuffix("_"), None), overload, None)
            if functional is None:
                raise NotCapturable(f"{target} has no functional form")
            converter = CONVERTERS.get(f"{name.removesuffix('_')}.{overload}")
            try:
                if converter is None or old.dtype in INTEGERS:
                    raise NotConvertible
                value = converter({**arguments, "operator": f"{name.removesuffix('_')}.{overload}",
                                   "results_used": set()})
            except NotConvertible:
                # The buffers that batch norm counts its calls in are integers: keep the sum as it is.
                template = type("Twin", (), {"target": functional, "meta": node.meta})()
                value = self._opaque(template, f"aten.{name.removesuffix('_')}.{overload}", arguments, origin)
        if value.shape != old.shape or value.dtype != old.dtype:
            raise NotCapturable(f"{target} changes the type of its target")
        value = self._stamped(value, origin)
        whole = self._write(changed, value, target)
        if group in self.buffers:
            self.updates[self.buffers[group]] = whole
            self.owners.pop(self.buffers[group], None)
        return value

    def _write(self, changed: torch.fx.Node, value: Node, target: str) -> Node:
        """Let every name of the memory of ``changed`` mean what it holds after the write; the value of the whole."""
        members = [n for n in self.values if self.group.get(n) == self.group[changed]]
        if all(self.values[m] is self.values[changed] for m in members):
            self.values.update(dict.fromkeys(members, value))
            return value
        written, current = {changed: value}, changed
        while (source := self.source.get(current)) is not None:
            arguments = self._arguments(current) if current.target is not operator.getitem else {}

            def twin(kind: Any, parts: dict[str, Any], like: torch.Tensor, of: torch.fx.Node = current) -> Node:
                stand_in = type("Twin", (), {"target": kind, "meta": {"val": like}})()
                return self._opaque(stand_in, str(kind), parts, self._origin(of))

            try:
                written[source] = scattered(current, self.values[source], written[current], arguments, twin)
            except NoInverse as view:
                raise NotCapturable(f"{target} writes through a view by {view}") from view
            current = source
        self.values.update(written)
        for member in members:  # in the order of the program: what a view is taken of comes first
            if member not in written:
                self.values[member] = self._view_again(member)
        return written[current]

    def _view_again(self, node: torch.fx.Node) -> Any:
        """The value of a view whose memory has changed."""
        if node.target is operator.getitem:
            return self._item(node)
        if writes(node):
            return self.values[self.source[node]]
        return self._convert(node, str(node.target).removeprefix("aten."), self._arguments(node), self._origin(node))

    def _batch_norm(self, node: torch.fx.Node, a: dict[str, Any], origin: Origin) -> Node:
        x = a["input"]
        if (a["weight"] is None) != (a["bias"] is None) or not isinstance(x, Node):
            raise NotCapturable("batch norm with a scale and no shift")
        rest = [a["weight"], a["bias"]] if a["weight"] is not None else []
        mean, variance = a["running_mean"], a["running_var"]
        if not a["training"]:
            return make("batch_norm_inference", x, mean, variance, *rest, origin=origin, eps=a["eps"],
                        affine=bool(rest))
        running = None
        if mean is not None:
            places = [self.buffers.get(self.group[n]) for n in node.args[3:5]]
            if None in places or mean.op != "buffer" or variance.op != "buffer":
                raise NotCapturable("batch norm updates statistics that are not plain buffers")
            running = tuple(places)
        result = make("batch_norm_training", x, *rest, origin=origin, eps=a["eps"], affine=bool(rest),
                      momentum=a["momentum"], running=running)
        if running:
            axes = (0, *range(2, x.rank))
            momentum = a["momentum"]
            for name, old, new in ((running[0], mean, make("mean", x, axes=axes, keepdim=False)),
                                   (running[1], variance, make("var", x, axes=axes, keepdim=False, correction=1))):
                kept = make("mul", old, constant(1.0 - momentum))
                self.updates[name] = make("add", kept, make("mul", new, constant(momentum)))
                self.owners[name] = result
            for fx_node, value in ((node.args[3], self.updates[running[0]]), (node.args[4], self.updates[running[1]])):
                self.values[fx_node] = value
        return result

    def _arguments(self, node: torch.fx.Node) -> dict[str, Any]:
        schema = node.target._schema  # type: ignore[union-attr]
        result = {}
        for position, argument in enumerate(schema.arguments):
            if position < len(node.args):
                value = node.args[position]
            elif argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            else:
                value = argument.default_value if argument.has_default_value() else None
            result[argument.name] = torch.fx.node.map_arg(value, lambda n: self.values[n])
        return result

    def _origin(self, node: torch.fx.Node) -> Origin:
        stack = node.meta.get("nn_module_stack") or {}
        path = next(reversed(stack.values()))[0] if stack else ""
        line, text = 0, ""
        trace = node.meta.get("stack_trace") or ""
        lines = trace.splitlines()
        for position, entry in enumerate(lines):
            if self.file and f'File "{self.file}"' in entry:
                line = int(entry.split("line ")[1].split(",")[0])
                text = lines[position + 1].strip() if position + 1 < len(lines) else ""
        return Origin(module=path, file=self.file or "", line=line, text=text)


def _as_type_of(target: Node, value: Any) -> Node:
    """``value``, a node or a number, in the type and shape of ``target``, as copy_ and fill_ store it."""
    if not isinstance(value, Node):
        value = make("literal", value=value, shape=(), dtype=target.dtype)
    if value.dtype != target.dtype:
        value = make("cast", value, to=target.dtype, shape=value.shape, dtype=target.dtype)
    return value if value.shape == target.shape else make("expand", value, shape=target.shape)


def _draws(target: Any) -> bool:
    """Whether an operator may draw from torch's random stream."""
    return torch.Tag.nondeterministic_seeded in target.tags


def _leaf(op: str, name: str, value: torch.Tensor) -> Node:
    order = memory_order(value) if op in ("input", "parameter") else None
    if order is not None:
        return make(op, name=name, shape=tuple(value.shape[a] for a in order), dtype=_name(value.dtype), order=order)
    return make(op, name=name, shape=tuple(value.shape), dtype=_name(value.dtype))


def memory_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The axes in the order in which a tensor lies contiguously in memory; None where that is the usual one, or where
    there is none (a slice, an expanded tensor)."""
    order = tuple(sorted(range(value.ndim), key=lambda axis: -value.stride(axis)))
    return order if not value.is_contiguous() and value.permute(order).is_contiguous() else None


def _in_own_order(leaf: Node) -> Node:
    """A leaf with its axes as the model has them."""
    order = leaf.get("order")
    return leaf if order is None else make("permute", leaf, axes=tuple(order.index(a) for a in range(leaf.rank)))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _template(value: Any, nodes: list[Node]) -> Any:
    """A hashable form of an argument; see :func:`kernelwright.ir.ops.leaves.fill`."""
    if isinstance(value, Node):
        if value not in nodes:
            nodes.append(value)
        return ("input", nodes.index(value))
    if isinstance(value, (list, tuple)):
        return ("list", *(_template(v, nodes) for v in value))
    if isinstance(value, str):
        return ("str", value)
    for tag, kind in (("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format)):
        if isinstance(value, kind):
            return (tag, str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return ("device", str(value))
    if value is None or isinstance(value, (int, float, bool)):
        return value
    raise NotCapturable(f"an argument of type {type(value).__name__}")


def _check_structure(value: Any) -> None:
    if isinstance(value, dict):
        for part in value.values():
            _check_structure(part)
    elif type(value) in (list, tuple):
        for part in value:
            _check_structure(part)
    elif value is not None and not isinstance(value, int):
        raise NotCapturable(f"it returns a {type(value).__name__}")
