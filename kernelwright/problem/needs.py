"""How much memory a problem's model takes, before anything runs: shapes alone are computed."""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.problem.arguments import forward_signature, readings, signature_of, split
from kernelwright.problem.choice import model_class
from kernelwright.problem.importing import import_file
from kernelwright.problem.seeds import seeded
from kernelwright.problem.tiny import apply_tiny

#: Smaller tensors are not counted: there may be as many as a recurrence has steps, and all of them are little.
SMALL = 1 << 20
#: After as many operators nothing is counted any more: that many are a recurrence's, whose steps need the same memory.
MOST_OPERATORS = 5000


def most_bytes(path: Path, *, tiny: bool = False, model: str | None = None) -> int | None:
    """The most bytes that are in use at once while the model of the problem file at ``path`` is called: parameters,
    buffers, inputs, and what the call has made and still needs. None where that cannot be said without values: the file
    needs them, or what it does has no rule for shapes.

    Constructor, ``get_inputs()`` and the call run on the meta device; the file itself runs as it is.
    """
    live = _Live()
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            module, text, _ = import_file(path)
            if tiny:
                text = apply_tiny(module, text, path)
            kind = model_class(module, text, path, model)
            make = getattr(module, "get_init_inputs", None)
            with seeded(0), torch.no_grad():
                arguments = make() if make is not None else ()
                with torch.device("meta"), live:
                    built = _called(kind, arguments, signature_of(kind))
                    inputs = module.get_inputs()
                    # What the file has made elsewhere (by NumPy, say) counts, and goes where the rest is.
                    built, inputs = built.to("meta"), pytree.tree_map_only(torch.Tensor, _on_meta, inputs)
                    for tensor in (*built.parameters(), *built.buffers(), *pytree.tree_leaves(inputs)):
                        live.note(tensor)
                    _called(built, inputs, forward_signature(kind))
    except _Enough:
        return live.most
    except Exception:  # whatever it is: it shows, in its own words, when the problem is used
        return None
    return live.most


def _called(function: Any, values: Any, signature: Any) -> Any:
    """``function`` with ``values`` as its arguments, read in the first way that it takes."""
    error: Exception = TypeError("no arguments")
    for arguments in readings(values if values is not None else ()).values():
        given, keywords = split(list(arguments))
        try:
            if signature is not None:
                signature.bind(*given, **keywords)
            return function(*given, **keywords)
        except Exception as raised:
            error = raised
    raise error


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta")


class _Enough(BaseException):
    """Enough operators were counted."""


class _Live(TorchDispatchMode):
    """Adds up the bytes of tensors that somebody still has; ``most`` is the most that there were."""

    def __init__(self) -> None:
        super().__init__()
        self.most = self._operators = 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **kwargs or {})
        self._operators += 1
        if self._operators > MOST_OPERATORS:
            raise _Enough
        for value in pytree.tree_leaves(result):
            self.note(value)
        return result

    def note(self, value: Any) -> None:
        """Count a tensor, if it is one with memory of its own that was not seen yet."""
        if not isinstance(value, torch.Tensor) or is_lazy(value) or value.layout is not torch.strided:
            return
        storage = value.untyped_storage()
        if storage.nbytes() < SMALL:
            return
        known = self._storages.get(storage._cdata)
        if known is not None and not known[0].expired():
            return
        self._storages = {key: kept for key, kept in self._storages.items() if not kept[0].expired()}
        self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.most = max(self.most, sum(size for _, size in self._storages.values()))
