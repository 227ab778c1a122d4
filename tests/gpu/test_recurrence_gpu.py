"""Recurrent layers on a GPU: every layout of a cluster against float64, and whole layers against eager's errors."""

from __future__ import annotations

import ctypes
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from recurrence_cases import expected, layer, tensors
from torch import nn

import kernelwright
from kernelwright.codegen.cuda.recurrence import generate
from kernelwright.codegen.cuda.recurrence.layout import Layout, choose, layouts
from kernelwright.codegen.generate import support_text
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.kernels import Recurrence

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

#: Long enough that a state which arrives too late would be seen, many times over.
LAYERS = [layer("lstm", 300, 10, 256), layer("gru", 300, 3, 96, reverse=True), layer("rnn_tanh", 200, 70, 130),
          layer("rnn_relu", 100, 33, 64, batch_first=True), layer("lstm", 100, 5, 512), layer("gru", 100, 64, 384),
          layer("lstm", 200, 2, 1024), layer("gru", 60, 8, 1024)]


def few_of(kernel: Recurrence) -> list[Layout]:
    """The chosen layout, and one of each number of blocks and threads, of clusters and of grids."""
    by_size = {(x.grid, x.cluster, x.threads): x for x in layouts(kernel.gates, *kernel.shape)}
    chosen = choose(kernel.gates, *kernel.shape)
    assert chosen is not None
    return [chosen, *by_size.values()]


CASES = [(case, layout) for case in LAYERS for layout in few_of(case.kernel)]


def compiled(source: KernelSource, folder: Path) -> ctypes.CDLL:
    signature = source.definition.split(f"static const char* {source.name}")[1].split(" {")[0]
    passed = ", ".join(part.split()[-1].lstrip("*") for part in signature.strip("()").split(","))
    text = f'{support_text([source], "cuda")}\n{source.definition}\nextern "C" const char* run{signature} ' \
           f"{{ return {source.name}({passed}); }}\n"
    path, library = folder / f"{source.name}.cu", folder / f"{source.name}.so"
    path.write_text(text)
    done = subprocess.run(["nvcc", "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-w", "-shared",
                           "-Xcompiler", "-fPIC", str(path), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory):
    """Each kernel in a library of its own, which compile side by side."""
    sources = [generate.generate(case.kernel, f"k{n}_recurrence", layout) for n, (case, layout) in enumerate(CASES)]
    folder = tmp_path_factory.mktemp("recurrence")
    with ThreadPoolExecutor() as pool:
        return list(zip(sources, pool.map(lambda source: compiled(source, folder), sources), strict=True))


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n][0].name}")
def test_every_layout(libraries, number):
    source, built = libraries[number]
    case, layout = CASES[number]
    inputs = [tensor.cuda() for tensor in tensors(case)]
    wanted = expected(case, inputs)
    function = built.run
    function.restype = ctypes.c_char_p
    workspace = torch.empty(max(256, source.workspace_bytes), dtype=torch.uint8, device="cuda").fill_(255)
    found = []
    for _ in range(3):
        outputs = [torch.full_like(w, float("nan"), dtype=torch.float32) for w in wanted]
        message = function(*(ctypes.c_void_p(t.data_ptr()) for t in (*inputs, *outputs, workspace)),
                           ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        assert message is None, f"{layout}: {message}"
        torch.cuda.synchronize()
        found.append(outputs)
    for *repeated, right in zip(*found, wanted, strict=True):
        assert all(torch.equal(repeated[0], other) for other in repeated), layout
        torch.testing.assert_close(repeated[0].double(), right, rtol=1e-4, atol=1e-5,
                                   msg=lambda text: f"{layout}: {text}")


MODELS = {
    "LSTM": lambda: nn.LSTM(128, 256, 6, batch_first=True), "GRU": lambda: nn.GRU(128, 256, 6, batch_first=True),
    "LSTM of both directions": lambda: nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True),
    "RNN": lambda: nn.RNN(64, 512, 1, batch_first=True), "a wide LSTM": lambda: nn.LSTM(64, 512, 1, batch_first=True),
    "a wider LSTM": lambda: nn.LSTM(64, 1024, 1, batch_first=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_whole_layers(name, monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    # What is asked here is whether they are right: of some sizes the library's kernels are as fast.
    monkeypatch.setattr("kernelwright.selection.is_slower", lambda timing: False)
    monkeypatch.setattr("kernelwright.tuned.losing_regions", lambda plan, times, *, clearly=False: {})
    torch.manual_seed(0)
    model = MODELS[name]().cuda().eval()
    x = torch.randn(10, 128, model.input_size, device="cuda")
    result = kernelwright.optimize(model, (x,), target="cuda", budget=600, baselines="none")
    assert result.certificate.passed
    assert any(k.kind == "recurrence" for k in result.modes[0].kernels), (
        [k.reason for k in result.modes[0].kept], result.notes)
