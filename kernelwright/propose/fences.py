"""The parts of an answer: what was thought aloud, the blocks of code between fences, and the words around them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TAG = r"(?:think|thinking|thought|thoughts|reasoning|reflection|scratchpad|analysis)"
_OPENS = re.compile(rf"^\s*<\|?{_TAG}\|?>", re.IGNORECASE)
_CLOSES = re.compile(rf"</\|?{_TAG}\|?>|<\|/{_TAG}\|>", re.IGNORECASE)
#: Channels of an answer in the form of messages between marks.
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)\s*<\|message\|>")
_MARK = re.compile(r"<\|(?:start|end|return|message|call)\|>(?:assistant)?")
_FENCE = re.compile(r"^(?P<indent>[ \t]*(?:>[ \t]?)*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`]*)$")
_CLOSED_BEHIND = re.compile(r"^(?P<code>.*[^`\s])[ \t]*```[ \t]*$")
PYTHON = frozenset({"python", "py", "python3", "pycon", "ipython"})
NATIVE = frozenset({"cpp", "c++", "cc", "cuda", "cu", "c", "cxx", "hpp", "cuh"})
#: Blocks that hold other blocks: an answer that stands in a fence as a whole.
_AROUND = frozenset({"markdown", "md", "text", "txt", "output", "answer"})


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two fences. ``line``: of its first line in the answer, from 1. ``closed``: whether a fence
    ends it. ``before``: the words between it and the block before it."""

    language: str
    text: str
    line: int
    closed: bool
    before: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """An answer in parts. ``open_thought``: it ends while it is still thinking."""

    thinking: str
    rest: str
    open_thought: bool
    blocks: tuple[Block, ...]
    words: str


def take_apart(text: str) -> Parts:
    """The parts of an answer. Line numbers of blocks count in the whole text."""
    thinking, rest, skipped, open_thought = _thinking(text)
    blocks, words = _blocks(rest, skipped)
    return Parts(thinking, rest, open_thought, tuple(blocks), words)


def _thinking(text: str) -> tuple[str, str, int, bool]:
    """What was thought, what follows it, how many lines stand before that, and whether the thought has no end."""
    channels = list(_CHANNEL.finditer(text))
    if channels:
        thought, said, at = [], "", len(text)
        for found, following in zip(channels, [*channels[1:], None]):
            body = _MARK.sub("", text[found.end():following.start() if following else len(text)])
            if found.group(1).lower() in ("final", "answer"):
                said, at = body, found.end()
            else:
                thought.append(body.strip())
        return "\n".join(thought), said, text.count("\n", 0, at), not said
    lines = text.split("\n")
    begin = _first_opening(lines)
    closing = [n for n, line in enumerate(lines) if _CLOSES.search(line)]
    if begin is None:
        if not closing or any(re.search(rf"<\|?{_TAG}\|?>", line, re.IGNORECASE) for line in lines[:closing[-1]]):
            return "", text, 0, False
        # A server that takes the opening tag away leaves the closing one.
        return _split(lines, 0, closing[-1])
    after = [n for n in closing if n >= begin]
    if not after:
        return "\n".join([_OPENS.sub("", lines[begin]), *lines[begin + 1:]]).strip(), "\n".join(lines[:begin]), 0, True
    return _split(lines, begin, after[0])


def _split(lines: list[str], begin: int, end: int) -> tuple[str, str, int, bool]:
    found = list(_CLOSES.finditer(lines[end]))[-1]
    thought = [*lines[begin:end], lines[end][:found.start()]]
    thought[0] = _OPENS.sub("", thought[0])
    # What was said before the thought is kept, where it stood.
    rest = [*lines[:begin], *[""] * (end - begin), lines[end][found.end():], *lines[end + 1:]]
    return "\n".join(thought).strip(), "\n".join(rest), 0, False


def _first_opening(lines: list[str]) -> int | None:
    """The line of the first opening tag outside of code."""
    inside = ""
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence and (not inside or (fence["fence"].startswith(inside) and not fence["info"].strip())):
            inside = "" if inside else fence["fence"]
        elif not inside and _OPENS.match(line):
            return number
    return None


def _blocks(text: str, skipped: int) -> tuple[list[Block], str]:
    blocks: list[Block] = []
    words: list[str] = []
    before: list[str] = []
    language, fence, indent, begin = "", "", "", 0
    code: list[str] = []

    def end(closed: bool) -> None:
        nonlocal fence, before
        body = "\n".join(_without(line, indent) for line in code)
        blocks.append(Block(language, body, begin + skipped, closed, "\n".join(before).strip()))
        fence, before = "", []
        code.clear()

    for number, line in enumerate(text.split("\n"), 1):
        found = _FENCE.match(line)
        info = found["info"].strip() if found else ""
        kind = re.split(r"[\s{,:]", info.lower().lstrip("{."), maxsplit=1)[0] if info else ""
        if fence and found and not info and found["fence"].startswith(fence):
            end(True)
        elif fence and found and kind in PYTHON | NATIVE and language in PYTHON | NATIVE | {""}:
            end(False)  # its own fence was forgotten
            language, fence, indent, begin = kind, found["fence"], found["indent"], number + 1
        elif fence:
            behind = _CLOSED_BEHIND.match(line)
            if behind and language in PYTHON | NATIVE and not _FENCE.match(line):
                code.append(behind["code"])
                end(True)
            else:
                code.append(line)
        elif found and (kind not in _AROUND or found["fence"][0] == "~"):
            language, fence, indent, begin = kind, found["fence"], found["indent"], number + 1
            rest = info[len(kind):].strip()
            if re.match(r"(?:import|from|class|def)\s", rest):  # the first line stands beside the fence
                code.append(rest)
        elif not found:
            words.append(line)
            before.append(line)
    if fence:
        end(False)
    return blocks, "\n".join(words).strip()


def _without(line: str, indent: str) -> str:
    """A line without the indentation of its fence, in a list or a quotation."""
    return line[len(indent):] if line.startswith(indent) else line.lstrip("> ") if ">" in indent else line
