"""What is the same is said once: modes with one program, rules used in several places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kernelwright.records import BackwardUse, Kept, Mode, ResultRecord, RuleUse, words_of


@dataclass(frozen=True, slots=True)
class ModeGroup:
    """Modes whose program is the same."""

    modes: tuple[Mode, ...]

    @property
    def first(self) -> Mode:
        """The mode that stands for all."""
        return self.modes[0]

    @property
    def backward(self) -> tuple[BackwardUse, ...]:
        """The programs of gradients, of one of the modes that have some: others of the group compute the same."""
        return next((mode.backward for mode in self.modes if mode.backward), ())

    def words(self) -> str:
        """``training and inference``."""
        return " and ".join(words_of(mode.name) for mode in self.modes)


def mode_groups(result: ResultRecord) -> tuple[ModeGroup, ...]:
    """The modes in order, those with the same kernels, rules, work and kept operators together."""
    groups: list[list[Mode]] = []
    for mode in result.modes:
        for group in groups:
            if _program(group[0]) == _program(mode):
                group.append(mode)
                break
        else:
            groups.append([mode])
    return tuple(ModeGroup(tuple(group)) for group in groups)


def _program(mode: Mode) -> tuple[object, ...]:
    return mode.operators, mode.replaced, mode.rules, mode.kernels, mode.kept, mode.before, mode.after, mode.launched


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """One rule and all its uses."""

    uses: tuple[RuleUse, ...]

    @property
    def first(self) -> RuleUse:
        """A use that stands for all."""
        return self.uses[0]

    @property
    def count(self) -> int:
        """How often the rule was applied."""
        return sum(use.count for use in self.uses)

    def places(self) -> tuple[str, ...]:
        """The user's lines, each once, in order."""
        return tuple(dict.fromkeys(use.where for use in self.uses if use.where))


def rule_groups(rules: Iterable[RuleUse]) -> tuple[RuleGroup, ...]:
    """Uses of the same rule together, in order of first use."""
    groups: dict[tuple[str, str, str], list[RuleUse]] = {}
    for use in rules:
        groups.setdefault((use.name, use.law, use.exactness), []).append(use)
    return tuple(RuleGroup(tuple(uses)) for uses in groups.values())


def kept_by_reason(kept: Iterable[Kept]) -> dict[str, list[Kept]]:
    """Operators that stay with PyTorch, by the reason."""
    groups: dict[str, list[Kept]] = {}
    for entry in kept:
        groups.setdefault(entry.reason, []).append(entry)
    return groups


def operators_in_words(entries: Iterable[Kept]) -> str:
    """``add (file.py:3), 24 layer_norm (file.py:9: ...)``: a network repeats its blocks."""
    counts = Counter((entry.operator, entry.where) for entry in entries)
    return ", ".join((f"{count} " if count > 1 else "") + (f"{operator} ({where})" if where else operator)
                     for (operator, where), count in counts.items())
