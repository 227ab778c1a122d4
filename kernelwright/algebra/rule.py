"""A rule: one object that says when a node may become another, why, and how exactly.

Legality stands here, apart from profit: the engine asks the roofline whether a legal rewrite pays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kernelwright.ir.node import Node, Origin


class Exactness(StrEnum):
    """What a rewrite may change in the result."""

    BITWISE = "bitwise"
    REASSOCIATES = "reassociates sums"
    ROUNDING = "changes rounding"
    FINITE = ("reassociates sums and products: where inputs are infinite, Inf and NaN may trade places, and a sum of "
              "zeros may have another sign")


#: Drops the rules whose sides have other derivatives at kinks, for a graph that is differentiated.
KINKS = "kinks"


class Use(NamedTuple):
    """A rule at a line of the user's file, for whatever operators of that line; where no line is known, in a module."""

    rule: str
    place: str
    line: int

    def __str__(self) -> str:
        return f"{self.rule} (line {self.line})" if self.line else self.rule


Dropped = frozenset[Exactness | Use | str]
"""What rules may not be applied: classes of them, uses of single ones, and :data:`KINKS`."""


@dataclass(slots=True)
class Context:
    """What a rule may ask while the engine walks.

    allowed: origins of the linear operators ("anchors") that may be collapsed in this attempt.
    used: anchors on which a rule was applied. dropped: what the rules of this attempt may not do, and where a rule may
    not be applied. laid: views of which it is seen how they lie in memory: by the caller, or by a call that draws
    a number for each element in the order of memory. original: for nodes on inputs that were rewritten those of the
    graph that is rewritten. readers: who reads each of these. roots: those that are results, or asked for otherwise.
    known: what rules found out about that graph, and would find out again at each step of a loop. forms: of operators
    that a rule made one by one of operators of that graph, those.
    """

    allowed: frozenset[int] = frozenset()
    used: set[int] = field(default_factory=set)
    dropped: Dropped = frozenset()
    laid: set[Node] = field(default_factory=set)
    original: dict[Node, Node] = field(default_factory=dict)
    readers: dict[Node, list[Node]] = field(default_factory=dict)
    roots: frozenset[Node] = frozenset()
    known: dict[Hashable, bool] = field(default_factory=dict)
    forms: dict[Node, Node] = field(default_factory=dict)

    def may_apply(self, rule: Rule, origin: Origin | None) -> bool:
        """Whether a rule may be applied to a node of that origin in this attempt."""
        return not self.dropped or not (rule.exactness in self.dropped or use_of(rule, origin) in self.dropped
                                        or (KINKS in self.dropped and not rule.keeps_kinks))

    def may_collapse(self, anchor: Node) -> bool:
        """Whether this anchor may be collapsed in this attempt; remembers that it was asked for."""
        self.used.add(id(anchor.origin))
        return id(anchor.origin) in self.allowed


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewrite.

    roots: operators at which it may apply.
    rewrite: the replacement of a node, or None where the rule's condition does not hold.
    law: one line of mathematics.
    condition: the condition in words.
    keeps_kinks: whether both sides have the derivatives that PyTorch gives them where they bend, too.
    """

    name: str
    roots: tuple[str, ...]
    law: str
    condition: str
    exactness: Exactness
    rewrite: Callable[[Node, Context], Node | None]
    keeps_kinks: bool = True


def use_of(rule: Rule, origin: Origin | None) -> Use:
    """The use of a rule on a node of that origin."""
    return Use(rule.name, origin.file or origin.module, origin.line) if origin is not None else Use(rule.name, "", 0)


@dataclass(frozen=True, slots=True)
class Application:
    """A rule applied once, for the report. made: the operators that have no torch call among what it made, each with
    the origin that its node has."""

    rule: Rule
    before: str
    after: str
    origin: Origin | None
    made: frozenset[tuple[str, Origin | None]] = frozenset()

    @property
    def use(self) -> Use:
        """The rule and its place."""
        return use_of(self.rule, self.origin)


def rule(name: str, *roots: str, law: str, condition: str, exactness: Exactness, keeps_kinks: bool = True
         ) -> Callable[[Callable[[Node, Context], Node | None]], Rule]:
    """Make a Rule of a function."""

    def wrap(function: Callable[[Node, Context], Node | None]) -> Rule:
        return Rule(name, roots, law, condition, exactness, function, keeps_kinks)

    return wrap
