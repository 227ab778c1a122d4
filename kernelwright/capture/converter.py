"""An exported program becomes a Graph: in-place operators functional, buffer updates explicit."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from kernelwright.capture.aliases import (
    NoInverse,
    functional,
    functional_of,
    scattered,
    viewed,
    viewed_part,
    writes,
    written,
)
from kernelwright.capture.buffers import settle_buffers
from kernelwright.capture.carried import beside_inputs, own_name
from kernelwright.capture.checks import checks as checks_of
from kernelwright.capture.checks import may_refuse, truth
from kernelwright.capture.converters import every as _all  # noqa: F401  (registers the converters)
from kernelwright.capture.converters.table import CONVERTERS, NotConvertible, converted
from kernelwright.capture.differentiated import Repeated, is_detached, recorded
from kernelwright.capture.dropout import DROPOUTS, dropped
from kernelwright.capture.nodes import first_names, item_of, operand_of, operator_of, told_of
from kernelwright.capture.observed import Observed
from kernelwright.capture.parts import part_of, type_of
from kernelwright.capture.recurrent import OPERATORS
from kernelwright.capture.tracing import draws, lasts, name_of
from kernelwright.capture.values import (
    NotCapturable,
    as_type_of,
    cast,
    dtype_name,
    in_memory_order,
    is_typed_as,
    leaf_of,
    lies_otherwise,
    opaque_of,
    origin_of,
    stored_as,
    template_of,
    tuples,
)
from kernelwright.capture.values_asked import ASKED
from kernelwright.containers import renumbered
from kernelwright.ir.graph import (
    BufferUpdate,
    Check,
    Given,
    Graph,
    Result,
    copied,
    in_own_memory,
    in_own_order,
    is_given,
)
from kernelwright.ir.node import Node, Origin, constant, make, walk
from kernelwright.ir.ops.leaves import OUTSIDE, PART
from kernelwright.ir.registry import torch_dtype
from kernelwright.ir.scalar import INTEGERS
from kernelwright.problem.outside import Outside

_LITERAL_ELEMENTS = 64
#: Operators that give a tensor itself another shape, and change no element.
_VIEWS_IN_PLACE = frozenset({"unsqueeze_", "squeeze_", "transpose_", "t_", "swapaxes_", "swapdims_"})


class Converter:
    """Walks an exported program once."""

    def __init__(self, program: torch.export.ExportedProgram, model: torch.nn.Module, file: str | None,
                 outside: Outside, carried: Sequence[str] = (), *, differentiated: bool = False) -> None:
        """differentiated: whether what is detached, and operands of what is called again, are nodes of their own, as
        graphs that are differentiated have them."""
        self.program, self.model, self.outside, self.file = program, model, outside, file
        self.differentiated, self.repeated = differentiated, Repeated(marks=differentiated)
        self.carried = beside_inputs(program, carried)
        self.first_name = first_names(model)
        self.values: dict[torch.fx.Node, Any] = {}
        self.lasting: list[Node] = []  # calls that change something beside what they give
        self.group: dict[torch.fx.Node, int] = {}  # values that share memory have the same group
        self.members: dict[int, list[torch.fx.Node]] = {}  # of each group those that have a value, in order
        self.source: dict[torch.fx.Node, torch.fx.Node] = {}  # view -> what it is a view of
        self.buffers: dict[int, str] = {}  # group -> name of the buffer at its root
        self.fixed: dict[int, str] = {}  # group -> input or parameter at its root
        self.updates: dict[str, Node] = {}
        self.owners: dict[str, Node] = {}
        self.serial = 0
        tensors = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
        devices = [t.device for t in tensors if isinstance(t, torch.Tensor)]
        self.device = next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
        self.checks: list[Check] = []

    def graph(self, structure: Any, *, training: bool, observed: Sequence[Observed] | None = None,
              asks: frozenset[Given] = frozenset(), found: Collection[str] = (),
              left: Mapping[str, Any] = MappingProxyType({}), containers: Mapping[str, Any] = MappingProxyType({})
              ) -> Graph:
        """The program's graph.

        structure: the model's result, with numbers for the program's results. observed: what an eager call gives for
        each result. asks: as :class:`Graph` says. found: plain attributes among those carried in which it matters
        what a call finds. left: those that it assigns, with numbers as in ``structure``. containers: those that are
        read and hold containers, with numbers for what is carried.
        """
        specs = iter(self.program.graph_signature.input_specs)
        inputs: list[Node | None] = []
        results: list[Any] = []
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, next(specs), inputs)
            elif node.op == "output":
                results = list(node.args[0])
            elif node.op == "call_function":
                node.target = self._as_view(node, OPERATORS.get(node.target, node.target))
                try:
                    value = self._call(node)
                    self.values[node] = recorded(node, value) if self.differentiated else value
                except NotCapturable as reason:
                    reason.module = reason.module or origin_of(node, self.file).module
                    raise
                self.members.setdefault(self.group[node], []).append(node)
            else:
                raise NotCapturable(f"the trace holds a part of its own, {node.target}")
        outputs: list[Node] = []
        known: list[Result] = []
        places: list[int] = []
        numbers: dict[Any, int] = {}  # of outputs, by what tells objects of eager's apart
        taken: dict[Node, Any] = {}
        given = {self.group[n] for n in self.program.graph.nodes if n.op == "placeholder"}
        results = self._without_updates(results)
        if observed is not None and len(observed) != len(results):
            observed = None
        for place, result in enumerate(results):
            value = self.values[result] if isinstance(result, torch.fx.Node) else result
            if not isinstance(value, Node):
                raise NotCapturable("it returns a number that depends on the values of a tensor")
            if is_given(value) and self.group[result] not in given:  # a clone of an input, say
                value = copied(value)
            seen = None if observed is None else observed[place]
            if seen is not None and isinstance(seen.given, int) and not is_given(value):
                given_as = inputs[seen.given]
                assert given_as is not None  # a tensor is what comes back
                value = in_own_order(given_as)  # what an operator without a converter hands on
            strides = tuple(result.meta["val"].stride()) if seen is None or seen.strides is None else seen.strides
            value = stored_as(in_own_memory(value, self.group[result], taken), strides)
            number = numbers.setdefault(value if seen is None else seen.same, len(outputs))
            if number == len(outputs):
                outputs.append(value)
                known.append(Result(strides=strides) if seen is None else Result(seen.given, seen.reaches, strides))
            places.append(number)
        effects = tuple(BufferUpdate(n, v, self.owners.get(n)) for n, v in self.updates.items())
        roots = (*outputs, *self.updates.values(), *(c.value for c in self.checks))
        read = set(walk(roots))  # what draws, or updates statistics, is done also where nothing is made of its result
        self.checks += [Check(call) for call in self.lasting if call not in read]
        checks = tuple(dict.fromkeys([*self.checks, *checks_of(roots, self.device.type)]))
        carried = tuple((leaf_of("buffer", self.carried[n.name], n.meta["val"]), tuple(n.meta["val"].stride()))
                        for n in self.program.graph.nodes if n.name in self.carried
                        and (n.users or self.carried[n.name] in found))
        order = {node["name"]: number for number, (node, _) in enumerate(carried)}
        numbers_of = {number: order.get(name, -1) for number, name in enumerate(self.carried.values())}
        return settle_buffers(Graph(tuple(inputs), tuple(outputs), renumbered(structure, places), effects, training,
                                    tuple(known), asks, checks, carried=carried,
                                    containers=tuple((name, renumbered(part, numbers_of)) for name, part
                                                     in containers.items()),
                                    left=tuple((name, renumbered(part, places)) for name, part in left.items())))

    def _as_view(self, node: torch.fx.Node, target: Any) -> Any:
        """The operator that gives as a view what one in place makes of its operand's shape, of which nobody else
        knows."""
        if getattr(getattr(target, "overloadpacket", None), "__name__", "") not in _VIEWS_IN_PLACE:
            return target
        if operand_of(node, 0).op == "placeholder":
            raise NotCapturable(f"{name_of(target)} changes the shape of a tensor that it was given")
        return functional_of(target)

    def _without_updates(self, results: list[Any]) -> list[Any]:
        """The results that the user gets; those before them in a program without writes are new values of buffers."""
        kept = []
        for result, spec in zip(results, self.program.graph_signature.output_specs, strict=True):
            if spec.kind == OutputKind.BUFFER_MUTATION:
                assert spec.target is not None  # the buffer
                self.updates[self.first_name(spec.target)] = self.values[result]
            elif spec.kind == OutputKind.USER_INPUT_MUTATION and spec.target in self.carried:
                self.updates[self.carried[spec.target]] = self.values[result]
            elif spec.kind == OutputKind.USER_OUTPUT:
                kept.append(result)
            else:
                raise NotCapturable(f"it changes {spec.target} in place")
        return kept

    def _placeholder(self, node: torch.fx.Node, spec: Any, inputs: list[Node | None]) -> None:
        value: Any = node.meta.get("val")
        self.group[node] = len(self.group)
        self.members[self.group[node]] = [node]
        if spec.kind == InputKind.USER_INPUT and spec.arg.name in self.carried:
            name = self.buffers[self.group[node]] = self.carried[spec.arg.name]
            leaf = leaf_of("buffer", name, value)
        elif spec.kind == InputKind.USER_INPUT:
            if not isinstance(value, torch.Tensor):
                self.values[node] = value
                inputs.append(None)
                return
            self.fixed[self.group[node]] = "an input"
            leaf = leaf_of("input", own_name(spec.arg.name, self.carried), value)
            inputs.append(leaf)
        elif spec.kind == InputKind.PARAMETER:
            self.fixed[self.group[node]] = "a parameter"
            leaf = leaf_of("parameter", self.first_name(spec.target), value)
        elif spec.kind == InputKind.BUFFER:
            name = self.buffers[self.group[node]] = self.first_name(spec.target)
            leaf = leaf_of("buffer", name, value)
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            tensor = self.program.constants[spec.target]
            leaf = self._constant_tensor(node, spec.target, tensor)
            if leaf.op == "attribute":
                self.fixed[self.group[node]] = leaf["name"].removeprefix(OUTSIDE) \
                    if leaf["name"].startswith(OUTSIDE) else "a plain attribute"
        else:
            raise NotCapturable(f"an argument of kind {spec.kind}")
        self.values[node] = in_own_order(leaf)

    def _constant_tensor(self, node: torch.fx.Node, target: str, tensor: torch.Tensor) -> Node:
        """The leaf of a tensor that the trace did not make: read where it is kept, at every call; or a literal of the
        forward's own."""
        owner: Any = self.model
        for part in target.split("."):
            owner = getattr(owner, part, None)
        kept = target if isinstance(owner, torch.Tensor) else ""
        if not kept and (place := self.outside.name_of(tensor)):
            kept = OUTSIDE + place
        if kept:
            return leaf_of("attribute", kept, tensor)
        # torch.tensor([1.0, 2.0]) and its like are copied before anything else reads them.
        if any(str(user.target) != "aten.lift_fresh_copy.default" for user in node.users):
            raise NotCapturable("it reads a tensor that neither the model nor a name that its code reads holds")
        if tensor.numel() > _LITERAL_ELEMENTS:
            raise NotCapturable("it makes a large tensor from literals")
        numbers = tensor.flatten().tolist()
        same = {repr(number) for number in numbers}  # 0.0 and -0.0 differ, NaN and NaN do not
        return make("literal", value=numbers[0] if len(same) == 1 else tuples(tensor.tolist()),
                    shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype))

    def _call(self, node: torch.fx.Node) -> Any:
        if node.target is operator.getitem:
            source, index = item_of(node)
            operand = self.source.get(source) or viewed_part(source, index)  # a split, or a list of views
            if operand is not None:
                self.source[node] = operand
            self.group[node] = self.group[operand] if operand is not None else self._new_group()
            return self._item(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise NotCapturable(f"it uses {name_of(node.target)}, which is more than an operator")
        target = str(node.target).removeprefix("aten.")
        arguments = self.repeated.operands(target, self._arguments(node))
        origin = origin_of(node, self.file)
        if any(isinstance(t, torch.Tensor) and not all(isinstance(n, int) for n in t.shape)
               for t in pytree.tree_leaves(node.meta.get("val"))):
            place = f" ({Path(origin.file).name}:{origin.line}: {origin.text})" if origin.line else ""
            raise NotCapturable(f"the shape of what {target.split('.')[0]} gives{place} depends on values")
        source = viewed(node)
        if source is not None:
            self.source[node] = source
        self.group[node] = self.group[source] if source is not None else self._new_group()
        if target == PART:
            return self._part(arguments, origin)
        if target == "batch_norm.default":
            return self._batch_norm(node, arguments, origin)
        if writes(node):
            return self._in_place(node, target, arguments, origin)
        if target.startswith("_assert_async."):
            self.checks.append(Check(truth(arguments["self"]), waited=arguments.get("assert_msg") == ASKED))
            return None
        if not node.users and not lasts(node.target, arguments) and not may_refuse(target):
            return None
        value = self._convert(node, target, arguments, origin)
        if not node.users and may_refuse(target):
            self.checks += [Check(n) for n in pytree.tree_leaves(value) if isinstance(n, Node)]
        return value

    def _part(self, arguments: dict[str, Any], origin: Origin) -> Node:
        """The call of a submodule that stays with PyTorch."""
        call = part_of(arguments["number"])
        nodes: list[Node] = []
        template = (template_of(arguments["given"], nodes), ("list",), call.number)
        serial = -1
        if not call.pure:
            serial, self.serial = self.serial, self.serial + 1
        return make("opaque", *nodes, origin=origin, target=PART, template=template, keywords=(), shape=(),
                    dtype="tuple", types=type_of(call), serial=serial, part=call)

    def _item(self, node: torch.fx.Node) -> Any:
        """One of several results."""
        source, index = item_of(node)
        value = self.values[source]
        if not isinstance(value, Node):
            return value[index]
        meta = node.meta["val"]
        return make("item", value, index=index, shape=tuple(meta.shape), dtype=dtype_name(meta.dtype))

    def _new_group(self) -> int:
        return len(self.group) + len(self.values)

    def _convert(self, node: torch.fx.Node, target: str, arguments: dict[str, Any], origin: Origin) -> Any:
        if self.differentiated and target == "detach.default":
            return make("detached", arguments["self"], origin=origin)
        if target in DROPOUTS and (made := dropped(
                target, arguments, operand_of(node, 0).meta["val"],
                lambda given, like: self._opaque(node.target, str(node.target), given, like, origin))) is not None:
            return self._stamped(made, origin)
        converter = CONVERTERS.get(target)
        if converter is not None and str(node.target).startswith("aten."):
            used = frozenset(item_of(u)[1] for u in node.users if u.target is operator.getitem and u.users)
            try:
                result = converted(converter, {**arguments, **told_of(node, target, used)}, node.meta["val"])
            except (NotConvertible, ValueError):  # ValueError: a type for which the operator has no meaning here
                pass
            else:
                if is_typed_as(result, node.meta.get("val")):
                    return self._stamped(result, origin)
        return self._opaque(node.target, str(node.target), self._in_memory_order(node, arguments), node.meta["val"],
                            origin)

    def _in_memory_order(self, node: torch.fx.Node, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call, laid out as in the trace where it draws random numbers, or is another computation
        on other memory."""
        is_drawn = draws(node.target, arguments)
        names = [a.name for a in operator_of(node)._schema.arguments]
        traced = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        return {name: in_memory_order(value, at.meta["val"])
                if isinstance(value, Node) and isinstance(at := traced.get(name), torch.fx.Node)
                and (is_drawn or lies_otherwise(node.target, value, at.meta["val"])) else value
                for name, value in arguments.items()}

    def _stamped(self, result: Any, origin: Origin) -> Any:
        if isinstance(result, Node) and result.kind != "leaf":
            inherited = result.origin is None or any(result.origin is i.origin for i in result.inputs)
            result.origin = origin if inherited else result.origin
        return result

    def _opaque(self, operator: Any, target: str, arguments: dict[str, Any], like: Any, origin: Origin) -> Node:
        """A torch call that gives what is ``like`` the trace's tensors."""
        serial = -1
        if lasts(operator, arguments):
            serial, self.serial = self.serial, self.serial + 1
        call = opaque_of(operator, target, arguments, like, serial, origin, self.device)
        if serial >= 0:
            self.lasting.append(call)
        return call

    def _in_place(self, node: torch.fx.Node, target: str, arguments: dict[str, Any], origin: Origin) -> Any:
        """Run the functional twin, then let every name of the changed memory mean the new value."""
        places = written(node)
        changed = places[0][1]
        if len(places) != 1 or not isinstance(changed, torch.fx.Node):
            raise NotCapturable(f"{target} writes into {', '.join(name for name, _ in places)}")
        group = self.group[changed]
        if group in self.fixed:
            raise NotCapturable(f"{target} changes {self.fixed[group]} in place")
        if self.differentiated and any(map(is_detached, (node, *self.members[group]))):
            raise NotCapturable(f"{target} writes into memory that gradients see, and through a name that they do not")
        name = target.split(".")[0]
        old = self.values[changed]
        if name == "copy_":
            value = as_type_of(old, arguments["src"])
        elif name in ("zero_", "fill_"):
            value = as_type_of(old, arguments.get("value", 0))
        elif name == "detach_":
            value = old
        elif name == "dropout_" and arguments["train"] and 0 < arguments["p"] < 1 \
                and changed.meta["val"].is_contiguous():
            # On a GPU the operator that gives a new tensor draws in another way.
            kept = 1 - arguments["p"]
            noise = self._opaque(torch.ops.aten.bernoulli.p, "aten.bernoulli.p",
                                 {"self": old, "p": kept, "generator": None}, changed.meta["val"], origin)
            value = make("mul", old, make("div", noise, constant(kept)))
        else:
            kind = functional_of(node.target)
            if kind is node.target:  # the result goes into memory that is named beside the operands
                kind = functional(kind)
            if kind is None:
                raise NotCapturable(f"{target} has no functional form")
            twin = str(kind).removeprefix("aten.")
            names = [a.name for a in operator_of(node)._schema.arguments if a.name in arguments]
            own = [a.name for a in kind._schema.arguments]
            converter = CONVERTERS.get(twin)
            try:
                if converter is None or old.dtype in INTEGERS:
                    raise NotConvertible
                given = dict(zip(own, map(arguments.get, names), strict=False))
                value = converter({**given, **told_of(node, twin)})
            except NotConvertible:
                # The buffers that batch norm counts its calls in are integers: keep the sum as it is.
                given = dict(zip(own, map(self._in_memory_order(node, arguments).get, names), strict=False))
                value = self._opaque(kind, f"aten.{twin}", given, node.meta["val"], origin)
        if value.shape != old.shape:
            raise NotCapturable(f"{target} changes the shape of its target")
        value = self._stamped(as_type_of(old, value), origin)
        whole = self._write(changed, value, target)
        if group in self.buffers:
            self.updates[self.buffers[group]] = whole
            self.owners.pop(self.buffers[group], None)
        return value

    def _write(self, changed: torch.fx.Node, value: Node, target: str) -> Node:
        """Let every name of the memory of ``changed`` mean what it holds after the write; the value of the whole."""
        members = self.members[self.group[changed]]
        if all(self.values[m] is self.values[changed] for m in members):
            self.values.update(dict.fromkeys(members, value))
            return value
        written, current = {changed: value}, changed
        while (source := self.source.get(current)) is not None:
            arguments = self._arguments(current) if current.target is not operator.getitem else {}

            def twin(kind: Any, parts: dict[str, Any], like: torch.Tensor, of: torch.fx.Node = current) -> Node:
                return self._opaque(kind, str(kind), parts, like, origin_of(of, self.file))

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
            source, index = item_of(node)
            if viewed_part(source, index) is not None:
                self.values[source] = self._view_again(source)
            return self._item(node)
        if writes(node):
            return self.values[self.source[node]]
        target = str(node.target).removeprefix("aten.")
        return self._convert(node, target, self._arguments(node), origin_of(node, self.file))

    def _batch_norm(self, node: torch.fx.Node, a: dict[str, Any], origin: Origin) -> Node:
        x = a["input"]
        if not isinstance(x, Node):
            raise NotCapturable("batch norm of a number")
        if (a["weight"] is None) != (a["bias"] is None):  # so weights are standardized, with a gain
            other = a["bias"] if a["weight"] is None else a["weight"]
            a = {name: make("literal", value=float(name == "weight"), shape=other.shape, dtype=other.dtype)
                 if name in ("weight", "bias") and value is None else value for name, value in a.items()}
        if not x.size:  # PyTorch asks for no sizes then, and leaves the statistics as they are
            return copied(x)
        rest = [a["weight"], a["bias"]] if a["weight"] is not None else []
        mean, variance = a["running_mean"], a["running_var"]
        if not a["training"]:
            return make("batch_norm_inference", x, mean, variance, *rest, origin=origin, eps=a["eps"],
                        affine=bool(rest))
        running: tuple[str, ...] | None = None
        statistics: list[torch.fx.Node] = []
        if mean is not None:
            statistics = [operand_of(node, 3), operand_of(node, 4)]
            running = tuple(name for n in statistics if (name := self.buffers.get(self.group[n])) is not None)
            if len(running) < 2 or mean.op != "buffer" or variance.op != "buffer":
                raise NotCapturable("batch norm updates statistics that are not plain buffers")
        result = make("batch_norm_training", x, *rest, origin=origin, eps=a["eps"], affine=bool(rest),
                      momentum=a["momentum"], running=running)
        if running:
            axes = (0, *range(2, x.rank))
            momentum = a["momentum"]
            # Statistics of 16-bit values are of 32 bits until they are stored: a variance may leave the range before.
            wide = cast(x, dtype_name(torch.promote_types(torch_dtype(x.dtype), torch.float32)))
            for name, old, new in ((running[0], mean, make("mean", wide, axes=axes, keepdim=False)),
                                   (running[1], variance, make("var", wide, axes=axes, keepdim=False, correction=1))):
                kept = make("mul", cast(old, wide.dtype), constant(1.0 - momentum))
                self.updates[name] = cast(make("add", kept, make("mul", new, constant(momentum))), old.dtype)
                self.owners[name] = result
            for fx_node, value in zip(statistics, (self.updates[name] for name in running), strict=True):
                self.values[fx_node] = value
        return result

    def _arguments(self, node: torch.fx.Node) -> dict[str, Any]:
        schema = operator_of(node)._schema
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
