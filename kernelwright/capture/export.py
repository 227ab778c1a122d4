"""Stage 2, CAPTURE: a model and its inputs become a Graph.

``torch.export`` (non-strict) traces a deep copy at the level of the operators that the user wrote;
``capture/converter.py`` makes our graph of that. This module finds what a graph can't hold (state in
plain attributes, decisions on values).
"""

from __future__ import annotations

import copy
import io
import re
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from kernelwright import errors
from kernelwright.capture import tracing, values_asked
from kernelwright.capture.carried import Carried, Carries
from kernelwright.capture.converter import Converter, NotCapturable
from kernelwright.capture.deciding import Deciding
from kernelwright.capture.forms import flat, plain_call
from kernelwright.capture.observed import OTHERS, observe
from kernelwright.capture.parts import drawing, look_at, mark, module_of
from kernelwright.capture.tracing import (
    LIBRARY,
    RECORDS,
    Questions,
    asking,
    bound_questions,
    changes_gradient_mode,
    lines_noted,
    modes_asked,
    traceable,
    without_scopes,
)
from kernelwright.capture.values import BuildsParts
from kernelwright.capture.watch import (
    changed,
    draws_of_its_own,
    outside_kept,
    plain_state,
    random_states_kept,
    watched,
    without_registered,
)
from kernelwright.ir.graph import Graph
from kernelwright.problem.arguments import received, split
from kernelwright.problem.outside import read_outside
from kernelwright.problem.probe import unsupported
from kernelwright.problem.seeds import seeded
from kernelwright.problem.state import classes_of, told_modes

CheckState = Callable[[Sequence[str]], Sequence[str]]


