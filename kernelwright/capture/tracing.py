"""What the exporter cannot follow, put during a trace so that it can, with the same meaning."""

from __future__ import annotations

import gc
import importlib
import operator
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from types import FrameType, FunctionType
from typing import Any

import torch
from torch._subclasses import fake_impls

from kernelwright.capture.nodes import item_of, operand_of
from kernelwright.capture.recurrent import recurrent_layers_marked
from kernelwright.capture.strides import strides_of_eager
from kernelwright.ir.grouped import GROUPED_PRODUCTS, grouped_shape
from kernelwright.problem.untraced import TRACER

#: The folder of PyTorch's code, and those of its files that a forward calls as it calls its own.
TORCH = os.path.join(os.path.dirname(torch.__file__), "")
LIBRARY = tuple(TORCH + name for name in ("nn/", "distributions/", "functional.py"))
#: The folder of what is put during a trace.
_HERE = os.path.join(os.path.dirname(__file__), "")
#: What a tensor says of the recorded graph that it stands in.
_ASKED = ("requires_grad", "is_leaf", "grad_fn")


def import_tracer() -> None:
    """Import what torch.export is made of, which takes about as long as PyTorch itself: when something is going to be
    traced, and not before. Nobody looks for cycles meanwhile; nor later where a command has put what it imported out of
    the collector's sight."""
    if TRACER in sys.modules:
        return
    enabled = gc.isenabled()
    gc.disable()
    try:
        with suppress(ImportError):  # a private name
            importlib.import_module(TRACER)
    finally:
        if gc.get_freeze_count():
            gc.freeze()
        if enabled:
            gc.enable()


@contextmanager
def traceable() -> Iterator[None]:
    """While active, modules call what a trace can follow."""
    _tables_of_compile()
    with (recurrent_layers_marked(), strides_of_eager(), _data_detached(), _masks_not_inspected(), _not_compiling(),
          _scripts_as_python(), _statistics_kept(), _grouped_products_shown()):
        yield


@cache
def _tables_of_compile() -> None:
    """Have torch.compile make its table of PyTorch's functions, as it does when it is first used: under a trace, where
    others stand in for them and torch.cond uses it, it would know those alone, and not PyTorch's own ever after."""
    table = getattr(importlib.import_module("torch._dynamo.variables.torch").TorchInGraphFunctionVariable,
                    "_get_handlers", None)
    if table is not None:
        table()


@contextmanager
def _grouped_products_shown() -> Iterator[None]:
    """A trace knows what grouped products give, of every type and in the memory order of the calls: PyTorch's rule of
    shapes refuses all types but bfloat16, and knows no padded rows where there is no CUDA."""
    rules: dict[Any, Any] = fake_impls.op_implementations_dict
    added = [target for target in GROUPED_PRODUCTS if target not in rules]
    rules.update(dict.fromkeys(added, _grouped_products))
    try:
        yield
    finally:
        for target in added:
            del rules[target]


