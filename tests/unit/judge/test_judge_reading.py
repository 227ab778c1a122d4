"""Reading a candidate's text: the verdicts that need no run, and hints with their lines; none on honest programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from places import ROOT, TESTS

from kernelwright.judge.reading import certain, read_candidate
from kernelwright.judge.reading.ctokens import functions_of, launches_of, tokens_of
from kernelwright.judge.reading.kernels import pointer_parameters

FOLDER = TESTS / "candidates" / "transposed_mean"
PROBLEM = (FOLDER / "model.py").read_text()


def solution(number: int) -> str:
    return (FOLDER / f"solution_{number}.py").read_text()


def kinds(text: str, problem: str | None = None) -> set[str]:
    return {finding.kind for finding in read_candidate(text, problem)}


def finding(text: str, kind: str, problem: str | None = None):
    """The only finding of a kind."""
    found = [f for f in read_candidate(text, problem) if f.kind == kind]
    assert len(found) == 1, [f.sentence for f in found]
    return found[0]


def model(*lines: str, init: str = "pass", head: str = "") -> str:
    """A candidate whose forward has these lines."""
    body = "".join(f"        {line}\n" for line in lines)
    return (f"import torch\nfrom torch import nn\n{head}\n\nclass ModelNew(nn.Module):\n"
            f"    def __init__(self, *given):\n        super().__init__()\n        {init}\n\n"
            f"    def forward(self, x):\n{body}")


def cuda(text: str, *lines: str, functions: str = '["run"]', declared: str = "torch::Tensor run(torch::Tensor "
                                                                             "x);") -> str:
    """A candidate with a CUDA text."""
    head = (f'from torch.utils.cpp_extension import load_inline\nSOURCE = r"""\n{text}"""\next = load_inline(name="e", '
            f'cpp_sources="{declared}", cuda_sources=SOURCE, functions={functions})\n')
    return model(*(lines or ("return ext.run(x.contiguous())",)), head=head)


# ---- what is certain

SEVEN = [
    (1, "BUILD-EMPTY", "empty-file", None), (2, "BUILD-EMPTY", "only-comments", 1),
    (3, "BUILD-SYNTAX", "markdown-without-code", 6), (4, "BUILD-SYNTAX", "cut-off-string", 5),
    (5, "BUILD-SYNTAX", "cut-off", 43), (6, "BUILD-NO-CLASS", "no-class", 4),
]


@pytest.mark.parametrize(("number", "verdict", "kind", "line"), SEVEN)
def test_six_candidates_are_decided_without_a_run(number, verdict, kind, line):
    found, reason = certain(solution(number))
    assert (found, reason.kind, reason.source) == (verdict, kind, "read")
    assert reason.sentence and reason.fix
    if line is not None:
        assert reason.line is not None
        assert reason.text == solution(number).split("\n")[reason.line - 1].strip()


def test_their_reasons_differ_and_say_where():
    reasons = [certain(solution(n))[1] for n in range(1, 7)]
    assert len({r.sentence for r in reasons}) == 6
    assert "0 bytes" in reasons[0].sentence
    assert "cuda_source" in reasons[3].sentence and "no class ModelNew" in reasons[3].sentence
    assert "ModelNew.__init__" in reasons[4].sentence and reasons[4].line == 43
    assert reasons[3].line == 5


def test_the_seventh_has_its_faults_named():
    text = solution(7)
    assert certain(text) is None
    found = {f.kind: f for f in read_candidate(text, PROBLEM)}
    assert {"placeholder", "missing-attribute", "frozen-size", "unchecked-launch"} <= set(found)
    lines = text.split("\n")
    assert all(f.source == "read" and f.text == lines[f.line - 1].strip() for f in found.values())
    assert "self.conv_transpose" in found["missing-attribute"].sentence
    assert "nn.ConvTranspose2d(in_channels, out_channels, kernel_size)" in found["missing-attribute"].fix
    assert "TODO" in found["placeholder"].sentence and "fused_kernel" in found["placeholder"].sentence
    assert "OUT_CHANNELS 128" in found["frozen-size"].sentence and found["frozen-size"].line == 9
    assert "<<<" in found["unchecked-launch"].text and "C10_CUDA_KERNEL_LAUNCH_CHECK" in found["unchecked-launch"].fix


@pytest.mark.parametrize("text", [
    "import torch\nModelNew = torch.nn.Identity\n", "from other import ModelNew\n", "from other import *\n",
    "import torch\nif True:\n    class ModelNew(torch.nn.Module):\n        pass\n",
    "try:\n    from a import Fast as ModelNew\nexcept ImportError:\n    pass\n",
    "def make():\n    global ModelNew\n    ModelNew = object\nmake()\n", "exec('class ModelNew: pass')\n",
    "globals()['Model' + 'New'] = "
    "object\n", "for ModelNew in [object]:\n    pass\n", "def __getattr__(name):\n    return 1\n",
    "import sys\nsetattr(sys.modules[__name__], 'ModelNew', object)\n", "with open('x') as ModelNew:\n    pass\n",
])
def test_whatever_may_bind_the_class_is_left_to_the_run(text):
    assert certain(text) is None


def test_another_class_is_named_as_the_likely_one():
    verdict, reason = certain("from torch import nn\nclass Fast(nn.Module):\n    def forward(self, x):\n        "
                              "return x\n")
    assert verdict == "BUILD-NO-CLASS" and "Fast (line 2)" in reason.sentence and "ModelNew" in reason.fix


def test_a_class_inside_a_function_is_none():
    assert certain("def f():\n    class ModelNew:\n        pass\n")[0] == "BUILD-NO-CLASS"


def test_fences_around_code_say_which_lines_to_keep():
    code = model("return x")
    verdict, reason = certain(f"Here it is:\n\n```python\n{code}```\nDone.\n")
    assert (verdict, reason.kind, reason.line) == ("BUILD-SYNTAX", "markdown-fence", 3)
    assert reason.evidence == {"first": 4, "last": 3 + code.count("\n"), "parses": True}
    assert certain(code) is None


@pytest.mark.parametrize(("text", "kind"), [
    ("import torch\nclass ModelNew:\n    def forward(self, x)\n        return x\n", "syntax"),
    ("import torch\nclass ModelNew:\n    def forward(self, x):\n    return x\n", "indentation"),
    ("import torch\nclass ModelNew:\n    def forward(self, x):\n", "cut-off"),
    ("import torch\nclass ModelNew:\n    def forward(self, x):\n        return x +\n", "cut-off"),
    ("import torch\nx = [1,\nclass ModelNew:\n    pass\n\n\ny = 2\nz = 3\n", "syntax"),
    ("import torch\nx = 'abc\n", "cut-off"), ("x = 1\0\n", "not-text"), ("I cannot help with that.\n", "prose"),
])
def test_kinds_of_broken_python(text, kind):
    verdict, reason = certain(text)
    assert (verdict, reason.kind) == ("BUILD-SYNTAX", kind), reason.sentence


# ---- no false alarm


def own_files() -> list[Path]:
    return [*sorted((ROOT / "examples" / "generated").glob("*.py")), *sorted((ROOT / "problems").glob("*/*.py"))]


@pytest.mark.parametrize(("lines", "line", "column"), [
    (["class ModelNew:", "    def forward(self, x):", "        y = torch.relu(self.f(x)", "        return y"], 3, 23),
    (["class ModelNew:", "    def forward(self, x):", "        y = [x,", "             x", "        return y"], 3, 13),
    (["class ModelNew:", "    def forward(self, x):", "        return f(x", "", "def late(): return 1"], 3, 17),
])
def test_a_bracket_that_is_left_open_is_cited_where_it_opens(lines, line, column):
    """Also near the end of a file that goes on: it was not cut off."""
    verdict, finding = certain("\n".join(lines) + "\n")
    assert (verdict, finding.kind, finding.line) == ("BUILD-SYNTAX", "syntax", line)
    assert f"line {line}, column {column}," in finding.sentence and "cut off" not in finding.sentence


def test_a_text_that_ends_inside_of_a_bracket_is_cut_off():
    for text in ("x = f(1,\n      2,\n", "class ModelNew:\n    def forward(self, x):\n        return f(x\n"):
        verdict, finding = certain(text)
        assert (verdict, finding.kind) == ("BUILD-SYNTAX", "cut-off")


def test_our_own_files_raise_no_false_alarm():
    """What is found in them is true: a table that one kernel does not need, and exp that the model itself writes."""
    found = {(path.name, f.kind) for path in own_files() for f in read_candidate(path.read_text())}
    assert found <= {("convt_batchnorm_pool_cuda_new.py", "unused-input"),
                     ("matrix_diagonal.py", "exp-without-maximum")}


@pytest.mark.parametrize(("parameters", "found"), [
    ("void (*kernel)(Parameters...), const float* x", {"x": True}),
    ("float (*rows)[4], int n", {"rows": False}),
    ("const float (&table)[16]", {"table": True}),
    ("float (*apply)(const float*), double y[]", {"y": False}),
])
def test_pointers_to_functions_are_no_data(parameters, found):
    function, = functions_of(tokens_of(f"void call({parameters}) {{ }}"))
    assert pointer_parameters(function) == found


def test_honest_idioms_raise_none():
    text = model(
        '"""A two-pass softmax; eval() is not called, threading is not used, TODO is a word."""',
        "for _ in "
        "range(1):", "    pass", "try:", "    y = self.graph(x)", "except RuntimeError:", "    y = torch.relu(x)",
        "if hasattr(self, 'later'):", "    y = y + self.later", "return y if x.numel() else x",
        init="self.graph = torch.nn.Identity()  # subprocess, gc.get_objects, sys._getframe")
    assert read_candidate(text) == []


def test_a_right_kernel_raises_none():
    text = cuda(r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#define THREADS 256
// no TODO: it is whole; k<<<1, 2>>>(x) would be wrong
__device__ float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }
__global__ void softmax(const float* __restrict__ x, float* __restrict__ y, int columns) {
  __shared__ float partial[THREADS];
  const float* row = x + static_cast<long long>(blockIdx.x) * columns;
  float m = -INFINITY;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) m = fmaxf(m, row[i]);
  partial[threadIdx.x] = m;
  __syncthreads();
  for (int step = THREADS / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + step]);
    __syncthreads();
  }
  m = partial[0];
  float total = 0;
  for (int i = 0; i < columns; ++i) total += expf(row[i] - m);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) y[blockIdx.x * columns + i] =
    sigmoid(expf(row[i] - m) / total);
}
torch::Tensor run(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous());
  auto y = torch::empty_like(x);
  softmax<<<x.size(0), THREADS, 0, at::cuda::getCurrentCUDAStream()>>>(
    x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
""")
    assert [f.sentence for f in read_candidate(text, PROBLEM)] == []


