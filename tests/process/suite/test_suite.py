"""The suite runner: one process per problem, limits, resume, and the lock on a device."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from clocks import PATIENCE
from machine import knows_the_machine
from places import ROOT, TESTS
from schemas import assert_fits

from kernelwright import cli, device_lock, errors
from kernelwright.progress import Progress
from kernelwright.settings import Settings
from kernelwright.suite import processes
from kernelwright.suite.device_queue import DeviceQueue
from kernelwright.suite.jobs import find_jobs, longest_first
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.results import FILE, Results, read_results
from kernelwright.suite.runner import run_locally, run_suite
from kernelwright.suite.scheduler import Scheduler
from kernelwright.suite.worker import _short_of_memory
from kernelwright.suite.worker_process import WorkerProcess

HERE = TESTS / "support"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find suite_work."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def write(folder: Path, **texts: str) -> Path:
    """Problem files by name; two underscores stand for a subfolder."""
    for name, text in texts.items():
        file = folder / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return folder


def options(folder: Path, **changes: object) -> SuiteOptions:
    """Options of a run on the CPU whose work is to execute the problem files."""
    given = {"output": folder / "out", "work": "suite_work:run", "devices": ("cpu",), "limit": 30.0, "workers": 2}
    return SuiteOptions(**{**given, **changes})


def run(folder: Path, **changes: object) -> dict[str, dict]:
    """Run the problems of a folder; the records by problem."""
    chosen = options(folder, **changes)
    records: list[dict] = []
    run_locally(find_jobs(folder, (), chosen.output), chosen, records.append, Progress())
    assert len({record["problem"] for record in records}) == len(records)
    return {record["problem"]: record for record in records}


def on_one_device(folder: Path, queue: DeviceQueue, workers: int) -> dict[str, dict]:
    """Run all problems of a folder on one device with several workers."""
    chosen = options(folder)
    chosen.output.mkdir()
    records: dict[str, dict] = {}
    scratch = folder / "scratch"
    scratch.mkdir()
    scheduler = Scheduler([queue], chosen, chosen.output, scratch, workers,
                          lambda record: records.update({record["problem"]: record}))
    try:
        scheduler.add(find_jobs(folder, (), chosen.output))
        while scheduler.open:
            scheduler.step()
    finally:
        scheduler.close()
    assert not scratch.exists()
    return records


def journal(folder: Path) -> list[tuple[float, str, str]]:
    """The notes of all problems in order."""
    lines = [line.split(" ", 2) for line in (folder / "journal.txt").read_text().splitlines()]
    return sorted((float(when), who, what) for when, who, what in lines)


# ---- which problems --------------------------------------------------------------------------------


def test_problems_are_found_in_natural_order(tmp_path):
    write(tmp_path, level1__10_b="", level1__2_a="", level2__1_c="", level1__2_a_new="", level1__other_new="",
          **{"_helper": "", ".hidden__x": "", "out__y": ""})
    jobs = find_jobs(tmp_path, without=tmp_path / "out")
    assert [job.problem for job in jobs] == ["level1/2_a", "level1/10_b", "level1/other_new", "level2/1_c"]
    assert [job.level for job in jobs] == ["level1", "level1", "level1", "level2"]
    assert [job.problem for job in find_jobs(tmp_path / "level1" / "2_a.py")] == ["2_a"]
    assert find_jobs(tmp_path / "level1")[0].level == "level1"
    chosen = find_jobs(tmp_path, ["level2/*", "10_"], tmp_path / "out")
    assert [job.problem for job in chosen] == ["level1/10_b", "level2/1_c"]


def test_no_problem_is_a_coded_error(tmp_path):
    with pytest.raises(errors.NoProblems):
        find_jobs(write(tmp_path, _helper=""))
    with pytest.raises(errors.NoProblems, match="has no problem"):
        find_jobs(write(tmp_path, a=""), ["b"])
    with pytest.raises(errors.FileMissing):
        find_jobs(tmp_path / "none")


def test_what_took_long_starts_first(tmp_path):
    jobs = find_jobs(write(tmp_path, a="", b="1", c="", d="1 + 1"))
    assert [job.problem for job in longest_first(jobs, {"c": 3.0})] == ["c", "d", "b", "a"]


@pytest.mark.parametrize("wrong", [{"runner": "x"}, {"workers": 0}, {"limit": 0.0}, {"limit": float("nan")},
                                   {"devices": ("0", "0")}, {"devices": ("x",)}, {"memory": -1.0},
                                   {"resume": True, "force": True}])
def test_wrong_options_are_coded_errors(wrong):
    with pytest.raises(errors.InvalidOption):
        SuiteOptions(**wrong)


class Watching(Progress):
    """Keeps what it was told of problems that run."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def working(self, text: str, done: int, total: int) -> None:
        self.seen.append((text, done, total))


