"""Reading an answer as people and models write it: which file it is meant to be, and whether it is whole."""

from __future__ import annotations

import ast
import codeop
import re
import warnings
from dataclasses import dataclass

from kernelwright.propose.assembly import WANTED, Assembled, assemble, parsed
from kernelwright.propose.fences import take_apart
from kernelwright.propose.placeholders import Placeholder, placeholders

#: What an answer is. Only the judge says whether it is right.
COMPLETE, PLACEHOLDER, CUT_OFF, BROKEN, NO_CODE, EMPTY = \
    "complete", "placeholder", "cut off", "broken", "no code", "empty"
#: Reasons for an end that say that there was no more room.
_NO_ROOM = frozenset({"length", "max_tokens", "max_output_tokens", "dropped", "stopped"})
_CODE_START = re.compile(r"^(?:import |from \w[\w.]* import|class \w+|def \w+|@\w|\"\"\"|'''|#)", re.MULTILINE)
#: Where code may begin in a text without fences: so many places are tried.
_MOST_STARTS = 40
#: The last characters of an answer that it is asked to go on from.
_TAIL = 600
#: A repetition shorter than this may be chance.
_LEAST_OVERLAP = 12
#: The same of a line that is begun again.
_LEAST_BEGUN = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """What was read of an answer. ``candidate``: the file's text, "" where there is none. ``form``: one of the six
    above. ``gaps``: lines that stand for code. ``notes``: how the file was put together."""

    text: str
    candidate: str
    form: str
    thinking: str = ""
    words: str = ""
    gaps: tuple[Placeholder, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def may_go_on(self) -> bool:
        """Whether to ask for what is still to come."""
        return self.form == CUT_OFF


def read_answer(text: str, finish: str = "") -> Answer:
    """Read an answer. ``finish``: why it ended, as the endpoint said it ("stop", "length"), "" where nobody did."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        return Answer(text, "", CUT_OFF if finish in _NO_ROOM else EMPTY)
    parts = take_apart(text)
    found = assemble(parts.blocks)
    if not found.text.strip():
        bare = _without_fences(parts.rest)
        found = Assembled(bare, ("The code stands without fences.",) if bare else ())
    candidate = found.text if found.text.strip() else ""
    gaps = tuple(placeholders(candidate)) if candidate else ()
    last_open = bool(parts.blocks) and not parts.blocks[-1].closed
    form = _form(candidate, gaps, finish, parts.open_thought, last_open)
    return Answer(text, candidate, form, parts.thinking, parts.words, gaps, found.notes)


def read_file(text: str) -> Answer:
    """A Python file as an answer: it is its own candidate."""
    gaps = tuple(placeholders(text))
    return Answer(text, text, _form(text, gaps, "", False, False) if text.strip() else EMPTY, gaps=gaps)


def _form(candidate: str, gaps: tuple[Placeholder, ...], finish: str, open_thought: bool, last_open: bool) -> str:
    if not candidate:
        return CUT_OFF if open_thought or finish in _NO_ROOM else NO_CODE
    tree = parsed(candidate)
    if tree is None:
        return CUT_OFF if last_open or finish in _NO_ROOM or _ends_early(candidate) else BROKEN
    if last_open and (finish in _NO_ROOM or not _returns(candidate)):
        return CUT_OFF
    if open_thought:
        return CUT_OFF
    return PLACEHOLDER if gaps else COMPLETE


def _ends_early(candidate: str) -> bool:
    """Whether a text is Python but for its end: more lines could make it whole, or its last line breaks off."""
    text = candidate.rstrip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if codeop.compile_command(text, "answer", "exec") is None:
                return True
            ast.parse(text)
    except SyntaxError as error:
        lines = text.split("\n")
        return error.lineno == len(lines) and (error.offset or 0) > len(lines[-1])
    except (ValueError, OverflowError, RecursionError, MemoryError):
        return False
    return False


def _returns(candidate: str) -> bool:
    """Whether ModelNew's forward ends with a result, as far as the text says it."""
    body = re.split(rf"^class {WANTED}\b", candidate, maxsplit=1, flags=re.MULTILINE)[-1]
    return bool(re.search(r"^\s+def forward\b.*?^\s+return\b", body, re.MULTILINE | re.DOTALL)) \
        or bool(re.search(rf"^{WANTED}\s*=", candidate, re.MULTILINE))


def _without_fences(text: str) -> str:
    """The code of a text without fences: the longest Python around its class; as it stands where it is none."""
    lines = text.split("\n")
    starts = [n for n, line in enumerate(lines) if _CODE_START.match(line)][:_MOST_STARTS]
    for start in starts:
        end = len(lines)
        while end > start:
            part = "\n".join(lines[start:end])
            if WANTED not in part:
                break
            try:
                ast.parse(part)
            except SyntaxError as error:
                wrong = start + (error.lineno or 1) - 1
                # Words behind the code: everything from the last line that begins at the margin.
                margin = max((n for n in range(start, min(wrong, end - 1) + 1) if re.match(r"\S", lines[n])),
                             default=start)
                end = margin if margin < end else end - 1
                continue
            except (ValueError, RecursionError, MemoryError):
                break
            return part.strip("\n") + "\n"
    if starts and re.search(rf"^class {WANTED}\b", text, re.MULTILINE):
        return "\n".join(lines[starts[0]:]).strip("\n") + "\n"
    return ""


# ---- going on after an end that came too early


def tail(answer: Answer) -> str:
    """The end of an answer, from which its writer is asked to go on."""
    return answer.text[-_TAIL:]


def continued(first: str, second: str) -> str:
    """An answer and what was written when it was asked to go on: without a fence that is opened anew, a repetition, or
    a line that is begun again. An answer that begins from the start stands alone."""
    parts = take_apart(second)
    joined = _joined(first, parts.rest.lstrip("\n") if parts.thinking else second)
    if read_answer(joined).form == COMPLETE:
        return joined
    alone = read_answer(second)
    return second if alone.form == COMPLETE and _stands_alone(alone.candidate) else joined


def _joined(first: str, second: str) -> str:
    blocks = take_apart(first).blocks
    if blocks and not blocks[-1].closed:
        second = _without_opening(second)
    for length in range(min(len(first), len(second), 4 * _TAIL), _LEAST_OVERLAP - 1, -1):
        if first.endswith(second[:length]):
            return first + second[length:]
    begun = first.rsplit("\n", 1)[-1]
    line = second.split("\n", 1)[0]
    if len(begun.strip()) >= _LEAST_BEGUN and line.strip().startswith(begun.strip()):
        return first[:len(first) - len(begun)] + begun[:len(begun) - len(begun.lstrip())] + second.lstrip(" \t")
    return first + second


def _without_opening(second: str) -> str:
    """The text without the fence that its writer opened again, and the words before it. A fence without a language is
    an opening one where another closes it."""
    fences = list(re.finditer(r"^[ \t]*(?:`{3,}|~{3,})[ \t]*([\w+]*)[ \t]*\n?", second, re.MULTILINE))
    if fences and (fences[0].group(1) or len(fences) % 2 == 0) and second.count("\n", 0, fences[0].start()) <= 4:
        return second[fences[0].end():]
    return second


def _stands_alone(candidate: str) -> bool:
    return bool(re.search(r"^(?:import|from) ", candidate, re.MULTILINE)) and _returns(candidate)
