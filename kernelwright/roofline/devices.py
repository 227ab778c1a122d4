"""Devices as rows: what memory and arithmetic can do at most, per second.

A new target is one row here (and its kernels' folder). Rows are looked up by the device's name; a CUDA device
without a row gets one made from its properties, a CPU one measured by `kernelwright.roofline.measure`.
"""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Device:
    """Peaks of one device, all per second of one device: bandwidths in bytes, arithmetic in operations (a
    multiplication and an addition are two).

    ``memory_peak`` is the data sheet's or the best bandwidth seen: no honest time beats it. ``read`` and
    ``copy`` (bytes read plus written) are what a good kernel reaches. ``float32`` is the peak of fused
    multiply-adds outside matrix units, ``float32_matmul`` what the vendor's SGEMM reaches; ``tf32``,
    ``float16`` and ``bfloat16`` are matrix units with float32 sums; ``float64_matmul`` is a matrix unit's
    where there is one. ``launch_seconds`` is the shortest time of a kernel or loop that does nothing.
    ``cores`` are streaming multiprocessors or the threads in use; ``cache_bytes`` the last-level cache.
    ``source`` says where the figures come from.
    """

    name: str
    kind: str
    memory_peak: float
    read: float
    copy: float
    float32: float
    float32_matmul: float
    tf32: float
    float16: float
    bfloat16: float
    float64: float
    float64_matmul: float
    launch_seconds: float
    cores: int
    cache_bytes: int
    source: str

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "cuda"):
            raise ValueError(f"kind is {self.kind!r}: it must be 'cpu' or 'cuda'")
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, (int, float)) and not value > 0:
                raise ValueError(f"{item.name} of {self.name} is {value}: it must be positive")

    @property
    def adds_bias_apart(self) -> bool:
        """Whether PyTorch's library adds a convolution's bias in a second pass over the output: cuDNN does, oneDNN does
        not."""
        return self.kind == "cuda"

    @property
    def fused_products(self) -> tuple[str, ...]:
        """The kinds of kernels that products become with what stands around them: attention, which on a GPU takes the
        matrix units of compute capability 9.0, in float32 and in 16 bits, and batched products, which were made for the
        memory of one."""
        if self.kind == "cpu":
            return ("attention",)
        known = not torch.cuda.is_available() or torch.cuda.get_device_capability() == (9, 0)
        return ("attention", "attention in 16 bits", "batched product") if known else ()

    @property
    def rounds_products(self) -> bool:
        """Whether PyTorch may round the operands of float32 products, to TF32."""
        return self.kind == "cuda"

    @property
    def parallel(self) -> str:
        """How many threads of a CPU, or multiprocessors of a GPU, the figures are for, in words."""
        unit = "thread" if self.kind == "cpu" else "multiprocessor"
        return f"{self.cores} {unit}{'s' if self.cores > 1 else ''}"

    @property
    def title(self) -> str:
        """The name, of a CPU with the number of threads that the figures are for."""
        return f"{self.name}, {self.parallel}" if self.kind == "cpu" else self.name

    def best_arithmetic(self, dtype: torch.dtype = torch.float32, *, tf32: bool = False) -> float:
        """Operations per second that no honest kernel on ``dtype`` beats: the fastest unit that may be used.

        Float32 work may be split onto half-precision matrix units (three products each), which keeps its
        accuracy; with ``tf32`` the TF32 units count as well. Integers count as float32.
        """
        if dtype in (torch.float64, torch.complex128):
            return max(self.float64, self.float64_matmul)
        if dtype is torch.float16:
            return max(self.float16, self.float32)
        if dtype is torch.bfloat16:
            return max(self.bfloat16, self.float32)
        best = max(self.float32, self.float32_matmul, max(self.float16, self.bfloat16) / 3)
        return max(best, self.tf32) if tf32 else best

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Device:
        """Return the row of ``to_json``'s data. Raises TypeError or ValueError where it is not one."""
        return cls(**document)


_MEASURED = "measured: read, copy, SGEMM, TF32, bfloat16; the others from the data sheet"
_SCALED = "data sheet; read, copy and matrix figures scaled by the shares measured on an H200"

H200 = Device(
    name="NVIDIA H200",
    kind="cuda",
    memory_peak=4.8e12,
    read=4.38e12,
    copy=4.25e12,
    float32=6.7e13,
    float32_matmul=5.1e13,
    tf32=3.9e14,
    float16=8.36e14,
    bfloat16=8.36e14,
    float64=3.4e13,
    float64_matmul=6.7e13,
    launch_seconds=3e-6,
    cores=132,
    cache_bytes=60 << 20,
    source=_MEASURED,
)

H100 = replace(
    H200,
    name="NVIDIA H100 80GB HBM3",
    memory_peak=3.35e12,
    read=3.06e12,
    copy=2.97e12,
    cache_bytes=50 << 20,
    source=_SCALED,
)

H100_PCIE = replace(
    H200,
    name="NVIDIA H100 PCIe",
    memory_peak=2.04e12,
    read=1.86e12,
    copy=1.81e12,
    float32=5.1e13,
    float32_matmul=3.9e13,
    tf32=3.0e14,
    float16=6.4e14,
    bfloat16=6.4e14,
    float64=2.6e13,
    float64_matmul=5.1e13,
    cores=114,
    cache_bytes=50 << 20,
    source=_SCALED,
)

