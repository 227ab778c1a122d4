"""The spectral energy for C++/OpenMP: ``SpectralEnergy`` to the text of one host function.

The mathematics is in ``codegen/fft_energy/tables.py``. The text does, per group:

1. transform   one task per entry (batch element or section) and block of LANES channels: the
   channels are the vector lanes, so every axis is the same small dense transform, kept in cache.
2. Gram, fold  one task per frequency of the half-spectrum axis and pair of channel blocks: S for
   one line of frequencies at a time, folded at once along both full axes.
3. weights     What in double, one task per channel and block of output columns.
4. form        one task per grid point and block row: the last fold and the quadratic form in double.

Every task writes its own result and sums have a fixed order, so the energy does not depend on the
number of threads. All sizes are constants of the text; long batches go through in chunks, so the
workspace stays below about 1 GB.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from kernelwright.codegen.cpp.fft_energy.gram import GRAM
from kernelwright.codegen.cpp.fft_energy.quadratic import HOST, QUADRATIC, RUN
from kernelwright.codegen.cpp.fft_energy.transform import TRANSFORM
from kernelwright.codegen.fft_energy.tables import AxisSections, axis_phases, choose_sections, half_spectrum
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.template import fill
from kernelwright.plan.kernels import SpectralEnergy

SPECTRUM_BYTES = 384 << 20
FOLDED_BYTES = 160 << 20
WHAT_BYTES = 96 << 20
LARGEST_TASK_POINTS = 1 << 17
"""Half-spectrum points of one section that a thread holds for one block of channels (128 bytes each)."""

COLUMNS = 8
"""Output columns of a block in the quadratic form; the same constant is in the text."""

INCLUDES = (
    "#include <cmath>",
    "#include <cstdint>",
    "#include <cstdlib>",
    "#include <cstring>",
    "#include <vector>",
    "#include <omp.h>",
)
"""What the text needs; the definition starts with these lines."""


@dataclass(frozen=True, slots=True)
class SpectralLayout:
    """How the work of one kernel is blocked and chunked; all sizes in elements unless named bytes."""

    sections: tuple[AxisSections, ...]
    lags: tuple[int, ...]
    lanes: int
    blocks: int
    entries: int
    negative_entries: int
    entries_at_once: int
    pairs_at_once: int
    column_blocks: int
    column_blocks_at_once: int
    folded_at: int
    what_at: int
    partial_at: int
    workspace_bytes: int

    @property
    def pairs(self) -> int:
        """Pairs of channel blocks, first not after second."""
        return self.blocks * (self.blocks + 1) // 2


def _three(values: tuple, filler: object) -> tuple:
    return (filler,) * (3 - len(values)) + tuple(values)


def _odd_stride(floats: int) -> int:
    lines = (floats + 15) // 16
    return (lines + 1 - lines % 2) * 16


def _round_up(value: int, unit: int) -> int:
    return (value + unit - 1) // unit * unit


def layout(kernel: SpectralEnergy) -> SpectralLayout:
    """Choose sections, blocks and chunks of a kernel of one to three axes."""
    lanes = next(n for n in (4, 8, 16) if n >= min(kernel.in_channels, 16))
    blocks = (kernel.in_channels + lanes - 1) // lanes
    padded = blocks * lanes
    limit = min(LARGEST_TASK_POINTS, max(1, SPECTRUM_BYTES // (8 * padded)))
    sections = _three(choose_sections(kernel, padded + 48, limit), AxisSections(1, ((0,),), (1,)))
    lags = _three(kernel.lags, 0)
    lengths = tuple(section.length for section in sections)
    half = half_spectrum(lengths[2])
    signs = [prod(choice) for choice in product(*(section.signs for section in sections))]
    entries = kernel.batch * len(signs)
    entry_bytes = 4 * blocks * _odd_stride(half * lengths[0] * lengths[1] * 2 * lanes)
    entries_at_once = max(1, min(entries, SPECTRUM_BYTES // entry_bytes))
    # Several chunks are summed in double.
    pairs = blocks * (blocks + 1) // 2
    grid = (2 * lags[0] + 1) * (2 * lags[1] + 1)
    pair_bytes = half * grid * 2 * lanes * lanes * (4 if entries_at_once >= entries else 8)
    pairs_at_once = max(1, min(pairs, FOLDED_BYTES // pair_bytes))
    phases = prod(len(axis_phases(axis)) for axis in kernel.taps)
    column_blocks = phases * ((kernel.out_channels + COLUMNS - 1) // COLUMNS)
    points = grid * (lags[2] + 1)
    rows = min(blocks, pairs_at_once)
    block_bytes = points * 8 * COLUMNS * 2 * padded
    at_once = max(1, min(column_blocks, WHAT_BYTES // (block_bytes + points * rows * 8 * COLUMNS)))
    # The spectrum is dead when the weights are transformed, unless another chunk of pairs needs it.
    spectrum_bytes = _round_up(entries_at_once * entry_bytes, 256)
    keep = pairs_at_once < pairs and entries_at_once >= entries
    what_bytes, partial_bytes = at_once * block_bytes, at_once * points * rows * 8 * COLUMNS
    what_at = spectrum_bytes if keep else 0
    partial_at = _round_up(what_at + what_bytes, 256)
    folded_at = max(_round_up(partial_at + partial_bytes, 256), spectrum_bytes)
    return SpectralLayout(
        sections=sections,
        lags=lags,
        lanes=lanes,
        blocks=blocks,
        entries=entries,
        negative_entries=kernel.batch * signs.count(-1),
        entries_at_once=entries_at_once,
        pairs_at_once=pairs_at_once,
        column_blocks=column_blocks,
        column_blocks_at_once=at_once,
        folded_at=folded_at,
        what_at=what_at,
        partial_at=partial_at,
        workspace_bytes=folded_at + pairs_at_once * pair_bytes,
    )


def _constants(kernel: SpectralEnergy, plan: SpectralLayout) -> str:
    """The kernel's numbers as C++ constants, and the tables' declaration."""
    lines = []
    size = _three(kernel.size, 1)
    taps = _three(kernel.taps, ((0, 0),))
    for axis in range(3):
        cut, phases = plan.sections[axis], axis_phases(taps[axis])
        ordered = [tap for phase in phases for tap in phase]
        starts = [0]
        for phase in phases:
            starts.append(starts[-1] + len(phase))
        lines += [
            f"// axis {axis}: positions of x, largest lag, transform, grid of lags, sections, taps by phase",
            f"constexpr int64_t SIZE{axis} = {size[axis]};",
            f"constexpr int LAG{axis} = {plan.lags[axis]}, GRID{axis} = {2 * plan.lags[axis] + 1};",
            f"constexpr int LENGTH{axis} = {cut.length}, POINTS{axis} = {cut.points};",
            f"constexpr int SECTIONS{axis} = {len(cut.signs)}, NEGATIVE{axis} = {cut.signs.count(-1)};",
            f"constexpr int TAPS{axis} = {len(ordered)}, PHASES{axis} = {len(phases)};",
            f"constexpr int TAP{axis}[] = {{{', '.join(str(k) for k, _ in ordered)}}};",
            f"constexpr int64_t OFFSET{axis}[] = {{{', '.join(str(offset) for _, offset in ordered)}}};",
            f"constexpr int PHASE_START{axis}[] = {{{', '.join(map(str, starts))}}};",
        ]
    folded = "float" if plan.entries_at_once >= plan.entries else "double"
    lines += [
        f"constexpr int64_t BATCH = {kernel.batch};",
        f"constexpr int GROUPS = {kernel.groups}, CHANNELS = {kernel.in_channels}, "
        f"OUT_CHANNELS = {kernel.out_channels};",
        f"constexpr bool TRANSPOSED = {'true' if kernel.transposed else 'false'};",
        f"constexpr int LANES = {plan.lanes}, BLOCKS = {plan.blocks}, PAIRS = {plan.pairs};",
        f"constexpr int64_t ENTRIES = {plan.entries}, NEGATIVE_ENTRIES = {plan.negative_entries};",
        f"constexpr int64_t ENTRIES_AT_ONCE = {plan.entries_at_once};",
        f"constexpr int PAIRS_AT_ONCE = {plan.pairs_at_once}, COLUMN_BLOCKS = {plan.column_blocks}, "
        f"COLUMN_BLOCKS_AT_ONCE = {plan.column_blocks_at_once};",
        f"using Folded = {folded};   // S folded along axes 0 and 1: [f2][pair][g0][g1][2][LANES][LANES]",
        "constexpr int64_t FOLDED_STRIDE = int64_t(PAIRS_AT_ONCE) * GRID0 * GRID1 * 2 * LANES * LANES;",
        f"constexpr size_t WHAT_AT = {plan.what_at}, PARTIAL_AT = {plan.partial_at};",
        f"constexpr size_t FOLDED_AT = {plan.folded_at};   // bytes into the workspace",
        "",
        _TABLES,
    ]
    return "\n".join(lines)


_TABLES = """// Computed in double at the first call.
struct Section;
struct Tables {
    std::vector<float> transform0, transform1, transform2, fold0, fold1;
    std::vector<double> own2, mirror2;      // [f2][g2]: the fold of axis 2 from f2 and from its mirror -f2
    std::vector<double> tap0, tap1, tap2;
    std::vector<Section> sections;
    Tables();
    ~Tables();
};"""

_TABLES_DEFINITION = """
Tables::Tables()
    : transform0(transform_table(POINTS0, LENGTH0, FREQUENCIES_AT_ONCE)),
      transform1(transform_table(POINTS1, LENGTH1, FREQUENCIES_AT_ONCE)),
      transform2(transform_table(POINTS2, LENGTH2, REAL_AT_ONCE)),
      fold0(fold_table(LENGTH0, LAG0, Fold0::PADDED)),
      fold1(fold_table(LENGTH1, LAG1, Fold1::PADDED)),
      own2(size_t(HALF) * GRID_HALF),
      mirror2(size_t(HALF) * GRID_HALF),
      tap0(tap_table(OFFSET0, TAPS0, GRID0)),
      tap1(tap_table(OFFSET1, TAPS1, GRID1)),
      tap2(tap_table(OFFSET2, TAPS2, GRID2)),
      sections(ordered_sections()) {
    for (int f = 0; f < HALF; ++f)
        for (int g = 0; g < GRID_HALF; ++g) {
            own2[size_t(f) * GRID_HALF + g] = fold_value(f, g, LENGTH2, LAG2);
            // f = 0 and f = LENGTH / 2 are their own mirrors.
            if (2 * f % LENGTH2 == 0) continue;
            mirror2[size_t(f) * GRID_HALF + g] = fold_value(LENGTH2 - f, g, LENGTH2, LAG2);
        }
}
Tables::~Tables() = default;

