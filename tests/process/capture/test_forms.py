"""The forms in which people write problems: how arguments are given, which class is the model, what forward returns."""

from __future__ import annotations

import copy
import json
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from emitted_tools import assert_same_state, emit, import_path, kernels_run, original_runs, write_problem

import kernelwright
from kernelwright import cli, errors
from kernelwright.containers import Keywords
from kernelwright.problem import load_problem
from kernelwright.problem.inputs import map_tensors
from kernelwright.roofline.devices import GENERIC_CPU

CLASSES = '''
import collections, dataclasses, typing

class Pair(typing.NamedTuple):
    first: typing.Any
    second: typing.Any = None

@dataclasses.dataclass
class Batch:
    values: typing.Any
    scale: typing.Any = 2.0
'''


def described(value: Any) -> Any:
    """A value with the shapes of tensors in their place, to be compared with a literal."""
    return map_tensors(value, lambda t: tuple(t.shape))


def the_model(folder: Path, constructor: str, forward: str, body: str, after: str) -> Path:
    """A problem file whose class takes what ``constructor`` and ``forward`` name."""
    return write_problem(folder, "forms", CLASSES + f"""
class Model(nn.Module):
    def __init__(self, {constructor}):
        super().__init__()
        self.given = {{k: v for k, v in locals().items() if k not in ("self", "__class__")}}

    def forward(self, {forward}):
        {body}

{after}
""")


A, B = "torch.rand(2, 3)", "torch.rand(3)"
INPUTS = {
    "a list": ("x, y", "return x + y", f"[{A}, {B}]", [(2, 3), (3,)]),
    "a tuple": ("x, y", "return x + y", f"({A}, {B})", [(2, 3), (3,)]),
    "both kinds": ("x, y, z=1", "return x + y * z", f"[[{A}, {B}], {{'z': 2}}]", [(2, 3), (3,), 2]),
    "both kinds, no keyword": ("x, y", "return x + y", f"[[{A}, {B}], {{}}]", [(2, 3), (3,)]),
    "both kinds, no position": ("x", "return x + 1", f"([], {{'x': {A}}})", [(2, 3)]),
    "a list and a dictionary": ("xs, d", "return xs[0] + d['y']", f"[[{A}, 1], {{'y': 2}}]", [[(2, 3), 1], {"y": 2}]),
    "told by a call": ("x, options=None", "return x + 1 if options is None else x.nothing", f"[[{A}], {{}}]", [(2, 3)]),
    "told by another call": ("x, y", "return x[1] + len(y.keys())", f"[[1, {A}], {{}}]", [[1, (2, 3)], {}]),
    "keywords": ("x, y", "return x + y", f"{{'y': {B}, 'x': {A}}}", [(2, 3), (3,)]),
    "keywords around a default": ("x, y=1, z=2", "return x + y * z", f"{{'z': 3, 'x': {A}}}", [(2, 3), 1, 3]),
    "keywords only": ("x, *, y, z=2", "return x + y", f"[[{A}], {{'y': {B}}}]", [(2, 3), Keywords(y=(3,))]),
    "any keywords": ("x, **more", "return x + more['y']", f"{{'x': {A}, 'y': 2}}", [(2, 3), Keywords(y=2)]),
    "the dictionary itself": ("batch", "return batch['x'] + 1", f"{{'x': {A}}}", [{"x": (2, 3)}]),
    "the tensor itself": ("x", "return x + 1", A, [(2, 3)]),
    "an array": ("x", "return x + 1", "__import__('numpy').zeros((2, 3), dtype='float32')", [(2, 3)]),
    "arrays in a dictionary": ("d", "return d['x'] + 1", "[{'x': __import__('numpy').zeros(3)}]", [{"x": (3,)}]),
    "plain values": ("x, kind, n, f", "return x * n * f", f"[{A}, 'sum', 2, None or 0.5]", [(2, 3), "sum", 2, 0.5]),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name: str, tmp_path: Path) -> None:
    forward, body, value, expected = INPUTS[name]
    file = the_model(tmp_path, "*none", forward, body, f"def get_inputs():\n    return {value}\n")
    problem = load_problem(file, device="cpu")
    found = problem.make_inputs(1)
    assert described(found) == expected and isinstance(found[-1], Keywords) == isinstance(expected[-1], Keywords)
    assert problem.make_model(0)(*found).shape in ((2, 3), (3,))
    module = import_path(file)
    torch.manual_seed(0)
    other = load_problem(module.Model(), inputs=module.get_inputs(), device="cpu")
    assert described(other.make_inputs(0)) == expected
    assert problem.gives_arrays() == other.gives_arrays() == name.startswith(("an array", "arrays"))
    if name == "an array":
        notes = kernelwright.explain(file, target="cpp", device=GENERIC_CPU).notes
        assert any("calls with arrays run the original computation" in note for note in notes)


