"""The extraction of a model's source: importable alone, same seed same parameters, same results."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from kernelwright import errors
from kernelwright.emit.model_source import ModelSource, extract_model_source
from kernelwright.problem import load_problem

Write = Callable[..., Path]
_counter = itertools.count()

HEAD = "import torch\nimport torch.nn as nn\n"
TAIL = "\ndef get_inputs():\n    return [torch.rand(2, 4)]\n"

# Each file's model takes a (2, 4) tensor.
FILES = {
    "plain, with inputs' constants": '''
        """A docstring that goes."""
        import torch
        import torch.nn as nn
        import os, math  # only math is used
        from collections import OrderedDict, defaultdict

        batch_size = 16

        class Model(nn.Module):
            """Model keeps its docstring, which says Model."""
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(OrderedDict(first=nn.Linear(4, 3)))  # Model in a comment

            def forward(self, x):
                return self.body(x) * math.pi
            # the last comment

        def get_inputs():
            return [torch.rand(2, 4) + os.getpid() * 0 + batch_size * 0]

        if __name__ == "__main__":
            print(Model()(*get_inputs()))
    ''',
    "dataclass helper, typing, future": '''
        from __future__ import annotations
        from dataclasses import dataclass, field
        from typing import TYPE_CHECKING, List, Optional, Tuple
        import torch
        from torch import Tensor, nn
        if TYPE_CHECKING:
            from collections.abc import Sequence

        @dataclass(frozen=True)
        class Config:
            # sizes of layers
            sizes: List[int] = field(default_factory=lambda: [4, 5, 3])
            scale: "Optional[Scale]" = None

        Scale = float

        class Model(nn.Module):
            kind: Optional[type[Model]] = None
            def __init__(self, config: Config = Config()) -> None:
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(config.sizes, config.sizes[1:]))

            def forward(self, x: Tensor) -> Tuple[Tensor, Sequence]:
                for layer in self.layers:
                    x = layer(x)
                return x, [x]
    ''' ,
    "constants as default arguments": HEAD + '''
SIZE, OTHER = 4, 9
FACTOR = SIZE * 2

def make(size=SIZE, *, factor=FACTOR):
    def inner(n):
        return nn.Linear(size, n * factor)
    return inner

class Model(nn.Module):
    width: int = FACTOR
    activation = staticmethod(lambda x: torch.relu(x) / SCALE)
    def __init__(self, make=make(factor=3)):
        super().__init__()
        self.layer = make(self.width)
    def forward(self, x):
        return self.activation(self.layer(x))

SCALE = 2.0
UNUSED = 3
''' + TAIL,
    "helper base, super(Model, self)": HEAD + '''
class Base(nn.Module):
    def __init__(self):
        super(Base, self).__init__()
        self.inner = nn.Linear(4, 4)
    def forward(self, x):
        return self.inner(x)

class Model(Base):
    made = []
    def __init__(self):
        super(Model, self).__init__()
        Model.made.append(type(self) is Model and Model.__mro__[1] is Base)
        self.outer = nn.Linear(4, 2)
    def forward(self, x):
        return self.outer(super(Model, self).forward(x)) + len(f"{Model.__base__.__name__} Model {Model!r:>{4}}"[:4])
''' + TAIL,
    "forward inherited": HEAD + '''
class Mixin:
    def forward(self, x):
        return self.first(x) + self.second(x)

class Model(Mixin, nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
''' + TAIL,
    "imported base, on one line": "import torch\nfrom torch.nn import Linear\nclass Model(Linear): bias_size = 3\n"
        + TAIL + "def get_init_inputs():\n    return [4, 3]\n",
    "private names and shadowing": HEAD + '''
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.__layer = nn.Linear(4, 4)
        self.names = f"{self.__class__.__name__}{self.__layer.in_features}"

    def __apply(self, x, Model=None):
        return self.__layer(x) if Model is None else Model

    def forward(self, x):
        return self.__apply(x) + [Model for Model in (1, 2)][1] + len(self.names[-1])
''' + TAIL,
    "state set at the top level": '''
        import sys
        sys.path.append("/nowhere")
        import torch
        from torch import nn
        _ = torch.manual_seed(5)
        torch.set_default_dtype(torch.float64)
        SIZES = []
        SIZES.append(4)
        UNUSED = {}
        UNUSED["a"] = 1
        TABLE = torch.randn(4)
        try:
            import no_such_package as special
        except ImportError:
            special = None

        def report():
            print(Model())

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(SIZES[0], self.outputs)
            def forward(self, x):
                y = self.layer(x.to(self.layer.weight.dtype))
                return y + TABLE[0] if special is None else special(y)

        Model.outputs = 5
        torch.set_default_dtype(torch.float32)
    ''',
    "forward by assignment, alias, star": '''
        from math import *
        import torch
        from torch import nn
        class Net(nn.Module):
            if True:
                def _run(self, x):
                    return self.layer(x) * tau + isinstance(self, Net)
            forward = _run
            again = forward
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)
        Model = Net
        Model.extra = property(lambda self: Model)
    ''',
    "names beside two-byte text; tabs": HEAD + '''
class Helper(nn.Module):
\tdef build(self): return "größe", Model, "Model"
\tdef forward(self, x):
\t\tglobal COUNT; COUNT = 1
\t\treturn x + COUNT
class Model(nn.Module):
\tdef __init__(self): "äöü Model"; super(Model, self).__init__(); self.layer = nn.Linear(4, 2); self.h = Helper()
\tdef forward(self, x):
\t\treturn self.layer(self.h(x)) + (self.h.build()[1] is type(self)) + len(self.h.build()[2])
''' + TAIL,
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str, name: str = "problem.py") -> Path:
        text = textwrap.dedent(text).lstrip("\n")
        file = tmp_path / name
        file.write_text(text if "def get_inputs" in text else text + TAIL, encoding="utf-8")
        return file
    return make


def imported(source: ModelSource, folder: Path) -> ModuleType:
    """The joined text as a module from a file of its own."""
    file = folder / f"emitted_{next(_counter)}.py"
    file.write_text(source.joined(), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [leaf for item in value for leaf in flat(item)]


@pytest.mark.parametrize("name", FILES)
def test_extracted_model_is_the_original(name: str, write: Write, tmp_path: Path) -> None:
    problem = load_problem(write(FILES[name]), device="cpu")
    source = extract_model_source(problem)
    module = imported(source, tmp_path)
    original = problem.make_model(11)
    torch.manual_seed(11)
    copied = module.ModelNew(*problem.init_inputs)
    assert type(copied).__name__ == source.class_name == "ModelNew"
    expected, found = original.state_dict(), copied.state_dict()
    assert list(expected) == list(found) and list(expected)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    x = problem.make_inputs(1)
    for a, b in zip(flat(original(*x)), flat(copied._original_forward(*x)), strict=True):
        assert a.dtype is b.dtype and torch.equal(a, b)
    original.load_state_dict(found)
    assert source.clashes == () and source.notes == ()
    assert "get_inputs" not in source.joined() and "__main__" not in source.joined()
    check_lines(source, problem.source)


def check_lines(source: ModelSource, text: str) -> None:
    """Every kept line stands in the original at the line given, but for what was renamed."""
    original = text.split("\n")
    parts = ((source.imports, source.import_lines), (source.support, source.support_lines),
             (source.model_class, source.class_lines), (source.trailing, source.trailing_lines))
    for part, numbers in parts:
        lines = part.split("\n") if numbers else []
        assert len(lines) == len(numbers)
        for line, number in zip(lines, numbers, strict=True):
            if number and not line.startswith(("import", "from")):
                bare = line.replace("ModelNew", "Model").replace("_original_forward", "forward")
                assert bare.strip().replace("_Model__", "__") in original[number - 1].replace("Net", "Model")


def test_what_stays_and_what_goes(write: Write) -> None:
    source = extract_model_source(load_problem(write(FILES["plain, with inputs' constants"])))
    assert source.imports == ("import torch.nn as nn\nimport math\nfrom collections import OrderedDict")
    assert source.support == "" and source.trailing == "" and source.body_indent == "    "
    assert '"""Model keeps its docstring, which says Model."""' in source.model_class
    assert source.model_class.endswith("# the last comment") and "# Model in a comment" in source.model_class

    source = extract_model_source(load_problem(write(FILES["constants as default arguments"])))
    assert "SIZE, OTHER = 4, 9" in source.support and "SCALE = 2.0" in source.support
    assert "UNUSED" not in source.joined()

    source = extract_model_source(load_problem(write(FILES["dataclass helper, typing, future"])))
    assert source.imports.startswith("from __future__ import annotations\n")
    assert "Scale = float" in source.support and "# sizes of layers" in source.support
    assert "Optional" in source.imports and "kind: Optional[type[ModelNew]] = None" in source.model_class


def test_top_level_state_keeps_its_place(write: Write) -> None:
    source = extract_model_source(load_problem(write(FILES["state set at the top level"])))
    assert source.imports.split("\n") == ["import sys", 'sys.path.append("/nowhere")', "import torch",
                                          "from torch import nn"]
    assert "UNUSED" not in source.joined() and "report" not in source.joined()
    assert source.support.index("manual_seed(5)") < source.support.index("TABLE =")
    assert source.trailing.split("\n")[0] == "ModelNew.outputs = 5"
    assert "torch.set_default_dtype(torch.float32)" in source.trailing


_SCRIPT = """
import json
import os
import shutil
import warnings

