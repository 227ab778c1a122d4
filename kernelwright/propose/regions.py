"""Regions of our own file: the kernels of it, each of which an answer may exchange and leave the rest.

A region is the part of the emitted file's kernels that stands below one mark (``//// k0_name``): a function of that
name with what it needs. An answer that has no ModelNew and defines such a function is our file with that region
exchanged. It is judged as a whole, within the whole model, as any candidate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.emit.marks import MARK, SOURCE, kernel_texts
from kernelwright.emit.runtime_build import KERNEL_MARK
from kernelwright.propose.assembly import parsed
from kernelwright.propose.fences import NATIVE, Block

_LAUNCHERS = "launchers"


@dataclass(frozen=True, slots=True)
class Region:
    """One kernel of the file. ``head``: the lines of the user's that it does the work of, as comments. ``signature``:
    how its function is called."""

    name: str
    head: str
    text: str
    signature: str


def regions_of(file: str) -> dict[str, Region]:
    """The regions of an emitted file by their names, in its order; none of a file without kernels."""
    regions = {}
    for name, body in kernel_texts(file).items():
        signature = _signature(name, body)
        if name != _LAUNCHERS and signature:
            lines = body.split("\n")
            count = next((n for n, line in enumerate(lines) if not line.startswith("//")), len(lines))
            head, text = "\n".join(lines[:count]), "\n".join(lines[count:]).strip("\n")
            regions[name] = Region(name, head, text, signature)
    return regions


def _signature(name: str, text: str) -> str:
    found = re.search(rf"^static const char\s*\*\s*{name}\s*\([^{{;]*\)(?=\s*\{{)", text, re.MULTILINE)
    return " ".join(found.group().split()) if found else ""


def region_answers(blocks: Sequence[Block], regions: Mapping[str, Region]) -> dict[str, str]:
    """The regions that an answer's blocks define, with their texts; of several for one the last counts."""
    found: dict[str, str] = {}
    for block in blocks:
        if block.language in NATIVE or not block.language:
            for name in regions:
                if re.search(rf"const\s+char\s*\*\s*{name}\s*\([^;{{]*\)\s*\{{", block.text):
                    found[name] = block.text
    return found


def exchanged(file: str, texts: Mapping[str, str]) -> str | None:
    """The file with the texts of regions exchanged; None where a text would end the file's string, or a region."""
    source = SOURCE.search(file)
    if source is None or not texts.keys() <= regions_of(file).keys():
        return None
    kernels, regions = source.group(1), regions_of(file)
    for name, text in texts.items():
        if '"""' in text or MARK.search(text) or not text.strip():
            return None
        mark = KERNEL_MARK.format(name)
        begin = kernels.index(f"{mark}\n") + len(mark) + 1
        following = MARK.search(kernels, begin)
        end = following.start() if following else len(kernels)
        # A blank line tells the comments of the text from the user's lines.
        kernels = f"{kernels[:begin]}{regions[name].head}\n\n{text.strip()}\n\n{kernels[end:]}"
    changed = file[:source.start(1)] + kernels + file[source.end(1):]
    return changed if parsed(changed) is not None else None


def shown(file: str, names: Sequence[str]) -> str:
    """The texts of regions of a file, for a reader who knows the rest."""
    regions = regions_of(file)
    return "\n\n".join(regions[name].text for name in names if name in regions) + "\n"