def test_containers_as_inputs(tmp_path: Path) -> None:
    file = the_model(tmp_path, "*none", "pair, batch, more", "return pair.first * batch.scale + more['x'][0]", f"""
def get_inputs():
    return [Pair({A}, 'b'), Batch({A}, {B}), collections.OrderedDict(x=(1.0, [{B}]))]
""")
    problem = load_problem(file, device="cpu")
    pair, batch, more = problem.make_inputs(0)
    assert type(pair).__name__ == "Pair" and pair.second == "b" and pair.first.shape == (2, 3)
    assert type(batch).__name__ == "Batch" and batch.scale.shape == (3,) and type(more).__name__ == "OrderedDict"
    assert batch.scale is not problem.make_inputs(0)[1].scale
    assert problem.make_model(0)(pair, batch, more).shape == (2, 3)


ARGUMENTS = {
    "a list": ("width, scale=2.0", "[4]", {"width": 4, "scale": 2.0}),
    "both kinds": ("width, scale=2.0", "[[], {'width': 4}]", {"width": 4, "scale": 2.0}),
    "both kinds with a position": ("width, scale=2.0", "[[4], {'scale': 3.0}]", {"width": 4, "scale": 3.0}),
    "both kinds, no keyword": ("width, scale=2.0", "[[4], {}]", {"width": 4, "scale": 2.0}),
    "both kinds, no argument": ("*none", "[[], {}]", {"none": ()}),
    "a list and a dictionary": ("sizes, options", "[[4, 8], {'act': 'relu'}]",
                                {"sizes": [4, 8], "options": {"act": "relu"}}),
    "keywords": ("width, *, scale", "{'scale': 3.0, 'width': 4}", {"width": 4, "scale": 3.0}),
    "a configuration": ("config", "{'width': 4}", {"config": {"width": 4}}),
    "a number": ("width", "4", {"width": 4}),
    "none": ("width=3", "None", {"width": 3}),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_the_constructor(name: str, tmp_path: Path) -> None:
    constructor, value, expected = ARGUMENTS[name]
    file = the_model(tmp_path, constructor, "x", "return x + 1", f"""
def get_inputs():
    return [{A}]

def get_init_inputs():
    return {value}
""")
    problem = load_problem(file, device="cpu")
    assert problem.make_model(0).given == expected
    again = load_problem(file, init_inputs=problem.init_inputs, device="cpu")
    assert again.make_model(0).given == expected


def test_forms_that_fit_nothing(tmp_path: Path) -> None:
    """The error says what was tried, and what was wrong with each."""
    file = the_model(tmp_path, "width", "x, y", "return x + y", f"""
def get_inputs():
    return [[{A}], {{'z': 1}}, 3]

def get_init_inputs():
    return [[], {{'size': 4}}]
""")
    with pytest.raises(errors.InitInputsMismatch, match=r"keyword\] arguments: missing.*positional arguments: too"):
        load_problem(file, device="cpu")
    file.write_text(file.read_text().replace(", 3]", "]").replace("x, y", "x"))
    with pytest.raises(errors.InputsInvalid, match=r"forward\(x\).*no form: as \[pos.*'z'.*as positional") as found:
        load_problem(file, init_inputs=[4], device="cpu").make_inputs(0)
    assert found.value.where.startswith(f"{file}:")


TWO = """
class {0}(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2

class {1}(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.inner = {2}

    def forward(self, x):
        return self.inner(x) + 1

def get_inputs():
    return [torch.rand(2, 3)]
"""
NAMES = {  # text, name asked for, class found or words of the error
    "an alias": (TWO.format("Gate", "Net", "Gate()") + "Model = Gate\n", None, "Gate"),
    "the one that uses the other": (TWO.format("Gate", "Net", "Gate()"), None, "Net"),
    "through a function": (TWO.format("Gate", "Net", "make()") + "def make():\n    return Gate()\n", None, "Net"),
    "asked for": (TWO.format("Gate", "Net", "Gate()"), "Gate", "Gate"),
    "asked for beside a Model": (TWO.format("Gate", "Model", "Gate()"), "Gate", "Gate"),
    "two": (TWO.format("Gate", "Net", "nn.ReLU()"), None, "each of Gate, Net could be meant"),
    "another name": (TWO.format("Gate", "Net", "Gate()"), "Other", "has no class Other"),
    "no module": (TWO.format("Gate", "Net", "Gate()"), "get_inputs", "type function"),
}


@pytest.mark.parametrize("name", NAMES)
def test_which_class(name: str, tmp_path: Path) -> None:
    text, asked, expected = NAMES[name]
    file = write_problem(tmp_path, "named", text)
    if expected.isidentifier():
        assert load_problem(file, device="cpu", model=asked).class_name == expected
        return
    with pytest.raises((errors.NoModelClass, errors.ModelNotModule)) as found:
        load_problem(file, device="cpu", model=asked)
    assert expected in found.value.render()


def test_the_commands_take_a_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = write_problem(tmp_path, "named", TWO.format("Gate", "Net", "nn.ReLU()"))
    assert cli.run(["explain", str(file), "-q"]) == 2 and "KW106" in capfd.readouterr().err
    assert cli.run(["explain", str(file), "-q", "--model", "Gate"]) == 0
    assert cli.run(["fuzz", str(file), "-q", "--model", "Net", "--level", "graph"]) == 0
    assert cli.run(["explain", str(file), "-q", "--model", "not a name"]) == 2 and "KW403" in capfd.readouterr().err


RESULTS = CLASSES + """
class Output(collections.OrderedDict):
    def __getattr__(self, name):
        if name in self:
            return self[name]
        raise AttributeError(name)

class Plain:
    __slots__ = ("value", "note")

    def __init__(self, value, note):
        self.value, self.note = value, note

class Model(nn.Module):
    class Own(typing.NamedTuple):
        value: torch.Tensor

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x, *, shift, power=2):
        y = torch.tanh(x * self.weight) + torch.sigmoid(x) * shift
        z = (y ** power).softmax(1)
        batch = Batch(y)
        batch.extra = {"z": [z, [None, ()]]}
        return {"most": torch.max(y, dim=1), "top": y.topk(2), "sorted": z.sort(1), "moments": torch.var_mean(y, 1),
                "pair": Pair(y, Pair(z)), "batch": batch, "output": Output(logits=y, hidden=(z, y)),
                "ordered": collections.OrderedDict(b=1, a=y), "again": [y, y, (y,)], "plain": Plain(z, "two"),
                "values": (1, 2.5, True, None, "text", (), torch.float16, x.shape), 3: Model.Own(z),
                "median": y.median(1), "normal": torch.distributions.Normal(y, z.exp(), validate_args=False)}

def get_inputs():
    return [[torch.randn(4, 8)], {"shift": torch.rand(8)}]
"""


def assert_same_kinds(found: Any, expected: Any, path: str = "result") -> None:
    """Equal types (by name: each file has its own classes), attributes and values, tensors nearly."""
    assert type(found).__qualname__.replace("ModelNew", "Model") == type(expected).__qualname__, path
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        return
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), path
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same_kinds(one, other, f"{path}[{number}]")
    elif isinstance(expected, dict):
        assert list(found) == list(expected), path
        for key, value in expected.items():
            assert_same_kinds(found[key], value, f"{path}[{key!r}]")
    slots = getattr(type(expected), "__slots__", ())
    names = [*getattr(expected, "__dict__", {}), *(slots if isinstance(slots, tuple) else ())]
    assert list(getattr(found, "__dict__", {})) == list(getattr(expected, "__dict__", {})), path
    for name in names:
        assert_same_kinds(getattr(found, name), getattr(expected, name), f"{path}.{name}")
    if type(expected).__module__ == "builtins" and not isinstance(expected, (list, tuple, dict)):
        assert found == expected, path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return emit(tmp_path_factory.mktemp("results"), "results", RESULTS)


