"""The frame of every core on wgmma: a persistent, warp-specialised kernel, written once.

Blocks stay on their multiprocessor and take work tile after work tile. The first warpgroups of a block, the producers,
fill the stages of a ring in shared memory; the consumer warpgroups multiply what is there and finish their sums.
Barriers with phases say of each stage that it is full, and that it is empty again. A core is a policy of this frame:
what a stage holds, how it is filled (by bulk copies, or converted by the producers), where each operand of a product
comes from (shared memory or registers; staged, resident, a ring of rows), which work tiles a block takes, and what
becomes of sums.

Consumer warpgroups may multiply in order (ping-pong; CUTLASS calls such barriers an ordered sequence): each waits until
the one before it has issued its products, so that one finishes its sums while the other's products run.

A text is to be filled by `codegen.template.fill`; ``@NAME@`` stands for what a core fills in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from kernelwright.codegen.source import text_beside

KERNEL = "\n" + text_beside(__file__, "kernel.cuh")

#: What stands for names of `KERNEL` where a core says nothing else: one block on a multiprocessor and no cluster.
DEFAULTS = {"RESIDENT": 1, "SECOND_RUN": "", "INIT_SHARED": "", "START": "__syncthreads();", "PLACE": "", "END": ""}

#: To the next stage of the ring; ``parity`` is that of the phase in which the stage's barriers are.
NEXT_STAGE = "if (++stage == STAGES) stage = 0, parity ^= 1;"

#: Barriers of the order in which consumer warpgroups multiply.
ORDERED = "order"


@dataclass(frozen=True, slots=True)
class Barriers:
    """Barriers that lie beside each other in shared memory, 8 bytes each.

    ``name``: the variable that holds the first one's address. ``count`` of them, each of which completes a phase after
    so many ``arrivals``: expressions of the kernel. ``who``: a comment that says who arrives. ``at``: the address where
    they do not lie behind the barriers named before them; then the kernel defines ``name`` where it is needed.
    """

    name: str
    count: str
    arrivals: str
    who: str
    at: str = ""


def barrier_values(first: str, barriers: Sequence[Barriers], before: str = "") -> dict[str, object]:
    """``ADDRESSES`` and ``INIT_BARRIERS`` of a core whose first barrier lies at the address ``first``. before: the line
    that defines what ``first`` counts from."""
    here = [b for b in barriers if not b.at]
    places = [first, *(f"{b.name} + 8 * {b.count}" for b in here)]
    defined = ", ".join(f"{b.name} = {place}" for b, place in zip(here, places, strict=False))
    lines = []
    for (count, _), alike in groupby(barriers, key=lambda b: (b.count, bool(b.at))):
        lines.append(f"    for (int i = 0; i < {count}; ++i) {{")
        lines += [f"      kw_barrier_init({b.at or b.name} + 8 * i, {b.arrivals});  // {b.who}" for b in alike]
        lines.append("    }")
    return {"ADDRESSES": f"{before}  const unsigned {defined};", "INIT_BARRIERS": "\n".join(lines)}


def ordered(count: str) -> Barriers:
    """The barriers of ``count`` consumer warpgroups that multiply in order."""
    return Barriers(ORDERED, count, "4", "warps of the consumer warpgroup before")


def await_order(own: str, number: str) -> str:
    """The statement that waits until consumer warpgroup ``own`` may issue the products of the work that is its
    ``number``-th. The first warpgroup's first work waits for nobody."""
    return f"kw_barrier_wait({ORDERED} + 8 * {own}, ({number} & 1) ^ ({own} == 0));"


def pass_order(following: str, where: str = "") -> str:
    """The statement that lets the ``following`` consumer warpgroup issue its products, under a condition."""
    condition = f"{where} && lane == 0" if where else "lane == 0"
    return f"if ({condition}) kw_barrier_arrive({ORDERED} + 8 * ({following}));"
