"""Put a service (`kernelwright serve`) under load, and see that nothing is lost and nothing judged twice.

    python tools/serve_load.py                            # 1,000 submissions, in a few minutes
    python tools/serve_load.py --count 200 --kills 4 --service-kills 0 --disk 0

The service is a process of its own with a queue of its own, whose work is a stand-in for the judge that takes a few
milliseconds and writes down what it is at: the queue is what is looked at. Several clients submit at once, each
submission twice. Meanwhile judging processes are killed (SIGKILL), the service itself is killed and started again, and
the disk that the queue is on is filled and emptied (a small one of its own, of memory, where the system lets us mount
one). At the end each submission has one verdict, its own; the journal says how often each was begun.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kernelwright.serve.client import ENDED, Client, ServiceError
from kernelwright.suite import processes

TOOLS = Path(__file__).resolve().parent
PROBLEMS, CLIENTS = 5, 8
#: Bytes of the small disk; more than the judge wants to have free (`judging.LEAST_FREE`), and the queue beside.
DISK_BYTES = 320 << 20


def judge(task: dict[str, Any], progress: Any) -> dict[str, Any]:
    """In place of `judge_worker.judge_candidates`: the verdict that a candidate's text names, after its seconds."""
    for candidate in task["candidates"]:
        asked = json.loads(Path(candidate["path"]).read_text())
        progress.say_line(say="part", part={"kind": "begun", "key": candidate["key"]})
        _note(asked["journal"], f"begun {asked['number']}")
        time.sleep(asked["seconds"])
        result = {"file": "", "verdict": asked["verdict"], "reason": str(asked["number"]), "timing": None}
        progress.say_line(say="part", part={"kind": "judged", "key": candidate["key"], "result": result,
                                            "device": "none", "versions": {}})
        _note(asked["journal"], f"judged {asked['number']}")
    return {"state": "verified", "error": None, "result": None}


def _note(journal: str, line: str) -> None:
    with open(journal, "a") as stream:
        stream.write(line + "\n")


def serve(folder: str, port: str, workers: str) -> None:
    """Be the service."""
    from kernelwright.progress import Progress
    from kernelwright.serve.command import serve as run

    run(Progress(), lambda address: print(address, flush=True), port=int(port), folder=Path(folder), devices=("cpu",),
        workers=int(workers), queue=1_000_000, work="serve_load:judge")


class Load:
    """One run: the service's process, the clients' threads, and what was seen."""

    def __init__(self, count: int, workers: int, folder: Path, small_disk: bool) -> None:
        self.count, self.workers, self.small_disk = count, workers, small_disk
        self.folder = folder / ("disk/queue" if small_disk else "queue")
        self.journal = folder / "journal"
        self.port, self.address = 0, ""
        self.ids: dict[int, str] = {}
        self.seen: Counter[str] = Counter()
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        """Start the service, at the port that it had before."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
            filter(None, [str(TOOLS), str(TOOLS.parent), os.environ.get("PYTHONPATH")]))}
        code = "import sys, serve_load; serve_load.serve(*sys.argv[1:])"
        command = [sys.executable, "-c", code, str(self.folder), str(self.port), str(self.workers)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        self.address = process.stdout.readline().strip()
        self.port = int(self.address.rpartition(":")[2])
        return process

    def text(self, number: int) -> str:
        """A candidate's text."""
        verdict = ("OK", "OK-BUT", "WRONG-NUMERIC", "CRASH-RAISED")[number % 4]
        return json.dumps({"number": number, "verdict": verdict, "journal": str(self.journal),
                           "seconds": random.Random(number).uniform(0.0, 0.03), "more": "x" * 2000})

    def submit(self, numbers: range) -> None:
        """Submit some, each twice: a client's thread."""
        client = Client(self.address, patience=0.0)
        for number in [*numbers, *numbers]:
            while True:
                try:
                    status = client.submit(f"problem = {number % PROBLEMS}\n", self.text(number))
                    break
                except ServiceError as error:
                    self.seen[str(error.status or "no answer")] += 1
                    time.sleep(0.3)
            assert self.ids.setdefault(number, status["id"]) == status["id"]

    def kill_worker(self) -> bool:
        """Kill one judging process, if there is one."""
        found = [p for p in processes.family(self.process.pid) if p != self.process.pid]
        if found:
            processes.send(random.choice(found), signal.SIGKILL)
        return bool(found)

    def kill_service(self) -> None:
        """Kill the service, and start it again."""
        self.process.kill()
        self.process.wait()
        self.process = self.start()

    def fill_disk(self, seconds: float) -> None:
        """Have no byte left on the small disk for some time."""
        filler = self.folder.parent / "filler"
        try:
            with open(filler, "wb") as stream:
                while True:
                    stream.write(b"x" * (1 << 16))
                    stream.flush()
        except OSError:
            pass
        self.seen["disk full"] += 1
        time.sleep(seconds)
        filler.unlink()


