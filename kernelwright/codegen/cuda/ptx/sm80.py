"""PTX of compute capability 8.0 that contractions use: asynchronous copies, matrix loads, products of a warp.

Fragments are those of the PTX manual, "Matrix Fragments for mma.m16n8k16" (lane = 4 * group + t)::

    a[0..3]  rows group, group + 8, group, group + 8; two neighbours of k from 2 t, 2 t, 2 t + 8, 2 t + 8 on
    b0, b1   column group; two neighbours of k from 2 t, 2 t + 8 on
    d[0..3]  row group, columns 2 t and 2 t + 1; then row group + 8

ldmatrix gives lane l word l % 4 of row l / 4 of each 8 x 8 matrix, the rows of matrix i at the addresses of lanes
8 i .. 8 i + 7: so it makes those fragments of operands whose rows are 8 neighbours of k, 16 bytes.
"""

from __future__ import annotations

from kernelwright.codegen.source import text_beside

MMA_SNIPPETS: dict[str, str] = {name: text_beside(__file__, f"{name}.cuh")
                                for name in ("mma_sync", "written", "mma_float64")}
"""``written`` defines ``kw_written``, ``mma_float64`` ``kw_mma_float64``; ``mma_sync`` defines ``kw_shared_address``,
``kw_cp_async_16``, ``kw_cp_async_commit``, ``kw_cp_async_wait``, ``kw_ldmatrix``, ``kw_mma_float16`` and
``kw_mma_bfloat16``."""
