"""What callers are used to: arguments by name, notebooks, pickles, profiles, and an answer to why a call was slow."""

from __future__ import annotations

import copy
import functools
import linecache
import pickle
import runpy
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from forks import ran
from places import ROOT
from torch import nn

import kernelwright
from kernelwright.errors import InputsInvalid, SourceUnavailable
from kernelwright.problem import load_problem
from kernelwright.problem.arguments import split

HOW: dict[str, Any] = {"target": "cpp", "effort": "quick", "baselines": "none"}
IDS, MASK = torch.randn(32, 64), torch.rand(32, 64)


def passed_on(forward):
    @functools.wraps(forward)
    def wrapped(*arguments, **named):
        return forward(*arguments, **named)
    return wrapped


class Rows(NamedTuple):
    ids: torch.Tensor
    masks: list[torch.Tensor]


class Net(nn.Module):
    """As networks for texts are called."""

    @passed_on
    def forward(self, input_ids, attention_mask=None, scale=2.0):
        found = torch.tanh(input_ids) * scale
        if attention_mask is not None:
            found = found * attention_mask
        return {"logits": torch.softmax(found, -1), "pair": (found, [found + 1.0])}


class OfContainers(nn.Module):
    def forward(self, rows, more):
        return Rows(torch.softmax(torch.tanh(rows.ids) * rows.masks[0], -1), [more["bias"] * 2.0 + rows.ids])


@pytest.fixture(scope="module")
def by_name() -> kernelwright.Result:
    """Optimized by a positional and a keyword argument."""
    return kernelwright.optimize(Net(), inputs=(IDS,), kwargs={"attention_mask": MASK}, **HOW)


def given(module: nn.Module, *arguments: Any, **named: Any) -> tuple[Any, list[str]]:
    """The results, and what was warned of."""
    with warnings.catch_warnings(record=True) as seen, torch.no_grad():
        warnings.simplefilter("always")
        return module(*arguments, **named), [str(w.message) for w in seen]


def test_calls_by_name_run_kernels(by_name: kernelwright.Result) -> None:
    """In any order, by name and by position: the signature is that of what a decorator wraps."""
    module, expected = by_name.module, Net()(IDS, MASK)
    assert by_name.modes[0].runs
    for arguments, named in (((IDS, MASK), {}), ((IDS,), {"attention_mask": MASK}),
                             ((), {"input_ids": IDS, "attention_mask": MASK}),
                             ((), {"attention_mask": MASK, "input_ids": IDS}), ((IDS, MASK, 2.0), {}),
                             ((IDS,), {"attention_mask": MASK, "scale": 2.0})):
        found, warned = given(copy.deepcopy(module), *arguments, **named)
        torch.testing.assert_close(found, expected)
        assert not warned
    assert module.why() == {}


def test_why_a_call_ran_the_original(by_name: kernelwright.Result) -> None:
    """Each reason with its number of calls, though it is said once."""
    module = copy.deepcopy(by_name.module)
    _, first = given(module, IDS[:8], MASK[:8])
    _, second = given(module, IDS[:8], MASK[:8])
    _, other = given(module, IDS, MASK, scale=3.0)
    assert len(first) == len(other) == 1 and not second
    assert sorted(module.why().values()) == [1, 2]
    assert module.why()["this call gives scale, which the example left out"] == 1
    assert all(reason in f"{first}{other}" for reason in module.why())
    assert given(module, IDS, MASK)[1] == [] and sum(module.why().values()) == 3


def test_a_file_without_kernels_tells_why_too() -> None:
    found = kernelwright.explain(nn.Linear(8, 8), (torch.randn(2, 8),), target="cpp")
    assert not found.modes[0].kernels
    space: dict[str, Any] = {"__name__": "emitted"}
    exec(found.source, space)
    assert space["ModelNew"](8, 8).why() == {}


def test_a_profile_names_the_kernels(by_name: kernelwright.Result) -> None:
    with torch.profiler.profile() as profile, torch.no_grad():
        by_name.module(IDS, MASK)
    names = [event.key for event in profile.key_averages() if event.key.startswith("kernelwright: ")]
    kernels = [kernel.name for kernel in by_name.modes[0].kernels]
    assert kernels and all(any(kernel in name for name in names) for kernel in kernels)


_LOADING = """
import pickle, sys, torch
x, mask, expected = torch.load("values.pt")
for module in (torch.load("module.pt", weights_only=False), pickle.load(open("module.pkl", "rb"))):
    torch.testing.assert_close(module(x, mask)["logits"], expected)
    again = pickle.loads(pickle.dumps(module))
    assert type(again) is type(module) and module.why() == {}, module.why()
"""


