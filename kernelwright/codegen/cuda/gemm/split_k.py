"""Sums whose products are split among blocks: how their parts come together.

Each block leaves the sums of its part of the channels in memory, and ``NAME_merge`` has a block for each tile (or 64
rows of one) that adds them and finishes the tile. Where there are many parts there are few tiles, and few blocks read
them all: 33 parts of four tiles took four blocks 108 us (H100, 256 x 524288 x 256). So the parts are added first, a
thread for four sums, in the same order, and the blocks that finish tiles find one part.
"""

from __future__ import annotations

from kernelwright.codegen.source import text_beside
from kernelwright.codegen.template import fill

#: Parts up to which the blocks that finish tiles add them: their number is a third of the device's or more.
_FEW = 3
_THREADS = 128

_ADD = "\n" + text_beside(__file__, "split_k.cuh")


def parts_left(split: int) -> int:
    """How many parts ``NAME_merge`` finds of ``split``."""
    return split if split <= _FEW else 1


def addition(name: str, split: int, sums: int) -> str:
    """``NAME_add_parts``, of parts of so many sums, a multiple of four; "" where ``NAME_merge`` adds them."""
    if parts_left(split) == split:
        return ""
    return fill(_ADD, {"NAME": name, "SPLIT": split, "PART": sums, "THREADS": _THREADS})


def addition_launch(name: str, split: int, sums: int) -> tuple[str, ...]:
    """The host's lines that launch ``NAME_add_parts`` where there is one."""
    if parts_left(split) == split:
        return ()
    blocks = -(-sums // (4 * _THREADS))
    return (f'KW_LAUNCH("{name}", {name}_add_parts, {blocks}LL, {_THREADS}, 0, stream, '
            "reinterpret_cast<float4*>(sums));",)
