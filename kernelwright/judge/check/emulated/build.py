"""Builds a candidate's CUDA texts for the CPU, and compiles them for a device as a check."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from kernelwright.build.module import find_cuda_compiler
from kernelwright.codegen.cuda.emulation.compile import emulation_text
from kernelwright.judge.check.emulated.text import emulated_text, uses_torch
from kernelwright.settings import cache_folder

_PRELUDE = Path(__file__).with_name("emulated.hpp")
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-gnu-unique")
_KEPT_FLAG = re.compile(r"-D\w+(?:=[\w.+-]*)?|-U\w+|--use_fast_math|-O[0-3]|--expt-[\w-]+|-lineinfo|--extended-lambda")
_TIMED_OUT = "the compiler did not finish in its time"
#: What nvcc includes in place of the headers of PyTorch that only its CUDA build can use.
_DEVICE_PRELUDE = """\
#pragma once
#include <cuda_runtime.h>
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
namespace c10::cuda {
struct CUDAStream {
  operator cudaStream_t() const { return nullptr; }
  cudaStream_t stream() const { return nullptr; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
struct CUDAGuard { template <typename T> explicit CUDAGuard(T&&) {} };
struct OptionalCUDAGuard { template <typename T> explicit OptionalCUDAGuard(T&&) {} };
}
namespace at::cuda {
using c10::cuda::CUDAGuard;
using c10::cuda::CUDAStream;
using c10::cuda::OptionalCUDAGuard;
using c10::cuda::getCurrentCUDAStream;
using c10::cuda::getDefaultCUDAStream;
}
#define C10_CUDA_CHECK(call) TORCH_CHECK((call) == cudaSuccess, "CUDA error")
#define AT_CUDA_CHECK(call) C10_CUDA_CHECK(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
"""
_DEVICE_HEADERS = re.compile(r"^([ \t]*#[ \t]*include[ \t]*)[<\"](?:ATen/cuda/(?:CUDAContext(?:Light)?|Exceptions)\.h|"
                             r"c10/cuda/CUDA(?:Guard|Stream|Exception|Functions|Macros)\.h|torch/extension\.h|torch/types\.h)"
                             r"[>\"]", re.MULTILINE)
#: Messages that may be due to what stands in for PyTorch's headers rather than to the candidate.
_DOUBTFUL = re.compile(r"\b(?:at|c10|torch)::|No such file or directory|cannot open source file|CUDAStream|CUDAGuard|"
                       r"namespace \"(?:at|c10|torch)|/site-packages/")


@dataclass(frozen=True, slots=True)
class Built:
    """A build's outcome: the file, or the log of what went wrong."""