# ---- Python


def test_attributes_are_followed_through_methods_and_bases():
    text = ("from torch import nn\nclass Base(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.a = 1\n        self.register_buffer('b', None)\n        setattr(self, 'c', 3)\n"
            "class ModelNew(Base):\n    d = 4\n    def helper(self, x):\n        return x + self.lost\n"
            "    def forward(self, x):\n        return self.helper(x) + self.a + self.b + self.c + self.d + "
            "self.training\n")
    found = finding(text, "missing-attribute")
    assert (found.line, found.evidence["attribute"]) == (11, "lost") and "helper (called by forward)" in found.sentence


@pytest.mark.parametrize("init", ["setattr(self, name, 1)", "self.__dict__.update(a=1)", "fill(self)", "me = self",
                                  "self.register_buffer(name, x)"])
def test_doubt_about_attributes_is_silent(init):
    text = model("return self.unknown(x)", init=init)
    assert "missing-attribute" not in kinds(text)
    assert "missing-attribute" in kinds(model("return self.unknown(x)"))


def test_undefined_names():
    assert finding(model("return lenght + x"), "undefined-name").evidence["name"] == "lenght"
    assert "undefined-name" not in kinds(model("return F.relu(x)", head="import torch.nn.functional as F"))
    assert "undefined-name" not in kinds(model("return relu(x)", head="from torch.nn.functional import *"))


