"""Faults put into every stage: a file comes out all the same, it is right, and notes name the rule or the kernel."""

from __future__ import annotations

import dataclasses
import inspect
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from emitted_tools import import_path, write_problem
from native_tools import other_skeletons

import kernelwright
from kernelwright import modes, pipeline, programs, selection, truths, tuned, verified
from kernelwright.algebra import engine
from kernelwright.codegen import generate
from kernelwright.codegen.target import Target
from kernelwright.emit.file import emit_file
from kernelwright.failures import FAILED
from kernelwright.ir.node import constant, make
from kernelwright.plan.kernels import Scan
from kernelwright.verify.certificate import default_trials
from kernelwright.way_back import culprits
from kernelwright.way_back.culprits import at_fault

pytestmark = pytest.mark.breaks

COLLAPSE = "sum of a convolution"


MODEL = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(4, 6, 3)
            self.norm = nn.LayerNorm(20)

        def forward(self, x):
            summed = self.conv(x).sum(2)
            normal = torch.tanh(self.norm(x)) * 2
            scanned = x.cumsum(2) * 0.5
            return torch.sigmoid(summed) + 1, normal, scanned, (x * x).sum(1) + 1

    def get_inputs():
        return [torch.randn(3, 4, 20)]
"""


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """What optimize gives, where whatever does not fail is kept, and few trials are run; the file is right."""
    monkeypatch.setattr(engine, "_GAIN", 1e9)  # rules apply whether they pay or not
    monkeypatch.setattr(selection, "_timed", lambda *_, **__: ({}, {}))
    monkeypatch.setattr(truths, "default_trials", lambda seed: default_trials(seed)[:3])

    path = write_problem(tmp_path, "model", MODEL)

    def optimized(target: str = "cpp") -> Any:
        found = kernelwright.optimize(path, target=target, effort="quick", budget=900, baselines="none")
        if target == "cuda":
            assert any("Checked by emulation" in note for note in found.notes)
            return found
        assert found.path.exists() and found.certificate.passed
        original, written = import_path(path), import_path(found.path)
        (given,), state = original.get_inputs(), original.Model().state_dict()
        outputs = []
        for model in (original.Model(), written.ModelNew()):
            model.load_state_dict(state)
            with torch.no_grad():
                outputs.append(model(given))
        torch.testing.assert_close(*outputs)
        return found

    return optimized


def kernels(result: Any) -> set[str]:
    """What the kernels of all modes are of."""
    return {o.split(" ")[0] for mode in result.modes for kernel in mode.kernels for o in kernel.covers}


def test_without_a_fault(result):
    found = result()
    assert {"region_sum", "layer_norm", "cumsum", "tanh", "sigmoid", "mul"} <= kernels(found) and not found.notes
    assert COLLAPSE in {rule.name for mode in found.modes for rule in mode.rules}


def spoiled(change: Callable[[Any], Any]) -> dict[str, Any]:
    """The table of rules, with another replacement by the collapse."""
    def other(rule: Any) -> Any:
        return dataclasses.replace(rule, rewrite=lambda node, context: change(rule.rewrite(node, context)))

    return {op: tuple(other(r) if r.name == COLLAPSE else r for r in rules) for op, rules in engine._BY_ROOT.items()}


def test_a_rule(result, monkeypatch):
    """It goes at its line; the others, and all kernels, stay."""
    monkeypatch.setattr(engine, "_BY_ROOT", spoiled(lambda node: node and make("mul", node, constant(1.01))))
    found = result()
    note, *others = (n for n in found.notes if " is planned without " in n)
    assert [n.partition(" ")[2] for n in others] == [note.partition(" ")[2]]  # of the other mode
    lines = (found.path.parent / "model.py").read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "self.conv(x).sum(2)" in text)
    assert f"without the rule {COLLAPSE} (line {line})," in note and "output[0]" in note
    assert {"layer_norm", "cumsum", "tanh", "sigmoid"} <= kernels(found) and "region_sum" not in kernels(found)


def calls(body: str) -> dict[str, Target]:
    """The table of targets, with scans whose text is called from ``body``."""
    def wrapped(skeleton: Any) -> Any:
        def written(kernel: Any, name: str) -> Any:
            source = skeleton(kernel, name)
            head = re.search(rf"static const char\* {name}\(([^)]*)\)", source.definition)
            arguments = re.findall(r"(\w+)(?=,|$)", head[1])
            out = [a for a in arguments if a not in ("workspace", "stream")][-1]
            text = re.sub(rf"\b{name}\(", f"{name}_right(", source.definition)
            text += f"\nstatic const char* {name}({head[1]}) {{\n    {body}\n}}\n"
            return dataclasses.replace(source, definition=text.replace("RIGHT", f"{name}_right({', '.join(arguments)})")
                                       .replace("OUT", out))

        return written

    return other_skeletons(wrapped, Scan)


@pytest.mark.parametrize(("target", "body", "words"), [
    ("cpp", "const char* failure = RIGHT; OUT[7] *= 1.001f; return failure;", "1 of 240 elements"),
    ("cpp", 'return "no memory is left";', "it raises no memory is left"),
    ("cpp", "return nullptr;", "other bits on other memory"),
    ("cuda", "const char* failure = RIGHT; OUT[7] *= 1.001f; return failure;", "1 of 160 elements"),
], ids=["wrong", "raises", "writes nothing", "wrong under the emulation"])
def test_a_kernel(result, monkeypatch, target, body, words):
    """It alone goes, found by itself."""
    if target == "cuda" and torch.cuda.is_available():
        pytest.skip("for machines without a GPU")
    monkeypatch.setattr(generate, "TARGETS", calls(body))
    found = result(target)
    note, *others = (n for n in found.notes if " is planned without " in n)
    assert [n.partition(" ")[2] for n in others] == [note.partition(" ")[2]]  # of the other mode
    assert re.search(r"without the kernel k\d_cumsum\w*,", note) and words in note, note
    assert {"region_sum", "layer_norm", "tanh", "sigmoid"} <= kernels(found) and "cumsum" not in kernels(found)
    assert all(k.reason.startswith(verified.REFUSED) for mode in found.modes for k in mode.kept
               if k.operator == "cumsum")


def emission(change: Callable[[str], str]) -> Callable[..., str]:
    """``emit_file`` with another text, where one of the kernels is a scan."""
    def emitted(*arguments: Any, **options: Any) -> str:
        text = emit_file(*arguments, **options)
        return change(text) if re.search(r"\bk\d+_cumsum", text) else text

    return emitted


def _raises(text: str) -> str:
    raise KeyError("injected")


@pytest.mark.parametrize(("change", "left"), [
    (lambda text: text + "\n(a,\n b) =\n", True), (_raises, True), (lambda text: text + "\nno_such_name\n", False)],
    ids=["no Python", "no text", "no module"])
def test_a_file(result, monkeypatch, change, left):
    """Kernels with which no file can be made are found by halves; where a file can't be imported all go."""
    monkeypatch.setattr(programs, "emit_file", emission(change))
    found = result()
    assert any(FAILED in note and "traceback in" in note for note in found.notes)
    assert (kernels(found) >= {"region_sum", "layer_norm", "tanh"}) == left and "cumsum" not in kernels(found)


