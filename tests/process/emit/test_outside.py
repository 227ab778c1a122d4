"""What a forward reads from outside of the model: kernels and the original computation see the same."""

from __future__ import annotations

import os
import random
import sys
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emitted_tools import assert_like, import_path, import_text, kernels_run, models, original_runs, write_problem
from torch import nn

import kernelwright
from kernelwright.build.module import load_text
from kernelwright.capture.export import NotCapturable, capture
from kernelwright.problem.outside import is_installed, read_outside
from kernelwright.roofline.devices import GENERIC_CPU

SEED = 11

TENSORS = '''
    import random
    from functools import wraps
    from types import SimpleNamespace
    from typing import NamedTuple
    import numpy as np

    AHEAD = torch.randn(3)  # nothing but the inputs reads it: what is drawn after it stays what it is
    NOISE = torch.randn(8)
    TABLES = [torch.randn(8), {"deep": torch.randn(8)}]

    def closed_over(table):
        return lambda x: x * table

    SCALED = closed_over(torch.rand(8) + random.random())

    class Settings:
        table = torch.randn(8) + float(np.random.rand())

    class Pair(NamedTuple):
        number: float
        table: torch.Tensor

    PAIR = Pair(0.5, torch.randn(8))
    SPACE = SimpleNamespace(turned=torch.randn(64, 8).T.contiguous().T)

    class Holder:
        def __init__(self):
            self.table = torch.randn(8)

        def applied(self, x):
            return x + self.table

    HOLDER = Holder()

    def shifted(x, by=torch.randn(8)):
        return x - by

    def decorated(function):
        table = torch.randn(8)

        @wraps(function)
        def applied(self, x):
            return function(self, x * SPACE.turned) + (table * PAIR.table * PAIR.number).sum()

        return applied

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.rand(8))
            self.tables = (torch.randn(8), [torch.randn(8)])
            self.folded = lambda x: x + (LATE * 2).abs()

        @decorated
        def forward(self, x):
            x = torch.tanh(x * self.gain * NOISE + TABLES[0] * TABLES[1]["deep"])
            x = HOLDER.applied(SCALED(x)) * Settings.table + self.tables[0] * self.tables[1][0]
            return shifted(self.folded(x)).square().sum(-1)

    LATE = torch.randn(8)

    def get_inputs():
        return [torch.randn(64, 8) + AHEAD.sum()]
'''

VALUES = '''
    import os
    from functools import partial

    import numpy as np
    import outside_helpers
    from outside_helpers import moved

    SCALE = 2.0
    SIGN = 0.0
    CONFIG = {"scale": 3.0, "parts": [1.0, 2.0], "names": {"a": 4}}
    ARRAY = np.array([1.5, 2.5])
    ACTIVATION = torch.tanh

    class Settings:
        slope = 0.5
        clipped = True

    class Holder:
        def __init__(self):
            self.shift = 0.25

    HOLDER = Holder()

    def closed_over(factor):
        def scaled(x):
            return x * factor
        return scaled

    SCALED = closed_over(1.25)
    POWER = partial(torch.add, alpha=3)

    def deeper(x, slope=0.125):
        return x * Settings.slope + DEEP * slope

    DEEP = 7.0

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.chosen = lambda x: x * LATE
            self.numbers = np.array([0.5, 0.75])

        def forward(self, x):
            if os.environ.get("KERNELWRIGHT_TEST_MODE", "a") == "b":
                x = x + 1
            if Settings.clipped:
                x = x.clamp(-2, 2)
            x = moved(deeper(ACTIVATION(x * SCALE))) + CONFIG["parts"][1] * CONFIG["names"]["a"] + HOLDER.shift
            x = self.chosen(SCALED(x)) * float(ARRAY[1]) + outside_helpers.OFFSET * float(self.numbers[0])
            return (POWER(x, 1.0) * torch.tensor([CONFIG["scale"], 1.0]) + 1 / torch.tensor(SIGN)).clamp(max=1e30)

    LATE = 5.0

    def get_inputs():
        return [torch.randn(64, 2)]
'''
HELPERS = "OFFSET = 0.5\nFACTOR = 1.5\n\n\ndef moved(x):\n    return x * FACTOR + OFFSET\n"


