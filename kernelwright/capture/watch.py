"""Plain attributes of modules that a forward changes while it is traced."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kernelwright.containers import leaves
from kernelwright.problem.outside import Outside
from kernelwright.problem.seeds import random_states, seeded

_NO_USERS_SEED = 7_301_995_183
#: What every module has for its own purposes.
_OWN = frozenset(vars(torch.nn.Module()))


@contextmanager
def watched(model: torch.nn.Module, found: list[str]) -> Iterator[None]:
    """Put into ``found`` the plain attributes of ``model`` and its parts that its forward assigns, or that it finds
    otherwise than it leaves them: lists and dictionaries, too. The exporter takes such changes back."""
    paths = {id(m): path for path, m in model.named_modules()}
    original = torch.nn.Module.__setattr__
    before: dict[str, Any] = {}

    def note(module: torch.nn.Module, key: str, value: Any) -> None:
        registered = isinstance(value, (torch.nn.Module, torch.nn.Parameter)) or key in vars(module).get("_buffers", ())
        # A property assigns another attribute.
        registered = registered or hasattr(getattr(type(module), key, None), "__set__")
        if id(module) in paths and not registered and key not in _OWN:
            _add(found, f"{paths[id(module)]}.{key}".lstrip("."))
        original(module, key, value)

    def compare(*_: Any) -> None:
        for name in changed(before, plain_state(model)):
            _add(found, name)

    hooks = (model.register_forward_pre_hook(lambda *_: before.update(plain_state(model))),
             model.register_forward_hook(compare))
    torch.nn.Module.__setattr__ = note  # pyrefly: ignore[bad-assignment]  # the stubs take modules and tensors only
    try:
        yield
    finally:
        torch.nn.Module.__setattr__ = original
        for hook in hooks:
            hook.remove()


def _add(found: list[str], name: str) -> None:
    if name not in found:
        found.append(name)


def plain_state(model: torch.nn.Module) -> dict[str, Any]:
    """Every plain attribute of every module, as far as it can be compared."""
    state = {}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if key not in _OWN:
                state[f"{path}.{key}" if path else key] = print_of(value)
    return state


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names whose values differ."""
    return sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))


def without_registered(model: torch.nn.Module, names: Sequence[str]) -> list[str]:
    """Those of the plain attributes that hold something else than the model's own parameters and buffers, and what
    refers to them, as the lists of PyTorch's recurrent layers do, into which a trace puts its own."""
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def holds_others(name: str) -> bool:
        path, _, key = name.rpartition(".")
        module = model.get_submodule(path)
        held = list(leaves(vars(module).get(key)))
        if type(module).__module__.startswith("torch.") and not any(isinstance(part, torch.Tensor) for part in held):
            return False
        return any(id(part) not in own for part in held) or not held

    return [name for name in names if holds_others(name)]


def print_of(value: Any, depth: int = 0) -> Any:
    """A value in a form that differs where it was changed or replaced."""
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), str(value.dtype), id(value), value._version)
    if isinstance(value, (int, float, bool, str, bytes, type(None), complex)):
        return (type(value).__name__, value)
    if isinstance(value, (list, tuple)) and depth < 3:
        return (type(value).__name__, *(print_of(v, depth + 1) for v in value))
    if isinstance(value, dict) and depth < 3:
        return ("dict", *((str(k), print_of(v, depth + 1)) for k, v in value.items()))
    return (type(value).__name__, id(value), _state_of(value))


def _state_of(generator: Any) -> str:
    """Where a generator of random numbers stands; "" of anything else."""
    if isinstance(generator, random.Random):
        return repr(generator.getstate())
    if isinstance(generator, torch.Generator):
        return repr(generator.get_state().tolist())
    return repr(generator.bit_generator.state) if hasattr(generator, "bit_generator") else ""


def draws_of_its_own(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names under which a generator of random numbers stands, and moved."""
    return [name for name in changed(before, after) if name in before and name in after
            and len(before[name]) == len(after[name]) == 3 and before[name][:2] == after[name][:2]
            and isinstance(after[name][2], str) and after[name][2]]


@contextmanager
def outside_kept(outside: Outside, found: list[str]) -> Iterator[None]:
    """Put into ``found`` what a trace changes of what the forward reads from outside of the model, and take that back:
    tensors of a trace are nobody's."""
    seen = {**outside.values, **outside.foreign, **outside.containers}
    before = {name: print_of(value) for name, value in seen.items()}
    copies = [(container, copy.copy(container)) for container in outside.containers.values()]
    try:
        yield
    finally:
        found += changed(before, {name: print_of(value) for name, value in seen.items()})
        for container, kept in copies:
            if isinstance(container, list):
                container[:] = kept
            else:
                container.clear()
                container.update(kept)


@contextmanager
def random_states_kept(found: list[str]) -> Iterator[None]:
    """Give the global random states back as they were, and put into ``found`` which of them were changed inside: by
    draws that no trace shows, or by a seed."""
    with seeded(_NO_USERS_SEED):
        before = random_states()
        yield
        found += [name for name, state in random_states().items() if state != before.get(name, state)]

