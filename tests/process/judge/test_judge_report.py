"""The judge's result as text and as a document: everything is said, nothing of a candidate's can forge it."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest
from judge_tools import certificate, judged, output, right, timing

from kernelwright.judge.records import (
    ERROR_UNIT,
    SCHEMA,
    ByRules,
    CandidateResult,
    Finding,
    ToolRun,
    TriedShape,
    plain_allclose,
)
from kernelwright.judge.report.rank import rank
from kernelwright.judge.report.text import clean, render_text, short_names
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.verify.records import TrialPlan

WRONG = CandidateResult(
    "set/wrong.py", "WRONG-NUMERIC", "Output 0 lacks the bias: its values are too small by the channel's bias.",
    fix="Add self.bias[c] before the store.",
    findings=(
        Finding("missing-bias", "Output 0 lacks the bias: its values are too small by the channel's bias.", "run",
                "Add self.bias[c] before the store.", 31, "    out[i] = sum;", {"index": (0, 3), "got": math.nan}),
        Finding("unchecked-launch", "No launch is followed by a check of cudaGetLastError().", "read",
                "Check each launch.", 44, "kernel<<<blocks, 256>>>(out);")),
    certificate=certificate(output(passed=False, units=40.0), candidate=0.25, passed=False), precision="float32")
EMPTY = CandidateResult("set/empty.py", "BUILD-EMPTY", "The file is empty.", fix="Write a class ModelNew.")
LIMITED = right("set/limited.py", 2e-3, verdict="OK-BUT", limits=("Only the batch size 16 is computed.",))


def all_kinds():
    return judged(*rank([WRONG, EMPTY, right("set/sub/b.py", 1.002e-3), right("set/a.py"), LIMITED,
                         right("set/gemm.py", 3e-3, share=0.01)]))


# ---- text ------------------------------------------------------------------------------------------------


def test_each_candidate_has_its_line_and_each_refused_one_its_reason_place_and_remedy() -> None:
    text = render_text(all_kinds())
    lines = text.splitlines()
    assert lines[0] == "convolution: 6 candidates on a CPU, torch 2.13.0"
    assert lines[1].strip() == "3 OK, 1 OK-BUT, 1 BUILD-EMPTY, 1 WRONG-NUMERIC"
    rows = {line.split()[0]: line.split() for line in lines[3:10]}
    assert list(rows) == ["candidate", "wrong.py", "empty.py", "sub/b.py", "a.py", "limited.py", "gemm.py"]
    assert rows["wrong.py"] == ["wrong.py", "WRONG-NUMERIC", "2.5e-01", "2.0e-06", "float32"]
    assert rows["empty.py"] == ["empty.py", "BUILD-EMPTY"]
    assert rows["a.py"][1:] == ["OK", "3.0e-07", "2.0e-06", "float32", "1.00", "ms", "2.00x", "50", "%", "100", "%"]
    assert rows["gemm.py"][-2:] == ["1", "%"]
    wrong = text[text.index("What is wrong"):text.index("Right, with limits")]
    assert "wrong.py: WRONG-NUMERIC\n    Output 0 lacks the bias" in wrong
    assert "set/wrong.py:31: out[i] = sum;" in wrong and "fix: Add self.bias[c] before the store." in wrong
    assert "hint: No launch is followed by a check" in wrong
    assert "set/wrong.py:44: kernel<<<blocks, 256>>>(out);" in wrong and "fix: Check each launch." in wrong
    assert wrong.count("Output 0 lacks the bias") == 1 and wrong.count("fix: Add self.bias") == 1
    assert "empty.py: BUILD-EMPTY\n    The file is empty.\n    fix: Write a class ModelNew." in wrong
    assert "Only the batch size 16 is computed." in text[text.index("Right, with limits"):]


def test_the_ranking_names_ties_by_class() -> None:
    text = render_text(all_kinds())
    own = text[text.index("Ranking: own kernels, float32"):]
    assert re.search(r"a\.py +1= +1\.00 ms \(999 us to 1\.00 ms\) +2\.00x \(1\.98 to 2\.02\)", own)
    assert "1= a.py, sub/b.py (cannot be told apart)" in own
    assert re.search(r"limited\.py +3 ", own)
    assert "eager itself" not in text
    assert "eager itself: 4.00 ms (4.00 ms to 4.00 ms)" in render_text(dataclasses.replace(
        all_kinds(), baseline=timing(4e-3)))
    library = text[text.index("Ranking: library-backed, float32"):text.index("Ranking: own")]
    assert re.search(r"gemm\.py +1 ", library) and "=" not in library
    assert text.index("Ranking: library") < text.index("What this rests on")


def test_what_it_rests_on_is_told() -> None:
    text = render_text(judged(EMPTY, environment={"words": "The GPU was throttled in 3 of 40 rounds."}))
    basis = " ".join(text[text.index("What this rests on"):].split())
    assert "problem: The model is deterministic. No trivial candidate passes." in basis
    assert "self-test: All 5 controls got their verdict." in basis
    assert "isolation: own user and network namespaces" in basis and "throttled in 3 of 40 rounds" in basis
    assert "seed: 271828" in basis and "Ranking" not in text


def test_ties_with_eager_are_ties_and_slow_downs_are_said() -> None:
    even = dataclasses.replace(right("even.py"), timing=timing(1e-3, speed=1.004))
    slow = dataclasses.replace(right("slow.py"), timing=timing(2e-3, speed=0.5))
    text = render_text(judged(*rank([even, slow])))
    assert re.search(r"even\.py +OK .* 1\.00 ms +tie ", text) and re.search(r"slow\.py +OK .* 2\.00 ms +0\.500x ", text)
    assert "1.00x (0.994 to 1.01) tie" in text


def test_few_rounds_are_said() -> None:
    """Two rounds give neither a speed-up nor a rank, and a reader is told why."""
    fast, slow = (dataclasses.replace(right(name), timing=dataclasses.replace(
        timing(time), samples=(time, time), speedup=None)) for name, time in (("a.py", 1e-3), ("b.py", 4e-3)))
    text = render_text(judged(*rank([fast, slow])))
    assert re.search(r"b\.py +OK .* 4\.00 ms +\? ", text) and text.count("too few rounds to say") == 2
    assert "2 of 2 were timed in fewer than 5 rounds" in text and "1= a.py, b.py" in text
    assert "fewer than 5 rounds" not in render_text(all_kinds())


def test_without_times_there_is_no_ranking_and_that_is_said() -> None:
    text = render_text(judged(right("a.py", None)))
    assert "None: no candidate was timed." in text and "speed-up" not in text


def test_an_unfit_judge_says_so_first() -> None:
    result = judged(right("a.py", None, verdict="JUDGE-UNFIT"), selftest={
        "passed": False, "words": ["The known wrong candidate passed."]})
    text = render_text(result)
    assert "no verdict of it counts" in text.splitlines()[2] and "The known wrong candidate passed." in text
    assert result.exit_status == 3
    one = render_text(judged(CandidateResult("a.py", "JUDGE-ERROR", "The judge could not go on."), right("b.py", None)))
    assert "no verdict of it counts" not in one  # the others' verdicts do


@pytest.mark.parametrize("count", [7, 200])
@pytest.mark.parametrize("name", ["{}.py", "set/answers_of_some_model_with_a_long_name/attempt_{}_temperature_0.7.py"])
def test_hundred_columns_suffice(count: int, name: str) -> None:
    """With the longest verdict, all columns filled, and names that do not fit, which keep what tells them apart."""
    longest = max(VERDICTS, key=len)
    passed = [right(name.format(i), 1e-3 * (1 + i)) for i in range(count - 1)]
    wrong = dataclasses.replace(passed[0], file="other/" + name.format(count), verdict=longest, reason="Other. " * 90)
    text = render_text(judged(*rank([*passed, wrong])))
    assert max(map(len, text.splitlines())) <= 100
    table = text.split("\n\n")[1].splitlines()
    assert len({line.split()[0] for line in table[1:count + 1]}) == count  # told apart by name or number
    assert text.count(longest) == 3  # counted, in its row, with its reason


def test_a_candidates_text_cannot_write_to_the_terminal() -> None:
    evil = dataclasses.replace(
        WRONG, file="a\x1b[2Jb.py", reason="fine\x1b[1A\x1b[2K\rOK \u202eevil\x07\n\n  self-test: passed",
        findings=(Finding("x", "s\x9b31m", "run", "f\x00", 1, "\x1b]0;title\x07"),))
    text = render_text(judged(evil, right("c.py")), colour=False)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "fine\\x1b[1A\\x1b[2K OK \\u202eevil\\x07 self-test: passed" in " ".join(text.split())
    assert clean("x" * 900) == "x" * 797 + "..." and clean("täglich \t新") == "täglich 新"


def test_colours_only_where_asked_for() -> None:
    result = all_kinds()
    assert "\x1b[" not in render_text(result) and "\x1b[31m" in render_text(result, colour=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", render_text(result, colour=True)) == render_text(result)


@pytest.mark.parametrize(("files", "shown"), [
    (["a.py"], ["a.py"]), (["x/a.py", "x/y/b.py"], ["a.py", "y/b.py"]), (["x/a.py", "z/a.py"], ["x/a.py", "z/a.py"]),
    (["/x/a.py", "a.py"], ["/x/a.py", "a.py"]), (["../s/a.py", "../s/b.py"], ["a.py", "b.py"])])
def test_names_without_the_common_folder(files: list[str], shown: list[str]) -> None:
    assert list(short_names(files).values()) == shown


# ---- document --------------------------------------------------------------------------------------------

FIELDS = {"schema", "problem", "path", "candidates", "ranking", "baseline", "problem_profile", "selftest", "isolation",
          "device", "versions", "environment", "settings", "seed", "seconds", "exit_status"}
CANDIDATE_FIELDS = {"file", "verdict", "reason", "fix", "findings", "limits", "error", "timing", "precision",
                    "allclose", "own_share", "rank", "rank_class", "isolation", "seconds", "certificate", "untried",
                    "by_rules", "prompt", "alike", "shapes", "sanitizer"}


def test_document_has_everything_and_only_finite_numbers() -> None:
    document = json.loads(json.dumps(all_kinds().to_json(), allow_nan=False))
    assert set(document) == FIELDS and document["schema"] == SCHEMA
    assert all(set(candidate) == CANDIDATE_FIELDS for candidate in document["candidates"])
    wrong, empty, _, first, limited, _ = document["candidates"]
    assert (wrong["file"], wrong["verdict"], wrong["rank"]) == ("set/wrong.py", "WRONG-NUMERIC", None)
    assert wrong["error"] == {"candidate": 0.25, "eager": 2e-6, "unit": ERROR_UNIT}
    assert wrong["findings"][0]["evidence"] == {"index": [0, 3], "got": "nan"} and wrong["findings"][1]["line"] == 44
    assert empty["error"] is None and empty["timing"] is None and empty["own_share"] is None
    assert first["timing"]["speedup"]["value"] == 2.0 and first["own_share"] == 1.0
    assert limited["limits"] == ["Only the batch size 16 is computed."]
    assert document["ranking"] == {"library-backed, float32": [["set/gemm.py"]],
                                   "own kernels, float32": [["set/a.py", "set/sub/b.py"], ["set/limited.py"]]}
    assert document["seed"] == 271828 and document["exit_status"] == 1


@pytest.mark.parametrize(("verdicts", "status"), [
    (["OK", "OK-BUT"], 0), (["OK", "WRONG-SHAPE"], 1), (["PROBLEM-TRIVIAL"], 1), (["JUDGE-NO-DEVICE"], 3),
    (["OK", "JUDGE-UNFIT"], 3), (["WRONG-SHAPE", "JUDGE-ERROR"], 3)])
def test_exit_status(verdicts: list[str], status: int) -> None:
    assert judged(*(CandidateResult(f"{code}.py", code, "reason") for code in verdicts)).exit_status == status


def test_plain_allclose_is_per_element_on_the_problems_own_inputs() -> None:
    assert plain_allclose(certificate(output(units=0.99))) is True
    assert plain_allclose(certificate(output(units=0.99), output(units=1.01))) is False
    assert plain_allclose(certificate(output(misplaced_nonfinite=1))) is False
    # Refused for a small channel, and still within allclose: that is what the figure is there to show.
    assert plain_allclose(certificate(output(passed=False, units=0.5))) is True
    assert plain_allclose(certificate(output(dtype="torch.float16"))) is None and plain_allclose(certificate()) is None
    others = certificate(output(units=9.0))
    redrawn = dataclasses.replace(others.trials[0], plan=TrialPlan(5, redrawn_parameters=True))
    assert plain_allclose(dataclasses.replace(others, trials=(redrawn,))) is None


def test_a_candidate_that_never_ran_has_no_error() -> None:
    assert dataclasses.replace(EMPTY, certificate=certificate(passed=False)).error is None


def test_other_rules_scores_and_shapes_have_their_places() -> None:
    ours = right("set/a.py", by_rules=(ByRules("kernelbench", "KernelBench", False, "of NaN", 4, 5),),
                 shapes=(TriedShape("the problem's own", True), TriedShape("batch of 1", False)), sanitizer=(
                     ToolRun("memcheck", "clean", "nothing"), ToolRun("synccheck", "clean", "nothing"),
                     ToolRun("initcheck", "unproven", "it saw nothing")))
    assert ours.timing is not None
    ours = dataclasses.replace(ours, timing=dataclasses.replace(ours.timing, sol_score=0.834))
    wrong = dataclasses.replace(WRONG, by_rules=(ByRules("kernelbench", "KernelBench", None, "it ended"),))
    text = render_text(judged(*rank([ours, wrong])))
    words = " ".join(text.split())
    assert "candidate ours KernelBench a.py OK wrong wrong.py WRONG-NUMERIC ?" in words
    assert "a.py: wrong by KernelBench's rules (4 of 5 trials), right by ours: of NaN." in words
    assert "wrong.py: not judged by KernelBench's rules: it ended." in words
    assert re.search(r"rank\s+time \(95 %\)\s+over eager \(95 %\)\s+SOL", text) and " 0.83\n" in text
    assert "a.py 1 of 2." in words
    assert "a.py: memcheck, synccheck clean; initcheck unproven (it saw nothing)" in words
    assert "SOL" not in render_text(all_kinds()) and "rules of others" not in render_text(all_kinds())
