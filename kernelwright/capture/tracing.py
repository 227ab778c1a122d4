"""What the exporter cannot follow, put during a trace so that it can, with the same meaning."""

from __future__ import annotations

import dis
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor

from kernelwright.capture.deciding import Deciding, SizesOfBuffers, node_of
from kernelwright.capture.nodes import item_of, operand_of
from kernelwright.capture.recurrent import recurrent_layers_marked
from kernelwright.capture.strides import strides_of_eager
from kernelwright.ir.grouped import GROUPED_PRODUCTS, grouped_shape

#: The folder of PyTorch's code, and those of its files that a forward calls as it calls its own.
TORCH = os.path.join(os.path.dirname(torch.__file__), "")
LIBRARY = tuple(TORCH + name for name in ("nn/", "distributions/", "functional.py"))
#: The folder of what is put during a trace.
_HERE = os.path.join(os.path.dirname(__file__), "")
#: What a tensor says of the recorded graph that it stands in.
_ASKED = ("requires_grad", "is_leaf", "grad_fn")


@contextmanager
def traceable() -> Iterator[None]:
    """While active, modules call what a trace can follow."""
    with (recurrent_layers_marked(), strides_of_eager(), _data_detached(), _masks_not_inspected(), _not_compiling(),
          _scripts_as_python(), _statistics_kept(), _grouped_products_shown()):
        yield


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


#: The message of a check that Python makes itself, and so waits for.
ASKED = "asked by Python"
#: How Python asks for the values of a tensor.
_ASKS = ("item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__complex__", "__array__")


def _expected(frame: FrameType) -> bool | None:
    """The truth value with which the code of a frame goes on, where it raises an error with the other one; or None.

    So it is in ``assert condition`` and in ``if condition: raise ...``, of the user's code or of PyTorch's own.
    """
    return _wanted(*_running(frame))


def _running(frame: FrameType) -> tuple[list[dis.Instruction], int]:
    """The instructions of a frame, and the place of the one that runs."""
    code = list(dis.get_instructions(frame.f_code))
    # A call of a Python function stands at what the interpreter keeps behind the instruction.
    return code, sum(instruction.offset <= frame.f_lasti for instruction in code) - 1


def _wanted(code: list[dis.Instruction], place: int) -> bool | None:
    """The truth value with which code goes on from a jump at ``place`` where it raises with the other one; or None."""
    place += place < len(code) and code[place].opname == "TO_BOOL"
    if place + 1 >= len(code) or "JUMP" not in code[place].opname or "_IF_" not in code[place].opname:
        return None
    target = next(i for i, instruction in enumerate(code) if instruction.offset == code[place].argval)
    ahead, beyond = _raises(code[place + 1:]), _raises(code[target:])
    return ahead == ("IF_TRUE" in code[place].opname) if ahead != beyond else None


#: How many values the instructions take from the stack by which a bound is read: by the starts of their names.
_TAKEN = {"LOAD_ATTR": 1, "LOAD_METHOD": 1, "LOAD_SUPER": 3, "LOAD_": 0, "PUSH_NULL": 0, "KW_NAMES": 0, "CACHE": 0,
          "EXTENDED_ARG": 0, "BINARY_SLICE": 3, "BINARY_": 2, "UNARY_": 1}


def _is_compared(code: list[dis.Instruction], place: int) -> bool:
    """Whether what a call at ``place`` gives is compared with something, and nothing else is done with it, in order to
    raise an error: ``assert lengths.max().item() <= limit``."""
    depth = 1  # of the stack, from the call's result on
    for at in range(place + 1, len(code)):
        instruction = code[at]
        name, argument = instruction.opname, instruction.arg
        if name == "COMPARE_OP":
            return depth <= 2 and _wanted(code, at + 1) is not None
        if name == "PRECALL":  # of Python 3.11, before each CALL
            continue
        taken = argument + 2 if name == "CALL" and argument is not None else \
            next((count for start, count in _TAKEN.items() if name.startswith(start)), None)
        if taken is None or depth - taken < 1:
            return False
        depth += 1 - taken if name == "CALL" else dis.stack_effect(instruction.opcode, argument, jump=False)
    return False


