"""Finding answers: folders, transcripts of several forms, files of other tools, and what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelwright import errors
from kernelwright.propose.answers import COMPLETE
from kernelwright.propose.sources import find_answers, transcript

FILE = ("import torch\nfrom torch import nn\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
        "        return torch.relu(x)\n")
ANSWER = f"Here:\n```python\n{FILE}```\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text("x = 1\n")
    return path


def test_a_folder_stands_for_its_texts_in_natural_order(model: Path) -> None:
    folder = model.parent / "answers"
    texts = {"a10.md": ANSWER, "a9.txt": ANSWER, "deep/b.py": FILE, "_left.md": ANSWER, ".hidden.md": ANSWER,
             "deep/_cache/c.md": ANSWER, "kernel.cu": "__global__", "c.jsonl": json.dumps({"response": ANSWER}) + "\n"}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "picture.txt").write_bytes(b"\0\1\2")
    found = find_answers(model, [folder])
    assert [f.name for f in found] == ["a9.txt", "a10.md", "c.jsonl", "deep/b.py"]
    assert all(f.answer.candidate == FILE and f.answer.form == COMPLETE for f in found)
    assert [f.name for f in find_answers(model, [model.parent])] == [f"answers/{f.name}" for f in found]


MESSAGES = [{"role": "user", "content": "Write class ModelNew."}, {"role": "assistant", "content": ANSWER}]
DOCUMENTS: dict[str, Any] = {
    "messages": {"messages": MESSAGES}, "a list of messages": MESSAGES,
    "a response": {"choices": [{"message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}]},
    "parts": {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
    "a record of a tool": {"problem": "p", "sample": 0, "kernel": FILE, "prompt": "class ModelNew ..."},
    "records of a tool": [{"generated_code": ANSWER}], "nested": {"runs": {"a": [{"response": ANSWER}]}},
    "thought apart": {"messages": [{"role": "assistant", "reasoning_content": "class ModelNew: no",
                                    "content": ANSWER}]},
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_transcripts(name: str) -> None:
    (found,) = transcript(json.dumps(DOCUMENTS[name]))
    assert found.candidate == FILE or found.candidate.strip() == FILE.strip()


def test_several_answers_of_a_transcript(model: Path) -> None:
    file = model.parent / "samples.jsonl"
    file.write_text("\n".join(json.dumps({"response": ANSWER.replace("relu", name)}) for name in ("relu", "tanh")))
    assert [f.name for f in find_answers(model, [file])] == ["samples.jsonl#1", "samples.jsonl#2"]


def test_an_answer_that_was_asked_to_go_on() -> None:
    first, rest = ANSWER[:-40], ANSWER[-40:]
    messages = [{"role": "assistant", "content": first, "finish_reason": "length"},
                {"role": "user", "content": "continue"}, {"role": "assistant", "content": rest}]
    (found,) = transcript(json.dumps(messages))
    assert found.candidate == FILE and found.form == COMPLETE
    assert len(transcript(json.dumps([messages[0], {"role": "user", "content": "Use tanh."}, messages[2]]))) == 2


def test_a_torn_transcript_and_one_without_answers() -> None:
    (found,) = transcript(json.dumps({"response": ANSWER}) + '\n{"response": "torn')
    assert found.candidate == FILE
    assert transcript(json.dumps({"settings": [1, 2, {"a": "b"}]})) == []


def test_names_are_told_apart_and_each_file_is_read_once(model: Path) -> None:
    for folder in ("one", "two"):
        (model.parent / folder).mkdir()
        (model.parent / folder / "a.md").write_text(ANSWER)
    one, two = model.parent / "one", model.parent / "two"
    assert [f.name for f in find_answers(model, [one, two, one / "a.md", one])] == ["a.md", "a.md (2)"]


def test_an_answer_saved_as_python(model: Path) -> None:
    file = model.parent / "saved.py"
    file.write_text(ANSWER)
    assert find_answers(model, [file])[0].answer.candidate == FILE


@pytest.mark.parametrize(("given", "kind"), [
    ("nothing.md", errors.AnswersMissing), ("empty", errors.NoAnswers), ("model.py", errors.AnswerUnreadable),
    ("binary.md", errors.AnswerUnreadable)])
def test_what_cannot_be_read(model: Path, given: str, kind: type[errors.KernelwrightError]) -> None:
    (model.parent / "empty").mkdir()
    (model.parent / "binary.md").write_bytes(b"\0" * 10)
    with pytest.raises(kind):
        find_answers(model, [model.parent / given])
    with pytest.raises(errors.FileMissing):
        find_answers(model.parent / "no.py", [model.parent])