def test_what_runs_is_shown(tmp_path):
    """Which problems, at which stage, how many of all are done, and about how long the rest takes."""
    chosen = options(write(tmp_path, a="time.sleep(0.5)", b="time.sleep(0.5)", c="time.sleep(0.5)"), workers=1)
    watching = Watching()
    run_locally(find_jobs(tmp_path, (), chosen.output), chosen, lambda record: None, watching)
    said = [(done, text) for text, done, total in watching.seen if total == 3]
    assert len(said) == len(watching.seen) and {done for done, _ in said} == {0, 1, 2}
    for done, name in enumerate("abc"):
        assert any(text.startswith(f"{name}: build") for at, text in said if at == done)
    assert all(("left" in text) is (done > 0) for done, text in said)


# ---- results on disk -------------------------------------------------------------------------------


def test_results_survive_a_torn_line(tmp_path):
    jobs = find_jobs(write(tmp_path / "p", a="", b="", c=""))
    settings = Settings()
    record = {"problem": "a", "state": "verified", "sha256": jobs[0].sha256, "settings": {"seed": 0}, "seconds": 1.0}
    results = Results(tmp_path / "out")
    results.add(record)
    with pytest.raises(errors.ResultsExist, match="in use"):
        Results(tmp_path / "out", resume=True)
    results.close()
    with open(tmp_path / "out" / FILE, "a") as stream:
        stream.write('{"problem": "b", "state"')
    with pytest.raises(errors.ResultsExist, match="has results"):
        Results(tmp_path / "out")
    results = Results(tmp_path / "out", resume=True)
    assert [job.problem for job in results.missing(jobs, {"seed": 0})] == ["b", "c"]
    results.add({**record, "problem": "b"})
    results.close()
    assert list(read_results(tmp_path / "out" / FILE)) == ["a", "b"]
    (tmp_path / "p" / "a.py").write_text("changed")
    results = Results(tmp_path / "out", resume=True)
    assert [job.problem for job in results.missing(find_jobs(tmp_path / "p"), {"seed": 0})] == ["a", "c"]
    with pytest.raises(errors.ResultsDiffer, match="seed 0, now 1"):
        results.missing(jobs, {"seed": 1})
    results = Results(tmp_path / "out", force=True)
    assert results.records == {} and results.seconds["a"] == 1.0 and settings.seed == 0
    results.close()
    assert (tmp_path / "out" / FILE).read_bytes() == b""


# ---- what happens to one problem is its own affair ---------------------------------------------------

CHILD = """
    import subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    note(f"child {child.pid}")
    """


