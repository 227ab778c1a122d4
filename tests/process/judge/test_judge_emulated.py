"""CUDA candidates without a GPU: recorded, rewritten, built for the CPU, run; wrong ones are not right by accident."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from places import ROOT

from kernelwright.judge.check.emulated import run as emulated
from kernelwright.judge.check.emulated.build import compile_for_device
from kernelwright.judge.check.emulated.run import emulate, emulated_failure, needs_device
from kernelwright.judge.check.emulated.text import emulated_text, unsupported, uses_torch
from kernelwright.judge.inside.recorder import NotEmulated, Recorder, pretending
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.worker.process import Worker
from kernelwright.judge.worker.remote import CandidateRaised, RemoteCandidate
from kernelwright.problem.load import load_problem

CANDIDATE = r'''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>

#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
#define CHECK_INPUT(x) CHECK_CUDA(x); TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define THREADS 128

template <typename scalar_t>
__global__ void scale_kernel(const scalar_t* __restrict__ x, const scalar_t* __restrict__ bias,
                             scalar_t* __restrict__ y, int64_t count, int columns) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i] * scalar_t(2) + bias[i % columns];
}

__global__ void scale_four_kernel(const float4* x, float4* y, int count) {  // a vector epilogue
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float4 v = __ldg(x + i);
  y[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
}

__global__ void unguarded_kernel(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i] * 2;
}

__device__ __forceinline__ float warp_max(float v) {
  for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

template <bool SYNCHRONISED>
__global__ void __launch_bounds__(THREADS) softmax_kernel(const float* __restrict__ x, float* __restrict__ y,
                                                          int columns) {
  extern __shared__ float row[];
  __shared__ float partial[THREADS / 32];
  const int t = threadIdx.x;
  const float* in = x + static_cast<int64_t>(blockIdx.x) * columns;
  float m = -INFINITY;
  for (int i = t; i < columns; i += blockDim.x) { row[i] = in[i]; m = fmaxf(m, in[i]); }
  m = warp_max(m);
  if (t % 32 == 0) partial[t / 32] = m;
  if constexpr (SYNCHRONISED) __syncthreads();
  for (int w = 0; w < THREADS / 32; ++w) m = fmaxf(m, partial[w]);
  if constexpr (SYNCHRONISED) __syncthreads();
  float s = 0.f;
  for (int i = t; i < columns; i += blockDim.x) { row[i] = __expf(row[i] - m); s += row[i]; }
  for (int o = 16; o > 0; o >>= 1) s += __shfl_down_sync(0xffffffffu, s, o);
  if (t % 32 == 0) partial[t / 32] = s;
  if constexpr (SYNCHRONISED) __syncthreads();
  s = 0;
  for (int w = 0; w < THREADS / 32; ++w) s += partial[w];
  for (int i = t; i < columns; i += blockDim.x) y[static_cast<int64_t>(blockIdx.x) * columns + i] = row[i] / s;
}

torch::Tensor run(torch::Tensor x, torch::Tensor bias, int64_t kind) {
  CHECK_INPUT(x);
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y = torch::empty_like(x);
  auto z = torch::empty({x.size(0), x.size(1)}, torch::TensorOptions().dtype(x.dtype()).device(torch::kCUDA));
  auto stream = at::cuda::getCurrentCUDAStream();
  const int blocks = (x.numel() + THREADS - 1) / THREADS;
  if (kind == 1) {
    unguarded_kernel<<<blocks, THREADS>>>(x.data_ptr<float>(), y.data_ptr<float>());
  } else if (kind == 2) {
    scale_four_kernel<<<blocks, THREADS, 0, stream>>>(reinterpret_cast<const float4*>(x.data_ptr<float>()),
                                                      reinterpret_cast<float4*>(y.data_ptr<float>()), x.numel() / 4);
  } else {
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "run", [&] {
      scale_kernel<<<blocks, kind == 3 ? 2048 : THREADS, 0, stream>>>(x.data_ptr<scalar_t>(), bias.data_ptr<scalar_t>(),
                                                                      y.data_ptr<scalar_t>(), x.numel(), x.size(1));
    });
  }
  const size_t shared = x.size(1) * sizeof(float);
  float* const from = y.data_ptr<float>();
  float* const to = z.data_ptr<float>();
  if (kind == 4)
    softmax_kernel<false><<<dim3(x.size(0)), THREADS, shared, stream>>>(from, to, x.size(1));
  else
    softmax_kernel<true><<<dim3(x.size(0)), THREADS, shared, stream>>>(from, to, x.size(1));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return z;
}
"""
DECLARED = "torch::Tensor run(torch::Tensor x, torch::Tensor bias, int64_t kind);"
ext = load_inline(name="judged_softmax", cpp_sources=DECLARED,
                  cuda_sources=SOURCE, functions=["run"], extra_cuda_cflags=["-O3", "--use_fast_math"])


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(columns, device="cuda"))

    def forward(self, x):
        assert x.is_cuda and x.device.type == "cuda" and torch.cuda.is_available()
        return ext.run(x.contiguous(), self.bias, KIND)