def capture(model: torch.nn.Module, inputs: Sequence[Any], *, name: str = "Model", file: str | None = None,
            fresh: Callable[[], torch.nn.Module] | None = None,
            check_state: CheckState | None = None, recording: bool = False,
            left: Sequence[str] = (), modes: Questions | None = None, attributes: Sequence[str] = (),
            supposing: bool = True) -> Graph:
    """The graph of the forward of ``model(*inputs)`` in the model's present mode, without the model's own hooks, which
    stand around it. The model is not changed.

    recording: whether gradients are recorded during the call, which a forward may ask.
    left: paths of submodules that stay with PyTorch: their calls are nodes.
    modes: gets what of the mode the forward asked for: the graph is that of all calls with the same answers.
    fresh: makes another model alike, in the same mode; by default a deep copy, in which functions that the
    constructor made still mean the original.
    check_state: called with the plain attributes that the forward assigns or changes; it tells a cache from state by
    running the model, returns the attributes in which calls leave tensors of their own, and raises HiddenState for
    other state.
    attributes: these, where they are known: the graph then has what they hold before and after a call.
    supposing: whether the graph may be that of finite numbers, where the forward asks whether they are, with a check
    for it. Where it does not hold the model is called after the graph has run, so this may not have drawn random
    numbers, nor called submodules that stay with PyTorch: then the graph supposes nothing.
    Raises DataDependentControlFlow, HiddenState, ForwardRaised or OutputsUnsupported (user's errors), BuildsParts,
    Carries for attributes that are not known yet, and NotCapturable where the model is legal but its graph has no form
    here.
    """
    arguments = received(model, inputs)
    work = fresh() if fresh is not None else copy.deepcopy(model)
    # A submodule that stays with PyTorch assigns its own.
    carried = Carried(work, [name for name in attributes if not any(name.startswith(f"{path}.") for path in left)])
    call = plain_call(work, arguments, carried)
    outside = read_outside(work)
    if outside.refused:
        raise NotCapturable(outside.refused)
    if outside.caches:  # an eager call fills them: what a trace leaves in them would be nobody's
        positional, keywords = split(copy.deepcopy(list(inputs)))
        with torch.set_grad_enabled(recording), suppress(Exception), seeded(0):
            (fresh() if fresh is not None else copy.deepcopy(model))(*positional, **keywords)
    if left:
        mark(work, look_at(fresh or (lambda: copy.deepcopy(model)), left, inputs))
    before, classes = plain_state(work), classes_of(work)
    assigned: list[str] = []
    asked: set[str] = set()
    questions = modes if modes is not None else Questions()
    values: list[str] = []
    drawn: list[str] = []
    moved: list[str] = []
    deciding = Deciding(work, flat(arguments)[0])
    deciding.supposes_finite = supposing and not left
    try:
        # The exporter prints the graph of a trace that fails, to stdout or to stderr as its version has it.
        with warnings.catch_warnings(), torch.set_grad_enabled(recording), redirect_stdout(io.StringIO()), \
                redirect_stderr(io.StringIO()), watched(work, assigned), traceable(), lines_noted(file), \
                asking(asked), random_states_kept(drawn), values_asked.values_read(values, deciding), \
                outside_kept(outside, moved), modes_asked(work, questions), carried.watched():
            warnings.simplefilter("ignore")
            traced = torch.export.export(work, call.positional, call.keywords, strict=False)
            if changes_gradient_mode(traced):
                questions.gradients_changed.add(GRADIENT_MODE)
            program = without_scopes(traced)
            called = _called_with_gradients(program)
    except Exception as error:
        place = module_of(error, work)
        if "assigned during export" in str(error) and check_state is not None:
            _check_state(without_registered(model, assigned), check_state, name, file, attributes)
        try:
            _explain(error, model, inputs, changed(before, plain_state(work)) or assigned, name, file, recording)
        except (errors.DataDependentControlFlow, errors.HiddenState) as coded:
            coded.module = place
            raise
        raise NotCapturable(_reason(error), place) from error
    if classes_of(work) != classes:
        raise BuildsParts
    if asked or left or bound_questions():
        questions.gradients = True
    questions.others = questions.others or bool(left)
    questions.told |= told_modes(work)
    after = plain_state(work)
    if drawn or (drawn := draws_of_its_own(before, after)):
        place = drawing(fresh() if fresh is not None else copy.deepcopy(model), copy.deepcopy(list(inputs)), recording)
        raise NotCapturable("it seeds a generator of random numbers, or draws from one that no graph holds: "
                            + ", ".join(drawn), place)
    if moved:
        raise NotCapturable(f"it changes {', '.join(moved)}, which is not of the model")
    kept = {f"{path}.{key}".lstrip("."): value for path, module in work.named_modules()
            for key, value in vars(module).items() if isinstance(value, torch.Tensor)} | outside.tensors
    kept = {text: value for text, value in kept.items() if text not in carried.homes}
    if values and kept:
        raise NotCapturable("Python reads values of tensors that are not of the call")
    # What was changed and put back is no state, as far as nobody can run the model to see.
    remains = without_registered(model, changed(before, after) or (assigned if check_state is not None else []))
    if remains:
        _check_state(remains, check_state, name, file, attributes)
    carried.check(call.left, call.kept, after_a_call=questions.builds)
    if call.changes:
        raise NotCapturable("it changes what a container holds that it is given")
    if call.unsupported or not call.kept:
        raise NotCapturable(f"it returns {call.unsupported or 'no tensor'}")
    structure, left_in = call.structure, dict(call.left)
    observed, asks = observe(work, call.positional, call.keywords, kept, recording=recording, as_they_are=bool(asked),
                             traced=_strides(program), answers=deciding.answers, carried=tuple(carried.tensors))
    if observed is not None and any(OTHERS in result.reaches for result in observed):
        raise NotCapturable("gradients reach a tensor that is neither an input nor a parameter")
    containers = {name: part for name, part in carried.held.items() if name in carried.read and type(part) is not int}

    def converted(*, differentiated: bool) -> tuple[Graph, bool]:
        converter = Converter(program, work, file, outside, tuple(carried.tensors), differentiated=differentiated)
        return converter.graph(structure, training=model.training, observed=observed, asks=asks,
                               found=carried.read_tensors, left=left_in, containers=containers), converter.repeated.any

    graph, repeats = converted(differentiated=False)
    if deciding.supposed and any(node.get("serial", -1) >= 0 for node in graph.nodes()):
        return capture(model, inputs, name=name, file=file, fresh=fresh, check_state=check_state, recording=recording,
                       left=left, modes=modes, attributes=attributes, supposing=False)
    changing, told = set(questions.gradients_changed), any(RECORDS in node.meta for node in program.graph.nodes)
    if DETACH in called or repeats or told:
        with suppress(NotCapturable):  # the graph is captured, and its gradients are those of the original computation
            graph = replace(graph, differentiated=converted(differentiated=True)[0])
            called.discard(DETACH)
            changing -= {GRADIENT_MODE} if told else set()
    return replace(graph, calls=frozenset(called | changing),
                   decided=tuple(sorted(deciding.found.items())), asked_of_inputs=tuple(deciding.asked.items()))


#: What has its own graph for gradients (`Graph.differentiated`).
DETACH, GRADIENT_MODE = "detach.default", "set_grad_enabled"


