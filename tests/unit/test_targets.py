"""Who wants to know something of a target asks the target (:class:`kernelwright.codegen.target.Target`), and never
which one it is: a comparison with a target's name, or such a name that is handed on, is refused outside of its folder.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from places import ROOT

from kernelwright.codegen.device_kind import device_kind
from kernelwright.codegen.generate import TARGETS, NoSkeleton, generate_kernel, has_skeleton, writer_of
from kernelwright.errors import InvalidOption
from kernelwright.fuzz.product import row_of
from kernelwright.judge.settings import JudgeSettings
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.kernels import LoopKernel, RegionSum
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.settings import ENVIRONMENT, HOST_TARGET, TARGET_NAMES, Settings
from kernelwright.suite import devices
from kernelwright.suite.options import SuiteOptions

PACKAGE = ROOT / "kernelwright"
#: Where a name is asked for all the same, and why.
ALLOWED = {
    "settings.py": "what auto is without a device, said once for those that never import PyTorch",
    "roofline/devices.py": "the kinds of devices, of which rows of figures say what is asked of them",
    "dynamo/served.py": "the type of the device that a graph's tensors are on",
    "propose/analysis.py": "the language that a model is asked for, by the type of PyTorch's device",
    "propose/prompt.py": "the word for C++ at the head of a block of text",
    "judge/clock/figures.py": "clocks of PyTorch's devices, by their type",
    "judge/clock/inner.py": "clocks of PyTorch's devices, by their type",
    "judge/clock/outer.py": "clocks of PyTorch's devices, by their type",
    "judge/inside/recorder.py": "a candidate that asks for PyTorch's device of that name is recorded on the CPU",
}
#: A name of one letter is a letter elsewhere.
_NAMES = {name for name in TARGET_NAMES if len(name) > 1}


def _is_name(node: ast.AST) -> bool:
    """Whether an expression is a target's name, or a choice of nothing else."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return bool(node.elts) and all(isinstance(e, ast.Constant) and e.value in (*TARGET_NAMES, "auto", "cpu")
                                       for e in node.elts) and any(map(_is_name, node.elts))
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _NAMES


def _of_torch(node: ast.AST) -> bool:
    """Whether an expression is the type of a device of PyTorch's, whose clock, memory or streams are asked for."""
    return isinstance(node, ast.Attribute) and node.attr == "type"


def _makes_device(call: ast.Call) -> bool:
    return ast.unparse(call.func) == "torch.device"


def asks(tree: ast.AST) -> Iterator[int]:
    """The lines at which a target is asked for by its name, or handed on by it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            of_target = "target" in ast.unparse(node.left) and any(
                isinstance(s, ast.Constant) and s.value in TARGET_NAMES for s in sides)
            if of_target or (any(map(_is_name, sides)) and not any(map(_of_torch, sides))):
                yield node.lineno
        elif isinstance(node, ast.Call) and not _makes_device(node):
            if any(_is_name(a) for a in (*node.args, *(k.value for k in node.keywords if k.arg != "kind"))):
                yield node.lineno
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            yield from (d.lineno for d in defaults if d is not None and _is_name(d))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and _is_name(node.value):
            yield node.lineno
        elif isinstance(node, ast.Match):
            yield from (c.pattern.value.lineno for c in node.cases
                        if isinstance(c.pattern, ast.MatchValue) and _is_name(c.pattern.value))


def _found() -> dict[str, list[int]]:
    """Lines by modules, but those of the targets' own folders."""
    own = tuple(f"codegen/{name}/" for name in TARGET_NAMES)
    modules = {m.relative_to(PACKAGE).as_posix(): m for m in PACKAGE.rglob("*.py")}
    lines = {path: sorted(asks(ast.parse(m.read_text()))) for path, m in modules.items() if not path.startswith(own)}
    return {path: at for path, at in lines.items() if at}


def test_nobody_asks_by_name():
    """What is to be known of a target becomes a field of it, or a property."""
    found = _found()
    assert {path: lines for path, lines in found.items() if path not in ALLOWED} == {}
    assert set(ALLOWED) - set(found) == set(), "nobody asks there any more"


@pytest.mark.parametrize("text", [
    'if target == "cuda": pass', 'x = "cpp" if device.kind != "cuda" else y',
    'generate_kernel(kernel, "kernel", "cuda")', 'def f(target="cpp"): pass',
    'CHOICES = ("cpp", "cuda")', 'ok = name in ("auto", "cpp")', 'one = target == "c"',
    'make(target="cuda")', 'match target:\n    case "cpp":\n        pass',
])
def test_asks_are_found(text):
    assert list(asks(ast.parse(text)))


@pytest.mark.parametrize("text", [
    'if device.type == "cuda": pass', 'place = torch.device("cuda", 0)', 'scope = Scope("c")', 'x = letters == "c"',
    'texts = {"cpp": [], "cuda": []}', 'call["cuda"]', 'TARGETS[target].on_host', 'ok = device.type in ("cpu", "cuda")',
])
def test_other_words_are_none(text):
    assert not list(asks(ast.parse(text)))


def test_kinds_of_devices_are_known_without_pytorch():
    assert {name: device_kind(name) for name in TARGET_NAMES} == {name: t.device for name, t in TARGETS.items()}
    assert not device_kind("auto") and TARGETS[HOST_TARGET].on_host
    code = "import sys; from kernelwright.suite import devices; devices.device_kind('cuda'); " \
           "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_compilers_are_named_by_variables_of_ours():
    """Which the README lists."""
    assert {t.compiler[0] for t in TARGETS.values()} <= {variable.name for variable in ENVIRONMENT}


def test_what_a_target_lacks():
    assert writer_of(Contraction).name == "cuda" and writer_of(LoopKernel).name in TARGET_NAMES
    assert not has_skeleton(RegionSum, "c")
    with pytest.raises(LookupError, match="int"):
        writer_of(int)
    with pytest.raises(NoSkeleton, match="the target c writes no kernels of the kind RegionSum"):
        generate_kernel(RegionSum((2, 3), (None, None), 1.0, "float64", "float32"), "kernel", "c")


def test_processors_are_counted_in_one_place():
    """What an emitted file counts stands in its own text."""
    counts = {m.relative_to(PACKAGE).as_posix() for m in PACKAGE.rglob("*.py")
              for node in ast.walk(ast.parse(m.read_text()))
              if isinstance(node, ast.Attribute) and node.attr in ("sched_getaffinity", "cpu_count")}
    assert counts == {"processors.py"}


@pytest.mark.parametrize("target", ["c", "cpp"])
def test_targets_of_the_host_run_there(target, monkeypatch):
    """In the suite and before the judge, on machines with GPUs, too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "visible_gpus", lambda: pytest.fail("GPUs are asked for"))
    assert [q.name for q in devices.find_queues(SuiteOptions(settings=Settings(target=target)))] == ["cpu"]
    assert JudgeSettings(target=target).place() == torch.device("cpu")
    with pytest.raises(InvalidOption) as raised:
        JudgeSettings(target=target, device=0)
    assert f"not with --target {target}" in raised.value.render()
    assert row_of(target) is GENERIC_CPU and row_of("cuda").kind == "cuda"
