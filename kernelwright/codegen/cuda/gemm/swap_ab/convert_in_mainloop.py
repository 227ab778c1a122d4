"""How warps bring x as it lies in memory to a core whose weight goes into registers, and split it
(`Tiling.converts_left`).

Each of up to four warps has 32 positions, and shares nothing with the others: asynchronous copies bring what these
have in a step, three steps ahead of the one that the warp splits. A lane splits its position's 64 channels into float16
terms times a power of two and writes them to a stage, from which all products take them. That scale stays from step to
step until float16 does not hold a value of it; then the step is split again by one that leaves room for four times as
much, and whoever multiplies finds beside the stage what sums so far are to be multiplied by, and whether any are. At
last they are multiplied by the inverse.

Packed, x is read, written and read again by as many blocks as there are of output channels: 12 bytes an element and 4
more for each block. So read it is 4 bytes for each block. Of 256 x 524288 x 256, of 4 tiles in 33 parts (H100: 14 bytes
of memory in a cycle of a multiprocessor, 28 of L2), for a step of 64 channels, 128 positions and 128 output channels::

    memory         64 * 256 * 4 bytes, in 2 blocks        2340 cycles
    L2             64 * 256 * 4 bytes                     2340
    tensor cores   2 * 12 products of 128 * 64 * 16       1536
    shared memory  32 KB arrive, are read, leave as 32 KB, which products read three times: 192 KB    1500
    instructions   670 of a scheduler to multiply, 400 to split x    1070

and 248 steps on each multiprocessor: 0.35 ms predicted. Measured (one H100): 0.528 ms, the core 3,600 cycles a step, of
512 x 65536 x 512 3,400; packed 0.895, 0.44 of it the core. Both wait for the weight's loads, which are one step ahead
of their products (without them a quarter less), and for the warps that split (as much): registers for more of either
there are none.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.swap_ab.problem import (
    FLOAT_PITCH,
    FLOAT_STEPS,
    WARP_POSITIONS,
    SwapAB,
    left_strides,
)
from kernelwright.codegen.source import part_beside
from kernelwright.plan.expressions import loaded

INIT = """
  for (int i = threadIdx.x; i < 4 * STAGES; i += @THREADS@)
    reinterpret_cast<int*>(shared + STAGES * (STAGE_BYTES + 8 * POSITIONS))[i] = 0;  // scales that have changed"""

PRODUCE = "\n" + part_beside(__file__, "convert_produce.cuh")

_OWN_ROWS = """
#pragma unroll
            for (int h = 0; h < 4; ++h) {
              const float4 four = *reinterpret_cast<const float4*>(own + 8 * chunk + 4 * h);
              x[4 * h] = four.x, x[4 * h + 1] = four.y, x[4 * h + 2] = four.z, x[4 * h + 3] = four.w;
            }"""
_OWN_LINES = """
#pragma unroll
            for (int e = 0; e < 16; ++e) x[e] = own[(8 * chunk + e) * 32];"""

PROMOTE = "\n" + part_beside(__file__, "promote.cuh")


def values(numbers: SwapAB) -> dict[str, object]:
    """What stands for names in the core's text, where x comes as it lies."""
    kernel, tiling = numbers.kernel, numbers.tiling
    position, group, channel = left_strides(kernel)
    by_channels, offset = channel == 1, loaded(kernel.left).index.offset
    left = f"in{loaded(kernel.left).buffer}" + (f" + {offset}LL" if offset else "") \
        + (f" + group * {group}LL" if kernel.groups > 1 else "") + f" + row * {position}LL + c * {channel}LL"
    # Of 16 bytes of a copy: lanes have so many of a line, which has that many floats.
    lanes, pitch = (16, FLOAT_PITCH) if by_channels else (8, WARP_POSITIONS)
    along, across = f"lane % {lanes} * 4", f"lane / {lanes}"
    # Rows, and channels, that there are from a lane's first ones on.
    ragged = [kernel.batch % numbers.positions > 0 or numbers.positions % WARP_POSITIONS > 0,
              kernel.in_channels % tiling.depth > 0]
    guards = [guard for guard, some in zip(("rows", "channels"), ragged, strict=True) if some]
    first = [f"{32 // lanes} * i < {guard}" if by_channels == (guard == "rows") else f"{guard} > 0"
             for guard in guards]
    most = {"rows": "@BATCH@LL - row > 32 ? 32 : static_cast<int>(@BATCH@LL - row)",
            "channels": "static_cast<int>(@IN_CHANNELS@LL - c)"}
    return {
        "PRODUCE": PRODUCE, "PROMOTE": PROMOTE, "FILLERS": numbers.warps, "INIT_SHARED": INIT,
        "OWN": (_OWN_ROWS if by_channels else _OWN_LINES).lstrip("\n"), "FLOAT_STEPS": FLOAT_STEPS,
        "STEP_FLOATS": numbers.step_floats,
        "FLOATS_AT": tiling.stages * (numbers.stage_bytes + 8 * numbers.positions + 16),
        "LANE_ROW": across if by_channels else along, "LANE_CHANNEL": along if by_channels else across,
        "LANE_PLACE": f"4 * ({across} * {pitch} + {along})", "NEXT_PLACE": 4 * 32 // lanes * pitch,
        "NEXT_FROM": 32 // lanes * (position if by_channels else channel), "NEXT_STEP_LEFT": tiling.depth * channel,
        "ASKED_GUARDS": f"\n    int {', '.join(f'{guard} = 0' for guard in guards)};  // that there are from there on"
        if guards else "", "BEGIN_GUARDS": "".join(f"\n        {guard} = {most[guard]};" for guard in guards),
        "NEXT_GUARDS": "\n        channels -= DEPTH;" * ragged[1],
        "GIVEN": f", {' && '.join(first)} ? 16 : 0" if first else "",
        "WARPS": numbers.warps, "LEFT": left, "BATCH": kernel.batch, "IN_CHANNELS": kernel.in_channels,
        "PITCH": FLOAT_PITCH if by_channels else 1,
        "SCALE_PLACE": f" * {kernel.groups} + group" if kernel.groups > 1 else ""}
