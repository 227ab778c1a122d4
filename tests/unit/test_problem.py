"""Stage LOAD: one failing program per error, and what the loader promises."""

from __future__ import annotations

import inspect
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from kernelwright import errors
from kernelwright.problem import construct, load_problem, memory, probe_forward, require_memory
from kernelwright.problem.inputs import random_like
from kernelwright.problem.memory import MemoryGuard, WouldNotFit, amount, available_memory

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.linear = nn.Linear(size, size)
    def forward(self, x):
        return self.linear(x)
"""
INPUTS = """
def get_inputs():
    return [torch.rand(3, 4)]
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str, name: str = "problem.py") -> Path:
        file = tmp_path / name
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return file
    return make


def model_with(forward: str, constructor: str = "") -> str:
    return ("import torch\nfrom torch import nn\n\nclass Model(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n        {constructor or 'pass'}\n    def forward(self, x):\n"
            + textwrap.indent(textwrap.dedent(forward).strip(), " " * 8) + "\n" + INPUTS)


# ---- what the loader promises ------------------------------------------------------------------


def test_a_file_becomes_a_problem(write: Write) -> None:
    file = write(MODEL + INPUTS)
    path, modules = list(sys.path), set(sys.modules)
    problem = load_problem(file, device="cpu")
    assert (problem.name, problem.path, problem.class_name, problem.init_inputs) == ("problem", file, "Model", ())
    assert problem.source == file.read_text() and problem.device == torch.device("cpu")
    assert "self.linear(x)" in inspect.getsource(problem.model_class)
    assert sys.path == path and not (file.parent / "__pycache__").exists()
    (added,) = {name for name in set(sys.modules) - modules  # PyTorch imports parts of its own when they are first used
                if getattr(sys.modules[name], "__file__", None) == str(file)}
    assert problem.model_class.__module__ == added
    assert load_problem(str(file)).model_class is not problem.model_class


def test_models_and_inputs_are_fresh_and_seeded(write: Write) -> None:
    problem = load_problem(write(MODEL + INPUTS + "def get_init_inputs():\n    return [4]\n"), device="cpu")
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, again, other = problem.make_model(3), problem.make_model(3), problem.make_model(4)
    x, y, z = problem.make_inputs(3)[0], problem.make_inputs(3)[0], problem.make_inputs(4)[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert first.training and first is not again
    assert torch.equal(first.linear.weight, again.linear.weight)
    assert not torch.equal(first.linear.weight, other.linear.weight)
    assert torch.equal(x, y) and x.data_ptr() != y.data_ptr() and not torch.equal(x, z)
    torch.manual_seed(3)
    assert torch.equal(problem.model_class(4).linear.weight, first.linear.weight)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3, 4), x)


def test_a_tensor_that_the_file_keeps_is_not_shared(write: Write) -> None:
    file = write(MODEL + "X = torch.rand(3, 4)\ndef get_inputs():\n    return (X,)\n")
    problem = load_problem(file, device="cpu")
    problem.make_inputs(0)[0].zero_()
    assert problem.make_inputs(0)[0].abs().sum() > 0


def test_user_code_runs_only_when_asked(write: Write) -> None:
    problem = load_problem(write("CALLS = []\n" + MODEL.replace("super()", "CALLS.append('model'); super()") + """
def get_inputs():
    CALLS.append('inputs')
    return [torch.rand(3, 4)]
def get_init_inputs():
    CALLS.append('init')
    return []
"""), device="cpu")
    calls = sys.modules[problem.model_class.__module__].CALLS
    assert calls == ["init"]
    problem.make_model(0)
    problem.make_inputs(0)
    assert calls == ["init", "model", "inputs"]


LARGE = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(2048, 4096)
        self.small = nn.Parameter(torch.randn(7))
        self.register_buffer("table", torch.arange(5) * 2)
        self.steps = torch.linspace(0, 1, 5).tolist()
        self.tied = self.wide.weight
    def forward(self, x):
        return self.wide(x)
