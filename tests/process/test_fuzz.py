"""The fuzzer: its models are legal, the same everywhere and of every kind; it finds what is wrong; nothing is."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
import torch
from clocks import PATIENCE
from places import ROOT
from schemas import assert_fits
from torch import nn

from kernelwright import programs
from kernelwright.algebra import engine
from kernelwright.capture.export import capture
from kernelwright.codegen.reference.plan import values_of
from kernelwright.errors import InvalidOption
from kernelwright.fuzz import oracles, runner
from kernelwright.fuzz.command import _document as document_of
from kernelwright.fuzz.command import fuzz
from kernelwright.fuzz.draw import Draw, Refused
from kernelwright.fuzz.generate import begin, generate
from kernelwright.fuzz.judge import Disagreement, disagreement, evaluated, narrowest
from kernelwright.fuzz.oracles import Outcome
from kernelwright.fuzz.productions import PRODUCTIONS
from kernelwright.fuzz.runner import Worker, run
from kernelwright.fuzz.shrink import shapes, shrink
from kernelwright.fuzz.sketch import Sketch, Statement
from kernelwright.ir.registry import OPERATORS
from kernelwright.progress import Progress

#: Operators that rules and lowering make, that PyTorch composes of others, and plain attributes.
MADE_LATER = {"adaptive_places", "again", "attention", "attribute", "batched_product", "between", "border_places",
              "channel_energy", "class_entry", "class_weight", "contiguous", "contract", "copy", "cubic_place",
              "cubic_weight", "detached", "fold_places", "lookup", "multiply_add", "nearest_places", "places",
              "recurrence", "region_sum", "reordered", "softsign", "window_counts", "windows"}


#: Their models are not captured where another view shares the memory.
CHANGES_IN_PLACE = {"in place", "in place on an input", "buffer", "line: {x}.clone().detach_()"}


def run_eagerly(text: str) -> None:
    space: dict = {}
    exec(text, space)
    for training in (True, False):
        model = space["Model"](*space["get_init_inputs"]()).train(training)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(*space["get_inputs"]())


class Here:
    """Checks in this process, so that tests can break things."""

    def check(self, text: str, level: str, target: str, seed: int) -> Outcome:
        return oracles.check(text, level, target, seed)


# The generator -----------------------------------------------------------------------------------


def test_a_seed_gives_the_same_file_in_every_process():
    program = "import hashlib; from kernelwright.fuzz.generate import generate\n" \
              "print(hashlib.sha256(''.join(generate(s).text() for s in range(0, 4000, 331)).encode()).hexdigest())"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                           env={**os.environ, "PYTHONHASHSEED": "77"})
    torch.manual_seed(5)
    own = hashlib.sha256("".join(generate(s).text() for s in range(0, 4000, 331)).encode()).hexdigest()
    assert other.stdout.strip() == own


def test_every_model_runs_in_eager():
    for seed in range(0, 5000, 101):
        run_eagerly(generate(seed).text())


def test_models_differ_and_few_are_tiny():
    sketches = [generate(seed) for seed in range(7000, 7060)]
    assert len({s.text() for s in sketches}) == len(sketches)
    assert sum(len(s.statements) >= 3 for s in sketches) > 40
    assert {s.form for s in sketches} >= {"one", "tuple", "list", "dict"}


@pytest.mark.parametrize("word", ["transpose", "channels_last", "expand", "float64", "bfloat16", "register_buffer"])
def test_what_is_rare_is_drawn(word):
    assert any(word in generate(seed).text() for seed in range(7000, 7600))


@functools.lru_cache(maxsize=1)
def everything(turn: int) -> tuple[list[Sketch], set[str]]:
    """Models that hold every production side by side, and the productions that never fit."""
    names = [n for n in sorted(PRODUCTIONS) if n not in CHANGES_IN_PLACE]
    sketches, left = [], set(names)
    for start in range(0, len(names), 60):
        draw = Draw(f"{turn} {start}", torch.float32)
        for name in names[start:start + 60]:
            for _ in range(60):  # until there is a value that it fits
                begin(draw, PRODUCTIONS[name])
                if 0 in draw.values[-1].shape:
                    continue
                try:
                    PRODUCTIONS[name].add(draw, draw.values[-1])
                except (Refused, ValueError, IndexError):
                    continue
                left.discard(name)
                break
        made = tuple(n for s in draw.statements for n in s.results)
        sketches.append(Sketch("Everything.", tuple(draw.inputs), tuple(draw.members), tuple(draw.statements), made,
                               "list", tuple(draw.definitions)).pruned())
    return sketches, left


def test_every_production_makes_lines_that_run():
    sketches, left = everything(0)
    assert left == set()
    for sketch in sketches[::2]:
        run_eagerly(sketch.text())


def of_other_forms(sketch: Sketch, seen: set[str]) -> Sketch:
    """The model with those lines alone that differ from seen ones by more than numbers, and what they need."""
    members, results = dict(sketch.members), []
    for statement in sketch.statements:
        text = re.sub(r"self\.\w+", lambda found: members.get(found[0], found[0]), statement.text)
        form = re.sub(r"\d+", "0", text)
        if form not in seen:
            seen.add(form)
            results += statement.results
    return replace(sketch, returns=tuple(results)).pruned()


def test_every_operator_is_drawn():
    """What the table of operators declares is captured from some model."""
    missing, seen = set(OPERATORS) - MADE_LATER, (set[str](), set[str]())
    for turn in range(12):  # some come of one line among several that a production draws from
        training = turn % 2 == 0
        for sketch in everything(turn)[0]:
            sketch = of_other_forms(sketch, seen[training])
            if not sketch.returns:
                continue
            space: dict = {"__name__": "random_model"}  # a module's functions are read, Python's own are not
            exec(sketch.text(), space)
            missing -= {n.op for n in capture(space["Model"]().train(training), space["get_inputs"]()).nodes()}
        if not missing:
            break
    assert missing == set()


# The oracles and the shrinker ----------------------------------------------------------------------


def test_a_wrong_rule_is_found_and_shrunk(monkeypatch, tmp_path):
    """A rule that drops a bound of a clamp: found in some random model, and cut to a few lines."""
    def wrong(node, context):
        return node.inputs[0] if node.op == "clamp_max" else None

    broken = replace(engine.RULES[0], name="wrong", roots=("clamp_max",), rewrite=wrong)
    monkeypatch.setitem(engine._BY_ROOT, "clamp_max", (broken,))
    seeds = (s for s in range(30, 600) if any(name in generate(s).text() for name in ("torch.clamp(", "clamp_max(")))
    reports = (run([seed], level="graph", target="cpp", output=tmp_path, worker=Here()) for seed in seeds)
    smallest = next(finding for report in reports for finding in report.findings)
    assert (smallest.outcome.stage, smallest.outcome.kind) == ("rewrite", "value")
    assert "wrong" in smallest.outcome.message and len(smallest.sketch.statements) <= 2
    assert oracles.check(smallest.file.read_text(), "graph", "cpp", smallest.seed).status == "wrong"
    monkeypatch.undo()
    assert oracles.check(smallest.file.read_text(), "graph", "cpp", smallest.seed).status == "clean"


_SIGMOID = Sketch("Sigmoid.", (("x1", "torch.randn(4, 6, 16)"), ("x2", "torch.randn(6, 1).expand(6, 16)")), (), (
    Statement(("v1",), "x1 * x2"), Statement(("v2",), "torch.sigmoid(v1)"), Statement(("v3",), "v2 + x2"),
    Statement(("v4",), "F.relu(v3)")), ("v4", "v1"), "tuple")


def test_a_wrong_kernel_is_found_and_shrunk(monkeypatch, tmp_path):
    """The text of a function on the CPU: the product gives its kernel up, and the fuzzer says that it was wrong."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    assert oracles.check(_SIGMOID.text(), "kernels", "cpp").status == "clean"
    emit_file = programs.emit_file

    def spoiled(*arguments, **options):
        return emit_file(*arguments, **options).replace("= kw_sigmoid(", "= real(0.001) + kw_sigmoid(")

    monkeypatch.setattr(programs, "emit_file", spoiled)
    outcome = oracles.check(_SIGMOID.text(), "kernels", "cpp")
    assert (outcome.status, outcome.stage, outcome.kind) == ("wrong", "verify", "value"), outcome
    small = shrink(_SIGMOID, lambda s: "sigmoid" in s.text() and oracles.check(
        s.text(), "kernels", "cpp").status == "wrong", seconds=300)
    assert len(small.statements) <= 2 and len(small.text()) < len(_SIGMOID.text())


