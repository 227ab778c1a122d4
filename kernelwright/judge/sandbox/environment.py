"""What a worker sees of the machine: environment variables, files that it may read, devices that it may use."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Variables of the judge's own environment that a worker gets, where they are set. Nothing else passes.
PASSED = ("CUDA_HOME", "CUDA_PATH", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LANG", "LC_ALL",
          "CC", "CXX", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
          "TORCH_CUDA_ARCH_LIST", "MAX_JOBS")
#: Programs that a candidate's build starts.
_TOOLS = ("c++", "g++", "gcc", "cc", "clang", "nvcc", "ninja", "ld")
#: Read and run by everybody: programs, libraries, and what they read about the machine. No folder of a user, no
#: temporary folder, and of /etc only what names libraries, users and the time.
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/nix/store", "/run/opengl-driver", "/proc",
           "/sys", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/passwd",
           "/etc/group", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/hosts", "/etc/localtime", "/etc/os-release",
           "/etc/alternatives", "/etc/nvidia", "/etc/OpenCL", "/etc/vulkan")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_NVIDIA_DEVICES = ("/dev/nvidia*", "/dev/dxg")
#: Of an interpreter's folder, what belongs to it: a virtual environment may stand in the folder of a project.
_OF_AN_INTERPRETER = ("bin", "lib", "lib32", "lib64", "libexec", "include", "share", "nvvm", "targets", "pyvenv.cfg",
                      "x86_64-conda-linux-gnu", "aarch64-conda-linux-gnu")


def environment(folder: Path, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a worker that works in ``folder``: short, and nothing secret.

    Home, temporary and build folders lie below ``folder``; ``overrides`` come last (CUDA_VISIBLE_DEVICES, thread
    counts).
    """
    variables = {name: os.environ[name] for name in PASSED if name in os.environ}
    folders = [os.path.dirname(found) for name in _TOOLS if (found := shutil.which(name))]
    if home := variables.get("CUDA_HOME") or variables.get("CUDA_PATH"):
        folders.append(os.path.join(home, "bin"))
    search = [os.path.dirname(sys.executable), *folders, "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    build = str(folder / "build")
    return {"LANG": "C.UTF-8", "USER": "candidate", **variables, "PATH": os.pathsep.join(dict.fromkeys(search)),
            "HOME": str(folder), "TMPDIR": str(folder / "tmp"), "TORCH_EXTENSIONS_DIR": build,
            "TORCHINDUCTOR_CACHE_DIR": build, "TRITON_CACHE_DIR": build, "XDG_CACHE_HOME": build,
            "PYTHONDONTWRITEBYTECODE": "1", **(overrides or {})}


def readable(command: Iterable[str]) -> tuple[str, ...]:
    """Folders and files that a worker started with ``command`` may read: interpreter, packages, compilers, system.

    Files that ``command`` names by an absolute path are among them, alone.
    """
    found = [*_SYSTEM]
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        found += [os.path.join(prefix, name) for name in _OF_AN_INTERPRETER]
    if (torch := importlib.util.find_spec("torch")) and torch.origin:  # without importing it
        found.append(os.path.dirname(os.path.dirname(torch.origin)))
    tools = [shutil.which(name) for name in (*_TOOLS, *(os.environ.get(name, "") for name in ("CC", "CXX")))]
    for place in filter(None, tools):
        # a compiler's own files lie beside its folder of programs
        found += [parent for path in (place, os.path.realpath(place)) for parent in _around(os.path.dirname(path))]
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(name):
            found.append(home)
    found += [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(path)]
    found += _driver_folders()
    found += [word for word in command if os.path.isabs(word) and os.path.isfile(word)]
    return tuple(dict.fromkeys(path for path in found if not _too_wide(path) and os.path.exists(path)))


def devices() -> tuple[str, ...]:
    """Devices that a worker may open, for reading and writing: the harmless ones and NVIDIA's."""
    return (*_DEVICES, *sorted(path for pattern in _NVIDIA_DEVICES for path in glob.glob(pattern)))


def protected_processes() -> tuple[int, ...]:
    """This process, those above it and (negative) their groups, then its threads: what gets no signals, most important
    first."""
    found = [os.getpid(), -os.getpgid(0)]
    number = os.getppid()
    while number > 0:
        found.append(number)
        with contextlib.suppress(OSError):
            found.append(-os.getpgid(number))
        try:
            number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    with contextlib.suppress(OSError):
        found += [int(name) for name in os.listdir("/proc/self/task")]
    return tuple(value for value in dict.fromkeys(found) if value)


def _around(folder: str) -> tuple[str, ...]:
    return (folder, os.path.dirname(folder)) if os.path.basename(folder) == "bin" else (folder,)


def _too_wide(path: str) -> bool:
    """Folders in which anything may lie: the root, homes, temporary folders, and what holds one of them."""
    real = os.path.realpath(path)
    wide = ("/tmp", "/var/tmp", "/dev/shm", "/home", "/root", "/mnt", os.path.expanduser("~"))
    return any(os.path.commonpath((real, os.path.realpath(place))) == real for place in wide)


def _driver_folders() -> list[str]:
    """Where NVIDIA's driver library was found by this process, if it has loaded it: some systems keep it elsewhere."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.partition("/")[2]
            if os.path.basename(path).startswith(("libcuda.so", "libnvidia-")):
                found.append(os.path.dirname("/" + path))
    return list(dict.fromkeys(found))