constexpr int64_t largest(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t SCRATCH_BYTES = largest(largest(TRANSFORM_SCRATCH, GRAM_SCRATCH) * 4,
                                          largest(WEIGHT_SCRATCH, int64_t(BLOCKS) * PAIR) * 8);
constexpr int64_t SCRATCH_STRIDE = (SCRATCH_BYTES + 127) / 64 * 64;
"""


def generate(kernel: SpectralEnergy, name: str) -> KernelSource:
    """The text of the kernel's host function, with its constants in ``namespace NAME_detail``::

        static const char* NAME(const float* x, const float* weight, double* energy, void* workspace)

    It computes its tables at its first call and allocates a scratch per thread in every call.
    ``kernel`` has one to three axes. Raises ValueError for another number of axes.
    """
    if not 1 <= len(kernel.size) <= 3:
        raise ValueError(f"the spectral energy takes one to three axes, not {len(kernel.size)}")
    outputs = kernel.groups * kernel.out_channels
    if 0 in (kernel.batch, kernel.positions, kernel.in_channels, outputs):
        definition = (
            f"static const char* {name}(const float*, const float*, double* energy, void*) {{\n"
            f"    for (int o = 0; o < {outputs}; ++o) energy[o] = 0.0;\n"
            f"    return nullptr;\n}}\n"
        )
        return KernelSource(name, definition)
    plan = layout(kernel)
    shape = "x".join(map(str, (kernel.batch, kernel.groups * kernel.in_channels, *kernel.size)))
    definition = "\n".join(
        (
            *INCLUDES,
            "",
            f"// {name}: energy per output channel of the linear convolution of x ({shape}),",
            "// by the autocorrelation of x: transform, Gram matrix per frequency, fold to the grid of lags,",
            "// quadratic form of the transformed weights. Frequencies f and grid points g of three axes.",
            f"namespace {name}_detail {{",
            "namespace {",
            _constants(kernel, plan),
            TRANSFORM,
            GRAM,
            QUADRATIC,
            _TABLES_DEFINITION,
            RUN,
            "}  // namespace",
            f"}}  // namespace {name}_detail",
            fill(HOST, {"NAME": name}),
        )
    )
    return KernelSource(name, definition, plan.workspace_bytes)
