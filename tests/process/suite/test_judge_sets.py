"""``judge --set``: which candidates a set has, and that each is judged once, whatever becomes of processes and runs."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import ROOT, TESTS
from schemas import assert_fits

from kernelwright import cli, errors
from kernelwright.judge.settings import JudgeSettings
from kernelwright.suite import judge_runner, processes
from kernelwright.suite.candidate_sets import find_entries
from kernelwright.suite.judge_runner import MOST_ATTEMPTS, SetResult, judge_set
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.results import FILE, Lines
from kernelwright.suite.worker_process import WorkerProcess

DIES = "import os; os._exit(7)"


@pytest.fixture
def judging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Judges sets with texts that say their own verdicts: ``judging(**options)`` gives the result; ``told`` are the
    records in the order in which they came."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "support"))
    monkeypatch.setattr(judge_runner, "WORK", "suite_work:judge")
    told: list[Mapping[str, Any]] = []

    def run(path: Path | None = None, settings: JudgeSettings | None = None, **changes: Any) -> SetResult:
        told.clear()
        options = SuiteOptions(**{"output": tmp_path / "out", "devices": ("cpu",), "workers": 2, **changes})
        return judge_set(path or tmp_path / "set", settings or JudgeSettings(target="cpp"), options, None, told.append)

    return SimpleNamespace(run=run, told=told, folder=tmp_path / "set")


def write(folder: Path, **texts: str) -> Path:
    """Files by name; two underscores stand for a subfolder."""
    for name, text in texts.items():
        file = folder / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def begun(folder: Path) -> Counter[str]:
    """How often each candidate of a problem's folder began."""
    journal = folder / "journal.txt"
    return Counter(journal.read_text().split()) if journal.exists() else Counter()


# ---- which candidates ------------------------------------------------------------------------------------


def test_a_folder_of_problems(tmp_path: Path) -> None:
    write(tmp_path, p10__problem="a", p10__x="1", p2__problem="b", p2__b10="1", p2__b9="2", p2__more__c="3",
          empty__x="4", alone__problem="5", p2___helper="6", **{"_hidden__problem": "7", "_hidden__x": "8"})
    write(tmp_path / "p2" / "nested", problem="c", x="9")
    found = find_entries(tmp_path, tmp_path / "texts")
    assert [entry.id for entry in found] == ["p2/b9", "p2/b10", "p2/more/c", "p2/nested/x", "p10/x"]
    assert [entry.problem for entry in found] == ["p2", "p2", "p2", "p2/nested", "p10"]
    assert [entry.id for entry in find_entries(tmp_path, tmp_path / "texts", ["p2/b", "*/more/*"])] == [
        "p2/b9", "p2/b10", "p2/more/c"]
    with pytest.raises(errors.NoSet, match=r"none of its 5 candidates fits nothing"):
        find_entries(tmp_path, tmp_path / "texts", ["nothing"])
    with pytest.raises(errors.NoSet):
        find_entries(tmp_path / "empty", tmp_path / "texts")
    with pytest.raises(errors.FileMissing):
        find_entries(tmp_path / "none", tmp_path / "texts")


def test_lines_of_paths_and_texts(tmp_path: Path) -> None:
    write(tmp_path, model="m = 1", a="1", b="2")
    lines = [{"problem": "model.py", "candidate": "a.py"}, {"problem": "model.py", "candidate": "b.py", "id": "second"},
             {"problem": "m = 2\n", "candidate": "text = 3\n", "id": 7}, {"problem": "m = 2\n", "candidate": "b.py"}]
    file = tmp_path / "set.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    found = find_entries(file, tmp_path / "texts")
    assert [entry.id for entry in found] == ["1", "second", "7", "4"]
    assert found[0].problem_path == found[1].problem_path == tmp_path / "model.py"
    assert found[2].problem_path == found[3].problem_path and found[2].candidate_path.read_text() == "text = 3\n"
    assert found[1].candidate_sha256 == found[3].candidate_sha256


