"""Which schedules a direct contraction has, best guess first: a model of instructions, shared memory and bytes.

The model counts, for a block, the instructions that its warps issue (four a clock) and the rounds that its accesses
take in the one pipe of a multiprocessor for shared and global memory (32 words a clock), and for the whole kernel the
bytes of memory. What takes longest is the time; the rest overlaps with it in part. Its constants are an H200's; on
other devices the order of schedules is nearly the same, and a tuner measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice, product, zip_longest
from math import ceil, prod

from kernelwright.codegen.cuda.direct_conv.cells import (
    Line,
    Schedule,
    least_split,
    phase_classes,
    stored_in_pairs,
)
from kernelwright.codegen.cuda.direct_conv.layout import MOST_SHARED, Layout
from kernelwright.codegen.cuda.direct_conv.summation_blocks import block, blocks_first
from kernelwright.codegen.cuda.direct_conv.text import main_load
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Apply, Expression, Load, walk
from kernelwright.roofline.multiprocessors import HOPPER

_MULTIPROCESSORS, _CLOCK, _BYTES, _CACHE_BYTES, _LAUNCH = HOPPER.count, 1.7e9, 4.2e12, 5.5e12, 3e-6
#: Products a second of tensor cores in 16 bits, as they are reached; and what they pad channels to, of x and of w.
_TENSOR_PRODUCTS, _PADDED_IN, _PADDED_OUT = 2.5e14, 16, 8
_SHARED, _WARPS = HOPPER.block_bytes, HOPPER.warps
_MOST_SUMS, _FEW_WARPS = 128, 12
_CHANNELS = (16, 12, 8, 4, 6, 5, 3, 2, 1)
_RUNS = (8, 4, 2, 1, 16)
_THREADS = (128, 256)
#: Rounds of a read of four words by all lanes at one address; between 1 (one round) and 4 (what is returned).
_SAME_ADDRESS = 2.0
#: Instructions for each value of a reduction of channels.
_REDUCED = {"sum": 2, "max": 3, "min": 3, "logsumexp": 18, "moments": 5}
_MOST_DEPTH = 64
#: Multiply-adds that are written one after the other, and kernels of one contraction, at most.
_MOST_UNROLLED, _MOST_CLASSES = 6144, 32


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a kernel: of instructions, of the memory pipe, of bytes; and of everything."""

    issue: float
    pipe: float
    memory: float
    seconds: float


def schedules(kernel: Contraction, most: int = 12) -> tuple[Schedule, ...]:
    """Schedules of a contraction in normal form, best guess first; none where no window fits shared memory."""
    return _schedules(kernel, most)


@lru_cache(maxsize=64)  # one entry for both ways to ask for as many as usual
def _schedules(kernel: Contraction, most: int) -> tuple[Schedule, ...]:
    single, size = _best(kernel, most, 0, [0]), block(kernel)
    if not size:
        return single
    # Blocks take registers, which fewer phases in a thread leave free.
    more, free = least_split(kernel) + 1, len(kernel.axes) - len(kernel.pool_window) * bool(kernel.pools)
    splits = [0, more] if more < len(kernel.axes) and more <= free and kernel.axes[more - 1].out_stride > 1 else [0]
    both = [_best(kernel, most, size, splits), single]
    # Which of them is exact enough beside the library, and then the faster, is measured: the first of each, and so on.
    both = both if blocks_first(kernel) else both[::-1]
    return tuple(s for s in chain.from_iterable(zip_longest(*both)) if s is not None)[:most]


def _best(kernel: Contraction, most: int, size: int, splits: list[int]) -> tuple[Schedule, ...]:
    """Schedules with such blocks of sums and any of these splits, best guess first."""
    fine: dict[Schedule, float] = {}
    for split in splits:
        classes = list(islice(phase_classes(kernel, split), _MOST_CLASSES + 1))
        if not 0 < len(classes) <= _MOST_CLASSES:
            continue
        # Classes differ little; the one with the most taps stands for them all at first.
        largest = max(classes, key=lambda c: Layout(kernel, _smallest(kernel), c).window)
        rough: dict[Schedule, float] = {}
        for schedule in _candidates(kernel, largest, size, split):
            if schedule not in rough and fits(layout := Layout(kernel, schedule, largest, padded=False)):
                rough[schedule] = estimate(layout).seconds
        for schedule in _varied(sorted(rough, key=lambda s, known=rough: (known[s], str(s))))[:4 * most]:
            if all(fits(Layout(kernel, schedule, c)) for c in classes):
                fine[schedule] = predicted_seconds(kernel, schedule)
    return tuple(_varied(sorted(fine, key=lambda s: (fine[s], str(s))))[:most])


