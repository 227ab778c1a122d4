"""Device memory that judge and worker share: on a GPU, and on the CPU with a driver that stands in for CUDA's.

The stand-in backs each block with a file of memory, so that both processes, the socket between them and the calls of
the driver are the real ones; the memory's device is then the CPU.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
import torch
from test_judge_worker import FORWARD, HEAD, LINEAR, PLAIN, QUICK, Judged, file_of, forward, problem_of
from torch.multiprocessing.reductions import StorageWeakRef

from kernelwright.judge.clock.timed import TimedProblem
from kernelwright.judge.clock.timed_worker import TimedWorker
from kernelwright.judge.inside import driver as drivers
from kernelwright.judge.inside.driver import Driver, DriverError
from kernelwright.judge.inside.tensors import ON_DEVICE, Packer, aligned
from kernelwright.judge.worker import device_memory, exchange, link, protocol
from kernelwright.judge.worker.device_memory import DeviceMemory
from kernelwright.judge.worker.process import Limits, Worker, WorkerFailure
from kernelwright.judge.worker.remote import RemoteCandidate
from kernelwright.judge.worker.shared_memory import SharedMemory
from kernelwright.verify.observe import call

STAND_IN = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { int type, id; } Location;
typedef struct { int type, handle_types; Location location; void *windows; unsigned char flags[8]; } Properties;
typedef struct { Location location; int flags; } Access;

static int mapped;
int stand_in_mapped(void) { return mapped; }
int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuGetErrorName(int code, const char **name) {
    *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_OTHER";
    return 0;
}
int cuMemGetAllocationGranularity(size_t *unit, const Properties *p, int option) {
    *unit = 2 << 20;
    return p->type != 1 || p->handle_types != 1 || p->location.type != 1 || option != 1;
}
int cuMemCreate(uint64_t *handle, size_t size, const Properties *p, unsigned long long flags) {
    if (size % (2 << 20) || p->windows || flags) return 1;
    if (size > (256 << 20)) return 2;
    int file = memfd_create("block", 0);
    if (file < 0 || ftruncate(file, size)) return 2;
    void *before = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    memset(before, 0xAB, size);  /* what lay there before */
    munmap(before, size);
    *handle = (uint64_t)file + 1000;
    return 0;
}
int cuMemExportToShareableHandle(int *descriptor, uint64_t handle, int type, unsigned long long flags) {
    *descriptor = dup((int)handle - 1000);
    return type != 1 || flags || *descriptor < 0;
}
int cuMemImportFromShareableHandle(uint64_t *handle, void *descriptor, int type) {
#ifdef WITHOUT_IMPORT
    return 801;
#endif
    int file = dup((int)(intptr_t)descriptor);
    *handle = (uint64_t)file + 1000;
    return type != 1 || file < 0;
}
int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t at, unsigned long long flags) {
    void *found = mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *address = (uint64_t)found;
    return found == MAP_FAILED || alignment || at || flags;
}
int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
    struct stat facts;
    if (fstat((int)handle - 1000, &facts) || (size_t)facts.st_size != size || offset || flags) return 1;
    if (mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle - 1000, 0) == MAP_FAILED) return 1;
    mapped++;
    return 0;
}
int cuMemSetAccess(uint64_t address, size_t size, const Access *access, size_t count) {
    if (count != 1 || access->location.type != 1 || access->flags != 3) return 1;
    return mprotect((void *)address, size, PROT_READ | PROT_WRITE) != 0;
}
int cuMemUnmap(uint64_t address, size_t size) {
    mapped--;
    return mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED;
}
int cuMemAddressFree(uint64_t address, size_t size) { return munmap((void *)address, size) != 0; }
int cuMemRelease(uint64_t handle) { return close((int)handle - 1000) != 0; }
"""


def built(folder: Path, *options: str) -> Path:
    source = folder / "driver.c"
    source.write_text(STAND_IN)
    library = folder / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", *options, "-o", library, source], check=True)
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return built(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def stand_in(library, monkeypatch):
    """Both processes use the stand-in, and a CPU's memory counts as a device's."""
    return used(library, monkeypatch)


def used(library: Path, monkeypatch) -> Driver:
    driver = Driver(str(library))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))  # the worker's
    monkeypatch.setattr(device_memory, "driver", lambda: driver)
    monkeypatch.setattr(exchange, "memory_of", DeviceMemory)
    monkeypatch.setattr(link, "STATE_ON_DEVICE", 1 << 20)  # each byte is one of this machine's
    monkeypatch.setattr(link, "MORE_ON_DEVICE", 1 << 20)
    return driver