@pytest.mark.parametrize("training", [True, False])
def test_results(training: bool, results: Any) -> None:
    """Every kind of result is of the same type, with the same attributes, and the same tensor where eager's is."""
    original, emitted, _ = results
    old, new = original.Model().train(training), emitted.ModelNew().train(training)
    for recording in (False, True):
        (x,), named = original.get_inputs()
        with torch.set_grad_enabled(recording):
            expected = old(x, **named)
            with kernels_run(emitted, 1):
                found = new(x, **copy.deepcopy(named))
        assert_same_kinds(found, expected)
        assert found["again"][0] is found["again"][2][0] is found["batch"].values is found["output"].logits
        assert found["most"].values.shape == (4,) and found["plain"].note == "two"
        if recording:
            for result in (found, expected):
                (result["pair"].second.first.square().sum() + result["most"].values.sum()).backward()
            torch.testing.assert_close(new.weight.grad, old.weight.grad, atol=1e-4, rtol=1e-4)


def test_keywords_of_a_call(results: Any) -> None:
    """Defaults may be given or left out; other values, other keywords and wrong calls are the original's affair."""
    original, emitted, _ = results
    old, new = original.Model(), emitted.ModelNew()
    (x,), named = original.get_inputs()
    with torch.no_grad():
        with kernels_run(emitted, 2):
            new(shift=named["shift"], x=x)
            new(x, power=2, **named)
        with original_runs(emitted):
            assert_same_kinds(new(x, power=3, **named)["top"], old(x, power=3, **named)["top"])
        for wrong in ({}, {**named, "other": 1}):
            with pytest.raises(TypeError, match=r"shift|other"):
                new(x, **wrong)


