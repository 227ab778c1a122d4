"""The messages of compilers, linkers and the interpreter, taken from a log by their formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One error of a log. ``kind`` is compile, link, architecture, missing-function, resources, tool, killed or
    timeout; ``file`` and ``line`` are the tool's own, ``shown`` the source line that it prints,
    ``decisive`` the log's line."""

    kind: str
    tool: str
    text: str
    decisive: str
    file: str = ""
    line: int | None = None
    shown: str = ""


_GCC = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$")
_NVCC = re.compile(r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): (?:catastrophic |internal )?error(?: #[\w-]+)?: "
                   r"(?P<text>.*)$")
_CALLED = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)?\s+(?:required from|note: called from|note: in "
                     r"instantiation of|recursively required).*$")
_AT_LINE = re.compile(r"^\s+instantiation of .* at line (?P<line>\d+)(?: of (?P<file>\S+))?$")
#: Messages that are one line, in the order in which they are tried: kind, tool, and a pattern with the text in a group.
_ONE_LINE = tuple((kind, tool, re.compile(pattern)) for kind, tool, pattern in (
    ("architecture", "nvcc", r"^nvcc fatal\s*: (Unsupported gpu architecture .*)$"),
    ("architecture", "nvcc", r"^nvcc fatal\s*: (Value '[^']*' is not defined for option 'gpu-[a-z]+'.*)$"),
    ("resources", "ptxas", r"^ptxas error\s*: (Entry function .* uses too (?:much|many) .*)$"),
    ("link", "ptxas", r"^ptxas (?:fatal|error)\s*: (Unresolved extern function .*)$"),
    ("link", "nvlink", r"^nvlink (?:error|fatal)\s*: (.*)$"),
    ("compile", "ptxas", r"^ptxas (?:\S+, line \d+; )?(?:error|fatal)\s*: (.*)$"),
    ("tool", "nvcc", r"^nvcc (?:error|fatal)\s*: (.*)$"),
    ("link", "ld", r"^.*?:\s*(undefined reference to .*)$"),
    ("link", "ld", r"^.*?:\s*(multiple definition of .*?)(?:;.*)?$"),
    ("link", "ld", r"^\S*ld(?:\.\w+)?: (cannot find .*)$"),
    ("link", "ld", r"^\S*ld(?:\.\w+)?: (?:error: )?(undefined (?:symbol|reference).*)$"),
    ("link", "Python", r"^(?:ImportError: |OSError: )?/?\S*\.so\S*: (undefined symbol: .*)$"),
    ("missing-function", "Python", r"^ImportError: (dynamic module does not define module export function.*)$"),
    ("architecture", "CUDA", r"^.*(no kernel image is available for execution on the device).*$"),
    ("tool", "PyTorch", r"^\w*Error: (Ninja is required to load C\+\+ extensions.*)$"),
    ("tool", "PyTorch", r"^\w*Error: (CUDA_HOME environment variable is not set.*)$"),
    ("killed", "g++", r"^.*?((?:Killed )?signal terminated program \w+).*$"),
    ("killed", "nvcc", r"^nvcc error\s*: ('\w+' died due to signal \d+.*)$"),
    ("timeout", "subprocess", r"^.*TimeoutExpired: (.*)$"),
))
_KILLED = ("killed", "timeout")
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "`": "'"})


def messages_of(log: str) -> list[Message]:
    """All errors of a log, in its order; quotation marks are made plain."""
    lines = log.translate(_QUOTES).replace("\r\n", "\n").split("\n")
    return list(_messages(lines))


def _messages(lines: list[str]) -> Iterator[Message]:
    for index, line in enumerate(lines):
        match = _GCC.match(line) or _NVCC.match(line)
        if match:
            nvcc = match.re is _NVCC
            file, number, shown = match["file"], int(match["line"]), _shown(lines, index, nvcc)
            if _foreign(file) and (own := _own_place(lines, index)):
                file, number, shown = own
            text, end = match["text"], index + 1
            while nvcc and end < len(lines) and re.match(r"^ {8,}(?:argument|object|function|operand) types? ",
                                                         lines[end]):
                text, end = f"{text} ({lines[end].strip()})", end + 1
            yield Message("compile", "nvcc" if nvcc else "the C++ "
                                                         "compiler", text.strip(), line.strip(), file, number, shown)
            continue
        for kind, tool, pattern in _ONE_LINE:
            found = pattern.match(line)
            if found:
                if kind == "tool" and "died due to signal" in line:
                    kind = "killed"
                yield Message(kind, tool, found.group(1).strip(), line.strip())
                break


def _foreign(file: str) -> bool:
    """Whether a file belongs to a library or a compiler."""
    return bool(re.search(r"/(?:include|site-packages|usr|targets|crt)/", file))


def _shown(lines: list[str], index: int, nvcc: bool) -> str:
    """The source line that a compiler prints below its message."""
    for line in lines[index + 1:index + 6]:
        gcc = re.match(r"^\s*\d+ \| (.*)$", line)
        if gcc:
            return gcc.group(1).strip()
        if re.match(r"^\s*\^", line) or not line.strip() or _GCC.match(line) or _NVCC.match(line):
            return ""
        if nvcc and line.startswith("  ") and not line.startswith("        "):
            return line.strip()
    return ""


def _own_place(lines: list[str], index: int) -> tuple[str, int, str] | None:
    """Where the candidate's own text led into a library's: from the lines around a message."""
    around = [*range(index - 1, max(index - 40, -1), -1), *range(index + 1, min(index + 60, len(lines)))]
    for other in around:
        if other > index and (_GCC.match(lines[other]) or _NVCC.match(lines[other])):
            break
        match = _CALLED.match(lines[other]) or _AT_LINE.match(lines[other])
        if match and match["file"] and not _foreign(match["file"]):
            return match["file"], int(match["line"]), _shown(lines, other, False)
    return None
