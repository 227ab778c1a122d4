"""The command line, as a user runs it, on small problem files: in real processes where what a process does is asked."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
import typer
from clocks import CLOCKS_DROP_NOTHING, PATIENCE
from forks import ran
from machine import knows_the_machine
from places import ROOT
from schemas import assert_fits

import kernelwright
from kernelwright import cli
from kernelwright.report.trace import RUN

HEAD = "import torch\nfrom torch import nn\n\n"
PASSES = """
    class Model(nn.Module):
        def __init__(self, width=3):
            super().__init__()
            self.layer = nn.Linear(width, width)
        def forward(self, x):
            return self.layer(x)
    """
INPUTS = """
    def get_inputs():
        return [torch.rand(2, 3)]
    """
GLOBAL_MEAN = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(16, 32, 3, stride=2, padding=1, output_padding=1)
        def forward(self, x):
            print("a line of the user's own")
            return torch.mean(self.up(x) * 0.5, dim=[2, 3])
    def get_inputs():
        return [torch.rand(8, 16, 64, 64)]
    """


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One cache folder for all commands of this file, so that the machine is measured once."""
    return knows_the_machine(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def command(cache, tmp_path):
    """A function that runs ``kernelwright`` with arguments and further environment variables. python: what Python is
    given, by default to run the package."""

    def run(*arguments: object, python: tuple[str, ...] = ("-m", "kernelwright"), **environment: str
            ) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *python, *map(str, arguments)],
                              capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path,
                              env={**os.environ, "KERNELWRIGHT_CACHE": str(cache), **environment})

    return run


#: To Python, where the command measures: times that decide nothing take little.
MEASURES = ("-c", f"{CLOCKS_DROP_NOTHING}from kernelwright.cli import main\nmain()")


@pytest.fixture
def here(cache, tmp_path, monkeypatch, capfd):
    """The same in this process: for what a command does and says, which needs no PyTorch of its own."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for variable, value in {"KERNELWRIGHT_CACHE": str(cache), **environment}.items():
                patch.setenv(variable, value)
            capfd.readouterr()
            status = cli.run([str(argument) for argument in arguments])
        return subprocess.CompletedProcess(arguments, status, *capfd.readouterr())

    yield run
    torch._logging.set_logs()  # a command silences them, for as long as its process lives


def problem(folder: Path, *parts: str, name: str = "problem.py") -> Path:
    """Write a problem file of the given parts."""
    path = folder / name
    path.write_text(HEAD + "\n".join(textwrap.dedent(part) for part in parts))
    return path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Everything below ``folder``, with the contents of files."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def refused(done: subprocess.CompletedProcess[str], code: str) -> None:
    """Assert that a command ended with a user's error of this code, and no traceback."""
    assert done.returncode == 2, done.stderr
    assert f"error {code}: " in done.stderr
    assert "  fix:   " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


# ---- quick to start --------------------------------------------------------------------------------


def assert_without_pytorch(done: subprocess.CompletedProcess[str]) -> None:
    """Assert that a command that ran with ``-X importtime`` imported nothing that takes seconds."""
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "kernelwright.cli" in imported or "kernelwright" in imported
    assert not {name for name in imported if name.split(".")[0] in ("torch", "numpy")}


@pytest.mark.parametrize(("code", "arguments"), [
    ("KW101", ("optimize", "nothing.py")), ("KW101", ("explain", "nothing.py")),
    ("KW403", ("optimize", "problem.py", "--seed", "-1")), ("KW402", ("optimize", "problem.py", "-o", "there.py"))])
def test_what_is_wrong_with_a_command_line_is_said_without_pytorch(command, tmp_path, code, arguments):
    problem(tmp_path, PASSES, INPUTS)
    (tmp_path / "there.py").write_text("precious = True\n")
    done = command(*arguments, python=("-X", "importtime", "-m", "kernelwright"))
    assert done.returncode == 2 and f"error {code}: " in done.stderr
    assert_without_pytorch(done)


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("optimize", "--help"), ("doctor", "--help"),
                                       ("judge", "--help"), ("cache",)])
def test_starts_without_pytorch(command, arguments):
    done = command(*arguments, python=("-X", "importtime", "-m", "kernelwright"))
    assert done.returncode == 0
    assert_without_pytorch(done)
    if arguments == ("--version",):
        assert done.stdout == f"kernelwright {kernelwright.__version__}\n"


# ---- bad input -------------------------------------------------------------------------------------

