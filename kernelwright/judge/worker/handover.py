"""What the judge hands a worker: nested inputs with their tensors, and the constructor's arguments."""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

import torch

from kernelwright.containers import Keywords
from kernelwright.judge.inside.structure import encode
from kernelwright.judge.inside.tensors import Packer
from kernelwright.problem import Problem
from kernelwright.problem.arguments import forward_signature, split, takes_keywords_only

#: Packages that a worker's process has, beside the standard library's part that values are made of.
_PACKAGES = ("torch", "numpy", "builtins", "collections", "functools", "fractions", "decimal", "datetime", "pathlib",
             "types", "copyreg", "_codecs", "math", "enum")


class NotHandedOver(TypeError):
    """A value of the problem cannot be given to another process, which must not have the problem's file."""


def encoded(value: Any, packer: Packer) -> dict[str, Any]:
    """Inputs or state as data; tensors go into ``packer``. Raises NotHandedOver."""
    def leaf(tensor: torch.Tensor) -> dict[str, Any]:
        if tensor.layout is not torch.strided:
            raise NotHandedOver(f"a tensor of layout {tensor.layout} cannot be handed to another process")
        return {"t": packer.add(tensor.detach())}

    def other(item: object) -> dict[str, Any]:
        if isinstance(item, torch.Tensor):
            return leaf(item.detach().as_subclass(torch.Tensor))
        return {"o": pickled(item, "an input")}

    return encode(value, leaf, other)


def arguments_of(problem: Problem) -> str:
    """The constructor's arguments as text for a worker.

    Raises NotHandedOver where only the problem's file could read them, and for a module given from Python, which has
    none.
    """
    if problem.is_instance:
        raise NotHandedOver("the model is an instance: there are no arguments to construct a candidate with")
    return pickled(split(problem.init_inputs), "an argument of the constructor")


def gives_keywords(problem: Problem) -> bool:
    """Whether some arguments of forward are given by keyword only."""
    return takes_keywords_only(forward_signature(problem.model_class)) and isinstance(
        (problem.make_inputs(0) or [None])[-1], Keywords)


def pickled(value: object, what: str) -> str:
    """``value`` pickled, as text; only what a process without the problem's file can read. Raises NotHandedOver."""
    try:
        data = pickle.dumps(value)
        _Reader(io.BytesIO(data)).load()
    except NotHandedOver as error:
        raise NotHandedOver(f"{what} is of type {error}, which a candidate's process must not have") from None
    except Exception as error:
        raise NotHandedOver(f"{what} cannot be handed to another process: {error}") from None
    return base64.b64encode(data).decode()


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] not in _PACKAGES:
            raise NotHandedOver(f"{module}.{name}")
        return super().find_class(module, name)
