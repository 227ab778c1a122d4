"""What the multiprocessors of a CUDA device have, and what one of them does in a cycle.

Schedules are proposed before anything is measured: for the device of `HOPPER`, on which the guesses were held against
measurements. Other devices run them as well; measurement chooses among the first few.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.roofline.devices import H200, Device


@dataclass(frozen=True, slots=True)
class Multiprocessors:
    """Those of a device. ``device``: its row, which has their number and the device's bandwidths.

    ``block_bytes``: shared memory that one block may have, of ``shared_bytes`` of a multiprocessor, ``block_reserve``
    of which every block loses. ``registers`` of 32 bits and ``warps``: what may be resident. ``clock``: cycles a second
    under load. In a cycle of one multiprocessor: ``wgmma_products`` and ``mma_products``, multiply-adds of 16-bit
    operands by either instruction, ``float32_products``, those of float32 without tensor cores; ``shared_rate``,
    ``cache_rate`` and ``memory_rate``, bytes from shared memory, from the second-level cache, and to or from memory.
    """

    device: Device
    block_bytes: int
    block_reserve: int
    registers: int
    warps: int
    clock: float
    wgmma_products: int
    mma_products: int
    float32_products: int
    shared_rate: int
    cache_rate: int
    memory_rate: int

    @property
    def count(self) -> int:
        """How many there are."""
        return self.device.cores

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one, in bytes."""
        return self.block_bytes + self.block_reserve


#: H100 and H200 (NVIDIA, Hopper Tuning Guide, section 1.4); rates as they were reached on an H200.
HOPPER = Multiprocessors(device=H200, block_bytes=227 << 10, block_reserve=1 << 10, registers=1 << 16, warps=64,
                         clock=1.75e9, wgmma_products=2048, mma_products=1270, float32_products=128,
                         shared_rate=128, cache_rate=28, memory_rate=18)