@pytest.fixture
def judged(tmp_path):
    made: list[Judged] = []

    def make(*arguments, **named):
        made.append(Judged(tmp_path, *arguments, **named))
        return made[-1]

    yield make
    for each in made:
        each.worker.close()


@pytest.fixture
def uncollected():
    """Python looks for no cycles: whatever is in one stays."""
    import torch._dynamo  # noqa: F401 (its first import, which is PyTorch's own doing, keeps all frames below)

    gc.collect()
    gc.disable()
    yield
    gc.enable()


def mapped(driver: Driver) -> int:
    return driver._library.stand_in_mapped()


def file_bytes(worker: Worker) -> int:
    """What was written into the files of shared memory."""
    return sum(os.fstat(shared.descriptor).st_blocks * 512 for shared in (worker.inputs, worker.outputs))


def test_layouts_are_those_of_the_header(tmp_path):
    """The structures that the driver gets are those of cuda.h."""
    include = next((p for p in (Path("/usr/local/cuda/include"), Path(os.environ.get("CUDA_HOME", "/")) / "include")
                    if (p / "cuda.h").exists()), None)
    if include is None or shutil.which("gcc") is None:
        pytest.skip("no cuda.h")
    fields = {"CUmemLocation": (drivers._Location, ("type", "id")),
              "CUmemAllocationProp": (drivers._Properties, ("type", "requestedHandleTypes", "location",
                                                            "win32HandleMetaData", "allocFlags")),
              "CUmemAccessDesc": (drivers._Access, ("location", "flags"))}
    wanted, lines = [], []
    for name, (structure, theirs) in fields.items():
        wanted.append(ctypes.sizeof(structure))
        lines.append(f"sizeof({name})")
        for (own, *_), field in zip(structure._fields_, theirs, strict=True):
            wanted.append(getattr(structure, own).offset)
            lines.append(f"offsetof({name}, {field})")
    numbers = {"CU_MEM_ALLOCATION_TYPE_PINNED": drivers._PINNED, "CU_MEM_LOCATION_TYPE_DEVICE": drivers._ON_DEVICE,
               "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": drivers._BY_DESCRIPTOR,
               "CU_MEM_ALLOC_GRANULARITY_RECOMMENDED": drivers._RECOMMENDED,
               "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": drivers._READ_AND_WRITE,
               "CUDA_ERROR_OUT_OF_MEMORY": drivers._OUT_OF_MEMORY, "sizeof(CUdeviceptr)": 8,
               "sizeof(CUmemGenericAllocationHandle)": 8}
    body = "".join(f'printf("%zu\\n", (size_t)({line}));' for line in (*lines, *numbers))
    source = tmp_path / "sizes.c"
    source.write_text("#include <cuda.h>\n#include <stdio.h>\n#include <stddef.h>\nint main(void) {" + body + "}\n")
    subprocess.run(["gcc", f"-I{include}", source, "-o", tmp_path / "sizes"], check=True)
    found = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout.split()
    assert [int(n) for n in found] == [*wanted, *numbers.values()]


def test_a_block_is_seen_by_both_and_is_clean(stand_in):
    """What the judge creates is zeros, another mapping of it shows the same bytes, and all of it goes again."""
    memory = DeviceMemory(torch.device("cpu"))
    assert memory.reserve(3 << 20) and memory.bytes == 4 << 20 and not memory.reserve(4 << 20)
    descriptor = memory.take_descriptor()
    other = stand_in.imported(0, descriptor, memory.bytes)
    os.close(descriptor)
    seen = other.tensor(torch.device("cpu"))
    assert not bool(seen.any())
    memory.part(100, 3).copy_(torch.tensor([1, 2, 3], dtype=torch.uint8))
    assert seen[99:104].tolist() == [0, 1, 2, 3, 0]
    with pytest.raises(EOFError):
        memory.part(4 << 20, 1)
    del seen
    stand_in.unmap(other)
    memory.close()
    assert mapped(stand_in) == 0 and memory.bytes == 0