@pytest.mark.parametrize("lines", [("pass",), ("raise NotImplementedError",), ("return x",), ('"""Later."""', "...")])
def test_an_empty_forward(lines):
    assert "placeholder" in kinds(model(*lines))


@pytest.mark.parametrize(("lines", "head", "kind"), [
    (("if x.data_ptr() in C:", "    return C[x.data_ptr()]", "return x + 1"), "C = {}", "output-cache"),
    (("key = (id(x), x.shape)", "y = C.get(key)", "return y"), "C = {}", "output-cache"),
    (("return x.as_subclass(Lazy)",), "class Lazy(torch.Tensor):\n    pass", "tensor-subclass"),
    (("return x + 1",), "T = torch.Tensor\nclass Lazy(T):\n    pass", "tensor-subclass"),
    (("return x + 1",), "class L:\n    def __torch_function__(self):\n        return 1", "tensor-subclass"),
    (("threading.Thread(target=print).start()", "return x + 1"), "import threading", "thread"),
    (("return x + 1",), "import time\ntime.time = lambda: 0", "patch"),
    (("return x + 1",), "setattr(torch.cuda.Event, 'elapsed_time', None)", "patch"),
    (("return x + 1",), "torch.backends.cuda.matmul.allow_tf32 = True", "precision-flag"),
    (("return torch.load('y.pt')",), "", "file"), (("return x + len(gc.get_objects())",), "import gc", "introspection"),
    (("return x + len(sys._getframe().f_back.f_locals)",), "import sys", "introspection"),
    (("return x + len(sys.modules)",), "import sys", "introspection"),
    (("return x + 1",), "import os\nTIMED = os.environ.get('PHASE')", "environment"),
    (("return x + 1",), "import subprocess as s\ns.run(['ls'])", "process"),
    (("return x + 1",), "import importlib\nm = importlib.import_module('thr' + 'eading')", "dynamic-code"),
    (("return x + 1",), "from model import Model", "reference"),
    (("return torch.log(torch.sum(torch.exp(x), dim=1))",), "", "exp-without-maximum"),
])
def test_conduct(lines, head, kind):
    found = finding(model(*lines, head=head), kind)
    assert found.line and found.text


