"""What contractions use of PTX on compute capability 9.0, as snippets: device functions named ``kw_``.

``ptx.sm90``: barriers with phases in shared memory, bulk copies, barriers of a part of a block, registers moved
between warpgroups, fences and waits of matrix products. ``cluster``: the same across the blocks of a cluster, and
launches in clusters. ``together``: values that blocks hand each other through global memory while all of them run.
``wgmma_f16_N`` and ``wgmma_bf16_N``: one product of 64 rows and N columns; ``..._own``: the same of rows that threads
have in registers; ``..._turned``: of these by an operand that lies the other way.

Shared memory is addressed by 32-bit addresses (`kw_shared`). Operands are K-major without swizzle (PTX ISA 9.0,
"Shared Memory Matrix Layout"): eight neighbours along k are 16 contiguous bytes, rows follow each other every 16
bytes (stride byte offset 128 for eight of them), and the next eight neighbours along k lie ``chunk_bytes`` further
(leading byte offset). So an operand may begin at any row. `emulation/tensor.hpp` defines the same functions.

What asynchronous copies of 16 bytes bring lies in panels instead, with the 128-byte swizzle: 64 neighbours are a row of
128 bytes, in which the piece of 16 bytes number p is at p ^ (row % 8). A copy writes rows of shared memory as it reads
lines of global memory; into the other layout an H200 copies 10 bytes a cycle and multiprocessor. Of a turned operand,
which is MN-major, the rows of a panel are k, and its columns those of the operand.
"""

from __future__ import annotations

from kernelwright.codegen.source import text_beside

COLUMNS = tuple(range(8, 257, 8))
"""Columns that one product can have."""

_WORDS = {"f16": "float16 elements", "bf16": "bfloat16 elements"}
"""What an operand consists of, by the name of its type in PTX."""


def _product(kind: str, columns: int) -> str:
    """The function of one product; overloads differ in the number of sums that a thread holds."""
    count = columns // 2
    places = ', "\n      "'.join(_lines([f"%{i}" for i in range(count)], 16))
    sums = ",\n        ".join(_lines([f'"+f"(d[{i}])' for i in range(count)], 6))
    return f"""
#ifndef KERNELWRIGHT_EMULATION
// Sums of 64 rows and {columns} columns plus (or, where `add` is 0, set to) the products over 16 {_WORDS[kind]} of both
// operands. A thread's sums 4 j + 2 h + c are of row lane / 4 + 8 h of its warp's 16, column 8 j + 2 (lane % 4) + c.
static __device__ __forceinline__ void kw_wgmma_{kind}(float (&d)[{count}], unsigned long long a,
{' ' * (48 + len(kind))}unsigned long long b, int add) {{
  asm volatile(
      "{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{count + 2}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{"
      "{places}"
      "}}, %{count}, %{count + 1}, add, 1, 1, 0, 0;\\n}}"
      : {sums}
      : "l"(a), "l"(b), "r"(add));
}}
#endif  // KERNELWRIGHT_EMULATION
"""


def _product_of_own(kind: str, columns: int, *, turned: bool = False) -> str:
    """The function of one product whose first operand is in registers; ``turned``: whose second one has neighbours
    along its columns."""
    count = columns // 2
    places = ', "\n      "'.join(_lines([f"%{i}" for i in range(count)], 16))
    sums = ",\n        ".join(_lines([f'"+f"(d[{i}])' for i in range(count)], 6))
    own = ", ".join(f"%{count + i}" for i in range(4))
    name = f"kw_wgmma_{kind}{'_turned' * turned}"
    comment = f"""\
// Rows of {_WORDS[kind]} in registers by an operand whose neighbours along the columns are neighbours in memory:
// `b` is of `kw_turned_operand`.""" if turned else f"""\
// The same of rows in registers: of row lane / 4 of its warp's 16 and of the one 8 below a thread has {_WORDS[kind]}
// 2 (lane % 4) and the next of k in `a[0]` and `a[1]`, and those 8 further in `a[2]` and `a[3]`."""
    return f"""
#ifndef KERNELWRIGHT_EMULATION
{comment}
static __device__ __forceinline__ void {name}(float (&d)[{count}], const unsigned (&a)[4],
{' ' * (39 + len(name))}unsigned long long b, int add) {{
  asm volatile(
      "{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{count + 5}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{"
      "{places}"
      "}}, {{{own}}}, %{count + 4}, add, 1, 1, {int(turned)};\\n}}"
      : {sums}
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}}
#endif  // KERNELWRIGHT_EMULATION
"""


def _lines(words: list[str], most: int) -> list[str]:
    """Words with commas between them, ``most`` to a line."""
    return [", ".join(words[i:i + most]) for i in range(0, len(words), most)]


TENSOR_SNIPPETS: dict[str, str] = {
    "tensor_core": text_beside(__file__, "tensor_core.cuh"),
    "cluster": text_beside(__file__, "cluster.cuh"),
    "together": text_beside(__file__, "together.cuh"),
    **{f"wgmma_{kind}_{columns}": _product(kind, columns).lstrip("\n") for kind in _WORDS for columns in COLUMNS},
    **{f"wgmma_f16_{columns}_own": _product_of_own("f16", columns).lstrip("\n") for columns in COLUMNS},
    **{f"wgmma_{kind}_{columns}_turned": _product_of_own(kind, columns, turned=True).lstrip("\n")
       for kind in _WORDS for columns in COLUMNS},
}
"""Snippet texts by name, in the order in which they appear in a file."""

TENSOR_NEEDS: dict[str, tuple[str, ...]] = {
    "cluster": ("tensor_core",),
    **{name: ("tensor_core",) for name in TENSOR_SNIPPETS if name.startswith("wgmma_")},
}
"""Snippets that a snippet uses."""
