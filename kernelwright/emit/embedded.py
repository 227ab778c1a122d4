"""Compiled kernels in an emitted file: their libraries as text that Python reads."""

from __future__ import annotations

import base64
import hashlib
import textwrap
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

#: The line of the runtime in whose place the libraries stand.
PLACE = "_KERNELWRIGHT_LIBRARIES = []"
_WIDTH = 118


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library of a file's kernels, and for what it is.

    name: what it is for, as `--embed-for` calls it. system: as Python's ``platform`` names the system and the machine.
    glibc: the oldest version of the C library that has what it calls, "" where it calls nothing of it. needs: further
    conditions by the names under which the runtime reads them (:mod:`kernelwright.emit.runtime_embedded`).
    data: its bytes.
    """

    name: str
    system: str
    glibc: str
    needs: tuple[tuple[str, str], ...]
    data: bytes

    @property
    def packed(self) -> bytes:
        """Its bytes as the file has them: compressed, in base 64."""
        return base64.b64encode(zlib.compress(self.data, 9))


def libraries_text(libraries: Sequence[Library]) -> str:
    """The end of an emitted file that holds these libraries: a comment that says what they are, and their bytes. The
    runtime takes the first one that is for the machine."""
    said = ["The kernels above as shared libraries, of which the first one that is for a machine is loaded there, and "
            "no compiler is needed. Each is compressed (zlib, base 64) and checked by its hash. Where none is for a "
            "machine, the source above is compiled."]
    said += [f"{library.name}, {library.system}: {len(library.data):,} bytes, {len(library.packed):,} in this file"
             for library in libraries]
    lines = [f"# {line}" for text in said for line in textwrap.wrap(text, _WIDTH - 2)]
    lines.append(PLACE.removesuffix("]"))
    for library in libraries:
        facts = {"for": library.name, "system": library.system, "glibc": library.glibc, **dict(library.needs),
                 "sha256": hashlib.sha256(library.data).hexdigest()}
        entries = [_entry(key, text) for key, text in facts.items()]
        lines += ["    {" + entries[0], *(f"     {entry}" for entry in entries[1:]), '     "packed": """']
        lines += [*textwrap.wrap(library.packed.decode("ascii"), _WIDTH), '"""},']
    return "\n".join([*lines, "]"])


def _entry(key: str, text: str) -> str:
    """An entry of a dictionary, in parts where it is long."""
    parts = textwrap.wrap(text, _WIDTH - 24, drop_whitespace=False) or [""]
    value = f"\n{' ' * 5}".join(f'"{part}"' for part in parts)
    return f'"{key}": ({value}),' if len(parts) > 1 else f'"{key}": {value},'