def test_inheriting_forward_from_a_model():
    text = "from torch import nn\nclass Model(nn.Module):\n    pass\nclass ModelNew(Model):\n    pass\n"
    assert "reference" in kinds(text)


# ---- kernels

GUARDED = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i];"
LAUNCH = "k<<<(x.numel() + 255) / 256, 256, 0, stream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());"


def kernel(body: str = GUARDED, launch: str = LAUNCH, check: str = "C10_CUDA_KERNEL_LAUNCH_CHECK();",
           top: str = "") -> str:
    return cuda(f"{top}\n__global__ void k(const float* x, float* y, int n) {{ {body} }}\n"
                f"torch::Tensor run(torch::Tensor x) {{ auto y = torch::empty_like(x); {launch} {check} return y; }}\n")


def test_the_kernel_that_the_faults_are_put_into_has_none():
    assert read_candidate(kernel(), PROBLEM) == []


@pytest.mark.parametrize(("faults", "kind"), [
    ({"body": ""}, "placeholder"), ({"body": "y[threadIdx.x] = 0.0f; /* placeholder */"}, "placeholder"),
    ({"body": "int i = blockIdx.x * blockDim.x + threadIdx.x; y[i] = x[i];"}, "no-guard"),
    ({"body": "float s = 0; for (int i = 0; i < n; ++i) s += expf(x[i]); y[0] = logf(s);"}, "exp-without-maximum"),
    ({"body": "if (threadIdx.x < 7) { __syncthreads(); y[0] = x[n]; }"}, "divergent-barrier"),
    ({"body": "int t = threadIdx.x, n2 = 1; for (int i = t; i < n; i += 32) { y[i] = x[i]; __syncthreads(); }"},
     "divergent-barrier"),
    ({"body": "__shared__ float s[64]; s[threadIdx.x] = x[n]; __syncthreads(); if (n) y[0] = s[n];"}, "shared-memory"),
    ({"body": "if (threadIdx.x < n) y[threadIdx.x * 512 * 3] = x[threadIdx.x / 48];",
      "top": "#define HEIGHT 512 // rows"}, "frozen-size"),
    ({"check": ""}, "unchecked-launch"), ({"launch": LAUNCH.replace(", 0, stream()", "")}, "default-stream"),
    ({"launch": LAUNCH.replace("(x.numel() + 255) / 256", "64")}, "frozen-grid"),
    ({"launch": LAUNCH.replace(", 256, 0", ", dim3(64, 32), 0")}, "block-too-large"),
    ({"launch": LAUNCH.replace(", 0, stream()", ", 65536, stream()")}, "shared-memory"),
    ({"launch": "", "check": ""}, "dead-kernel"),
    ({"launch": f"static torch::Tensor kept = x; {LAUNCH}"}, "static-cache"),
    ({"launch": f"std::thread worker(f); {LAUNCH}"}, "thread"),
])
def test_faults_of_kernels(faults, kind):
    found = finding(kernel(**faults), kind, PROBLEM)
    assert found.line and found.text in kernel(**faults)