def test_what_a_problem_imports_from_beside_it_belongs_to_it(tmp_path: Path) -> None:
    for place, number in (("p1", 1), ("p2", 2), ("p3", 1)):
        write(tmp_path / place, problem="import helper", helper="from deep import more", deep__more=f"x = {number}",
              a="y")
    keys = {entry.id: entry.key({}, ()) for entry in find_entries(tmp_path, tmp_path / "texts")}
    assert list(keys) == ["p1/a", "p2/a", "p3/a"] and keys["p1/a"] == keys["p3/a"] != keys["p2/a"]


@pytest.mark.parametrize(("line", "words"), [
    ("{", "no JSON"), ("[]", "no object"), ('{"problem": "model.py"}', "no object"),
    ('{"problem": "model.py", "candidate": "a.py", "more": 1}', "no object"),
    ('{"problem": "model.py", "candidate": 3}', "no object"),
    ('{"problem": "model.py", "candidate": "none.py"}', "There is no candidate"),
    ('{"problem": "model.py", "candidate": "model.py"}', "is the model's own file"),
    ('{"problem": "none.py", "candidate": "a.py"}', "There is no file"),
    ('{"problem": "model.py", "candidate": "a.py", "id": "first"}', "is that of line 1")])
def test_a_line_that_says_nothing_is_named_before_anything_runs(line: str, words: str, tmp_path: Path) -> None:
    write(tmp_path, model="m = 1", a="1")
    (tmp_path / "set.jsonl").write_text('{"problem": "model.py", "candidate": "a.py", "id": "first"}\n' + line)
    with pytest.raises(errors.SetUnreadable, match=r"Line 2 of .*set\.jsonl") as found:
        find_entries(tmp_path / "set.jsonl", tmp_path / "texts")
    assert words in str(found.value)


# ---- each is judged once ---------------------------------------------------------------------------------


def test_every_candidate_has_its_record_and_the_same_command_judges_nothing_again(judging: SimpleNamespace) -> None:
    write(judging.folder, p1__problem="m = 1", p1__a="verdict = 'OK'", p1__b="verdict = 'WRONG-NUMERIC'",
          p1__copy="verdict = 'OK'", p2__problem="m = 2", p2__a="verdict = 'OK'")
    result = judging.run()
    assert [(r["id"], r["verdict"]) for r in result.records] == [
        ("p1/a", "OK"), ("p1/b", "WRONG-NUMERIC"), ("p1/copy", "OK"), ("p2/a", "OK")]
    assert result.judged == 3 and result.exit_status == 1, "equal texts are judged once"
    assert [r["same_as"] for r in result.records] == [None, None, "p1/a", None]
    assert begun(judging.folder / "p1") == {"a": 1, "b": 1} and begun(judging.folder / "p2") == {"a": 1}
    lines = [json.loads(line) for line in (result.folder / FILE).read_text().splitlines()]
    assert lines == judging.told and {record["id"] for record in lines} == {r["id"] for r in result.records}

    again = judging.run()
    assert again.judged == 0 and again.records == result.records and list(judging.told) == list(result.records)
    assert begun(judging.folder / "p1") == {"a": 1, "b": 1}
    # Another text, another name of a known one, and other settings.
    write(judging.folder, p1__b="verdict = 'OK-BUT'", p1__third="verdict = 'OK'")
    changed = judging.run()
    assert changed.judged == 1 and [r["verdict"] for r in changed.records] == ["OK", "OK-BUT", "OK", "OK", "OK"]
    assert begun(judging.folder / "p1") == {"a": 1, "b": 2}
    assert judging.run(settings=JudgeSettings(target="cpp", verdict_only=True)).judged == 3
    assert judging.run(force=True).judged == 3 and judging.run().judged == 0