def predicted_seconds(kernel: Contraction, schedule: Schedule) -> float:
    """The model's time of a contraction in normal form."""
    return sum(estimate(Layout(kernel, schedule, c)).seconds for c in phase_classes(kernel, schedule.split))


def least_seconds(kernel: Contraction) -> float:
    """What the model gives any schedule of a contraction in normal form at the least: its products alone."""
    return kernel.multiply_adds / (_MULTIPROCESSORS * HOPPER.float32_products * _CLOCK)


def tensor_core_seconds(kernel: Contraction) -> float:
    """What a contraction takes on tensor cores at the least: one product of padded channels, operands written and read
    in 16 bits, results written."""
    depth = ceil(kernel.in_channels / _PADDED_IN) * _PADDED_IN
    width = ceil(kernel.out_channels / _PADDED_OUT) * _PADDED_OUT
    products = kernel.multiply_adds // (kernel.in_channels * kernel.out_channels) * depth * width
    inputs = prod(kernel.left_domain)
    moved = _input_bytes(kernel) * inputs + 2 * 2 * inputs // kernel.in_channels * depth + _written(kernel)
    return max(products / _TENSOR_PRODUCTS, moved / _BYTES) + 2 * _LAUNCH


def fits(layout: Layout) -> bool:
    """Whether runs divide the tile, blocks of sums a step, four inputs that are read at once are aligned neighbours,
    and a block's threads, registers and shared memory stay within what every device has."""
    plan = layout.schedule
    if plan.tile[plan.run_axis] % plan.run or \
            (plan.lanes > 1 and not _vectorises(layout.kernel, layout.lines[-1], plan.tile[-1])):
        return False
    if layout.blocks > 1 and plan.depth % plan.block:
        return False
    if layout.kernel.all_reductions and plan.writes != "straight":
        return False
    if layout.kernel.reductions and plan.channels != layout.kernel.out_channels:
        return False
    return layout.threads <= 512 and layout.registers <= 240 and layout.resident > 0 \
        and layout.rolled[1] <= _MOST_UNROLLED and 4 * layout.shared_floats <= MOST_SHARED


def _varied(ordered: list[Schedule]) -> list[Schedule]:
    """The first four, then the best of each kind of inner loop, then the others."""
    kinds: dict[tuple, Schedule] = {}
    for schedule in ordered:
        inner = schedule.run_axis, schedule.run, schedule.channels, schedule.writes, schedule.split
        kinds.setdefault(inner, schedule)
    return list(dict.fromkeys([*ordered[:4], *list(kinds.values())[:8], *ordered]))


def _smallest(kernel: Contraction) -> Schedule:
    return Schedule((1,) * len(kernel.axes), 1, 0, 1, 1, 1, 1)