def test_the_shrinker_reduces_lines_shapes_and_attributes():
    sketch = replace(generate(0), inputs=(("x1", "(torch.randn(4, 8, 12, 6) * 4).transpose(1, 2)"),), members=(
        ("self.m1", "nn.Conv2d(12, 6, (3, 2), stride=2, padding=1, bias=False)"), ("self.m2", "nn.ReLU()")),
        statements=(Statement(("v1",), "self.m2(x1)"), Statement(("v2",), "self.m1(v1)"),
                    Statement(("v3",), "torch.softmax(v2, dim=1)"), Statement((), "v3.mul_(2)")), returns=("v3", "v2"),
        form="dict")
    assert shapes(sketch) is not None
    small = shrink(sketch, lambda s: "nn.Conv2d" in s.text() and "self.m1(" in s.text())
    assert len(small.statements) == 1 and small.returns == tuple(small.statements[0].results) and small.form == "one"
    assert "stride" not in small.text() and "transpose" not in small.text()
    assert shapes(small)["x1"].numel() <= 4


def test_rounding_is_no_finding():
    """What honest rounding decides is not held against a result: signs of rounding errors, noise made large."""
    lines = ("v1 = x1 * 0.1 + x1 * 0.2 - x1 * 0.3", "v2 = torch.sign(v1.mean(1))", "v3 = F.layer_norm(v1, (16,))")
    sketch = Sketch("Noise.", (("x1", "torch.randn(8, 16)"),), (), tuple(
        Statement((line.split(" = ")[0],), line.split(" = ")[1]) for line in lines), ("v2", "v3"), "tuple")
    assert oracles.check(sketch.text(), "graph").status == "clean"
    # PyTorch rounds a mean to float16, beside which two values lie that differ in few digits.
    lines = ("v1 = torch.stack([x1, x1 + 0.01])", "v2 = self.m1(v1)", "v3 = v2.mean(0)")
    sketch = Sketch("Noise.", (("x1", "torch.rand(40, dtype=torch.float16) + 4"),), (
        ("self.m1", "nn.BatchNorm1d(40, track_running_stats=False).to(torch.float16)"),), tuple(
        Statement((line.split(" = ")[0],), line.split(" = ")[1]) for line in lines), ("v3",), "one")
    assert oracles.check(sketch.text(), "graph").status == "clean"


