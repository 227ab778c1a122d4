"""The facts that an emitted forward checks before it trusts its kernels."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn

from kernelwright.capture.deciding import asked_in_words
from kernelwright.capture.forms import flat
from kernelwright.capture.parts import PartCall, parts_of
from kernelwright.containers import Fixed, Form, entries
from kernelwright.emit.model_source import is_library_class
from kernelwright.emit.results import computed_results, known, result_rows, result_strides
from kernelwright.emit.runtime import forms_text
from kernelwright.ir.evaluate import logical_shape
from kernelwright.ir.node import Node, make, walk
from kernelwright.ir.ops.leaves import OUTSIDE
from kernelwright.ir.scalar import INTEGERS
from kernelwright.plan.records import Plan, TorchStep
from kernelwright.problem.arguments import received, split
from kernelwright.problem.outside import read_outside
from kernelwright.problem.renaming import ORIGINAL_FORWARD

# The emitted file describes attributes with the very same functions.
_forms: dict[str, Any] = {}
exec(compile(forms_text(), "<kernelwright forms>", "exec"), _forms)

#: What the runtime reads under a condition of this name: facts of a mode or of the model, and their usual texts. Where
#: all modes have these, the file has neither the facts nor the text that reads them.
OPTIONAL = {
    "OTHER_MODE": {"other_mode": "()"}, "NESTED": {"nested": "None", "keywords": "()"}, "RETURNED": {"returned": "()"},
    "UPDATED": {"updated": "()", "seen": "()"}, "RANDOM": {"random": "False"}, "PARTS": {"parts": "()"},
    "ASKED": {"asked": "None"}, "DECIDED": {"decided": "()"}, "OF_INPUTS": {"of_inputs": "()"},
    "RESULTS": {"structure": "0", "results": "((0, ()),)", "computed": "(0,)", "given": "None"},
    "TIED": {"tied": "()"}, "OUTSIDE": {"outside": "{}"}, "GRAPHS": {"graph": "False"},
    "AHEAD": {"ahead": "False"}, "COMPILED": {"compiled": "None"}, "TURNABLE": {"strides": "()"},
    "GAPS": {"layout": "()"}, "BACKWARD": {"backward": "None"},
    "ATTRIBUTES": {"carried": "{}", "containers": "{}", "left": "()"},
}

#: Characters of a text that stands in one piece.
_LONG = 80

Facts = list[tuple[str, str]]
"""Entries of a table, as (key, text)."""


def conditions(tables: Sequence[Facts]) -> dict[str, bool]:
    """For each condition of :data:`OPTIONAL` whether one of the facts has another text than the usual one."""
    return {name: any(key in usual and usual[key] != text for table in tables for key, text in table)
            for name, usual in OPTIONAL.items()}


def written_facts(tables: Sequence[Facts], holds: Mapping[str, bool]) -> list[Facts]:
    """The tables without the facts that nothing reads."""
    unread = {key for name, usual in OPTIONAL.items() if not holds[name] for key in usual}
    return [[(key, text) for key, text in table if key not in unread] for table in tables]


def keeps_functions(model: nn.Module) -> bool:
    """Whether modules have functions in their attributes that have something around them, or as defaults."""
    def holds(value: Any) -> bool:
        if isinstance(value, FunctionType):
            return bool(value.__closure__ or value.__defaults__ or value.__kwdefaults__)
        if type(value) is partial:
            return holds(value.func) or holds(value.args) or holds(value.keywords)
        return type(value) in (list, tuple, dict) and any(map(holds, value.values() if type(value) is dict else value))

    internal = _forms["_kernelwright_internal"]
    return any(holds(value) for module in model.modules() for key, value in vars(module).items() if key not in internal)


def has_objects(model: nn.Module) -> bool:
    """Whether modules, or classes of the model's own file, have attributes that are no numbers, texts and tuples of
    these."""
    internal = _forms["_kernelwright_internal"]

    def is_plain(value: Any) -> bool:
        return value is None or type(value) in (bool, int, float, str, bytes) or (
            type(value) is tuple and all(map(is_plain, value)))

    def values(module: nn.Module) -> Iterable[Any]:
        for key, value in vars(module).items():
            if key not in internal and not isinstance(value, torch.Tensor):
                yield value
        for kind in type(module).__mro__:
            if kind.__module__ == type(model).__module__:
                for key, value in vars(kind).items():
                    if not key.startswith("__") and isinstance(value, (bool, int, float, str, tuple, list, dict)):
                        yield value

    return not all(is_plain(value) for module in model.modules() for value in values(module))


def literal(value: Any) -> str:
    """Python text of a plain value, a tuple, list or dict of them, a dtype, or a device."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return "(" + ", ".join(map(literal, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, str) and len(value) > _LONG:  # in parts, which a line may end between
        return "(" + " ".join(repr(value[n:n + _LONG]) for n in range(0, len(value), _LONG)) + ")"
    return f'torch.device("{value}")' if isinstance(value, torch.device) else repr(value)


def structure_text(structure: Any, model: nn.Module) -> str:
    """Python text of a structure of arguments or results."""
    if isinstance(structure, Fixed) and isinstance(structure.value, torch.device):
        return f'_KernelwrightDevice("{structure.value.type}")'
    if isinstance(structure, Fixed):
        return f"_KernelwrightFixed({_fixed_text(structure.value, model)})"
    if isinstance(structure, Form):
        parts = (structure_text(part, model) for part in (structure.items, structure.attributes))
        return f"_KernelwrightForm({_class_text(structure.kind, model)}, {', '.join(parts)})"
    if isinstance(structure, dict):
        return "{" + ", ".join(f"{literal(k)}: {structure_text(v, model)}" for k, v in structure.items()) + "}"
    if isinstance(structure, (tuple, list)):
        text = ", ".join(structure_text(part, model) for part in structure)
        return f"[{text}]" if isinstance(structure, list) else f"({text}{',' * (len(structure) == 1)})"
    return literal(structure)


def _fixed_text(value: Any, model: nn.Module) -> str:
    """Python text of a value that is the same in every call."""
    if isinstance(value, type):
        return _class_text(value, model)
    return f"{_class_text(type(value), model)}[{value.name!r}]" if isinstance(value, enum.Enum) else literal(value)


def _class_text(kind: type, model: nn.Module) -> str:
    """A class by its name in the emitted file, which has the classes of the model's own file."""
    first, *rest = kind.__qualname__.split(".")
    if _is_own(kind, model):
        return ".".join(["ModelNew" if first == type(model).__name__ else first, *rest])
    return f'_kernelwright_class("{kind.__module__}", "{kind.__qualname__}")'


def _is_own(kind: type, model: nn.Module) -> bool:
    return kind.__module__ == type(model).__module__ and not is_library_class(kind)


def own_classes(plan: Plan, model: nn.Module, inputs: Sequence[Any]) -> set[str]:
    """Names of the classes of the model's own file of which a call's arguments and results are, and those of parts."""
    found: set[str] = set()
    waiting: list[Any] = [plan.graph.structure, flat(received(model, inputs))[1]]
    waiting += [structure for call in plan_parts(plan) for structure in (call.arguments, call.result)]
    while waiting:
        part = waiting.pop()
        kind = part.kind if isinstance(part, Form) else None
        if isinstance(part, Fixed):
            kind = part.value if isinstance(part.value, type) else type(part.value)
        if kind is not None and _is_own(kind, model):
            found.add(kind.__qualname__.split(".")[0])
        waiting += [part.items, part.attributes] if isinstance(part, Form) else [i for _, i in entries(part) or ()]
    return found


def frozen(model: nn.Module) -> tuple[str, ...]:
    """The parameters that require no gradient."""
    return tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)