def _candidates(kernel: Contraction, phases: tuple[tuple[int, ...], ...], size: int, split: int) -> Iterator[Schedule]:
    lines = Layout(kernel, _smallest(kernel), phases).lines
    cells = [line.cells for line in lines]
    count = prod(map(len, phases))
    long = [n for n, size in enumerate(cells[:-1]) if size > 1] or [len(cells) - 1]
    together = len(phases[-1]) > 1 and not kernel.all_reductions
    ways = ["straight"] if not together else ["pairs"] if stored_in_pairs(kernel, phases) else ["traded", "straight"]
    # Channels that are reduced are all of one thread.
    channels = [kernel.out_channels] if kernel.reductions else _useful(_CHANNELS, kernel.out_channels)
    for run_axis, run, own, threads in product(long, _RUNS, channels, _THREADS):
        if run not in _useful(_RUNS, cells[run_axis]) or count * run * own > _MOST_SUMS:
            continue
        groups = ceil(kernel.out_channels / own)
        for channel_groups in {min(groups, most) for most in (1, 2, 4, 8)}:
            if ceil(groups / channel_groups) * channel_groups > 1.15 * groups:
                continue
            for tile, pairs in _tiles(cells, run_axis, run, threads // channel_groups, kernel.batch * kernel.groups):
                lanes = 4 if _vectorises(kernel, lines[-1], tile[-1]) else 1
                for writes in ways:
                    schedule = Schedule(tile, pairs, run_axis, run, own, channel_groups, 1, lanes, writes, size, split)
                    depth = _depth(Layout(kernel, schedule, phases, padded=False))
                    if depth:
                        yield replace(schedule, depth=depth)


def _useful(numbers: tuple[int, ...], size: int) -> list[int]:
    """The numbers that divide ``size`` with little rest; at least that with the least."""
    waste = {n: ceil(size / n) * n / size for n in numbers}
    least = min(waste.values())
    return [n for n in numbers if waste[n] <= max(1.15, least)]


def _tiles(cells: list[int], run_axis: int, run: int, threads: int, pairs: int
           ) -> Iterator[tuple[tuple[int, ...], int]]:
    """Tiles of about so many threads, and pairs of a block: parts of the last axis first, then of those before."""
    last = len(cells) - 1
    own = [run if n == run_axis else 1 for n in range(len(cells))]
    longest = ceil(cells[last] / own[last])
    widths = {ceil(longest / n) for n in range(1, 17)} | {w for w in (32, 64, 128) if w < longest}
    widths = {w for w in widths if 8 <= w <= threads or w == longest <= 2 * threads}
    waste = {w: (ceil(longest / w) * w / longest * ceil(w / 32) * 32 / w, -w) for w in widths}
    for width in sorted(widths, key=waste.__getitem__)[:3]:
        tile = [1] * len(cells)
        tile[last] = width * own[last]
        rest = max(1, threads // width)
        # The axis of the runs, then the others: near rows share the inputs between them.
        order = sorted(range(last), key=lambda n: (n != run_axis, -n))
        for shares in _shares(rest, len(order)):
            for n, share in zip(order, shares, strict=True):
                size = ceil(cells[n] / own[n])
                parts = ceil(size / min(share, size))
                tile[n] = ceil(size / parts) * own[n]
            used = width * prod(t // o for t, o in zip(tile[:last], own[:last], strict=True))
            yield tuple(tile), min(pairs, max(1, threads // used)) if used * 2 <= threads else 1


def _shares(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ways to divide threads over ``count`` axes."""
    if count == 0:
        yield ()
        return
    share = total
    while share >= 1:
        for rest in _shares(total // share, count - 1):
            yield (share, *rest)
        share //= 4
        if count == 1:
            return


def _vectorises(kernel: Contraction, line: Line, width: int) -> bool:
    """Whether four inputs along the last axis are aligned neighbours in memory, and inside or outside together."""
    loads = [n for n in walk(kernel.left) if isinstance(n, Load) and n.index.strides[-1]]
    return bool(loads) and line.axis.in_size % 4 == 0 and line.axis.in_stride * width % 4 == 0 and all(
        n.index.strides[-1] == 1 and not n.guards and n.index.offset % 4 == 0
        and all(s % 4 == 0 for s in n.index.strides[:-1]) for n in loads)


def _depth(layout: Layout) -> int:
    """Channels that shared memory takes at once; 0 where it does not take one."""
    room = MOST_SHARED // 4 - 8
    each = layout.tile_floats + layout.weight_floats
    if layout.traded_floats > room or each > room:
        return 0
    # Half of the room: then several blocks of a multiprocessor can stage while others multiply.
    most = min(layout.kernel.in_channels, _MOST_DEPTH, max(1, room // 2 // each))
    depth, size = ceil(layout.kernel.in_channels / ceil(layout.kernel.in_channels / most)), layout.schedule.block
    return depth // size * size if 0 < size < depth else depth


def _operations(expression: Expression) -> int:
    return sum(isinstance(n, Apply) for n in walk(expression))


def estimate(layout: Layout) -> Estimate:
    """The model's times of one kernel."""
    kernel, plan = layout.kernel, layout.schedule
    axes, threads, chunks = len(layout.lines), layout.threads, layout.chunks
    warps = threads / 32
    # Per thread and step: staging, then products.
    staged = plan.pairs * plan.depth * prod(line.span for line in layout.lines)
    trips = ceil(staged / plan.lanes / threads)
    weights = (plan.pairs if kernel.groups > 1 else 1) * plan.depth * layout.staged_window * layout.columns
    weight_trips = ceil(weights / threads)
    vector = plan.lanes > 1
    issue = trips * (8 + 5 * axes + (4 if vector else 1) * (1 + _operations(kernel.left))) \
        + weight_trips * (12 + 5 * axes)
    pipe = trips * (9 if vector else 2.2) + weight_trips * 12
    reads = _reads(layout) * plan.depth
    products = layout.window * plan.run * plan.channels * plan.depth
    four = plan.channels % 4 == 0
    weight_reads = layout.window * plan.depth * (plan.channels // 4 if four else plan.channels)
    # Sums of a block are added to others, and begin again.
    moves = layout.moved * layout.blocks * (1 if layout.block_unrolled else 2)
    issue += products + reads + weight_reads + moves + 6 * plan.depth
    pipe += reads * layout.rounds(layout.row_pitch) + weight_reads * (_SAME_ADDRESS if four else 1)
    # Per thread: places, stores.
    window = prod(kernel.pool_window) if kernel.pools else 1
    stored = sum(4 + _operations(s.expression) for s in kernel.stores) / window \
        + sum(_REDUCED[r.kind] + _operations(r.expression) for r in kernel.all_reductions)
    issue = issue * chunks + 60 + 15 * axes + layout.sums * (stored + 3 * layout.trades)
    pipe = pipe * chunks + layout.sums * (len(kernel.stores) / window + 3 * layout.trades)
    resident = min(layout.resident, _SHARED // (4 * layout.shared_floats + 1024), _WARPS * 32 // threads)
    blocks = prod(layout.grid)
    busy = blocks / (_MULTIPROCESSORS * resident)
    waves = max(ceil(busy), busy) if busy < 8 else busy + 0.5
    scale = waves * resident * warps / _CLOCK
    few = max(1.0, _FEW_WARPS / (resident * warps)) ** 0.5
    issue_time, pipe_time = issue / 4 * scale * few, pipe * scale
    item, written = _input_bytes(kernel), _written(kernel)
    traffic = item * prod(kernel.left_domain) + written
    # Rows begin and end within sectors of 32 bytes.
    row = plan.tile[-1] * (1 if kernel.pools else len(layout.phases[-1]))
    parts = len(layout.phases[-1]) if not layout.trades and not layout.pairs and not kernel.pools else 1
    cached = blocks * chunks * (staged * item * (1 + 7 / layout.lines[-1].span) + 4 * weights) \
        + written * (parts + 7 / row)
    memory = max(traffic / _BYTES, cached / _CACHE_BYTES)
    # The blocks of a multiprocessor do different things at a time; one alone does them one after the other.
    longest, together = max(issue_time, pipe_time, memory), issue_time + pipe_time + memory
    rest = (together - longest) * max(0.15, 1 / resident)
    return Estimate(issue_time, pipe_time, memory, longest + rest + _LAUNCH)


def _input_bytes(kernel: Contraction) -> int:
    """Bytes of an element of x."""
    load = main_load(kernel.left)
    return ITEM_BYTES[kernel.input_dtypes[load.buffer]] if load else 0


def _written(kernel: Contraction) -> int:
    """Bytes of all results."""
    return sum(ITEM_BYTES[kernel.output_dtypes[s.buffer]]
               * prod(size for size, step in zip(kernel.pooled_domain if kernel.pools else kernel.domain,
                                                 s.index.strides, strict=True) if step)
               for s in kernel.stores)


def _reads(layout: Layout) -> int:
    """Reads of staged inputs by a thread, for one channel: equal ones once, where their taps are unrolled."""
    lines, run = layout.lines, layout.run_line
    count = layout.schedule.run * len(run.taps)
    if layout.in_column:
        count = len({run.axis.in_stride * r + shift for r in range(layout.schedule.run) for shift in run.shifts})
    elif len(set(run.shifts)) < len(run.taps):
        count = layout.schedule.run * len(set(run.shifts))
    return count * prod(len(set(line.shifts)) for line in lines if line is not run)
