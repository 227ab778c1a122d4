"""A candidate's process and its stand-in: results, effects and failures come back as they were, and nothing else."""

from __future__ import annotations

import os
import select
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from kernelwright.judge.sandbox import isolation, process_tree
from kernelwright.judge.worker import zygote
from kernelwright.judge.worker.link import PATTERNS
from kernelwright.judge.worker.process import Limits, Worker, WorkerFailure, source_name
from kernelwright.judge.worker.remote import CandidateRaised, NotHandedOver, RemoteCandidate
from kernelwright.problem import load_problem
from kernelwright.processors import scheduled
from kernelwright.verify import certify
from kernelwright.verify.certificate import Plan, default_trials

HEAD = "import os, sys, threading, time, weakref\nimport torch\nfrom torch import nn\n\n"
SHORT = Limits(build_seconds=240, run_seconds=240)
QUICK = Plan(trials=default_trials()[:3], budget_seconds=60, repeats=2)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def problem_of(folder: Path, model: str, inputs: str, arguments: str = "[]", device: str = "cpu"):
    path = folder / "model.py"
    path.write_text(HEAD + textwrap.dedent(model) + textwrap.dedent(f"""
        def get_inputs():
            return {inputs}

        def get_init_inputs():
            return {arguments}
    """))
    return load_problem(path, device=device)


def file_of(folder: Path, text: str) -> Path:
    path = folder / "candidate.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return path


FORWARD = """
    class ModelNew(nn.Module):
        def forward(self, x):
            {}
"""
PLAIN = """
    class Model(nn.Module):
        def forward(self, x):
            return torch.relu(x)
"""
LINEAR = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 4)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return torch.tanh(self.norm(self.fc(x)))
"""


SOCKETS = """
import stat


def _sockets():
    return [number for number in range(3, 64) if _is_socket(number)]


def _is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False