def test_what_was_the_judges_own_doing_is_judged_again(judging: SimpleNamespace) -> None:
    write(judging.folder, p__problem="m = 1", p__a="verdict = 'JUDGE-BUSY'", p__b="verdict = 'JUDGE-NO-DEVICE'")
    assert judging.run().exit_status == 3
    assert judging.run().judged == 1 and begun(judging.folder / "p") == {"a": 2, "b": 1}


def test_a_process_that_dies_costs_the_candidate_that_it_was_at_alone(judging: SimpleNamespace) -> None:
    texts = {f"p__c{number}": f"x = {number}" for number in range(6)}
    write(judging.folder, p__problem="m = 1", **texts, p__c3_dies=DIES)
    result = judging.run()
    by_id = {record["id"]: record for record in result.records}
    assert by_id.pop("p/c3_dies")["verdict"] == "JUDGE-ERROR"
    assert {record["verdict"] for record in by_id.values()} == {"OK"}
    assert begun(judging.folder / "p") == {**{f"c{n}": 1 for n in range(6)}, "c3_dies": MOST_ATTEMPTS}
    dead, = (r for r in result.records if r["verdict"] == "JUDGE-ERROR")
    assert "ended with status 7" in dead["result"]["reason"] and dead["error"]["code"] == "KW604"
    assert dead["attempts"] == MOST_ATTEMPTS


def test_while_times_are_taken_it_may_have_been_any_of_them(judging: SimpleNamespace) -> None:
    """A process that ends in the stage of times: all that began and have no result run by themselves."""
    dies_together = ("key = task['candidates'][{place}]['key']\n"
                     "if len(task['candidates']) > 1:\n"
                     "    import os\n"
                     "    other = task['candidates'][1]['key']\n"
                     "    progress.say_line(say='part', part={{'kind': 'begun', 'key': other}})\n"
                     "    progress.say_line(say='stage', stage='time')\n"
                     "    os._exit(1)\n")
    write(judging.folder, p__problem="m = 1", p__a=dies_together.format(place=0), p__b="y = 1", p__c="y = 2")
    result = judging.run()
    assert [record["verdict"] for record in result.records] == ["OK", "OK", "OK"]
    jobs = {record["id"]: record["job"] for record in result.records}
    assert len(set(jobs.values())) == 3, "the suspects alone, and what had not begun"


def test_who_has_too_little_memory_beside_others_is_judged_by_itself(judging: SimpleNamespace) -> None:
    """Its own verdict holds there, whatever it is, and comes once; what is judged by one process needs no other."""
    says = "verdict = 'CRASH-MEMORY' if task['on_machine'] > 1 else '{alone}'"
    write(judging.folder, p__problem="m = 1", p__a=says.format(alone="OK"), p__b="x = 1",
          p__c=says.format(alone="CRASH-MEMORY"), p__d="x = 2")
    result = judging.run()
    assert [r["verdict"] for r in result.records] == ["OK", "OK", "CRASH-MEMORY", "OK"]
    assert begun(judging.folder / "p") == {"a": 2, "b": 1, "c": 2, "d": 1} and result.judged == 4
    assert [r["id"] for r in judging.told][:2] == ["p/b", "p/d"]
    assert judging.run(force=True, workers=1).judged == 4
    assert begun(judging.folder / "p") == {"a": 3, "b": 2, "c": 3, "d": 2}


def test_a_profile_that_has_too_little_memory_is_made_by_itself(judging: SimpleNamespace) -> None:
    write(judging.folder, p__problem="m = 'fits alone'", p__a="x = 1", p__b="x = 2")
    assert [r["verdict"] for r in judging.run().records] == ["OK", "OK"]
    assert begun(judging.folder / "p") == {"a": 1, "b": 1}