'''
MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        return torch.softmax(2 * x + self.bias, 1)


def get_inputs():
    return [torch.randn(7, 300)]


def get_init_inputs():
    return [300]
"""
LIMITS = Limits(build_seconds=600, run_seconds=120)
RIGHT, UNGUARDED, VECTORS, TOO_MANY_THREADS, UNSYNCHRONISED = range(5)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """What records, builds and attaches; all candidates of this file have one source, which is built once."""
    folder = tmp_path_factory.mktemp("emulated")
    (folder / "model.py").write_text(MODEL)
    patch = pytest.MonkeyPatch()
    patch.setattr(emulated, "compile_for_device", lambda call, seconds: (None, "the test does not ask it"))
    problem = load_problem(folder / "model.py", device="cpu")

    def make(kind: int) -> RemoteCandidate:
        path = folder / f"candidate_{kind}.py"
        path.write_text(CANDIDATE + f"\n\nKIND = {kind}\n")
        found = emulate(path, path.read_text(), LIMITS)
        assert found.verdict is None, found.finding
        assert "emulation" in found.words and "the test does not ask it" in found.words
        worker = Worker(path, torch.device("cpu"), LIMITS)
        workers.append(worker)
        found.attach(worker)
        return RemoteCandidate(worker, problem, 1, False)

    workers: list[Worker] = []
    yield make
    for worker in workers:
        worker.close()
    patch.undo()


def differences(remote: RemoteCandidate, calls: int = 4) -> list[float]:
    """Largest differences from float64, a call each; the emulation runs threads in another order each time."""
    found = []
    for seed in range(calls):
        x = torch.randn(7, 300, generator=torch.Generator().manual_seed(seed))
        expected = torch.softmax(2 * x.double(), 1)
        found.append(float((remote(x).double() - expected).abs().max().nan_to_num(1e9)))
    return found


@pytest.mark.parametrize("kind", [RIGHT, VECTORS])
def test_an_honest_candidate_runs_right(build, kind):
    assert max(differences(build(kind))) < 1e-6


def test_a_missing_barrier_shows(build):
    assert max(differences(build(UNSYNCHRONISED))) > 1e-3


@pytest.mark.parametrize(("kind", "verdict", "words"), [
    (UNGUARDED, "WRONG-OUT-OF-BOUNDS", "illegal memory access"), (TOO_MANY_THREADS, "CRASH-LAUNCH", "1..1024 threads"),
])
def test_what_a_device_refuses_is_named(build, kind, verdict, words):
    remote = build(kind)
    with pytest.raises(CandidateRaised) as raised:
        remote(torch.randn(7, 300))
    found, finding = emulated_failure(raised.value.error)
    assert found == verdict and words in finding.sentence and finding.fix


@pytest.mark.parametrize(("words", "verdict", "kind"), [
    ("an illegal memory access at address 0x7f00", "WRONG-OUT-OF-BOUNDS", "out-of-bounds"),
    ("divergent barrier: it reached the __syncthreads() of line 4", "WRONG-RACE", "barrier"),
    ("__shfl_sync of line 9: the mask 0x00000001 leaves out the calling lane 3", "WRONG-RACE", "barrier"),
    ("integer division by zero or overflow", "CRASH-DEVICE", "kernel-failed")])
def test_faults_have_the_verdicts_that_a_device_s_tools_give(words, verdict, kind):
    message = f"CUDA emulation: the kernel k<<<(1, 1, 1), (32, 1, 1), 0>>> failed: {words}"
    found, finding = emulated_failure({"type": "RuntimeError", "message": message, "line": 7})
    assert (found, finding.kind, finding.line) == (verdict, kind, 7) and words in finding.sentence and finding.fix


# ---- what needs a device


def test_what_needs_a_device():
    assert needs_device(CANDIDATE) == "CUDA"
    assert needs_device("import triton.language as tl\n") == "Triton"
    assert needs_device("import torch\n# __global__ void k()\n") is None and needs_device("def (") is None
    # What kernelwright emits can build for either device, and names the options of both.
    generated = ROOT / "examples" / "generated"
    for file in generated.glob("*.py"):
        has_kernels = file.stem.endswith("_cuda_new") and "no kernel pays" not in file.read_text()
        assert needs_device(file.read_text()) == ("CUDA" if has_kernels else None), file.name


def test_triton_is_refused_with_a_reason(tmp_path):
    found = emulate(tmp_path / "x.py", "import triton\n", LIMITS)
    assert found.verdict == "JUDGE-NO-DEVICE" and "Triton" in found.finding.sentence


@pytest.mark.parametrize(("text", "words"), [
    ("#include "
     "<cooperative_groups.h>\n", "header"), ("namespace cg = x; void f() { cg::grid_group g; }", "cooperative"),
    ("__global__ void k() { asm volatile(\"bar.sync 0;\"); }", "PTX"), ("__global__ void k(__half* x) {}", "16-bit"),
    ("__global__ void k(half* x) {}", "16-bit"), ("void f() { cublasSgemm(); }", "libraries"),
    ("void f() { using namespace nvcuda; wmma::fill(); }", "tensor cores"), ("#include <cub/cub.cuh>\n", "header"),
    ("__global__ void k() "
     "{ k<<<1, 1>>>(); }", "launches from kernels"), ("void f(cudaTextureObject_t t) {}", "textures"),
])
def test_what_the_emulation_lacks_is_named(text, words):
    assert words in unsupported([text])[0]


def test_words_that_only_look_like_it_are_none():
    text = "// asm wmma\nvoid f(float half, int pipeline, int barrier) { float clock = half / 2; g(\"cub::\"); }"
    assert unsupported([text, "#include <cuda_runtime.h>\n#include <vector>\n#include <math.h>\n"]) is None


# ---- the text


def test_the_text_keeps_its_lines_and_loses_what_is_the_devices():
    text = ("#include <cuda_runtime.h>\n#define GO(k) \\\n  k<<<1, 2>>>(x)\nextern __shared__ __align__(16) float "
            "s[];\n"
            "void f() {\n  k<<<dim3(1,\n         2), n, 4, st>>>(a,\n    b);\n  TORCH_CHECK(x.is_cuda());\n}\n")
    new = emulated_text(text)
    assert new.count("\n") == text.count("\n")
    assert "<<<" not in new and "is_cuda" not in new and "cuda_runtime" not in new
    assert 'kw_judge::launch("k", k, 1, 2, 0, nullptr, x)' in new and "KW_DYNAMIC_SHARED(float, s);" in new
    assert new.split("\n").index("  TORCH_CHECK(x.is_cpu());") == 8


def test_template_kernels_without_arguments_are_deduced():
    new = emulated_text("template <typename T> __global__ void k(T* x) {}\nvoid f() "
                        "{ k<<<1, 2>>>(x); k<int><<<1, 2>>>(x); }")
    assert "KW_JUDGE_DEDUCED(k), 1, 2, 0, nullptr, x)" in new and 'launch("k", k<int>, 1, 2' in new


def test_launch_bounds_are_registered():
    assert 'register_launch_bounds("k", 64)' in emulated_text("__global__ void __launch_bounds__(64) k() {}")


def test_how_much_of_torch_is_needed():
    assert uses_torch(["void f() {} // torch::Tensor"]) == "" and uses_torch(["torch::Tensor f();"]) == "some"
    assert uses_torch(["torch::nn::Linear l(1, 2);"]) == "all"


# ---- the recorder


def test_calls_are_recorded_from_texts_and_files(tmp_path):
    (tmp_path / "a.cu").write_text("__global__ void k() {}")
    (tmp_path / "a.cpp").write_text("void f();")
    recorder = Recorder(None)
    module = recorder.load_inline("one", "void f();", "__global__ void k() {}", ["f"], extra_cuda_cflags=["-O3"])
    recorder.load("two", [str(tmp_path / "a.cpp"), tmp_path / "a.cu"])
    recorder.load_inline(name="three", cpp_sources="void f() {}", functions="f")  # no kernels: none of the recorder's
    assert [(c["name"], c["functions"]) for c in recorder.calls] == [("one", {"f": "f"}), ("two", None)]
    assert recorder.calls[0]["flags"] == ["-O3"]
    assert all((c["cpp"], c["cuda"]) == (["void f();"], ["__global__ void k() {}"]) for c in recorder.calls)
    with pytest.raises(NotEmulated, match="while its file is imported"):
        module.f(1)
    with pytest.raises(NotEmulated, match="not the same each time"):
        Recorder({}).load_inline("one", "void f();", "__global__ void k() {}", ["f"])


def test_cpu_tensors_answer_as_cuda_tensors_only_while_it_lasts():
    x = torch.ones(2)
    with pretending():
        assert x.is_cuda and x.device == torch.device("cuda", 0) and torch.cuda.is_available()
        made = [torch.zeros(2, device="cuda"), torch.empty_like(x, device=x.device), x.to("cuda:0"), x.cuda(), x.cpu()]
        assert torch.nn.Linear(2, 2).cuda()(x).shape == (2,) and torch.cuda.current_stream().cuda_stream == 0
        with pytest.raises(NotEmulated, match=r"torch.cuda.CUDAGraph"):
            torch.cuda.CUDAGraph()
    assert not x.is_cuda and {t.device.type for t in made} == {"cpu"} and torch.cuda.CUDAGraph is not None
    assert torch.cuda.is_available() == (torch.cuda.device_count() > 0)


# ---- nvcc


def call(text: str) -> dict:
    return {"name": "e", "cpp": [], "cuda": [text], "functions": {}, "flags": ["-O3"]}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not there")
def test_nvcc_compiles_or_says_why(tmp_path):
    right = "__global__ void k(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = n; }\n"
    assert compile_for_device(call(right), 300) == (True, "")
    done, log = compile_for_device(call(right.replace("< n", "< lenght")), 300)
    assert done is False and "cuda.cu(4): error" in log
    done, why = compile_for_device(call("#include <nothing/here.h>\n" + right), 300)
    assert done is None and "nothing/here.h" in why


def test_without_nvcc_it_is_said(monkeypatch):
    monkeypatch.setattr("kernelwright.judge.check.emulated.build.find_cuda_compiler", lambda: None)
    assert compile_for_device(call(""), 1) == (None, "there is no nvcc")


def test_the_header_is_part_of_the_package():
    folder = Path(emulated.__file__).parent
    assert (folder / "emulated.hpp").is_file()


LATER = '''
import torch
from torch.utils.cpp_extension import load_inline

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kernels = load_inline("later", cpp_sources="", cuda_sources="") if torch.cuda.is_available() else None

    def forward(self, x):
        return self.kernels.run(x) if self.kernels else x * 2
'''


def test_what_is_built_after_the_import_is_not_judged_by_another_path(tmp_path: Path) -> None:
    """Without a GPU such a candidate is PyTorch's operators, and right or wrong as these are; its kernels never ran."""
    candidate = tmp_path / "candidate.py"
    candidate.write_text(LATER)
    found = emulate(candidate, LATER, Limits())
    assert found.verdict == "JUDGE-NO-DEVICE" and found.finding is not None
    assert "builds its CUDA kernels after it was imported" in found.finding.sentence
    broken = f"{LATER}\nraise ValueError('no')\n"
    candidate.write_text(broken)
    assert emulate(candidate, broken, Limits()).verdict is None, "its own process says what is wrong with it"
