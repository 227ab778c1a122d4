"""The devices of a machine as queues of a suite, and how many workers each gets."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from kernelwright.codegen.device_kind import HOST, device_kind
from kernelwright.errors import NoCudaDevice
from kernelwright.processors import SHARE, processors
from kernelwright.suite.device_queue import DeviceQueue
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.worker_process import PACKAGE_PARENT
from kernelwright.version import VERSION

#: Workers of one GPU where there are CPU cores enough: while one measures, the others' compilers work.
MOST_WORKERS = 4
#: The same where candidates are judged: a judge's device waits for the candidate's compiler most of the time.
MOST_JUDGES = 8
#: Cores that one worker keeps busy: its own thread, and a compiler.
CORES_PER_WORKER = 2


def find_queues(options: SuiteOptions) -> list[DeviceQueue]:
    """One queue for each device that ``options`` name: by default all GPUs that PyTorch sees, else the CPU.

    Raises NoCudaDevice (KW302) for a GPU that is not there.
    """
    kind = device_kind(options.settings.target)
    if kind == HOST or options.devices == (HOST,):
        return [cpu_queue()]
    count = visible_gpus() if options.devices or kind or _may_have_gpus() else 0
    numbers = [int(name) for name in options.devices if name != "cpu"] or list(range(count))
    missing = [number for number in numbers if number >= count]
    if missing:
        raise NoCudaDevice(device=f"cuda:{missing[0]}", found=f"PyTorch sees {count} CUDA device(s)")
    # Without a GPU, CUDA files are checked by emulation, on the CPU.
    queues = [_gpu_queue(number) for number in numbers] or [cpu_queue()]
    return [*queues, cpu_queue()] if "cpu" in options.devices else queues


def workers_per_device(options: SuiteOptions, queues: list[DeviceQueue], devices: int = 0) -> int:
    """Processes per device: as asked for; else one on the CPU, and on GPUs up to four, as far as the cores suffice. Of
    candidates that are judged, of which each is mostly built, up to four on the CPU and eight on a GPU.

    ``devices``: how many the machine's cores are for, where they are more than these ``queues``.
    """
    if options.workers is not None:
        return options.workers
    most = MOST_WORKERS if options.judge is None else MOST_JUDGES
    if any(queue.stops_groups for queue in queues):
        if options.judge is None:
            return 1
        most = MOST_WORKERS  # candidates are built side by side while none is timed
    return max(1, min(most, processors() // (devices or len(queues)) // CORES_PER_WORKER))


def share_cores(options: SuiteOptions, queues: list[DeviceQueue], per_device: int, devices: int = 0) -> None:
    """Give each worker of a GPU its share of the cores, where neither options nor environment say another number."""
    share = str(max(1, processors() // ((devices or len(queues)) * per_device)))
    for queue in queues:
        if not queue.stops_groups:
            names = (SHARE, "TORCHINDUCTOR_COMPILE_THREADS", "OMP_NUM_THREADS")[:3 if options.settings.threads is None
                                                                                else 2]
            queue.environment |= {name: share for name in names if name not in os.environ}


def visible_gpus() -> int:
    """How many GPUs PyTorch sees. Asked in a process of its own: ours never imports it."""
    code = "import torch; print('gpus', torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=180,
                          cwd=PACKAGE_PARENT)
    found = re.search(r"^gpus (\d+)$", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"PyTorch cannot be asked for its devices: {done.stderr[-2000:]}")
    return int(found[1])


def find_machine(options: SuiteOptions) -> tuple[str, ...]:
    """What of the machine and its software a result rests on, in words: processor, GPUs, versions. Without PyTorch."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")][:1]
    for folder in sorted(Path("/proc/driver/nvidia/gpus").glob("*")):
        names += [line.partition(":")[2].strip() for line in _lines(folder / "information")
                  if line.startswith("Model:")]
    where = options.runner if options.runner != "local" else ",".join(options.devices)
    return (VERSION, version("torch"), platform.python_version(), platform.machine(), str(processors()), where,
            *names)


def _lines(file: str | Path) -> list[str]:
    try:
        return Path(file).read_text().splitlines()
    except OSError:
        return []


def _may_have_gpus() -> bool:
    return any(re.fullmatch(r"nvidia\d+|dxg", name) for name in os.listdir("/dev"))


def _gpu_queue(number: int) -> DeviceQueue:
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[number].strip() if visible else str(number)
    return DeviceQueue(f"cuda:{number}", {"CUDA_VISIBLE_DEVICES": name}, stops_groups=False)


def cpu_queue() -> DeviceQueue:
    """The queue of the CPU, on which everything that a worker starts competes with the others."""
    return DeviceQueue("cpu", {}, stops_groups=True)
