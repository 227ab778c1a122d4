"""The decisive line of a build's log, its place in the candidate's file, and what would mend it. The logs are real."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kernelwright.judge.reading.build_errors import decisive
from kernelwright.judge.reading.build_messages import messages_of

HEAD = 'import torch\nfrom torch.utils.cpp_extension import load_inline\n\nsource = r"""'
FIRST = 4  # the candidate's line of a source's first line


def candidate(source: str) -> str:
    return (HEAD + source + '"""\nblockIdx = "lock"\next = load_inline(name="e", cpp_sources="", cuda_sources=source,\n'
            '                  functions=["thrice"])\n')


NVCC = {
    "unknown name": (
        "__global__ void k(float* y, int length) {\n  if (threadIdx.x < lenght) y[threadIdx.x] = 2.0f;\n}\n",
        '/tmp/x/cuda.cu(6): error: identifier "lenght" is undefined\n'
        '    if (threadIdx.x < lenght) y[threadIdx.x] = 2.0f;\n'
        '                      ^\n\n1 error detected in the compilation of "/tmp/x/cuda.cu".\n',
        "BUILD-COMPILE", FIRST + 1, "lenght", "is length meant?"),
    "semicolon": (
        "__global__ void k(float* y, int n) "
        "{\n  int i = blockIdx.x * blockDim.x + threadIdx.x\n  if (i < n) y[i] = 2.0f;\n}\n",
        '/tmp/x/cuda.cu(7): error: expected a ";"\n    if (i < n) y[i] = 2.0f;\n    ^\n', "BUILD-COMPILE", FIRST + 2,
        'expected a ";"', "semicolon"),
    "arguments": (
        "__device__ float f(float a, float b) { return a + b; }\n__global__ void k(float* y) { y[0] = f(1.0f); }\n",
        "cuda.cu(5): error: too few arguments in function call\n"
        "  __attribute__((global)) void k(float* y) { y[0] = f(1.0f); }\n                                        ^\n",
        "BUILD-COMPILE", FIRST + 1, "too few arguments", "as many arguments"),
    "host function": (
        "#include <vector>\nfloat helper(float x) { return x * x; }\n__global__ void k(float* y) "
        "{ y[0] = helper(1.0f); }\n",
        'cuda.cu(6): error: calling a __host__ function("helper(float)") from a __global__ function("k") is not '
        'allowed\n'
        '\n'
        'cuda.cu(6): error: identifier "helper" is undefined in device code\n\n2 errors detected.\n',
        "BUILD-COMPILE", FIRST + 2, "__host__ function", "Declare helper with __device__"),
    "stream without its header": (
        "__global__ void k(float* y) { y[0] = 0; }\nvoid g(float* y) "
        "{ k<<<1, 2, 0, at::cuda::getCurrentCUDAStream()>>>(y); }\n",
        'cuda.cu(5): error: name followed by "::" must be a class or namespace name\n'
        "  void g(float* y) { k<<<1, 2, 0, at::cuda::getCurrentCUDAStream()>>>(y); }\n                                "
        "  ^\n",
        "BUILD-COMPILE", FIRST + 1, "must be a class or namespace", "#include <ATen/cuda/CUDAContext.h>"),
    "overload": (
        "__global__ void k(unsigned char* y) { atomicAdd(y, 1); }\n",
        'cuda.cu(4): error: no instance of overloaded function "atomicAdd" matches the argument list\n'
        "            argument types are: (unsigned char *, int)\n"
        "  __attribute__((global)) void k(unsigned char* y) { atomicAdd(y, 1); }\n                              ^\n"
        "/usr/local/cuda/bin/../targets/x86_64-linux/include/cuda_fp16.hpp(3447): note #3326-D: function does not "
        "match\n",
        "BUILD-COMPILE", FIRST, "argument types are: (unsigned char *, int)", "argument types"),
    "recursion": (
        "template <int N> struct F { static const int value = F<N - 1>::value + 1; };\n",
        'cuda.cu(4): error: excessive recursion at instantiation of member "F<N>::value [with N=-199]"\n'
        "  template <int N> struct F { static const int value = F<N - 1>::value + 1; };\n"
        "                                                         ^\n          detected during:\n"
        '            instantiation of class "F<N> [with N=-198]" at line 4\n',
        "BUILD-COMPILE", FIRST, "excessive recursion", "a case that ends it"),
    "PTX": (
        '__global__ void k(float* y) { asm volatile("foo.bar.f32 %0, %0;" : "+f"(y[0])); }\n',
        "ptxas /tmp/tmpxft_000011f2_00000000-7_ptx.compute_90.ptx, line 27; error   : Not a name of any known "
        "instruction: "
        "'foo'\nptxas fatal   : Ptx assembly aborted due to errors\n",
        "BUILD-COMPILE", None, "Not a name of any known instruction: 'foo'", "inline PTX"),
    "too much shared memory": (
        "__global__ void k(float* y) { __shared__ float s[32768]; }\n",
        "ptxas error   : Entry function '_Z1kPf' uses too much shared data (0x20000 bytes, 0xc000 max)\n",
        "BUILD-COMPILE", None, "uses too much shared data", "48 KB"),
    "unsupported architecture": (
        "", "nvcc fatal   : Unsupported gpu architecture 'compute_70'\nninja: build stopped: subcommand failed.\n",
        "BUILD-ARCHITECTURE", None, "compute_70", "-gencode"),
    "no device function": (
        "extern __device__ float other(float);\n__global__ void k(float* y) { y[0] = other(1.0f); }\n",
        "ptxas fatal   : Unresolved extern function "
        "'_Z5otherf'\n", "BUILD-LINK", FIRST, "other(float)", "Define other"),
    "device link": (
        "extern __device__ float "
        "other(float);\n", "nvlink error   : Undefined reference to '_Z5otherf' in '/tmp/a.o'\n",
        "BUILD-LINK", FIRST, "Undefined reference", "Define other"),
}
GCC = {
    "unknown name": (
        "int f(int n) {\n  return lenght + n;\n}\n",
        "FAILED: main.o \nc++ -MMD -MF main.o.d -c /tmp/x/main.cpp -o main.o \n/tmp/x/main.cpp: In function ‘int "
        "f(int)’:\n"
        "/tmp/x/main.cpp:3:10: error: ‘lenght’ was not declared in this scope\n    3 |   return lenght + n;\n"
        "      |          ^~~~~~\nninja: build stopped: subcommand "
        "failed.\n", "BUILD-COMPILE", FIRST + 1, "'lenght'", "Declare"),
    "header of std": (
        "int f() { vector<int> v; return 0; }\n",
        "main.cpp:2:11: error: ‘vector’ was not declared in this scope\n    2 | int f() { vector<int> v; return 0; }\n",
        "BUILD-COMPILE", FIRST, "'vector'", "#include <vector>"),
    "missing file": (
        '#include "THC/THC.h"\n', 'main.cpp:2:10: fatal error: THC/THC.h: No such file or directory\n    2 | #include '
        '"THC/THC.h"\n', "BUILD-COMPILE", FIRST, "THC/THC.h", "ATen/cuda/CUDAContext.h"),
    "old name": (
        "void f(at::Tensor x) { AT_CHECK(x.dim() == 2); }\n",
        "main.cpp:2:24: error: ‘AT_CHECK’ was not declared in this scope; did you mean ‘DCHECK’?\n"
        "    2 | void f(at::Tensor x) { AT_CHECK(x.dim() == 2); }\n",
        "BUILD-COMPILE", FIRST, "AT_CHECK", "TORCH_CHECK"),
    "type()": (
        "void f(at::Tensor x) {\n  AT_DISPATCH_FLOATING_TYPES(x.type(), \"f\", [&] {});\n}\n",
        "main.cpp:3:36: error: cannot convert ‘at::DeprecatedTypeProperties’ to ‘c10::ScalarType’ in initialization\n"
        '    3 |   AT_DISPATCH_FLOATING_TYPES(x.type(), "f", [&] {});\n',
        "BUILD-COMPILE", FIRST + 1, "DeprecatedTypeProperties", ".scalar_type()"),
    "brace": (
        "int f() "
        "{ if (1) { return 2;\n", "main.cpp:2:29: error: expected ‘}’ at end of input\n    2 | int f() { if (1) { "
        "return 2;\n", "BUILD-COMPILE", FIRST, "expected '}'", "Close what is open"),
    "inside a library": (
        "#include <immintrin.h>\n__m512 f(__m512 a) {\n  return _mm512_add_ps(a, a);\n}\n",
        "/usr/lib/gcc/x86_64-linux-gnu/12/include/avx512fintrin.h:12598:1: error: inlining failed in call to "
        "‘always_inline’ "
        "‘__m512 _mm512_add_ps(__m512, __m512)’: target specific option mismatch\n12598 | _mm512_add_ps (__m512 __A)\n"
        "      | ^~~~~\nmain.cpp:4:23: note: called from here\n    4 |   return _mm512_add_ps(a, a);\n",
        "BUILD-COMPILE", FIRST + 2, "target specific option mismatch", "-march=native"),
    "undefined reference": (
        "void helper(int);\nint g() { helper(1); return 0; }\n",
        "/usr/bin/ld: /tmp/cc7S5QCH.o: in function `main':\nlink.cpp:(.text+0xa): undefined reference to "
        "`helper(int)'\n"
        "collect2: error: ld returned 1 exit status\n", "BUILD-LINK", FIRST, "helper(int)", "Define helper"),
    "twice defined": (
        "int f() "
        "{ return 1; }\n", "/usr/bin/ld: /tmp/b.o: in function `f()':\ndup2.cpp:(.text+0x0): multiple definition of "
        "`f()'; /tmp/a.o:dup1.cpp:(.text+0x0): first defined "
        "here\n", "BUILD-LINK", FIRST, "multiple definition", "static"),
    "undefined symbol": (
        "void helper(const float*, float*, int64_t);\n",
        "Traceback (most recent call last):\n  File \"x.py\", line 9, in <module>\nImportError: /tmp/x/e.so: "
        "undefined symbol: "
        "_Z6helperPKfPfl\n", "BUILD-LINK", FIRST, "undefined symbol: ", "Define helper"),
    "memory": ("", "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n",
               "CRASH-MEMORY", None, "Killed", "memory"),
    "no image": ("", "RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
                 "BUILD-ARCHITECTURE", None, "no kernel image", "-arch"),
}