def get_inputs():
    return [torch.randn(2, 2048)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device")])])
def test_large_weights_are_drawn_once(write: Write, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further models are equal, and own what they hold; on a GPU they are constructed there."""
    problem = load_problem(write(LARGE), device=device)
    first = problem.make_model(3)
    monkeypatch.setattr(construct, "_DRAWS", ())
    places = []
    linear = torch.nn.Linear.reset_parameters
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda self: (
        places.append(self.weight.device.type), torch.nn.init.zeros_(self.weight))[1])
    again = problem.make_model(3)
    assert places == [device]
    for (name, one), (other, two) in zip(first.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other and torch.equal(one, two) and one.data_ptr() != two.data_ptr() and one.device == two.device
    assert again.tied is again.wide.weight and again.steps == first.steps
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", linear)
    assert not torch.equal(problem.make_model(4).wide.weight, first.wide.weight)


def test_no_more_is_kept_than_a_share_of_what_is_free(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(construct, "available_memory", lambda device: 100 << 20)
    problem = load_problem(write(LARGE), device="cpu")
    first, again = problem.make_model(3), problem.make_model(3)
    assert torch.equal(first.wide.weight, again.wide.weight)
    assert isinstance(problem.build_model, construct.Constructor) and problem.build_model._kept is None


def test_constructor_arguments_are_copied(write: Write) -> None:
    text = MODEL.replace("size=4", "sizes").replace("nn.Linear(size, size)", "nn.Linear(sizes.pop(), sizes.pop())")
    problem = load_problem(write(text + INPUTS + "def get_init_inputs():\n    return [[2, 4]]\n"), device="cpu")
    assert problem.make_model(0).linear.weight.shape == problem.make_model(0).linear.weight.shape == (2, 4)
    assert problem.init_inputs == ([2, 4],)


def test_siblings_of_two_folders_are_kept_apart(tmp_path: Path) -> None:
    sizes = []
    for size in (3, 5):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "sibling_sizes.py").write_text(f"SIZE = {size}\n")
        text = "import sibling_sizes\n" + MODEL.replace("size=4", "size=sibling_sizes.SIZE")
        (folder / "problem.py").write_text(text + INPUTS)
        sizes.append(load_problem(folder / "problem.py", device="cpu").make_model(0).linear.in_features)
    assert sizes == [3, 5] and not list(tmp_path.rglob("__pycache__"))


def test_all_kinds_of_inputs(write: Write) -> None:
    file = write(MODEL + "def get_inputs():\n    return [torch.rand(2), 3, 2.5, True, None, [torch.ones(1), (1, 2)]]\n")
    inputs = load_problem(file, device="cpu").make_inputs(0)
    assert inputs[1:5] == [3, 2.5, True, None] and inputs[5][1] == (1, 2)


def test_model_may_be_an_alias_and_inputs_may_be_given(write: Write) -> None:
    file = write(MODEL.replace("Model", "Net") + "Model = Net\n")
    problem = load_problem(file, inputs=[torch.rand(2, 6)], init_inputs=[6], device="cpu")
    assert problem.class_name == "Net"
    assert problem.make_model(0)(*problem.make_inputs(0)).shape == (2, 6)


def test_an_instance_is_copied_and_its_inputs_varied() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    given = torch.randn(8, 4, requires_grad=True)
    problem = load_problem(model, inputs=(given, 3), device="cpu")
    assert (problem.name, problem.path, problem.is_instance) == ("Sequential", None, True)
    copied = problem.make_model(5)
    assert copied is not model and not copied.training and torch.equal(copied[0].weight, model[0].weight)
    (first, number), (other, _) = problem.make_inputs(0), problem.make_inputs(1)
    assert torch.equal(first, given) and first.data_ptr() != given.data_ptr() and number == 3
    assert first.requires_grad and other.requires_grad and other.shape == given.shape
    assert not torch.equal(other, given) and other.min() >= given.min() and other.max() <= given.max()
    assert torch.equal(other, problem.make_inputs(1)[0])


def test_a_class_is_constructed_anew() -> None:
    problem = load_problem(nn.Linear, inputs=[torch.rand(2, 4)], init_inputs=(4, 3), device="cpu")
    assert not torch.equal(problem.make_model(0).weight, problem.make_model(1).weight)


@pytest.mark.parametrize("given", [
    torch.rand(50), torch.randn(5, 10).t(), torch.randint(3, 9, (40,)), torch.randint(0, 255, (40,), dtype=torch.uint8),
    torch.rand(40) > 0.5, torch.randn(40, dtype=torch.float16), torch.randn(20, dtype=torch.complex64),
    torch.tensor([2**63 - 1, -2**63, 5])], ids=lambda x: f"{x.dtype}-{tuple(x.stride())}")
def test_random_like_keeps_shape_dtype_strides_and_range(given: torch.Tensor) -> None:
    torch.manual_seed(0)
    made = random_like(given)
    assert (made.shape, made.dtype, made.stride()) == (given.shape, given.dtype, given.stride())
    assert not torch.equal(made, given)
    if not given.is_complex() and given.dtype is not torch.bool:
        assert made.min() >= given.min() and made.max() <= given.max()


@pytest.mark.parametrize("given", [
    torch.arange(9), torch.full((3, 3), float("-inf")).triu(1), torch.ones(4), torch.zeros(0),
    torch.tensor([0, 3, 3, 7])])
def test_random_like_keeps_structure(given: torch.Tensor) -> None:
    assert torch.equal(random_like(given), given)


def test_probe_reports_buffers_and_accepts_caches(write: Write) -> None:
    text = model_with("""
        if self.table is None:
            self.table = torch.arange(4.0)
        return self.norm(x) + self.table
    """, "self.norm, self.table = nn.BatchNorm1d(4), None")
    probe = probe_forward(load_problem(write(text), device="cpu"))
    assert probe.changed_tensors == ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    assert probe.cached_attributes == ("table",) and probe.outputs.shape == (3, 4)


# ---- one failing program per error -------------------------------------------------------------

FILES = {
    "syntax": (errors.FileSyntaxError, "x = 1\ndef f(:\n", 2, "invalid syntax"),
    "null byte": (errors.FileSyntaxError, "x = 1\0\n", 0, "null bytes"),
    "import raises": (errors.ImportRaised, "a = 1\nb = a / 0\n", 2, "ZeroDivisionError"),
    "exits": (errors.ImportRaised, "import sys\nsys.exit(3)\n", 2, "SystemExit"),
    "cannot import name": (errors.ImportRaised, "from torch import no_such_thing\n", 1, "no_such_thing"),
    "package": (errors.MissingPackage, "import torch\nimport no_such_package.part\n", 2, "package no_such_package"),
    "no Model": (errors.NoModelClass, "class Net: pass\n", 0, "no class Model"),
    "not a module": (errors.ModelNotModule, "x = 1\nclass Model:\n    pass\n", 2, "the class Model"),
    "not a class": (errors.ModelNotModule, "x = 1\nModel = 5\n", 2, "type int"),
    "no get_inputs": (errors.NoGetInputs, MODEL, 0, "get_inputs"),
    "init raises": (errors.GetInitInputsFailed, MODEL + INPUTS + "def get_init_inputs():\n    return [][1]\n", 15,
                    "IndexError"),
}


@pytest.mark.parametrize("case", FILES)
def test_loading_fails(case: str, write: Write) -> None:
    kind, text, line, words = FILES[case]
    file = write(text)
    modules = set(sys.modules)
    with pytest.raises(kind) as caught:
        load_problem(file, device="cpu")
    assert words in caught.value.what
    if line:
        assert caught.value.where == f"{file}:{line}\n{text.splitlines()[line - 1].strip()}"
    if kind in (errors.ImportRaised, errors.MissingPackage):
        assert not [name for name in set(sys.modules) - modules if name.startswith("kernelwright_problem")]


def test_no_model_names_the_classes_there(write: Write) -> None:
    with pytest.raises(errors.NoModelClass) as caught:
        load_problem(write("class Net: pass\nclass Other: pass\n"))
    assert "it defines Net, Other" in caught.value.why


def test_path_errors(tmp_path: Path, write: Write) -> None:
    with pytest.raises(errors.FileMissing):
        load_problem(tmp_path / "none.py")
    with pytest.raises(errors.NotAPythonFile, match="a folder"):
        load_problem(tmp_path)
    with pytest.raises(errors.NotAPythonFile, match=r"it is a file whose name ends in '\.txt'"):
        load_problem(write("x", "problem.txt"))
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(errors.NotAPythonFile, match="not text"):
        load_problem(tmp_path / "binary.py")


def test_constructor_raises(write: Write) -> None:
    file = write(MODEL.replace("nn.Linear(size, size)", "nn.Linear(size, undefined)") + INPUTS)
    with pytest.raises(errors.ConstructorRaised, match=r"Model\(\) raised NameError") as caught:
        load_problem(file, device="cpu").make_model(0)
    assert caught.value.where == f"{file}:8\nself.linear = nn.Linear(size, undefined)"


def test_initial_inputs_do_not_fit_the_constructor(write: Write) -> None:
    problem = load_problem(write(MODEL + INPUTS), init_inputs=[4, 5], device="cpu")
    with pytest.raises(errors.InitInputsMismatch, match=r"from 2 initial input\(s\)") as caught:
        problem.make_model(0)
    assert "Model(size=4)" in caught.value.why and "(4, 5)" in caught.value.why


def test_a_type_error_inside_the_constructor_is_no_mismatch(write: Write) -> None:
    problem = load_problem(write(MODEL + INPUTS), init_inputs=["four"], device="cpu")
    with pytest.raises(errors.ConstructorRaised, match=r"Model\('four'\) raised TypeError"):
        problem.make_model(0)


def test_get_inputs_raises(write: Write) -> None:
    file = write(MODEL + "def get_inputs():\n    return [torch.rand(3) + torch.rand(4)]\n")
    with pytest.raises(errors.GetInputsRaised, match="RuntimeError") as caught:
        load_problem(file, device="cpu").make_inputs(0)
    assert caught.value.where.startswith(f"{file}:12\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device that exists is no fault")
@pytest.mark.parametrize("made", ["torch.rand(3).cuda()", "torch.rand(3, device='cuda')"])
def test_inputs_on_a_device_that_is_not_there_need_none(made: str, write: Write) -> None:
    with pytest.raises(errors.GetInputsRaised) as caught:
        load_problem(write(MODEL + f"def get_inputs():\n    return [{made}]\n"), device="cpu").make_inputs(0)
    assert ".cuda()" in caught.value.fix and "moved to the device" in caught.value.fix


@pytest.mark.parametrize(("value", "words"), [
    ("None", "they are None"), ("[torch.rand(3), object()]", "item 1 is an object of type object"),
    ("{'x': {1}}", "keyword x is an object of type set"),
    ("[[1, {2}]]", "item 0[1] is an object of type set"),
    ("[torch.eye(3).to_sparse()]", "item 0 is a sparse"), ("[torch.rand(3, device='meta')]", "item 0 is on the meta")])
def test_get_inputs_returns_something_else(value: str, words: str, write: Write) -> None:
    file = write(MODEL + f"def get_inputs():\n    return {value}\n")
    with pytest.raises(errors.InputsInvalid) as caught:
        load_problem(file, device="cpu").make_inputs(0)
    assert words in caught.value.what and caught.value.where == f"{file}:11\ndef get_inputs():"


def test_forward_raises(write: Write) -> None:
    file = write(model_with("return x @ x"))
    with pytest.raises(errors.ForwardRaised, match="RuntimeError") as caught:
        probe_forward(load_problem(file, device="cpu"))
    assert caught.value.where == f"{file}:9\nreturn x @ x"


@pytest.mark.parametrize("expression", [
    "torch.rand(10**9, 10**6)", "torch.zeros(10**12, dtype=torch.float16)",
    "torch.rand(10**6, 1).expand(-1, 10**9) + 1",
    "torch.ones(2**20).unsqueeze(1) * torch.ones(2**20)"])
def test_inputs_too_large_for_memory(expression: str, write: Write) -> None:
    file = write(MODEL + f"def get_inputs():\n    return [{expression}]\n")
    with pytest.raises(errors.NotEnoughMemory, match="for the inputs") as caught:
        load_problem(file, device="cpu").make_inputs(0)
    assert caught.value.where == f"{file}:12\nreturn [{expression}]"
    assert "iB; " in caught.value.why and "are free" in caught.value.why


def test_parameters_and_results_too_large_for_memory(write: Write) -> None:
    file = write(MODEL + INPUTS)
    with pytest.raises(errors.NotEnoughMemory, match="for the parameters") as caught:
        load_problem(file, init_inputs=[10**7], device="cpu").make_model(0)
    assert caught.value.where.startswith(f"{file}:8\n")
    file = write(model_with("y = torch.ones(2**20)\nreturn y[:, None] * y"), "second.py")
    with pytest.raises(errors.NotEnoughMemory, match="for the results of forward") as caught:
        probe_forward(load_problem(file, device="cpu"))
    assert caught.value.where.startswith(f"{file}:10\n")


def test_memory_errors_of_others_are_recognised(write: Write) -> None:
    file = write(MODEL + "def get_inputs():\n    raise MemoryError('all gone')\n")
    with pytest.raises(errors.NotEnoughMemory, match="for the inputs") as caught:
        load_problem(file, device="cpu").make_inputs(0)
    assert caught.value.why == "all gone"
    assert memory.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(RuntimeError) as allocation:
        torch.empty(2**60, dtype=torch.uint8)
    assert memory.is_out_of_memory(allocation.value)
    assert not memory.is_out_of_device_memory(allocation.value) and not memory.is_out_of_device_memory(MemoryError())
    assert not memory.is_out_of_memory(RuntimeError("shapes differ"))


@pytest.mark.parametrize("text", [
    "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the CUDA runtime's documentation.",
    "CUDA driver error: out of memory", "Triton Error [CUDA]: out of memory", "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuFFT error: CUFFT_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "kernelwright: sums: launch of sums<<<(1, 1, 1), (256, 1, 1), 0>>> failed: out of memory (CUDA error 2)"])
def test_device_memory_by_what_the_runtime_and_libraries_say(text: str) -> None:
    kinds = (RuntimeError, torch.OutOfMemoryError, getattr(torch, "AcceleratorError", RuntimeError))
    for kind in kinds:
        assert memory.is_out_of_memory(kind(text)) and memory.is_out_of_device_memory(kind(text))
    assert not memory.is_out_of_memory(ValueError(text)), "words alone, of a user's own error"


@pytest.mark.parametrize("text", [
    "CUDA error: an illegal memory access was encountered", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED",
    "kernelwright: sums: launch of sums<<<(1, 1, 1), (1024, 1, 1), 0>>> failed: too many resources requested for launch"
    " (CUDA error 701)", "out of resource: shared memory, Required: 262144, Hardware limit: 232448"])
def test_what_more_free_memory_would_not_mend(text: str) -> None:
    assert not memory.is_out_of_memory(RuntimeError(text))


def test_require_memory_and_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < available_memory("cpu") < 2**50 and available_memory("meta") is None
    assert (amount(5), amount(3 << 29)) == ("5 B", "1.50 GiB")
    require_memory(1, "cpu", "two copies")
    with pytest.raises(errors.NotEnoughMemory, match="for two copies"):
        require_memory(2**60, "cpu", "two copies")
    monkeypatch.setattr(memory, "available_memory", lambda device: 100 << 20)
    big = torch.rand(1 << 20)
    with MemoryGuard():
        torch.manual_seed(0)
        guarded = torch.rand(1 << 20)
        big.view(1, -1).expand(1000, -1)  # no memory
        big.add_(1)
        with pytest.raises(WouldNotFit):
            big.repeat(64)
    torch.manual_seed(0)
    assert torch.equal(guarded, torch.rand(1 << 20))


def test_python_objects(write: Write) -> None:
    with pytest.raises(errors.InstanceNeedsInputs):
        load_problem(nn.ReLU())
    with pytest.raises(errors.ModelNotModule, match="type function"):
        load_problem(lambda x: x, inputs=[1])
    with pytest.raises(errors.InputsInvalid):
        load_problem(nn.ReLU(), inputs=threading.Lock())
    model = nn.ReLU()
    model.lock = threading.Lock()
    with pytest.raises(errors.ModelNotCopyable, match="TypeError"):
        load_problem(model, inputs=[torch.rand(3)], device="cpu").make_model(0)


@pytest.mark.skipif(torch.cuda.device_count() > 7, reason="the device asked for exists")
def test_no_such_device(write: Write) -> None:
    with pytest.raises(errors.NoCudaDevice) as caught:
        load_problem(write(MODEL + INPUTS), device="cuda:7")
    assert "CUDA device(s)" in caught.value.why


STATEFUL = {
    "counter": ("self.calls += 1\nreturn x * self.calls", "self.calls = 0", "calls"),
    "recurrence": ("self.hidden = torch.tanh(x + self.hidden)\nreturn self.hidden", "self.hidden = torch.zeros(3, 4)",
                   "hidden"),
    "list": ("self.seen.append(x.sum())\nreturn x", "self.seen = []", "seen"),
    "first inputs": ("if self.shift is None:\n    self.shift = x.mean()\nreturn x - self.shift", "self.shift = None",
                     "shift"),
    "in place": ("self.total.add_(x.sum())\nreturn x + self.total", "self.total = torch.zeros(1)", "total"),
}


@pytest.mark.parametrize("case", ["recurrence", "first inputs", "in place"])
def test_tensors_carried_from_call_to_call(case: str, write: Write) -> None:
    forward, constructor, name = STATEFUL[case]
    found = probe_forward(load_problem(write(model_with(forward, constructor)), device="cpu"))
    assert found.state_attributes == (name,) and found.cached_attributes == ()


@pytest.mark.parametrize("case", ["counter", "list"])
def test_hidden_state(case: str, write: Write) -> None:
    forward, constructor, name = STATEFUL[case]
    file = write(model_with(forward, constructor))
    with pytest.raises(errors.HiddenState, match=rf"attribute\(s\) {name}\.") as caught:
        probe_forward(load_problem(file, device="cpu"))
    if "=" in forward:
        lines = list(enumerate(file.read_text().splitlines(), 1))
        line = next(i for i, x in lines if i > 7 and f"self.{name}" in x and "= " in x)
        assert caught.value.where.startswith(f"{file}:{line}\n")


LEFT = {
    "last": ("self.last = x.softmax(0)\nreturn self.last * 2", "self.last = None", "last"),
    "dictionary": ("self.kept['x'] = x * 2\nreturn self.kept['x'] + 1", "self.kept = {}", "kept"),
    "list": ("self.seen = []\nself.seen.append((x, x.sum()))\nreturn x + self.seen[0][1]", "self.seen = []", "seen"),
    "integers": ("self._places = x.argmax(1)\nreturn x + self._places[:, None]", "self._places = None", "_places"),
}


@pytest.mark.parametrize("case", LEFT)
def test_tensors_that_no_call_reads_again(case: str, write: Write) -> None:
    forward, constructor, name = LEFT[case]
    found = probe_forward(load_problem(write(model_with(forward, constructor)), device="cpu"))
    assert found.state_attributes == (name,) and found.cached_attributes == ()


def test_a_cache_in_place_of_a_tensor(write: Write) -> None:
    """What ModelNew holds as the constructor made it would differ from what the model holds."""
    forward = "if not self.table.numel():\n    self.table = torch.arange(4.0)\nreturn x + self.table"
    found = probe_forward(load_problem(write(model_with(forward, "self.table = torch.zeros(0)")), device="cpu"))
    assert found.state_attributes == ("table",) and found.cached_attributes == ()


READ = {
    "values": ("old = self.kept.get('x', 0)\nself.kept['x'] = x * 2\nreturn x + old", "self.kept = {}"),
    "maximum": ("self.kept['x'] = torch.maximum(self.kept['x'], x.max())\nreturn x / self.kept['x']",
                "self.kept = {'x': torch.zeros(())}"),
    "integers": ("old = self.kept['x']\nself.kept['x'] = x.argmax(1)\nreturn x + old[:, None]",
                 "self.kept = {'x': torch.zeros(3, dtype=torch.long)}"),
}


@pytest.mark.parametrize("case", READ)
def test_a_dictionary_that_the_next_call_reads(case: str, write: Write) -> None:
    forward, constructor = READ[case]
    found = probe_forward(load_problem(write(model_with(forward, constructor)), device="cpu"))
    assert found.state_attributes == ("kept",) and found.cached_attributes == ()


@pytest.mark.parametrize(("value", "words"), [
    ("5", "no tensor at all"), ("None", "None"), ("(None, [])", "no tensor at all"), ("[]", "no tensor at all"),
    ("{'a': [x, {2}]}", "type set at ['a'][1]"), ("x.to_sparse()", "not dense")])
def test_outputs_of_other_kinds(value: str, words: str, write: Write) -> None:
    file = write(model_with(f"return {value}"))
    with pytest.raises(errors.OutputsUnsupported) as caught:
        probe_forward(load_problem(file, device="cpu"))
    assert words in caught.value.what and caught.value.where == f"{file}:8\ndef forward(self, x):"


@pytest.mark.parametrize("value", ["x", "(x, [x, x])", "{'a': x, 'b': (x,)}", "(x, None)", "{'a': [x, None]}"])
def test_nested_outputs_are_fine(value: str, write: Write) -> None:
    probe_forward(load_problem(write(model_with(f"return {value}")), device="cpu"))
