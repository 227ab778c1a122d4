"""Stage 2, CAPTURE: a model and its inputs become a Graph.

``torch.export`` (non-strict) traces a deep copy at the level of the operators that the user wrote;
this module turns in-place operators functional, makes buffer updates explicit and finds what a
graph can't hold (state in plain attributes, decisions on values).
"""

from __future__ import annotations

import copy
import io
import operator
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from kernelwright import errors
from kernelwright.capture.buffers import settle_buffers
from kernelwright.capture.convert import CONVERTERS, NotConvertible
from kernelwright.ir.graph import BufferUpdate, Graph
from kernelwright.ir.node import Node, Origin, constant, make

_LITERAL_ELEMENTS = 64
# These return their operand itself where they have nothing to do; their schemas do not say so.
_SOMETIMES_IDENTITY = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "type_as",
                       "broadcast_tensors", "atleast_1d", "atleast_2d", "atleast_3d")


class NotCapturable(Exception):
    """The model can't be a graph of ours; the reason is for the report. The original computation stays."""


def capture(model: torch.nn.Module, inputs: Sequence[Any], *, name: str = "Model", file: str | None = None,
            check_state: Callable[[], object] | None = None) -> Graph:
    """The graph of ``model(*inputs)`` in the model's present mode. The model is not changed.

    check_state: called where the forward assigns plain attributes; it tells a cache from hidden state by
    running the model, and raises HiddenState for the latter.
    Raises DataDependentControlFlow, HiddenState, ForwardRaised or OutputsUnsupported (user's errors),
    and NotCapturable where the model is legal but its graph has no form here.
    """
    work = copy.deepcopy(model)
    before = _plain_state(work)
    assigned: list[str] = []
    try:
        # The exporter prints the graph of a trace that fails.
        with warnings.catch_warnings(), torch.no_grad(), redirect_stdout(io.StringIO()), _watched(work, assigned):
            warnings.simplefilter("ignore")
            program = torch.export.export(work, tuple(inputs), strict=False)
    except Exception as error:
        changed = _changed(before, _plain_state(work)) or assigned
        _explain(error, model, inputs, changed, name, file)
        raise NotCapturable(errors.describe(error)) from error
    changed = _changed(before, _plain_state(work))
    if changed:
        raise errors.HiddenState(model=name, attributes=", ".join(changed), where=errors.place(file))
    if assigned and check_state is not None:
        check_state()
    return _Converter(program, work, file).graph(training=model.training)


@contextmanager
def _watched(model: torch.nn.Module, assigned: list[str]) -> Iterator[None]:
    """Note the plain attributes that are assigned to ``model`` and its parts: the exporter takes them back."""
    paths = {id(m): path for path, m in model.named_modules()}
    original = torch.nn.Module.__setattr__

    def note(module: torch.nn.Module, key: str, value: Any) -> None:
        registered = isinstance(value, (torch.nn.Module, torch.nn.Parameter)) or key in vars(module).get("_buffers", ())
        if id(module) in paths and not registered and not key.startswith("_") and key != "training":
            name = f"{paths[id(module)]}.{key}".lstrip(".")
            if name not in assigned:
                assigned.append(name)
        original(module, key, value)

    torch.nn.Module.__setattr__ = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__setattr__ = original  # type: ignore[method-assign]


def _explain(error: Exception, model: torch.nn.Module, inputs: Sequence[Any], changed: list[str], name: str,
             file: str | None) -> None:
    """Raise the coded error that fits a failed trace, if one does."""
    kinds = {type(e).__name__ for e in (error, error.__cause__, error.__context__) if e is not None}
    text = str(error)
    if kinds & {"GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException"} or \
            "data-dependent" in text.lower():
        if _inside_library(error):
            return
        raise errors.DataDependentControlFlow(model=name, exception=errors.describe(error),
                                              where=errors.where_of(error, file)) from error
    if "attribute" in text and "assigned during export" in text:
        raise errors.HiddenState(model=name, attributes=", ".join(changed) or text.splitlines()[0],
                                 where=errors.where_of(error, file)) from error
    trial = copy.deepcopy(model)
    try:
        with torch.no_grad():
            trial(*inputs)
    except Exception as failure:
        device = next((t.device for t in inputs if isinstance(t, torch.Tensor)), "cpu")
        raise errors.ForwardRaised(model=name, exception=errors.describe(failure), device=device,
                                   where=errors.where_of(failure, file)) from failure