_PADDED = '''
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.window = nn.Conv3d(1, 6, (1, 3, 1), padding=(0, 1, 0)).to(torch.bfloat16)

    def forward(self, x):
        return self.window(x)

def get_inputs():
    return [torch.randn(2, 1, 4, 7, 8, dtype=torch.bfloat16)]

def get_init_inputs():
    return []
'''


def test_nan_that_a_library_spreads_is_no_finding():
    """A library may pad 16-bit channels by zeros of its own: NaN times zero is NaN beside the sums that have it."""
    assert oracles.check(_PADDED, "graph", "cpp", 770633).status == "clean"


class Powers(torch.nn.Module):
    def forward(self, x):
        return torch.pow(x.abs() + 0.5, x)


def test_overflow_of_a_narrow_type_is_no_finding():
    """Eager has Inf where float16 does, float64 does not; the elements beside are judged as ever."""
    x = torch.linspace(3, 19, 16).half()
    graph = capture(Powers(), [x])
    values = values_of(Powers(), graph, [x])
    expected, found = evaluated(graph, values), Powers()(x)
    assert bool(expected[0].isfinite().all()) and 0 < int(found.isinf().sum()) < 16
    noise = narrowest(graph)
    assert disagreement([found], graph, values, expected, noise) is None
    spoiled = {n: found.clone().index_fill_(0, torch.tensor([n]), value * float(found[n])) for n, value in
               ((2, 2.0), (1, inf))}
    for other, kind in ((spoiled[2], "value"), (spoiled[1], "place"), (torch.full_like(found, inf), "place"),
                        (found[:8], "shape")):
        assert disagreement([other], graph, values, expected, noise).kind == kind


