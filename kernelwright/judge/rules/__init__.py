"""The rules by which other evaluators accept a candidate, to be stated beside the judge's own verdict.

A set of rules is one object in ``OTHERS``: seeds, number of trials, what is cast, and how one result is compared. What
an evaluator accepts because candidate and model share a process (sizes that are defined anew, memory that is read) is
no rule of it, and is not told: the candidate runs in isolation as ever.
"""

from __future__ import annotations

from kernelwright.judge.rules.flashinfer import FLASHINFER
from kernelwright.judge.rules.kernelbench import KERNELBENCH, KERNELBENCH_2025
from kernelwright.judge.rules.record import RuleSet

OWN = "kernelwright"
OTHERS: dict[str, RuleSet] = {rules.name: rules for rules in (KERNELBENCH, KERNELBENCH_2025, FLASHINFER)}
#: What the option takes, alone or several with commas between them.
NAMES = (OWN, *OTHERS, "all")


def chosen(text: str) -> tuple[RuleSet, ...]:
    """The sets of rules beside our own that an option names. Raises ValueError for a name that there is none of."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in NAMES]:
        raise ValueError(f"no set of rules is called {unknown[0]!r}")
    return tuple(rules for name, rules in OTHERS.items() if name in names or "all" in names)
