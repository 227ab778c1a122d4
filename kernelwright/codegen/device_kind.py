"""The kind of device that each target's kernels run on, for those who ask and never import PyTorch."""

from __future__ import annotations

from importlib import import_module

#: That of the processor on which Python runs, which every machine has.
HOST = "cpu"


def device_kind(target: str) -> str:
    """The type of PyTorch's tensors that kernels of a target, by its name, take; "" of "auto", which each machine
    answers for itself."""
    return "" if target == "auto" else import_module(f"kernelwright.codegen.{target}").DEVICE_KIND