def _called_with_gradients(program: torch.export.ExportedProgram) -> set[str]:
    """The operators of a program, but for those of constants, through which no gradient goes."""
    constants = {spec.arg.name for spec in program.graph_signature.input_specs
                 if spec.kind is InputKind.CONSTANT_TENSOR and isinstance(spec.arg, TensorArgument)}
    depending: set[torch.fx.Node] = set()
    called: set[str] = set()
    for node in program.graph.nodes:
        if (node.op == "placeholder" and node.name not in constants) or not depending.isdisjoint(node.all_input_nodes):
            depending.add(node)
            if node.op == "call_function" and node.meta.get(RECORDS, True):
                called.add(str(node.target).removeprefix("aten."))
    return called


def _strides(program: torch.export.ExportedProgram) -> list[tuple[int, ...]]:
    """Those of all tensors that a forward returns, in order."""
    returned: Any = program.graph.output_node().args[0]  # a tuple
    outputs = zip(program.graph_signature.output_specs, returned, strict=True)
    values = [node.meta.get("val") for spec, node in outputs
              if spec.kind is OutputKind.USER_OUTPUT and isinstance(node, torch.fx.Node)]
    return [tuple(value.stride()) for value in values if isinstance(value, torch.Tensor)]


def _check_state(changed: Sequence[str], check_state: CheckState | None, name: str, file: str | None,
                 known: Sequence[str]) -> None:
    """Raise HiddenState or Carries unless the plain attributes that the forward changes are caches, or known."""
    try:
        if check_state is None:
            raise errors.HiddenState(model=name, attributes=", ".join(changed), where=errors.place(file))
        if not set(carried := check_state(changed)) <= set(known):
            raise Carries(carried)
    except errors.HiddenState as state:
        owners = {attribute.rpartition(".")[0] for attribute in changed}
        state.module = owners.pop() if len(owners) == 1 else ""
        raise


def _explain(error: Exception, model: torch.nn.Module, inputs: Sequence[Any], attributes: list[str], name: str,
             file: str | None, recording: bool) -> None:
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
        raise errors.HiddenState(model=name, attributes=", ".join(attributes) or text.splitlines()[0],
                                 where=errors.where_of(error, file)) from error
    trial = copy.deepcopy(model)
    try:
        with torch.set_grad_enabled(recording):
            positional, keywords = split(inputs)
            found = unsupported(trial(*positional, **keywords))
    except Exception as failure:
        device = next((t.device for t in inputs if isinstance(t, torch.Tensor)), "cpu")
        raise errors.ForwardRaised(model=name, exception=errors.describe(failure), device=device,
                                   where=errors.where_of(failure, file)) from failure
    if found:
        raise errors.OutputsUnsupported(model=name, found=found, where=errors.place(file)) from error


def _inside_library(error: Exception) -> str:
    """The function of PyTorch's own layers, losses or distributions that decides by a value; "" for the user's code."""
    frames = [(f.f_code.co_filename, f.f_code.co_name) for f, _ in traceback.walk_tb(error.__traceback__)
              if f.f_code.co_filename not in (tracing.__file__, values_asked.__file__)]
    own = max((i for i, (file, _) in enumerate(frames) if not file.startswith(tracing.TORCH)), default=len(frames))
    return next((_called(file, name) for file, name in frames[:own:-1]
                 if file.startswith(LIBRARY) and not file.endswith("/modules/module.py")),
                _composite(error))


def _composite(error: Exception) -> str:
    """The operator that the user called, where another one in it gives a value to decide by; else ""."""
    inner = re.fullmatch(r"aten\.(\w+)\.\w+", str(error))
    called = [frame.f_locals.get("func") for frame, _ in traceback.walk_tb(error.__traceback__)
              if frame.f_code.co_name == "__torch_function__"]
    outer = getattr(called[-1], "__name__", "") if called else ""
    return outer if inner and inner[1] not in (outer, "_local_scalar_dense") else ""


def _called(file: str, name: str) -> str:
    """A function by its name, a method by that of its module."""
    return Path(file).stem if name in ("forward", "__init__") else name


def _reason(error: Exception) -> str:
    """Why a trace failed, in words for the report where PyTorch's speak of its own parts."""
    text, kind = str(error), type(error).__name__
    if "fake tensor in the exported program" in text or text.startswith("Expected FakeTensor"):
        return "the trace loses sight of a tensor on its way, as it does where the forward takes derivatives"
    if kind == "TypeError" and "but got FakeTensor" in text:  # lengths of packed sequences, say
        return "the size of a tensor depends on values of another"
    if kind == "DynamicOutputShapeException":
        return f"the shape of what {text} gives depends on values"
    if kind in ("GuardOnDataDependentSymNode", "DataDependentOutputException") and (library := _inside_library(error)):
        return f"PyTorch's own {library} decides by the values of a tensor"
    return errors.describe(error)
