"""What may move times while they are measured: threads, precision flags, load, the GPU's clocks and throttling."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Any

import torch

FIELDS = ("clocks.sm", "clocks.mem", "clocks_event_reasons.active", "temperature.gpu", "power.draw")
#: Bits of ``clocks_event_reasons.active`` that mean less than full speed for want of power or cooling, by their name
#: in NVML (nvmlClocksEventReason*).
THROTTLES = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal limit", 0x40: "hardware thermal limit",
             0x80: "power brake"}


def environment(device: torch.device) -> dict[str, str]:
    """Facts by name, as texts. Where nvidia-smi cannot be asked, ``clocks`` is "unknown"."""
    facts = {"threads": str(torch.get_num_threads()), "float32_matmul": torch.get_float32_matmul_precision()}
    if hasattr(os, "getloadavg"):
        facts["load"] = f"{os.getloadavg()[0]:.2f}"
    if device.type == "cuda":
        facts["cudnn.allow_tf32"] = str(torch.backends.cudnn.allow_tf32)
        facts["cudnn.benchmark"] = str(torch.backends.cudnn.benchmark)
        facts |= query(device_name(torch.cuda.get_device_properties(device)), FIELDS) or {"clocks": "unknown"}
    return facts


def throttling(facts: dict[str, str]) -> tuple[str, ...]:
    """Why the GPU was slower than it can be when ``facts`` were taken: names of `THROTTLES`."""
    try:
        bits = int(facts.get("clocks_event_reasons.active", "0"), 16)
    except ValueError:
        return ()
    return tuple(name for bit, name in THROTTLES.items() if bits & bit)


def device_name(properties: Any) -> str:
    """What nvidia-smi calls the device that PyTorch has these properties of: its UUID, else its place on the bus.

    PyTorch numbers only the devices that CUDA_VISIBLE_DEVICES names, in its order; nvidia-smi numbers all.
    """
    uuid = str(getattr(properties, "uuid", "") or "")
    if uuid:
        return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    place = [getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    return "{:08X}:{:02X}:{:02X}.0".format(*place) if None not in place else ""


def query(name: str, fields: Sequence[str]) -> dict[str, str]:
    """What nvidia-smi says about one device, by field; empty where it says nothing, or ``name`` is."""
    if not name:
        return {}
    try:
        done = subprocess.run(["nvidia-smi", "-i", name, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=5, check=True)
        values = [value.strip() for value in done.stdout.strip().splitlines()[0].split(",")]
    except (OSError, subprocess.SubprocessError, IndexError):
        return {}
    return dict(zip(fields, values, strict=False))