class _Compared:
    """A number that a forward compares in order to raise an error: what comparisons with numbers give are tensors.

    They compare as Python does: integers as they are, and with the digits of float64 where one of two is none. With
    anything else the number itself is compared, which a trace does not know.
    """

    def __init__(self, tensor: torch.Tensor, number: Callable[[], Any]) -> None:
        self.tensor, self.number = tensor.reshape(()), number

    def _with(self, other: Any, compare: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, _Compared):
            both = self.tensor, other.tensor
            whole = not any(t.is_floating_point() for t in both)
            return compare(*both) if whole else compare(*(t.double() for t in both))
        if type(other) is float or (type(other) is int and abs(other) < 1 << 53):
            is_whole = type(other) is int and not self.tensor.is_floating_point()
            return compare(self.tensor if is_whole else self.tensor.double(), other)
        return compare(self.number(), other)

    def __lt__(self, other: Any) -> Any:
        return self._with(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._with(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._with(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._with(other, operator.ge)

    def __eq__(self, other: Any) -> Any:
        return self._with(other, operator.eq)

    def __ne__(self, other: Any) -> Any:
        return self._with(other, operator.ne)


#: Comparisons of numbers that are at least 0 and less than 1 with a bound: what they say of all of them, where it lies
#: beyond.
_OF_UNIT = {"lt": (False, True), "ge": (True, False), "le": (False, True), "gt": (True, False)}


def _known_truth(tensor: FakeTensor) -> bool | None:
    """The truth value of a comparison of uniform random numbers with a bound that none of them passes; or None.

    So layers are dropped at random: ``if torch.rand([]) < self.layerdrop``, with a probability of 0 in most models.
    """
    mode = proxy_tensor.get_proxy_mode()
    node = None if mode is None else node_of(tensor, mode.tracer)
    if node is None or not isinstance(node.target, torch._ops.OpOverload) or len(node.args) != 2:
        return None
    name, (drawn, bound) = node.target.overloadpacket.__name__, node.args
    if name not in _OF_UNIT or not isinstance(bound, (int, float)) or not isinstance(drawn, torch.fx.Node) \
            or getattr(getattr(drawn.target, "overloadpacket", None), "__name__", "") != "rand":
        return None
    below, above = _OF_UNIT[name]
    is_below = bound < 0 or (bound == 0 and name in ("lt", "ge"))
    return below if is_below else above if bound >= 1 else None


def _raises(code: list[dis.Instruction]) -> bool:
    """Whether code comes to a raise, with nothing to decide before."""
    return next((i.opname == "RAISE_VARARGS" for i in code if i.opname == "RAISE_VARARGS" or "RETURN" in i.opname
                 or i.opcode in dis.hasjrel or i.opcode in dis.hasjabs), False)


@contextmanager
def values_read(found: list[str], deciding: Deciding) -> Iterator[None]:
    """While active, ``found`` gets how Python asks for the values of a tensor whose values the trace knows: what it
    makes of them stands in the trace as plain numbers. So does what it makes of buffers, which ``deciding`` gets.

    Where the trace does not know a truth value, and the code asks for it in order to raise an error, the trace gets a
    check and goes on without the error. So where it asks for a number, and compares it, for that.
    """
    originals = {name: getattr(torch.Tensor, name) for name in _ASKS}
    own = {name: vars(torch.Tensor)[name] for name in _ASKS if name in vars(torch.Tensor)}

    def asking(name: str) -> Any:
        def ask(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            if not isinstance(tensor, FakeTensor) or tensor.constant is not None:
                found.append(name)
            elif name == "__bool__" and (known := _known_truth(tensor)) is not None:
                return known
            elif (answer := deciding.answer(tensor, lambda t: originals[name](t, *arguments, **named))) is not None:
                return answer
            elif name == "__bool__" and tensor.numel() == 1 and (wanted := _expected(sys._getframe(1))) is not None:
                torch.ops.aten._assert_async.msg(tensor if wanted else torch.logical_not(tensor), ASKED)
                return wanted
            elif name == "item" and tensor.numel() == 1 and not tensor.is_complex():
                code, place = _running(sys._getframe(1))
                if _wanted(code, place + 1) is not None:  # a truth value, which is asked for next
                    return tensor.reshape(())
                if _is_compared(code, place):
                    return _Compared(tensor, lambda: originals[name](tensor))
            return originals[name](tensor, *arguments, **named)
        return ask

    for name in _ASKS:
        setattr(torch.Tensor, name, asking(name))
    try:
        with SizesOfBuffers(deciding) if deciding.values else nullcontext():
            yield
    finally:
        for name in _ASKS:
            if name in own:
                setattr(torch.Tensor, name, own[name])
            else:
                delattr(torch.Tensor, name)


@contextmanager
def asking(found: set[str]) -> Iterator[None]:
    """Put into ``found`` what the forward, or a layer of PyTorch's in it, asks tensors of the recorded graph."""

    def noted(name: str) -> property:
        inherited = getattr(torch._C.TensorBase, name)

        def ask(tensor: torch.Tensor) -> Any:
            if _is_of_model(sys._getframe(1)):
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
    submodules, so that what was asked is of the calls after it.
    """

    gradients: bool = False
    modules: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    others: bool = False
    builds: bool = False

    def same_answers(self, one: Mapping[str, bool], other: Mapping[str, bool]) -> bool:
        """Whether modules in the modes ``one`` and ``other`` (by path) answer alike."""
        return not self.others and all(
            one.get(path) == other.get(path) for path in self.modules | self.told)


@contextmanager
def modes_asked(model: torch.nn.Module, found: Questions) -> Iterator[None]:
    """Put into ``found`` what the forward of ``model``, or a layer of PyTorch's in it, makes depend on the mode."""
    functions = {name: getattr(torch, name) for name in _GRADIENT_QUESTIONS}
    own = {id(module): path for path, module in model.named_modules()}
    apply = vars(torch.autograd.Function)["apply"]

    def noted(name: str) -> Any:
        def ask() -> bool:
            frame = sys._getframe(1)
            if _is_of_model(frame) or frame.f_code.co_filename.startswith(f"{TORCH}utils/"):
                found.gradients = True
            return functions[name]()
        return ask

    def applied(kind: type, *arguments: Any, **named: Any) -> Any:
        found.gradients = True
        return apply.__func__(kind, *arguments, **named)

    def training(module: torch.nn.Module) -> bool:
        if _is_of_model(sys._getframe(1)):
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
    torch.nn.Module.training = property(training, set_training)  # pyrefly: ignore[bad-assignment]  # asked instead of read
    try:
        yield
    finally:
        del torch.nn.Module.training
        torch.autograd.Function.apply = apply
        for name, function in functions.items():
            setattr(torch, name, function)


def bound_questions() -> bool:
    """Whether a module of the user's has a function that tells the gradient mode under a name of its own, where nothing
    notes that it is asked."""
    asked = {id(getattr(torch, name)) for name in _GRADIENT_QUESTIONS}
    return any(id(value) in asked for name, module in list(sys.modules.items()) if name.split(".")[0] != "torch"
               for value in list(getattr(module, "__dict__", {}).values()))


def _is_of_model(frame: FrameType) -> bool:
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