BAD = {
    "no Model": ("KW106", (INPUTS,)),
    "no get_inputs": ("KW108", (PASSES,)),
    "syntax error": ("KW103", (PASSES, "def get_inputs(:\n")),
    "constructor raises": ("KW110", ("""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                raise ValueError("no width given")
            def forward(self, x):
                return x
        """, INPUTS)),
    "get_inputs raises": ("KW112", (PASSES, "def get_inputs():\n    return [torch.rand(2, -3)]\n")),
    "forward raises": ("KW114", ("""
        class Model(nn.Module):
            def forward(self, x):
                return x @ x
        """, INPUTS)),
    "inputs beyond memory": ("KW115", (PASSES, "def get_inputs():\n    return [torch.rand(10**14)]\n")),
    "data-dependent control flow": ("KW201", ("""
        class Model(nn.Module):
            def forward(self, x):
                if x.sum() > 0:
                    return x * 2
                return x - 1
        """, INPUTS)),
    "hidden state": ("KW202", ("""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = 0
            def forward(self, x):
                self.calls += 1
                return x * self.calls
        """, INPUTS)),
}
LINES = {"constructor raises": 'raise ValueError("no width given")', "get_inputs raises": "torch.rand(2, -3)",
         "forward raises": "return x @ x", "inputs beyond memory": "torch.rand(10**14)",
         "data-dependent control flow": "if x.sum() > 0:"}


@pytest.mark.parametrize("kind", BAD)
def test_bad_problem(here, tmp_path, kind):
    code, parts = BAD[kind]
    path = problem(tmp_path, *parts)
    before = snapshot(tmp_path)
    done = here("optimize", path, "--quiet", "--effort", "quick")
    refused(done, code)
    assert LINES.get(kind, "") in done.stderr
    assert snapshot(tmp_path) == before


def test_missing_file(here, tmp_path):
    done = here("optimize", tmp_path / "nothing.py", "--quiet")
    refused(done, "KW101")
    assert snapshot(tmp_path) == {}


def test_no_compiler(here, tmp_path):
    path = problem(tmp_path, PASSES, INPUTS)
    empty = tmp_path / "empty"
    empty.mkdir()
    before = snapshot(tmp_path)
    refused(here("optimize", path, "--quiet", CXX="/nonexistent/c++", PATH=str(empty)), "KW301")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("folder", ["below a file", "missing", "kernel's own"])
def test_unusable_output_folder(here, tmp_path, folder):
    path = problem(tmp_path, PASSES, INPUTS)
    output = {"below a file": path / "out.py", "missing": tmp_path / "missing" / "out.py",
              "kernel's own": Path("/proc/out.py")}[folder]
    before = snapshot(tmp_path)
    refused(here("optimize", path, "-o", output, "--quiet", "--effort", "quick"), "KW401")
    assert snapshot(tmp_path) == before


def test_an_existing_page_or_trace_is_kept(here, tmp_path):
    path = problem(tmp_path, PASSES, INPUTS)
    (tmp_path / "page.html").write_text("precious\n")
    (tmp_path / "trace.json").write_text("precious\n")
    before = snapshot(tmp_path)
    refused(here("optimize", path, "--report", "page.html"), "KW402")
    refused(here("optimize", path, "--trace", "trace.json"), "KW402")
    assert snapshot(tmp_path) == before


def test_existing_output_is_kept(here, tmp_path):
    path = problem(tmp_path, PASSES, INPUTS)
    (tmp_path / "problem_new.py").write_text("precious = True\n")
    before = snapshot(tmp_path)
    done = here("optimize", path, "--json")
    assert done.returncode == 2
    assert "error KW402: " in done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "KW402"
    assert snapshot(tmp_path) == before


def test_the_same_command_again_replaces_what_it_wrote(command, tmp_path):
    """And nothing that somebody changed since, nor the model's own file, whatever is forced."""
    path = problem(tmp_path, PASSES, INPUTS)
    again = ("optimize", path, "--report", "page.html", "--trace", "trace.json", "--target", "cpp", "--effort", "quick",
             "--baselines", "none", "--quiet")
    for _ in range(2):
        done = command(*again, python=MEASURES)
        assert done.returncode == 0, done.stderr
    (tmp_path / "page.html").write_text("precious\n")
    refused(command(*again), "KW402")
    (tmp_path / "page.html").unlink()
    (tmp_path / "problem_new.py").write_text((tmp_path / "problem_new.py").read_text() + "# mine\n")
    before = snapshot(tmp_path)
    done = command(*again)
    refused(done, "KW402")
    assert "problem_new.py exists" in done.stderr
    (tmp_path / "other.py").symlink_to(path)
    for output in (path, tmp_path / "other.py"):
        refused(command("optimize", path, "-o", output, "--force"), "KW403")
    (tmp_path / "other.py").unlink()
    assert snapshot(tmp_path) == before


# ---- the command line itself: in this process, because no model is run ------------------------------


@pytest.mark.parametrize("arguments", [["optimize"], ["explode", "x.py"], ["optimize", "x.py", "--seed", "many"],
                                       ["optimize", "x.py", "--nonsense"]])
