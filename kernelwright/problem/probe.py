"""One real run of a model, with what PyTorch and the user's code do wrong turned into coded errors."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.containers import Unsupported, leaves, structure_of
from kernelwright.errors import ForwardRaised, HiddenState, OutputsUnsupported, describe, place, where_of
from kernelwright.problem.load import source_file
from kernelwright.problem.memory import is_out_of_memory, memory_checked
from kernelwright.problem.record import Problem
from kernelwright.problem.seeds import seeded
from kernelwright.problem.state import differences, kinds_of, plain_attributes, same, set_modes, spoil, tensors


@dataclass(frozen=True, slots=True)
class Probe:
    """What one run of the original showed."""

    outputs: Any
    """The outputs as returned: a tensor, or containers of tensors and plain values."""
    changed_tensors: tuple[str, ...]
    """state_dict names of buffers and parameters whose values the run changed, in state_dict order."""
    cached_attributes: tuple[str, ...]
    """Plain attributes that the run set to values independent of the inputs: caches, harmless."""
    state_attributes: tuple[str, ...] = ()
    """Plain attributes in which a call leaves tensors of its own, or in place of others: no graph holds them."""


def probe_forward(problem: Problem, seed: int = 0, modes: Mapping[str, bool] | None = None) -> Probe:
    """Construct the model, run it once on its inputs, and look at what it returned and changed.

    Runs it again, on other inputs, only where a plain attribute changed, to tell a cache from state.
    modes: whether each of its modules is in training, by path; by default as the constructor leaves them.
    Raises ForwardRaised (KW114), NotEnoughMemory (KW115), HiddenState (KW202; for state other than tensors,
    which nobody could compare, where the next call may read it), OutputsUnsupported (KW203), and what make_model and
    make_inputs raise.
    """
    def make() -> nn.Module:
        made = problem.make_model(seed)
        return made if modes is None else set_modes(made, modes)

    model = make()
    plain, before, own = plain_attributes(model), tensors(model), _own_tensors(model)
    outputs = run_forward(problem, model, problem.make_inputs(seed))
    check_outputs(outputs, problem)
    after = plain_attributes(model)
    # Tensors that were put in place of others may have the same values for once.
    changed = sorted({*differences(plain, after), *(
        name for name, tensor in _own_tensors(model).items() if own.get(name, tensor) is not tensor)})
    caches: list[str] = []
    carried: tuple[str, ...] = ()
    if changed:
        # A cache is the same after another call, and the same in a new model that sees other inputs.
        other = make()
        run_forward(problem, other, problem.make_inputs(seed + 1))
        again = run_forward(problem, model, problem.make_inputs(seed + 1))
        ends = plain_attributes(other), plain_attributes(model)
        unstable = {name for end in ends for name in differences(after, end)}
        state = [name for name in changed if name in unstable]
        alike = all(kinds_of(end.get(name)) == kinds_of(after.get(name)) for end in ends for name in state)
        hidden = [n for n in state if not (_tensor_or_none(plain.get(n)) and _tensor_or_none(after.get(n)))
                  and not (alike and _is_of_tensors(after.get(n)))]
        if hidden and not (alike and _unread(problem, seed, make(), state, again, model)):
            where = next((text for name in hidden if (text := _assignment(problem, name))), "")
            raise HiddenState(where=where, model=problem.class_name, attributes=", ".join(hidden))
        caches = [name for name in changed if name not in state and not _leaves(plain.get(name))
                  and not _within(model, name)]
        carried = tuple(name for name in changed if name not in caches)
    now = tensors(model)
    altered = tuple(name for name in before if name in now and not same(before[name], now[name]))
    return Probe(outputs, altered, tuple(caches), carried)


def carried_attributes(problem: Problem, seed: int, changed: Sequence[str], modes: Mapping[str, bool] | None = None
                       ) -> list[str]:
    """The plain attributes in which calls leave tensors that no cache is: those that a run shows, and those of the
    ``changed`` ones, which a trace has seen, that it does not know for caches. Raises what `probe_forward` raises."""
    probe = probe_forward(problem, seed, modes)
    return [*probe.state_attributes, *(name for name in changed if name not in probe.state_attributes
                                       and name not in probe.cached_attributes)]


def _unread(problem: Problem, seed: int, other: nn.Module, names: list[str], outputs: Any, model: nn.Module) -> bool:
    """Whether a second run of ``other``, which is new, gives ``outputs`` and leaves the tensors of ``model`` also after
    the tensors that the first run left in the attributes ``names`` were spoiled."""
    run_forward(problem, other, problem.make_inputs(seed))
    for name in names:
        spoil(other, name)
    try:
        return same(run_forward(problem, other, problem.make_inputs(seed + 1)), outputs) and \
            same(tensors(other), tensors(model))
    except ForwardRaised:
        return False


def _own_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that plain attributes hold, by path."""
    return {f"{path}.{key}".lstrip("."): value for path, module in model.named_modules()
            for key, value in vars(module).items() if isinstance(value, torch.Tensor)}