def test_what_the_driver_refuses_is_said(stand_in, tmp_path):
    """Too much memory is not asked for again; no driver is no error of anybody's."""
    memory = DeviceMemory(torch.device("cpu"))
    assert not memory.reserve(1 << 30)
    assert memory.refusal == "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY" and mapped(stand_in) == 0
    assert memory.reserve(1 << 20) and not memory.reserve(1 << 30) and memory.bytes == 2 << 20
    memory.close()
    with pytest.raises(DriverError):
        Driver(str(tmp_path / "libcuda.so.1"))
    with pytest.raises(DriverError):
        stand_in.imported(0, 9999, 2 << 20)


def test_tensors_travel_through_device_memory(judged, stand_in):
    """State, inputs, outputs and effects arrive as they are, and nothing of them goes through the files."""
    case = judged(LINEAR.replace("class Model(", "class ModelNew("), LINEAR)
    certificate = case.certify()
    assert certificate.passed, certificate.sentence()
    assert certificate.trials[0].state.passed  # running statistics
    worker = case.worker
    assert worker.inputs.device_memory.bytes and worker.outputs.device_memory.bytes
    assert file_bytes(worker) == 0
    assert "host memory" not in worker.isolation
    worker.close()
    assert mapped(stand_in) == 0


def test_views_aliases_and_changed_inputs(judged, stand_in):
    """What shares memory there does here: an input returned, changed in place, and an output that is a view."""
    case = judged(forward("x.mul_(2); return x, x[1:, ::2], torch.ones(3, dtype=torch.bool)"))
    given = torch.arange(30.0).reshape(5, 6)
    same, part, flags = case.remote(given)
    assert torch.equal(given, torch.arange(30.0).reshape(5, 6) * 2)
    assert same.data_ptr() == given.data_ptr() and torch.equal(part, given[1:, ::2]) and flags.tolist() == [True] * 3
    assert file_bytes(case.worker) == 0


def test_gradients(judged, stand_in):
    case = judged(LINEAR.replace("class Model(", "class ModelNew("), LINEAR)
    found = case.certify(torch_plan := QUICK.__class__(trials=QUICK.trials, check_gradients=True))
    assert torch_plan.check_gradients and found.gradients is not None and found.gradients.passed


def test_blocks_grow_and_are_given_back(judged, stand_in):
    """A larger call gets larger blocks; in a pause large ones go, and come again when they are needed."""
    case = judged(forward("return x + 1"))
    case.remote(torch.zeros(1000))
    inputs, outputs = case.worker.inputs.device_memory, case.worker.outputs.device_memory
    assert inputs.bytes == outputs.bytes == 2 << 20
    large = torch.randn(20 << 20)  # 80 MiB
    case.remote.expect(large)
    for empty in (False, True):
        assert torch.equal(case.remote(large), large + 1)
        assert 80 << 20 <= inputs.bytes <= outputs.bytes <= 84 << 20
        assert mapped(stand_in) == 2 and file_bytes(case.worker) == 0
        case.worker.rest(empty=empty)
        assert inputs.bytes == outputs.bytes == mapped(stand_in) == 0
    case.worker.unshare()
    assert torch.equal(case.remote(large), large + 1)
    assert mapped(stand_in) == 0


def test_outputs_that_nobody_has_are_gone(judged, stand_in, uncollected):
    """What a call returns lives as long as its caller has it: neither the next call nor the worker's end is waited
    for."""
    case = judged(forward("return x + 1, (x * 2)[1:]"))
    given = torch.randn(1000)
    case.remote.expect([given, given])
    for _ in range(3):
        found = case.remote(given)
        memory = [StorageWeakRef(tensor.untyped_storage()) for tensor in found]
        part = found[1][:3]
        assert torch.equal(found[0], given + 1) and not memory[0].expired()
        del found
        assert memory[0].expired() and not memory[1].expired()
        del part
        assert memory[1].expired()


def test_memory_that_is_handed_out_again_and_again(judged, stand_in):
    """Outputs that share memory there do so here, also where the first of that memory is gone."""
    case = judged("BLOCK = torch.zeros(100)\n" + textwrap.dedent(forward("""
        BLOCK[:len(x)] = x
        return BLOCK[:len(x)]
    """)))
    case.remote(torch.full((3,), 1.0))
    second = case.remote(torch.full((5,), 2.0))
    third = case.remote(torch.full((4,), 3.0))
    assert third.data_ptr() == second.data_ptr() and third.tolist() == [3.0] * 4 and second.tolist() == [*third, 2.0]
    fourth = case.remote(torch.full((9,), 4.0))
    assert second.tolist() == [4.0] * 5 and fourth.tolist() == [4.0] * 9
    assert fourth.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