def test_usage_errors(capfd, arguments):
    assert cli.run([*arguments, "--json"]) == 2
    captured = capfd.readouterr()
    assert captured.err
    assert json.loads(captured.out)["error"]["exit_status"] == 2


@pytest.mark.parametrize("option", [["--target", "rocm"], ["--precision", "fast"], ["--effort", "none"],
                                    ["--seed", "-1"], ["--threads", "0"], ["-o", "result.txt"],
                                    ["--report", "page.txt"],
                                    ["--trace", "trace.txt"], ["--embed-for", "znver4"], ["--embed-for", "sm_90a"]])
def test_option_values(capfd, tmp_path, option):
    path = problem(tmp_path, PASSES, INPUTS)
    assert cli.run(["optimize", str(path), *option, "--quiet", "--json"]) == 2
    captured = capfd.readouterr()
    assert "error KW403: " in captured.err
    assert json.loads(captured.out)["error"]["code"] == "KW403"


def test_internal_errors_are_reported(capfd, monkeypatch, tmp_path):
    import kernelwright.pipeline

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernelwright.pipeline, "optimize", fails)
    file = tmp_path / "x.py"
    file.write_text("")
    assert cli.run(["optimize", str(file), "--json", "--quiet"]) == 70
    captured = capfd.readouterr()
    assert "internal error KW900" in captured.err
    assert f"kernelwright optimize {file}" in captured.err
    found = json.loads(captured.out)["error"]
    assert "ZeroDivisionError: a fault of ours" in Path(found["traceback"]).read_text()


def test_interrupt(cache, tmp_path):
    path = problem(tmp_path, "import time\ntime.sleep(60)\n", PASSES, INPUTS)
    process = subprocess.Popen([sys.executable, "-m", "kernelwright", "optimize", str(path)], cwd=tmp_path,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "KERNELWRIGHT_CACHE": str(cache)},
                               # Tests that run in the background inherit a SIGINT that is ignored.
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert process.stderr is not None
    assert " starts" in process.stderr.readline() and "load" in process.stderr.readline()  # it is at work
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in err and out == ""


# ---- success ---------------------------------------------------------------------------------------


def test_optimize(command, cache, tmp_path):
    """JSON and nothing else on stdout, the file written, and its ModelNew computes what Model does."""
    path = problem(tmp_path, GLOBAL_MEAN)
    before = path.read_bytes()
    done = command("optimize", path, "--json", "--effort", "quick", "--target", "cpp", "--report", "page.html",
                   "--trace", "trace.json", python=MEASURES)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == 1 and document["target"] == "cpp"
    emitted = tmp_path / "problem_new.py"
    assert document["path"] == str(emitted)
    mode = document["modes"][0]
    assert mode["certificate"]["passed"] and mode["timing"]["entries"]["candidate"]["median"] > 0
    assert mode["kernels"] and "sum of a convolution" in {rule["name"] for rule in mode["rules"]}
    assert "a line of the user's own" in done.stderr
    assert "capture" in done.stderr  # progress
    assert path.read_bytes() == before
    assert set(snapshot(tmp_path)) == {"problem.py", "problem_new.py", "page.html", "trace.json"}
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    stages = {e["args"]["stage"] for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == RUN}
    assert stages >= set(document["stages"]) | {"start"}
    assert any(event["name"].startswith(mode["kernels"][0]["name"]) for event in trace["traceEvents"])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    first = kernelwright.report.units.seconds(mode["timing"]["entries"]["candidate"]["median"])
    assert page.startswith("<!doctype html>") and first in page and "trace.json" in page
    assert "problem.py:11: return torch.mean(self.up(x)" in page
    assert all(f"<b>{kernel['name']}</b>" in page for kernel in mode["kernels"]) and "no text of that name" not in page
    assert sum(step["operations"] for step in mode["captured_steps"]) == mode["before"]["operations"]
    check = textwrap.dedent("""
        import torch, problem, problem_new
        torch.manual_seed(0); old = problem.Model()
        torch.manual_seed(0); new = problem_new.ModelNew()
        x = torch.rand(8, 16, 64, 64)
        with torch.no_grad():
            torch.testing.assert_close(new(x), old(x), atol=1e-5, rtol=1e-5)
        """)
    checked = ran(check, folder=tmp_path, KERNELWRIGHT_CACHE=str(cache))
    assert checked.returncode == 0, checked.stderr


def test_nothing_pays_is_said(here, tmp_path):
    path = problem(tmp_path, PASSES, INPUTS)
    output = tmp_path / "result.py"
    output.write_text("to be replaced\n")
    done = here("optimize", path, "-o", output, "--force", "--effort", "quick", "--target", "cpp")
    assert done.returncode == 0, done.stderr
    assert "The result is the original computation" in done.stdout
    assert f"Written to {output}" in done.stdout
    assert "class ModelNew" in output.read_text()
    assert "\x1b[" not in done.stdout + done.stderr