def made(folder: Path, name: str, text: str) -> tuple[Any, Any]:
    """The original and the emitted module, imported under one seed, as a user's process does it."""
    path = write_problem(folder, name, text)
    source = kernelwright.explain(path, target="cpp", device=GENERIC_CPU).source
    assert "_KERNELWRIGHT_SOURCE" in source
    seed_all()
    original = import_path(path)
    seed_all()
    return original, import_text(source, folder, name)


def seed_all() -> None:
    import random

    import numpy

    torch.manual_seed(SEED)
    random.seed(SEED)
    numpy.random.seed(SEED)


def agree(original: Any, emitted: Any, old: Any, new: Any) -> None:
    x = original.get_inputs()
    with torch.no_grad():
        found, same, expected = new(*x), new._original_forward(*x), old(*x)
    assert_like(same, expected, 0.0)
    assert_like(found, expected, 1e-4)
    del emitted


@pytest.fixture(scope="module")
def tensors(tmp_path_factory) -> tuple[Any, Any]:
    return made(tmp_path_factory.mktemp("tensors"), "tensors", TENSORS)


@pytest.fixture(scope="module")
def values(tmp_path_factory) -> Iterator[tuple[Any, Any]]:
    folder = tmp_path_factory.mktemp("values")
    (folder / "outside_helpers.py").write_text(HELPERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield made(folder, "values", VALUES)
    sys.modules.pop("outside_helpers", None)


def test_tables_drawn_at_import_are_the_same(tensors) -> None:
    original, emitted = tensors
    for name in ("AHEAD", "NOISE", "LATE"):
        assert torch.equal(getattr(original, name), getattr(emitted, name))
    seed_all()
    import_path(Path(original.__file__))
    state = torch.get_rng_state()
    seed_all()
    import_path(Path(emitted.__file__))
    assert torch.equal(torch.get_rng_state(), state), "a model made next would have other parameters"


def _put(name: str) -> Callable[[Any, Any], None]:
    return lambda module, model: setattr(module, name, torch.linspace(-1, 1, 8))


TENSOR_CHANGES = {
    "as imported": lambda module, model: None,
    "global in place": lambda module, model: module.NOISE.mul_(3),
    "global": _put("NOISE"),
    "global of a lambda that is kept, computed with": _put("LATE"),
    "list": lambda module, model: module.TABLES[0].mul_(-1),
    "entry of a list": lambda module, model: module.TABLES.__setitem__(0, torch.linspace(-1, 1, 8)),
    "entry of a dictionary in a list": lambda module, model: module.TABLES[1].update(deep=torch.linspace(2, 3, 8)),
    "named tuple": lambda module, model: module.PAIR.table.mul_(2),
    "namespace, turned": lambda module, model: module.SPACE.turned.mul_(2),
    "closure in place": lambda module, model: module.SCALED.__closure__[0].cell_contents.mul_(2),
    "closure": lambda module, model: setattr(module.SCALED.__closure__[0], "cell_contents", torch.linspace(0, 1, 8)),
    "class attribute": lambda module, model: setattr(module.Settings, "table", torch.linspace(0, 1, 8)),
    "object": lambda module, model: setattr(module.HOLDER, "table", torch.linspace(0, 1, 8)),
    "default": lambda module, model: module.shifted.__defaults__[0].zero_(),
    "tuple of the model": lambda module, model: model.tables[0].mul_(2),
    "list of the model": lambda module, model: model.tables[1].__setitem__(0, torch.linspace(0, 1, 8)),
}


@pytest.mark.parametrize("change", TENSOR_CHANGES.values(), ids=TENSOR_CHANGES)
def test_tensors_are_read_where_they_are(tensors, change) -> None:
    original, emitted = tensors
    old, new, _ = models(original, emitted)
    with kernels_run(emitted):
        agree(original, emitted, old, new)
        with torch.no_grad():
            change(original, old)
            change(emitted, new)
        agree(original, emitted, old, new)


def test_gradients_with_tensors_from_outside(tensors) -> None:
    """The recomputation reads the same tensors; one that requires gradients itself is the original's affair."""
    original, emitted = tensors
    old, new, (x,) = models(original, emitted)
    with kernels_run(emitted):
        assert_like([*_gradients(new, x)], [*_gradients(old, x)], 1e-3)
        with torch.no_grad():
            for model in (old, new):
                model.tables[0].mul_(2)
        assert_like([*_gradients(new, x)], [*_gradients(old, x)], 1e-3)
    for module in (original, emitted):
        module.NOISE.requires_grad_()
    try:
        for model in (old, new):
            model(x).sum().backward()
        assert_like(emitted.NOISE.grad, original.NOISE.grad, 1e-3)
    finally:
        for module in (original, emitted):
            module.NOISE.requires_grad_(False)


def _gradients(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    given = x.clone().requires_grad_()
    return torch.autograd.grad(model(given).sum(), [given, model.gain])


def _array(module: Any) -> None:
    module.ARRAY[1] = 9.0


VALUE_CHANGES: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    # what the warning names, the change, and the way back
    "number": ("SCALE", lambda m: setattr(m, "SCALE", 3.0), lambda m: setattr(m, "SCALE", 2.0)),
    "its type": ("SCALE", lambda m: setattr(m, "SCALE", 2), lambda m: setattr(m, "SCALE", 2.0)),
    "sign of zero": ("SIGN", lambda m: setattr(m, "SIGN", -0.0), lambda m: setattr(m, "SIGN", 0.0)),
    "function": ("ACTIVATION", lambda m: setattr(m, "ACTIVATION", torch.sigmoid),
                 lambda m: setattr(m, "ACTIVATION", torch.tanh)),
    "dictionary": ("CONFIG", lambda m: m.CONFIG.update(scale=4.0), lambda m: m.CONFIG.update(scale=3.0)),
    "nested list": ("CONFIG", lambda m: m.CONFIG["parts"].__setitem__(1, 5.0),
                    lambda m: m.CONFIG["parts"].__setitem__(1, 2.0)),
    "array": ("ARRAY", _array, lambda m: m.ARRAY.__setitem__(1, 2.5)),
    "class attribute": ("slope", lambda m: setattr(m.Settings, "slope", 1.5),
                        lambda m: setattr(m.Settings, "slope", 0.5)),
    "branch": ("clipped", lambda m: setattr(m.Settings, "clipped", False),
               lambda m: setattr(m.Settings, "clipped", True)),
    "object": ("HOLDER", lambda m: setattr(m.HOLDER, "shift", 1.25), lambda m: setattr(m.HOLDER, "shift", 0.25)),
    "closure": ("SCALED", lambda m: setattr(m.SCALED.__closure__[0], "cell_contents", 2.0),
                lambda m: setattr(m.SCALED.__closure__[0], "cell_contents", 1.25)),
    "default": ("deeper", lambda m: setattr(m.deeper, "__defaults__", (3.0,)),
                lambda m: setattr(m.deeper, "__defaults__", (0.125,))),
    "global of a function": ("DEEP", lambda m: setattr(m, "DEEP", 8.0), lambda m: setattr(m, "DEEP", 7.0)),
    "global of a lambda": ("LATE", lambda m: setattr(m, "LATE", 6.0), lambda m: setattr(m, "LATE", 5.0)),
    "partial": ("POWER", lambda m: m.POWER.keywords.update(alpha=2), lambda m: m.POWER.keywords.update(alpha=3)),
    "another file": ("OFFSET", lambda m: setattr(m.outside_helpers, "OFFSET", 2.0),
                     lambda m: setattr(m.outside_helpers, "OFFSET", 0.5)),
    "another file's function": ("FACTOR", lambda m: setattr(m.outside_helpers, "FACTOR", 2.0),
                                lambda m: setattr(m.outside_helpers, "FACTOR", 1.5)),
    "environment": ("KERNELWRIGHT_TEST_MODE", lambda m: os.environ.update(KERNELWRIGHT_TEST_MODE="b"),
                    lambda m: os.environ.pop("KERNELWRIGHT_TEST_MODE", None)),
}


@pytest.mark.parametrize("late", [False, True], ids=["before the first call", "between calls"])
@pytest.mark.parametrize(("word", "change", "back"), VALUE_CHANGES.values(), ids=VALUE_CHANGES)
def test_values_are_compared_at_every_call(values, word, change, back, late) -> None:
    original, emitted = values
    old, new, _ = models(original, emitted)
    if late:
        with kernels_run(emitted):
            agree(original, emitted, old, new)
    try:
        for module in (original, emitted):
            change(module)
        with original_runs(emitted, because=word):
            agree(original, emitted, old, new)
    finally:
        for module in (original, emitted):
            back(module)
    with kernels_run(emitted):
        agree(original, emitted, old, new)


def test_an_attribute_that_is_an_array(values) -> None:
    original, emitted = values
    old, new, _ = models(original, emitted)
    with kernels_run(emitted):
        agree(original, emitted, old, new)
    old.numbers[0] = new.numbers[0] = 4.0
    with original_runs(emitted, because="numbers"):
        agree(original, emitted, old, new)


def test_the_cost_of_a_call(values) -> None:
    """Two dozen values are compared in the time of two dozen look-ups; where nothing is read, nothing is done."""
    original, emitted = values
    _, new, x = models(original, emitted)
    new(*x)
    (binding,) = emitted._kernelwright_bindings[new].values()
    calls = 2000
    looking = min(timeit.repeat(lambda: emitted._kernelwright_outside(new), number=calls, repeat=5))
    look_up = min(timeit.repeat(lambda: vars(emitted)["SCALE"], number=calls, repeat=5))
    assert looking < 40 * look_up * len(binding.outside)


RETURNED = '''
    NOISE = torch.randn(8)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.eval()

        def forward(self, x):
            if self.training:
                raise NotImplementedError("for inference only")
            return torch.tanh(x * NOISE) + 1, NOISE, NOISE[2:]
'''


def test_a_tensor_from_outside_as_a_result(tmp_path) -> None:
    """It is the very tensor; a mode in which the model raises is the original's."""
    inputs = "\n    def get_inputs():\n        return [torch.ones(9, 8)]"
    original, emitted = made(tmp_path, "returned", RETURNED + inputs)
    old, new, (x,) = models(original, emitted)
    with kernels_run(emitted, 2):
        first, second = new(x), new(x)
    assert first[1] is second[1] is emitted.NOISE and first[2].data_ptr() == emitted.NOISE[2:].data_ptr()
    assert_like(first, old(x), 1e-5)
    with pytest.raises(NotImplementedError, match="for inference only"):
        new.train()(x)


SILENT = '''
    SCALE = 3.0

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.width = SCALE

        def forward(self, x):
            return torch.tanh(x * self.width)

    def get_inputs():
        return [torch.randn(64, 8)]
'''


def test_nothing_is_compared_where_nothing_is_read(tmp_path) -> None:
    path = write_problem(tmp_path, "silent", SILENT)
    source = kernelwright.explain(path, target="cpp", device=GENERIC_CPU).source
    assert "_kernelwright_outside" not in source and '"outside"' not in source


# What no graph can hold -------------------------------------------------------------------------------------------

HEAD = """
import datetime, functools, os, pathlib, random, socket, time, uuid
import numpy as np
import torch
from time import perf_counter
from torch import nn
"""
LEFT = {
    "the time": ("time.time", "", "return x * (time.time() % 7)"),
    "the time by name": ("time.perf_counter", "", "return x * perf_counter()"),
    "the date": ("datetime", "", "return x * datetime.datetime.now().microsecond"),
    "the host": ("gethostname", "", "return x * len(socket.gethostname())"),
    "a new identity": ("uuid", "", "return x * (uuid.uuid4().int % 7)"),
    "the process": ("getpid", "", "return x * os.getpid()"),
    "a file": ("open()", "", "return x * len(open(os.devnull).read())"),
    "a file by its path": ("pathlib", "", "return x * len(pathlib.Path(os.devnull).read_text())"),
    "a seed": ("torch", "", "torch.manual_seed(3); return x * torch.rand(8)"),
    "draws of Python": ("random", "", "return x * random.random()"),
    "draws of numpy": ("numpy", "", "return x * float(np.random.rand())"),
    "a generator's draws": ("OWN", "OWN = random.Random(3)", "return x * OWN.random()"),
    "numpy's generator": ("OWN", "OWN = np.random.default_rng(3)", "return x * OWN.random()"),
    "a count": ("CALLS", "CALLS = 0", "global CALLS; CALLS += 1; return x * CALLS"),
    "a list that grows": ("SEEN", "SEEN = []", "SEEN.append(1); return x * len(SEEN)"),
    "values in Python": ("values", "SCALE = torch.tensor(2.0)", "return x * SCALE.item()"),
    "a list of values": ("values", "SCALE = torch.rand(3)", "return x * SCALE.tolist()[1]"),
    "a comparison": ("values", "SCALE = torch.tensor(2.0)", "return x if float(SCALE) > 1 else -x"),
    "a cache of tensors": ("holds", "@functools.lru_cache\ndef table():\n    return torch.rand(8)\n",
                           "return x * table()"),
    "a cache in a dictionary": ("CACHE", "CACHE = {}", "return x * CACHE.setdefault(8, torch.ones(8))"),
    "a count in an object": ("COUNT", "COUNT = type('Count', (), {})()\nCOUNT.calls = 0",
                             "COUNT.calls += 1; return x * COUNT.calls"),
    "names in texts": ("globals()", "SCALE = 2.0", "return x * globals()['SCALE']"),
    "a table in place": ("SCALE", "SCALE = torch.ones(8)", "SCALE.add_(1); return x * SCALE"),
    "a layer of nobody": ("holds", "LAYER = nn.Linear(8, 8)", "return LAYER(x)"),
    "too much to compare": ("too large", "WORDS = {i: i for i in range(5000)}", "return x * WORDS[3]"),
}


@pytest.mark.parametrize(("word", "before", "body"), LEFT.values(), ids=LEFT)
def test_left_to_the_original(word, before, body, tmp_path) -> None:
    path = tmp_path / "left.py"
    path.write_text(f"{HEAD}{before}\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        {body}\n")
    module = import_path(path)
    with pytest.raises(NotCapturable, match=word.replace("(", r"\(").replace(")", r"\)")):
        capture(module.Model(), [torch.rand(4, 8)])
    if "cache" in word.lower():
        assert not module.CACHE, "a tensor of a trace is left where the next eager call finds it"
    assert type(module.Model()(torch.rand(4, 8))) is torch.Tensor


def test_a_console_has_no_file() -> None:
    """What is typed, or comes from a text, is the user's as well."""
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec(f"{HEAD}NOISE = torch.randn(8)\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
         "        return x * NOISE\n", space)
    graph = capture(space["Model"](), [torch.rand(4, 8)])
    assert [n["name"] for n in graph.nodes() if n.op == "attribute"] == ["outside NOISE"]


def test_a_parameter_of_nobody(tmp_path) -> None:
    """It is read like any tensor; its gradients are the original's affair."""
    path = tmp_path / "nobody.py"
    path.write_text(f"{HEAD}W = nn.Parameter(torch.ones(8))\n\n\n"
                    "class Model(nn.Module):\n    def forward(self, x):\n        return x * W\n")
    model = import_path(path).Model()
    assert capture(model, [torch.rand(4, 8)]).outputs
    with pytest.raises(NotCapturable, match="gradients reach"):
        capture(model, [torch.rand(4, 8)], recording=True)


def test_what_does_no_harm_is_no_reason(tmp_path) -> None:
    path = tmp_path / "right.py"
    path.write_text(HEAD + "import logging\nimport math\nLOG = logging.getLogger(__name__)\nLOSS = nn.MSELoss()\n"
                    "FOLDER = os.path.join('a', 'b')\n\n\n"
                    "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                    "        self.made = time.time()\n\n"
                    "    @functools.lru_cache\n    def count(self, n):\n        return n + 1\n\n"
                    "    def forward(self, x):\n"
                    "        LOG.debug('called')\n        x = x + self.count(3) + len(os.path.basename(FOLDER))\n"
                    "        return LOSS(x * math.pi, x) + torch.tensor([1.0, 2.0]).sum()\n")
    module = import_path(path)
    assert capture(module.Model(), [torch.rand(4, 8)]).outputs
    found = read_outside(module.Model())
    assert set(found.values) == {"FOLDER", "LOSS.training", "LOSS.reduction"} and not found.tensors


def test_a_model_that_runs_at_import_is_left_out_with_a_note(tmp_path) -> None:
    text = SILENT + "\n    OUTPUT = Model()(torch.rand(4, 8))\n    NOISE = torch.randn(3)\n"
    result = kernelwright.explain(write_problem(tmp_path, "script", text), target="cpp", device=GENERIC_CPU)
    assert any("by running the model" in note for note in result.notes)
    assert "OUTPUT" not in result.source and "NOISE = torch.randn(3)" in result.source


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a device kernels run under the emulation, unmeasured")
@pytest.mark.parametrize("given", ["file", "class", "instance"])
def test_kernels_are_certified_with_a_table_drawn_at_import(given, tmp_path) -> None:
    text = "    NOISE = torch.randn(8)\n" + SILENT.replace("* self.width", "* NOISE")
    path = write_problem(tmp_path, "drawn", text)
    problem: Any = path
    options: dict[str, Any] = {"target": "cuda", "effort": "quick", "baselines": "none"}
    if given != "file":
        kind = import_path(path).Model
        problem, options["inputs"] = kind if given == "class" else kind(), [torch.randn(64, 8)]
    result = kernelwright.optimize(problem, **options)
    assert sum("Passed" in note for note in result.notes) == 2 and "NOISE = torch.randn(8)" in result.source


MASKED = """
import random

import numpy as np

class Model(nn.Module):
    def forward(self, x):
        if self.training:  # as masks of speech models are drawn
            x = torch.where(torch.from_numpy(np.random.rand(64, 8) < 0.5), x, 0.0) * random.random()
        return torch.tanh(x) * 2.0 + torch.sigmoid(x)

def get_inputs():
    return [torch.randn(64, 8)]
"""


def test_a_mode_that_draws_from_numpy_stays_and_is_certified(tmp_path) -> None:
    """Model and candidate draw the same numbers in a trial; nobody else's stream goes on by it."""
    path = write_problem(tmp_path, "masked", MASKED)
    np.random.seed(4)
    random.seed(4)
    wanted = np.random.rand(), random.random()
    np.random.seed(4)
    random.seed(4)
    result = kernelwright.optimize(path, target="cpp", effort="quick", baselines="none", contractions="library")
    assert (np.random.rand(), random.random()) == wanted
    modes = {mode.name: mode for mode in result.modes}
    assert set(modes) == {"inference", "training"} and not modes["training"].kernels
    assert all(mode.certificate.passed for mode in result.modes), result.notes


def test_packages_are_known_by_their_metadata(tmp_path, monkeypatch) -> None:
    """A folder of another name that an installer filled (``pip install --target``) holds no code of the user's."""
    package = tmp_path / "packages" / "calm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def read():\n    return open('/dev/null').read()\n")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    is_installed.cache_clear()
    assert not is_installed(str(package / "__init__.py"))
    (tmp_path / "packages" / "calm-1.0.dist-info").mkdir()
    is_installed.cache_clear()
    assert is_installed(str(package / "__init__.py"))
    assert not is_installed(str(tmp_path / "mine.py"))
    is_installed.cache_clear()