A100_80 = Device(
    name="NVIDIA A100-SXM4-80GB",
    kind="cuda",
    memory_peak=2.039e12,
    read=1.86e12,
    copy=1.80e12,
    float32=1.95e13,
    float32_matmul=1.8e13,
    tf32=1.3e14,
    float16=2.6e14,
    bfloat16=2.6e14,
    float64=9.7e12,
    float64_matmul=1.95e13,
    launch_seconds=4e-6,
    cores=108,
    cache_bytes=40 << 20,
    source=_SCALED,
)

A100_80_PCIE = replace(
    A100_80, name="NVIDIA A100 80GB PCIe", memory_peak=1.935e12, read=1.76e12, copy=1.71e12
)

A100_40 = replace(A100_80, name="NVIDIA A100-SXM4-40GB", memory_peak=1.555e12, read=1.42e12, copy=1.37e12)

#: A middling data-centre GPU, for planning without a device and without knowing it.
GENERIC_CUDA = replace(
    A100_80,
    name="generic CUDA device",
    memory_peak=1.0e12,
    read=9.0e11,
    copy=8.8e11,
    launch_seconds=5e-6,
    source="assumed: no device was seen",
)

#: Eight threads of a middling server CPU, for planning that must not depend on the machine it happens on.
GENERIC_CPU = Device(
    name="generic CPU",
    kind="cpu",
    memory_peak=4.0e10,
    read=3.5e10,
    copy=3.2e10,
    float32=4.0e11,
    float32_matmul=3.0e11,
    tf32=4.0e11,
    float16=4.0e11,
    bfloat16=4.0e11,
    float64=2.0e11,
    float64_matmul=1.5e11,
    launch_seconds=5e-6,
    cores=8,
    cache_bytes=32 << 20,
    source="assumed, for eight threads: no CPU was measured",
)

#: Every row with a name that PyTorch reports.
ROWS: dict[str, Device] = {row.name: row for row in (H200, H100, H100_PCIE, A100_80, A100_80_PCIE, A100_40)}


def named_device(name: str) -> Device | None:
    """Return the row of a device by the name that PyTorch reports (case does not matter), or None."""
    wanted = " ".join(name.lower().split())
    return next((row for row in ROWS.values() if row.name.lower() == wanted), None)


def device_from_properties(properties: Any) -> Device:
    """Make a row from ``torch.cuda.get_device_properties``: bandwidth and FMA peak from clocks and widths.

    Properties that PyTorch does not report leave the generic row's figure.
    """
    cores = int(getattr(properties, "multi_processor_count", 0) or GENERIC_CUDA.cores)
    clock = float(getattr(properties, "clock_rate", 0) or 1.4e6) * 1e3  # kHz
    memory_clock = float(getattr(properties, "memory_clock_rate", 0) or 0) * 1e3
    bus_bytes = float(getattr(properties, "memory_bus_width", 0) or 0) / 8
    bandwidth = 2 * memory_clock * bus_bytes or GENERIC_CUDA.memory_peak
    major, minor = int(getattr(properties, "major", 8)), int(getattr(properties, "minor", 0))
    lanes = 64 if (major, minor) in ((7, 0), (7, 2), (7, 5), (8, 0)) else 128
    float32 = cores * lanes * 2 * clock
    # Matrix units per multiprocessor, operations per cycle: Volta/Turing 1024, Ampere 2048, Hopper on 4096.
    half = cores * clock * (4096 if major >= 9 else 2048 if (major, minor) == (8, 0) else 1024)
    fast_double = (major, minor) in ((7, 0), (8, 0), (9, 0), (10, 0))
    return Device(
        name=str(getattr(properties, "name", "CUDA device")),
        kind="cuda",
        memory_peak=bandwidth,
        read=0.91 * bandwidth,
        copy=0.885 * bandwidth,
        float32=float32,
        float32_matmul=0.8 * float32,
        tf32=half * 0.4 if major >= 8 else float32,
        float16=0.85 * half,
        bfloat16=0.85 * half if major >= 8 else float32,
        float64=float32 / (2 if fast_double else 32),
        float64_matmul=float32 / (1 if fast_double and major >= 8 else 2 if fast_double else 32),
        launch_seconds=GENERIC_CUDA.launch_seconds,
        cores=cores,
        cache_bytes=int(getattr(properties, "L2_cache_size", 0) or GENERIC_CUDA.cache_bytes),
        source="estimated from the device's clocks and widths",
    )


def processor_name() -> str:
    """Return the CPU's model name as Linux reports it, or what Python knows."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.lower().startswith(("model name", "cpu model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def last_level_cache_bytes() -> int:
    """Size of the CPU's largest cache as Linux reports it, or 32 MB where it does not."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text().strip().upper()
            factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
            sizes.append(int(text.rstrip("KMG")) * factor)
        except (OSError, ValueError):
            continue
    return max(sizes, default=32 << 20)