def test_containers_reach_kernels(tmp_path: Path) -> None:
    """A guard looks into NamedTuples and dataclasses; what it does not know runs the original."""
    original, emitted, _ = emit(tmp_path, "batches", CLASSES + f"""
class Model(nn.Module):
    def forward(self, pair, batch):
        return torch.tanh(pair.first) * batch.scale + pair.second["x"] * len(batch.values)

def get_inputs():
    return [Pair({A}, {{"x": {A}}}), Batch("four", {B})]
""")
    old, new = original.Model(), emitted.ModelNew()
    pair, batch = original.get_inputs()
    with kernels_run(emitted, 2), torch.no_grad():
        torch.testing.assert_close(new(pair, batch), old(pair, batch))
        torch.testing.assert_close(new(emitted.Pair(*pair), batch), old(pair, batch))
    pair = pair._replace(first=pair.first.clone().requires_grad_())
    gradients = [torch.autograd.grad(model(pair, batch).sum(), pair.first)[0] for model in (old, new)]
    torch.testing.assert_close(*gradients)
    batch.more = 1
    for changed in (original.Batch("another", batch.scale), batch):
        with original_runs(emitted), warnings.catch_warnings():
            torch.testing.assert_close(new(pair, changed), old(pair, changed))
        emitted._kernelwright_warned.clear()


FROZEN = """
class Model(nn.Module):
    def __init__(self, width, *, scale=1.0):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.BatchNorm1d(width)
        self.scale = scale
        self.norm.eval()

    def train(self, mode=True):
        super().train(mode)
        self.second.eval()
        return self

    def forward(self, x, *, shift):
        return self.second(torch.tanh(self.norm(x)) * self.scale + torch.sigmoid(x)) + shift

def get_inputs():
    return [[torch.rand(8, 16)], {"shift": torch.rand(16)}]

def get_init_inputs():
    return [[16], {"scale": 2.0}]
"""


def test_norms_kept_in_evaluation(tmp_path: Path) -> None:
    """A model is served as its constructor leaves it, after train(), and after eval(); a mode that nobody knows is the
    original's."""
    original, emitted, _ = emit(tmp_path, "frozen", FROZEN)
    (x,), named = original.get_inputs()
    for change in (lambda m: m, lambda m: m.train(), lambda m: m.eval()):
        old, new = (change(kind(16, scale=2.0)) for kind in (original.Model, emitted.ModelNew))
        with torch.no_grad(), kernels_run(emitted, 2):
            for _ in range(2):
                torch.testing.assert_close(new(x, **named), old(x, **named), atol=1e-5, rtol=1e-5)
        assert_same_state(new, old)
    for change, warned in ((lambda m: m.train(), 0), (lambda m: m.eval(), 1)):
        old, new = (change(m) for m in (old, new))
        for model in (old, new):
            model.norm.train(), model.second.train()
        with torch.no_grad(), original_runs(emitted, "modules in training", times=warned):
            torch.testing.assert_close(new(x, **named), old(x, **named))