@pytest.mark.parametrize("case", [*NVCC.values(), *GCC.values()], ids=[*(f"nvcc: {n}" for n in NVCC), *GCC])
def test_logs(case):
    source, log, verdict, line, words, fix = case
    text = candidate(source)
    found = decisive(log, text)
    assert (found.evidence["verdict"], found.line, found.source) == (verdict, line, "build"), found.sentence
    assert words in found.sentence and fix in found.fix, (found.sentence, found.fix)
    if line:
        assert found.text == text.split("\n")[line - 1].strip()
        assert verdict != "BUILD-COMPILE" or f"line {line}" in found.sentence
    assert found.evidence["decisive"] in log.translate(str.maketrans("‘’`", "'''"))


def test_a_function_that_is_exported_and_not_there():
    """As load_inline says it: in the line of main.cpp that it writes itself."""
    log = ("RuntimeError: Error building extension 'e': FAILED: main.o \n"
           "/tmp/x/main.cpp: In function ‘void pybind11_init_case_missing(pybind11::module_&)’:\n"
           "/tmp/x/main.cpp:6:45: error: ‘thrice’ was not declared in this scope; did you mean ‘twice’?\n"
           '    6 | m.def("thrice", torch::wrap_pybind_function(thrice), "thrice");\n')
    text = candidate("torch::Tensor twice(torch::Tensor x) { return x + x; }\n")
    found = decisive(log, text)
    assert (found.kind, found.evidence["verdict"]) == ("build-missing-function", "BUILD-LINK")
    assert "thrice" in found.sentence and found.text == 'functions=["thrice"])'