def test_a_uniform_condition_may_hold_a_barrier():
    body = "for (int s = 0; s < n; ++s) { if (blockIdx.x > 3) __syncthreads(); y[s] = x[s]; }"
    assert "divergent-barrier" not in kinds(kernel(body=body))


def test_addresses_without_contiguous():
    assert "not-contiguous" in kinds(kernel().replace(".contiguous()", ""))
    assert "not-contiguous" not in kinds(kernel())


def test_indices_beyond_32_bits_only_where_the_input_is_that_large():
    large = PROBLEM.replace("batch_size = 16", "batch_size = 16 * 1024")
    assert "narrow-index" in kinds(kernel(), large) and "narrow-index" not in kinds(kernel(), PROBLEM)


def test_functions_of_the_extension():
    assert finding(cuda("__global__ void k() { return; }\nvoid f() { k<<<1, 1, 0, s>>>(); CUDA_CHECK(0); }"),
                   "missing-function").evidence["function"] == "run"
    text = kernel().replace("torch::Tensor run(torch::Tensor x);", "")
    assert finding(text, "missing-declaration").evidence["function"] == "run"
    assert "dead-kernel" in kinds(kernel().replace("ext.run(", "torch.relu("))


def test_sizes_that_are_checked_are_not_reported():
    text = kernel(top="#define HEIGHT 512", check="TORCH_CHECK(x.size(2) == HEIGHT); C10_CUDA_KERNEL_LAUNCH_CHECK();")
    assert "frozen-size" not in kinds(text, PROBLEM)


# ---- tokens


def test_tokens_know_comments_strings_and_directives():
    text = ('// a <<<1>>>(b)\n#define LAUNCH(k) \\\n  k<<<1, 2>>>()\n'
            'const char* s = "x<<<1, 1>>>(y)"; /* " */ f(R"(")");\n')
    tokens = tokens_of(text)
    assert [t.kind for t in tokens].count("directive") == 1 and list(launches_of(tokens)) == []
    assert next(t for t in tokens if t.text == "f").line == 4


def test_launches_and_functions():
    text = ("namespace a "
            "{\ntemplate <typename T, int N> __global__ void __launch_bounds__(256) k(T* x) { x[0] = N < 3; }\n}\n"
            "void g() {\n  a::k<std::pair<int, int>, 256><<<dim3(1, 2), (n < 3 ? 1 : 2)>>>(p, q);\n}\n")
    tokens = tokens_of(text)
    (launch,) = launches_of(tokens)
    assert (launch.name, launch.kernel, launch.line) == ("k", "a::k<std::pair<int,int>,256>", 5)
    assert len(launch.configuration) == 2 and len(launch.arguments) == 2
    assert [(f.name, f.is_kernel) for f in functions_of(tokens)] == [("k", True), ("g", False)]


# ---- how it is called


def test_two_definitions_of_the_class_are_told():
    text = model("return x * 2") + "\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return x * 3\n"
    found = finding(text, "second-class")
    assert found.line == text.split("\n").index("class ModelNew(nn.Module):", 9) + 1 and "line 5" in found.sentence


@pytest.mark.parametrize(("own", "wanted"), [
    ("def forward(self, x)", True), ("def forward(self, x, y)", False), ("def forward(self, x, y, z)", True),
    ("def forward(self, x, y=None)", False), ("def forward(self, *given)", False),
    ("def forward(self, x, y, z=1)", False),
])
def test_arguments_that_the_problem_does_not_give(own, wanted):
    problem = ("from torch import nn\nclass Model(nn.Module):\n    def forward(self, x, residual):\n"
               "        return x + residual\n")
    text = f"from torch import nn\nclass ModelNew(nn.Module):\n    {own}:\n        return x * 2\n"
    found = [f for f in read_candidate(text, problem) if f.kind == "signature"]
    assert bool(found) == wanted
    if wanted:
        assert found[0].fix == "Take what the model takes: def forward(self, x, residual)." and found[0].line == 3


def test_what_is_likely_meant_is_said():
    text = model("return self.fc(x)", init="self.fc1 = nn.Linear(4, 4)")
    assert "is self.fc1 meant?" in finding(text, "missing-attribute").fix
    assert "is _kernel meant?" in finding(model("return kernel(x)", head="_kernel = torch.relu"), "undefined-name").fix