class Quotients(torch.nn.Module):
    """Infinities that arise on the way, of which an activation makes numbers."""

    def forward(self, x):
        return torch.relu(x[:, 1] / x[:, 0] - x[:, 2])


def test_what_depends_on_infinities_may_trade_places():
    """Where products were exchanged, Inf may be NaN, and what follows from it; a NaN of the inputs stays one."""
    x = torch.tensor([[1.0, 2.0, 1.0], [0.0, -1.0, 1.0], [0.0, 1.0, inf], [2.0, nan, 1.0], [1.0, 1.0, 5.0]])
    graph = capture(Quotients(), [x])
    values = values_of(Quotients(), graph, [x])
    expected = evaluated(graph, values)
    assert expected[0].isnan().tolist() == [False, False, True, True, False]
    for place, other in ((1, nan), (2, 0.0)):
        found = expected[0].clone()
        found[place] = other
        assert disagreement([found], graph, values, expected, 2e-7, trade=True) is None
        assert disagreement([found], graph, values, expected, 2e-7).kind == "place"
    for place, other, kind in ((3, 0.0, "place"), (4, nan, "place"), (0, inf, "place"), (0, 1.5, "value")):
        found = expected[0].clone()
        found[place] = other
        assert disagreement([found], graph, values, expected, 2e-7, trade=True).kind == kind


_LINEAR = '''
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2).to(torch.bfloat16)

    def forward(self, x):
        return self.layer(x)

def get_inputs():
    return [torch.randn(4, 3, dtype=torch.bfloat16)]

def get_init_inputs():
    return []
'''


@pytest.mark.parametrize(("wrong", "status"), [((True,), "unclear"), ((True, False), "wrong"), ((), "clean")])
def test_what_a_library_gives_of_16_bits_accuses_no_graph(wrong, status, monkeypatch):
    """Where the graph is the model in float64, another result of eager's is none of the graph's."""

    def found_wrong(found, *_, **trade):
        asked_of_the_model = not trade
        return Disagreement("value", "moved") if asked_of_the_model and (found[0].dtype == torch.bfloat16) in wrong \
            else None

    monkeypatch.setattr(oracles, "disagreement", found_wrong)
    assert oracles.check(_LINEAR, "graph", "cpp", 3).status == status


class Lost(torch.nn.Module):
    """Too small for float16 on the way."""

    def forward(self, x):
        return (x * 1e-6) * 1e6


class One(torch.nn.Module):
    """One, in float16, to the power of what may be NaN."""

    def forward(self, x, y):
        return torch.pow(x + 1.0, y)


class Tail(torch.nn.Module):
    """Less than zero in float64, and zero in float32."""

    def forward(self, x):
        return torch.where(torch.nn.functional.gelu(x - 7) < 0, 1.0, x)