def test_the_first_error_counts_and_the_number_is_told():
    log = "".join(f"main.cpp:{n}:5: error: ‘{name}’ was not declared in this scope\n"
                  for n, name in ((2, "a"), (3, "b")))
    found = decisive(log, candidate("a\nb\n"))
    assert "'a'" in found.sentence and "first of 2 errors" in found.sentence and found.evidence["errors"] == 2


def test_equal_lines_are_told_apart_by_their_number():
    source = '#include <vector>\nint a = f(1);\nint b = 2;\nint a = f(1);\n'
    for number, line in ((3, FIRST + 1), (5, FIRST + 3)):
        log = f"main.cpp:{number}:9: error: ‘f’ was not declared in this scope\n    {number} | int a = f(1);\n"
        assert decisive(log, candidate(source)).line == line


def test_words_in_the_candidate_do_not_matter():
    """A log that speaks of blockIdx is no lock, one that quotes "error:" no error."""
    assert messages_of('note: "blockIdx" error: not here\nwarning: lock file exists\n  12 | // error: fine\n') == []


def test_a_traceback_without_a_compiler():
    text = "import torch\nx = torch.missing\n"
    log = ('Traceback (most recent call last):\n  File "candidate.py", line 2, in <module>\n    x = torch.missing\n'
           "AttributeError: module 'torch' has no attribute 'missing'\n")
    found = decisive(log, text)
    assert (found.kind, found.line, found.text) == ("build-import", 2, "x = torch.missing")
    assert found.evidence["verdict"] == "BUILD-IMPORT" and "no attribute 'missing'" in found.sentence


@pytest.mark.parametrize(("compiler", "name", "flags"), [("g++", "main.cpp", []),
                                                         ("nvcc", "cuda.cu", ["-arch=sm_90a"])])
def test_compilers_that_are_here(tmp_path, compiler, name, flags):
    """The formats are those of the compilers of this machine."""
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    source = "int twice(int x) {\n  return 2 * y;\n}\n"
    (tmp_path / name).write_text("\n" * (3 if name == "cuda.cu" else 1) + source)
    result = subprocess.run([compiler, *flags, "-c", name, "-o", "x.o"], cwd=tmp_path, capture_output=True, text=True)
    found = decisive(result.stderr, candidate(source))
    assert (found.line, found.evidence["verdict"]) == (FIRST + 1, "BUILD-COMPILE")
    assert "y" in found.sentence and found.text == "return 2 * y;"


@pytest.mark.parametrize(("log", "words", "fix"), [
    ("ImportError: dynamic module does not define module export function (PyInit_e)", "exports nothing",
     "functions=[...]"),
    ("/tmp/x/main.cpp:9:48: error: no matching function for call to 'wrap_pybind_function(<unresolved overloaded "
     "function type>)'\n    9 | m.def(\"thrice\", torch::wrap_pybind_function(thrice), \"thrice\");\n",
     "export thrice, which the sources declare and define with different parameters",
     "Declare thrice in cpp_sources with the parameters that its definition has"),
])
def test_what_is_not_exported_as_it_should_be(log, words, fix):
    found = decisive(log, candidate("void once();"))
    assert found.evidence["verdict"] == "BUILD-LINK" and words in found.sentence and fix in found.fix