def plan_parts(plan: Plan) -> list[PartCall]:
    """The calls of submodules that stay with PyTorch, in the order of the plan's steps."""
    return parts_of([s.node for s in plan.steps if isinstance(s, TorchStep)])


def parts_text(plan: Plan, model: nn.Module) -> str:
    """Text of the calls of submodules: path, structures of arguments and result, shapes and dtypes of the result."""
    rows = [f"        ({literal(call.path)}, {structure_text(call.arguments, model)}, "
            f"{structure_text(call.result, model)}, ({''.join(f'{_typed(kind)}, ' for kind in call.kinds)})),"
            for call in plan_parts(plan)]
    return "\n".join(["(", *rows, "    )"]) if rows else "()"


def _typed(kind: tuple[Any, ...]) -> str:
    return f"({literal(kind[0])}, {kind[2]})"


def module_facts(model: nn.Module, plans: Sequence[Plan]) -> tuple[list[tuple[str, str]], str]:
    """What every mode of a model must be like, as (key, text); and the function that gives what is read from outside
    of the model, "" where nothing is.

    modules: class of every submodule by path. attributes: every attribute of every module that nn.Module did
    not make, by path, and class attributes of the model's own classes. held: parameters and buffers that are
    not None. tied: names of one and the same tensor. default_dtype: of new tensors. outside: what the forward reads
    from outside of the model by the text that gives it, None for tensors, which the kernels of ``plans`` use as they
    are at a call. Objects of the model's own file appear without their module's name, since that differs between the
    original and the emitted file.
    """
    own = {type(model).__module__}
    classes = {path: _forms["_kernelwright_name"](type(m), own) for path, m in model.named_modules() if path}
    attributes = {path: found for path, m in model.named_modules()
                  if (found := _forms["_kernelwright_attributes"](m, own))}
    # By module, so that one in several places counts under its first name alone, as in capture.
    tensors = [(f"{path}.{key}".lstrip("."), tensor) for kind in ("_parameters", "_buffers")
               for path, m in model.named_modules() for key, tensor in getattr(m, kind).items() if tensor is not None]
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors:
        groups.setdefault(id(tensor), []).append(name)
    rows = [f"        {literal(path)}: {literal(entries)}," for path, entries in attributes.items()]
    outside = {text: _forms["_kernelwright_form"](value, own) for text, value in read_outside(model).values.items()}
    outside |= {name.removeprefix(OUTSIDE): None for plan in plans for name in plan_tensors(plan)
                if name.startswith(OUTSIDE)}
    return [("modules", literal(classes)), ("attributes", "\n".join(["{", *rows, "    }"]) if rows else "{}"),
            ("held", literal(tuple(sorted(name for name, _ in tensors)))),
            ("default_dtype", str(torch.get_default_dtype())),
            ("tied", literal(tuple(tuple(g) for g in groups.values() if len(g) > 1))),
            ("outside", literal(outside))], _outside_function(outside)


