"""How planes are cut into strips (`contraction_strips`), and whether teams can follow the lines of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelwright.codegen.contraction_strips import Strips

#: Multiprocessors that strips are to keep busy, and strips of one at most, where there are fewer planes.
_PROCESSORS, _MOST_WAVES = 132, 16
#: Lines' worth of time that a block spends on a strip beside its lines.
_STRIP_LINES = 2


def parts_of(numbers: Strips) -> int:
    """Strips of a plane: as many as keep multiprocessors equally busy, each with an item for every team."""
    images, lines, step = numbers.images * numbers.across, numbers.lines, numbers.line_stride
    least = -(-numbers.tiling.teams // numbers.line_items)

    def cost(parts: int) -> float:
        each = -(-lines // parts)
        return -(-images * parts // _PROCESSORS) * (each + (numbers.line_span - step) / step + _STRIP_LINES)

    def last(parts: int) -> int:
        return lines - (parts - 1) * -(-lines // parts)

    most = min(lines, max(1, _MOST_WAVES * _PROCESSORS // images))
    return min((p for p in range(1, most + 1) if p == 1 or last(p) >= least), key=cost)


def tells_lines_apart(numbers: Strips) -> bool:
    """Whether a team that waits for a line knows that the one before it in its slot has been there, as a barrier has
    two phases: it has seen one that was brought later, or nothing has been brought twice yet."""
    last, stride = numbers.lines - (numbers.parts - 1) * numbers.strip_lines, numbers.line_stride
    stages, teams, phases = numbers.tiling.stages, numbers.tiling.teams, numbers.kernel.pool_lines
    seen = numbers.window_lines - 1 + stride // phases * (phases - 1)
    for counts in ((numbers.strip_lines,), (last,), (numbers.strip_lines, last)):
        begins, line = [], 0
        for strip in range(2 * teams + 2):
            count = min(counts[strip % len(counts)], 2 * teams)
            begins += [line + i * stride for i in range(count) for _ in range(numbers.line_items)]
            line += (count - 1) * stride + numbers.line_span
        if begins[:teams][-1] >= stages \
                or any(b - a > stages + seen for a, b in zip(begins, begins[teams:], strict=False)):
            return False
    return True
