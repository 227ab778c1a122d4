"""The row of a device here, and the peaks measured on this machine, kept in the cache folder.

Peaks are JSON, one file per machine, thread count and torch version. Measuring again only ever raises them: a
disturbed measurement shows less than the machine can do, never more, and what says where they come from says so, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from kernelwright.processors import is_disturbed, longest_wait, waits
from kernelwright.roofline.devices import (
    GENERIC_CUDA,
    Device,
    device_from_properties,
    named_device,
    processor_name,
)
from kernelwright.roofline.measure import measure_cpu, measure_cuda
from kernelwright.settings import cache_folder

#: Figures of a row that measuring may raise.
_RATES = (
    "memory_peak",
    "read",
    "copy",
    "float32",
    "float32_matmul",
    "tf32",
    "float16",
    "bfloat16",
    "float64",
    "float64_matmul",
)
_FORMAT = 1
# Ends the source of figures for which threads waited for a processor: the machine can do more.
_BESIDE_OTHERS = ", beside other programs"


def current_device(place: str | torch.device = "cpu", *, measure: bool = True) -> Device:
    """Return the row of ``place``: "cpu", "cuda", "cuda:1" or a torch device.

    A CUDA device is looked up by name, then measured where ``measure`` allows and estimated otherwise;
    without any GPU "cuda" is the generic row, so that planning works anywhere. The CPU is measured once per
    machine, thread count and torch version (about two seconds, cached). Raises ValueError for others.
    """
    device = torch.device(place)
    if device.type == "cpu":
        return measured_cpu()
    if device.type != "cuda":
        raise ValueError(f"{place}: there are rows for the CPU and for CUDA devices only")
    if not torch.cuda.is_available():
        return GENERIC_CUDA
    index = torch.cuda.current_device() if device.index is None else device.index
    properties = torch.cuda.get_device_properties(index)
    row = named_device(properties.name)
    if row is not None:
        return row
    return measured_cuda(index) if measure else device_from_properties(properties)


def measured_cpu(*, refresh: bool = False) -> Device:
    """Return the CPU's row with the threads that PyTorch uses now; measured once, then cached."""
    name, threads = processor_name(), torch.get_num_threads()
    return _cached(f"cpu|{name}|{threads}|{torch.__version__}", refresh, lambda: measure_cpu(name, threads))


def measured_cuda(index: int = 0, *, refresh: bool = False) -> Device:
    """Return the row of GPU ``index``; measured once, then cached. RuntimeError where the GPU fails."""
    properties = torch.cuda.get_device_properties(index)
    key = f"cuda|{properties.name}|{torch.version.cuda}|{torch.__version__}"
    return _cached(key, refresh, lambda: measure_cuda(index))


def measured_faster(device: torch.device) -> float:
    """Measure the device anew: by what factor it is faster than it was known to be, in whatever it has gained most; at
    least 1. Peaks that were measured beside other work are too low, and what holds of them, of no honest time.

    A GPU that is known by name is not measured: its data sheet stands.
    """
    if device.type == "cpu":
        before, after = measured_cpu(), measured_cpu(refresh=True)
    elif named_device(torch.cuda.get_device_properties(device).name) is None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        before, after = measured_cuda(index), measured_cuda(index, refresh=True)
    else:
        return 1.0
    return max(1.0, *(getattr(after, rate) / getattr(before, rate) for rate in _RATES if getattr(before, rate)))


def measured_busy(device: Device) -> bool:
    """Whether other programs took processors while these figures were measured."""
    return device.source.endswith(_BESIDE_OTHERS)


def _cache_path(key: str) -> Path:
    return cache_folder() / "peaks" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _cached(key: str, refresh: bool, measure: Callable[[], Device]) -> Device:
    path = _cache_path(key)
    known = _load(path, key)
    if known is not None and not refresh:
        return known
    before, began = waits(), time.perf_counter()
    found = measure()
    if is_disturbed(time.perf_counter() - began, longest_wait(before, waits())):
        found = replace(found, source=found.source + _BESIDE_OTHERS)
    if known is not None:
        raised = {rate: max(getattr(found, rate), getattr(known, rate)) for rate in _RATES}
        source = found.source if measured_busy(known) else known.source
        found = replace(found, **raised, source=source,
                        launch_seconds=min(found.launch_seconds, known.launch_seconds))
    _store(path, key, found)
    return found


def _load(path: Path, key: str) -> Device | None:
    try:
        document = json.loads(path.read_text())
        if document.get("format") != _FORMAT or document.get("key") != key:
            return None
        return Device.from_json(document["device"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _store(path: Path, key: str, device: Device) -> None:
    """Write through a file of its own and a rename, so that no reader sees half of it. A folder that cannot
    be written only means that the next run measures again."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".peaks-", suffix=".json")
        with os.fdopen(handle, "w") as file:
            json.dump({"format": _FORMAT, "key": key, "device": device.to_json()}, file, indent=1)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