    file: Path | None
    log: str = ""


def text_of(call: dict[str, Any]) -> str:
    """One text for the CPU's compiler: the C++ sources, the CUDA sources, and the module that exports the functions."""
    texts = [*call["cpp"], *call["cuda"]]
    torch_headers = uses_torch(texts) == "all"
    pieces = [f'#line 1 "main.cpp"\n{emulated_text(text, torch_headers=torch_headers)}\n' for text in call["cpp"]]
    pieces += [f'#line 1 "cuda.cu"\n{emulated_text(text, torch_headers=torch_headers)}\n' for text in call["cuda"]]
    if call["functions"] is not None and uses_torch(texts):
        exports = "\n".join(f'm.def("{name}", torch::wrap_pybind_function({name}), {_literal(words)});'
                            for name, words in call["functions"].items())
        pieces.append(f'#line 1 "exports.cpp"\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{exports}\n}}\n')
    return "".join(pieces)


def _literal(words: str) -> str:
    return '"' + words.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def build_for_cpu(call: dict[str, Any], seconds: float) -> Built:
    """Compile a recorded call for the emulation; the library is kept in the cache under what it was made of."""
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        return Built(None, "there is no C++ compiler")
    how = uses_torch([*call["cpp"], *call["cuda"]])
    text = text_of(call)
    flags = [*_FLAGS, *_own_flags(call), f"-DTORCH_EXTENSION_NAME={_identifier(call['name'])}",
             "-DTORCH_API_INCLUDE_EXTENSION_H", '-DKW_JUDGE_EMULATION="emulation.hpp"',
             *{"some": ["-DKW_JUDGE_TORCH"], "all": ["-DKW_JUDGE_ALL_OF_TORCH"], "": []}[how]]
    includes = [f"-isystem{path}" for path in (*cpp_extension.include_paths(),
                                               sysconfig.get_paths()["include"])] if how else []
    links = [f"-L{path}" for path in cpp_extension.library_paths()] if how else []
    libraries = ["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"] if how else []
    identity = [text, _PRELUDE.read_text(), emulation_text(), *flags, torch.__version__, compiler]
    folder = cache_folder() / "judge_emulation"
    library = folder / (hashlib.sha256("\0".join(identity).encode()).hexdigest()[:40] + ".so")
    if library.exists():
        return Built(library)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as place:
        Path(place, "candidate.cpp").write_text(text)
        Path(place, "emulation.hpp").write_text(emulation_text())
        command = [compiler, *flags, *includes, "-iquote", place, "-include", str(_PRELUDE), "-shared",
                   "candidate.cpp", "-o", "candidate.so", *links, *libraries, "-lpthread", "-ldl"]
        log = _run(command, Path(place), seconds)
        if log is not None:
            return Built(None, log)
        os.replace(Path(place, "candidate.so"), library)
    return Built(library)


def compile_for_device(call: dict[str, Any], seconds: float) -> tuple[bool | None, str]:
    """Compile a call's CUDA texts with nvcc for sm_90a: (True, ""), (False, log), or (None, why it was not done)."""
    nvcc = find_cuda_compiler()
    if nvcc is None:
        return None, "there is no nvcc"
    how = uses_torch(call["cuda"])
    text = "#include <cuda.h>\n#include <cuda_runtime.h>\n" + "\n".join(
        _DEVICE_HEADERS.sub(r'\1"device_prelude.h"', part) for part in call["cuda"])
    text = ('#include "device_prelude.h"\n' if how else "\n") + text  # three lines, as load_inline puts before the text
    paths = (*cpp_extension.include_paths(), sysconfig.get_paths()["include"]) if how else ()
    command = [nvcc, "-w", "-std=c++20", "-arch=sm_90a", "--cubin", *_own_flags(call, device=True), "-I.",
               *(f"-isystem={path}" for path in paths), "cuda.cu", "-o", "cuda.cubin"]
    identity = "\0".join([_DEVICE_PRELUDE, text, *command, torch.__version__])
    compiled = cache_folder() / "judge_emulation" / (hashlib.sha256(identity.encode()).hexdigest()[:40] + ".nvcc")
    if compiled.exists():  # nvcc took the same text before
        return True, ""
    with tempfile.TemporaryDirectory(prefix="kernelwright_nvcc_") as place:
        folder = Path(place)
        (folder / "device_prelude.h").write_text(_DEVICE_PRELUDE)
        (folder / "cuda.cu").write_text(text)
        log = _run(command, folder, seconds)
    if log is None:
        compiled.parent.mkdir(parents=True, exist_ok=True)
        compiled.touch()
        return True, ""
    if log == _TIMED_OUT:
        return None, "nvcc did not finish in its time"
    errors = [line for line in log.splitlines() if re.search(r"\berror\b", line)]
    if errors and _DOUBTFUL.search(errors[0]):
        return None, f"it uses headers that only PyTorch's CUDA build or the whole toolkit has ({errors[0][:200]})"
    return False, log


def _own_flags(call: dict[str, Any], *, device: bool = False) -> list[str]:
    wanted = [flag for flag in call["flags"] if _KEPT_FLAG.fullmatch(flag)]
    return wanted if device else [flag for flag in wanted if flag.startswith(("-D", "-U"))]


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _run(command: list[str], folder: Path, seconds: float) -> str | None:
    """Run a compiler in a session of its own; None, or what it printed where it failed."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               stdin=subprocess.DEVNULL,
                               text=True, errors="replace", start_new_session=True)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return _TIMED_OUT
    return None if process.returncode == 0 else output