def test_each_problem_for_itself(tmp_path):
    write(tmp_path,
          good="import os; note(f'pid {os.getpid()}')",
          wrong="outcome['state'] = 'failed'",
          aborts="import os\nprint('last words', flush=True)\nos.abort()",
          leaves="import os\nos._exit(3)",
          raises="raise KeyError('lost')",
          hangs=textwrap.dedent(CHILD) + "time.sleep(600)",
          deaf="import signal\nfor s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, signal.SIG_IGN)\n"
               "while True: pass")
    records = run(tmp_path, limit=4.0)
    states = {name: record["state"] for name, record in records.items()}
    assert states == {"good": "verified", "wrong": "failed", "aborts": "crashed", "leaves": "crashed",
                      "raises": "crashed", "hangs": "timeout", "deaf": "timeout"}
    assert records["aborts"]["error"]["code"] == "KW604" and "SIGABRT" in records["aborts"]["error"]["what"]
    assert "last words" in (tmp_path / "out" / records["aborts"]["log"]).read_text()
    assert "Fatal Python error: Aborted; File" in records["aborts"]["error"]["why"]
    assert "status 3" in records["leaves"]["error"]["what"]
    assert "KeyError: 'lost'" in records["raises"]["error"]["why"]
    assert records["hangs"]["error"]["code"] == "KW605" and records["hangs"]["stage"] == "build"
    # Before it is ended it shows where it was.
    assert "suite_work.py" in (tmp_path / "out" / "logs" / "hangs.log").read_text()
    # A file stands in the folder only where it is verified.
    assert [p.name for p in (tmp_path / "out").glob("*.py")] == ["good_new.py"]
    assert records["good"]["emitted"] == "good_new.py" and records["good"]["log"] is None
    assert [p.name for p in (tmp_path / "out").glob("*_new.html")] == ["good_new.html"] == [
        record["page"] for record in records.values() if record["page"]]
    child = next(int(what.split()[1]) for _, _, what in journal(tmp_path) if what.startswith("child"))
    assert processes.state(child) in ("", "Z", "X"), "what a problem starts in a session of its own is ended, too"
    for record in records.values():
        assert_fits(record, "results")


def test_memory_limit_and_another_try_alone(tmp_path):
    write(tmp_path, large="x = bytearray(800 << 20)\nx[::4096] = b'1' * len(x[::4096])\ntime.sleep(20)")
    record = run(tmp_path, memory=0.4)["large"]
    assert record["state"] == "memory" and record["error"]["code"] == "KW606" and record["attempts"] == 1
    assert record["peak_host_bytes"] > 0.4 * 2**30
    write(tmp_path, large="""
        import pathlib
        tried = pathlib.Path(task["path"]).with_suffix(".tried")
        if not tried.exists():
            tried.write_text("")
            time.sleep(1)
            outcome |= {"state": "memory", "short_of_memory": True, "error": {"code": "KW115", "what": "not on cuda:0"}}
        note("begin"); time.sleep(0.3); note("end")
        """, other1="note('begin'); time.sleep(1.5); note('end')", other2="note('begin'); time.sleep(1.5); note('end')")
    records = run(tmp_path, force=True)
    assert records["large"]["state"] == "verified"
    assert records["large"]["attempts"] == 2 and records["large"]["alone"]
    assert records["other1"]["attempts"] == records["other2"]["attempts"] == 1
    notes = journal(tmp_path)
    # The second try began after everything else had ended.
    assert [who for _, who, _ in notes][-2:] == ["large", "large"] and notes[-2][2] == "begin"