def main() -> int:
    """Run, and say what was seen; 1 if anything is missing or wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("count", 1000), ("workers", 2), ("kills", 20), ("service-kills", 3), ("disk", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.disk and not given.inside and _may_mount():
        return subprocess.call(["unshare", "--mount", "--user", "--map-root-user", sys.executable, __file__,
                                *sys.argv[1:], "--inside"])
    with tempfile.TemporaryDirectory(prefix="serve_load_") as name:
        folder = Path(name)
        if given.inside:
            (folder / "disk").mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder / "disk"], check=True)
        try:
            return _run(Load(given.count, given.workers, folder, given.inside), given)
        finally:
            if given.inside:
                subprocess.run(["umount", "--lazy", folder / "disk"], check=True)


def _may_mount() -> bool:
    try:
        return subprocess.run(["unshare", "--mount", "--user", "--map-root-user", "sh", "-c",
                               "mount -t tmpfs tmpfs /mnt"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _run(load: Load, given: Any) -> int:
    began = time.monotonic()
    parts = [range(n, load.count, CLIENTS) for n in range(CLIENTS)]
    threads = [threading.Thread(target=load.submit, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    events = (["worker"] * given.kills + ["service"] * given.service_kills
              + ["disk"] * (given.disk if load.small_disk else 0))
    random.Random(0).shuffle(events)
    client, done, events_left = Client(load.address), 0, list(events)
    submitted = None
    while done < load.count:
        time.sleep(0.5)
        if submitted is None and not any(thread.is_alive() for thread in threads):
            submitted = time.monotonic() - began
        counts = client.health()
        done = 0 if submitted is None else load.count - counts["queued"] - counts["running"]
        share = len(load.ids) / load.count if submitted is None else 1.0
        if events_left and (share > 1 - len(events_left) / max(1, len(events)) or submitted is not None):
            event = events_left[-1]
            if event != "worker" or load.kill_worker():
                events_left.pop()
                load.seen[f"{event} killed" if event != "disk" else "disk"] += 1
                if event == "service":
                    load.kill_service()
                elif event == "disk":
                    load.fill_disk(3.0)
    seconds = time.monotonic() - began
    for thread in threads:
        thread.join()
    found = {number: client.get(name) for number, name in load.ids.items()}
    load.process.send_signal(signal.SIGTERM)
    load.process.wait()
    return _say(load, found, seconds, submitted or seconds, len(events_left))


def _say(load: Load, found: dict[int, Any], seconds: float, submitted: float, left: int) -> int:
    wrong = [number for number in range(load.count) if number not in found
             or found[number]["state"] not in ENDED
             or (found[number]["state"] == "done"
                 and (found[number]["verdict"], found[number]["result"]["reason"])
                 != (json.loads(load.text(number))["verdict"], str(number)))]
    lines = Counter(load.journal.read_text().splitlines())
    twice = [line for line, count in lines.items() if line.startswith("judged") and count > 1]
    failed = [one for one in found.values() if one["state"] == "failed"]
    begun = sum(count for line, count in lines.items() if line.startswith("begun"))
    print(f"{load.count} submissions, each twice, by {CLIENTS} clients; {load.workers} judging processes at once")
    print(f"taken after {submitted:.1f} s, ended after {seconds:.1f} s")
    print(f"met on the way: {', '.join(f'{count} x {what}' for what, count in sorted(load.seen.items())) or 'nothing'}")
    print(f"begun {begun} times, {len(failed)} failed (their process was killed twice), {len(twice)} judged twice, "
          f"{len(wrong)} lost or wrong" + (f"; {left} events did not come to pass" if left else ""))
    # A verdict that the service was killed with, before it was on disk, is nobody's, and one that refuses while the
    # disk is full is not believed: these are judged again.
    return int(bool(wrong) or (bool(twice) and not load.seen["service killed"] and not load.seen["disk full"]))


if __name__ == "__main__":
    sys.exit(main())