def test_an_optimized_module_is_loaded_in_another_process(by_name: kernelwright.Result, tmp_path: Path) -> None:
    """It carries its text: there is no file of its own where it is loaded."""
    torch.save(by_name.module, tmp_path / "module.pt")
    (tmp_path / "module.pkl").write_bytes(pickle.dumps(by_name.module))
    torch.save((IDS, MASK, by_name.module(IDS, MASK)["logits"]), tmp_path / "values.pt")
    done = ran(_LOADING, folder=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(copy.deepcopy(by_name.module)(IDS, MASK), by_name.module(IDS, MASK))


def test_containers_go_in_and_come_out() -> None:
    model, rows, more = OfContainers(), Rows(IDS, [MASK]), {"bias": MASK}
    result = kernelwright.optimize(model, inputs={"rows": rows, "more": more}, **HOW)
    found, warned = given(result.module, more=more, rows=rows)
    assert result.modes[0].runs and not warned and type(found).__name__ == "Rows"
    torch.testing.assert_close(tuple(found), tuple(model(rows, more)))


def test_keyword_arguments_apart() -> None:
    """Beside positional ones, beside the one argument, and alone; what has no names is refused."""
    for inputs, kwargs in (((IDS,), {"attention_mask": MASK}), (IDS, {"attention_mask": MASK}),
                           (None, {"input_ids": IDS, "attention_mask": MASK}), ((IDS, MASK), {}), ((IDS, MASK), None)):
        found, named = split(load_problem(Net(), inputs, kwargs=kwargs, device="cpu").make_inputs(0))
        assert not named and [t is not None and torch.equal(t, e) for t, e in zip(found, (IDS, MASK), strict=True)]
    with pytest.raises(InputsInvalid, match="not a dictionary of keyword arguments"):
        load_problem(Net(), (IDS,), kwargs=[MASK])


class Scaled(nn.Module):
    """A module of the user's whose own weight is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))

    def forward(self, x):
        return torch.softmax(torch.tanh(x @ self.weight) + 1.0, -1)


@pytest.mark.parametrize("make", [lambda: nn.Linear(64, 64), Scaled])
def test_a_module_whose_own_weight_is_computed(make) -> None:
    """As torch.nn.utils.parametrizations make one: its class is theirs, and has no name anywhere."""
    model = nn.utils.parametrizations.weight_norm(make())
    with torch.no_grad():
        model.parametrizations.weight.original0.mul_(3.0)
    result = kernelwright.optimize(model, (IDS,), **HOW)
    found, warned = given(result.module, IDS)
    torch.testing.assert_close(found, model(IDS))
    assert not warned and result.certificate.passed
    with torch.no_grad():
        for each in (model, result.module):
            each.parametrizations.weight.original0.mul_(2.0)
    torch.testing.assert_close(given(result.module, IDS)[0], model(IDS))


CELLS = [
    "import torch\nfrom torch import nn\n",
    "def shifted(x):\n    return x + SHIFT\n",
    "%%time is no Python\n",
    "SHIFT = 7.0\nSHIFT = 1.0\nclass Model(nn.Module):\n    pass\n",
    "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.scale = nn.Parameter(torch.ones(64))\n    def forward(self, x):\n"
    "        return torch.softmax(shifted(torch.tanh(x)) * self.scale, -1)\n",
    "x = torch.randn(32, 64)\nmodel = Model()\nmodel(x)",
    "import kernelwright\ndef run(m):\n    return kernelwright.optimize(m, (x,), target='cpp', effort='quick', "
    "baselines='none')\nresult = run(model)\n",
    "torch.testing.assert_close(result.module(x), model(x))\nassert result.modes[0].runs and not result.module.why()\n"
    "assert 'shifted' in result.source and 'optimize' not in result.source, result.source\n"]


@pytest.mark.parametrize("name", ["<ipython-input-{}-5f2a>", "/tmp/ipykernel_0/{}17.py"])
def test_a_class_of_a_notebook(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cell and those that it needs are its file, those that run it are not, as a kernel of notebooks keeps them."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for number, cell in enumerate(CELLS):
        file = name.format(number)
        monkeypatch.setitem(linecache.cache, file, (len(cell), None, cell.splitlines(True), file))
        if not cell.startswith("%"):
            exec(compile(cell, file, "exec"), vars(main))


def test_a_class_whose_text_nobody_kept_is_refused() -> None:
    home: dict[str, Any] = {"__name__": "__main__", "nn": nn}
    exec("class Typed(nn.Module):\n    def forward(self, x):\n        return x.tanh()", home)
    with pytest.raises(SourceUnavailable):
        kernelwright.optimize(home["Typed"](), (IDS,), target="cpp", effort="quick", baselines="none")


_SCRIPT = '''
import torch, sys
from torch import nn
import kernelwright

RUNS = []

class Other(nn.Module):
    def forward(self, x):
        return x

class Net(nn.Module):
    def forward(self, x):
        return torch.softmax(torch.tanh(x) + 1.0, -1)

def attempt(make):
    RUNS.append(make)
    return kernelwright.optimize(make(), (torch.randn(32, 64),), target="cpp", effort="quick", baselines="none")

result = attempt(Net)
assert "attempt" not in result.source, result.source
attempt(Other)
assert len(RUNS) == 2
'''


def test_a_script_that_optimizes_by_a_function_is_no_part_of_the_file(tmp_path: Path) -> None:
    """Or it would run again, from the file that it is about to get."""
    (tmp_path / "script.py").write_text(_SCRIPT)
    runpy.run_path(str(tmp_path / "script.py"), run_name="__main__")