import torch
import kernelwright
from kernelwright import optimize as faster
from torch import nn

warnings.simplefilter("ignore")
os.environ["SCRIPT_SAYS"] = "yes"
shutil.rmtree("{folder}", ignore_errors=True)
TIMES = {{}}
SIZES = [4]
SIZES.append(5)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(*SIZES)

    def forward(self, x):
        return torch.relu(self.linear(x)) * len(TIMES)

def get_inputs():
    return [torch.randn(2, 4)]

def get_init_inputs():
    return []

if os.environ.get("RUNS"):
    for name in ("one", "two"):
        torch.manual_seed(0)
        model = Model()
        TIMES[name] = kernelwright.optimize(model, get_inputs()).notes
    TIMES["three"] = faster(model, get_inputs())
    json.dump(TIMES, open("{folder}/times.json", "w"))
json.dump(TIMES, open("{folder}.json", "w"))
"""


def test_a_script_around_the_model_is_not_run_again(write: Write, tmp_path: Path) -> None:
    """What makes or optimizes models, and what writes files, is none of the model's, whatever it changes."""
    folder = tmp_path / "results"
    source = extract_model_source(load_problem(write(_SCRIPT.format(folder=folder))))
    text = source.joined()
    assert all(kept in text for kept in ("SIZES.append(5)", "TIMES = {}", "simplefilter", 'os.environ["SCRIPT_SAYS"]'))
    assert not any(left in text for left in ("json", "rmtree", "optimize", "manual_seed", "RUNS"))
    imported(source, tmp_path)