@pytest.mark.parametrize(("model", "inputs", "wrong"), [
    (Lost(), [torch.tensor([1e-3, 1.0]).half()], 1),
    (One(), [torch.tensor([1e-5, 0.5]).half(), torch.full((2,), nan).half()], 1),
    (Tail(), [torch.tensor([-0.5, 9.0])], 1),
    (nn.LayerNorm([1]).half(), [torch.tensor([[-0.4355], [9.0]]).half()], 1),
])
def test_what_a_type_makes_of_values_on_the_way_is_no_finding(model, inputs, wrong):
    graph = capture(model, inputs)
    values = values_of(model, graph, inputs)
    expected, found = evaluated(graph, values), model(*inputs)
    assert not torch.allclose(found.double(), expected[0].double(), equal_nan=True)
    noise = narrowest(graph)
    assert disagreement([found], graph, values, expected, noise) is None
    spoiled = found.clone()
    spoiled[wrong] = 1.5
    assert disagreement([spoiled], graph, values, expected, noise) is not None


_BY_TYPE = '''
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * (2.0 if torch.get_default_dtype() is torch.float32 else 3.0)

def get_inputs():
    return [torch.randn(4, 3)]

def get_init_inputs():
    return []
'''


class Rows(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def forward(self, x):
        return (x * 2).reshape(self.shape)


def test_another_shape_is_told():
    found = oracles._unexplained(Rows((2, 6)), Rows((3, 4)), [torch.ones(12)], False)
    assert found.kind == "shape" and "(3, 4), in eager (2, 6)" in found.words


def test_what_eager_is_not_in_float64_is_unclear_unless_kernels_are_not_it_either(monkeypatch):
    outcome = oracles.check(_BY_TYPE, "kernels")
    assert (outcome.status, outcome.stage) == ("unclear", "verify"), outcome
    assert "something else than the model in float64" in outcome.message
    monkeypatch.setattr(oracles, "new_model", lambda *given: Negated(programs.new_model(*given)))
    outcome = oracles.check(_BY_TYPE, "kernels")
    assert (outcome.status, outcome.stage) == ("wrong", "verify"), outcome


class Negated(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        return -self.model(*inputs)


def test_a_crash_costs_one_model():
    good = generate(3).text()
    crash = good.replace("def get_inputs():\n", "def get_inputs():\n    import os, signal\n"
                         "    os.kill(os.getpid(), signal.SIGSEGV)\n")
    with Worker() as worker:
        assert worker.check(good, "graph", "cpp", 0).status == "clean"
        for level in ("graph", "eager"):
            outcome = worker.check(crash, level, "cpp", 0)
            assert (outcome.status, outcome.kind) == ("wrong", "crash") and "-11" in outcome.message
        assert worker.check(good, "graph", "cpp", 0).status == "clean"


@pytest.mark.parametrize(("level", "status"), [("kernels", "wrong"), ("eager", "refused")])
def test_a_crash_of_pytorch_is_none_of_ours(level: str, status: str):
    class Crashing:
        def check(self, text: str, asked: str, target: str, seed: int) -> Outcome:
            if asked not in ("kernels", level):
                return Outcome("clean")
            return Outcome("wrong", asked, "crash", "the process ended with status -11")

    report = run([3], level="kernels", target="cpp", worker=Crashing())
    assert [f.outcome.status for f in report.findings] == (["wrong"] if status == "wrong" else [])
    assert list(report.refused) == ([3] if status == "refused" else [])


def before_inputs(lines: str) -> str:
    return generate(3).text().replace("def get_inputs():\n", f"def get_inputs():\n    import subprocess, sys, time\n"
                                                             f"    {lines}\n")


@pytest.mark.parametrize("line", ["time.sleep(600)", "subprocess.run([sys.executable, '-c', 'while True: pass'])"])
def test_a_hang_is_found(line):
    with Worker(limit_seconds=6.0) as worker:
        outcome = worker.check(before_inputs(line), "graph", "cpp", 0)
    assert (outcome.status, outcome.kind) == ("wrong", "hang")


def test_a_worker_that_gets_no_processor_does_not_hang(monkeypatch):
    """As a busy machine has it: what could run uses no time."""
    monkeypatch.setattr(runner, "state", lambda process: "R")
    monkeypatch.setattr(runner, "processor_seconds", lambda processes: 0.0)
    with Worker(limit_seconds=0.1) as worker:
        assert worker.check(before_inputs("time.sleep(1.5)"), "graph", "cpp", 0).status == "clean"


@pytest.mark.parametrize("target", ["cpp", "cuda"])
def test_a_model_without_kernels_is_no_finding(target):
    sketch = Sketch("Nothing.", (("x1", "torch.randn(2, 3)"),), (), (), ("x1",), "one")
    assert oracles.check(sketch.text(), "kernels", target).status == "clean"


def test_a_file_that_does_not_run_is_refused():
    outcome = oracles.check("import torch\n\nraise ValueError\n", "graph")
    assert (outcome.status, outcome.stage) == ("refused", "model"), outcome
    text = generate(3).text().replace("        return ", "        raise KeyError('no')\n        return ")
    assert oracles.check(text, "graph").status == "refused"


def test_another_text_in_another_process_is_a_finding(monkeypatch):
    class Elsewhere(Here):
        def __init__(self, *_, **__): ...
        def __enter__(self):
            return self
        def __exit__(self, *_): ...
        def check(self, text, level, target, seed):
            return replace(super().check(text, "text", target, seed), text="other" if level == "text" else "one")

    monkeypatch.setattr(runner, "Worker", Elsewhere)
    report = run([3], level="kernels", target="cpp", worker=Elsewhere())
    assert [f.outcome.kind for f in report.findings] == ["text"]
    assert_fits(document_of(report, 3), "fuzz")


# The command ---------------------------------------------------------------------------------------


def test_command(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(generate(3).text())
    options = {"seed": 0, "count": None, "seconds": None, "level": "graph", "target": "cpp", "output": None,
               "progress": Progress()}
    text, document, well = fuzz(**{**options, "path": path})
    assert well and "clean" in text and document["status"] == "clean"
    assert_fits(document, "fuzz")
    text, document, well = fuzz(**{**options, "path": None, "count": 2})
    assert well and "2 random models" in text and document["models"] == 2
    assert_fits(document, "fuzz")
    with pytest.raises(InvalidOption):
        fuzz(**{**options, "path": None, "level": "deep"})


# The budget ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "target", "seeds"), [
    ("graph", "cpp", range(20_000, 20_060)), ("kernels", "cpp", range(30_000, 30_010)),
    ("kernels", "cuda", range(40_000, 40_003)), ("kernels", "c", range(50_000, 50_004)),
], ids=lambda value: str(value) if isinstance(value, str) else None)
def test_random_models_are_right(level, target, seeds):
    report = run(seeds, level=level, target=target, seconds=120)
    found = "\n".join(f"{f.outcome.stage} {f.outcome.kind}: {f.outcome.message}\n{f.sketch.text()}"
                      for f in report.findings)
    assert not report.findings, found
    assert report.models > 2 and len(report.refused) <= report.models // 10


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process that its parent has ended")
def test_a_worker_ends_with_the_process_that_started_it(tmp_path):
    """Also in the middle of a model that hangs, which nobody would end any more."""
    mark = tmp_path / "hangs"
    request = {"text": before_inputs(f"open({str(mark)!r}, 'w').close(); time.sleep(3000)"), "level": "graph",
               "target": "cpp", "seed": 0}
    program = ("import json, os, time\nfrom kernelwright.fuzz.runner import Worker\nprocess = Worker()._start()\n"
               f"process.stdin.write(json.dumps({request!r}) + '\\n')\nprocess.stdin.flush()\n"
               f"while not os.path.exists({str(mark)!r}):\n    time.sleep(0.05)\n"
               "print(process.pid, flush=True)\nos._exit(0)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT,
                          timeout=PATIENCE)
    until = time.monotonic() + PATIENCE
    place = Path(f"/proc/{int(done.stdout)}/cmdline")
    while place.exists() and place.read_bytes() and time.monotonic() < until:  # one that has ended has none
        time.sleep(0.05)
    assert time.monotonic() < until
