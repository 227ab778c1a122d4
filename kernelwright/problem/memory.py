"""Refusing work that would not fit into memory, before the machine ends the process for it."""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.errors import NotEnoughMemory, where_of
from kernelwright.problem.untraced import without_tracer

# Below this many bytes an allocation is not looked at: reading what is free costs more than it can save.
SMALL = 64 << 20
_WIDEST = 16  # bytes of an element: complex128
_HOST_OUT_OF_MEMORY = re.compile(r"can't allocate memory|not enough memory|Cannot allocate memory"
                                 r"|[Ss]torage size calculation overflowed|Unable to allocate")
# PyTorch's allocator, the CUDA runtime (its words and its constant), the driver, and the libraries: CUBLAS_STATUS_,
# CUDNN_STATUS_ and others of the kind. Too few registers or too little shared memory for a launch are none of these:
# they are the kernel's, and stay however much memory is free.
_DEVICE_OUT_OF_MEMORY = re.compile(r"out[ _]?of[ _]?memory|cudaErrorMemoryAllocation|_ALLOC(ATION)?_FAILED",
                                   re.IGNORECASE)
_seen = [0]


class WouldNotFit(MemoryError):
    """Raised by MemoryGuard in place of an allocation: bytes needed and bytes free."""

    def __init__(self, needed: int, free: int, device: torch.device) -> None:
        super().__init__(f"one tensor needs {amount(needed)}; {amount(free)} are free")
        self.device = device


def amount(size: int) -> str:
    """A number of bytes for readers: ``1.50 GiB``."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if value < 1024 or unit == "EiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.2f} {unit}"


def available_memory(device: torch.device | str = "cpu") -> int | None:
    """Bytes that can still be allocated on ``device``; None where the system does not say.

    CPU: MemAvailable of /proc/meminfo, less where a control group allows less. CUDA: free memory plus
    what PyTorch's allocator holds without using it.
    """
    device = torch.device(device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            return None
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    limits = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    except OSError:
        pass
    try:
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            used = int((group / "memory.current").read_text()) - int(statistics.get("inactive_file", 0))
            limits.append(max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    return min(limits) if limits else None


def require_memory(needed: int, device: torch.device | str, subject: str, where: str = "") -> None:
    """Raise NotEnoughMemory (KW115) if ``needed`` bytes for ``subject`` exceed what ``device`` has free."""
    free = available_memory(device)
    if free is not None and needed > free:
        amounts = f"{subject} need {amount(needed)}; {amount(free)} are free"
        raise NotEnoughMemory(where=where, device=device, subject=subject, amounts=amounts)


def is_out_of_memory(exception: BaseException) -> bool:
    """Whether ``exception`` says that memory ran out: in Python, numpy, PyTorch, a library, or a kernel's launch.

    Where it does, `shortages` counts it: whoever asks goes on without what there was no room for.
    """
    found = (isinstance(exception, MemoryError) or is_out_of_device_memory(exception)
             or (isinstance(exception, RuntimeError) and bool(_HOST_OUT_OF_MEMORY.search(str(exception)))))
    _seen[0] += found
    return found


def shortages() -> int:
    """How often `is_out_of_memory` was told in this process that memory ran out. What was found meanwhile may be due to
    that, however it reads."""
    return _seen[0]


def is_out_of_device_memory(exception: BaseException) -> bool:
    """Whether ``exception`` says that a GPU's memory ran out.

    PyTorch's allocator raises torch.OutOfMemoryError; what the CUDA runtime and the libraries allocate themselves ends
    in torch.AcceleratorError or RuntimeError, and emitted files raise RuntimeError for their launches.
    """
    if isinstance(exception, torch.OutOfMemoryError):
        return True
    return isinstance(exception, RuntimeError) and says_out_of_device_memory(str(exception))


def release() -> None:
    """Give back memory that nobody can reach any more: models that hold themselves wait for the collector, and what
    PyTorch keeps for further tensors of other sizes is nobody else's."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def says_out_of_device_memory(text: str) -> bool:
    """`is_out_of_device_memory` where only an error's words are left."""
    return bool(_DEVICE_OUT_OF_MEMORY.search(text))


def out_of_memory_error(exception: BaseException, subject: str, device: torch.device,
                        where: str = "") -> NotEnoughMemory:
    """The coded error for an exception that :func:`is_out_of_memory` accepts."""
    device = exception.device if isinstance(exception, WouldNotFit) else device
    lines = str(exception).strip().splitlines() or [type(exception).__name__]
    text = re.sub(r"^\[enforce fail[^\]]*\] (err == 0\. )?", "", lines[0]).rstrip(".")
    return NotEnoughMemory(where=where, device=device, subject=subject, amounts=text)


@without_tracer
class MemoryGuard(TorchDispatchMode):
    """While active, an operator whose new results would not fit raises WouldNotFit instead of running.

    Works for every caller below it, the user's code included, without running anything twice: sizes
    come from the operator's shape rule on meta tensors, and only for factories and operators on at
    least a mebibyte, where a result can be large. Values, random streams and autograd are untouched.
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        # What decides most operators stands first: a constructor makes thousands of small tensors.
        if not isinstance(func, torch._ops.OpOverload) or func._schema.is_mutable or func.is_view \
                or _says_it_is_small(func, args):
            return func(*args, **kwargs)
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not tensors or sum(_bytes(x) for x in tensors) >= 1 << 20:
            self._check(func, args, kwargs, tensors)
        return func(*args, **kwargs)

    @staticmethod
    def _check(func: Any, args: tuple, kwargs: dict, tensors: list[torch.Tensor]) -> None:
        device = torch.device(kwargs.get("device") or (tensors[0].device if tensors else "cpu"))
        if device.type not in ("cpu", "cuda"):
            return
        try:
            meta_args, meta_kwargs = pytree.tree_map_only(torch.Tensor, _as_meta, (args, kwargs))
            if not tensors or "device" in meta_kwargs:
                meta_kwargs = {**meta_kwargs, "device": torch.device("meta")}
            meta_kwargs.pop("pin_memory", None)
            meta_kwargs.pop("generator", None)
            result = func(*meta_args, **meta_kwargs)
        except Exception:
            return  # no shape rule for this operator or these arguments; it runs unchecked
        needed = sum(_bytes(x) for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor))
        if needed >= SMALL:
            free = available_memory(device)
            if free is not None and needed > free:
                raise WouldNotFit(needed, free, device)


@contextmanager
def memory_checked(subject: str, device: torch.device, file: Path | None) -> Iterator[None]:
    """Runs its body under a MemoryGuard; running out of memory, or being about to, raises KW115.

    ``subject`` says for what ("the inputs"), ``file`` is the user's file whose line is shown.
    """
    try:
        with MemoryGuard():
            yield
    except Exception as exception:
        if is_out_of_memory(exception):
            raise out_of_memory_error(exception, subject, device, where_of(exception, file)) from exception
        raise


def _says_it_is_small(func: torch._ops.OpOverload, args: tuple) -> bool:
    """Whether the size that an operator is given as its first argument, which is that of its result, is small."""
    first = func._schema.arguments[0] if func._schema.arguments else None
    if first is None or first.name != "size" or not args or not isinstance(args[0], (list, tuple)):
        return False
    return "strided" not in func._schema.name and math.prod(args[0]) * _WIDEST < SMALL


def _bytes(x: torch.Tensor) -> int:
    """Bytes that the elements of ``x`` span in memory (repeated elements, of stride 0, count once)."""
    if x.is_nested or x.layout is not torch.strided or x.numel() == 0:  # a nested tensor has no one shape
        return 0
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return span * x.element_size()


def _as_meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