def _outside_function(outside: Iterable[str]) -> str:
    """The text of the function that gives what is read from outside, in the order of ``outside``."""
    own = "type(_model).forward."
    texts = [t.replace(own, own.replace("forward", ORIGINAL_FORWARD), 1) if t.startswith(own) else t for t in outside]
    if not texts:
        return ""
    return "\n".join(["def _kernelwright_outside(_model):",
                      '    """What the original computation reads from outside of the model."""', "    return (",
                      *(f"        {text}," for text in texts), "    )"])


def plan_tensors(plan: Plan) -> dict[str, Node]:
    """The model's tensors that a plan's run function is given after the inputs, by name, in order; first those of
    attributes, which are others at each call."""
    given: dict[str, Node] = {}
    updated = {update.name for update in plan.graph.effects}
    carried = [node for node, _ in plan.graph.carried]
    fresh = [node for node in carried if node["name"] not in updated]
    for node in walk([*fresh, *carried, *plan.graph.roots(), *(e.value for e in plan.graph.effects)]):
        if node.op in ("parameter", "buffer", "attribute"):
            given.setdefault(node["name"], node)
    for update in plan.graph.effects:
        if update.name not in given:  # written and never read
            given[update.name] = make("buffer", name=update.name, shape=update.value.shape, dtype=update.value.dtype)
    return given