def test_strings_keep_the_name_and_fstrings_are_renamed_inside_braces(write: Write) -> None:
    source = extract_model_source(load_problem(write(FILES["helper base, super(Model, self)"])))
    assert 'f"{ModelNew.__base__.__name__} Model {ModelNew!r:>{4}}"' in source.model_class
    assert "super(ModelNew, self).__init__()" in source.model_class and "super(Base, self)" in source.support
    source = extract_model_source(load_problem(write(FILES["names beside two-byte text; tabs"])))
    assert 'return "größe", ModelNew, "Model"' in source.support and source.body_indent == "\t"


def test_a_method_can_be_appended(write: Write) -> None:
    for name, text in FILES.items():
        source = extract_model_source(load_problem(write(text), device="cpu"))
        method = f"{source.body_indent}def forward(self, *args):\n{source.body_indent * 2}return 'ours'"
        tree = ast.parse(source.model_class + "\n\n" + method)
        (owner,) = tree.body
        assert isinstance(owner, ast.ClassDef) and owner.name == "ModelNew", name
        assert owner.body[-1].name == "forward"
        forwards = [x for x in ast.walk(owner) if isinstance(x, ast.FunctionDef) and x.name == "forward"]
        assert len(forwards) == 1


def test_forward_set_after_the_class(write: Write, tmp_path: Path) -> None:
    problem = load_problem(write(HEAD + '''
class Model(nn.Module):
    def forward(self, x):
        return x

def doubled(self, x):
    return x * 2

Model.forward = doubled
'''), device="cpu")
    module = imported(extract_model_source(problem), tmp_path)
    assert module.ModelNew()._original_forward(torch.ones(1)).item() == 2


