"""Attention on a GPU: the cases of the emulation and longer ones against float64, and whole models."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from attention_cases import CASES as SMALL
from attention_cases import attention, error, narrow, rectifies
from test_recurrence_gpu import compiled
from torch import nn

import kernelwright
from kernelwright.codegen.cuda.attention import generate
from kernelwright.ir.registry import torch_dtype

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

#: Long enough that operands which arrive too late would be seen, with more blocks than there are multiprocessors.
LONG = [attention("long", 1000, 1500, 64, 64, batch=3, heads=8), attention("long", 517, 517, 80, 80, heads=12,
                                                                          causal=True, empty_rows=True),
        attention("long", 700, 900, 128, 128, heads=8, softmax=False, score=rectifies),
        attention("many", 49, 49, 32, 32, batch=100, heads=6)]
TYPES = ("bfloat16", "float16")
#: What a result may be off by, beside twice what float32 is: in 16 bits a rounding of weights and one of results.
ROUNDED = {"float32": 3e-7, "bfloat16": 2.02 * 2.0**-8, "float16": 2.02 * 2.0**-11}
#: In 16 bits; every second small case in either type.
NARROW = [*(narrow(case, TYPES[n % 2]) for n, case in enumerate(SMALL)),
          *(narrow(case, dtype) for case in LONG for dtype in TYPES)]
#: Of layouts in their order, one of so many.
_APART = {"float32": 5, "bfloat16": 40, "float16": 40}
#: Each with the chosen layout, and with others that fit.
CASES = [(case, None) for case in (*SMALL, *LONG, *NARROW)] + [
    (case, layout) for case in (*LONG[:3], *NARROW[-8:-2])
    for layout in list(generate.SCHEMES[case.kernel.compute].layouts(case.kernel))[1::_APART[case.kernel.compute]]]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory):
    """Each kernel in a library of its own, which compile side by side."""
    sources = [generate.generate(case.kernel, f"k{n}_attention", layout) for n, (case, layout) in enumerate(CASES)]
    folder = tmp_path_factory.mktemp("attention")
    with ThreadPoolExecutor() as pool:
        return list(zip(sources, pool.map(lambda source: compiled(source, folder), sources), strict=True))


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n][0].name}")
def test_every_case(libraries, number):
    source, built = libraries[number]
    case, layout = CASES[number]
    inputs = case.tensors()
    wanted, eager = case.computed(inputs), case.computed(inputs, torch.float32)
    given = [t.contiguous().cuda() for t in inputs]
    function = built.run
    function.restype = ctypes.c_char_p
    workspace = torch.empty(max(256, source.workspace_bytes), dtype=torch.uint8, device="cuda").fill_(255)
    found = []
    for _ in range(3):
        output = torch.full(case.node.shape, -7.0, device="cuda", dtype=torch_dtype(case.kernel.compute))
        message = function(*(ctypes.c_void_p(t.data_ptr()) for t in (*given, output, workspace)),
                           ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        assert message is None, f"{layout}: {message}"
        torch.cuda.synchronize()
        found.append(output.cpu())
    assert all(torch.equal(found[0].nan_to_num(), other.nan_to_num()) for other in found[1:]), layout
    assert torch.equal(found[0].isnan(), wanted.isnan()), layout
    ours, theirs = (error(case, inputs, result, wanted) for result in (found[0], eager))
    assert ours <= 2 * theirs + ROUNDED[case.kernel.compute], (layout, ours, theirs)


class Attentive(nn.Module):
    """Attention of eight heads, by PyTorch's operator or by hand, causal or not."""

    def __init__(self, by_hand: bool, causal: bool) -> None:
        super().__init__()
        self.by_hand, self.causal = by_hand, causal
        self.inside, self.outside = nn.Linear(512, 1536), nn.Linear(512, 512)
        self.register_buffer("hidden", torch.ones(256, 256, dtype=torch.bool).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(*x.shape[:2], 8, 64).transpose(1, 2) for part in self.inside(x).chunk(3, -1))
        if self.by_hand:
            scores = q @ k.transpose(-2, -1) / 8
            scores = scores.masked_fill(self.hidden, float("-inf")) if self.causal else scores
            y = torch.softmax(scores, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.outside(y.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_whole_models(by_hand, causal, monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr("kernelwright.selection.is_slower", lambda timing: False)
    monkeypatch.setattr("kernelwright.tuned.losing_regions", lambda plan, times, *, clearly=False: {})
    torch.manual_seed(0)
    model, x = Attentive(by_hand, causal).cuda().eval(), torch.randn(16, 256, 512, device="cuda")
    result = kernelwright.optimize(model, (x,), target="cuda", effort="quick", baselines="graph")
    assert result.certificate.passed
    assert any(k.kind == "attention" for k in result.modes[0].kernels), [k.reason for k in result.modes[0].kept]