def _kind(leaf: Node) -> str:
    """Shape and dtype of a tensor, and the order of its axes in memory where it is not the usual one."""
    text = f"{literal(logical_shape(leaf))}, torch.{leaf.dtype}"
    return text if leaf.get("order") is None else f"{text}, {literal(leaf['order'])}"


def _returned(plan: Plan) -> tuple[str, ...]:
    """Names of inputs, and of tensors in plain attributes, that reach a result through views, or through operators that
    may be views, alone; all of them where an operator reads memory as it lies."""
    carried = {node for node, _ in plan.graph.carried}
    opaque = (str(node.get("target")) for node in plan.graph.nodes() if node.op == "opaque")
    if any(target.startswith("aten.as_strided") for target in opaque):
        return tuple(sorted(node["name"] for node in (*filter(None, plan.graph.inputs), *carried)))
    found: dict[str, None] = {}
    seen: set[Node] = set()
    stack = list(plan.results)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "input" or node in carried:
            found[node["name"]] = None
        elif node.kind in ("view", "opaque") and node.op not in ("concatenate", "cast"):
            stack += node.inputs
    return tuple(sorted(found))


def _of_inputs_text(plan: Plan) -> str:
    rows = [f"({asked_in_words(text, plan.graph)!r}, lambda inputs: {text}, {value!r})"
            for text, value in plan.graph.asked_of_inputs]
    return f"({', '.join(rows)},)" if rows else "()"


def is_recordable(plan: Plan) -> bool:
    """Whether a CUDA graph of a plan's program computes what the program does, call by call: where no submodule stays
    Python's, no random number is drawn beside kernels (as far as a plan shows it; eager's own calls draw the same ones
    from a graph), and nothing is changed where values decide whether the original computation is to run: a graph is
    asked after its launch. What else cannot be recorded shows when it is."""
    draws = bool(plan.kernels) and any(n.get("serial", -1) >= 0 for n in plan.graph.nodes())
    return not plan_parts(plan) and not draws and not (plan.effects and any(check.waited for check in plan.checks))


def is_function(plan: Plan, model: nn.Module, structures: Iterable[Any]) -> bool:
    """Whether a plan's kernels are a function of tensors alone, with nothing to change, to draw, or to decide by their
    values, of arguments and results in containers that every compiler knows: then torch.compile gets one operator.
    Neither may the model read numbers from outside, or keep floats within other attributes: the compiler does not
    compare such ones once they have changed."""
    graph, waiting = plan.graph, [*structures]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (Fixed, Form)):
            return False
        waiting += [item for _, item in entries(part) or ()]
    own = {type(model).__module__}
    kept = [value for module in model.modules() for value in _forms["_kernelwright_attributes"](module, own).values()]
    outside = [_forms["_kernelwright_form"](value, own) for text, value in read_outside(model).values.items()
               if not text.endswith(("__defaults__", "__kwdefaults__"))]  # nobody changes a function's own
    if any(isinstance(value, tuple) and _has(value, float) for value in kept) \
            or any(_has(value, (int, float)) and not isinstance(value, bool) for value in outside):
        return False
    below = [_viewed(node) for node in computed_results(plan)]
    if len(set(below)) < len(below):  # an operator's results have memory of their own
        return False
    is_kept_outside = any(name.startswith(OUTSIDE) for name in plan_tensors(plan))
    return not (_changes_or_asks(plan) or is_kept_outside or graph.asks or plan.checks or plan_parts(plan)
                ) and bool(plan.kernels and computed_results(plan))


