"""A service whose devices are those of a Ray cluster: nothing is lost, nothing judged twice, cancelled ones end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from ray_tools import cluster
from serve_tools import PROBLEM, begun, client_of, noting, serving, until, waiting

from kernelwright import errors
from kernelwright.serve.settings import ServeSettings
from kernelwright.suite import ray_cluster
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.ray_cluster import Cluster

__all__ = ["cluster"]


def telling(journal: Path, name: str, more: str = "") -> str:
    """A candidate's text that notes its name, and in a file of its own the processes of its job and of the actor."""
    pids = f"import os\nwith open({str(journal.parent / name)!r}, 'w') as file:\n    file.write(f'{{os.getpid()}} " \
           "{os.getppid()}')\n"
    return noting(journal, name, pids + more)


def processes(journal: Path, name: str) -> list[int]:
    """What `telling` has noted of a candidate, once all of it is there."""
    file = journal.parent / name
    until(lambda: file.exists() and len(file.read_text().split()) == 2)
    return [int(word) for word in file.read_text().split()]


def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    find = ray_cluster.find_places
    monkeypatch.setattr(ray_cluster, "find_places", lambda nodes, options: find(nodes, options) * 2)


@pytest.mark.breaks
def test_an_actor_that_dies_costs_what_it_had_not_judged(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                         ) -> None:
    """One of two actors is killed while it is at a submission: that is judged once more, those that it had not begun
    wait again as if nothing had been, what it had judged stands, and the other actor goes on."""
    two_devices(monkeypatch)
    journal, gone = tmp_path / "journal.txt", tmp_path / "gone"
    names = [f"s{number}" for number in range(8)]
    with serving(tmp_path / "service", runner="ray", workers=1) as service:
        client = client_of(service)
        first = {name: client.submit(PROBLEM, telling(journal, name)) for name in names[:2]}
        assert [client.wait(found["id"])["state"] for found in first.values()] == ["done", "done"]
        ids = {name: found["id"] for name, found in first.items()}
        ids |= {name: client.submit(PROBLEM, telling(journal, name, waiting(gone)), seed=number % 2)["id"]
                for number, name in enumerate(names[2:])}
        until(lambda: len(begun(journal)) == 4)
        at = begun(journal)[2:]
        assert len({processes(journal, name)[1] for name in at}) == 2, "each actor is at one"
        # The service has heard of it, too: what nobody has heard of may have been any of its process.
        until(lambda: any(job.at == ids[at[0]] for job in list(service.judging._jobs.values())))
        os.kill(processes(journal, at[0])[1], signal.SIGKILL)
        until(lambda: client.get(ids[at[0]])["attempts"] == 2 or begun(journal).count(at[0]) == 2)
        gone.touch()
        found = {name: client.wait(ids[name]) for name in names}
    assert {status["verdict"] for status in found.values()} == {"OK"}, found
    assert {name: begun(journal).count(name) for name in names} == {name: 1 + (name == at[0]) for name in names}
    assert {name: status["attempts"] for name, status in found.items()} == {name: 1 + (name == at[0]) for name in names}
    told = str([status["result"] for status in found.values()])
    assert "kernelwright_ray_" not in told and str(tmp_path) not in told


@pytest.mark.breaks
def test_what_is_lost_with_its_actor_twice_fails_with_why(cluster: Any, tmp_path: Path) -> None:
    journal = tmp_path / "journal.txt"
    kills = "import signal\nos.kill(os.getppid(), signal.SIGKILL)\nimport time\ntime.sleep(600)\n"
    with serving(tmp_path / "service", runner="ray", workers=1) as service:
        client = client_of(service)
        status = client.wait(client.submit(PROBLEM, telling(journal, "kills", kills))["id"])
        assert status["state"] == "failed" and status["attempts"] == 2 and status["error"]["code"] == "KW604"
        assert "lost with its node" in status["error"]["what"]
        assert client.wait(client.submit(PROBLEM, telling(journal, "after"))["id"])["verdict"] == "OK"
    assert begun(journal) == ["kills", "kills", "after"]


def test_one_that_is_cancelled_ends_on_its_node(cluster: Any, tmp_path: Path) -> None:
    journal, never = tmp_path / "journal.txt", tmp_path / "never"
    with serving(tmp_path / "service", runner="ray", workers=1) as service:
        client = client_of(service)
        name = client.submit(PROBLEM, telling(journal, "long", waiting(never)))["id"]
        process = processes(journal, "long")[0]
        until(lambda: client.get(name)["state"] == "running")
        client.cancel(name)
        assert client.get(name)["state"] == "cancelled"
        until(lambda: not Path(f"/proc/{process}").exists())
        assert client.wait(client.submit(PROBLEM, telling(journal, "next"))["id"])["verdict"] == "OK"
    assert begun(journal) == ["long", "next"]


class _Said:
    def say(self, text: str) -> None:
        """Nobody asks."""


def test_devices_rest_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that join are used; a device whose actors died time after time is not, until it has rested."""
    now = [100.0]
    nodes = [{"NodeID": "1", "NodeManagerAddress": "one", "Alive": True, "Resources": {}}]
    monkeypatch.setattr(ray_cluster.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Cluster, "_start", lambda self, place, starts=1: ray_cluster._Device(place, None, starts))
    monkeypatch.setattr(Cluster, "_kill", lambda self, device: None)
    ray = type("Ray", (), {"nodes": staticmethod(lambda: nodes)})
    it = Cluster(ray, SuiteOptions(devices=("cpu",)), lambda record: None, _Said(), watches=True)  # type: ignore[arg-type]
    nodes.append({**nodes[0], "NodeID": "2", "NodeManagerAddress": "two"})
    it._look_for_nodes()
    assert it.addresses == ["one", "two"] and it.capacity == 0 and not it.full
    for _ in range(ray_cluster.MOST_STARTS):
        it._lost(it.devices[0] if it.devices[0].place.node == "1" else it.devices[1], "it died")
    it._look_for_nodes()
    assert it.addresses == ["two"]
    now[0] += ray_cluster.REST_SECONDS + 1
    it._look_for_nodes()
    assert it.addresses == ["one", "two"]


def test_a_device_whose_disk_is_full_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "_start", lambda self, place, starts=1: ray_cluster._Device(place, None, room=2))
    places = [ray_cluster.Place(name, name, False, 1) for name in ("1", "2")]
    it = Cluster(None, SuiteOptions(), lambda record: None, _Said(), places=places, least_free=10)  # type: ignore[arg-type]
    assert it.capacity == 4
    it.devices[0].free = 9
    assert it.capacity == 2 and not it.full
    it.devices[1].free = 9
    assert it.capacity == 0 and it.full


def test_what_cannot_serve_on_a_cluster_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.InvalidOption, match="--runner"):
        ServeSettings(runner="slurm")
    for changes, error, words in (({"devices": ("0",)}, errors.InvalidOption, "--devices"),
                                  ({}, errors.RunnerMissing, "not installed")):
        monkeypatch.setitem(__import__("sys").modules, "ray", None)
        with pytest.raises(error, match=words), serving(tmp_path / "service", runner="ray", **changes):
            pass