#: Starts a process in a session of its own, as candidates have, and waits until it was seen.
STARTS = """
import subprocess, sys, time
from pathlib import Path
folder = Path(task["path"]).parents[1]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
(folder / "child.part").write_text(str(child.pid))
(folder / "child.part").rename(folder / "child")
while not (folder / "seen").exists():
    time.sleep(0.01)
child.kill()
"""
#: Has the device to itself meanwhile.
MEASURES = """
import time
from pathlib import Path
from kernelwright import device_lock
from kernelwright.suite import processes
folder = Path(task["path"]).parents[1]
while not (folder / "child").exists():
    time.sleep(0.01)
child = int((folder / "child").read_text())
with device_lock.locked_device():
    until = time.monotonic() + 60
    while processes.state(child) != "T" and time.monotonic() < until:
        time.sleep(0.01)
    verdict = "OK" if processes.state(child) == "T" else "WRONG-NUMERIC"
(folder / "seen").touch()
"""


def test_while_one_measures_all_that_others_have_started_stands_still(judging: SimpleNamespace) -> None:
    write(judging.folder, p1__problem="m = 1", p1__starts=STARTS, p2__problem="m = 2", p2__measures=MEASURES)
    assert [r["verdict"] for r in judging.run().records] == ["OK", "OK"]


def test_a_broken_problem_ends_no_run(judging: SimpleNamespace) -> None:
    write(judging.folder, p1__problem="broken", p1__a="x = 1", p1__b="x = 2", p2__problem="m = 1", p2__a="x = 1")
    result = judging.run()
    assert [r["verdict"] for r in result.records] == ["JUDGE-ERROR", "JUDGE-ERROR", "OK"]
    broken = result.records[0]
    assert broken["error"]["code"] == "KW103" and "It is broken." in broken["result"]["reason"]
    assert broken["result"]["fix"] == "Mend it." and result.exit_status == 3


def test_a_run_that_is_killed_goes_on_where_it_was(judging: SimpleNamespace, tmp_path: Path) -> None:
    waits = "import time\nwhile not (__import__('pathlib').Path(task['path']).parent / 'go').exists(): time.sleep(0.05)"
    write(judging.folder, p__problem="m = 1", p__a="x = 1", p__b="x = 2", p__c=waits)
    code = ("import sys; from pathlib import Path\n"
            "from kernelwright.judge.settings import JudgeSettings\n"
            "from kernelwright.suite import judge_runner\n"
            "from kernelwright.suite.options import SuiteOptions\n"
            "judge_runner.WORK = 'suite_work:judge'\n"
            "judge_runner.judge_set(Path(sys.argv[1]), JudgeSettings(target='cpp'), SuiteOptions(\n"
            "    output=Path(sys.argv[2]), devices=('cpu',), workers=2))\n")
    path = os.pathsep.join([str(ROOT), str(TESTS / "support")])
    started = subprocess.Popen([sys.executable, "-c", code, str(judging.folder), str(tmp_path / "out")],
                               env={**os.environ, "PYTHONPATH": path})
    results = tmp_path / "out" / FILE
    while begun(judging.folder / "p")["c"] == 0 or results.read_bytes().count(b"\n") < 2:
        assert started.poll() is None
        time.sleep(0.05)
    started.send_signal(signal.SIGKILL)
    started.wait()
    with open(results, "ab") as stream:
        stream.write(b'{"schema":1,"key":"torn')
    (judging.folder / "p" / "go").touch()
    result = judging.run()
    assert [r["verdict"] for r in result.records] == ["OK", "OK", "OK"] and result.judged == 1
    assert begun(judging.folder / "p") == {"a": 1, "b": 1, "c": 2}


