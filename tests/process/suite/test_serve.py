"""``kernelwright serve``: who may submit what, and that each submission is judged once, whatever becomes of processes,
clients, disks and the service. Candidates say their own verdicts; `test_serve_judge.py` has the judge's."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from clocks import PATIENCE
from places import ROOT, TESTS
from schemas import assert_fits
from serve_tools import PROBLEM, begun, client_of, noting, serving, until, waiting, write_tokens

from kernelwright.errors import ServiceFull
from kernelwright.serve import app, intake, judging
from kernelwright.serve.client import ServiceError
from kernelwright.serve.store import Store
from kernelwright.suite import processes

WRONG = "verdict = 'WRONG-NUMERIC'"


@pytest.fixture(autouse=True)
def _work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "support"))
    monkeypatch.delenv("KERNELWRIGHT_TOKEN", raising=False)


def asked(service: Any, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, dict, Any]:
    """The status, the headers and the body of the answer to a request."""
    connection = http.client.HTTPConnection(service.address.removeprefix("http://"), timeout=PATIENCE)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, dict(answer.headers), json.loads(content) if content else None


def refused(call: Any, status: int, code: str) -> ServiceError:
    """What a call of a client raises."""
    with pytest.raises(ServiceError) as found:
        call()
    assert (found.value.status, found.value.code) == (status, code)
    return found.value


# ---- submit, poll, stream --------------------------------------------------------------------------------


def test_a_submission_is_judged_once_however_often_it_comes(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with serving(tmp_path / "queue") as service:
        client = client_of(service)
        assert client.health()["status"] == "ok"
        first = client.submit(PROBLEM, noting(journal, "a"), effort="quick")
        states = [status["state"] for status in client.events(first["id"])]
        assert states[-1] == "done" and set(states) <= {"queued", "running", "done"}
        done = client.submit(PROBLEM, noting(journal, "a"), effort="quick")
        assert done["state"] == "done" and done["id"] == first["id"] and done["verdict"] == "OK"
        assert done["result"]["file"] == "candidate.py" and done["settings"]["effort"] == "quick"
        assert str(tmp_path / "queue") not in json.dumps(done)
        assert done["attempts"] == 1 and isinstance(done["seed"], int)
        wrong = client.judge(PROBLEM, noting(journal, "b", WRONG), effort="quick")
        assert wrong["verdict"] == "WRONG-NUMERIC" and wrong["id"] != first["id"]
        # Other options, and another seed, are another submission.
        for number, options in enumerate(({"effort": "normal"}, {"effort": "quick", "seed": 3}), start=1):
            other = client.judge(PROBLEM, noting(journal, "a"), **options)
            assert other["id"] != first["id"] and begun(journal).count("a") == 1 + number
        assert other["seed"] == 3
        listed = list(client.submissions())
        assert [one["verdict"] for one in listed] == ["OK", "WRONG-NUMERIC", "OK", "OK"]
        assert not any(one["result"] for one in listed) and list(client.submissions("queued")) == []
        status, _, body = asked(service, "GET", "/v1/submissions?most=3")
        assert status == 200 and len(body["submissions"]) == 3
        assert len(asked(service, "GET", f"/v1/submissions?after={body['next']}")[2]["submissions"]) == 1
        assert_fits({**done, "result": None}, "serve")
        assert_fits(asked(service, "GET", "/v1/submissions")[2], "serve")
        assert_fits(client.health(), "serve")
        assert_fits({"problem": "a", "candidate": "b", "options": {"effort": "quick", "seed": 3}}, "serve")
        client.delete(first["id"])
        refused(lambda: client.get(first["id"]), 404, "KW758")
    with serving(tmp_path / "queue") as service:
        assert len(list(client_of(service).submissions())) == 3 and len(begun(journal)) == 4
        assert not list((tmp_path / "queue" / judging.WORK_FOLDER).glob("*"))


def test_what_was_the_judges_own_doing_is_judged_again(tmp_path: Path) -> None:
    text = noting(tmp_path / "journal", "busy", "verdict = 'JUDGE-BUSY'")
    with serving(tmp_path / "queue") as service:
        client = client_of(service)
        assert client.judge(PROBLEM, text)["verdict"] == "JUDGE-BUSY"
        assert client.judge(PROBLEM, text)["verdict"] == "JUDGE-BUSY" and begun(tmp_path / "journal") == ["busy"] * 2


def test_what_is_no_submission_is_refused_with_a_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_BYTES", 1000)
    monkeypatch.setattr(app, "MOST_BYTES", 1000)
    with serving(tmp_path / "queue") as service:
        path, kind = "/v1/submissions", {"Content_Type": "application/json"}
        for body, words in ((b"{", "no JSON"), (b"[" * 900, "no JSON"), (b"[]", "no object"),
                            (b'{"problem": "a"}', "candidate is no text"),
                            (b'{"problem": " ", "candidate": "b"}', "problem is no text"),
                            (b'{"problem": "a", "candidate": "\\ud800"}', "half a character"),
                            (b'{"problem": "a", "candidate": "b", "more": 1}', "a field more"),
                            (b'{"problem": "a", "candidate": "b", "options": {"output": "/etc"}}', "option output"),
                            (b'{"problem": "a", "candidate": "b", "options": {"diagnose_budget": "x"}}', "another")):
            status, _, answer = asked(service, "POST", path, body, **kind)
            assert (status, answer["error"]["code"]) == (400, "KW756") and words in answer["error"]["what"], body
            assert_fits(answer, "serve")
        assert asked(service, "POST", path, b'{"problem": "a", "candidate": "b", "options": {"effort": 3}}',
                     **kind)[2]["error"]["code"] == "KW403"
        assert asked(service, "POST", path, b"{}")[2]["error"]["what"].endswith("application/json.")
        assert asked(service, "POST", path, b"x" * 1001, **kind)[0] == 413
        assert asked(service, "POST", path, iter([b"x" * 600] * 2), **kind)[0] == 413, "in pieces, of unknown length"
        assert asked(service, "GET", "/v1/nothing")[0] == 404 and asked(service, "PUT", path)[0] == 405
        assert asked(service, "GET", path, Host="a-page.example")[0] == 401, "a browser's page knows it by another name"
        assert service.store.counts() == {"queued": 0, "running": 0}


def test_problems_of_the_service_alone(tmp_path: Path) -> None:
    (tmp_path / "problems" / "level1").mkdir(parents=True)
    (tmp_path / "problems" / "level1" / "3.py").write_text(PROBLEM)
    with serving(tmp_path / "queue", problems=tmp_path / "problems") as service:
        client = client_of(service)
        assert client.judge("level1/3", "x = 1")["verdict"] == "OK"
        assert "level1/3" in refused(lambda: client.submit(PROBLEM, "x = 1"), 400, "KW756").what
        refused(lambda: client.submit("../problems/level1/3", "x = 1"), 400, "KW756")


def test_nobody_sees_what_another_submitted(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with serving(tmp_path / "queue", tokens=write_tokens(tmp_path / "tokens"), host="127.0.0.1") as service:
        ann, bob = client_of(service, "ann"), client_of(service, "bob")
        hers = ann.judge(PROBLEM, noting(journal, "x"))
        for call in (bob.get, bob.cancel, bob.delete, lambda name: list(bob.events(name))):
            refused(lambda call=call: call(hers["id"]), 404, "KW758")
        assert list(bob.submissions()) == []
        his = bob.submit(PROBLEM, noting(journal, "x"))
        assert his["id"] != hers["id"] and his["state"] != "done", "not even that it was there before"
        assert bob.wait(his["id"])["verdict"] == "OK" and begun(journal) == ["x", "x"]
        assert [one["id"] for one in ann.submissions()] == [hers["id"]]
        for wrong in ("", "a-token-of-ann-0124", "a-token"):
            refused(lambda wrong=wrong: client_of(service, wrong).get(hers["id"]), 401, "KW757")
        status, headers, _ = asked(service, "GET", "/v1/submissions")
        assert status == 401 and headers["www-authenticate"] == "Bearer"
        assert client_of(service, "nobody").health()["status"] == "ok"


def test_the_queue_is_limited_and_who_waits_for_few_comes_first(tmp_path: Path) -> None:
    journal, go = tmp_path / "journal", tmp_path / "go"
    tokens = write_tokens(tmp_path / "tokens")
    with serving(tmp_path / "queue", tokens=tokens, queue=4, workers=2) as service:
        ann, bob = client_of(service, "ann", patience=0.0), client_of(service, "bob", patience=0.0)
        held = [ann.submit(f"m = {n}\n", noting(journal, f"held{n}", waiting(go))) for n in range(2)]
        until(lambda: len(begun(journal)) == 2)
        more = [ann.submit(f"m = {n}\n", noting(journal, f"a{n}")) for n in range(3)]
        more.append(bob.submit(PROBLEM, noting(journal, "b")))
        assert ann.get(more[2]["id"])["position"] == 2
        error = refused(lambda: ann.submit(PROBLEM, noting(journal, "one too many")), 429, "KW759")
        assert 1 <= error.retry_after <= 300
        assert ann.submit("m = 0\n", noting(journal, "a0"))["state"] == "queued", "it is known"
        go.touch()
        for one in (*held, *more[:3]):
            assert ann.wait(one["id"])["verdict"] == "OK"
        assert bob.wait(more[3]["id"])["verdict"] == "OK"
        assert begun(journal).index("b") <= 3, "not behind all of hers"


# ---- cancel ----------------------------------------------------------------------------------------------


def test_what_is_cancelled_is_not_judged(tmp_path: Path) -> None:
    journal, go = tmp_path / "journal", tmp_path / "go"
    with serving(tmp_path / "queue", workers=1) as service:
        client = client_of(service)
        running = client.submit(PROBLEM, noting(journal, "held", waiting(go)))
        until(lambda: begun(journal) == ["held"])
        queued = client.submit(PROBLEM, noting(journal, "queued"))
        third = client.submit(PROBLEM, noting(journal, "third"))
        refused(lambda: client.delete(queued["id"]), 409, "KW762")
        assert client.cancel(queued["id"])["state"] == "cancelled"
        assert client.cancel(running["id"])["state"] == "cancelled"
        assert client.wait(third["id"])["verdict"] == "OK", "the process of the first was ended"
        assert begun(journal) == ["held", "third"]
        assert client.get(running["id"])["verdict"] is None and client.cancel(third["id"])["state"] == "done"
        # Submitted again, it is judged.
        go.touch()
        assert client.judge(PROBLEM, noting(journal, "queued"))["verdict"] == "OK"


def test_others_of_a_cancelled_ones_process_are_judged(tmp_path: Path) -> None:
    journal, go = tmp_path / "journal", tmp_path / "go"
    with serving(tmp_path / "queue", workers=1) as service:
        client = client_of(service)
        before = client.submit("m = 0\n", noting(journal, "before", waiting(go)))
        until(lambda: begun(journal) == ["before"])
        together = [client.submit(PROBLEM, noting(journal, f"c{n}", waiting(tmp_path / "more"))) for n in range(3)]
        go.touch()
        until(lambda: "c0" in begun(journal))
        assert [client.get(one["id"])["state"] for one in together] == ["running"] * 3
        client.cancel(together[0]["id"])
        (tmp_path / "more").touch()
        assert [client.wait(one["id"])["state"] for one in (before, *together)] == ["done", "cancelled", "done", "done"]
        assert [client.get(one["id"])["attempts"] for one in together[1:]] == [1, 1]


# ---- what ends early -------------------------------------------------------------------------------------


def test_a_killed_process_costs_nothing_once_and_twice_its_own_submission(tmp_path: Path) -> None:
    journal, go = tmp_path / "journal", tmp_path / "go"
    with serving(tmp_path / "queue", workers=1) as service:
        client = client_of(service)
        before = client.submit("m = 0\n", noting(journal, "before", waiting(go)))
        until(lambda: begun(journal))
        dies = client.submit(PROBLEM, noting(journal, "dies", "import os; os._exit(7)"))
        good = [client.submit(PROBLEM, noting(journal, f"c{n}")) for n in range(3)]
        killed = client.submit(PROBLEM, noting(journal, "killed", waiting(tmp_path / "more")))
        go.touch()
        until(lambda: "killed" in begun(journal))
        for process in Path("/proc").iterdir():
            if process.name.isdecimal() and b"kernelwright.suite.worker" in _command(process) and \
                    int((process / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                os.kill(int(process.name), signal.SIGKILL)
        (tmp_path / "more").touch()
        assert [client.wait(one["id"])["verdict"] for one in (before, *good, killed)] == ["OK"] * 5
        failed = client.wait(dies["id"])
        assert failed["state"] == "failed" and failed["error"]["code"] == "KW604" and failed["attempts"] == 2
        assert_fits(failed, "serve")
        counts = Counter(begun(journal))
        assert counts == {"before": 1, "dies": 2, "c0": 1, "c1": 1, "c2": 1, "killed": 2}
        assert client.submit(PROBLEM, noting(journal, "dies", "import os; os._exit(7)"))["state"] == "queued"


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_submission_has_its_time(tmp_path: Path) -> None:
    with serving(tmp_path / "queue", limit=3.0) as service:
        client = client_of(service)
        late, good = client.submit(PROBLEM, "import time; time.sleep(3600)"), client.submit("m = 2\n", "x = 1")
        assert client.wait(good["id"])["verdict"] == "OK"
        failed = client.wait(late["id"])
        assert failed["state"] == "failed" and failed["error"]["code"] == "KW605" and failed["attempts"] == 2


def test_a_problem_that_cannot_be_used_fails_at_once_with_its_own_error(tmp_path: Path) -> None:
    with serving(tmp_path / "queue") as service:
        failed = client_of(service).judge("broken", "x = 1")
        assert (failed["state"], failed["error"]["code"], failed["attempts"]) == ("failed", "KW103", 1)


# ---- the service ends, and its disk is full --------------------------------------------------------------


def test_what_runs_when_the_service_stops_is_judged_by_the_next(tmp_path: Path) -> None:
    journal, go = tmp_path / "journal", tmp_path / "go"
    with serving(tmp_path / "queue", workers=1) as service:
        client = client_of(service, patience=0.0)
        running = client.submit(PROBLEM, noting(journal, "held", waiting(go)))
        until(lambda: begun(journal))
        queued = client.submit(PROBLEM, noting(journal, "queued"))
    refused(lambda: client.get(running["id"]), 0, "")
    assert begun(journal) == ["held"]
    go.touch()
    with serving(tmp_path / "queue") as service:
        client = client_of(service)
        found = [client.wait(one["id"]) for one in (running, queued)]
    assert [(one["verdict"], one["attempts"]) for one in found] == [("OK", 1), ("OK", 1)]
    assert sorted(begun(journal)) == ["held", "held", "queued"]


#: A service in a process of its own, which says its address.
SERVES = """
import sys
from pathlib import Path
from kernelwright.progress import Progress
from kernelwright.serve.command import serve
serve(Progress(), lambda address: print(address, flush=True), port=0, folder=Path(sys.argv[1]), devices=("cpu",),
      workers=2, work="suite_work:judge")
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_service_that_is_ended_loses_nothing_and_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    from kernelwright.serve.client import Client

    journal, go = tmp_path / "journal", tmp_path / "go"
    path = os.pathsep.join([str(ROOT), str(TESTS / "support")])
    started = subprocess.Popen([sys.executable, "-c", SERVES, str(tmp_path / "queue")], stdout=subprocess.PIPE,
                               text=True, env={**os.environ, "PYTHONPATH": path})
    client = Client(started.stdout.readline().strip(), timeout=PATIENCE)
    text = noting(journal, "held", waiting(go) + "os.getpid()")
    names = [client.submit("m = 0\n", "x = 1"), client.submit(PROBLEM, text)]
    assert client.wait(names[0]["id"])["verdict"] == "OK"
    until(lambda: begun(journal))
    family = processes.family(started.pid)
    assert len(family) > 1
    started.send_signal(number)
    status = started.wait(timeout=PATIENCE)
    started.stdout.close()
    # Who starts the tests in the background has them ignore SIGINT after the server has heard it.
    assert status in {signal.SIGKILL: (-9,), signal.SIGTERM: (143,), signal.SIGINT: (0, 1, -2, 130)}[number]
    until(lambda: all(processes.state(process) in ("", "Z", "X") for process in family))
    go.touch()
    with serving(tmp_path / "queue") as service:
        found = [client_of(service).wait(one["id"]) for one in names]
    assert [one["verdict"] for one in found] == ["OK", "OK"]
    assert begun(journal) == ["held", "held"], "the first one's verdict stood, the second one's did not"