def test_the_judge_calls_as_the_problem_says(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Arguments by keyword reach candidates, and a norm kept in evaluation stays there."""
    file = write_problem(tmp_path, "problem", FROZEN.replace("class Model", "class Gate"))
    folder = tmp_path / "candidates"
    folder.mkdir()
    right = file.read_text().partition("def get_inputs")[0].replace("class Gate", "class ModelNew")
    (folder / "right.py").write_text(right)
    (folder / "wrong.py").write_text(right.replace("+ shift", "- shift"))
    assert cli.run(["judge", str(file), str(folder), "-q", "--no-time", "--effort", "quick", "--target", "cpp",
                    "--model", "Gate", "--json"]) == 1
    verdicts = {Path(c["file"]).name: c["verdict"] for c in json.loads(capfd.readouterr().out)["candidates"]}
    assert verdicts == {"right.py": "OK", "wrong.py": "WRONG-NUMERIC"}


PARTS = """
class Deciding(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x * 3

class Repeating(nn.Module):
    def forward(self, x, gate, other, *, masks):
        if x.sum() > 0:
            x = x * gate
        y = x + 2 * other + 3 * masks[0] - masks[1]
        return y, (None, y)

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, *, times):
        self.calls += 1
        return {"y": x * times, "calls": (x + self.calls,)}

class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.last = nn.Sequential(nn.Tanh()), nn.Sigmoid()
        if kind == "hooks":
            self.odd = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
            seen = self.odd[0].seen = []
            self.odd[0].register_forward_hook(lambda module, given, result: seen.append(result) or result * 2)
            self.odd[0].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
        else:
            self.odd = {"decides": Deciding, "counts": Counting, "repeats": Repeating,
                        "norm twice": lambda: nn.BatchNorm1d(8),
                        "spectral": lambda: torch.nn.utils.spectral_norm(nn.Linear(8, 8)),
                        "max_norm": lambda: nn.Embedding(16, 8, max_norm=0.5)}[kind]()

    def forward(self, x):
        h = self.first(x) * torch.sigmoid(x)
        if self.kind == "max_norm":
            h = self.odd(torch.arange(16)) * h
        elif self.kind == "repeats":  # one tensor is several arguments, and several results
            gate = torch.sigmoid(x) * 2
            first, (_, second) = self.odd(h, gate, gate, masks=[h, gate])
            h = first - second.square() * gate
        elif self.kind == "counts":
            found = self.odd(h, times=3)
            h = found["y"] + found["calls"][0]
        else:
            h = self.odd(self.odd(h) + 1) if self.kind == "norm twice" else self.odd(h)
        return self.last(h) * h.abs() + 1

def get_inputs():
    return [torch.rand(16, 8)]

def get_init_inputs():
    return ["KIND"]
"""


@pytest.mark.parametrize("kind", ["hooks", "decides", "counts", "repeats", "norm twice", "spectral", "max_norm"])
def test_an_odd_part_stays_with_pytorch(kind: str, tmp_path: Path) -> None:
    """Hooks run, state moves and parameters change as in eager; kernels compute the rest of the model."""
    original, emitted, _ = emit(tmp_path, "parts", PARTS.replace("KIND", kind))
    for training, recording in ((True, False), (False, False), (True, True)):
        torch.manual_seed(0)
        old = original.Model(kind).train(training)
        torch.manual_seed(0)
        new = emitted.ModelNew(kind).train(training)
        for turn in range(3):
            x = torch.rand(16, 8) - (0.5 if turn else 2.0)  # a decision falls otherwise for the first
            x.requires_grad_(recording)
            results = []
            for model in (old, new):
                torch.manual_seed(turn)
                with torch.set_grad_enabled(recording), \
                        nullcontext() if recording or model is old else kernels_run(emitted, 1):
                    results.append(model(x))
            torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
            if recording:
                gradients = [torch.autograd.grad(r.square().sum(), x)[0] for r in results]
                torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)
        assert_same_state(new, old)
        assert kind != "hooks" or len(new.odd[0].seen) == len(old.odd[0].seen) == 3
        assert getattr(new.odd, "calls", 0) == getattr(old.odd, "calls", 0)


def test_a_part_that_a_trace_calls_otherwise(tmp_path: Path) -> None:
    """A forward may ask whether it is traced, and then keep a mask that hides nothing: both calls give the same."""
    original, emitted, _ = emit(tmp_path, "traced", """
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, mask=None):
        if (x < -1).any():
            x = x.clamp(min=-1)
        x = self.linear(x)
        return x if mask is None else x * mask

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd = Odd()

    def forward(self, x):
        traced = type(x) is not torch.Tensor
        return torch.tanh(self.odd(x, torch.ones_like(x) if traced else None) * 2) + 1

