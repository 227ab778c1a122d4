"""Sizes and layouts of the CUDA spectral energy: what the generated kernels share.

The axes are normalised to three (missing ones in front, of size 1). The first transformed axis is the real one;
spectra stay in the order that the in-place transform leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from kernelwright.codegen.cuda.fft_energy.axes import Axis, choose_axis
from kernelwright.plan.kernels import SpectralEnergy
from kernelwright.roofline.multiprocessors import HOPPER

SHARED_LIMIT = HOPPER.block_bytes
SHARED_HALF = 113 * 1024  # two blocks on one multiprocessor
SPECTRUM_BUDGET = 640 << 20
GRAM_BUDGET = 384 << 20
WEIGHT_BUDGET = 256 << 20
THREADS_WANTED = HOPPER.count * 2


def _align(value: int) -> int:
    return ceil(value / 256) * 256


@dataclass(frozen=True)
class Layout:
    """Everything that the texts need to know; sizes in elements unless named otherwise."""

    kernel: SpectralEnergy
    name: str
    frequencies_per_step: int = 4

    @cached_property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        """The three axes, those in front of size 1."""
        missing = 3 - len(self.kernel.size)
        if not 0 <= missing < 3:
            raise ValueError(f"spectral energy of {len(self.kernel.size)} spatial axes; 1 to 3 are supported")
        sizes = (1,) * missing + self.kernel.size
        lags = (0,) * missing + self.kernel.lags
        real = next((i for i in range(3) if lags[i] > 0), 2)
        first, second, third = (choose_axis(sizes[i], lags[i], i == real) for i in range(3))
        return first, second, third

    @cached_property
    def real(self) -> int:
        """Number of the real axis."""
        return next(i for i in range(3) if self.axes[i].real)

    @cached_property
    def taps(self) -> tuple[tuple[tuple[tuple[int, int], ...], ...], ...]:
        """Per axis and phase, the pairs (tap, offset)."""
        result = []
        for axis in (((0, 0),),) * (3 - len(self.kernel.taps)) + self.kernel.taps:
            phases: dict[int, list[tuple[int, int]]] = {}
            for tap, (phase, offset) in enumerate(axis):
                phases.setdefault(phase, []).append((tap, offset))
            result.append(tuple(tuple(phases[p]) for p in sorted(phases)))
        return tuple(result)

    @cached_property
    def tap_sizes(self) -> tuple[int, ...]:
        """The weight's kernel shape over the three axes."""
        return tuple(sum(len(phase) for phase in axis) for axis in self.taps)

    @cached_property
    def phase_taps(self) -> tuple[int, ...]:
        """Per axis, the largest number of taps of one phase."""
        return tuple(max(len(phase) for phase in axis) for axis in self.taps)

    @cached_property
    def phases(self) -> int:
        """Number of combined phases."""
        return prod(len(axis) for axis in self.taps)

    @property
    def channels(self) -> int:
        """Channels of x over all groups."""
        return self.kernel.groups * self.kernel.in_channels

    @property
    def outputs(self) -> int:
        """Channels of y over all groups."""
        return self.kernel.groups * self.kernel.out_channels

    @property
    def image(self) -> int:
        """Frequencies of one channel of one image."""
        return prod(axis.slots for axis in self.axes)

    @property
    def volume(self) -> int:
        """Frequencies that one transform of one channel produces (axes in front of the real one repeat it)."""
        return prod(axis.slots for axis in self.axes[self.real :])

    @property
    def volumes_per_channel(self) -> int:
        """Independent transforms per channel."""
        return self.image // self.volume

    # Gram kernel ------------------------------------------------------------------------------

    @property
    def tile(self) -> int:
        """Channels of one side of a tile of the Gram matrix."""
        return 8 if self.kernel.in_channels <= 8 else 16 if self.kernel.in_channels <= 16 else 32

    @property
    def channel_tiles(self) -> int:
        """Tiles of channels of one group."""
        return ceil(self.kernel.in_channels / self.tile)

    @property
    def pairs_per_group(self) -> int:
        """Tile pairs I <= J of one group."""
        return self.channel_tiles * (self.channel_tiles + 1) // 2

    @property
    def pairs(self) -> int:
        """Tile pairs over all groups."""
        return self.kernel.groups * self.pairs_per_group

    @property
    def grid_chunks(self) -> int:
        """Parts of the last axis's grid, so that a thread's sums fit its registers."""
        return ceil(self.axes[2].grid / 20)

    @property
    def grid_chunk(self) -> int:
        """Grid points of the last axis that one thread of the Gram kernel sums."""
        return ceil(self.axes[2].grid / self.grid_chunks)

    @property
    def rows_per_thread(self) -> int:
        """Rows of a Gram tile per thread (its columns are 2)."""
        return 4 if self.grid_chunk <= 10 else 2

    @property
    def tile_threads(self) -> int:
        """Threads of one Gram tile."""
        return (self.tile // self.rows_per_thread) * (self.tile // 2)

    @property
    def gram_threads(self) -> int:
        """Threads of a block of the Gram kernel."""
        return max(self.tile_threads, 64)

    @property
    def gram_items(self) -> int:
        """Lines that one block of the Gram kernel works on side by side."""
        return self.gram_threads // self.tile_threads

    @property
    def lines(self) -> int:
        """Lines along the last axis in one image."""
        return self.image // self.axes[2].slots

    @property
    def line_parts(self) -> int:
        """Parts of a line: at most 64 frequencies each, more of them where there are few lines."""
        slots = self.axes[2].slots
        least = ceil(slots / 64)
        wanted = ceil(THREADS_WANTED / (self.lines * self.pairs * self.grid_chunks))
        return min(max(least, wanted), ceil(slots / (2 * self.frequencies_per_step)))

    @property
    def line_part(self) -> int:
        """Frequencies of a part of a line: a multiple of the step."""
        step = self.frequencies_per_step
        return ceil(ceil(self.axes[2].slots / self.line_parts) / step) * step

    @property
    def images_per_step(self) -> int:
        """Images whose products are summed in one short sum."""
        return ceil(self.images / ceil(self.images / 16))

    @property
    def image_parts(self) -> int:
        """Parts of the batch, each summed by its own block."""
        steps = ceil(self.images / self.images_per_step)
        least = ceil(steps / 4)
        wanted = ceil(THREADS_WANTED / (self.lines * self.pairs * self.grid_chunks * self.line_parts))
        return min(max(least, wanted), steps)

    @property
    def image_part(self) -> int:
        """Images of one part: a multiple of the step."""
        steps = ceil(self.images / self.images_per_step)
        return ceil(steps / self.image_parts) * self.images_per_step

    @property
    def parts(self) -> int:
        """Partial sums per line."""
        return ceil(self.axes[2].slots / self.line_part) * ceil(self.images / self.image_part)

    # Chunks that bound the workspace ----------------------------------------------------------

    @property
    def images(self) -> int:
        """Images whose spectra are held at once."""
        per_image = self.channels * self.image * 8
        return max(1, min(self.kernel.batch, SPECTRUM_BUDGET // per_image))

    @cached_property
    def fold_elements(self) -> tuple[int, int, int]:
        """Complex numbers per tile pair after folding axis 2, then 1, then 0."""
        entries = self.tile * self.tile
        zero, one, two = self.axes
        first = zero.slots * one.slots * self.parts * two.grid * entries
        return (
            first,
            zero.slots * one.grid * two.grid * entries,
            zero.grid * one.grid * two.grid * entries,
        )

    @property
    def pairs_at_once(self) -> int:
        """Tile pairs whose folded Gram matrices are held at once."""
        return max(1, min(self.pairs, 32768, GRAM_BUDGET // (8 * sum(self.fold_elements))))

    @property
    def slice(self) -> int:
        """Grid points of one slice (one phase, one grid point of the last axis)."""
        return self.axes[0].grid * self.axes[1].grid

    @property
    def slices(self) -> int:
        """Slices over all phases and the half grid of the last axis."""
        return self.phases * (self.axes[2].lag + 1)

    @property
    def slices_at_once(self) -> int:
        """Slices whose transformed weights are held at once."""
        per_slice = self.slice * self.kernel.in_channels * self.outputs * 8
        return max(1, min(self.slices, WEIGHT_BUDGET // per_slice))

    @cached_property
    def workspace(self) -> dict[str, int]:
        """Byte offsets of the parts of the workspace; ``end`` is its size."""
        weight = self.slices_at_once * self.slice * self.kernel.in_channels * self.outputs * 8
        sizes = {
            **{f"twiddle{i}": 8 * axis.length for i, axis in enumerate(self.axes)},
            **{f"fold{i}": 4 * axis.slots * axis.grid_pitch for i, axis in enumerate(self.axes)},
            **{
                f"root{i}": 8 * len(self.taps[i]) * self.phase_taps[i] * axis.grid
                for i, axis in enumerate(self.axes)
            },
            **{f"tap{i}": 4 * len(self.taps[i]) * self.phase_taps[i] for i in range(3)},
            "partial": 8 * self.slices * self.slice * self.outputs,
            "spectrum": 8 * self.images * self.channels * self.image,
            **{f"folded{i}": 8 * self.pairs_at_once * n for i, n in enumerate(self.fold_elements)},
            "weights": weight,
        }
        offsets, position = {}, 0
        for part, size in sizes.items():
            offsets[part] = position
            position += _align(size)
        offsets["end"] = position
        return offsets