def test_a_file_that_spoils_the_original(result, monkeypatch):
    """Where the mode that has no kernels fails, the kernels of the others go, too."""
    understand, certify_both = pipeline.understand, verified.certify_both

    def understood(*arguments: Any, **named: Any) -> Any:
        (first, *_), notes = understand(*arguments, **named)
        return [first, modes.unknown("other", first.model)], notes

    def certified(make_model: Any, make_candidate: Any, *rest: Any, plan: Any, **named: Any) -> Any:
        found = certify_both(make_model, make_candidate, *rest, plan=plan, **named)
        spoils = plan.unchanged and "_KERNELWRIGHT" in inspect.getsource(inspect.getmodule(type(make_candidate())))
        return dataclasses.replace(found, passed=False, why=("It is another result.",)) if spoils else found

    monkeypatch.setattr(pipeline, "understand", understood)
    monkeypatch.setattr(verified, "certify_both", certified)
    found = result()
    assert not kernels(found) and any("another result" in note for note in found.notes)


timed = selection._timed
STAGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def stage(fault: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    STAGES[fault.__name__] = fault
    return fault


def _fails(*_: Any, **__: Any) -> Any:
    raise KeyError("injected")


@stage
def tuning(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tuned, "losing_regions", _fails)


@stage
def layouts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tuned.layouts, "convolution_seconds", _fails)


@stage
def timing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(selection, "_timed", timed)
    patch.setattr(selection, "time_model", _fails)


@stage
def verifying(patch: pytest.MonkeyPatch) -> None:
    certify_both = verified.certify_both
    patch.setattr(verified, "certify_both", lambda *rest, plan, **named: certify_both(*rest, plan=plan, **named)
                  if plan.unchanged else _fails())


@pytest.mark.parametrize("fault", STAGES)
def test_a_stage(result, monkeypatch, fault):
    """Tuning that fails changes nothing; what can't be checked or timed is PyTorch's."""
    STAGES[fault](monkeypatch)
    found = result()
    reasons = (*found.notes, *(k.reason for mode in found.modes for k in mode.kept))
    assert any("injected" in reason for reason in reasons), reasons
    assert bool(kernels(found)) == (fault in ("tuning", "layouts"))


def test_a_search_that_fails(result, monkeypatch):
    """Then the least exact goes, step by step."""
    monkeypatch.setattr(generate, "TARGETS", calls("return nullptr;"))
    monkeypatch.setattr(culprits, "generate", _fails)
    found = result()
    assert any("without the rules" in note for note in found.notes)
    assert "cumsum" not in kernels(found) and {"tanh", "sigmoid"} <= kernels(found)


def _cases() -> Iterator[tuple[int, set[int]]]:
    r = random.Random(0)
    for size in (1, 2, 3, 10, 100, 1000):
        for count in range(min(4, size) + 1):
            yield size, set(r.sample(range(size), count))


@pytest.mark.parametrize(("size", "wrong"), list(_cases()))
def test_by_halves(size, wrong):
    """Exactly the wrong ones, in a logarithm of their number of questions for each."""
    asked: list[int] = []

    def fails(kept: Any) -> bool:
        asked.append(len(kept))
        return bool(wrong & set(kept))

    assert set(at_fault(range(size), fails, math.inf)) == wrong
    assert len(asked) <= 2 + len(wrong) * (2 + math.ceil(math.log2(size)))


def test_by_halves_where_time_is_over_or_all_are_wrong():
    assert set(at_fault(range(64), lambda kept: 5 in kept, -math.inf)) == set(range(64))
    assert set(at_fault(range(64), lambda kept: True, math.inf)) == set(range(64))  # it is none of them
    assert set(at_fault(range(64), bool, math.inf)) == set(range(64))  # more than are looked for one by one
