"""Our own collection of problems: every file is of one form, runs, and goes through the stages before the kernels."""

from __future__ import annotations

import ast
import copy
import random
import re
from pathlib import Path

import pytest
import torch
from emitted_tools import short_budgets
from graph_tools import MORE, assert_same, eager, filled, run_plan, values_of
from places import ROOT
from torch.utils import _pytree as pytree

from kernelwright.algebra.engine import rewrite
from kernelwright.capture.export import NotCapturable, capture
from kernelwright.pipeline import optimize
from kernelwright.plan.planner import make_plan
from kernelwright.problem import load_problem
from kernelwright.roofline.devices import H200

PROBLEMS = ROOT / "problems"
FILES = sorted(PROBLEMS.glob("*/*.py"))
FAMILIES = {"algebra", "attention", "blocks", "convolution", "embedding", "losses", "matmul", "normalisation",
            "pointwise", "pooling", "recurrent", "reductions", "scans", "softmax", "structure", "training",
            "transposed_convolution", "types", "views"}
#: What may stay as PyTorch computes it: the forward cannot be one graph of ours, and the report says why.
LEFT_AS_IS = {"blocks/expert_rows"}


@pytest.fixture(scope="module", autouse=True)
def short_timing():
    """Budgets of a fraction of a second, and no compiled baseline: these tests ask for right results alone."""
    patch = pytest.MonkeyPatch()
    short_budgets(patch)
    yield
    patch.undo()


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def test_collection():
    """Enough problems in every family, each with a name and a program of its own."""
    assert len(FILES) >= 100
    assert {f.parent.name for f in FILES} == FAMILIES
    assert not [f for f in PROBLEMS.rglob("*.py") if f not in FILES], "problems stand in the folder of their family"
    assert len({f.stem for f in FILES}) == len(FILES)
    programs: dict[str, Path] = {}
    for file in FILES:
        kind = next(n for n in ast.parse(file.read_text()).body if isinstance(n, ast.ClassDef))
        same = programs.setdefault(ast.dump(kind), file)
        assert same is file, f"{name_of(file)} is the program of {name_of(same)}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_form(file):
    """One line of docstring, torch alone, sizes as plain constants, and TINY names some of them."""
    tree = ast.parse(file.read_text())
    documentation = ast.get_docstring(tree)
    assert documentation and "\n" not in documentation and documentation.endswith(".")
    constants, seen = {}, []
    for node in tree.body[1:]:
        seen.append(type(node).__name__)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            assert all(m.split(".")[0] == "torch" for m in modules)
        elif isinstance(node, ast.Assign):
            # A value derived from a size would keep its old meaning when the size is replaced.
            constants[node.targets[0].id] = ast.literal_eval(node.value)
    tiny = constants.pop("TINY")
    assert set(seen) <= {"Import", "ImportFrom", "Assign", "ClassDef", "FunctionDef"}
    assert tiny and set(tiny) <= set(constants)
    assert all(type(v) is int and v > 0 for v in constants.values())
    assert all(type(v) is int and v <= constants[n] for n, v in tiny.items()) and tiny != constants
    assert [n.name for n in tree.body if isinstance(n, ast.ClassDef)] == ["Model"]
    assert [n.name for n in tree.body if isinstance(n, ast.FunctionDef)] == ["get_inputs", "get_init_inputs"]


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_tiny_forward(file):
    """The tiny variant runs: finite results that depend on the inputs and are not all the same."""
    problem = load_problem(file, device="cpu", tiny=True)
    first, _ = eager(problem.make_model(0), problem.make_inputs(0))
    again, _ = eager(problem.make_model(0), problem.make_inputs(0))
    other, _ = eager(problem.make_model(0), problem.make_inputs(1))
    assert_same(again, first, 0.0)
    results, others = tensors(first), tensors(other)
    assert results and sum(t.numel() for t in tensors(problem.make_inputs(0))) < 100_000
    for tensor in results:
        values = tensor.double()
        assert values.isfinite().all()
        assert values.numel() < 2 or values.dtype == torch.bool or values.std() > 1e-4 * values.abs().max()
    assert any(a.numel() and not torch.equal(a, b) for a, b in zip(results, others, strict=True))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_stages(file):
    """Captured, rewritten and planned in both modes, the plan computes in float64 what the model does."""
    problem = load_problem(file, device="cpu", tiny=True)
    inputs = problem.make_inputs(0)
    for training in (True, False):
        model = problem.make_model(0).train(training)
        try:
            graph = capture(model, inputs, file=str(file))
        except NotCapturable:
            assert name_of(file) in LEFT_AS_IS
            continue
        assert name_of(file) not in LEFT_AS_IS
        plan = make_plan(rewrite(graph, H200).graph, graph)
        wide, exact = copy.deepcopy(model).double(), pytree.tree_map_only(torch.Tensor, _widened, inputs)
        try:
            expected, buffers = eager(wide, exact)
        except RuntimeError:  # written for one type: held against the model as it is
            expected, buffers = eager(model, inputs)
        torch.manual_seed(0)
        with torch.no_grad():
            found, after = run_plan(plan, values_of(model, graph, inputs))
        narrow = any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors([expected, model.state_dict()]))
        assert_same(filled(graph.structure, found), expected, 5e-2 if narrow else 1e-4)
        for name, value in buffers.items():
            assert_same(after[name], value, 1e-4, name)


def _widened(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


#: One of each family, drawn anew where the collection changes.
CHOSEN = [random.Random(f"{family} {len(FILES)}").choice([f for f in FILES if f.parent.name == family])
          for family in ("algebra", "blocks", "structure", "views")]


@pytest.mark.parametrize("file", CHOSEN, ids=name_of)
def test_optimize(file, tmp_path):
    """A few go the whole way, kernels included."""
    _optimized(file, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(MORE == 1, reason="half an hour of compiling: set KERNELWRIGHT_EXAMPLES=2 to have it")
@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_optimize_all(file, tmp_path):
    """All of them go the whole way."""
    _optimized(file, tmp_path)


def _optimized(file: Path, folder: Path) -> None:
    result = optimize(file, target="cpp", tiny=True, effort="quick", output=folder / "candidate.py")
    assert result.path is not None and result.path.exists()
    for mode in result.modes:
        assert mode.certificate is None or mode.certificate.passed
        assert mode.certificate is not None or not mode.kernels


def test_table():
    """README.md names every problem in its table, with the file's own line."""
    lines = [f"| `{name_of(f)}.py` | {ast.get_docstring(ast.parse(f.read_text()))} |" for f in FILES]
    table = re.findall(r"^\| `.*$", (PROBLEMS / "README.md").read_text(), flags=re.MULTILINE)
    assert table == lines, "replace the table in problems/README.md by:\n" + "\n".join(lines)