def test_names_looked_up_by_text_keep_everything(write: Write, tmp_path: Path) -> None:
    problem = load_problem(write(HEAD + '''
LAYER_RELU = torch.relu
class Model(nn.Module):
    def forward(self, x):
        return globals()["LAYER_" + "RELU"](x)
'''), device="cpu")
    source = extract_model_source(problem)
    assert imported(source, tmp_path).ModelNew()._original_forward(-torch.ones(1)).item() == 0
    assert "get_inputs" not in source.joined()


def test_the_last_class_of_a_name_counts(write: Write) -> None:
    source = extract_model_source(load_problem(write(HEAD + '''
class Model(nn.Module):
    first = True
class Model(nn.Module):
    second = True
    def forward(self, x):
        return x
''')))
    assert "second" in source.model_class and "first" not in source.joined()


def test_clashes_are_named(write: Write) -> None:
    source = extract_model_source(load_problem(write(HEAD + '''
_kernelwright_lock = 1
class ModelNew: pass
class Model(nn.Module):
    def _original_forward(self, x):
        return x + _kernelwright_lock, ModelNew
    def forward(self, x):
        return self._original_forward(x)
''')))
    assert source.clashes == ("ModelNew", "_kernelwright_lock", "_original_forward")


def test_imports_from_the_users_folder_are_noted(write: Write, tmp_path: Path) -> None:
    (tmp_path / "layers_beside.py").write_text("from torch import nn\nclass Block(nn.Linear): pass\n")
    file = write("from layers_beside import Block\nimport torch\nclass Model(Block):\n    here = __file__\n")
    source = extract_model_source(load_problem(file, init_inputs=[4, 4]))
    assert any("imports layers_beside from" in note for note in source.notes)
    assert any("__file__" in note for note in source.notes)


def test_relative_imports_of_a_package_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "relative_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("SIZE = 4\n")
    (package / "net.py").write_text("from torch import nn\nfrom .sizes import SIZE\n"
                                    "class Net(nn.Linear):\n    def __init__(self): super().__init__(SIZE, 2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from relative_package.net import Net

    source = extract_model_source(load_problem(Net(), inputs=[torch.rand(2, 4)]))
    assert "from relative_package.sizes import SIZE" in source.imports
    assert imported(source, tmp_path).ModelNew().weight.shape == (2, 4)


def test_classes_of_installed_packages_are_derived_from(tmp_path: Path) -> None:
    linear = nn.Linear(4, 2)
    source = extract_model_source(load_problem(linear, inputs=[torch.rand(3, 4)], device="cpu"))
    assert source.imports == "from torch.nn import Linear"
    assert source.model_class.startswith("class ModelNew(Linear):\n")
    copied = imported(source, tmp_path).ModelNew(4, 2)
    copied.load_state_dict(linear.state_dict())
    x = torch.rand(3, 4)
    assert torch.equal(copied._original_forward(x), linear(x))


class OfThisFile(nn.Linear):
    """A class that stands in a user's module, for the instance below."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice the linear map."""
        return super().forward(x) * 2


def test_instances_of_a_users_class_are_extracted_from_its_file(tmp_path: Path) -> None:
    model = OfThisFile(4, 3)
    problem = load_problem(model, inputs=[torch.rand(2, 4)], device="cpu")
    source = extract_model_source(problem)
    assert source.original_file == __file__ and "FILES" not in source.joined()
    copied = imported(source, tmp_path).ModelNew(4, 3)
    copied.load_state_dict(model.state_dict())
    x = torch.rand(2, 4)
    assert torch.equal(copied._original_forward(x), model(x))


def test_source_unavailable(write: Write) -> None:
    class Local(nn.ReLU):
        pass

    with pytest.raises(errors.SourceUnavailable, match="inside a function"):
        extract_model_source(load_problem(Local(), inputs=[torch.rand(2)]))
    names: dict[str, Any] = {"__name__": "a_console", "nn": nn}
    exec("class Console(nn.ReLU): pass", names)
    with pytest.raises(errors.SourceUnavailable, match="no source file"):
        extract_model_source(load_problem(names["Console"](), inputs=[torch.rand(2)]))
    file = write(HEAD + "if True:\n    class Model(nn.ReLU):\n        pass\n")
    with pytest.raises(errors.SourceUnavailable, match="not defined at the top level") as caught:
        extract_model_source(load_problem(file))
    assert caught.value.where == f"{file}:4\nclass Model(nn.ReLU):"
