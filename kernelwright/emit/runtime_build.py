"""Text of every emitted file: its imports, and how it builds its kernels.

Conditions (:mod:`kernelwright.emit.assembly`): KERNELS: there are any. CUDA: they are CUDA's. COMMAND: one command
compiles them, no extension of PyTorch's. UNITS: their text may be long enough to be compiled in pieces. EMBEDDED: the
file holds them compiled, too (:mod:`kernelwright.emit.runtime_embedded`).
"""

IMPORTS = """\
import copy
import ctypes
import functools
import gc
import hashlib
import inspect
import operator
import os
import platform
import re
import struct
import sys
import tempfile
import threading
import types
import warnings
import weakref
from pathlib import Path

import torch
"""

#: The line of the kernels' text before each kernel, and before the launchers.
KERNEL_MARK = "//// {}"

#: Kernels are compiled in pieces where each has two of them, and so many characters.
PIECE_KERNELS, PIECE_CHARACTERS = 2, 16384

BUILD = '''\
def _kernelwright_units(most):
    """The kernels' text as texts to compile side by side: some of the kernels each, after what all of them share."""
    support, *kernels = re.split(r"^//// .*\\n", _KERNELWRIGHT_SOURCE, flags=re.MULTILINE)
    launchers = kernels.pop() if kernels else ""
    count = min(most, len(kernels) // 2, sum(map(len, kernels)) // 16384)
    if count < 2:
        return [_KERNELWRIGHT_SOURCE]
    units = [support] * count
    for kernel in sorted(kernels, key=len, reverse=True):
        shortest = min(range(count), key=lambda unit: len(units[unit]))
        units[shortest] += kernel
    start = re.compile(r"^static (?=const char\\* \\w+\\()", re.MULTILINE)
    shared = '__attribute__((visibility("hidden"))) '  # by the units of this library, and no other one
    heads = re.findall(r"^static (const char\\* \\w+\\([^{]*\\)) \\{", "".join(kernels), re.MULTILINE)
    declarations = "".join(f"{shared}{head};\\n" for head in heads)
    return [*(start.sub(shared, unit) for unit in units), f"{support}\\n{declarations}\\n{launchers}"]


def _kernelwright_missing():
    """The programs that compiling needs and that are not found."""
    import shlex
    import shutil

    if COMMAND:
        wanted = {"the C compiler": os.environ.get("CC") or "cc"}
    else:
        from torch.utils import cpp_extension

        wanted = {"the C++ compiler": cpp_extension.get_cxx_compiler(), "": "ninja"}
        if CUDA:
            nvcc = os.path.join(cpp_extension.CUDA_HOME or "", "bin" if cpp_extension.CUDA_HOME else "", "nvcc")
            wanted["the CUDA compiler"] = os.environ.get("PYTORCH_NVCC") or nvcc
    return [f"{what} {tool}".lstrip() for what, tool in wanted.items()
            if not shutil.which(next(iter(shlex.split(tool)), tool))]


def _kernelwright_compile(folder, name):
    """Compile the kernels into a shared library in a folder."""
    if EMBEDDED:
        if name in _kernelwright_unpacked:  # it came compiled
            (Path(folder) / f"{name}.so").write_bytes(_kernelwright_unpacked[name])
            return
    missing = _kernelwright_missing()
    if missing:
        raise RuntimeError(f"not found: {', '.join(missing)}")
    if COMMAND:
        import shlex
        import subprocess

        source, made = Path(folder) / "kernels.c", Path(folder) / f"{name}.so"
        source.write_text(_KERNELWRIGHT_SOURCE, encoding="utf-8")
        run = subprocess.run([*shlex.split(os.environ.get("CC") or "cc"), *_KERNELWRIGHT_FLAGS, "-shared", "-fPIC",
                              "-o", str(made), str(source), "-lm"], capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(run.stderr or run.stdout or "the compiler failed")
    else:
        from torch.utils.cpp_extension import load, load_inline

        options = {"name": name, "build_directory": folder, "is_python_module": False}
        if CUDA:
            options["extra_cuda_cflags"] = _KERNELWRIGHT_FLAGS
        else:
            options |= {"extra_cflags": _KERNELWRIGHT_FLAGS, "extra_ldflags": ["-fopenmp"]}
        if UNITS:
            cores = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count() or 1
            units, files = _kernelwright_units(cores), []
            for number, unit in enumerate(units if len(units) > 1 else ()):
                files.append(os.path.join(folder, f"unit{number}.{'cu' if _KERNELWRIGHT_DEVICE == 'cuda' else 'cpp'}"))
                Path(files[-1]).write_text(unit, encoding="utf-8")
            if files:
                load(sources=files, **options)
                return
        if CUDA:
            load_inline(cpp_sources=[""], cuda_sources=[_KERNELWRIGHT_SOURCE], no_implicit_headers=True, **options)
        else:
            load_inline(cpp_sources=[_KERNELWRIGHT_SOURCE], no_implicit_headers=True, **options)


def _kernelwright_build():
    """Compile the kernels once for this machine; later imports load the finished library."""
    identity = [_KERNELWRIGHT_SOURCE, *_KERNELWRIGHT_FLAGS, torch.__version__, platform.machine()]
    if COMMAND:
        identity.append(os.environ.get("CC") or "cc")
    if CUDA:
        major, minor = torch.cuda.get_device_capability()
        architecture = f"{major}.{minor}" + ("a" if (major, minor) == (9, 0) else "")
        identity.append(architecture)
    else:
        if os.path.exists("/proc/cpuinfo"):  # -march=native: a library is for one kind of processor
            with open("/proc/cpuinfo") as lines:
                identity += sorted({line for line in lines if line.startswith(("flags", "Features"))})
    if EMBEDDED:
        label, unpacked = _kernelwright_fitting()
        if label is not None:
            identity = [label["sha256"]]
    name = f"{_KERNELWRIGHT_NAME}_{hashlib.sha256(chr(0).join(identity).encode()).hexdigest()[:20]}"
    if EMBEDDED:
        if label is not None:
            _kernelwright_unpacked[name] = unpacked
    shared = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("KERNELWRIGHT_CACHE") or os.path.join(shared if os.path.isabs(shared) else "~/.cache",
                                                                "kernelwright")
    library = Path(home).expanduser() / "libraries" / f"{name}.so"
    if EMBEDDED:
        if label is not None and library.exists() and library.read_bytes() != unpacked:
            library.unlink()  # cut off, as by a full disk
    if not library.exists():
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            writable = os.access(library.parent, os.W_OK)
        except OSError:
            writable = False
        if not writable:  # a library for this process alone
            library = Path(tempfile.mkdtemp(prefix="kernelwright_")) / library.name
        # A folder of its own, then one atomic rename: builds can't wait for each other or be seen half done.
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            if CUDA:
                before = os.environ.get("TORCH_CUDA_ARCH_LIST")
                os.environ["TORCH_CUDA_ARCH_LIST"] = architecture
                try:
                    _kernelwright_compile(folder, name)
                finally:
                    if before is None:
                        del os.environ["TORCH_CUDA_ARCH_LIST"]
                    else:
                        os.environ["TORCH_CUDA_ARCH_LIST"] = before
            else:
                _kernelwright_compile(folder, name)
            os.replace(next(Path(folder).glob("*.so")), library)
    if EMBEDDED:
        try:
            loaded = ctypes.CDLL(str(library))
        except OSError as error:
            if label is None:
                raise
            label["unfit"] = str(error)
            return _kernelwright_build()
    else:
        loaded = ctypes.CDLL(str(library))
    for launcher in _KERNELWRIGHT_LAUNCHERS:
        getattr(loaded, launcher).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        getattr(loaded, launcher).restype = ctypes.c_char_p
    return loaded
'''

#: What runs when the file is imported.
START = '''\
if EMBEDDED:
    _KERNELWRIGHT_LIBRARIES = []
_kernelwright_library = None
_kernelwright_trouble = ""  # why there is no library
_kernelwright_details = ""  # the compiler's messages
_kernelwright_devices = {None, 0}  # indices of the devices that the library is for
try:
    if CUDA:
        if torch.cuda.is_available():
            _kernelwright_library = _kernelwright_build()
            _kernelwright_devices = {i for i in range(torch.cuda.device_count())
                                     if torch.cuda.get_device_capability(i) == torch.cuda.get_device_capability()}
        else:
            _kernelwright_trouble = "there is no CUDA device"
    else:
        _kernelwright_library = _kernelwright_build()
except Exception as error:
    _kernelwright_details = str(error).strip() or type(error).__name__
    _kernelwright_trouble = f"the kernels could not be built ({_kernelwright_details.splitlines()[0][:200]})"
'''