def test_a_full_disk_loses_nothing_that_was_told(judging: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    write(judging.folder, p__problem="m = 1", **{f"p__c{number}": f"x = {number}" for number in range(4)})
    append, written = Lines.append, []

    def full(self: Lines, record: Mapping[str, Any]) -> None:
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(record["id"])
        append(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(Lines, "append", full)
        with pytest.raises(OSError, match="No space left"):
            judging.run()
        assert [record["id"] for record in judging.told] == written
    result = judging.run()
    assert result.judged == 2 and {r["verdict"] for r in result.records} == {"OK"}
    assert all(begun(judging.folder / "p")[Path(name).name] == 1 for name in written)


# ---- processes that are in no session of the worker ------------------------------------------------------

#: Starts a process in a session of its own, as the judge's candidates are, and says its number; that one says whether
#: it runs by what it writes.
FAMILY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time\\nwhile True: time.sleep(0.01)"], start_new_session=True)
time.sleep(3600)
"""


@pytest.fixture
def worker(tmp_path: Path) -> WorkerProcess:
    """A worker process in whose place a process with a descendant in another session runs."""
    made = object.__new__(WorkerProcess)
    made.process = subprocess.Popen([sys.executable, "-c", FAMILY], start_new_session=True)
    made.pid, made.stopped_since, made.paused_since, made.waiting = made.process.pid, None, None, None
    made.stopped = made.paused = 0.0
    made.paused_memory = bytearray(8)
    while len(processes.family(made.pid)) < 2:
        time.sleep(0.01)
    yield made
    processes.end_session(made.pid, "no token")
    made.process.wait()


def until(condition: Any) -> None:
    """Wait for what must come to be."""
    while not condition():
        time.sleep(0.01)


def test_all_that_descends_from_a_worker_is_stopped_and_goes_on(worker: WorkerProcess) -> None:
    other, = set(processes.family(worker.pid)) - {worker.pid}
    assert other not in processes.sessions()[worker.pid]
    worker.stop(group=True)
    until(lambda: {processes.state(p) for p in (worker.pid, other)} == {"T"})
    worker.resume()
    until(lambda: "T" not in {processes.state(p) for p in (worker.pid, other)})
    # What rests anyway, as a candidate while another is timed, is not woken.
    os.kill(other, signal.SIGSTOP)
    until(lambda: processes.state(other) == "T")
    worker.stop(group=True)
    until(lambda: processes.state(worker.pid) == "T")
    worker.resume()
    until(lambda: processes.state(worker.pid) != "T")
    assert processes.state(other) == "T"
    processes.end_session(worker.pid, "no token")
    until(lambda: processes.state(other) in ("Z", "X", ""))


# ---- the whole -------------------------------------------------------------------------------------------

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.softmax(self.norm(x), dim=1)

def get_inputs():
    return [torch.rand(16, 32)]

def get_init_inputs():
    return [32]
"""


@pytest.mark.slow
def test_the_command_streams_verdicts_and_ends_with_a_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                              capfd: pytest.CaptureFixture[str]) -> None:
    right = MODEL.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    write(tmp_path / "set", p__problem=MODEL, p__right=right, p__wrong=right.replace("dim=1", "dim=0"), p__text="x = (",
          broken__problem="import torch\nclass Model(:\n", broken__a=right)
    command = ["judge", "--set", "set", "-o", "out", "--verdict-only", "--effort", "quick", "--devices", "cpu",
               "--workers", "1", "--seed", "5", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.run([sys.executable, "-m", "kernelwright", *command], cwd=tmp_path, env=environment,
                           capture_output=True, text=True, check=False)
    assert first.returncode == 3, first.stderr
    *records, summary = [json.loads(line) for line in first.stdout.splitlines()]
    for record in (*records, summary):
        assert_fits(record, "judged")
    assert {r["id"]: r["verdict"] for r in records} == {
        "p/right": "OK", "p/wrong": "WRONG-NUMERIC", "p/text": "BUILD-SYNTAX", "broken/a": "JUDGE-ERROR"}
    assert summary["candidates"] == 4 and summary["judged"] == 4 and summary["exit_status"] == 3
    assert "4/4] " in first.stderr and " left" in first.stderr
    assert list((tmp_path / "out" / "profiles").glob("*.profile")), "the next process need not make it"
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    status = cli.run([*command, "--filter", "p/*"])
    *again, summary = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert summary["judged"] == 0 and status == 1
    assert sorted(r["id"] for r in again) == ["p/right", "p/text", "p/wrong"] and all(r in records for r in again)
