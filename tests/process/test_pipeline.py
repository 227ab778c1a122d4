"""``optimize`` and ``explain`` as a whole: what is written, returned, refused and left alone."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from emitted_tools import assert_like, assert_same_state, import_path, short_budgets, write_problem
from schemas import assert_fits
from torch import nn

import kernelwright
from kernelwright import emulated, errors, pipeline, programs, selection, training, truths, tuned, verified
from kernelwright.capture.batch import batch_independent
from kernelwright.capture.export import capture
from kernelwright.emit.write import is_as_written
from kernelwright.report import as_json, render_explanation, render_text
from kernelwright.roofline.devices import GENERIC_CPU

# The collapse wins on every machine, by far.
COLLAPSE = '''
    class Model(nn.Module):
        """A strided transposed convolution and its mean."""

        def __init__(self, channels):
            super().__init__()
            self.up = nn.ConvTranspose2d(16, channels, 3, stride=2, padding=1, output_padding=1)

        def forward(self, x):
            return torch.mean(self.up(x) * 0.5, dim=[2, 3])

    def get_inputs():
        return [torch.rand(4, 16, 32, 32)]

    def get_init_inputs():
        return [32]
'''


@pytest.fixture(scope="module", autouse=True)
def short_timing():
    """Timing budgets of a fraction of a second, and no compiled baseline: it is timed in tests of its own."""
    patch = pytest.MonkeyPatch()
    short_budgets(patch)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One run of ``optimize`` on COLLAPSE: the problem's path and the result."""
    path = write_problem(tmp_path_factory.mktemp("pipeline"), "collapse", COLLAPSE)
    return path, kernelwright.optimize(path, effort="quick", target="cpp")


def test_result_is_complete(done):
    path, result = done
    assert result.path == path.with_name("collapse_new.py") and result.path.read_text() == result.source
    assert (result.name, result.target) == ("collapse", "cpp") and result.device
    (mode,) = result.modes  # training and inference are the same program
    assert mode.replaced == mode.operators == 3 and not mode.kept
    assert mode.kernels[0].kind == "region sum" and mode.rules
    assert mode.after.operations < mode.before.operations / 10 and mode.floor_seconds > 0
    assert result.certificate is mode.certificate and result.certificate.passed
    ratio = result.timing.ratios["eager"]
    assert result.timing is mode.timing and (ratio.slower, ratio.faster) == ("eager", "candidate")
    assert ratio.pairs > 0 and ratio.low > 0
    assert {"load", "capture", "rewrite", "plan", "generate", "build", "verify", "time"} <= result.stages.keys()
    assert all(seconds >= 0 for seconds in result.stages.values())
    assert [p.name for p in path.parent.iterdir() if p.suffix == ".part"] == []


def test_result_as_json_and_text(done):
    _, result = done
    document = json.loads(json.dumps(as_json(result), allow_nan=False))
    assert document["source"] == result.source if "source" in document else document["schema"]
    assert_fits(document, "optimize")
    for text in (render_text(result), render_explanation(result)):
        assert "collapse" in text and "\x1b" not in text


