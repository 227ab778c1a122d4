"""Kernels of our own file, exchanged one by one: found in it, found in answers, put in, mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import propose_tools
import pytest
from places import ROOT
from propose_tools import MODEL, answer, candidate

from kernelwright.propose.fences import take_apart
from kernelwright.propose.regions import exchanged, region_answers, regions_of, shown
from kernelwright.propose.run import propose
from kernelwright.propose.session import Tools
from kernelwright.propose.settings import ProposeSettings

GENERATED = ROOT / "examples" / "generated"
FILE = (GENERATED / "convt_global_mean_cpp_new.py").read_text()
K0, K1 = "k0_region_sum", "k1_sum_cast"


def kernel(name: str, says: str = "") -> str:
    """A kernel of that name with other work in it."""
    signature = regions_of(FILE)[name].signature
    return f"// {says}\n{signature} {{\n  return nullptr;\n}}\n"


def block(name: str, says: str = "") -> str:
    return f"Only this one:\n\n```cpp\n{kernel(name, says)}```\n"


@pytest.mark.parametrize("file", sorted(GENERATED.glob("*_new.py")), ids=lambda f: f.stem)
def test_every_kernel_of_emitted_files_is_a_region(file: Path) -> None:
    text = file.read_text()
    regions = regions_of(text)
    marks = [line[5:] for line in text.split("\n") if line.startswith("//// ") and line != "//// launchers"]
    assert list(regions) == marks
    for name, region in regions.items():
        assert region.signature.startswith(f"static const char* {name}(") and region.text in text
        assert exchanged(text, {name: region.text}).replace("\n\n", "\n") == text.replace("\n\n", "\n")
        assert shown(text, [name]) == region.text + "\n"


def test_one_kernel_is_exchanged_and_the_rest_stays() -> None:
    text = exchanged(FILE, {K1: kernel(K1)})
    assert text is not None
    before, after = regions_of(FILE), regions_of(text)
    assert after[K0] == before[K0] and after[K1].head.startswith(before[K1].head)
    assert "return nullptr;" in after[K1].text and "accumulator0" not in after[K1].text
    assert text.count("//// launchers") == 1
    compile(text, "new.py", "exec")


@pytest.mark.parametrize("text", ['"""\nimport os\n"""', "//// k9_other\nint x;", "", "  \n"], ids=repr)
def test_what_would_leave_its_place_is_refused(text: str) -> None:
    assert exchanged(FILE, {K1: text}) is None and exchanged(FILE, {"k9_none": "int x;"}) is None
    assert exchanged("x = 1", {K1: "int x;"}) is None


def test_answers_that_define_a_kernel() -> None:
    regions = regions_of(FILE)
    assert region_answers(take_apart(block(K1)).blocks, regions) == {K1: kernel(K1).rstrip("\n")}
    declared = f"```cpp\n{regions[K1].signature};\nvoid other() {{}}\n```\n"
    assert region_answers(take_apart(declared).blocks, regions) == {}
    assert region_answers(take_apart(block(K0) + block(K1)).blocks, regions).keys() == {K0, K1}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def tools(script: Any = None) -> Tools:
    def generated(path: Path, settings: Any, progress: Any) -> None:
        settings.output.write_text(FILE + "\n# milliseconds: 2\n")

    made = propose_tools.tools(script)
    return Tools(analyse=made.analyse, endpoint=made.endpoint, judge=made.judge, optimize=generated)


def test_our_file_with_a_kernel_exchanged_is_judged_and_written(model: Path) -> None:
    (model.parent / "a.md").write_text(block(K1, "# milliseconds: 1.5"))
    (model.parent / "b.md").write_text(answer(candidate(3.0)))
    result = propose(model, ProposeSettings(answers=(model.parent / "a.md", model.parent / "b.md")), tools=tools())
    found = {c.name: c for c in result.candidates}
    assert found["a.md"].regions == (K1,) and found["a.md"].form == "complete" and found["b.md"].regions == ()
    assert result.chosen == "a.md" and result.written is not None
    text = result.written.read_text()
    assert regions_of(text)[K0] == regions_of(FILE)[K0] and f"with {K1} exchanged" in text
    assert "_original_forward" in text


def test_the_best_of_each_kernel_are_mixed_and_judged(model: Path) -> None:
    texts = {"a": block(K0, "# milliseconds: 1.9"), "b": block(K1, "# milliseconds: 1.8"),
             "c": block(K1, "# milliseconds: 1.7"), "d": block(K0, "# fault: tail")}
    for name, text in texts.items():
        (model.parent / f"{name}.md").write_text(text)
    made = tools()
    result = propose(model, ProposeSettings(answers=tuple(model.parent / f"{n}.md" for n in texts)), tools=made)
    mixture = result.candidates[-1]
    assert mixture.name == "mixture" and set(mixture.regions) == {K0, K1} and mixture.parents == ("a.md", "c.md")
    judged = made.judge.runs[-1]  # pyrefly: ignore
    assert len(judged) == 6 and "# milliseconds: 1.9" in judged[-1] and "# milliseconds: 1.7" in judged[-1]


def test_a_prompt_offers_single_kernels_and_shows_them_alone(model: Path) -> None:
    def script(name: str, piece: int, messages: Any) -> str:
        return block(K1, f"# fault: tail {name}") if name.startswith("r1") else answer(candidate(1.0))

    made = tools(script)
    propose(model, ProposeSettings(endpoint="http://localhost:1", model="m", candidates=1, rounds=2), tools=made)
    first, second = (call[2][1]["content"] for call in made.endpoint.asked)  # pyrefly: ignore
    assert regions_of(FILE)[K1].signature + ";" in first and "One kernel alone" in first
    assert f"Our file with {K1} exchanged" in second and "_kernelwright_call" not in second
    blind = tools(script)
    settings = ProposeSettings(endpoint="http://localhost:1", model="m", candidates=1, rounds=1, blind=True, force=True)
    propose(model, settings, tools=blind)
    assert "One kernel alone" not in blind.endpoint.asked[0][2][1]["content"]  # pyrefly: ignore
