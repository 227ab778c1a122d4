"""How many warps bring x that is read as it lies in memory (`operands.convert_in_mainloop`), and what each of them
brings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

#: Registers of a thread for a load chunk of 32 rows and 8 channels that its warp has asked for.
LOAD_CHUNK_REGISTERS = 9
#: Warps that bring x, those of them that bring a step together, and load chunks that one asks for at a time: at most.
_WARPS, _TOGETHER, _LOAD_CHUNKS = 8, 4, 5


@dataclass(frozen=True)
class Filling:
    """How the ``load_chunks`` of a step are shared: 32 rows and 8 channels each. ``stages`` are those of the tiling,
    ``depths`` the steps that bring the same rows."""

    load_chunks: int
    stages: int
    depths: int

    @cached_property
    def warps(self) -> int:
        """Warps that bring a step together: so many that none waits for memory more than once or twice."""
        warps = 1
        while warps < _TOGETHER and self.load_chunks > _LOAD_CHUNKS * warps:
            warps *= 2
        return warps

    @property
    def steps_at_once(self) -> int:
        """Steps that are brought at a time, of which there are no more than stages."""
        return min(_WARPS // self.warps, self.stages)

    @property
    def groups(self) -> int:
        """Warpgroups that bring steps."""
        return -(-self.warps * self.steps_at_once // 4)

    @property
    def whole_tap_groups(self) -> bool:
        """Whether the same warps bring all steps of a tap group, whose rows they find once. Between two steps of theirs
        there are no more than stages."""
        return (self.steps_at_once - 1) * self.depths < self.stages

    @property
    def each(self) -> int:
        """Load chunks that each of these warps brings."""
        return -(-self.load_chunks // self.warps)

    def batch(self, registers: int) -> int:
        """Load chunks that a warp asks for at a time, as many as a thread has registers for, and two at least."""
        most = max(2, min(_LOAD_CHUNKS, registers // LOAD_CHUNK_REGISTERS))
        return -(-self.each // -(-self.each // most))
