"""Texts that exist: saved answers, transcripts and files of other tools, found below what was given and read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import AnswersMissing, AnswerUnreadable, FileMissing, NoAnswers
from kernelwright.names import natural
from kernelwright.propose.answers import Answer, continued, read_answer, read_file
from kernelwright.propose.assembly import WANTED, parsed

#: Bytes of a text. What is larger was not written to be read.
MOST_BYTES = 16 << 20
TEXTS = frozenset({".md", ".markdown", ".txt", ".text", ".log", ".rst", ".html", ""})
TRANSCRIPTS = frozenset({".json", ".jsonl", ".ndjson"})
#: Fields in which tools keep an answer, or the code of one, in the order in which they are believed.
_FIELDS = ("answer", "response", "completion", "output", "text", "content", "kernel", "code", "generated_code",
           "custom_code", "kernel_src", "source", "solution", "candidate")
#: Nested this deep a document is no transcript.
_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Found:
    """An answer with its name: the file's, with a number where the file holds several."""

    name: str
    answer: Answer


def find_answers(model: Path, given: Sequence[Path]) -> list[Found]:
    """The answers in files and folders, each file once, in the order given. A folder stands for the texts, transcripts
    and Python files in it and in its subfolders, without names that begin with ``_`` or ``.`` and without the model's
    own file.

    Raises FileMissing (KW101) for the model, AnswersMissing (KW802), AnswerUnreadable (KW803) and NoAnswers (KW801).
    """
    if not os.path.exists(model):
        raise FileMissing(path=model, folder=Path.cwd())
    own = model.resolve()
    found: list[Found] = []
    read: set[Path] = set()
    for path in given:
        if not os.path.exists(path):
            raise AnswersMissing(path=path, folder=Path.cwd())
        if path.is_dir():
            for file in _below(path, own):
                text = None if file.resolve() in read else _text_of(file, named=False)
                read.add(file.resolve())
                found += [] if text is None else _answers_of(file, file.relative_to(path).as_posix(), text)
        elif path.resolve() == own:
            raise AnswerUnreadable(path=path, found="it is the model's own file")
        elif path.resolve() not in read:
            read.add(path.resolve())
            text = _text_of(path, named=True)
            assert text is not None
            found += _answers_of(path, path.name, text)
    if not found:
        raise NoAnswers(folder=", ".join(map(str, given)))
    return _named_apart(found)


def _named_apart(found: Sequence[Found]) -> list[Found]:
    """The answers, with a number behind a name that one before has."""
    taken: set[str] = set()
    apart = []
    for entry in found:
        name, number = entry.name, 1
        while name in taken:
            number += 1
            name = f"{entry.name} ({number})"
        taken.add(name)
        apart.append(Found(name, entry.answer))
    return apart


def _below(folder: Path, own: Path) -> Iterator[Path]:
    names = {file.relative_to(folder): file for file in folder.rglob("*") if file.is_file()}
    for name in sorted(names, key=lambda name: natural(name.as_posix())):
        known = name.suffix.lower() in TEXTS | TRANSCRIPTS | {".py"}
        if known and not any(p.startswith(("_", ".")) for p in name.parts) and names[name].resolve() != own:
            yield names[name]


def _text_of(file: Path, *, named: bool) -> str | None:
    """A file's text; None for one that a folder holds and that is no text."""
    why = ""
    try:
        with open(file, "rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        data, why = b"", f"{error.strerror or error}"
    if len(data) > MOST_BYTES:
        why = f"it has more than {MOST_BYTES >> 20} MiB"
    elif b"\0" in data[:4096]:
        why = "it is no text"
    if why and (named or not ("MiB" in why or "no text" in why)):
        raise AnswerUnreadable(path=file, found=why)
    return None if why else data.decode("utf-8-sig", errors="replace")


def _answers_of(file: Path, name: str, text: str) -> list[Found]:
    suffix = file.suffix.lower()
    if suffix == ".py":
        return [Found(name, _file_answer(text))]
    if suffix in TRANSCRIPTS:
        found = transcript(text)
        many = len(found) > 1
        return [Found(f"{name}#{number}" if many else name, answer) for number, answer in enumerate(found, 1)]
    return [Found(name, read_answer(text))]


def _file_answer(text: str) -> Answer:
    """A Python file is a candidate as it stands; an answer that was saved under that name is read as one."""
    if parsed(text) is not None or not re.search(r"^\s*(?:```|~~~)|<think", text, re.MULTILINE):
        return read_file(text)
    return read_answer(text)


# ---- transcripts


def transcript(text: str) -> list[Answer]:
    """The answers of a transcript: messages of a chat, responses of an endpoint, or records of a tool, as one JSON
    document or one a line. A text that is no JSON is one answer."""
    try:
        documents = [json.loads(text)]
    except (ValueError, RecursionError):
        documents = []
        for line in text.splitlines():
            try:
                documents.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
    if not documents:
        return [read_answer(text)]
    said = [entry for document in documents for entry in _said(document)]
    return [read_answer(words, finish) for words, finish in _together(said)]


def _said(value: Any, depth: int = 0) -> Iterator[tuple[str, str, bool]]:
    """What a model said, why it ended, and whether it was asked to go on from there."""
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        if value and all(isinstance(m, dict) and "role" in m for m in value):
            yield from _messages(value, "")
            return
        for entry in value:
            yield from _said(entry, depth + 1)
    elif isinstance(value, str):
        if WANTED in value:
            yield value, "", False
    elif isinstance(value, dict):
        finish = str(value.get("finish_reason") or value.get("stop_reason") or "")
        if isinstance(value.get("messages"), list) and all(isinstance(m, dict) for m in value["messages"]):
            yield from _messages(value["messages"], finish)
        elif isinstance(value.get("message"), dict):
            yield from _messages([value["message"]], finish)
        elif value.get("role") == "assistant" and "content" in value:
            yield from _messages([value], finish)
        elif isinstance(value.get("choices"), list):
            yield from _said(value["choices"], depth + 1)
        else:
            texts = [value[f] for f in _FIELDS if isinstance(value.get(f), str) and value[f].strip()]
            if texts:
                yield next((t for t in texts if WANTED in t), texts[0]), finish, False
            else:
                for entry in value.values():
                    if isinstance(entry, (dict, list)):
                        yield from _said(entry, depth + 1)


def _messages(messages: Sequence[Any], finish: str) -> Iterator[tuple[str, str, bool]]:
    """The assistant's messages. One that follows a request to go on continues the one before."""
    asked = ""
    for message in messages:
        text = _content(message)
        if message.get("role", "assistant") in ("assistant", "model"):
            thought = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking")
            if isinstance(thought, str) and thought.strip():
                text = f"<think>\n{thought}\n</think>\n{text}"
            goes_on = len(asked) < 400 and bool(re.search(r"\b(?:continue|go on|keep going|carry on)\b", asked, re.I))
            yield text, str(message.get("finish_reason") or finish or ""), goes_on
        asked = text


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict)
                       and isinstance(part.get("text", ""), str))
    return content if isinstance(content, str) else ""


def _together(said: Sequence[tuple[str, str, bool]]) -> list[tuple[str, str]]:
    whole: list[tuple[str, str]] = []
    for text, finish, goes_on in said:
        if goes_on and whole and read_answer(*whole[-1]).may_go_on:
            whole[-1] = continued(whole[-1][0], text), finish
        else:
            whole.append((text, finish))
    return whole