def test_explain_writes_nothing(here, tmp_path):
    path = problem(tmp_path, GLOBAL_MEAN)
    before = snapshot(tmp_path)
    done = here("explain", path, "--verbose", "--quiet", "--target", "cpp")
    assert done.returncode == 0, done.stderr
    assert "sum of a convolution" in done.stdout and "condition" in done.stdout
    assert "Captured graph" in done.stdout and "Rewritten graph" in done.stdout
    assert "problem.py:11: return torch.mean(self.up(x)" in done.stdout  # the user's own line
    assert snapshot(tmp_path) == before


def test_doctor(command):
    done = command("doctor", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["devices"][0]["read"] > 0
    assert_fits(document, "doctor")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="nothing tells what a process has started")
def test_a_command_waits_for_no_process_that_it_has_started(command, tmp_path):
    """As compilers of torch.compile go on after their time; a thread that waits for one keeps Python from ending."""
    path = tmp_path / "starts.py"
    path.write_text(HEAD + "import subprocess\nimport threading\n" + textwrap.dedent(PASSES + INPUTS)
                    + "\nthreading.Thread(target=subprocess.run, args=(['sleep', '1000'],)).start()\n")
    done = command("explain", path)
    assert done.returncode == 0 and "linear" in done.stdout, done.stderr


COMMANDS = ("optimize", "explain", "doctor", "bench", "judge", "propose", "serve", "package", "cache", "fuzz")


def test_help_is_short_to_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    """``-h`` everywhere; what is only for those who work on the package is not listed, and has help all the same."""
    assert cli.run(["-h"]) == 0
    text = capsys.readouterr().out
    listed = re.findall(r"^  (\w+)  ", text.split("Commands:")[1].split("Examples:")[0], re.MULTILINE)
    assert listed == [name for name in COMMANDS if name != "fuzz"] and "..." not in text.split("Commands:")[1]
    assert "  kernelwright optimize model.py" in text.split("Examples:")[1]
    for name in COMMANDS:
        assert cli.run([name, "-h"]) == 0
        assert "  kernelwright " + name in capsys.readouterr().out.split("Examples:")[1]


def test_examples_of_help_are_command_lines() -> None:
    group = typer.main.get_command(cli.app)
    for name in COMMANDS:
        command = group.commands[name]
        for line in command.epilog.splitlines()[2:]:
            program, verb, *arguments = shlex.split(line.split(" > ")[0])
            assert (program, verb) == ("kernelwright", name)
            with command.make_context(name, arguments) as context:
                always = "json" if name in ("bench", "doctor", "fuzz", "cache", "serve") else "path"
                assert context.params[always] is not None


_COMPLETED = """
source <(kernelwright --show-completion)
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_kernelwright_completion kernelwright
echo "${{COMPREPLY[*]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="the shell that is asked")
@pytest.mark.parametrize(("typed", "offered"), [
    ("opt", "optimize"), ("fu", ""), ("optimize model.py --dt", "--dtypes"),
    ("optimize model.py --effort ''", "quick normal thorough"), ("judge a.py b.py --precision a", "any"),
    ("judge a.py b.py --rules kernelbench,f", "kernelbench,flashinfer"),
    ("optimize model.py --dtypes float16,b", "float16,bfloat16"),
    ("cache ex", "export"), ("cache clear --only t", "times tracebacks"), ("optimize exa", "")])
def test_shells_complete(tmp_path: Path, typed: str, offered: str) -> None:
    """Commands, options, and the words that an option takes; where nothing is offered the shell completes files."""
    program = tmp_path / "kernelwright"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kernelwright "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(["bash", "--norc", "-c", _COMPLETED.format(words=f"kernelwright {typed}")], timeout=PATIENCE,
                          capture_output=True, text=True, check=False, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.stdout.split() == offered.split(), done.stderr


_FIRST = """
import sys

class First:
    seen = None
    def __init__(self, stream):
        self.stream = stream
    def __getattr__(self, name):
        return getattr(self.stream, name)
    def write(self, text):
        if First.seen is None:
            First.seen = text, sorted({"torch", "rich"}.intersection(sys.modules))
        return self.stream.write(text)

sys.stderr = First(sys.stderr)
from kernelwright.cli import run
run(["explain", "missing.py"])
print(First.seen)
"""


def test_the_first_line_waits_for_no_import(tmp_path: Path) -> None:
    """It is there before PyTorch and what draws on terminals, which take seconds."""
    done = subprocess.run([sys.executable, "-c", _FIRST], capture_output=True, text=True, timeout=PATIENCE, check=False,
                          cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    text, imported = ast.literal_eval(done.stdout.strip())
    assert "kernelwright" in text and "starts" in text and imported == []