def get_inputs():
    return [torch.rand(16, 8)]
""")
    torch.manual_seed(0)
    old = original.Model()
    torch.manual_seed(0)
    new = emitted.ModelNew()
    for x in (torch.rand(16, 8), torch.full((16, 8), -2.0)):
        with torch.no_grad(), kernels_run(emitted, 1):
            torch.testing.assert_close(new(x), old(x))


def test_hooks_that_come_later(tmp_path: Path) -> None:
    """On a part that stays with PyTorch they run beside kernels; elsewhere the original computation runs them."""
    original, emitted, _ = emit(tmp_path, "parts", PARTS.replace("KIND", "decides"))
    old, new = original.Model("decides"), emitted.ModelNew("decides")
    (x,), seen = original.get_inputs(), []
    for model in (old, new):
        model.odd.register_forward_hook(lambda module, given, result: seen.append(module) or result - 1)
    with torch.no_grad(), kernels_run(emitted, 2):
        for _ in range(2):
            torch.testing.assert_close(new(x), old(x), atol=1e-5, rtol=1e-5)
    assert len(seen) == 4
    for model in (old, new):
        model.first[0].register_forward_hook(lambda module, given, result: result * 2)
    with torch.no_grad(), original_runs(emitted, "has a hook"):
        torch.testing.assert_close(new(x), old(x))


def test_hooks_of_the_model_itself(tmp_path: Path) -> None:
    """They stand around every forward: kernels take what they give."""
    original, emitted, _ = emit(tmp_path, "outer", """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(lambda module, given: (given[0].sigmoid(), 2.0))
        self.register_forward_hook(lambda module, given, result: {"result": result * 2 + 1})

    def forward(self, x, scale=1.0):
        return torch.tanh(x) * x * scale

def get_inputs():
    return [torch.rand(4, 8)]
""")
    (x,) = original.get_inputs()
    x.requires_grad_()
    results = [original.Model()(x)["result"]]
    with kernels_run(emitted, 1):
        results.append(emitted.ModelNew()(x)["result"])
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(*[torch.autograd.grad(r.sum(), x)[0] for r in results], atol=1e-5, rtol=1e-5)


def test_parts_that_cannot_be_nodes(tmp_path: Path) -> None:
    """A part that returns what it was given, or writes into it, leaves the part around it, or its mode, as it is."""
    for body in ("return x", "return x.add_(1)"):
        file = write_problem(tmp_path, "unfit", f"""
class Odd(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            pass
        {body}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd = Odd()

    def forward(self, x):
        return torch.tanh(self.odd(x * 2)) + 1

def get_inputs():
    return [torch.rand(4, 8)]
""")
        notes = kernelwright.explain(file, target="cpp", device=GENERIC_CPU).notes
        assert any("mode stays as it is: odd" in note for note in notes), notes
        inner = file.read_text().replace("self.odd(x * 2)", "self.around(x)").replace(
            "self.odd = Odd()", "self.around = Around()").replace("class Model", """class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd = Odd()

    def forward(self, x):
        return self.odd(x * 2) + 1


class Model""")
        file.write_text(inner)
        result = kernelwright.explain(file, target="cpp", device=GENERIC_CPU)
        assert all(mode.kernels for mode in result.modes if mode.name.endswith("inference"))
        assert any("around stays with PyTorch" in note and "odd" in note for note in result.notes), result.notes


CACHE = """
import enum

class Kind(enum.Enum):
    GROWING = 1

class Layer:
    def __init__(self):
        self.keys = self.device = None

    def update(self, keys):
        self.device = keys.device
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], -2)
        return self.keys

class Cache:
    def __init__(self, layers=()):
        self.layers, self.kind, self.layer_class, self.seen = list(layers), Kind.GROWING, Layer, {}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x, kind=Kind.GROWING):
        cache = Cache()
        for number in range(2):
            cache.layers.append(Layer())
            x = torch.tanh(cache.layers[-1].update(self.norm(x)) * 2 + 1)
            cache.seen[number] = True
        return {"hidden": x, "cache": cache}

def get_inputs():
    return [torch.rand(16, 8), Kind.GROWING]