@pytest.mark.parametrize(("reason", "short"), [
    ("AcceleratorError: CUDA error: out of memory", True), ("OutOfMemoryError: CUDA out of memory.", True),
    ("InductorError: RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
    ("compilation took longer than 120 s", False)])
def test_a_baseline_without_memory(reason, short):
    untimed = {"timing": None}
    assert not _short_of_memory({"modes": [untimed]})
    assert _short_of_memory({"modes": [untimed, {"timing": {"failures": {"compile": reason}}}]}) is short
    refused = {"timing": None, "kept": [{"operator": "linear", "reason": f"not accurate enough: against {reason}"}]}
    assert _short_of_memory({"modes": [refused]}) is short


# ---- the lock on a device -----------------------------------------------------------------------------------------

MEASURES = """
    import threading
    going = True
    def tick():
        while going:
            note("tick"); time.sleep(0.005)
    thread = threading.Thread(target=tick); thread.start()
    time.sleep(0.2)
    for _ in range(3):
        with device_lock.locked_device():
            note("begin"); time.sleep(0.15); note("end")
        time.sleep(0.05)
    going = False; thread.join()
    """


def disturbed(notes: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Notes of others between somebody's begin and end."""
    holder, found = None, []
    for when, who, what in notes:
        if holder is not None and who != holder:
            found.append((when, who, what))
        if what == "begin":
            holder = who
        elif what == "end":
            holder = None
    return found


@pytest.mark.parametrize("kind", ["cpu", "cuda:0"])
def test_nothing_else_runs_while_one_measures(tmp_path, kind):
    write(tmp_path, a=MEASURES, b=MEASURES, c=MEASURES)
    records = on_one_device(tmp_path, DeviceQueue(kind, {}, stops_groups=kind == "cpu"), 3)
    assert all(record["state"] == "verified" for record in records.values())
    notes = journal(tmp_path)
    assert sum(what == "begin" for _, _, what in notes) == 9
    assert disturbed(notes) == []


# Nobody is stopped before all have begun, nor between its last request and the end of its process.
TELLS = """
    from pathlib import Path
    requests = []
    def wait(step, *arguments):
        asked = time.monotonic()
        step(*arguments)
        requests.append((asked, time.monotonic()))
    Path(task["path"]).with_suffix(".begun").touch()
    while len(list(Path(task["path"]).parent.glob("*.begun"))) < 3:
        time.sleep(0.01)
    for _ in range(3):
        lock = device_lock.locked_device()
        wait(lock.__enter__)
        time.sleep(0.15)
        lock.__exit__(None, None, None)
        time.sleep(0.05)
        away = device_lock.without_device()
        away.__enter__()
        time.sleep(0.02)
        wait(away.__exit__, None, None, None)
    device_lock.kept = device_lock.locked_device()
    wait(device_lock.kept.__enter__)
    outcome["result"] = {"paused": device_lock.paused_seconds(), "requests": requests}
    """


@pytest.mark.parametrize("kind", ["cpu", "cuda:0"])
def test_scheduler_and_process_agree_on_what_was_stopped(tmp_path, monkeypatch, kind):
    """Both count the same stops. Of a wait a process sees all, the scheduler what is between hearing of it and ending
    it: what they tell differs by what messages took, however long that was."""
    heard: dict[int, list[float]] = {}
    ended: dict[int, list[float]] = {}
    messages, go = WorkerProcess.messages, WorkerProcess.go

    def hear(worker):
        for message in messages(worker):
            yield message
            if message.get("say") in ("lock", "return"):
                heard.setdefault(worker.pid, []).append(time.monotonic())

    def let_go(worker):
        ended.setdefault(worker.pid, []).append(time.monotonic())
        go(worker)

    monkeypatch.setattr(WorkerProcess, "messages", hear)
    monkeypatch.setattr(WorkerProcess, "go", let_go)
    write(tmp_path, a=TELLS, b=TELLS, c=TELLS)
    records = on_one_device(tmp_path, DeviceQueue(kind, {}, stops_groups=kind == "cpu"), 3)
    rounding = 0.001
    # Whoever measures first, the two others are stopped meanwhile.
    assert sorted(record["stopped_seconds"] for record in records.values())[1] > 0.15 - rounding
    for record in records.values():
        told, paused, pid = record["result"], record["stopped_seconds"], record["worker"]
        waits = list(zip(told["requests"], heard[pid], ended[pid], strict=True))
        assert len(waits) == 7
        under_way = sum(there - asked + back - answered for (asked, back), there, answered in waits)
        assert paused - rounding < told["paused"] < paused + under_way + rounding
        assert paused < record["seconds"]


def test_looking_for_processes_is_nobodys_time(tmp_path, monkeypatch):
    """However long it takes to find all that belongs to a process: what it does until it is stopped is not taken for a
    pause, so that its clock never goes back, and what its end takes is not its problem's time."""
    sessions, end, end_session = processes.sessions, WorkerProcess.end, processes.end_session
    started: dict[int, float] = {}
    ending: dict[int, float] = {}

    def find() -> dict[int, list[int]]:
        time.sleep(0.3)
        return sessions()

    def end_process(worker):
        started[worker.pid] = worker.started
        return end(worker)

    def end_all(leader, token):
        ending[leader] = time.monotonic()
        end_session(leader, token)

    monkeypatch.setattr(processes, "sessions", find)
    monkeypatch.setattr(processes, "end_session", end_all)
    monkeypatch.setattr(WorkerProcess, "end", end_process)
    write(tmp_path, looks="""
        from pathlib import Path
        Path(task["path"]).with_name("begun").touch()
        clock = []
        while not Path(task["path"]).with_name("measured").exists():
            clock.append(device_lock.clock()); time.sleep(0.002)
        clock.append(device_lock.clock())
        outcome["result"] = {"clock": clock}
        """, measures="""
        from pathlib import Path
        while not Path(task["path"]).with_name("begun").exists(): time.sleep(0.01)
        time.sleep(0.1)
        with device_lock.locked_device(): time.sleep(0.1)
        Path(task["path"]).with_name("measured").touch()
        """)
    records = on_one_device(tmp_path, DeviceQueue("cpu", {}, stops_groups=True), 2)
    clock = records["looks"]["result"]["clock"]
    assert records["looks"]["stopped_seconds"] > 0.0 and clock == sorted(clock)
    for record in records.values():
        assert record["seconds"] < ending[record["worker"]] - started[record["worker"]] + 0.001


def test_a_stop_between_two_looks_counts_once(monkeypatch):
    """What a process sees of its own time does not depend on where it is stopped."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = device_lock.DeviceLock(ours)
        now, stopped, looks = 100.0, 0.0, 0

        def monotonic() -> float:
            nonlocal now, stopped, looks
            looks += 1
            if looks % 3 == 1:  # stopped for seven seconds right before the clock is read
                now, stopped = now + 7.0, stopped + 7.0
            return now

        monkeypatch.setattr(device_lock.time, "monotonic", monotonic)
        monkeypatch.setattr(device_lock.DeviceLock, "paused_seconds", lambda self: stopped + self.waited)
        monkeypatch.setattr(device_lock, "_lock", line)
        assert [device_lock.clock() for _ in range(7)] == [100.0] * 7
        theirs.sendall(b'{"go": 1}\n')
        line._wait_for("lock")
        assert line.waited == 0.0 and looks > 9


def test_who_builds_goes_on_beside_a_measurement_on_a_gpu(tmp_path):
    write(tmp_path, builds="""
        from pathlib import Path
        begun = Path(task["path"]).with_name("begun")
        with device_lock.without_device():
            with device_lock.without_device():
                Path(task["path"]).with_name("away").touch()
                while not begun.exists(): time.sleep(0.01)
                for _ in range(50):
                    note("tick"); time.sleep(0.01)
                Path(task["path"]).with_name("ticked").touch()
        note("back")
        """, measures="""
        from pathlib import Path
        while not Path(task["path"]).with_name("away").exists(): time.sleep(0.01)
        with device_lock.locked_device(), device_lock.locked_device():
            note("begin")
            Path(task["path"]).with_name("begun").touch()
            while not Path(task["path"]).with_name("ticked").exists(): time.sleep(0.01)
            time.sleep(0.3)
            note("end")
        """)
    on_one_device(tmp_path, DeviceQueue("cuda:0", {}, stops_groups=False), 2)
    notes = journal(tmp_path)
    between = {what for _, _, what in disturbed(notes)}
    assert between == {"tick"}, "it built meanwhile, and came back to the device only afterwards"
    assert [what for _, _, what in notes][-1] == "back"


def test_a_holder_that_dies_or_hangs_holds_nobody_up(tmp_path):
    hold = "with device_lock.locked_device():\n    note('begin')\n"
    write(tmp_path, dies=hold + "    time.sleep(0.3)\n    import os; os.abort()",
          hangs=hold + "    time.sleep(600)",
          good="time.sleep(0.5)\nwith device_lock.locked_device():\n    note('good')",
          far="with device_lock.without_device():\n    time.sleep(0.1)\nnote('far')")
    records = run(tmp_path, limit=2.0, workers=4)
    assert {name: record["state"] for name, record in records.items()} == {
        "dies": "crashed", "hangs": "timeout", "good": "verified", "far": "verified"}
    # The limit of 2 s does not count what others held: whoever came last waited longer than that.
    assert max(record["stopped_seconds"] for record in records.values()) > 1.0


def test_an_interrupted_request_is_taken_back(tmp_path, monkeypatch):
    """An exception (an alarm, say) may come while a process waits for the device; the next answer is not the last's."""
    write(tmp_path, waits="""
        import signal
        from pathlib import Path
        class Late(BaseException): pass
        def late(number, frame): raise Late
        signal.signal(signal.SIGALRM, late)
        Path(task["path"]).with_name("there").touch()
        while not Path(task["path"]).with_name("begun").exists(): time.sleep(0.01)
        Path(task["path"]).with_name("asks").touch()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        before = device_lock.paused_seconds()
        try:
            with device_lock.locked_device(): note("too early")
        except Late: pass
        outcome["result"] = {"paused": device_lock.paused_seconds() - before}
        with device_lock.locked_device(): note("mine")
        """, holds="""
        from pathlib import Path
        while not Path(task["path"]).with_name("there").exists(): time.sleep(0.01)
        with device_lock.locked_device():
            note("begin")
            Path(task["path"]).with_name("begun").touch()
            while not Path(task["path"]).with_name("asks").exists(): time.sleep(0.01)
            time.sleep(3.0)
            note("end")
        """)
    # As on a GPU, but without stopping: an alarm does not reach a stopped process.
    monkeypatch.setattr(DeviceQueue, "must_rest", lambda self, worker: False)
    records = on_one_device(tmp_path, DeviceQueue("cuda:0", {}, stops_groups=False), 2)
    assert [what for _, _, what in journal(tmp_path)] == ["begin", "end", "mine"]
    assert records["waits"]["result"]["paused"] > 0.0, "it waited until the alarm"


def test_outside_of_a_suite_there_is_nothing_to_wait_for():
    began = device_lock.clock()
    with device_lock.locked_device(), device_lock.without_device(), device_lock.locked_device():
        pass
    assert device_lock.paused_seconds() == 0.0 and 0.0 <= device_lock.clock() - began < 1.0


def test_nobody_comes_back_early_and_a_child_has_no_line(tmp_path):
    """An exception while waiting to come back is raised once the device is free; a forked child asks for nothing."""
    write(tmp_path, builds="""
        import os, signal
        from pathlib import Path
        class Late(BaseException): pass
        def late(number, frame): raise Late
        signal.signal(signal.SIGALRM, late)
        try:
            with device_lock.without_device():
                Path(task["path"]).with_name("away").touch()
                while not Path(task["path"]).with_name("begun").exists(): time.sleep(0.01)
                signal.setitimer(signal.ITIMER_REAL, 0.2)
            time.sleep(60)
        except Late:
            note("late")
        child = os.fork()
        if child == 0:
            with device_lock.locked_device(): os._exit(7)
        note(f"child {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")
        """, measures="""
        from pathlib import Path
        while not Path(task["path"]).with_name("away").exists(): time.sleep(0.01)
        with device_lock.locked_device():
            note("begin")
            Path(task["path"]).with_name("begun").touch()
            time.sleep(1.2)
            note("end")
        """)
    on_one_device(tmp_path, DeviceQueue("cuda:0", {}, stops_groups=False), 2)
    assert [what for _, _, what in journal(tmp_path)] == ["begin", "end", "late", "child 7"]


# ---- the whole of it -------------------------------------------------------------------------------

TINY_PROBLEM = """
    import torch
    from torch import nn
    width = 10**9
    TINY = {"width": 64}
    class Model(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.scale = nn.Parameter(torch.rand(features))
        def forward(self, x):
            return torch.relu(x * self.scale + 1.0).mean(1) / width
    def get_inputs():
        return [torch.rand(32, width)]
    def get_init_inputs():
        return [width]
    """


def bench(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process."""
    return subprocess.run([sys.executable, "-m", "kernelwright", "bench", *map(str, arguments)], cwd=folder,
                          capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **environment})


def test_command_resume_page_and_exit_status(tmp_path, monkeypatch, capfd):
    def again(*arguments: object) -> tuple[int, str, str]:
        """The command in this process: its exit status, and what it says."""
        capfd.readouterr()
        status = cli.run(["bench", *map(str, arguments)])
        torch._logging.set_logs()  # a command silences them, for as long as its process lives
        return status, *capfd.readouterr()

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(knows_the_machine(tmp_path / "cache")))
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "p", level1__2_good=TINY_PROBLEM, level1__10_aborts="import os\nos.abort()",
          level2__1_hangs="import time\ntime.sleep(600)", level2__2_not_tiny="import torch")
    common = ("p", "--tiny", "--effort", "quick", "--baselines", "none", "--target", "cpp", "-o", "out")
    done = bench(tmp_path, *common, "--filter", "level1", "--json")
    assert done.returncode == 1, done.stderr
    summary = json.loads(done.stdout)
    assert summary["states"] == {"verified": 1, "crashed": 1}
    assert_fits(summary, "bench")
    assert [entry["problem"] for entry in summary["problems"]] == ["level1/2_good", "level1/10_aborts"]
    emitted = tmp_path / "out" / "level1" / "2_good_new.py"
    assert "width = 64" in emitted.read_text()
    before = emitted.stat().st_mtime_ns
    assert again(*common)[0] == 2
    assert "KW603" in again(*common, "--resume", "--seed", 1)[2]
    status, out, err = again(*common, "--resume", "--limit", 4)
    assert status == 1 and "level2/1_hangs: timeout" in out, err
    records = read_results(tmp_path / "out" / FILE)
    assert {name: record["state"] for name, record in records.items()} == {
        "level1/2_good": "verified", "level1/10_aborts": "crashed", "level2/1_hangs": "timeout",
        "level2/2_not_tiny": "error"}
    assert records["level2/2_not_tiny"]["error"]["code"] == "KW119"
    good = records["level1/2_good"]
    assert good["result"]["modes"][0]["certificate"]["passed"] and "graph" not in good["result"]["modes"][0]
    assert good["settings"]["tiny"] and good["versions"]["torch"] and good["seconds"] > 0
    assert emitted.stat().st_mtime_ns == before, "a finished problem does not run again"
    page = (tmp_path / "out" / "page.html").read_text()
    assert "<html" in page and 'href="level1/2_good_new.html"' in page
    assert "2_good: C++ kernels for" in (tmp_path / "out" / good["page"]).read_text(encoding="utf-8")
    assert "KW601" in again("p", "--filter", "nothing")[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interruption_keeps_results_and_leaves_no_process(tmp_path, number):
    # b measures when c has begun, so that c is stopped when the end comes; and not before the first result is kept,
    # because a measurement stops whoever has not ended.
    measure = "from pathlib import Path\nbegun = Path(task['path']).with_name('c.begun')\n" \
              f"kept = Path(task['path']).parent.with_name('out') / {FILE!r}\n" \
              "while not (begun.exists() and kept.exists() and kept.stat().st_size): time.sleep(0.01)\n" \
              "with device_lock.locked_device():\n    time.sleep(600)"
    begin = "from pathlib import Path\nPath(task['path']).with_name('c.begun').touch()\ntime.sleep(600)"
    write(tmp_path / "p", a_long_first_name_that_ends="time.sleep(0.1)  # " + "x" * 500,
          b=textwrap.dedent(CHILD) + measure, c=textwrap.dedent(CHILD) + begin)
    code = ("import sys; from pathlib import Path; from kernelwright.suite.runner import run_suite\n"
            "from kernelwright.suite.options import SuiteOptions\n"
            "run_suite('p', SuiteOptions(output=Path('out'), work='suite_work:run', devices=('cpu',), workers=3))")
    runner = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE,
                              env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}",
                                   "TMPDIR": str(tmp_path)},
                              # Tests that run in the background inherit a SIGINT that is ignored.
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    file, notes = tmp_path / "out" / FILE, tmp_path / "p" / "journal.txt"
    deadline = time.monotonic() + 120  # three interpreters start, on two cores with other tests
    while not (file.exists() and file.read_bytes() and notes.exists() and notes.read_text().count("child") == 2):
        assert time.monotonic() < deadline and runner.poll() is None
        time.sleep(0.05)
    workers = [p for found in processes.sessions().values() for p in found if _parent(p) == runner.pid]
    assert len(workers) >= 2
    runner.send_signal(number)
    runner.wait(timeout=PATIENCE)
    runner.stderr.close()
    assert runner.returncode in (-number, 128 + number, 1)
    children = [int(what.split()[1]) for _, _, what in journal(tmp_path / "p") if what.startswith("child")]
    deadline = time.monotonic() + 120
    # What a worker started in another session survives only a runner that had no chance to look for it.
    watched = workers if number == signal.SIGKILL else workers + children
    while any(processes.state(p) not in ("", "Z", "X") for p in watched):
        assert time.monotonic() < deadline, "a process outlived the runner"
        time.sleep(0.05)
    for child in children:
        processes.send(child, signal.SIGKILL)
    assert [r["problem"] for r in read_results(file).values()] == ["a_long_first_name_that_ends"]
    assert run_suite_again(tmp_path) == {"a_long_first_name_that_ends", "b", "c"}


def run_suite_again(folder: Path) -> set[str]:
    """Resume with problems that end."""
    write(folder / "p", b="", c="")
    result = run_suite(folder / "p", options(folder, resume=True))
    assert result.ran == 2 and result.exit_status == 0
    return {record["problem"] for record in result.records}


def _parent(process: int) -> int:
    try:
        return int((Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.mark.gpu
def test_a_broken_context_costs_one_problem(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    breaks = TINY_PROBLEM.replace("return torch.relu", "x[torch.full((4,), 10**6, device=x.device)]; return torch.relu")
    write(tmp_path / "p", good1=TINY_PROBLEM, good2=TINY_PROBLEM.replace("relu", "sigmoid"), breaks=breaks)
    done = bench(tmp_path, "p", "--tiny", "--effort", "quick", "--workers", 3, "--devices", 0)
    records = read_results(tmp_path / "bench_results" / FILE)
    assert {name: record["state"] for name, record in records.items() if name != "breaks"} == {
        "good1": "verified", "good2": "verified"}, done.stderr
    assert records["breaks"]["state"] in ("crashed", "error")
    assert all(record["lane"] == "cuda:0" for record in records.values())
    assert records["good1"]["device_was_quiet"] and records["good2"]["device_was_quiet"]


def test_workers_that_cannot_start_end_the_run(tmp_path):
    write(tmp_path, a="")
    with pytest.raises(RuntimeError, match="do not start"):
        run(tmp_path, work="no_such_module:run")