def _inside_library(error: Exception) -> bool:
    """Whether a module of torch.nn, and not the user's own code, decides by a value."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    layers = [i for i, f in enumerate(files) if "/torch/nn/modules/" in f and not f.endswith("/module.py")]
    own = [i for i, f in enumerate(files) if "/torch/" not in f]
    return bool(layers and own) and layers[-1] > own[-1]


def _plain_state(model: torch.nn.Module) -> dict[str, Any]:
    """Every plain attribute of every module, as far as it can be compared."""
    state = {}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if key.startswith("_") or key == "training":
                continue
            state[f"{path}.{key}" if path else key] = _print_of(value)
    return state


def _print_of(value: Any, depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), str(value.dtype), id(value), value._version)
    if isinstance(value, (int, float, bool, str, bytes, type(None), complex)):
        return (type(value).__name__, value)
    if isinstance(value, (list, tuple)) and depth < 3:
        return (type(value).__name__, *(_print_of(v, depth + 1) for v in value))
    if isinstance(value, dict) and depth < 3:
        return ("dict", *((str(k), _print_of(v, depth + 1)) for k, v in value.items()))
    return (type(value).__name__, id(value))


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))


class _Converter:
    """Walks an exported program once."""

    def __init__(self, program: torch.export.ExportedProgram, model: torch.nn.Module, file: str | None) -> None:
        self.program = program
        self.model = model
        self.file = file
        self.values: dict[torch.fx.Node, Any] = {}
        self.group: dict[torch.fx.Node, int] = {}  # values that may share memory have the same group
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
                self.values[node] = self._call(node)
            else:
                raise NotCapturable(f"the trace holds a {node.op} of {node.target}")
        outputs: list[Node] = []
        places: list[Any] = []
        for result in results:
            value = self.values[result] if isinstance(result, torch.fx.Node) else result
            if value is None:
                places.append(None)
                continue
            if not isinstance(value, Node):
                raise NotCapturable(f"it returns the plain value {value!r}")
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
        self.values[node] = leaf

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
            source, index = node.args
            self.group[node] = self.group[source]
            value = self.values[source]
            if isinstance(value, Node):
                meta = node.meta["val"]
                return make("item", value, index=index, shape=tuple(meta.shape), dtype=_name(meta.dtype))
            return value[index]
        if not isinstance(node.target, torch._ops.OpOverload):
            raise NotCapturable(f"it uses the higher-order operator {node.target}")
        target = str(node.target).removeprefix("aten.")
        arguments = self._arguments(node)
        origin = self._origin(node)
        schema = node.target._schema
        mutated = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        aliases = any(a.alias_info is not None for a in schema.arguments)
        source = next((a for a in node.args if isinstance(a, torch.fx.Node)), None)
        if target.split(".")[0] in _SOMETIMES_IDENTITY:
            aliases = True
        elif target.startswith("to.") and source is not None:
            aliases = node.meta["val"].dtype == source.meta["val"].dtype
        self.group[node] = self.group[source] if aliases and source is not None else len(self.group) + len(self.values)
        if target == "batch_norm.default":
            return self._batch_norm(node, arguments, origin)
        if mutated:
            return self._in_place(node, target, arguments, mutated, origin)
        if not node.users and not _draws(node.target):
            return None
        return self._convert(node, target, arguments, origin)

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
        members = [n for n, g in self.group.items() if g == group and n in self.values]
        if any(self.values[m] is not self.values[changed] for m in members):
            raise NotCapturable(f"{target} changes memory that another view shares")
        name, overload = target.split(".")
        old = self.values[changed]
        if name == "copy_":
            value = arguments["src"]
            if value.dtype != old.dtype or value.shape != old.shape:
                raise NotCapturable("copy_ converts or broadcasts")
        elif name in ("zero_", "fill_"):
            raise NotCapturable(f"{name} in place")
        elif name == "detach_":
            value = old
        else:
            functional = getattr(getattr(torch.ops.aten, name.removesuffix("_"), None), overload, None)
            if functional is None:
                raise NotCapturable(f"{target} has no functional form")
            converter = CONVERTERS.get(f"{name.removesuffix('_')}.{overload}")
            try:
                if converter is None:
                    raise NotConvertible
                value = converter({**arguments, "operator": f"{name.removesuffix('_')}.{overload}",
                                   "results_used": set()})
            except NotConvertible:
                # The buffers that batch norm counts its calls in are integers: keep the sum as it is.
                template = type("Twin", (), {"target": functional, "meta": node.meta})()
                value = self._opaque(template, f"aten.{name.removesuffix('_')}.{overload}", arguments, origin)
        if value.shape != old.shape or value.dtype != old.dtype:
            raise NotCapturable(f"{target} changes the type of its target")
        for member in members:
            self.values[member] = value
        if group in self.buffers:
            self.updates[self.buffers[group]] = value
            self.owners.pop(self.buffers[group], None)
        return self._stamped(value, origin)

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


def _draws(target: Any) -> bool:
    """Whether an operator may draw from torch's random stream."""
    return torch.Tag.nondeterministic_seeded in target.tags


def _leaf(op: str, name: str, value: torch.Tensor) -> Node:
    return make(op, name=name, shape=tuple(value.shape), dtype=_name(value.dtype))


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
