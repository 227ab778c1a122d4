"""How many warps bring x that is read as it lies in memory (`operands.convert_in_mainloop`), and what each of them
brings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

#: Registers of a thread for an item of 32 rows and 8 channels that its warp has asked for.
ITEM_REGISTERS = 9
#: Warps that bring x, those of them that bring a step together, and items that one asks for at a time: at most.
_WARPS, _TOGETHER, _ITEMS = 8, 4, 5


@dataclass(frozen=True)
class Filling:
    """How the ``items`` of a step are shared: 32 rows and 8 channels each. ``stages`` are those of the tiling,
    ``depths`` the steps that bring the same rows."""

    items: int
    stages: int
    depths: int

    @cached_property
    def warps(self) -> int:
        """Warps that bring a step together: so many that none waits for memory more than once or twice."""
        warps = 1
        while warps < _TOGETHER and self.items > _ITEMS * warps:
            warps *= 2
        return warps

    @property
    def turns(self) -> int:
        """Steps that are brought at a time, of which there are no more than stages."""
        return min(_WARPS // self.warps, self.stages)

    @property
    def groups(self) -> int:
        """Warpgroups that bring steps."""
        return -(-self.warps * self.turns // 4)

    @property
    def whole_pieces(self) -> bool:
        """Whether the same warps bring all steps of a piece, whose rows they find once. Between two steps of theirs
        there are no more than stages."""
        return (self.turns - 1) * self.depths < self.stages

    @property
    def each(self) -> int:
        """Items that each of these warps brings."""
        return -(-self.items // self.warps)

    def batch(self, registers: int) -> int:
        """Items that a warp asks for at a time, as many as a thread has registers for, and two at least."""
        most = max(2, min(_ITEMS, registers // ITEM_REGISTERS))
        return -(-self.each // -(-self.each // most))