def may_run_in_vain(plan: Plan) -> bool:
    """Whether a plan's program can run for a call that does not fit it, whose results are then dropped: it changes
    nothing, leaves no submodule to Python, and refuses no value, as it may an index, with which a device ends the
    process's work on it."""
    refuses = plan.checks or any(n is not None and n.dtype in INTEGERS for n in plan.graph.inputs)
    return not (_changes_or_asks(plan) or plan.graph.asks or plan_parts(plan) or refuses)


def _changes_or_asks(plan: Plan) -> bool:
    """Whether a call changes something, draws random numbers, carries on where another ended, or decides by values."""
    graph = plan.graph
    drawn = any(n.get("serial", -1) >= 0 for n in graph.nodes())
    return bool(drawn or graph.effects or graph.left or graph.carried or graph.decided or graph.asked_of_inputs)


def _has(form: Any, kinds: type | tuple[type, ...]) -> bool:
    """Whether a value of some types stands in the form of an attribute."""
    return any(_has(part, kinds) for part in form) if isinstance(form, tuple) else isinstance(form, kinds)


def _viewed(node: Node) -> Node:
    """What a node is a view of, of whatever kind."""
    while node.kind == "view":
        node = node.inputs[0]
    return node


def _compiled_text(plan: Plan, model: nn.Module, structures: Iterable[Any]) -> str:
    """Shape, strides and dtype of each computed result, as another compiler is told them; None where it is told
    nothing of the kernels."""
    if not is_function(plan, model, structures):
        return "None"
    strides = {node: known(plan, number).strides for number, node in reversed(list(enumerate(plan.results)))}
    rows = []
    for node in computed_results(plan):
        laid = strides[node] or torch.empty(node.shape, device="meta").stride()
        rows.append(f"({literal(tuple(node.shape))}, {literal(tuple(laid))}, torch.{node.dtype})")
    return f"({', '.join(rows)},)"


