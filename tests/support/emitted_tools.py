"""Helpers for the tests of emitted files: problems as text, their emitted modules, and comparisons."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import kernelwright
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.tune import budget, layouts, regions

_numbers = itertools.count()

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"

PROBLEMS = {
    # A collapse in evaluation mode, statistics that update in training mode.
    "norm": '''
        class Model(nn.Module):
            def __init__(self, channels, multiplier):
                super().__init__()
                self.conv = nn.ConvTranspose2d(3, channels, 3)
                self.multiplier = multiplier
                self.norm = nn.BatchNorm2d(channels)
                self.pool = nn.AdaptiveAvgPool2d(1)

            def forward(self, x):
                return self.pool(self.norm(self.conv(x) * self.multiplier))

        def get_inputs():
            return [torch.rand(4, 3, 8, 8)]

        def get_init_inputs():
            return [8, 2.0]
    ''',
    # One block under several paths, with a buffer, and a weight that two modules share.
    "again": '''
        class Model(nn.Module):
            def __init__(self, features):
                super().__init__()
                self.block = nn.Sequential(nn.Linear(features, features), nn.LayerNorm(features), nn.GELU())
                self.block[1].register_buffer("unused", torch.ones(2))
                self.blocks = nn.ModuleList([self.block] * 3)
                self.last = nn.Linear(features, features)
                self.last.weight = self.block[0].weight

            def forward(self, x):
                for block in self.blocks:
                    x = x + block(x)
                return self.last(x).sigmoid() * 2

        def get_inputs():
            return [torch.randn(6, 8)]

        def get_init_inputs():
            return [8]
    ''',
    # Attributes of all kinds, two convolutions with one weight, no buffers.
    "attributes": '''
        class Scale:
            def __init__(self, value):
                self.value = value

        class Gate(nn.Module):
            slope = 0.5

            def __init__(self):
                super().__init__()
                self.act = F.relu

            def forward(self, x):
                return self.act(x) * self.slope + 1.0

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self._shift = 1.5
                self.config = {"factor": 2.0, "levels": [1.0, 3.0]}
                self.scale = Scale(0.25)
                self.first = nn.Conv2d(3, 3, 3, padding=1, bias=False)
                self.second = nn.Conv2d(3, 3, 3, padding=1, bias=False)
                self.second.weight = self.first.weight
                self.gate = Gate()
                self.offset = torch.ones(3, 1, 1)
                self.stages = nn.Sequential(nn.Tanh(), nn.Sigmoid())

            def forward(self, x):
                x = self.first(x) * self.config["factor"] + self._shift
                x = self.second(x) * self.scale.value - self.config["levels"][1] + self.offset
                return self.stages(self.gate(x))

        def get_inputs():
            return [torch.randn(2, 3, 8, 8)]
    ''',
    # Several inputs, a default, a number, nested results.
    "nested": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(16))

            def forward(self, x, weight, factor, exponent=2):
                y = torch.sigmoid(x * self.weight + weight) * factor
                z = torch.softmax(y ** exponent, dim=1)
                return {"pair": (y, [z]), "x": x, "none": None, "big": y > 1.0}

        def get_inputs():
            return [torch.randn(8, 16), torch.randn(16), 1.5]
    ''',
    # Lists as arguments.
    "lists": '''
        class Model(nn.Module):
            def forward(self, xs, options):
                total = torch.tanh(xs[0]) * torch.exp(-xs[1]) + options[1]
                return total, torch.softmax(total, dim=-1) * options[0]

        def get_inputs():
            return [[torch.randn(8, 16), torch.rand(8, 16)], [2.0, 0.5]]
    ''',
}


def short_budgets(patch: pytest.MonkeyPatch) -> None:
    """Runs that are in no hurry and time as little as does, without a compiled baseline: it is timed in tests of its
    own."""
    patch.setattr(budget, "SECONDS", dict.fromkeys(budget.SECONDS, (1000.0, 1000.0)))
    patch.setattr(budget, "SHARES", {"tune": (4.0, 0.5), "verify": (3.0, 0.004), "time": (1.0, 0.0003),
                                     "baselines": (0.01, 0.00001)})
    for module in (layouts, regions):
        patch.setattr(module, "_MOST_SECONDS", 0.1)


def write_problem(folder: Path, name: str, text: str | None = None) -> Path:
    """The file of one of PROBLEMS, or of ``text``, in a folder."""
    path = folder / f"{name}.py"
    path.write_text(HEAD + textwrap.dedent(text if text is not None else PROBLEMS[name]).strip("\n") + "\n")
    return path


def import_text(text: str, folder: Path, name: str) -> ModuleType:
    """Import a file's text as a module of its own, as a user's import would: kernels are compiled on the way."""
    module_name = f"{name}_emitted_{next(_numbers)}"
    path = folder / f"{module_name}.py"
    path.write_text(text)
    return import_path(path, module_name)


def import_path(path: Path, module_name: str | None = None) -> ModuleType:
    """Import a file under a name that no other test uses."""
    module_name = module_name or f"{path.stem}_{next(_numbers)}"
    specification = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module
    specification.loader.exec_module(module)
    return module


def emit(folder: Path, name: str, text: str | None = None, target: str = "cpp") -> tuple[ModuleType, ModuleType, str]:
    """The original module, the emitted module and the emitted text of a problem; it has kernels."""
    path = write_problem(folder, name, text)
    source = kernelwright.explain(path, target=target, device=GENERIC_CPU).source
    assert "_KERNELWRIGHT_SOURCE" in source, f"{name}: nothing was replaced"
    emitted = import_text(source, folder, name)
    assert emitted._kernelwright_library is not None, emitted._kernelwright_details
    return import_path(path), emitted, source


def models(original: ModuleType, emitted: ModuleType, seed: int = 0) -> tuple[Any, Any, list[Any]]:
    """Model and ModelNew of one seed, and inputs."""
    arguments = original.get_init_inputs() if hasattr(original, "get_init_inputs") else []
    torch.manual_seed(seed)
    old = original.Model(*arguments)
    torch.manual_seed(seed)
    new = emitted.ModelNew(*arguments)
    return old, new, original.get_inputs()


@contextmanager
def kernels_run(emitted: ModuleType, times: int | None = None) -> Iterator[None]:
    """Inside, the kernels run (``times`` forwards, if given) and no warning is given."""
    with _counted(emitted) as count, warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert count[0] == times if times is not None else count[0] > 0, f"kernels ran {count[0]} times"


@contextmanager
def original_runs(emitted: ModuleType, because: str = "", times: int = 1) -> Iterator[None]:
    """Inside, no kernel runs, and exactly ``times`` warnings are given, which contain ``because``."""
    with _counted(emitted) as count, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    messages = [str(w.message) for w in caught if "ModelNew" in str(w.message)]
    assert count[0] == 0, "kernels ran"
    assert len(messages) == times, messages
    assert all(because in m for m in messages), messages


@contextmanager
def _counted(emitted: ModuleType) -> Iterator[list[int]]:
    count, run = [0], emitted._kernelwright_run

    def counting(facts: dict[str, Any], *arguments: Any) -> Any:
        count[0] += "gives" not in facts  # a backward does
        return run(facts, *arguments)

    emitted._kernelwright_run = counting
    try:
        yield count
    finally:
        emitted._kernelwright_run = run


def assert_like(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Equal structure, dtypes, shapes; values within ``tolerance`` (absolute and relative)."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance, equal_nan=True)
        return
    assert type(actual) is type(expected)
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_like(actual[key], expected[key], tolerance)
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_like(a, e, tolerance)
    else:
        assert actual == expected


def assert_same_state(new: torch.nn.Module, old: torch.nn.Module, tolerance: float = 1e-5) -> None:
    """Equal parameters and buffers, by name."""
    assert list(new.state_dict()) == list(old.state_dict())
    for name, tensor in old.state_dict().items():
        torch.testing.assert_close(new.state_dict()[name], tensor, atol=tolerance, rtol=tolerance, msg=lambda m, n=name:
                                   f"{n}: {m}")


def gradients(model: torch.nn.Module, inputs: list[Any], loss: Callable[[Any], torch.Tensor]) -> list[Any]:
    """Gradients of a loss with respect to float inputs and all parameters (None where there is none)."""
    given = [x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
             for x in inputs]
    model.zero_grad(set_to_none=True)
    loss(model(*given)).backward()
    found = [x.grad for x in given if isinstance(x, torch.Tensor)]
    return found + [p.grad for p in model.parameters()]