"""


def test_a_result_that_holds_classes_devices_and_members_of_enumerations(tmp_path: Path) -> None:
    """So it is with what language models return as a cache: kernels compute it, and it is whole."""
    original, emitted, _ = emit(tmp_path, "cached", CACHE)
    old, new = original.Model(), emitted.ModelNew()
    x = torch.rand(16, 8)
    with torch.no_grad(), kernels_run(emitted, 1):
        found = new(x, emitted.Kind.GROWING)
    wanted = old(x, original.Kind.GROWING)
    cache = found["cache"]
    assert type(cache) is emitted.Cache and cache.layer_class is emitted.Layer and cache.kind is emitted.Kind.GROWING
    assert cache.seen == {0: True, 1: True} and [layer.device for layer in cache.layers] == [x.device] * 2
    for one, other in zip(cache.layers, wanted["cache"].layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys)
    torch.testing.assert_close(found["hidden"], wanted["hidden"])


@pytest.mark.parametrize(("change", "changes"), [
    ("given['h'] = x", True), ("given['more'].append(x)", True), ("given['more'][0] = given['h']", True),
    ("given.pop('more')", True), ("dict(given)['h'] = x", False), ("given['more'] + [x]", False)])
def test_containers_that_a_forward_changes(change: str, changes: bool, tmp_path: Path) -> None:
    """What a call leaves in the caller's dictionary is no result: the mode stays as it is, and says so."""
    file = write_problem(tmp_path, "changing", f"""
class Model(nn.Module):
    def forward(self, x, given):
        x = torch.tanh(x * 2 + given["h"])
        {change}
        return x * 3

def get_inputs():
    return [torch.rand(4, 8), {{"h": torch.rand(4, 8), "more": [torch.rand(2)]}}]
""")
    result = kernelwright.explain(file, target="cpp", device=GENERIC_CPU)
    assert any("changes what a container holds" in note for note in result.notes) == changes, result.notes
    assert bool(result.modes[0].kernels) != changes


def test_blocks_that_seed_numpy_stay_with_pytorch_alone(tmp_path: Path) -> None:
    """All of them at once, as they are alike; the blocks around them have kernels."""
    file = write_problem(tmp_path, "seeding", """
import numpy as np

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        np.random.seed(3)
        return self.linear(x)[:, np.random.permutation(8)]

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd = Odd()

    def forward(self, x):
        return torch.tanh(self.odd(x) * 2 + 1) + x

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(20)))

    def forward(self, x):
        return self.blocks(x)

def get_inputs():
    return [torch.rand(4, 8)]
""")
    result = kernelwright.explain(file, target="cpp", device=GENERIC_CPU)
    assert [len(mode.kernels) for mode in result.modes] == [20] * len(result.modes)
    assert sum("odd stays with PyTorch" in note and "numpy" in note for note in result.notes) >= 20, result.notes


def test_a_mode_that_no_graph_holds(tmp_path: Path) -> None:
    """Layers that training drops at random, a decision that only float16 takes, and a check of the length leave
    inference to kernels."""
    text = """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        x = x + F.gelu(self.norm(x))
        if x.dtype == torch.float16 and torch.isinf(x).any():
            x = x.clamp(-60000, 60000)
        return x

class Model(nn.Module):
    def __init__(self, always=False):
        super().__init__()
        self.always = always
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x):
        if x.shape[1] != 12:
            raise ValueError("12 positions are expected")
        for layer in self.layers:
            if (self.training or self.always) and torch.rand([]) < 0.2:
                continue
            x = layer(x)
        return x

def get_inputs():
    return [torch.randn(2, 12, 16)]

def get_init_inputs():
    return [ALWAYS]
"""
    file = write_problem(tmp_path, "dropped", text.replace("ALWAYS", "False"))
    result = kernelwright.explain(file, target="cpp", device=GENERIC_CPU)
    assert {m.name: bool(m.kernels) for m in result.modes} == {"training": False, "inference": True}
    (note,) = [n for n in result.notes if "stays as it is" in n]
    assert note.startswith("Training mode") and "by the values of a tensor" in note and "torch.rand([]) < 0.2" in note
    file = write_problem(tmp_path, "always", text.replace("ALWAYS", "True"))
    with pytest.raises(errors.DataDependentControlFlow, match="KW201"):
        kernelwright.explain(file, target="cpp", device=GENERIC_CPU)
