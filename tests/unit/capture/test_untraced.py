"""Dispatch modes of ours work with PyTorch's tracer imported and without it, and do not import it."""

from __future__ import annotations

import importlib
import sys
from functools import wraps

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.problem.untraced import TRACER, without_tracer


@pytest.mark.parametrize("imported", [False, True])
def test_the_tracer_is_told_of_calls_where_it_is_there(imported, monkeypatch):
    seen, told = [], []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    plain = getattr(Mode.__torch_dispatch__, "__wrapped__", Mode.__torch_dispatch__)

    @wraps(plain)
    def telling(*given):
        told.append(str(given[1]))
        return plain(*given)

    Mode.__torch_dispatch__ = telling
    without_tracer(Mode)
    if imported:
        importlib.import_module(TRACER)
    else:
        monkeypatch.delitem(sys.modules, TRACER, raising=False)
    with Mode():
        found = torch.ones(2).add(1)
    assert found.tolist() == [2.0, 2.0] and seen == ["aten.ones.default", "aten.add.Tensor"]
    assert told == (seen if imported else [])
    assert (TRACER in sys.modules) == imported