"""


def forward(body: str) -> str:
    return textwrap.dedent(FORWARD).format(textwrap.indent(textwrap.dedent(body), " " * 8).strip())


class Judged:
    """A worker with its remote candidate, ended with the test."""

    def __init__(self, folder: Path, candidate: str, model: str = PLAIN, inputs: str = "[torch.randn(5, 6)]",
                 arguments: str = "[]", limits: Limits = SHORT, training: bool = True, device: str = "cpu") -> None:
        self.problem = problem_of(folder, model, inputs, arguments, device)
        self.worker = Worker(file_of(folder, candidate), self.problem.device, limits)
        try:
            self.remote = RemoteCandidate(self.worker, self.problem, 0, training)
        except BaseException:
            self.worker.close()
            raise

    def certify(self, plan: Plan = QUICK):
        training = self.remote.training
        return certify(lambda: self.problem.make_model(0).train(training), lambda: self.remote,
                       self.problem.make_inputs, plan=plan)


@pytest.fixture
def judged(tmp_path):
    """Make `Judged`s that are closed afterwards."""
    made: list[Judged] = []

    def make(*arguments, **named):
        made.append(Judged(tmp_path, *arguments, **named))
        return made[-1]

    yield make
    for each in made:
        each.worker.close()


@torch.no_grad()
def call(judged: Judged, *inputs):
    return judged.remote(*inputs)


def test_right_and_wrong(judged):
    """The same model passes with state and gradients; one without its last step is refused."""
    right = judged(LINEAR.replace("class Model(", "class ModelNew("), LINEAR, training=True)
    plan = Plan(trials=default_trials()[:3], check_gradients=True)
    certificate = right.certify(plan)
    assert certificate.passed, certificate.sentence()
    assert certificate.state_copied and certificate.deterministic
    assert certificate.gradients is not None and certificate.gradients.passed
    assert {o.path for o in certificate.gradients.outputs} >= {"gradient['fc.weight']", "gradient['input 0']"}
    assert not right.remote.ever_late and right.remote.last.foreign == ()
    wrong = judged(LINEAR.replace("class Model(", "class ModelNew(").replace("torch.tanh(", "("), LINEAR)
    found = wrong.certify(plan)
    assert not found.passed and not found.trials[0].comparison.passed and not found.gradients.passed
    assert found.trials[0].state.passed  # the running statistics are right


def test_isolation_and_surroundings(judged, tmp_path):
    """The candidate finds an empty folder, no package of ours, no variables of the judge, and private folders."""
    case = judged("""
        FOUND = {}
        try:
            import kernelwright
            FOUND["package"] = 1
        except (ImportError, OSError):
            pass
        FOUND["files"] = os.listdir(".")
        FOUND["variables"] = sorted(n for n in os.environ if n.startswith("PYTHON") or "SECRET" in n)
        FOUND["build"], FOUND["tmp"] = os.environ["TORCH_EXTENSIONS_DIR"], os.environ["TMPDIR"]
        FOUND["modules"] = [n for n in sys.modules if n.startswith("kernelwright")]
        FOUND["visible"] = os.environ["CUDA_VISIBLE_DEVICES"]
        FOUND["threads"] = torch.get_num_threads()

        class ModelNew(nn.Module):
            def forward(self, x):
                return FOUND
    """)
    found = call(case, torch.ones(2))
    folder = str(case.worker.folder)
    assert "package" not in found and found["files"] == [] and found["modules"] == [] and found["visible"] == ""
    assert [n for n in found["variables"] if n != "PYTHONDONTWRITEBYTECODE"] == []
    assert found["build"].startswith(folder) and found["tmp"].startswith(folder)
    assert found["threads"] == torch.get_num_threads()
    assert case.worker.isolation == isolation_of_one_started_anew(tmp_path)
    case.worker.close()
    assert not Path(folder).exists()


def isolation_of_one_started_anew(folder: Path) -> str:
    """What confines a worker that no zygote forked."""
    with open(os.devnull, "w") as nowhere:
        started = isolation.start([sys.executable, "-c", "pass"], folder, (), Limits(), isolation.environment(folder),
                                  nowhere.fileno(), isolation.available(False))
        started.end()
    return started.isolation


def test_without_zygote(judged, monkeypatch):
    """Where no worker can be forked, one is started anew, and behaves alike."""
    monkeypatch.setattr(zygote, "shared", lambda _: None)
    case = judged(PLAIN.replace("class Model(", "class ModelNew("))
    assert torch.equal(call(case, torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
    assert type(case.worker._process) is isolation.Sandboxed


def test_state_of_all_kinds(judged):
    """Parameters (also tied ones), buffers and attributes are there, those of a layer under two names under both, and
    follow what either side writes."""
    text = """
        class ModelNew(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.last = nn.Linear(n, n, bias=False)
                self.tied = nn.Linear(n, n, bias=False)
                self.tied.weight = self.last.weight
                self.again = self.tied
                self.again.register_buffer("offset", torch.ones(()))
                self.register_buffer("seen", torch.zeros(()), persistent=False)
                self.register_buffer("kept", torch.ones(n))
                self.hidden = torch.zeros(n)
                self.cache = []
                self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

            def forward(self, x):
                self.seen += 1
                self.hidden = self.hidden + x.sum(0)
                self.cache.append(x.clone())
                return self.again(self.last(x)) * self.frozen.sum() + self.hidden + self.tied.offset
    """
    model = text.replace("ModelNew", "Model")
    case = judged(text, model, "[torch.randn(2, 3)]", "[3]")
    local, remote = case.problem.make_model(0), case.remote
    assert dict(remote.named_parameters()).keys() == dict(local.named_parameters()).keys()
    assert remote.state_dict().keys() == local.state_dict().keys()
    assert remote._modules["last"]._parameters["weight"] is remote._modules["tied"]._parameters["weight"]
    assert not remote.frozen.requires_grad
    certificate = case.certify()
    assert certificate.passed, certificate.sentence()
    with torch.no_grad():
        local.load_state_dict(remote.state_dict())
        local.hidden, local.cache = remote.hidden.clone(), []
        x = torch.randn(2, 3)
        assert torch.equal(remote(x), local(x)) and torch.equal(remote.hidden, local.hidden)
        assert float(remote.seen) == float(local.seen) or float(remote.seen) > 0
        remote.last  # noqa: B018  (facts, not the layer: its parameters stand in the tables)
        remote._modules["last"]._parameters["weight"].fill_(0.5)
        local.last.weight.fill_(0.5)
        local.hidden = remote.hidden = torch.full((3,), 2.0)
        assert torch.equal(remote(x), local(x))
        assert torch.equal(remote.cache[-1], x)


def test_inputs_keep_their_form(judged):
    """Strides, offsets, shared memory, nesting and plain values arrive as they are."""
    case = judged("""
        class ModelNew(nn.Module):
            def forward(self, x, options):
                y, factor, nothing, names = options["y"], options["factor"], options["nothing"], options["names"]
                same = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
                return (x.stride(), x.storage_offset(), y.stride(), same, factor, nothing, names,
                        (x * factor).to(options["to"]), x.t())
    """)
    base = torch.randn(10, 7)
    x, y = base[1:5, 2:].t(), base[3:]
    found = call(case, x, {"y": y, "factor": float("inf"), "nothing": None, "names": ["a", 3, True],
                           "to": torch.float64})
    assert found[:7] == (x.stride(), x.storage_offset(), y.stride(), True, float("inf"), None, ["a", 3, True])
    assert torch.equal(found[7], (x * float("inf")).double()) and torch.equal(found[8], x.t())
    assert found[8].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()  # a view of the input, here as there


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64,
                                   torch.uint8])
def test_dtypes_and_empty_tensors(judged, dtype):
    """Every common dtype goes there and back, also without elements, conjugated, and channels-last."""
    case = judged(forward("""
        return {"same": x.clone(), "none": x[:0], "scalar": x.flatten()[0].clone(), "last": x.clone(
            memory_format=torch.channels_last), "conjugate": x.conj() if x.is_complex() else x.clone()}
    """))
    x = torch.randint(0, 2, (2, 3, 4, 5)).to(dtype)
    found = call(case, x)
    assert all(t.dtype == dtype for t in found.values())
    assert torch.equal(found["same"], x) and found["none"].shape == (0, 3, 4, 5) and found["scalar"].shape == ()
    assert found["last"].is_contiguous(memory_format=torch.channels_last) and torch.equal(found["last"], x)
    assert torch.equal(found["conjugate"], x.conj().resolve_conj())


def test_memory_that_is_shared(judged):
    """Results in the memory of an input, a parameter or an earlier result are so here as well."""
    case = judged("""
        BLOCK = torch.zeros(64)

        class ModelNew(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.arange(6.0))
                self.turn = 0

            def forward(self, x, what):
                self.turn += 1
                if what == "input":
                    return x.relu_()
                if what == "weight":
                    return self.weight.detach()[2:]
                if what == "workspace":
                    BLOCK[:6] = x + self.turn
                    return BLOCK[:6]
                if what == "alternating":
                    half = BLOCK[:6] if self.turn % 2 else BLOCK[32:38]
                    half.copy_(x)
                    return half
                if what == "column":
                    return torch.zeros(100000, 8)[:, 3] + 1, torch.ones(100000, 8)[:, 3]
                return x.new_ones(()).expand(6), x.new_zeros(1).expand(2, 3)
    """)
    def at(t):
        return t.untyped_storage().data_ptr()

    x = torch.tensor([-1.0, 2.0, -3.0, 4.0, -5.0, 6.0])
    found = call(case, x, "input")
    assert at(found) == at(x) and torch.equal(x, torch.tensor([0.0, 2.0, 0.0, 4.0, 0.0, 6.0]))
    found = call(case, x, "weight")
    assert at(found) == at(case.remote.weight) and torch.equal(found, torch.arange(2.0, 6.0))
    first = call(case, x, "workspace")
    before = first.clone()
    second = call(case, x, "workspace")
    assert at(first) == at(second) and torch.equal(first, second) and not torch.equal(first, before)
    one, two = call(case, x, "alternating"), call(case, x + 1, "alternating")
    assert at(one) != at(two) and torch.equal(one, x) and torch.equal(two, x + 1)
    ones = call(case, x, "column")
    assert all(torch.equal(t, torch.ones(100000)) for t in ones) and ones[1].untyped_storage().nbytes() < 1 << 20
    expanded = call(case, x, "expanded")
    assert torch.equal(expanded[0], torch.ones(6)) and torch.equal(expanded[1], torch.zeros(2, 3))
    assert at(case.remote.weight) != 0 and torch.equal(case.remote.weight.detach(), torch.arange(6.0))


def test_objects_that_are_no_plain_tensors(judged):
    """What answers for itself does not come over: its type's name does."""
    case = judged("""
        class Lazy(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                raise SystemError("asked")

        class Odd:
            def __eq__(self, other):
                return True

        class ModelNew(nn.Module):
            def forward(self, x):
                sly = x + 1
                sly.shape_of = lambda: None
                own = type("Own", (nn.Parameter,), {})(x)
                return [x.as_subclass(Lazy), own, x.to_sparse(), x.to("meta"), Odd(), sly, 1 << 80]
    """)
    found = call(case, torch.ones(3))
    names = [type(f).__name__ for f in found]
    assert [n.split()[0] for n in names] == ["Lazy", "Own", "sparse_coo", "tensor", "Odd", "Tensor", "int"]
    assert type(found[5]) is torch.Tensor and torch.equal(found[5], torch.full((3,), 2.0))
    assert [name for _, name in case.remote.last.foreign] == names[:5] + names[6:]
    assert not any(isinstance(f, torch.Tensor) for f in found[:5])


def test_parameters_are_returned_as_such(judged):
    """In the memory in which they are, also where the candidate's class for them answers for itself: nobody asks it."""
    case = judged("""
        nn.Parameter.__torch_function__ = classmethod(lambda *arguments: 1 / 0)

        class ModelNew(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.arange(6.0))

            def forward(self, x):
                return [self.weight, (nn.Parameter(x + 1), nn.Parameter(x.long(), requires_grad=False))]
    """)
    weight, (more, whole) = call(case, torch.ones(3))
    assert {type(t) for t in (weight, more, whole)} == {torch.nn.Parameter} and not case.remote.last.foreign
    assert torch.equal(weight, torch.arange(6.0)) and torch.equal(more, torch.full((3,), 2.0))
    assert whole.tolist() == [1, 1, 1] and whole.dtype is torch.int64
    assert weight.untyped_storage().data_ptr() == case.remote.weight.untyped_storage().data_ptr()


def test_random_state(judged):
    """Random numbers are drawn from the judge's state, which goes on where the candidate left it."""
    case = judged(forward("return torch.nn.functional.dropout(x, 0.5, self.training)"))
    x = torch.ones(100)
    torch.manual_seed(11)
    found, after = call(case, x), torch.get_rng_state()
    torch.manual_seed(11)
    assert torch.equal(found, torch.nn.functional.dropout(x, 0.5)) and torch.equal(after, torch.get_rng_state())
    before = torch.get_rng_state()
    case.remote.eval()
    assert torch.equal(call(case, x), x) and torch.equal(before, torch.get_rng_state())


def test_late_results(judged, monkeypatch):
    """What a thread writes after the return is seen, and the values judged are those at the return."""
    monkeypatch.setattr("kernelwright.judge.worker.link.GRACE_SECONDS", 2.0)
    case = judged(forward("""
        out, kept = torch.zeros_like(x), {1}
        returned = weakref.ref(kept)
        def work():
            while returned() is not None:
                time.sleep(0.01)
            time.sleep(0.5)
            out.copy_(x)
        threading.Thread(target=work).start()
        return out
    """))
    assert torch.equal(call(case, torch.ones(4)), torch.zeros(4))
    assert case.remote.last.late and case.remote.ever_late


def test_nothing_runs_in_a_pause(judged):
    """Threads and processes of a candidate that go on between its calls stand still while others are timed."""
    case = judged(forward("""
        def spin():
            while True:
                sum(range(1000))
        if threading.active_count() == 1:
            threading.Thread(target=spin, daemon=True).start()
            if not os.fork():
                spin()
        return x + 1
    """))
    assert torch.equal(call(case, torch.ones(4)), torch.full((4,), 2.0))

    def used(seconds: float) -> float:
        leader = case.worker.process_number
        numbers = [process.number for process in process_tree.members(leader)]
        before = scheduled(numbers)
        time.sleep(seconds)
        return scheduled(numbers).since(before).ran

    assert used(1.0) > 0.05
    case.worker.pause()
    assert used(0.5) < 0.01
    assert torch.equal(call(case, torch.zeros(4)), torch.ones(4))
    assert used(1.0) > 0.05


def test_poisoned_memory(judged):
    """Memory that is not written holds poison, not what a call before left there."""
    model = PLAIN.replace("torch.relu(x)", "x * 2")
    case = judged("""
        class ModelNew(nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = 0

            def forward(self, x):
                self.calls += 1
                return x * 2 if self.calls == 1 else torch.empty_like(x)
    """, model, "[torch.randn(300, 300)]")
    certificate = case.certify()
    assert not certificate.passed and not certificate.deterministic
    for pattern in range(2):
        case.remote.poison_memory([torch.empty(300, 300)])
        found = call(case, torch.zeros(300, 300))
        assert bool((~torch.isfinite(found) | (found.abs() > 1e20)).all()), pattern


def test_memory_of_other_sizes_is_poisoned(judged):
    """What C++ code takes for itself is full of poison in every call, by either pattern: no block was freed for it."""
    case = judged(forward("""
        import ctypes
        import numpy
        take = ctypes.CDLL(None).malloc
        take.restype, take.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        found = []
        for size in (1 << 12, 1 << 20, 1 << 26):
            block = (ctypes.c_ubyte * size).from_address(take(size))
            found.append(numpy.bincount(numpy.frombuffer(block, numpy.uint8), minlength=256))
        return torch.from_numpy(numpy.stack(found))
    """))
    patterns = []
    for _ in range(2):
        case.remote.poison_memory([torch.empty(5, 6)])
        found = call(case, torch.zeros(5, 6))
        patterns.append(int(found[0].argmax()))
        assert found[:, patterns[-1]].tolist() == [1 << 12, 1 << 20, 1 << 26]
    assert sorted(patterns) == sorted(PATTERNS)


def test_own_exceptions(judged, tmp_path):
    """What the candidate raises comes back with its type, message and line; the worker goes on."""
    case = judged(forward("""
        if x.dim() == 1:
            raise ValueError("one dimension is too few")
        if x.dim() == 2:
            sys.exit(3)
        return x
    """))
    with pytest.raises(CandidateRaised, match="one dimension is too few") as raised:
        call(case, torch.ones(2))
    error = raised.value.error
    text = (tmp_path / "candidate.py").read_text().splitlines()
    assert type(raised.value).__name__ == "ValueError" and error["own"] is None and not error["memory"]
    assert "raise ValueError" in text[error["line"] - 1] and "candidate.py" in error["traceback"]
    with pytest.raises(CandidateRaised) as raised:
        call(case, torch.ones(2, 2))
    assert type(raised.value).__name__ == "SystemExit"
    assert torch.equal(call(case, torch.ones(1, 1, 2)), torch.ones(1, 1, 2))
    certificate = case.certify(Plan(trials=default_trials()[:1]))
    assert "SystemExit" in certificate.why[-1]


@pytest.mark.parametrize("kind", ["RuntimeError", "torch.OutOfMemoryError", "torch.AcceleratorError"])
def test_device_memory_that_a_candidate_lacks(judged, kind):
    """The runtime and its libraries say so by words alone; a candidate's own kind of exception is its own."""
    case = judged(forward(f"""
        if x.dim() == 1:
            raise {kind}("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        raise ValueError("CUDA error: out of memory")
    """))
    with pytest.raises(torch.OutOfMemoryError):
        call(case, torch.ones(2))
    with pytest.raises(CandidateRaised):
        call(case, torch.ones(2, 2))


@pytest.mark.parametrize("text, kind, own, line", [
    ("import nothing_of_that_name", "ModuleNotFoundError", None, "import nothing"),
    ("class ModelNew(nn.Module:\n    pass", "SyntaxError", None, "class ModelNew"),
    ("class Model2(nn.Module):\n    pass", "NoClass", "no-class", None),
    ("ModelNew = 3", "NoClass", "no-class", None),
    ("class ModelNew(nn.Module):\n    def __init__(self):\n        self.a = nn.Linear(2, 2)", "AttributeError", None,
     "self.a ="),
    ("class ModelNew(nn.Module):\n    def __init__(self, n):\n        super().__init__()", "TypeError", None, None),
])
def test_candidates_that_do_not_construct(judged, tmp_path, text, kind, own, line):
    """Import and construction fail with the candidate's own error."""
    with pytest.raises(CandidateRaised) as raised:
        judged(text)
    error = raised.value.error
    assert (error["type"], error["own"]) == (kind, own)
    if line is not None:
        assert line in (tmp_path / "candidate.py").read_text().splitlines()[error["line"] - 1]


def test_too_large_results(judged):
    """A result of many times the model's size is told, not sent."""
    case = judged(forward("return torch.zeros(()).expand(10 ** 6, 10 ** 6)"))
    case.remote.expect([torch.ones(3)])
    with pytest.raises(CandidateRaised, match="1000000") as raised:
        call(case, torch.ones(3))
    assert raised.value.error["own"] == "too-large"


@pytest.mark.parametrize("body, verdict, words", [
    ("os._exit(0)", "CRASH-SIGNAL", "status 0"),
    ("os._exit(7)", "CRASH-SIGNAL", "status 7"),
    ("os.abort()", "CRASH-SIGNAL", "SIGABRT"),
    ("import ctypes; ctypes.string_at(8)", "CRASH-SIGNAL", "SIGSEGV"),
    ("os.kill(os.getpid(), 15)", "CRASH-SIGNAL", "SIGTERM"),
    ("time.sleep(600)", "CRASH-TIMEOUT", "its forward in its 2 s; --limit"),
    ("while True: pass", "CRASH-TIMEOUT", "forward"),
    ("print('x' * (1 << 20), flush=True) or [print('y' * (1 << 20), flush=True) for _ in range(40)]; return x",
     "CRASH-FLOOD", "MiB"),
    ("self.kept = torch.ones(200 << 20); time.sleep(600)", "CRASH-MEMORY", "GiB"),
    ("[os.fork() for _ in range(6)]; time.sleep(600)", "CRASH-PROCESSES", "processes"),
    ("[os.write(n, b'{\"ok\": true}\\n') for n in _sockets()]; return x", "CHEAT-PROTOCOL", "did not make"),
    ("[os.write(n, b'nonsense\\n') for n in _sockets()]; return x", "CHEAT-PROTOCOL", "not JSON"),
    ("[os.write(n, b'{' * (1 << 20)) for n in _sockets() for _ in range(9)]; return x", "CHEAT-PROTOCOL",
     "without an end"),
    ("[os.close(n) for n in _sockets()]; time.sleep(600)", "CHEAT-PROTOCOL", "closed"),
])
def test_failures(judged, body, verdict, words):
    """Whatever ends a candidate costs it alone, and is named."""
    limits = Limits(build_seconds=240, run_seconds=2 if verdict == "CRASH-TIMEOUT" else 240, memory_bytes=600 << 20,
                    processes=16, flood_bytes=8 << 20)
    case = judged(SOCKETS + forward(body), limits=limits)
    with pytest.raises(WorkerFailure) as failed:
        call(case, torch.ones(3))
    failure = failed.value
    assert (failure.verdict, failure.stage) == (verdict, "run") and words in failure.sentence, failure.sentence
    assert vars(case.worker.failure) == vars(failure) and case.worker._process.poll() is not None
    with pytest.raises(WorkerFailure):
        call(case, torch.ones(3))
    if verdict == "CRASH-FLOOD":
        assert len(failure.printed) <= limits.output_bytes + (1 << 16) and "y" * 1000 in failure.printed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_is_ended_between_requests_has_written_nothing(judged, number):
    """As the system does where memory has run out: a line that has ended is no line with an answer."""
    case = judged(forward("return x"))
    call(case, torch.ones(3))
    os.kill(case.worker._own.number, number)
    assert select.select([case.worker._line], [], [], 60)[0]
    with pytest.raises(WorkerFailure) as failed:
        call(case, torch.ones(3))
    assert failed.value.verdict == "CRASH-SIGNAL"
    assert f"{number.name} between two requests" in failed.value.sentence


def test_a_process_that_memory_ran_out_for_between_requests(judged, monkeypatch):
    """Says nothing about a candidate, which needed no more of it."""
    case = judged(forward("return x"))
    monkeypatch.setattr("kernelwright.judge.worker.process.oom_kills", lambda: case.worker._oom_kills + 1)
    os.kill(case.worker._own.number, signal.SIGKILL)
    assert select.select([case.worker._line], [], [], 60)[0]
    with pytest.raises(WorkerFailure, match="between two requests, because memory had run out") as failed:
        call(case, torch.ones(3))
    assert failed.value.verdict == "JUDGE-ERROR"


def test_an_end_that_takes_long_is_an_end(judged):
    """Its line is closed long before its status is there, where the process above it waits for its turn."""
    case = judged(forward("os._exit(5)"))
    above = case.worker.process_number
    os.kill(above, signal.SIGSTOP)

    def go_on():
        while process_tree.runs(case.worker._own):
            time.sleep(0.01)
        time.sleep(3)
        os.kill(above, signal.SIGCONT)

    thread = threading.Thread(target=go_on)
    thread.start()
    with pytest.raises(WorkerFailure, match="status 5 in its forward") as failed:
        call(case, torch.ones(3))
    thread.join()
    assert failed.value.verdict == "CRASH-SIGNAL"


def test_who_writes_without_being_asked(judged):
    case = judged(SOCKETS + forward("""
        def work():
            while not os.path.exists("go"):
                time.sleep(0.01)
            [os.write(n, b'{}\\n') for n in _sockets()]
        threading.Thread(target=work, daemon=True).start()
        return x
    """))
    call(case, torch.ones(3))
    (case.worker.folder / "work" / "go").touch()
    assert select.select([case.worker._line], [], [], 60)[0]
    with pytest.raises(WorkerFailure, match="without having been asked") as failed:
        call(case, torch.ones(3))
    assert failed.value.verdict == "CHEAT-PROTOCOL"


def test_an_answer_that_comes_by_the_byte_has_a_time_limit(judged):
    """Each byte is there before anybody would look whether time is up."""
    case = judged(SOCKETS + forward("""
        while True:
            [os.write(n, b"{") for n in _sockets()]
            time.sleep(0.01)
    """), limits=Limits(build_seconds=240, run_seconds=1))
    with pytest.raises(WorkerFailure) as failed:
        call(case, torch.ones(3))
    assert failed.value.verdict == "CRASH-TIMEOUT"


def test_limits_go_by_a_clock_that_stands_still_while_the_judge_is_stopped(judged, monkeypatch):
    """In a suite that is while another process has the device to itself (`device_lock.clock`)."""
    case = judged(forward("time.sleep(1.5); return x"), limits=Limits(build_seconds=240, run_seconds=1))
    monkeypatch.setattr("kernelwright.judge.worker.process.clock", lambda: 0.0)
    call(case, torch.ones(3))
    monkeypatch.undo()
    with pytest.raises(WorkerFailure) as failed:
        call(case, torch.ones(3))
    assert failed.value.verdict == "CRASH-TIMEOUT"


def test_a_request_that_is_interrupted_accuses_nobody(judged):
    """The answer that is under way then is nobody's: the process is asked nothing more."""
    case = judged(forward("time.sleep(0.2); return x"))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            call(case, torch.ones(3))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    with pytest.raises(WorkerFailure, match="interrupted") as failed:
        call(case, torch.ones(3))
    assert failed.value.verdict == "JUDGE-ERROR"


@pytest.mark.parametrize("code, verdict, words", [
    ("time.sleep(600)", "BUILD-TIMEOUT", "importing, .* in its 2 s; --limit BUILD,CALL"),
    ("print('before'); sys.stdout.flush(); os._exit(4)", "CRASH-SIGNAL", "status 4"),
    ("import atexit; atexit.register(print, 'late'); os.kill(os.getpid(), 11)", "CRASH-SIGNAL", "SIGSEGV"),
])
def test_failures_while_building(judged, code, verdict, words):
    """Failures before the first call say so."""
    with pytest.raises(WorkerFailure, match=words) as failed:
        judged(code, limits=Limits(build_seconds=2 if verdict == "BUILD-TIMEOUT" else 240))
    assert (failed.value.verdict, failed.value.stage) == (verdict, "build")
    assert failed.value.printed == ("before\n" if "before" in code else "")


def test_replies_that_lie(judged):
    """An answer whose fields cannot be is a breach; no byte outside of the shared memory is read."""
    lies = ["memory['storages'][0]['at'] = 1 << 60", "memory['storages'][0]['bytes'] = -1",
            "memory['tensors'][0]['shape'] = [1 << 40]", "memory['tensors'][0]['stride'] = [-1]",
            "memory['tensors'][0]['dtype'] = 'object'", "memory['tensors'][0]['offset'] = 100",
            "memory['tensors'][0]['storage'] = 7", "memory['storages'][0]['of'] = 'input'",
            "memory['storages'][0].update(of='state', kind='p', path='none', leaf=0)",
            "memory['storages'][0].update(of='new', at=None)", "memory['storages'][0]['earlier'] = [0, 99]",
            "reply['outputs'] = {'t': 5}", "reply['outputs'] = {'t': -1}", "reply['late'] = 1",
            "reply['seconds'] = -1.0",
            "reply['state'] = 3", "reply['random'] = [0]", "del reply['effects']", "reply['warnings'] = [1]"]
    for lie in lies:
        case = judged(f"""
            import json
            old = json.dumps

            def dumps(reply, **named):
                if "outputs" in reply:
                    memory = reply["memory"]
                    {lie}
                return old(reply, **named)

            frame = sys._getframe()
            while "_dumps" not in frame.f_globals:
                frame = frame.f_back
            frame.f_globals["_dumps"] = dumps
        """ + textwrap.indent(forward("return x + 1"), "            "))
        with pytest.raises(WorkerFailure) as failed:
            call(case, torch.ones(3))
        assert failed.value.verdict == "CHEAT-PROTOCOL", lie
        case.worker.close()


def test_shared_memory_that_is_cut(judged):
    """A worker that cuts or fills the shared memory harms nobody but itself."""
    case = judged(forward("""
        for number in range(3, 200):
            try:
                os.ftruncate(number, 0)
            except OSError:
                pass
        return x + 1
    """))
    assert torch.equal(call(case, torch.ones(3)), torch.full((3,), 2.0))


def test_arguments_of_the_problem(tmp_path, judged):
    """Arguments that need the problem's own file are refused with the type's name; other objects go over."""
    with pytest.raises(NotHandedOver, match="Options"):
        judged(PLAIN, "class Options:\n    pass\n" + textwrap.dedent(PLAIN).replace(
            "def forward", "def __init__(self, o):\n        super().__init__()\n\n    def forward"),
            arguments="[Options()]")
    case = judged("""
        class ModelNew(nn.Module):
            def __init__(self, kind, size, table):
                super().__init__()
                self.weight = nn.Parameter(table[size].to(kind))

            def forward(self, x):
                return x + self.weight
    """, arguments="[torch.float64, (2,), {(2,): torch.ones(2)}]", model="""
        class Model(nn.Module):
            def __init__(self, kind, size, table):
                super().__init__()
                self.weight = nn.Parameter(table[size].to(kind))

            def forward(self, x):
                return x + self.weight
    """, inputs="[torch.randn(2)]")
    assert case.remote.weight.dtype == torch.float64 and case.certify().passed


@pytest.mark.parametrize("name, expected", [("a b.py", "a_b.py"), ("worker.py", "worker_.py"),
                                             ("1_Conv.py", "1_Conv.py"), ("ü.py", "_.py")])
def test_names_of_files(name, expected):
    assert source_name(Path(name)) == expected


def test_a_dictionary_with_bytes_for_keys_is_the_candidates_own(judged):
    """An honest cache is no state that is told, and no breach of the protocol."""
    case = judged(forward("""
        kept = self.__dict__.setdefault("kept", {})
        kept[b"key %d" % len(kept)] = torch.relu(x)
        return kept[b"key %d" % (len(kept) - 1)].clone()
    """))
    assert case.certify().passed and case.worker.failure is None


@pytest.mark.gpu
@needs_gpu
def test_right_and_wrong_on_a_gpu(judged):
    """On a device: state, gradients, random numbers and effects; the worker is forked and has the device to itself."""
    right = judged(LINEAR.replace("class Model(", "class ModelNew("), LINEAR, device="cuda")
    certificate = right.certify(Plan(trials=default_trials()[:3], check_gradients=True))
    assert certificate.passed, certificate.sentence()
    assert not right.remote.ever_late and right.remote.launch_errors == ()
    assert type(right.worker._process) is zygote.Forked
    wrong = judged(LINEAR.replace("class Model(", "class ModelNew(").replace("torch.tanh(", "("), LINEAR, device="cuda")
    assert not wrong.certify().passed
    drops = judged(forward("return torch.nn.functional.dropout(x.relu_(), 0.5)"), device="cuda")
    x = torch.randn(64, device="cuda")
    torch.cuda.manual_seed(5)
    found, state = call(drops, x), torch.cuda.get_rng_state()
    torch.cuda.manual_seed(5)
    assert torch.equal(found, torch.nn.functional.dropout(x, 0.5)) and bool((x >= 0).all())  # x is changed here, too
    assert torch.equal(state, torch.cuda.get_rng_state())


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("leaves, joins", [(False, False), (True, False), (False, True)])
def test_side_streams(judged, leaves, joins):
    """Work on another stream that nobody waits for is late, also where that stream is left as the current one."""
    case = judged(forward(f"""
        out = torch.zeros_like(x)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            out.copy_(x)
        if {joins}:
            torch.cuda.current_stream().wait_stream(side)
        if {leaves}:
            torch.cuda.set_stream(side)
        return out
    """), device="cuda")
    found = call(case, torch.ones(4, device="cuda"))
    assert case.remote.last.late is not joins
    assert torch.equal(found.cpu(), torch.full((4,), 1.0 if joins else 0.0))


@pytest.mark.gpu
@needs_gpu
def test_device_errors(judged):
    """An error that nobody read is named; memory that runs out is raised as such; a broken context ends the worker."""
    case = judged(forward("""
        if x.numel() == 1:
            import ctypes
            result = x + 1  # PyTorch reads what its own launches leave
            path = next(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line)
            ctypes.CDLL(path).cudaSetDevice(99)
            return result
        elif x.numel() == 2:
            return torch.empty(1 << 45, device=x.device)
        elif x.numel() == 3:
            return x[torch.tensor([10 ** 6], device=x.device)]
        return x + 1
    """), device="cuda")
    assert torch.equal(call(case, torch.ones(1, device="cuda")).cpu(), torch.full((1,), 2.0))
    assert case.remote.last.launch_error == "cudaErrorInvalidDevice"
    with pytest.raises(torch.OutOfMemoryError):
        call(case, torch.ones(2, device="cuda"))
    assert torch.equal(call(case, torch.ones(4, device="cuda")).cpu(), torch.full((4,), 2.0))
    assert case.remote.last.launch_error is None and case.remote.launch_errors == ("cudaErrorInvalidDevice",)
    with pytest.raises(WorkerFailure) as failed:
        call(case, torch.ones(3, device="cuda"))
    assert failed.value.verdict == case.worker.failure.verdict == "CRASH-DEVICE"
    torch.ones(3, device="cuda").sum().item()  # here the device works


@pytest.mark.gpu
@needs_gpu
def test_poisoned_memory_on_a_gpu(judged):
    """An output that is not written holds poison, whether Python or C++ asked for its memory."""
    case = judged(forward("return torch.empty_like(x)"), device="cuda")
    for _ in range(2):
        case.remote.poison_memory([torch.empty(512, 512)])
        found = call(case, torch.zeros(512, 512, device="cuda"))
        assert bool((~torch.isfinite(found) | (found.abs() > 1e20)).all())
