"""How one contraction runs on tensor cores: what a kernel's text is made from beside the contraction itself."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a contraction runs on tensor cores.

    ``core``: "wgmma" (compute capability 9.0), "mma" (8.0 and later), "row_buffered" (9.0: row-buffered implicit GEMM,
    a block keeps all weights and goes from line to line of the output) or "swap_ab" (9.0: output channels are the rows
    of a product, and the weight goes straight into registers).
    ``rows``, ``columns``: of a tile, positions and output channels; of "row_buffered" positions of one line.
    ``depth``, ``stages``: channels of a step (8: of two taps, 8 channels each), and steps that shared memory holds; of
    "row_buffered" the lines of x that it holds.
    ``cluster``: blocks that differ in their rows and share what they read of the weight.
    ``promote``: steps of an accumulation interval, after which sums move to float32 registers, as tensor cores truncate
    them; 0: never.
    ``pingpong``: consumer warpgroups that have a tile each, so that the epilogues of some overlap with the products of
    another; 1: all of a block share one tile.
    ``converts_left``, ``converts_right``: whether an operand is converted in the mainloop: read as it lies in memory,
    and rounded or split for every tile; nothing of it is packed.
    ``packs_concurrently``: whether some warps of each block pack x while the others multiply what is packed.
    ``split_k``: blocks that share the steps of a tile, whose sums a second kernel adds in order.
    ``parities``: output-parity classes of a tile, 1 or 2: both of the last axis (of out_stride 2), which are neighbours
    in the output, or where windows of two lines are pooled the two lines.
    ``overlap``: rows of the next tile that a tile computes, too, so that each stores whole sectors of memory.
    ``sector_aligned``: whether warps begin to store at multiples of 32 bytes, wherever results lie; "row_buffered"
    stores once what two lines share of a sector.
    ``from_registers``: whether threads finish the sums that they have, without shared memory: they store them, in lines
    of whole sectors, or reduce channels.
    ``folded_taps``: neighbouring taps of the last axis that are one, of as many times the channels.
    """

    core: str
    rows: int
    columns: int
    depth: int
    stages: int
    cluster: int = 1
    promote: int = 0
    pingpong: int = 1
    converts_right: bool = False
    split_k: int = 1
    parities: int = 1
    overlap: int = 0
    converts_left: bool = False
    packs_concurrently: bool = False
    sector_aligned: bool = False
    from_registers: bool = False
    folded_taps: int = 1

    @property
    def takes_left(self) -> bool:
        """Whether blocks read x as it lies in memory: no kernel before them packs it."""
        return self.converts_left or self.packs_concurrently

    @property
    def label(self) -> str:
        """``wgmma 128x128x64, 3 stages``, and each further field that is not as usual."""
        extra = "".join(f", {f.name} {getattr(self, f.name)}" for f in fields(self)
                        if f.default is not MISSING and getattr(self, f.name) != f.default)
        return f"{self.core} {self.rows}x{self.columns}x{self.depth}, {self.stages} stages{extra}"

    @property
    def words(self) -> str:
        """``wgmma 128x64x32: tiles of 128 rows by 64 channels, 32 input channels a step; ...`` with `reasons`."""
        if self.core == "row_buffered":
            each = f", each at {64 // self.columns} neighbouring lines or phases," if self.columns < 64 else ""
            parts = ["row-buffered implicit GEMM: weights stay in shared memory beside "
                     f"{self.stages} lines of x; tiles of {self.rows} positions of a line by {self.columns} "
                     f"channels{each} one line after the other", *self.reasons]
            return f"{self.core} {self.rows}x{self.columns}: {'; '.join(parts)}"
        step = "8 input channels of two entries of the window" if self.depth == 8 else f"{self.depth} input channels"
        parts = [f"tiles of {self.rows} rows by {self.columns} channels, {step} a step"]
        if self.core == "swap_ab":
            parts += ["output channels are the rows of products, so that threads read the weight where it lies "
                      "straight into the registers that products take it from, and no packed copy of it is stored",
                      *replace(self, converts_right=False).reasons]
        else:
            parts += self.reasons
        return f"{self.core} {self.rows}x{self.columns}x{self.depth}: {'; '.join(parts)}"

    @property
    def reasons(self) -> list[str]:
        """What is unusual about it, each with what it is for; in the order of importance to a reader."""
        sectors = "what neighbouring lines share of a sector of memory is stored once" if self.core == "row_buffered" \
            else "warps begin to store at whole sectors of memory, wherever lines of the output begin"
        every = (
            (self.parities > 1, "both output-parity classes of an axis in a tile, which are neighbours in memory, or "
                                "in a window of two lines"),
            (self.folded_taps > 1, f"{self.folded_taps} neighbouring taps of a line are one tap, of {self.folded_taps} "
                                   "times the channels, because products take channels by eights"),
            (self.overlap > 0, f"neighbouring tiles overlap by {self.overlap} rows, so that each stores whole sectors "
                               "of memory"),
            (self.sector_aligned, sectors),
            (self.from_registers, "threads finish the sums that they have, straight from registers"),
            (self.pingpong > 1, f"{self.pingpong} consumer warpgroups with a tile each (ping-pong), so that some form "
                                "products while others finish their results"),
            (self.converts_left, "x is read where it lies and made ready in shared memory, so that no packed copy of "
                                 "it is stored"),
            (self.packs_concurrently, "x is packed by warps of the same kernel while others multiply what is packed"),
            (self.converts_right, "the weight is read where it lies and made ready by each block, so that no packed "
                                  "copy is stored"),
            (self.split_k > 1, f"{self.split_k} blocks share the steps of a tile (split-K), as tiles are few; a kernel "
                               "adds their sums"),
            (self.cluster > 1, f"{self.cluster} blocks share what they read of the weight"))
        return [reason for applies, reason in every if applies]