def test_code_of_this_package_is_not_the_users() -> None:
    """Also where it is used from a checkout. Classes of emitted files get a method of it, which says how they are
    pickled."""
    text = HEAD + "class Model(nn.Module):\n    def forward(self, x):\n        return torch.tanh(x) * 2.0\n"
    model = load_text(text, "mine").Model()
    assert "__reduce_ex__" in vars(type(model))
    assert is_installed(kernelwright.__file__) and not is_installed(__file__)
    found = read_outside(model)
    assert not found.refused and not found.values


TABLE = {"shift": 1.0}


def _shifted(x: torch.Tensor) -> torch.Tensor:
    return x + TABLE["shift"]


def _kept(x: torch.Tensor) -> torch.Tensor:
    return _shifted(torch.tanh(x) * 2.0)


class Keeper(nn.Module):
    """A model that computes what a function says, whose name stands nowhere in its class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def test_a_function_that_an_object_keeps_has_its_globals_with_it() -> None:
    """They are read through it, since no emitted file has their names, and are no state of the model."""
    model = Keeper(_kept)
    found = read_outside(model)
    texts = {text: eval(text, {"_model": model}) for text in (*found.values, *found.containers)}
    assert _shifted in texts.values() and any(value is TABLE for value in texts.values())
    assert all(text.startswith("_model.function.__globals__") for text in texts)
    assert any(value is TABLE for value in found.containers.values())
