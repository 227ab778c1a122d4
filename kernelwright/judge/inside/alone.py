"""What a tool looks at: the candidate made and called as anybody does it, and a fault of each kind as a control.

Memory is neither poisoned nor copied, nothing is told, and no state is written: what a kernel does to memory does not
depend on the values of parameters, which the constructor has drawn.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch


def _call(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """One call under no_grad; every kernel of it has ended on return. Raises what it raises."""
    with torch.no_grad():
        arguments, _ = session._prepare({**payload, "state": [], "random": [], "grad": False})
        result = session.candidate(*arguments)
        session.place.synchronize()
    del result
    return {}


def _control(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Commit a known fault, which the tool must see; what the device says of it is nothing to anybody."""
    library = ctypes.CDLL(str(session.folder / payload["library"]))
    values = torch.zeros(payload["elements"], device=session.place.device)
    session.place.synchronize()
    library.kernelwright_control(payload["tool"].encode(), ctypes.c_void_p(values.data_ptr()),
                                 ctypes.c_int(payload["elements"]))
    return {}


HANDLERS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "make": lambda session, payload: session.make(payload), "call-alone": _call, "control": _control}