# ---- words around the code

CODE = "import torch\nfrom torch import nn\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return x\n"


@pytest.mark.parametrize(("before", "behind", "lines"), [
    ("Sure! Below is the code that you asked for.\n\n", "", (3, 8)),
    ("", "\nThis version fuses the sum with the division.\n", (1, 7)),
    ("Here is the code:\n", "\nIt should be about twice as fast as the original.\n", (2, 8)),
])
def test_words_around_the_code_are_told_from_faults_in_it(before, behind, lines):
    verdict, found = certain(before + CODE + behind)
    assert (verdict, found.kind) == ("BUILD-SYNTAX", "text-around")
    first, last = lines
    assert found.evidence["first"] == first and abs(found.evidence["last"] - last) <= 1
    kept = (before + CODE + behind).split("\n")[first - 1:found.evidence["last"]]
    compile("\n".join(kept), "candidate", "exec")


@pytest.mark.parametrize("text", [CODE + "    def other(self:\n", CODE + "\ndef broken(\n", "x = = 1\n" + CODE])
def test_faults_in_the_code_are_no_words_around_it(text):
    verdict, found = certain(text)
    assert verdict == "BUILD-SYNTAX" and found.kind != "text-around"


# ---- loops on several threads


def loop(text: str) -> str:
    """A candidate whose C++ function has these lines."""
    return model("return ext.run(x)", head=(
        'from torch.utils.cpp_extension import load_inline\nSOURCE = r"""\n#include <torch/extension.h>\n'
        "torch::Tensor run(torch::Tensor x) {\n    auto y = torch::zeros_like(x);\n"
        "    const float* in = x.data_ptr<float>(); float* out = y.data_ptr<float>();\n    float sum = 0;\n"
        f'{text}\n    return y;\n}}\n"""\next = load_inline(name="e", cpp_sources=SOURCE, functions=["run"])\n'))


@pytest.mark.parametrize(("text", "words"), [
    ("#pragma omp parallel for\nfor (int i = 0; i < n; ++i) sum += in[i];", "reduction(+:sum)"),
    ("#pragma omp parallel for schedule(static)\nfor (int i = 0; i < n; ++i) {\n  float v = in[i], w = 0;\n"
     "  w += v; sum *= v;\n}", "reduction(*:sum)"),
    ("#pragma omp parallel for\nfor (int i = 0; i < n; ++i)\n  for (int j = 0; j < m; ++j) out[j] += in[i * m + j];",
     "part of the index of out"),
])
def test_sums_that_threads_share(text, words):
    found = finding(loop(text), "shared-sum")
    assert words in found.fix and re.search(r"[+*]=", found.text)


@pytest.mark.parametrize("text", [
    "#pragma omp parallel for reduction(+:sum)\nfor (int i = 0; i < n; ++i) sum += in[i];",
    "#pragma omp parallel for\nfor (int i = 0; i < n; ++i) {\n  at::BFloat16 t = 0, u = 1;\n  t += in[i]; u -= 2;\n"
     "  out[i] = t;\n}",
    "#pragma omp parallel for\nfor (int i = 0; i < n; ++i) {\n  float* row = out + i * m;\n"
    "  for (int j = 0; j < m; ++j) row[j] += in[j];\n}",
    "#pragma omp parallel for collapse(2)\nfor (int i = 0; i < n; ++i)\n  for (int j = 0; j < m; ++j) {\n"
    "    int place = i * m + j;\n    for (int k = 0; k < 3; ++k) out[place] += in[k];\n  }",
    "#pragma omp parallel for\nfor (int i = 0; i < n; ++i) {\n  #pragma omp atomic\n  sum += in[i];\n}",
    "#pragma omp parallel for\nfor (int i = 0; i < n; ++i) parts[omp_get_thread_num()] += in[i];",
    "for (int i = 0; i < n; ++i) sum += in[i];",
])
def test_sums_that_no_two_threads_change(text):
    assert "shared-sum" not in kinds(loop(text))


def test_every_size_of_a_declaration_is_told():
    text = loop("    const int rows = 16, columns = 37;\n    const int64_t size = x.size(0), width = 41;")
    problem = "rows = 16\ncolumns = 37\nwidth = 41\n"
    assert {"const columns = 37", "const width = 41"} <= set(
        finding(text, "frozen-size", problem).sentence.partition("(")[2].partition(")")[0].split(", "))