def test_a_full_disk_refuses_what_is_new_and_keeps_what_is_there(tmp_path: Path) -> None:
    """SQLite's own limit of the file's pages stands for the disk's end."""
    with serving(tmp_path / "queue") as service:
        client = client_of(service, patience=0.0)
        known = client.judge(PROBLEM, "x = 1")
        database = service.store.database
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")
        large = "# " + "x" * 100_000
        error = refused(lambda: client.submit(PROBLEM, large), 507, "KW761")
        assert error.retry_after >= 1 and client.get(known["id"])["verdict"] == "OK"
        database.execute("PRAGMA max_page_count = 1000000")
        assert client.judge(PROBLEM, large)["verdict"] == "OK"


def test_while_the_disk_is_full_nothing_begins_and_no_verdict_is_lost(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, go = tmp_path / "journal", tmp_path / "go"
    finish, tried = Store.finish, []

    def full(self: Store, *given: Any) -> bool:
        tried.append(given[0])
        raise ServiceFull

    with serving(tmp_path / "queue", workers=1) as service:
        client = client_of(service, patience=0.0)
        first = client.submit(PROBLEM, noting(journal, "first", waiting(go)))
        until(lambda: begun(journal))
        second = client.submit(PROBLEM, noting(journal, "second"))
        with monkeypatch.context() as patch:
            patch.setattr(Store, "finish", full)
            go.touch()
            until(lambda: len(tried) > 3)
            assert client.get(first["id"])["state"] == "running" and begun(journal) == ["first"]
            assert client.health()["status"] == "trouble"
        assert Store.finish is finish
        with monkeypatch.context() as patch:
            patch.setattr(judging, "LEAST_FREE", 1 << 62)
            patch.setattr(judging, "DISK_SECONDS", 0.0)
            assert client.wait(first["id"])["verdict"] == "OK"
            refused(lambda: client.submit(PROBLEM, "y = 1"), 507, "KW761")
            until(lambda: client.health()["status"] == "trouble")
            assert client.get(second["id"])["state"] == "queued"
        assert client.wait(second["id"])["verdict"] == "OK" and begun(journal) == ["first", "second"]


def test_what_fails_while_the_disk_is_full_is_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that cannot write its file is no fault of the candidate's."""
    journal, go = tmp_path / "journal", tmp_path / "go"
    text = noting(journal, "x", waiting(go) + f"verdict = 'BUILD-COMPILE' if open({str(journal)!r}).read() == 'x\\n' "
                                              "else 'OK'")
    with serving(tmp_path / "queue") as service:
        client = client_of(service)
        name = client.submit(PROBLEM, text)["id"]
        until(lambda: begun(journal))
        with monkeypatch.context() as patch:
            patch.setattr(judging, "LEAST_FREE", 1 << 62)
            patch.setattr(judging, "DISK_SECONDS", 0.0)
            go.touch()
            until(lambda: client.get(name)["state"] == "queued")
        assert client.wait(name)["verdict"] == "OK" and begun(journal) == ["x", "x"]