@pytest.mark.parametrize("body", ["raise ValueError('no')", "os._exit(3)", "return x.to_sparse()", "time.sleep(60)"])
def test_failures_hold_no_tensors(judged, stand_in, uncollected, body):
    """What a failing call was given is not kept with the failure, which the judge keeps."""
    case = judged(forward(body), limits=Limits(build_seconds=30, run_seconds=2))
    given = torch.randn(1000)
    memory = StorageWeakRef(given.untyped_storage())
    found = call(case.remote, [given])
    assert (found.error is None) is ("sparse" in body)
    assert (case.remote.raised is None) is ("raise" not in body)
    assert (case.worker.failure is None) is ("exit" not in body and "sleep" not in body)
    del given
    assert memory.expired()


def test_a_candidates_state_goes_with_it(judged, stand_in, uncollected):
    """Parameters that stand here for the candidate's live as long as the module that has them."""
    case = judged(LINEAR.replace("class Model(", "class ModelNew("), LINEAR)
    assert case.certify().passed
    memory = [StorageWeakRef(tensor.untyped_storage()) for tensor in case.remote.state_dict().values()]
    assert memory and not any(each.expired() for each in memory)
    del case.remote
    assert all(each.expired() for each in memory)


def test_timed_calls(judged, stand_in):
    """Slots and what is fetched of timed calls travel the same way; a wrong candidate is seen in them."""
    for body, right in (("return torch.relu(x)", True), ("return torch.relu(x) * 1.1", False)):
        case = judged(forward(body), inputs="[torch.randn(1000, 600)]")
        timed = TimedProblem(case.problem, case.problem.make_model(0), secret=1)
        timed_worker = TimedWorker("candidate", case.worker, True)
        timed_worker.run(timed, timed.make_round(2, [(True, 1), (True, 3)]), flush=1, flush_bytes=1 << 20, check=True)
        assert (timed_worker.refusal is None) is right and bool(timed_worker.rounds) is right
        assert case.worker.outputs.device_memory.bytes >= 2 * 2_400_000 and file_bytes(case.worker) == 0


def test_what_is_too_large_goes_through_the_file(judged, stand_in):
    """Where the device has no such block, the rest of the call is as ever."""
    case = judged(forward("return x + 1, x[:3]"))
    case.remote(torch.zeros(8))
    huge = torch.randn(70 << 20)  # 280 MiB
    found, part = case.remote(huge)
    assert torch.equal(found, huge + 1) and torch.equal(part, huge[:3])
    assert case.worker.inputs.device_memory.refusal.startswith("cuMemCreate")
    assert torch.equal(case.remote(huge[:8])[0], huge[:8] + 1)


def test_a_worker_that_cannot_map(tmp_path, tmp_path_factory, monkeypatch):
    """Everything goes through the files, and the words say so."""
    driver = used(built(tmp_path_factory.mktemp("other"), "-DWITHOUT_IMPORT"), monkeypatch)
    case = Judged(tmp_path, forward("return torch.relu(x)"))
    with case.worker:
        assert case.certify().passed
        for name in ("inputs", "outputs"):
            assert f"the {name} go through host memory (cuMemImportFromShareableHandle: CUDA_ERROR_NOT_SUPPORTED)" in \
                case.worker.isolation
        assert file_bytes(case.worker) > 0 and mapped(driver) == 0


SCRIBBLER = """
    import gc

    FOUND = {}

    def pieces():
        return [each for each in gc.get_objects() if type(each).__name__ == "Mapped"]

    def fill():
        for each in pieces():
            each.on_device.fill_(0x55)

    def fill_for_ever():
        while True:
            fill()

"""


def scribbler(body: str) -> str:
    return textwrap.dedent(SCRIBBLER) + forward(body)


