"""``kernelwright serve`` as a user runs it, with the judge itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from clocks import PATIENCE
from machine import knows_the_machine
from places import ROOT
from schemas import assert_fits

from kernelwright import cli
from kernelwright.serve.client import Client

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0 + 1.0

def get_inputs():
    return [torch.randn(32, 40)]

def get_init_inputs():
    return []
"""
#: Right with a factor of 2, and wrong with another one.
CANDIDATE = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0.0) * FACTOR + 1.0
"""


def command(folder: Path, *arguments: object, **environment: str) -> list:
    """What starts a command of kernelwright: arguments and environment."""
    cache = knows_the_machine(folder / "cache")
    return [[sys.executable, "-m", "kernelwright", *map(str, arguments)],
            {**os.environ, "KERNELWRIGHT_CACHE": str(cache), "PYTHONPATH": str(ROOT), **environment}]


@pytest.mark.slow
def test_two_clients_and_the_judge(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("ann a-token-of-ann-0123\nbob a-token-of-bob-4567\n")
    line, environment = command(tmp_path, "serve", "--port", 0, "--folder", tmp_path / "queue", "--devices", "cpu",
                                "--workers", 1, "--tokens", tokens, "--stage-limit", PATIENCE, "--limit", 4 * PATIENCE,
                                "--json", "--quiet")
    service = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout is not None
        listening = json.loads(service.stdout.readline())
        assert_fits(listening, "serve")
        address = listening["address"]
        ann = Client(address, "a-token-of-ann-0123", timeout=PATIENCE)
        bob = Client(address, "a-token-of-bob-4567", timeout=PATIENCE)
        right = ann.submit(MODEL, CANDIDATE.replace("FACTOR", "2.0"), verdict_only=True)
        wrong = bob.submit(MODEL, CANDIDATE.replace("FACTOR", "2.5"), verdict_only=True)
        states = list(ann.events(right["id"]))
        assert states[-1]["verdict"] == "OK", states[-1]["result"]
        assert {"self-test", "check"} <= {state["stage"] for state in states}
        found = bob.wait(wrong["id"])
        assert found["verdict"] == "WRONG-NUMERIC" and found["result"]["certificate"]["trials"]
        assert_fits(states[-1], "serve")
        assert_fits(found, "serve")
        assert [one["id"] for one in ann.submissions()] == [right["id"]]
        service.send_signal(signal.SIGTERM)
        assert service.wait(timeout=PATIENCE) == 128 + signal.SIGTERM
    finally:
        service.kill()
        service.wait()
        service.stdout.close()


def test_what_cannot_be_served_is_said_before_anything_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                               capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KERNELWRIGHT_TOKEN", "")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        (tmp_path / "short").write_text("ann 0123\n")
        (tmp_path / "queue" / "queue.sqlite").parent.mkdir()
        (tmp_path / "queue" / "queue.sqlite").write_text("something else, which is no database at all")
        for arguments, code in ((("--host", "0.0.0.0", "--port", 0), "KW751"),
                                (("--tokens", tmp_path / "short"), "KW752"),
                                (("--folder", tmp_path / "queue", "--port", 0), "KW754"),
                                (("--port", taken), "KW755"), (("--queue", 0), "KW403")):
            capfd.readouterr()
            asked = ("serve", "--folder", tmp_path / "new", *arguments, "--devices", "cpu", "--json")
            status = cli.run([str(argument) for argument in asked])
            out, err = capfd.readouterr()
            assert status == 2 and json.loads(out)["error"]["code"] == code, out + err
            assert_fits(json.loads(out), "serve")
