"""Text of every emitted file: its imports, and how it builds its kernels."""

IMPORTS = """\
import copy
import ctypes
import functools
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

BUILD = '''\
def _kernelwright_units():
    """The kernels' text as texts to compile side by side: some of the kernels each, after what all of them share."""
    support, *kernels = re.split(r"^//// .*\\n", _KERNELWRIGHT_SOURCE, flags=re.MULTILINE)
    launchers = kernels.pop() if kernels else ""
    cores = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count() or 1
    count = min(cores, len(kernels) // 2, sum(map(len, kernels)) // 16384)
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


def _kernelwright_build():
    """Compile the kernels once for this machine; later imports load the finished library."""
    identity = [_KERNELWRIGHT_SOURCE, *_KERNELWRIGHT_FLAGS, torch.__version__, platform.machine()]
    if _KERNELWRIGHT_DEVICE == "cuda":
        major, minor = torch.cuda.get_device_capability()
        architecture = f"{major}.{minor}" + ("a" if (major, minor) == (9, 0) else "")
        identity.append(architecture)
    elif os.path.exists("/proc/cpuinfo"):  # -march=native: a library is for one kind of processor
        with open("/proc/cpuinfo") as lines:
            identity += sorted({line for line in lines if line.startswith(("flags", "Features"))})
    key = hashlib.sha256("\\0".join(identity).encode()).hexdigest()[:20]
    shared = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("KERNELWRIGHT_CACHE") or os.path.join(shared if os.path.isabs(shared) else "~/.cache",
                                                                "kernelwright")
    library = Path(home).expanduser() / "libraries" / f"{_KERNELWRIGHT_NAME}_{key}.so"
    if not library.exists():
        from torch.utils.cpp_extension import load, load_inline

        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            writable = os.access(library.parent, os.W_OK)
        except OSError:
            writable = False
        if not writable:  # a library for this process alone
            library = Path(tempfile.mkdtemp(prefix="kernelwright_")) / library.name
        # A folder of its own, then one atomic rename: builds can't wait for each other or be seen half done.
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            options = {"name": f"{_KERNELWRIGHT_NAME}_{key}", "build_directory": folder, "is_python_module": False}
            units, files = _kernelwright_units(), []
            for number, unit in enumerate(units if len(units) > 1 else ()):
                files.append(os.path.join(folder, f"unit{number}.{'cu' if _KERNELWRIGHT_DEVICE == 'cuda' else 'cpp'}"))
                Path(files[-1]).write_text(unit, encoding="utf-8")
            if _KERNELWRIGHT_DEVICE == "cuda":
                before = os.environ.get("TORCH_CUDA_ARCH_LIST")
                os.environ["TORCH_CUDA_ARCH_LIST"] = architecture
                try:
                    options["extra_cuda_cflags"] = _KERNELWRIGHT_FLAGS
                    if files:
                        load(sources=files, **options)
                    else:
                        load_inline(cpp_sources=[""], cuda_sources=units, no_implicit_headers=True, **options)
                finally:
                    if before is None:
                        del os.environ["TORCH_CUDA_ARCH_LIST"]
                    else:
                        os.environ["TORCH_CUDA_ARCH_LIST"] = before
            else:
                options |= {"extra_cflags": _KERNELWRIGHT_FLAGS, "extra_ldflags": ["-fopenmp"]}
                if files:
                    load(sources=files, **options)
                else:
                    load_inline(cpp_sources=units, no_implicit_headers=True, **options)
            os.replace(next(Path(folder).glob("*.so")), library)
    loaded = ctypes.CDLL(str(library))
    for launcher in _KERNELWRIGHT_LAUNCHERS:
        getattr(loaded, launcher).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        getattr(loaded, launcher).restype = ctypes.c_char_p
    return loaded


_kernelwright_library = None
_kernelwright_trouble = ""  # why there is no library
_kernelwright_details = ""  # the compiler's messages
_kernelwright_devices = {None, 0}  # indices of the devices that the library is for
if _KERNELWRIGHT_DEVICE == "cpu" or torch.cuda.is_available():
    try:
        _kernelwright_library = _kernelwright_build()
        if _KERNELWRIGHT_DEVICE == "cuda":
            _kernelwright_devices = {i for i in range(torch.cuda.device_count())
                                     if torch.cuda.get_device_capability(i) == torch.cuda.get_device_capability()}
    except Exception as error:
        _kernelwright_details = str(error).strip() or type(error).__name__
        _kernelwright_trouble = f"the kernels could not be built ({_kernelwright_details.splitlines()[0][:200]})"
else:
    _kernelwright_trouble = "there is no CUDA device"
'''


_BY_COMMAND = '''\
def _kernelwright_build():
    """Compile the kernels once for this machine by one command; later imports load the finished library."""
    import shlex
    import subprocess

    command = [*shlex.split(os.environ.get("CC") or "cc"), *_KERNELWRIGHT_FLAGS, "-shared", "-fPIC"]
    identity = [_KERNELWRIGHT_SOURCE, *command, platform.machine()]
    if os.path.exists("/proc/cpuinfo"):  # -march=native: a library is for one kind of processor
        with open("/proc/cpuinfo") as lines:
            identity += sorted({line for line in lines if line.startswith(("flags", "Features"))})
    key = hashlib.sha256("\\0".join(identity).encode()).hexdigest()[:20]
    shared = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("KERNELWRIGHT_CACHE") or os.path.join(shared if os.path.isabs(shared) else "~/.cache",
                                                                "kernelwright")
    library = Path(home).expanduser() / "libraries" / f"{_KERNELWRIGHT_NAME}_{key}.so"
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
            source, made = Path(folder) / "kernels.c", Path(folder) / "kernels.so"
            source.write_text(_KERNELWRIGHT_SOURCE, encoding="utf-8")
            run = subprocess.run([*command, "-o", str(made), str(source), "-lm"], capture_output=True, text=True)
            if run.returncode:
                raise RuntimeError(run.stderr or run.stdout or "the compiler failed")
            os.replace(made, library)
    loaded = ctypes.CDLL(str(library))
    for launcher in _KERNELWRIGHT_LAUNCHERS:
        getattr(loaded, launcher).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        getattr(loaded, launcher).restype = ctypes.c_char_p
    return loaded
'''

#: How a file builds its kernels, by what a target is built by.
BUILDS = {"extension": BUILD, "cuda extension": BUILD,
          "command": _BY_COMMAND + BUILD[BUILD.index("\n\n_kernelwright_library = None"):]}