def _grouped_products(mode: Any, target: Any, a: Any, b: Any, offs: Any = None, bias: Any = None,
                      out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """What a trace has of `grouped_products`: rows are as far apart as multiples of 16 bytes are."""
    dtype = out_dtype or a.dtype
    *before, columns = grouped_shape(a.shape, b.shape, None if offs is None else offs.shape[0])
    padded = -(-columns * dtype.itemsize // 16) * 16 // dtype.itemsize
    strides = (before[1] * padded, padded, 1) if len(before) == 2 else (padded, 1)
    with mode:
        return torch.empty_strided((*before, columns), strides, dtype=dtype, device=a.device)


#: Operators that update statistics although their schemas say that they write nothing.
UPDATING = frozenset({torch.ops.aten.instance_norm.default})


@contextmanager
def _statistics_kept() -> Iterator[None]:
    """A trace keeps calls that update statistics where nobody reads what they give."""
    added = UPDATING - torch.fx.node._side_effectful_functions
    torch.fx.node._side_effectful_functions.update(added)
    try:
        yield
    finally:
        torch.fx.node._side_effectful_functions.difference_update(added)


@contextmanager
def _scripts_as_python() -> Iterator[None]:
    """Functions that were compiled by ``torch.jit.script`` run as the Python code that they were made of: what their
    interpreter makes of constants, a trace takes for tensors of nobody's."""
    compiled = torch.jit.ScriptFunction
    call = compiled.__call__

    def run(function: Any, *arguments: Any, **named: Any) -> Any:
        python = getattr(function, "_torchdynamo_inline", None)
        return call(function, *arguments, **named) if python is None else python(*arguments, **named)

    compiled.__call__ = run
    try:
        yield
    finally:
        compiled.__call__ = call


@contextmanager
def lines_noted(file: str | None) -> Iterator[None]:
    """The stack that a trace keeps of each call has the lines of ``file`` alone, from its first forward on: PyTorch
    looks up the text of each of a hundred frames, which takes a tenth of the trace."""
    proxies: Any = importlib.import_module("torch.fx.proxy")
    stacks = getattr(proxies, "CapturedTraceback", None)
    if stacks is None:  # a private name: another PyTorch keeps stacks of its own
        yield
        return
    proxies.CapturedTraceback = _LinesOf(file)
    try:
        yield
    finally:
        proxies.CapturedTraceback = stacks


class _LinesOf:
    """The frames of a file, in place of PyTorch's stack of all frames."""

    def __init__(self, file: str | None) -> None:
        self._file = file

    def extract(self, **how: Any) -> _LinesOf:
        return self

    def summary(self) -> traceback.StackSummary:
        """Those within the outermost forward, after the frame of that, by which PyTorch knows a stack."""
        found: list[traceback.FrameSummary] = []
        forwards: list[traceback.FrameSummary] = []
        inner = 0  # how many frames are of calls that the outermost forward made
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "forward":
                forwards, inner = [_summary(frame)], len(found)
            if code.co_filename == self._file:
                found.append(_summary(frame))
            frame = frame.f_back
        return traceback.StackSummary.from_list(forwards + found[:inner][::-1])


def _summary(frame: FrameType) -> traceback.FrameSummary:
    return traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, lookup_line=False)


@contextmanager
def asking(found: set[str]) -> Iterator[None]:
    """Put into ``found`` what the forward, or a layer of PyTorch's in it, asks tensors of the recorded graph."""

    def noted(name: str) -> property:
        inherited = getattr(torch._C.TensorBase, name)

        def ask(tensor: torch.Tensor) -> Any:
            if is_of_model(sys._getframe(1)):
                found.add(name)
            return inherited.__get__(tensor)

        return property(ask, inherited.__set__ if name == "requires_grad" else None)

    for name in _ASKED:
        setattr(torch.Tensor, name, noted(name))
    try:
        yield
    finally:
        for name in _ASKED:
            delattr(torch.Tensor, name)


#: Functions that tell how a call is made, beside what tensors tell.
_GRADIENT_QUESTIONS = ("is_grad_enabled", "is_inference_mode_enabled")


@dataclass(slots=True)
class Questions:
    """What a forward asked of the mode that it runs in. A forward computes the same in modes of the same answers.

    gradients: whether they are recorded (a function that differentiates itself may ask). modules: paths of those that
    were asked whether they are in training. told: paths of those that do something of their own when they are put into
    a mode. others: the training mode matters in ways that no list of modules tells. builds: whether a first call builds
    submodules, or leaves the first tensors in plain attributes, so that what was asked is of the calls after it.
    attributes: the plain attributes in which calls leave tensors, once these were looked for. gradients_changed: what
    the forward does to gradients that no operator of the trace shows.
    """

    gradients: bool = False
    modules: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    others: bool = False
    builds: bool = False
    attributes: tuple[str, ...] = ()
    gradients_changed: set[str] = field(default_factory=set)

    def same_answers(self, one: Mapping[str, bool], other: Mapping[str, bool]) -> bool:
        """Whether modules in the modes ``one`` and ``other`` (by path) answer alike."""
        return not self.others and all(
            one.get(path) == other.get(path) for path in self.modules | self.told)


@contextmanager
def modes_asked(model: torch.nn.Module, found: Questions) -> Iterator[None]:
    """Put into ``found`` what the forward of ``model``, or a layer of PyTorch's in it, makes depend on the mode."""
    functions = {name: getattr(torch, name) for name in _GRADIENT_QUESTIONS}
    own = {id(module): path for path, module in model.named_modules()}
    apply, register_hook = vars(torch.autograd.Function)["apply"], torch.Tensor.register_hook

    def noted(name: str) -> Any:
        def ask() -> bool:
            frame = sys._getframe(1)
            if is_of_model(frame) or frame.f_code.co_filename.startswith(f"{TORCH}utils/"):
                found.gradients = True
            return functions[name]()
        return ask

    def applied(kind: type, *arguments: Any, **named: Any) -> Any:
        found.gradients = True
        found.gradients_changed.add("autograd.Function")
        return apply.__func__(kind, *arguments, **named)

    def hooked(tensor: torch.Tensor, hook: Any) -> Any:
        found.gradients_changed.add("register_hook")
        return register_hook(tensor, hook)

    def training(module: torch.nn.Module) -> bool:
        if is_of_model(sys._getframe(1)):
            if id(module) in own:
                found.modules.add(own[id(module)])
            else:
                found.others = True
        try:
            return vars(module)["training"]
        except KeyError:  # a compiled module's, which has its own way
            raise AttributeError("training") from None

    def set_training(module: torch.nn.Module, mode: bool) -> None:
        found.others = found.others or id(module) in own
        vars(module)["training"] = mode

    for name in functions:
        setattr(torch, name, noted(name))
    torch.autograd.Function.apply = classmethod(applied)
    torch.Tensor.register_hook = hooked  # pyrefly: ignore[bad-assignment]  # asked instead of called
    torch.nn.Module.training = property(training, set_training)  # pyrefly: ignore[bad-assignment]  # asked instead of read
    try:
        yield
    finally:
        del torch.nn.Module.training
        torch.autograd.Function.apply = apply
        torch.Tensor.register_hook = register_hook
        for name, function in functions.items():
            setattr(torch, name, function)


#: Packages without such a function of their own: those that know nothing of PyTorch are many and large.
_NEVER_ASK = sys.stdlib_module_names | {"kernelwright", "torch", "numpy", "sympy", "mpmath", "networkx"}


def bound_questions() -> bool:
    """Whether a module of the user's has a function that tells the gradient mode under a name of its own, where nothing
    notes that it is asked."""
    asked = {id(getattr(torch, name)) for name in _GRADIENT_QUESTIONS}
    return any(not asked.isdisjoint(map(id, list(getattr(module, "__dict__", {}).values())))
               for name, module in list(sys.modules.items()) if name.partition(".")[0] not in _NEVER_ASK)


def is_of_model(frame: FrameType) -> bool:
    """Whether code is the user's or of PyTorch's layers, rather than of the machinery that traces them."""
    file = frame.f_code.co_filename
    return not file.startswith((TORCH, _HERE)) or file.startswith(LIBRARY)


#: Questions whether something compiles, and their own answers while the user's code gets another one.
_QUESTIONS: dict[str, Any] = {}


def answer(question: str) -> bool:
    """What the function that calls this one answers: no to the user's code, the truth to PyTorch's own."""
    return sys._getframe(2).f_code.co_filename.startswith(TORCH) and _QUESTIONS[question]()


def _is_compiling() -> bool:
    from kernelwright.capture import tracing
    return tracing.answer("is_compiling")


def _is_exporting() -> bool:
    from kernelwright.capture import tracing
    return tracing.answer("is_exporting")


@contextmanager
def _not_compiling() -> Iterator[None]:
    """The user's code is told that nothing compiles it, as in an eager call; PyTorch's own code knows better.

    The functions stay the objects that they are, under whatever name they were imported: only what they do changes.
    """
    functions = {"is_compiling": _is_compiling, "is_exporting": _is_exporting}
    asked = {name: getattr(torch.compiler, name) for name in functions if hasattr(torch.compiler, name)}
    codes = {name: function.__code__ for name, function in asked.items()}
    _QUESTIONS.update({name: FunctionType(codes[name], function.__globals__) for name, function in asked.items()})
    for name, function in asked.items():
        function.__code__ = functions[name].__code__
    try:
        yield
    finally:
        for name, function in asked.items():
            function.__code__ = codes[name]


@contextmanager
def _data_detached() -> Iterator[None]:
    """``tensor.data`` gives ``tensor.detach()``: the same memory, but in sight of the trace, which otherwise loses
    what is written there. Without gradients the two differ in the count of versions only."""
    inherited = torch._C.TensorBase.data
    torch.Tensor.data = property(  # pyrefly: ignore[no-access]  # the class has it at run time
        # pyrefly: ignore[missing-attribute]  # the stubs have a value for this descriptor
        lambda tensor: tensor.detach(), inherited.__set__, inherited.__delete__)
    try:
        yield
    finally:
        del torch.Tensor.data  # pyrefly: ignore[no-access]  # the property from above


@contextmanager
def _masks_not_inspected() -> Iterator[None]:
    """nn.Transformer's layers use the mask that they are given. PyTorch looks at its values, to say beside the same
    mask that it is the causal one: a hint for speed, and a decision on values, which no trace can hold."""
    layers = torch.nn.modules.transformer
    original = layers._detect_is_causal_mask
    layers._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        layers._detect_is_causal_mask = original


#: What a node of a trace has in its ``meta`` where that stood under a gradient mode: whether gradients were recorded.
RECORDS = "records_gradients"


def changes_gradient_mode(program: torch.export.ExportedProgram) -> bool:
    """Whether some of a trace stands under another gradient mode than the call."""
    return any(n.target is torch.ops.higher_order.wrap_with_set_grad_enabled for n in program.graph.nodes)


def without_scopes(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with its scopes resolved: what stood under autocast has its casts, what stood under vmap is batched,
    and what stood under another gradient mode is a part like any other (values do not depend on it).

    Composite operators stay whole (the table of decompositions is empty), writes become values, and the new values of
    buffers become the first results. A program without scopes is returned as it is.
    """
    modes = torch.ops.higher_order.wrap_with_set_grad_enabled
    while scope := next((n for n in program.graph.nodes if n.target is modes), None):
        _inline(program.graph_module, scope)
    called = [n.target for n in program.graph.nodes if n.op not in ("placeholder", "output")]
    if all(isinstance(t, torch._ops.OpOverload) or t is operator.getitem for t in called):
        return program
    try:
        return program.run_decompositions({})
    except Exception:  # the converter names what the trace holds
        return program


def _inline(module: torch.fx.GraphModule, scope: torch.fx.Node) -> None:
    """Put the nodes of a scope in its place. Its arguments: the mode, the scope's graph, and what that graph reads."""
    attribute, given = operand_of(scope, 1), scope.args[2:]
    region = getattr(module, str(attribute.target))
    inside = region.graph
    copies: dict[torch.fx.Node, Any] = {}
    places = iter(given)
    with module.graph.inserting_before(scope):
        for node in inside.nodes:
            if node.op == "placeholder":
                copies[node] = next(places)
            elif node.op != "output":
                if node.op == "get_attr":  # a scope in the scope
                    nested = f"{attribute.target}_{node.target}"
                    setattr(module, nested, getattr(region, node.target))
                    copies[node] = module.graph.get_attr(nested)
                else:
                    copies[node] = module.graph.node_copy(node, copies.__getitem__)
                    copies[node].meta[RECORDS] = scope.args[0]  # those of a scope in the scope get its own
    results: Any = torch.fx.node.map_arg(inside.output_node().args[0], copies.__getitem__)
    for part in list(scope.users):
        part.replace_all_uses_with(results[item_of(part)[1]])
        module.graph.erase_node(part)
    module.graph.erase_node(scope)
    if not attribute.users:
        module.graph.erase_node(attribute)


def name_of(target: Any) -> str:
    """A name for what a trace calls, without addresses."""
    return str(getattr(target, "__name__", None) or type(target).__name__) if callable(target) else str(target)


def lasts(target: Any, arguments: dict[str, Any]) -> bool:
    """Whether a call changes something beside what it gives: the random stream, or statistics."""
    updates = target in UPDATING and arguments["use_input_stats"] and arguments["running_mean"] is not None
    return updates or draws(target, arguments)


def draws(target: Any, arguments: dict[str, Any]) -> bool:
    """Whether a call of an operator may draw from torch's random stream: attention and recurrent layers do not without
    dropout, nor does what only training drops."""
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    rates = [arguments[name] for name in ("dropout_p", "dropout") if isinstance(arguments.get(name), (int, float))]
    return 0 not in rates and all(arguments.get(name) is not False for name in ("train", "training"))
