"""The sandbox by attack and honest twin: what a worker must not do fails, what an honest candidate does works.

Every attack runs under several sets of mechanisms, so that each layer is seen to hold alone where it is the only one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
import torch
from clocks import PATIENCE
from places import ROOT

from kernelwright.judge.sandbox import isolation, landlock, process_tree, seccomp
from kernelwright.judge.sandbox.confine import InForce, Mechanisms, Plan, apply_in_child
from kernelwright.judge.sandbox.kernel_calls import NUMBERS
from kernelwright.judge.sandbox.limits import Limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox's mechanisms are Linux's")

EVERYTHING = ("user", "network", "IPC", "mount", "PID")
MODES = {
    "best": None,
    "everything": Mechanisms(EVERYTHING, landlock=True, seccomp=True),
    "namespaces": Mechanisms(EVERYTHING),
    "landlock": Mechanisms(landlock=True),
    "seccomp": Mechanisms(seccomp=True),
    "landlock and seccomp": Mechanisms(landlock=True, seccomp=True),
    "nothing": Mechanisms(),
}
PRELUDE = """
import ctypes, os, signal, socket, subprocess, sys, time
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__
"""


def mechanisms(name: str) -> Mechanisms:
    """Those of a mode; the test is skipped where this system lacks them."""
    wanted = MODES[name] or isolation.available()
    if not isolation.works(wanted):
        pytest.skip(f"this system does not give a process: {name}")
    return wanted


class Running:
    """A worker that runs a text, with what it prints."""

    def __init__(self, folder: Path, code: str, mode: str = "best", limits: Limits | None = None,
                 arguments: tuple[str, ...] = (), pass_fds: tuple[int, ...] = (), site: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.output = folder.parent / f"{folder.name}.printed"
        command = [sys.executable, "-I", *([] if site else ["-S"]), "-c", PRELUDE + textwrap.dedent(code), *arguments]
        with open(self.output, "wb") as file:
            self.worker = isolation.start(command, folder, pass_fds, limits or Limits(), isolation.environment(folder),
                                          file.fileno(), mechanisms(mode))

    def wait(self, seconds: float = 240.0) -> int | None:
        """The exit status; None when it still runs after this time."""
        deadline = time.monotonic() + seconds
        while self.worker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.worker.poll()

    @property
    def printed(self) -> str:
        return self.output.read_text()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.end()


def run(folder: Path, code: str, mode: str = "best", **options) -> str:
    """What a text prints that ends well."""
    with Running(folder, code, mode, **options) as running:
        status = running.wait()
        assert status == 0, f"status {status}: {running.printed}"
        return running.printed.strip()


def holders(token: str) -> list[int]:
    """Processes that carry a text in their environment or command line."""
    found = []
    for number, process in process_tree.processes().items():
        with contextlib.suppress(OSError):
            texts = [Path(f"/proc/{number}/{name}").read_bytes() for name in ("environ", "cmdline")]
            if not process.ended and number != os.getpid() and any(token.encode() in text for text in texts):
                found.append(number)
    return found


# --- the honest twin ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", MODES)
def test_an_honest_candidate_works(tmp_path, mode):
    """It writes to its folder and to its temporary folder, starts threads and programs, and ends its own children."""
    printed = run(tmp_path / "own", """
        import tempfile, threading
        with open("here", "w") as file:
            file.write("text")
        os.rename("here", "there")
        assert os.listdir(".") and open("there").read() == "text"
        with tempfile.NamedTemporaryFile("w") as file:
            assert file.name.startswith(os.getcwd())
        thread = threading.Thread(target=int); thread.start(); thread.join()
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(20)"])
        child.kill()
        assert child.wait() == -signal.SIGKILL
        left, right = socket.socketpair()
        left.send(b"x")
        assert right.recv(1) == b"x"
        open("/dev/null", "w").write("x")
        os.nice(1)
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        assert int(open("/proc/self/stat").read().split()[0]) == os.getpid()
        print("worked")
    """, mode)
    assert printed == "worked"


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ on this system")
@pytest.mark.parametrize("mode", ["best", "namespaces"])
def test_an_honest_candidate_compiles_and_loads(tmp_path, mode):
    printed = run(tmp_path / "own", """
        open("a.cpp", "w").write('#include <omp.h>\\nextern "C" int f() { return omp_get_max_threads() > 0; }')
        subprocess.run(["g++", "-O1", "-fopenmp", "-shared", "-fPIC", "a.cpp", "-o", "a.so"], check=True)
        print(ctypes.CDLL(os.path.abspath("a.so")).f())
    """, mode)
    assert printed == "1"


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc on this system")
def test_an_honest_candidate_compiles_for_a_gpu(tmp_path):
    run(tmp_path / "own", """
        open("a.cu", "w").write('__global__ void f(float* x) { x[threadIdx.x] += 1; }')
        subprocess.run(["nvcc", "-c", "a.cu", "-o", "a.o"], check=True)
        assert os.path.getsize("a.o") > 0
    """)


@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("ninja")), reason="no g++ or ninja on this system")
def test_an_honest_candidate_builds_an_extension_of_torch(tmp_path):
    """Import, multiply, profile, and build by load_inline (without PyTorch's headers, which take a minute)."""
    source = """
        #include <Python.h>
        static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(42); }
        static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
        static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "inline_answer", "", -1, methods};
        PyMODINIT_FUNC PyInit_inline_answer() { return PyModule_Create(&definition); }
    """
    printed = run(tmp_path / "own", f"""
        import torch
        from torch.utils.cpp_extension import load_inline
        assert float((torch.ones(64, 64) @ torch.ones(64, 64)).sum()) == 64.0 ** 3
        with torch.profiler.profile() as profile:
            torch.ones(10).sum()
        assert profile.key_averages()
        print(load_inline("inline_answer", {source!r}, no_implicit_headers=True).answer())
    """, site=True)
    assert printed.endswith("42")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_an_honest_candidate_uses_the_gpu(tmp_path):
    found = isolation.available(cuda=True)
    folder = tmp_path / "own"
    folder.mkdir()
    with open(tmp_path / "printed", "wb") as file:
        code = "import torch; print(float(torch.ones(8, device='cuda').sum()), torch.cuda.max_memory_allocated() > 0)"
        worker = isolation.start([sys.executable, "-I", "-c", code], folder, (), Limits(),
                                 isolation.environment(folder), file.fileno(), found)
    deadline = time.monotonic() + 90
    while worker.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    worker.end()
    assert (worker.poll(), (tmp_path / "printed").read_text().strip()) == (0, "8.0 True"), worker.isolation


# --- the network -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", ["best", "namespaces", "seccomp"])
def test_no_network(tmp_path, mode):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        answer = run(tmp_path / "own", """
            print(attempt(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=2)))
        """, mode, arguments=(str(server.getsockname()[1]),))
        assert answer in ("PermissionError", "ConnectionRefusedError", "OSError")
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("mode", ["best", "seccomp"])
def test_no_service_on_this_machine(tmp_path, mode):
    """A socket in the file system leads to whoever listens there, across every namespace."""
    place = tmp_path / "s"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as stream:
        stream.bind(str(place))
        stream.listen()
        answers = run(tmp_path / "own", """
            print(attempt(lambda: socket.socket(socket.AF_UNIX).connect(sys.argv[1])))
            print(attempt(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", sys.argv[1])))
            print(attempt(lambda: socket.socket(40, socket.SOCK_STREAM)))
        """, mode, arguments=(str(place),))
    assert answers.split() == ["PermissionError"] * 3


# --- files -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", ["best", "landlock"])
def test_no_files_of_others(tmp_path, mode):
    """Neither the problem, nor another candidate's folder, nor this package's tests, nor a folder's names."""
    if not mechanisms(mode).landlock:
        pytest.skip("this kernel has no landlock")
    problem, other = tmp_path / "problem.py", tmp_path / "other"
    problem.write_text("expected = 1")
    other.mkdir()
    (other / "candidate.py").write_text("secret = 1")
    paths = [str(problem), str(other), str(other / "candidate.py"), __file__, str(tmp_path), "/tmp", "/etc/shadow"]
    answers = run(tmp_path / "own", """
        paths = bytes.fromhex(sys.argv[1]).decode().split()
        for path in paths:
            print(attempt(lambda: open(path).read() if not os.path.isdir(path) else os.listdir(path)))
        os.symlink(paths[0], "link")
        print(attempt(lambda: open("link").read()))
        print(attempt(lambda: os.link(paths[0], "hard")))
    """, mode, arguments=(" ".join(paths).encode().hex(),)).split()
    assert answers[:-1] == ["PermissionError"] * (len(paths) + 1) and answers[-1] != "done"
    # a file that the command itself names is what the judge wants read, and nothing beside it
    assert run(tmp_path / "own", "print(open(sys.argv[1]).read())", mode, arguments=(str(problem),)) == "expected = 1"


@pytest.mark.parametrize("mode", ["best", "landlock", "namespaces"])
def test_no_writing_elsewhere(tmp_path, mode):
    target = tmp_path / "target"
    target.write_text("whole")
    beside = os.path.dirname(os.__file__)
    if mode != "namespaces" and not mechanisms(mode).landlock:
        pytest.skip("this kernel has no landlock")
    answers = run(tmp_path / "own", """
        target, beside = bytes.fromhex(sys.argv[1]).decode(), sys.argv[2]
        print(attempt(lambda: open(target, "w")))
        print(attempt(lambda: open(target + ".new", "w")))
        print(attempt(lambda: os.unlink(target)))
        print(attempt(lambda: os.rename(target, "mine")))
        print(attempt(lambda: os.truncate(target, 0)))
        print(attempt(lambda: open(os.path.join(beside, "kernelwright_attack.py"), "w")))
    """, mode, arguments=(str(target).encode().hex(), beside))
    assert "done" not in answers and len(answers.split()) == 6
    assert target.read_text() == "whole" and os.listdir(tmp_path / "own") == ["tmp"]
    assert not os.path.exists(os.path.join(beside, "kernelwright_attack.py"))


def test_beside_nvidia_devices_threads_may_be_named(tmp_path, monkeypatch):
    """CUDA's first call fails otherwise. Nothing else in /proc may be written."""
    if not mechanisms("best").landlock:
        pytest.skip("this kernel has no landlock")
    usual = isolation.devices()
    code = """
        import threading
        def name_it():
            print(attempt(lambda: open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write("cuda")))
        thread = threading.Thread(target=name_it)
        thread.start()
        thread.join()
        print(attempt(lambda: open("/proc/self/oom_score_adj", "w")))
        print(attempt(lambda: open("/proc/sys/kernel/core_pattern", "a")))
    """
    for found, answer in (((), "PermissionError"), (("/dev/nvidia0",), "done")):
        harmless = tuple(device for device in usual if "nvidia" not in device)
        monkeypatch.setattr(isolation, "devices", lambda found=found, harmless=harmless: (*harmless, *found))
        answers = run(tmp_path / f"own{len(found)}", code)
        assert answers.split() == [answer, "PermissionError", "PermissionError"]


def test_no_settings_of_the_system(tmp_path):
    """As root, the kernel's settings and the disks' devices are files that their owner may write."""
    if not mechanisms("best").landlock:
        pytest.skip("this kernel has no landlock")
    devices = [str(p) for p in Path("/dev").iterdir() if p.is_block_device()][:1]
    answers = run(tmp_path / "own", """
        print(attempt(lambda: open("/proc/sys/kernel/core_pattern", "a")))
        print(attempt(lambda: open("/proc/sys/vm/drop_caches", "a")))
        for device in sys.argv[1:]:
            print(attempt(lambda: open(device, "rb")))
    """, arguments=tuple(devices))
    assert set(answers.split()) == {"PermissionError"}


@pytest.mark.parametrize("mode", ["best", "landlock and seccomp"])
def test_nothing_is_left_for_a_later_process(tmp_path, mode):
    """Results stored by one worker are not found by the next: shared memory, System V memory, temporary folders."""
    found = mechanisms(mode)
    if not (found.landlock and found.seccomp):
        pytest.skip("this kernel has no landlock or no seccomp")
    code = """
        libc = ctypes.CDLL(None, use_errno=True)
        for folder in ("/dev/shm", "/tmp", "/var/tmp"):
            name = folder + "/kernelwright_left"
            print("found" if attempt(lambda: open(name).read()) == "done" else "nothing")
            attempt(lambda: open(name, "w").write("left"))
        print("found" if libc.shmget(0x6b77, 64, 0) >= 0 else "nothing")
        libc.shmget(0x6b77, 64, 0o1666)
    """
    for name in ("first", "second"):
        assert run(tmp_path / name, code, mode).split() == ["nothing"] * 4
    assert not any(os.path.exists(f"{folder}/kernelwright_left") for folder in ("/dev/shm", "/tmp", "/var/tmp"))


@pytest.mark.parametrize("mode", MODES)
def test_no_file_beyond_the_limit(tmp_path, mode):
    answers = run(tmp_path / "own", """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        def write(count):
            with open("large", "wb") as file:
                file.write(bytes(count))
        print(attempt(lambda: write(1 << 19)), attempt(lambda: write(1 << 21)), os.path.getsize("large"))
    """, mode, limits=Limits(file_bytes=1 << 20))
    assert answers.split() == ["done", "OSError", str(1 << 20)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("namespaces", [(), ("network", "IPC", "mount", "PID")])
def test_root_without_landlock_becomes_another_user(namespaces):
    """Then files of root, the judge's process and another worker's folder are kept as from any user."""
    interpreter = "/usr/bin/python3"
    if not os.path.exists(interpreter):
        pytest.skip("no interpreter that every user may start")
    if namespaces and not isolation.works(Mechanisms(namespaces)):
        pytest.skip("root may not make namespaces here")
    code = PRELUDE + textwrap.dedent("""
        open("mine", "w").write("x")
        open(os.environ["TMPDIR"] + "/mine", "w").write("x")
        print(os.getuid() > 60000, open("/proc/self/stat").read().split()[0] == str(os.getpid()))
        print(attempt(lambda: os.listdir(sys.argv[1])), attempt(lambda: open(sys.argv[2]).read()),
              attempt(lambda: open("/proc/sys/kernel/core_pattern", "a")),
              attempt(lambda: os.kill(int(sys.argv[3]), 0)),
              attempt(lambda: open(f"/proc/{sys.argv[3]}/mem")), attempt(lambda: os.setuid(0)))
    """)
    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as other, tempfile.TemporaryFile() as file:
        Path(own, "given").write_text("x")
        worker = isolation.start([interpreter, "-I", "-S", "-c", code, other, "/etc/shadow", str(os.getpid())],
                                 Path(own), (), Limits(), isolation.environment(Path(own)), file.fileno(),
                                 Mechanisms(namespaces, other_user=True))
        deadline = time.monotonic() + 20
        while worker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        worker.end()
        file.seek(0)
        first, second = file.read().decode().strip().splitlines()
        assert first == "True True" and "done" not in second and worker.poll() == 0
        assert os.stat(own).st_uid == os.stat(f"{own}/given").st_uid == os.stat(f"{own}/mine").st_uid > 60000
    assert "files open to everybody" in worker.isolation and "(as root)" not in worker.isolation


# --- other processes ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", ["best", "namespaces", "landlock", "seccomp"])
def test_the_judge_gets_no_signal(tmp_path, mode):
    """Signal 0 asks for the permission alone."""
    found = mechanisms(mode)
    if mode == "landlock" and landlock.version() < 6:
        pytest.skip("this kernel's landlock does not keep signals in")
    if mode == "best" and not ("PID" in found.namespaces or found.seccomp):
        pytest.skip("this system has neither PID namespaces nor seccomp")
    answers = run(tmp_path / "own", """
        judge, group = int(sys.argv[1]), int(sys.argv[2])
        print(attempt(lambda: os.kill(judge, 0)))
        print(attempt(lambda: os.killpg(group, 0)))
    """, mode, arguments=(str(os.getpid()), str(os.getpgid(0))))
    assert set(answers.split()) <= {"PermissionError", "ProcessLookupError"}, answers
    if found.seccomp:  # all at once, and the process above (in a PID namespace, the kernel shields that one)
        both = "print(attempt(lambda: os.kill(-1, 0)), attempt(lambda: os.kill(os.getppid(), 0)))"
        assert run(tmp_path / "own", both, mode).split() == ["PermissionError"] * 2


@pytest.mark.parametrize("mode", ["best", "namespaces", "landlock", "seccomp"])
def test_no_look_into_other_processes(tmp_path, mode):
    """Not by tracing, and (where the kernel keeps processes apart) not by /proc."""
    victim = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(30)"])
    try:
        answers = run(tmp_path / "own", """
            libc = ctypes.CDLL(None, use_errno=True)
            libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
            print("done" if libc.ptrace(0x4206, int(sys.argv[1]), None, None) == 0 else "refused")  # PTRACE_SEIZE
            print(attempt(lambda: open(f"/proc/{sys.argv[1]}/mem", "rb")))
        """, mode, arguments=(str(victim.pid),)).split()
        assert answers[0] == "refused"
        if mode != "seccomp" or os.geteuid() == 0:  # root's worker has fewer rights than root, which the kernel sees
            assert answers[1] != "done"
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


@pytest.mark.parametrize("mode", ["best", "landlock and seccomp", "nothing"])
def test_what_leaves_the_session_ends_too(tmp_path, mode):
    """A daemon (double fork, own session, cleaned environment) is gone when the worker has ended by itself."""
    folder = tmp_path / "own"
    with Running(folder, """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve(sys.executable, [sys.executable, "-I", "-S", "-c",
                          "import time\\nwhile True: open('beat', 'a').write('x'); time.sleep(0.01)"], {})
            os._exit(0)
        while not os.path.exists("beat"):
            time.sleep(0.01)
        print("beats")
    """, mode) as running:
        assert running.wait() == 0 and running.printed.strip() == "beats"
        size = (folder / "beat").stat().st_size
        time.sleep(0.15)
        assert (folder / "beat").stat().st_size == size


@pytest.mark.parametrize("mode", ["best", "landlock and seccomp", "nothing"])
def test_a_bomb_is_counted_and_ended(tmp_path, mode):
    """Sixty-four processes, half of them in sessions of their own, and four lines that keep replacing themselves."""
    mark = f"kernelwright_bomb_{os.getpid()}_{mode.replace(' ', '_')}"
    with Running(tmp_path / "own", """
        deadline = time.monotonic() + 60  # whatever the sandbox does, this machine is left alone
        for level in range(6):
            if os.fork() == 0 and level % 2:
                os.setsid()
        if os.fork() and os.fork():
            while time.monotonic() < deadline:
                time.sleep(0.5)
            os._exit(0)
        for number in range(40):
            if os.fork():
                os._exit(0)
            time.sleep(0.2)
        os._exit(0)
    """, mode, arguments=(mark,)) as running:
        deadline = time.monotonic() + 50
        while (used := isolation.usage(running.worker.pid))[0] < 64 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert used[0] >= 64 and used[1] >= used[0] and used[2] > 64 * 100_000
        assert running.worker.poll() is None
        running.worker.end()
        assert holders(mark) == []
    assert running.worker.poll() is not None and isolation.usage(running.worker.pid) == (0, 0, 0)


@pytest.mark.parametrize("mode", ["best", "nothing"])
def test_a_worker_ends_with_its_judge(tmp_path, mode):
    """Also when the judge is killed and can end nothing."""
    mechanisms(mode)
    mark = f"kernelwright_orphan_{os.getpid()}_{mode}"
    (tmp_path / "own").mkdir()
    judge = subprocess.Popen([sys.executable, "-c", textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from kernelwright.judge.sandbox import isolation
        from kernelwright.judge.sandbox.confine import Mechanisms
        from kernelwright.judge.sandbox.limits import Limits
        folder = Path({str(tmp_path / "own")!r})
        command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)", {mark!r}]
        worker = isolation.start(command, folder, (), Limits(), isolation.environment(folder), 1, {mechanisms(mode)!r})
        print("started", flush=True)
        time.sleep(60)
    """)], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    try:
        assert judge.stdout.readline() == "started\n"
        assert holders(mark)
    finally:
        judge.kill()
        judge.wait()
    deadline = time.monotonic() + 60
    while holders(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert holders(mark) == []


# --- what the judge is told --------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", ["best", "nothing"])
@pytest.mark.parametrize(("code", "status"), [
    ("sys.exit(3)", 3), ("os.abort()", -signal.SIGABRT), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ("ctypes.string_at(0)", -signal.SIGSEGV), ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM)])
def test_the_exit_status_is_the_workers(tmp_path, mode, code, status):
    with Running(tmp_path / "own", code, mode) as running:
        assert running.wait() == status


@pytest.mark.parametrize("mode", ["best", "nothing"])
def test_descriptors_end_with_the_worker(tmp_path, mode):
    """Its end of a pipe is held by nobody else, so that the judge reads the end of the file when it is closed there."""
    reader, writer = os.pipe()
    with Running(tmp_path / "own", "n = int(sys.argv[1]); os.write(n, b'reply'); os.close(n); time.sleep(240)", mode,
                 arguments=(str(writer),), pass_fds=(writer,)) as running:
        os.close(writer)
        os.set_blocking(reader, True)
        assert os.read(reader, 100) == b"reply"
        assert os.read(reader, 100) == b""
        assert running.worker.poll() is None
    os.close(reader)


def test_only_listed_variables_pass(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    names = set(json.loads(run(tmp_path / "own", "import json; print(json.dumps(dict(os.environ)))")))
    assert "SECRET_TOKEN" not in names and {"PATH", "HOME", "TMPDIR", "OMP_NUM_THREADS"} <= names
    assert "hidden" not in json.dumps(isolation.environment(tmp_path))
    assert isolation.environment(tmp_path, {"OMP_NUM_THREADS": "1"})["OMP_NUM_THREADS"] == "1"


def test_what_cannot_start_is_said(tmp_path):
    with pytest.raises(isolation.SandboxError, match=r"FileNotFoundError.*"), open(os.devnull, "w") as file:
        isolation.start([str(tmp_path / "nothing")], tmp_path, (), Limits(), isolation.environment(tmp_path),
                        file.fileno())


def test_the_words_say_what_is_missing(tmp_path):
    full = isolation.words(InForce(list(EVERYTHING), True, False, True, True, 7, True, True, root=True))
    assert "network, IPC, mount and PID namespaces" in full and "landlock 7" in full and "seccomp" in full
    assert "NOT" not in full
    nothing = isolation.words(InForce(root=True))
    assert ("NOT kept from it: the network, reading and writing files, signals and the memory of other processes "
            "(as root)") in nothing
    with Running(tmp_path / "own", "pass", "nothing") as running:
        assert running.wait() == 0
        assert "namespace" not in running.worker.isolation and "NOT kept" in running.worker.isolation
    found = isolation.available()
    with Running(tmp_path / "own", "pass") as running:
        present = {"landlock": found.landlock, "seccomp": found.seccomp, "PID": "PID" in found.namespaces}
        assert {name: name in running.worker.isolation for name in present} == present


# --- a process that confines itself ------------------------------------------------------------------------------

def test_a_forked_child_confines_itself(tmp_path):
    """As a server of workers does it: fork, apply, and what the parent may the child may not."""
    plan = Plan(str(tmp_path / "own"), ("/usr", "/lib", "/lib64", "/proc"), ("/dev/null",), 1 << 20, 64,
                Mechanisms(landlock=True, seccomp=True))
    (tmp_path / "own").mkdir()
    script = textwrap.dedent(f"""
        import json, os, socket, sys
        from dataclasses import asdict
        from kernelwright.judge.sandbox.confine import Plan, apply_in_child
        plan = Plan.from_json(json.loads({json.dumps(json.dumps(plan.to_json()))}))
        def attempt(action):
            try:
                action()
                return "done"
            except OSError as error:
                return type(error).__name__
        if os.fork() == 0:
            facts = asdict(apply_in_child(plan, protected=(os.getppid(),)))
            facts["own"] = attempt(lambda: open(plan.folder + "/a", "w"))
            facts["elsewhere"] = attempt(lambda: open({str(tmp_path / "b")!r}, "w"))
            facts["socket"] = attempt(socket.socket)
            facts["signal"] = attempt(lambda: os.kill(os.getppid(), 0))
            facts["session"] = os.getsid(0) == os.getpid()
            print(json.dumps(facts), flush=True)
            os._exit(0)
        os.wait()
        open({str(tmp_path / "c")!r}, "w")
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE,
                          cwd=ROOT)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["own"] == "done" and facts["session"] and (tmp_path / "c").exists()
    assert facts["elsewhere"] == ("PermissionError" if facts["landlock"] else "done")
    assert facts["socket"] == facts["signal"] == ("PermissionError" if facts["seccomp"] else "done")
    assert (facts["landlock"] > 0, facts["seccomp"]) == (landlock.version() > 0, isolation.works(MODES["seccomp"]))


def test_several_threads_are_refused():
    import threading

    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="threads"):
            apply_in_child(Plan("/", (), (), 1, 1, Mechanisms()))
    finally:
        done.set()
        thread.join()


# --- numbers and programs ----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("column", "header"), [(0, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
                                                (1, "/usr/include/asm-generic/unistd.h")])
def test_the_numbers_are_the_kernels(column, header):
    if not os.path.exists(header):
        pytest.skip(f"no {header}")
    known = {name: int(value) for name, value in
             re.findall(r"#define\s+__NR_(\w+)\s+(\d+)\b", Path(header).read_text())}
    own = {name: columns[column] for name, columns in NUMBERS.items() if columns[column] is not None}
    assert {name for name, value in own.items() if name in known and known[name] != value} == set()
    assert len(own.keys() & known.keys()) > 60


def test_every_refused_call_has_a_number():
    assert {*seccomp.REFUSED, *seccomp.AIMED} <= NUMBERS.keys()


def test_a_long_list_of_protected_processes_fits():
    """A program has at most 4096 instructions; a judge with many threads must still start workers."""
    if not seccomp.supported():
        pytest.skip("no filter for this machine")
    assert len(seccomp.program(range(1, 3000))) // 8 <= 4096
    assert ctypes.sizeof(ctypes.c_void_p) == 8
