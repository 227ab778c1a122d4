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

BUILD = '''\
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
        from torch.utils.cpp_extension import load_inline

        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            writable = os.access(library.parent, os.W_OK)
        except OSError:
            writable = False
        if not writable:  # a library for this process alone
            library = Path(tempfile.mkdtemp(prefix="kernelwright_")) / library.name
        # A folder of its own, then one atomic rename: builds can't wait for each other or be seen half done.
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            options = {"name": f"{_KERNELWRIGHT_NAME}_{key}", "build_directory": folder, "is_python_module": False,
                       "no_implicit_headers": True}
            if _KERNELWRIGHT_DEVICE == "cuda":
                before = os.environ.get("TORCH_CUDA_ARCH_LIST")
                os.environ["TORCH_CUDA_ARCH_LIST"] = architecture
                try:
                    load_inline(cpp_sources=[""], cuda_sources=[_KERNELWRIGHT_SOURCE],
                                extra_cuda_cflags=_KERNELWRIGHT_FLAGS, **options)
                finally:
                    if before is None:
                        del os.environ["TORCH_CUDA_ARCH_LIST"]
                    else:
                        os.environ["TORCH_CUDA_ARCH_LIST"] = before
            else:
                load_inline(cpp_sources=[_KERNELWRIGHT_SOURCE], extra_cflags=_KERNELWRIGHT_FLAGS,
                            extra_ldflags=["-fopenmp"], **options)
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
