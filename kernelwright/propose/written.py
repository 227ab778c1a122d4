"""The file that the user gets: a text with where it comes from at its top."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from kernelwright.judge.report.text import clean
from kernelwright.propose.choice import OURS, Choice
from kernelwright.propose.records import Candidate
from kernelwright.propose.standing import Verdict
from kernelwright.report import units
from kernelwright.version import VERSION

_WIDTH = 118


def with_provenance(text: str, choice: Choice, chosen: Candidate | None, ours: Verdict | None, count: int,
                    document: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> str:
    """The chosen file with comments at its top: whose it is, how it was chosen, and what was measured."""
    whose = OURS if chosen is None else f"candidate {clean(chosen.name, 200)} (from {clean(chosen.origin, 200)})"
    said = [f"ModelNew, chosen by kernelwright {VERSION} propose among its own file and "
            f"{units.counted(count, 'candidate')}: {whose}.", choice.why]
    verdict = ours if chosen is None else chosen.verdict
    if verdict:
        said.append(f"Verdict {verdict['verdict']}: {clean(verdict['reason'])}")
        said.append(_measured(verdict, ours if chosen is not None else None, document))
    if chosen is not None:
        said += [clean(note) for note in chosen.notes]
        said.append("Gradients were compared as well." if settings.get("backward") else
                    "Gradients were not compared; kernelwright's own file, ours.py in the run's folder, has them.")
    lines = [line for sentence in said if sentence for line in textwrap.wrap(
        sentence, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False,
        break_on_hyphens=False)]
    return "\n".join(lines) + "\n\n" + text.lstrip("\ufeff")


def _measured(verdict: Verdict, ours: Verdict | None, document: Mapping[str, Any] | None) -> str:
    found = verdict.get("error")
    parts = [] if not found else [f"error against float64 {found['candidate']:.1e}, eager's {found['eager']:.1e}"
                                  if not isinstance(found["candidate"], str) else ""]
    if ours is not None and ours.get("error") and not isinstance(ours["error"]["candidate"], str):
        parts.append(f"kernelwright's own {ours['error']['candidate']:.1e}")
    timing = verdict.get("timing")
    if timing and timing.get("speedup"):
        speed = timing["speedup"]
        parts.append(f"{units.digits(speed['value'])}x as fast as eager ({units.digits(speed['low'])} to "
                     f"{units.digits(speed['high'])})")
    if document is not None and parts:
        parts.append(f"on {document['device']}, torch {document['versions'].get('torch', '?')}")
    words = "; ".join(filter(None, parts))
    return f"{words[:1].upper()}{words[1:]}." if words else ""