def test_nothing_but_inputs_can_be_read(judged, stand_in):
    """A candidate that looks at all device memory that it can map finds its inputs, its outputs and zeros."""
    case = judged(scribbler("""
        blocks = [each.on_device for each in pieces()]
        return torch.relu(x), torch.cat([block[:1 << 21] for block in blocks])
    """))
    given = torch.full((5, 6), 1.5)
    _, seen = case.remote(given)
    values = seen.view(torch.float32)
    packed = int((values == 1.5).sum())
    assert packed == 30
    # The random state of the judge is an input, too: nothing else is anywhere.
    beyond = values[aligned(120) // 4 + aligned(torch.get_rng_state().numel()) // 4: (1 << 21) // 4]
    assert not bool(beyond.any())


def test_writing_into_shared_memory_makes_nobody_right(judged, stand_in):
    """A candidate that overwrites shared memory in its calls is right where its result is right; one that goes on with
    it after its return has returned something else, and harms nobody."""
    honest = judged(scribbler("""
        kept = x.clone()
        fill()
        return torch.relu(kept)
    """)).certify()
    # Its own process holds inputs against shared memory: it is told to have changed them, as it could have told itself.
    assert {kind for trial in honest.trials for kind in trial.kinds} <= {"input-changed"}
    assert all(trial.comparison.passed for trial in honest.trials)
    forger = judged(scribbler("""
        if not FOUND:
            FOUND["thread"] = threading.Thread(target=fill_for_ever, daemon=True)
            FOUND["thread"].start()
            time.sleep(0.05)
        return torch.relu(x)
    """))
    found = forger.certify()
    assert not found.passed
    assert forger.worker.failure is None or forger.worker.failure.verdict.startswith(("CHEAT", "CRASH"))


REFUSER = """
    frame = sys._getframe()
    while frame.f_code.co_name != "serve":
        frame = frame.f_back
    frame.f_locals["known"]["map"] = lambda session, payload: {{"ok": False, "error": {}}}
    return x + 1
"""


def test_a_worker_that_refuses_later(judged, stand_in):
    """One that says that it cannot map a block gets what follows through the files; one that says nonsense is out."""
    words = {"type": "E", "message": "no", "traceback": "", "line": None, "own": None, "memory": False}
    large = torch.randn(1 << 20)
    case = judged(scribbler(REFUSER.format(words)))
    for _ in range(2):
        case.remote(torch.zeros(8))
        assert torch.equal(case.remote(large), large + 1)
    assert case.worker.inputs.device_memory.refusal == "no" and file_bytes(case.worker)
    case = judged(scribbler(REFUSER.format(5)))
    case.remote(torch.zeros(8))
    with pytest.raises(WorkerFailure) as caught:
        case.remote(large)
    assert caught.value.verdict == "CHEAT-PROTOCOL"


def test_places_outside_of_device_memory_are_refused(stand_in):
    """A manifest that names device memory that is not there is a breach, as with the file."""
    def manifest(at: int, size: int) -> dict:
        return {"storages": [{"of": "new", "bytes": size, "at": at, "on_device": False}],
                "tensors": [{"dtype": "uint8", "shape": [size], "stride": [1], "offset": 0, "storage": 0}]}

    shared = SharedMemory("outputs", DeviceMemory(torch.device("cpu")))
    shared.device_memory.reserve(1)
    shared.device_memory.part(0, 4).copy_(torch.tensor([4, 3, 2, 1], dtype=torch.uint8))
    read = lambda at, size: protocol.tensors(manifest(at, size), shared, torch.device("cpu"), 1 << 40,  # noqa: E731
                                             lambda told: None)[0][0]
    assert read(ON_DEVICE + 1, 3).tolist() == [3, 2, 1]
    for at, size in ((ON_DEVICE + (2 << 20), 1), (ON_DEVICE, (2 << 20) + 1), (1 << 62, 1), (ON_DEVICE - 1, 1)):
        with pytest.raises(protocol.Broken):
            read(at, size)
    shared.close()
    with pytest.raises(protocol.Broken):
        read(ON_DEVICE, 1)


def test_the_copy_is_the_judges_own(stand_in):
    """What was read no longer changes with the shared memory."""
    shared = SharedMemory("outputs", DeviceMemory(torch.device("cpu")))
    shared.device_memory.reserve(1)
    packer = Packer()
    packer.add(torch.arange(5.0))
    (at, size), = shared.pack(packer)
    assert at == ON_DEVICE and size == 20
    got = torch.empty(5)
    shared.read(at, got)
    shared.device_memory.part(0, 20).zero_()
    assert got.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    shared.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnAGpu:
    """The real driver."""

    @pytest.fixture
    def judged(self, tmp_path):
        made: list[Judged] = []

        def make(*arguments, **named):
            made.append(Judged(tmp_path, *arguments, device="cuda", **named))
            return made[-1]

        yield make
        for each in made:
            each.worker.close()

    def test_through_the_device(self, judged):
        case = judged(LINEAR.replace("class Model(", "class ModelNew("), LINEAR)
        certificate = case.certify()
        assert certificate.passed, certificate.sentence()
        assert "host memory" not in case.worker.isolation, case.worker.isolation
        assert case.worker.outputs.device_memory.bytes
        # What lies on the CPU, as the generator's state does, goes through the files.
        assert file_bytes(case.worker) < 1 << 20

    def test_gigabytes(self, judged):
        """Two GiB there and back a few times, within the time that the host's memory takes for one."""
        given = torch.randn(512 << 20, device="cuda")
        torch.cuda.empty_cache()
        free, kept = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
        case = judged(forward("return x + 1"))
        case.remote.expect(given)
        case.remote(given)
        begun = torch.cuda.Event(enable_timing=True)
        ended = torch.cuda.Event(enable_timing=True)
        begun.record()
        for _ in range(4):
            assert torch.equal(case.remote(given), given + 1)
        ended.record()
        ended.synchronize()
        assert begun.elapsed_time(ended) < 4000
        assert file_bytes(case.worker) < 1 << 20
        case.worker.close()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() <= kept + (1 << 20), torch.cuda.memory_summary(abbreviated=True)
        torch.cuda.empty_cache()
        deadline = time.monotonic() + 10
        while torch.cuda.mem_get_info()[0] < free - (1 << 29) and time.monotonic() < deadline:
            time.sleep(0.1)  # until the worker's process has gone
        assert torch.cuda.mem_get_info()[0] >= free - (1 << 29)

    def test_the_device_is_not_filled(self):
        """A block that would leave too little for everything else is not made."""
        free, total = torch.cuda.mem_get_info()
        memory = DeviceMemory(torch.device("cuda"))
        assert not memory.reserve(total // 4) and "too much" in memory.refusal
        assert memory.reserve(1 << 20) and memory.refusal == "" and memory.device.index is not None
        assert not bool(memory.part(0, memory.bytes).any())
        memory.close()
        assert torch.cuda.mem_get_info()[0] >= free - (1 << 30)

    def test_through_the_host(self, judged):
        """Without device memory the same bytes go through the files, in several pieces."""
        case = judged(forward("return x + 1, x[:1]"))
        given = torch.randn(50 << 20, device="cuda")
        case.worker.unshare()
        found, part = case.remote(given)
        assert torch.equal(found, given + 1) and torch.equal(part, given[:1]) and found.device == given.device

    def test_scribbling(self, judged):
        case = judged(scribbler("""
            kept = x.clone()
            fill()
            return torch.relu(kept)
        """))
        certificate = case.certify()
        assert all(trial.comparison.passed for trial in certificate.trials)

    def test_a_broken_context_is_the_candidates_alone(self, judged):
        """An assertion that fails in the worker's kernel leaves the judge's mapping of the same memory alone."""
        case = judged(forward("torch.empty(8, device='cuda').index_select(0, torch.tensor([1 << 20], device='cuda')); "
                              "torch.cuda.synchronize(); return x"))
        with pytest.raises(WorkerFailure) as caught:
            case.remote(torch.zeros(4, device="cuda"))
        assert caught.value.verdict == "CRASH-DEVICE"
        case.worker.close()
        assert torch.zeros(4, device="cuda").add(1).sum().item() == 4

    def test_short_memory_is_tried_again(self, judged):
        """A candidate that finds too little memory gets another call, without what the judge keeps of it."""
        case = judged(scribbler("""
            if not FOUND:
                FOUND["raised"] = True
                raise torch.OutOfMemoryError("no memory")
            return torch.relu(x)
        """))
        given = torch.randn(100, device="cuda")
        assert torch.equal(case.remote(given), torch.relu(given))
        assert case.worker.inputs.device_memory is None


def test_the_stand_in_is_not_used_elsewhere(tmp_path):
    """A worker on a CPU has no device memory, whatever driver there is."""
    problem = problem_of(tmp_path, PLAIN, "[torch.randn(5, 6)]")
    with Worker(file_of(tmp_path, FORWARD.format("return torch.relu(x)")), problem.device) as worker:
        RemoteCandidate(worker, problem, 0, True)
        assert worker.inputs.device_memory is None and "host memory" not in worker.isolation and HEAD
