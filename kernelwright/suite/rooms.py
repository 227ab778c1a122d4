"""The memory of one device as rooms: who has how much of it, and who may have some next.

Whoever asks gets as much as it needs when there is as much beside what others have. One that needs more than is there
now is passed by those behind it that need less, but not for ever; with all of a device nobody else has anything there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

#: Share of a device's memory that rooms may take together: processes that wait, and those that draw a screen, have
#: some of it, too.
USABLE = 0.92
#: How often one that waits may be passed by others.
PASSED_BY = 12

Who = TypeVar("Who")


@dataclass(slots=True)
class Asked(Generic[Who]):
    """Somebody who waits for ``needed`` bytes (None: for all of the device), and was passed by ``passed`` times."""

    who: Who
    needed: int | None
    passed: int = 0


@dataclass(slots=True)
class Rooms(Generic[Who]):
    """The rooms of one device, in bytes; ``held`` has those that were given, None for all of it."""

    total: int = 0
    held: list[tuple[Who, int | None]] = field(default_factory=list)
    asking: list[Asked[Who]] = field(default_factory=list)

    def ask(self, who: Who, needed: int | None, total: int) -> None:
        """Have ``who`` wait for ``needed`` bytes of a device that has ``total``, in place of what it has or waited
        for; what is more than the device has is all of it."""
        self.leave(who)
        self.total = total
        self.asking.append(Asked(who, needed if needed is not None and needed < USABLE * total else None))

    def leave(self, who: Who) -> None:
        """Take back what ``who`` has, and its request."""
        self.held = [room for room in self.held if room[0] is not who]
        self.asking = [asked for asked in self.asking if asked.who is not who]

    def grant(self) -> list[Who]:
        """Give rooms to all who may have one now; who they are, in the order of their requests."""
        given: list[Asked[Who]] = []
        before: list[Asked[Who]] = []
        for asked in self.asking:
            if self._fits(asked.needed):
                self.held.append((asked.who, asked.needed))
                given.append(asked)
                for other in before:
                    other.passed += 1
            else:
                before.append(asked)
                if asked.passed >= PASSED_BY:  # whoever comes behind it waits for it
                    break
        self.asking = [asked for asked in self.asking if asked not in given]
        return [asked.who for asked in given]

    def _fits(self, needed: int | None) -> bool:
        if needed is None or any(size is None for _, size in self.held):
            return not self.held
        return needed + sum(size for _, size in self.held if size is not None) <= USABLE * self.total