def _within(model: nn.Module, name: str) -> bool:
    """Whether an attribute holds an object of a class of its own that has tensors, which nobody can compare."""
    path, _, key = name.rpartition(".")
    own = getattr(vars(model.get_submodule(path)).get(key), "__dict__", None)
    return isinstance(own, dict) and bool(_leaves(list(own.values())))


def _tensor_or_none(value: Any) -> bool:
    return value is None or isinstance(value, torch.Tensor)


def _is_of_tensors(value: Any) -> bool:
    """Whether a value of `plain_attributes` is a list, tuple or dictionary of tensors alone."""
    if isinstance(value, torch.Tensor):
        return True
    kind, parts = value if type(value) is tuple and len(value) == 2 else ("", None)
    inner = list(parts.values()) if isinstance(parts, dict) else parts
    return kind in ("list", "tuple", "dict") and isinstance(inner, list) and bool(inner) and \
        all(map(_is_of_tensors, inner))


def run_forward(problem: Problem, model: nn.Module, inputs: list[Any]) -> Any:
    """``model(*inputs)`` under seed 0 with gradients off. Raises KW114 and KW115."""
    file = problem.path or source_file(problem.model_class)
    with memory_checked("the results of forward", problem.device, file):
        try:
            with seeded(0), torch.no_grad():
                return model(*inputs)
        except Exception as exception:
            if is_out_of_memory(exception):
                raise
            raise ForwardRaised(where=where_of(exception, file), model=problem.class_name,
                                device=problem.device, exception=describe(exception)) from exception


def after_first_call(problem: Problem, model: nn.Module, seed: int) -> nn.Module:
    """``model``, called once on its inputs: some models build parts of themselves in their first call. Raises what
    `run_forward` raises."""
    run_forward(problem, model, problem.make_inputs(seed))
    return model


def check_outputs(outputs: Any, problem: Problem) -> None:
    """Raise OutputsUnsupported (KW203) unless ``outputs`` are tensors, or containers of tensors and plain values."""
    found = unsupported(outputs)
    if found is None and not _leaves(outputs):
        found = "no tensor at all"
    if found:
        raise OutputsUnsupported(where=_forward_place(problem), model=problem.class_name, found=found)


def unsupported(value: Any) -> str | None:
    """What in a forward's result no error bound fits, with its position; None where there is nothing of the kind."""
    sparse: list[str] = []

    def look(tensor: torch.Tensor) -> int:
        if tensor.layout is not torch.strided:
            sparse.append("a tensor that is not dense")
        return 0

    try:
        structure_of(value, look)
    except Unsupported as error:
        return str(error)
    return sparse[0] if sparse else "None" if value is None else None


def _leaves(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def _assignment(problem: Problem, attribute: str) -> str:
    """The ``where`` text of the last line that assigns ``self.<attribute>``, outside constructors."""
    file = problem.path or source_file(problem.model_class)
    if problem.source is None or file is None:
        return ""
    name, line = attribute.rpartition(".")[2], 0
    for function in ast.walk(ast.parse(problem.source)):
        if not isinstance(function, ast.FunctionDef) or function.name == "__init__":
            continue
        for node in ast.walk(function):
            if not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                while isinstance(target, ast.Subscript):
                    target = target.value
                if isinstance(target, ast.Attribute) and target.attr == name:
                    line = max(line, node.lineno)
    return place(Path(file), line) if line else ""


def _forward_place(problem: Problem) -> str:
    code = getattr(problem.model_class.forward, "__code__", None)
    return place(code.co_filename, code.co_firstlineno) if code else ""