def plan_facts(plan: Plan, model: nn.Module, inputs: list[Any], mode: str, *, graph: bool = False,
               ahead: bool = False) -> list[tuple[str, str]]:
    """The entries of a plan's table of facts, as (key, text).

    inputs: (name, shape, dtype) of a tensor (followed by the order of its axes in memory where that is not the
    usual one), (name, value) of anything else. nested: None, or the arguments' structure with numbers for the
    inputs. keywords: names of the last arguments, which are given by keyword only. returned: inputs with which a
    result may share its memory, which are not copied. tensors: the model's tensors that the kernels use. updated:
    buffers that a forward changes. structure: the result with numbers for what ``results`` describes; where plain
    attributes are assigned, both: it and a list of what these get. carried: the strides of tensors that a call finds in
    plain attributes, by these. containers: the structures of those that are no tensors, with places among the carried.
    left: those that it assigns. random: whether it draws random numbers.
    parts: calls of submodules that stay with PyTorch. asked: None, or how inputs and parameters stand in a recorded
    graph, where that matters. decided: buffers by whose values the forward decides, and these. of_inputs: what
    it decides by of inputs, in words, as a function of the tensors among these, and its value. results, computed: see
    :mod:`kernelwright.emit.results`. given: the function that gives the results that nothing is computed for. graph:
    whether calls that no gradient is asked of run as a CUDA graph. ahead: whether kernels may be launched before all is
    asked that a call must fulfil. compiled: shape, strides and dtype of each computed result, where torch.compile gets
    the kernels as an operator. strides: of each result, where inputs may have their axes in another order, which
    results may show; None of a tensor that was given. layout: the example's inputs that have their axes in another
    order and gaps between them, with their strides.
    """
    values, structure = flat(received(model, inputs))
    entries = []
    for position, (node, value) in enumerate(zip(plan.graph.inputs, values, strict=True)):
        if node is None:
            entries.append(f'("argument {position}", {_fixed_text(value, model)})')
        else:
            entries.append(f'("{node["name"]}", {_kind(node)})')
    positional, keywords = split(structure)
    arguments = [*positional, *keywords.values()]
    nested = "None" if all(type(part) is int for part in arguments) else structure_text(arguments, model)
    tensors = [f'        "{n}": ({_kind(leaf)}),' for n, leaf in plan_tensors(plan).items()]
    other = tuple(p for p, m in model.named_modules() if m.training != model.training)
    drawn = any(n.get("serial", -1) >= 0 for n in plan.graph.nodes())
    rows, computed, given = result_rows(plan, model, values)
    asks = plan.graph.asks
    asked = tuple(tuple((t.requires_grad, t.is_leaf) if given in asks else None for given, t in tensors
                        if isinstance(t, torch.Tensor))
                  for tensors in (enumerate(values), model.named_parameters())) if asks else None
    structure = (plan.graph.structure, [part for _, part in plan.graph.left]) if plan.graph.left \
        else plan.graph.structure
    return [("training", repr(model.training)), ("other_mode", literal(other)),
            ("carried", literal({node["name"]: strides for node, strides in plan.graph.carried})),
            ("containers", literal(dict(plan.graph.containers))),
            ("left", literal(tuple(name for name, _ in plan.graph.left))),
            ("inputs", "(" + ", ".join(entries) + ("," if len(entries) == 1 else "") + ")"),
            ("nested", nested), ("keywords", literal(tuple(keywords))), ("returned", literal(_returned(plan))),
            ("tensors", "\n".join(["{", *tensors, "    }"]) if tensors else "{}"),
            ("updated", literal(tuple(e.name for e in plan.graph.effects))), ("seen", literal(_seen(plan))),
            ("structure", structure_text(structure, model)), ("random", repr(drawn)),
            ("parts", parts_text(plan, model)), ("asked", literal(asked)), ("decided", literal(plan.graph.decided)),
            ("of_inputs", _of_inputs_text(plan)),
            ("results", literal(rows)),
            ("computed", literal(computed)), ("run", f"_kernelwright_{mode}"),
            ("given", f"_kernelwright_{mode}_given" if given else "None"), ("graph", repr(graph)),
            ("ahead", repr(ahead and may_run_in_vain(plan))),
            ("compiled", "None" if keywords else _compiled_text(plan, model, [arguments, plan.graph.structure])),
            ("strides", literal(result_strides(plan) if _turnable(plan) else ())),
            ("layout", literal(_layout(plan, values)))]


def _seen(plan: Plan) -> tuple[str, ...]:
    """The names of those tensors that a call updates on whose values before it anything else depends: running
    statistics do not count in training, where nothing but their updates reads them. All where a decision of the model's
    own, or what it asks of its tensors, may depend on them."""
    updated = tuple(e.name for e in plan.graph.effects)
    if plan.graph.decided or plan.graph.asks:
        return updated
    read = {node["name"] for node in walk([*plan.graph.outputs, *(c.value for c in plan.graph.checks)])
            if node.op in ("parameter", "buffer", "attribute")}
    return tuple(name for name in updated if name in read)


def _layout(plan: Plan, values: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
    """As the runtime's guard tells how inputs lie in memory."""
    found: list[tuple[str, Any]] = []
    for node, value in zip(plan.graph.inputs, values, strict=True):
        if node is not None and isinstance(value, torch.Tensor) and value.layout is torch.strided:
            lying = value.permute(node.get("order") or tuple(range(value.ndim)))
            steps = [step for step, size in zip(lying.stride(), lying.shape, strict=True) if size > 1 and step]
            if steps != sorted(steps, reverse=True):
                found.append((node["name"], tuple(lying.stride())))
    return tuple(found)


def _turnable(plan: Plan) -> bool:
    """Whether an input has axes that may have another order in memory."""
    return any(node is not None and sum(size > 1 for size in node.shape) > 1 for node in plan.graph.inputs)