def test_module_of_the_result(done):
    path, result = done
    original = import_path(path)
    torch.manual_seed(0)
    old, (x,) = original.Model(32), original.get_inputs()
    assert_same_state(result.module, old, 0.0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_like(result.module(x), old(x))


def test_an_existing_file_is_kept(done, tmp_path):
    """But for what a run of the same model wrote, to the last byte."""
    path, result = done
    assert is_as_written(result.path, path) and is_as_written(result.path, str(path))
    assert not is_as_written(result.path, tmp_path / "other.py")
    with pytest.raises(errors.OutputExists):
        kernelwright.optimize(torch.nn.ReLU(), inputs=(torch.ones(2),), output=result.path)
    text = result.path.read_text()
    assert text == result.source
    try:
        result.path.write_text(text + "# mine\n")
        assert not is_as_written(result.path, path)
        with pytest.raises(errors.OutputExists):
            kernelwright.optimize(path, effort="quick", target="cpp")
    finally:
        result.path.write_text(text)


def test_failures_write_nothing(done, tmp_path, monkeypatch):
    """A file that is wrong with kernels and without: an old file stays as it was."""
    path = write_problem(tmp_path, "collapse", COLLAPSE)
    out = tmp_path / "out.py"
    out.write_text("# old\n")
    emit_file = programs.emit_file

    def spoiled(*arguments, **options):
        text = emit_file(*arguments, **options)
        # Halve the results of kernels and of the original forward.
        return text.replace("return (", "return (0.5 * ", 1).replace("self.up(x) * 0.5", "self.up(x) * 0.25")

    monkeypatch.setattr(programs, "emit_file", spoiled)
    with pytest.raises(errors.VerificationFailed):
        kernelwright.optimize(path, output=out, force=True, effort="quick", target="cpp")
    assert out.read_text() == "# old\n"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == ["collapse.py", "out.py"]


def test_a_model_that_its_device_cannot_run_is_refused_as_that(tmp_path):
    """A trace does not see that PyTorch has no such kernel, and no kernel of ours runs the operator."""
    path = write_problem(tmp_path, "distances", """
        class Model(torch.nn.Module):
            def forward(self, x):
                return torch.cdist(x, x)

        def get_inputs():
            return [torch.rand(2, 3, dtype=torch.float16)]

        def get_init_inputs():
            return []
        """)
    with pytest.raises(errors.ForwardRaised, match="cdist"):
        kernelwright.optimize(path, effort="quick", target="cpp", baselines="none")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the emulation is for machines without a GPU")
@pytest.mark.parametrize("target", ["cpp", "cuda"])
def test_a_program_that_fails_is_given_up_little_by_little(tmp_path, monkeypatch, target):
    """Wherever the convolution collapses the result is spoiled: that rule goes, and what is left still has kernels.
    Where every kernel is spoiled, the model's own forward is what is written."""
    path = write_problem(tmp_path, "collapse", COLLAPSE.replace("dim=[2, 3])", "dim=[2, 3]).softmax(-1)"))
    short_budgets(monkeypatch)
    monkeypatch.setattr(emulated, "find_cuda_compiler", lambda: None)
    monkeypatch.setattr("kernelwright.algebra.engine._GAIN", 1e9)  # rules apply whether they pay or not
    emit_file = programs.emit_file
    for spoils, kernels in ((lambda text: "region_sum" in text, True), (lambda text: True, False)):
        monkeypatch.setattr(programs, "emit_file", lambda *a, spoils=spoils, **o: re.sub(
            r"return \((\w+),\)", r"return (0.5 * \1,)", text) if spoils(text := emit_file(*a, **o)) else text)
        result = kernelwright.optimize(path, effort="quick", target=target, force=True, baselines="none")
        assert [bool(mode.kernels) for mode in result.modes] == [kernels] * len(result.modes)
        assert any("without the rules" in n and "sum of a convolution" in n for n in result.notes), result.notes
        if target == "cpp":
            model, ours = import_path(path).Model(32), import_path(result.path).ModelNew(32)
            ours.load_state_dict(model.state_dict())
            (x,) = import_path(path).get_inputs()
            with torch.no_grad():
                assert_like(ours(x), model(x))


@pytest.mark.breaks
@pytest.mark.parametrize(("failure", "place"), [("CUDA error: out of memory", "cuda"), ("not enough memory", "cpu"),
                                                ("an illegal memory access was encountered", None)])
def test_memory_that_runs_out_while_checking(done, tmp_path, monkeypatch, failure, place):
    def fails(*arguments, **options):
        raise RuntimeError(failure)

    monkeypatch.setattr(verified, "certify_both", fails)
    with pytest.raises(RuntimeError if place is None else errors.NotEnoughMemory) as caught:
        kernelwright.optimize(done[0], output=tmp_path / "out.py", effort="quick", target="cpp")
    assert place is None or f"on {place} " in caught.value.what


def test_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    from kernelwright.emit import write

    out = tmp_path / "out.py"
    out.write_text("old")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(write.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write.write_file(out, "new", force=True)
    assert out.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["out.py"]


def test_write(tmp_path, monkeypatch):
    """UTF-8 everywhere, no replacement unasked, also where the file system has no links."""
    from kernelwright.emit import write

    path = tmp_path / "a.py"
    write.write_file(path, "# é\n", force=False)
    assert path.read_bytes() == "# é\n".encode()
    with pytest.raises(errors.OutputExists):
        write.write_file(path, "new", force=False)
    write.write_file(path, "new", force=True)
    assert path.read_text() == "new"

    def no_links(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(write.os, "link", no_links)
    with pytest.raises(errors.OutputExists):
        write.write_file(path, "newer", force=False)
    write.write_file(tmp_path / "b.py", "text", force=False)
    assert (tmp_path / "b.py").read_text() == "text" and path.read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(errors.OutputFolderUnusable):
        write.write_file(tmp_path / "none" / "c.py", "", force=False)


def test_a_slower_mode_keeps_the_original(tmp_path, monkeypatch, clocks_decide):
    """Eager made fast by decree: the file says so, and its forward is the original's."""
    path = write_problem(tmp_path, "collapse", COLLAPSE)
    time_model = selection.time_model

    def slow(*arguments, **options):
        timing = time_model(*arguments, **options)
        eager = replace(timing.entries["eager"], busy=False)
        twice = replace(eager, name="candidate", rounds=tuple(2 * seconds for seconds in eager.rounds),
                        median=2 * eager.median,
                        back_to_back_seconds=eager.back_to_back_seconds and 2 * eager.back_to_back_seconds)
        return replace(timing, entries=timing.entries | {"eager": eager, "candidate": twice})

    for module in (selection, training):
        monkeypatch.setattr(module, "time_model", slow)
    result = kernelwright.optimize(path, effort="quick", target="cpp")
    (mode,) = result.modes
    assert mode.replaced == 0 and not mode.kernels and mode.kept and "_KERNELWRIGHT" not in result.source
    old, new = import_path(path), import_path(result.path)
    torch.manual_seed(0)
    reference = old.Model(32)
    torch.manual_seed(0)
    (x,) = old.get_inputs()
    torch.manual_seed(0)
    assert torch.equal(new.ModelNew(32)(x), reference(x))


def test_explain_builds_nothing(done, monkeypatch):
    path, result = done

    def forbidden(*_, **__):
        raise AssertionError("explain builds, checks and times nothing")

    for name in ("load_text", "compile_cuda", "certify_both", "time_model", "region_times", "write_file",
                 "load_emulated"):
        owner = next(m for m in (pipeline, selection, tuned, verified, emulated) if hasattr(m, name))
        monkeypatch.setattr(owner, name, forbidden)
    for target in ("cpp", "cuda"):
        explained = kernelwright.explain(path, target=target)
        assert explained.module is explained.path is explained.certificate is explained.timing is None
        assert explained.modes[0].kernels and explained.target == target
    assert [m.name for m in explained.modes] == [m.name for m in result.modes]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_cuda_without_a_device(done, tmp_path, monkeypatch):
    """The file is written, compiled where nvcc is, checked by emulation, not timed, and still runs here."""
    path = write_problem(tmp_path, "collapse", COLLAPSE)
    result = kernelwright.optimize(path, effort="quick", target="cuda")
    notes = " ".join(result.notes)
    assert "not timed" in notes and "Checked by emulation" in notes
    assert "compile with nvcc" in notes or errors.NO_CUDA_COMPILER.what in notes
    assert result.timing is None and result.module is None and '_DEVICE = "cuda"' in result.source
    old, new = import_path(path), import_path(result.path)
    torch.manual_seed(0)
    reference = old.Model(32)
    torch.manual_seed(0)
    candidate = new.ModelNew(32)
    (x,) = old.get_inputs()
    with pytest.warns(RuntimeWarning, match="there is no CUDA device"):
        assert torch.equal(candidate(x), reference(x))


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_cuda_without_a_device_and_without_a_batch(tmp_path):
    """The emulation takes fewer batch entries, but here the first axis is none."""
    path = write_problem(tmp_path, "product", """
        class Model(nn.Module):
            def forward(self, a, b):
                y = a @ b
                return torch.sigmoid(y) * 2.0 + torch.tanh(y) * torch.exp(-y)

        def get_inputs():
            return [torch.randn(16, 16), torch.randn(16, 16)]
    """)
    result = kernelwright.optimize(path, effort="quick", target="cuda")
    assert result.modes[0].kernels and "Checked by emulation on the CPU, " in " ".join(result.notes)


def test_float64_of_what_fills_a_gpu_takes_a_few_entries(monkeypatch):
    """A trial holds about ten copies of inputs and outputs; here they have 2 * 80 bytes."""
    mode = SimpleNamespace(captured=capture(nn.ReLU(), (torch.randn(4, 5),)))
    for memory, dear in ((1700, True), (1800, False)):
        properties = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, p=properties: p)
        assert truths._float64_is_dear(mode, torch.device("cuda")) is dear


class Block(nn.Module):
    """A module of this file, for the instance below."""

    def forward(self, x):
        return torch.relu(x) * 2.0 + torch.tanh(x)


class Given(nn.Module):
    """A module given from Python, with parameters of its own."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(16, 32, 3, stride=2)
        self.block = Block()

    def forward(self, x):
        return self.block(self.up(x).mean(dim=(2, 3)))


def test_an_instance(tmp_path):
    """Its parameters are adopted; a file is written only where one is asked for."""
    model, x = Given(), torch.rand(4, 16, 32, 32)
    with torch.no_grad():
        model.up.weight.mul_(3.0)
    result = kernelwright.optimize(model, (x,), effort="quick", target="cpp")
    assert result.path is None and result.modes[0].kernels
    assert type(model) is Given and type(result.module).__name__ == "ModelNew"
    assert_same_state(result.module, model, 0.0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_like(result.module(x), model(x))
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="x is"):
        assert_like(result.module(x[:1]), model(x[:1]))
    (tmp_path / "given.py").write_text(result.source)
    written = import_path(tmp_path / "given.py").ModelNew()
    written.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert_like(written(x), model(x))


def test_a_class_of_torch(tmp_path):
    model, x = nn.Sequential(nn.ConvTranspose2d(16, 32, 3), nn.AdaptiveAvgPool2d(1)), torch.rand(4, 16, 32, 32)
    result = kernelwright.optimize(model, inputs=(x,), effort="quick", target="cpp", output=tmp_path / "sequential.py")
    assert result.modes[0].kernels and result.path == tmp_path / "sequential.py"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_like(result.module(x), model(x))
    assert isinstance(result.module, nn.Sequential) and len(result.module) == 2
    model.append(nn.ReLU())
    result.module.append(nn.ReLU())
    with torch.no_grad(), pytest.warns(RuntimeWarning):
        assert_like(result.module(x - 5), model(x - 5))


def test_nothing_to_gain(tmp_path):
    path = write_problem(tmp_path, "product", """
        class Model(nn.Module):
            def forward(self, a, b):
                return a @ b

        def get_inputs():
            return [torch.rand(64, 64), torch.rand(64, 64)]
    """)
    result = kernelwright.optimize(path, effort="quick", target="cpp")
    assert result.modes[0].replaced == 0 and "_original_forward" in result.source
    assert result.certificate.passed and "unchanged" in result.certificate.sentence()
    assert result.source.count("import torch\n") == 1
    a, b = torch.rand(8, 4), torch.rand(4, 3)
    assert torch.equal(import_path(result.path).ModelNew()(a, b), a @ b)


def test_example_inputs_that_do_not_fit(tmp_path, monkeypatch):
    """Kernels that would never run are neither certified nor timed nor kept."""
    path = write_problem(tmp_path, "sliced", """
        class Model(nn.Module):
            def forward(self, x):
                return F.gelu(x * 2 + 1).sum(-1), x[0]  # a view of the input, which a copy would not be

        def get_inputs():
            return [torch.rand(64, 64, 8)[..., ::2]]
    """)
    result = kernelwright.optimize(path, effort="quick", target="cpp")
    (mode,) = result.modes
    assert not mode.kernels and "not contiguous" in mode.kept[0].reason
    assert "unchanged" in result.certificate.sentence()
    assert "_KERNELWRIGHT" not in result.source


def test_no_compiler_is_told_first(done, tmp_path, monkeypatch):
    path, _ = done
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert shutil.which("g++") is None
    with pytest.raises(errors.NoCppCompiler):
        kernelwright.optimize(path, output=Path(tmp_path / "x.py"), target="cpp")
    assert list(tmp_path.iterdir()) == []


def test_names_that_clash_and_files_beside(tmp_path):
    """A model that defines what the emitted file must define is refused; a neighbour's import is told."""
    path = write_problem(tmp_path, "clash", COLLAPSE.replace("def forward", "def _original_forward(self, x):\n"
                                                             "            return x\n\n        def forward"))
    with pytest.raises(errors.SourceUnavailable, match="_original_forward"):
        kernelwright.explain(path, target="cpp", device=GENERIC_CPU)
    (tmp_path / "neighbour_of_collapse.py").write_text("FACTOR = 0.5\n")
    path = write_problem(tmp_path, "beside", "    from neighbour_of_collapse import FACTOR\n"
                         + COLLAPSE.replace("* 0.5", "* FACTOR"))
    (note,) = kernelwright.explain(path, target="cpp", device=GENERIC_CPU).notes
    assert "neighbour_of_collapse" in note


@pytest.mark.parametrize(("shape", "module", "independent"), [
    ((4, 3, 8, 8), nn.Conv2d(3, 3, 3), True), ((3, 8, 8), nn.Conv2d(3, 3, 3), False),
    ((4, 3, 8, 8), nn.MaxPool2d(2), True), ((3, 8), nn.MaxPool1d(2), True),
    ((4, 3, 8, 8), nn.BatchNorm2d(3).eval(), True), ((4, 3, 8, 8), nn.BatchNorm2d(3), False),
    ((4, 8), nn.Linear(8, 2), True), ((8,), nn.Linear(8, 8), False), ((4, 8), nn.Softmax(dim=0), False),
    ((4, 6), nn.Flatten(0), False), ((1, 6), nn.ReLU(), True)])
def test_batch_independence(shape, module, independent):
    """What the verifier may check on a few entries: never a model that mixes them."""
    assert batch_independent(capture(module, [torch.rand(shape)])) is independent
