"""Emitted files that hold their kernels compiled, as others use them: without compilers, on other machines, damaged,
several processes at once."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from clocks import drop_nothing
from emitted_tools import emit, kernels_run, short_budgets, write_problem
from forks import Forked, ran
from places import ROOT

import kernelwright
from kernelwright.build.embedding import (
    PORTABLE,
    X86_64,
    compiled_for,
    flags_of,
    names_wanted,
    own_level,
)
from kernelwright.build.library import opened, runs_here
from kernelwright.build.module import find_cuda_compiler, find_tools, kernels_of, load_text
from kernelwright.codegen.generate import TARGETS
from kernelwright.deploy.wheel import make_wheel
from kernelwright.emit.assembly import folded, used
from kernelwright.emit.embedded import Library, libraries_text
from kernelwright.emit.runtime import conditions_of, fitting_text
from kernelwright.emit.runtime_build import BUILD, IMPORTS
from kernelwright.errors import CannotEmbed, InvalidOption, NinjaMissing
from kernelwright.roofline.devices import H200

RUN = """
import copy, importlib.util, json, pickle, sys, warnings
import torch

started = []
sys.addaudithook(lambda event, given: started.append(str(given[0])) if event in (
    "subprocess.Popen", "os.posix_spawn", "os.exec", "os.fork", "os.system") else None)

def imported(path, name):
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    new = imported(sys.argv[2], "new")
    begun, old = list(started), imported(sys.argv[1], "old")
    models = []
    for kind in (old.Model, new.ModelNew):
        torch.manual_seed(3)
        models.append(kind(*getattr(old, "get_init_inputs", list)()))
    device = new._KERNELWRIGHT_DEVICE
    inputs = [x.to(device) for x in old.get_inputs()]
    wanted, ours = (model.to(device) for model in models)
    others = [ours, pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)]
    right = []
    for training in (False, True):
        for model in others:
            with torch.no_grad():
                found, true = [m.train(training)(*inputs) for m in (model, wanted)]
                right.append(torch.allclose(found, true, 1e-2 if device == "cuda" else 1e-3, 1e-4))  # eager's TF32
print(json.dumps({"library": new._kernelwright_library is not None, "started": begun, "right": all(right),
                  "trouble": new._kernelwright_trouble, "why": [m.why() for m in others],
                  "warnings": [str(w.message) for w in caught]}))
"""
HERE = pytest.mark.skipif(not Path("/proc/cpuinfo").exists() or os.uname().machine != "x86_64",
                          reason="libraries are made on Linux on x86-64")
pytestmark = HERE


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A problem and the file that holds its kernels of two modes compiled for two levels."""
    folder = tmp_path_factory.mktemp("embedded")
    path = write_problem(folder, "norm")
    with pytest.MonkeyPatch.context() as patch:
        short_budgets(patch)
        result = kernelwright.optimize(path, target="cpp", effort="quick", baselines="none",
                                       embed="x86-64,x86-64-v2")
    assert result.source == result.path.read_text() and len(labels(result.source)) == 2, result.notes
    assert [mode.name for mode in result.modes if mode.kernels] == ["training", "inference"]
    return path, result


def labels(text: str) -> list[dict]:
    space: dict = {}
    exec(text[text.index("_KERNELWRIGHT_LIBRARIES = ["):text.index("\n_kernelwright_library = None")], space)
    return space["_KERNELWRIGHT_LIBRARIES"]


def launch(problem: Path, text: str, folder: Path, tools: tuple[str, ...] = (), **environment: str) -> Forked:
    """A process that imports an emitted text and calls it, with no program in PATH but ``tools``. Its cache folder is
    ``folder``/cache."""
    programs = folder / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    (folder / "file_new.py").write_text(text)
    for tool in tools:
        (programs / tool).symlink_to(shutil.which(tool))
    own = {name: value for name, value in os.environ.items() if name not in ("CXX", "CC", "CUDA_HOME", "CUDA_PATH")}
    own |= {"PATH": str(programs), "KERNELWRIGHT_CACHE": str(folder / "cache"), "TMPDIR": str(folder)}
    return Forked(RUN, problem, folder / "file_new.py", environment={**own, **environment})


def told(process: Forked) -> dict:
    """What such a process says at its end."""
    out, messages = process.communicate()
    assert process.returncode == 0, messages
    found = json.loads(out.splitlines()[-1])
    assert found["right"], "whatever runs, the results are the model's"
    return found


def run(*given, **environment) -> dict:
    return told(launch(*given, **environment))


def kept(folder: Path) -> list[str]:
    """The hashes of the libraries in a cache folder."""
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "cache" / "libraries").glob("*.so")]


def test_no_compiler_is_started_nor_asked_for(files, tmp_path):
    """The kernels of both modes run, in copies and pickles, too; the second import finds the library."""
    problem, result = files
    for _ in range(2):
        found = run(problem, result.source, tmp_path)
        assert found["library"] and not found["started"] and not found["warnings"] and not any(found["why"]), found
        assert kept(tmp_path) == [labels(result.source)[0]["sha256"]]


def test_the_source_stands_before_what_is_compiled(files):
    _, result = files
    assert result.source.index("def forward") < result.source.index("_KERNELWRIGHT_SOURCE =") \
        < result.source.index("def _kernelwright_build") < result.source.index("_KERNELWRIGHT_LIBRARIES = [")
    assert any("x86-64-v2 and x86-64 (" in note for note in result.notes), result.notes
    assert max(map(len, result.source[result.source.index("# The kernels, compiled"):].splitlines())) <= 120


def test_modules_are_pickled_with_what_is_compiled(files):
    _, result = files
    _, (text, *_), _ = result.module.__reduce_ex__(2)
    assert text == result.source


def test_a_module_from_python_is_loaded_where_no_compiler_is(tmp_path):
    """The pickle of a model that has no file carries the libraries."""
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.LayerNorm(96), torch.nn.Sigmoid()), torch.randn(64, 96)
    with pytest.MonkeyPatch.context() as patch:
        short_budgets(patch)
        result = kernelwright.optimize(model, inputs=(x,), target="cpp", effort="quick", baselines="none",
                                       embed="x86-64")
    assert labels(result.source)
    (tmp_path / "saved.pickle").write_bytes(pickle.dumps((result.module, x, model(x))))
    (tmp_path / "programs").mkdir()
    program = ("import pickle, sys, torch\nmodel, x, wanted = pickle.load(open('saved.pickle', 'rb'))\n"
               "with torch.no_grad():\n    torch.testing.assert_close(model(x), wanted.detach())\n"
               "print(sys.modules[type(model).__module__]._kernelwright_library is not None, model.why())\n")
    done = ran(program, folder=tmp_path, PATH=str(tmp_path / "programs"), KERNELWRIGHT_CACHE=str(tmp_path / "cache"),
               PYTHONPATH=str(ROOT))
    assert done.stdout == "True {}\n", done.stderr


def test_a_wheel_of_it_needs_no_compiler(files, tmp_path):
    _, result = files
    wheel = make_wheel([result.path], name="deployed", version="1.0", output=tmp_path)
    assert wheel.tag == "py3-none-linux_x86_64" and wheel.requires == ("torch>=2.11",)
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet",
                           "--disable-pip-version-check", "--target", str(tmp_path / "site"), str(wheel.path)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    installed = tmp_path / "site" / "deployed" / result.path.name
    assert installed.read_text() == result.source
    program = ("from deployed import ModelNew\nfrom deployed import norm_new\n"
               "print(ModelNew is norm_new.ModelNew and norm_new._kernelwright_library is not None)")
    (tmp_path / "programs").mkdir()
    own = {"PATH": str(tmp_path / "programs"), "KERNELWRIGHT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", program], capture_output=True,
                          text=True, cwd=tmp_path / "site", env={**os.environ, **own})
    assert done.stdout == "True\n", done.stderr


DAMAGES = {
    "a letter": lambda text: re.sub(r'("packed": """\n.{40})(.)', lambda m: m[1] + ("A" if m[2] != "A" else "B"), text),
    "cut off": lambda text: re.sub(r'("packed": """\n)[^"]*', r"\1eNrtXA1U\n", text),
    "another library": lambda text: re.sub(
        r'("packed": """\n)[^"]*', lambda m: m[1] + base64.b64encode(zlib.compress(b"another")).decode() + "\n", text),
    "another processor": lambda text: text.replace('"flags": "', '"flags": "avx1024 '),
    "another system": lambda text: text.replace('"system": "Linux x86_64"', '"system": "Linux aarch64"'),
    "a newer C library": lambda text: re.sub(r'"glibc": "[^"]*"', '"glibc": "99.1"', text),
}
SAID = {"another processor": "this processor lacks avx1024", "another system": "this is Linux x86_64",
        "a newer C library": "it needs glibc 99.1", "another library": "its bytes are not those that were put in"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_is_not_run(files, tmp_path, damage):
    """Without compilers the original computation runs, and what is missing is said."""
    problem, result = files
    text = DAMAGES[damage](result.source)
    assert text != result.source
    found = run(problem, text, tmp_path)
    assert not found["library"] and not found["started"] and not kept(tmp_path)
    first, *others = found["warnings"]
    assert first.count(SAID.get(damage, "")) >= 2 and "the source of the kernels is compiled" in first
    assert others and all("not found: the C++ compiler c++, ninja" in warning for warning in others), others
    assert found["trouble"] == "the kernels could not be built (not found: the C++ compiler c++, ninja)"


def test_where_nothing_fits_the_source_is_compiled(files, tmp_path):
    problem, result = files
    found = run(problem, DAMAGES["another library"](result.source), tmp_path, PATH=os.environ["PATH"])
    assert found["library"] and found["started"] and not any(found["why"])
    assert len(found["warnings"]) == 1 and "the source of the kernels is compiled" in found["warnings"][0]
    assert not set(kept(tmp_path)) & {label["sha256"] for label in labels(result.source)}


def test_the_next_library_is_taken_where_the_first_does_not_fit(files, tmp_path):
    problem, result = files
    text = result.source.replace('"flags": "cx16', '"flags": "avx1024 cx16')
    found = run(problem, text, tmp_path)
    assert found["library"] and not found["warnings"] and kept(tmp_path) == [labels(text)[1]["sha256"]]


def test_a_library_that_the_system_refuses_is_left_for_the_next(files, tmp_path):
    problem, result = files
    first, second = labels(result.source)
    broken = Library("broken", first["system"], "", (("flags", ""),), b"no library at all")
    whole = Library("whole", second["system"], second["glibc"], (("flags", second["flags"]),),
                    zlib.decompress(base64.b64decode(second["packed"])))
    start = result.source.index("# The kernels above as shared")
    end = result.source.index("\n_kernelwright_library = None")
    found = run(problem, result.source[:start] + libraries_text([broken, whole]) + result.source[end:], tmp_path)
    assert found["library"] and not found["warnings"] and second["sha256"] in kept(tmp_path)


def test_what_lies_cut_off_in_the_cache_is_put_there_again(files, tmp_path):
    problem, result = files
    run(problem, result.source, tmp_path)
    (path,) = (tmp_path / "cache" / "libraries").glob("*.so")
    path.write_bytes(path.read_bytes()[:100])
    assert run(problem, result.source, tmp_path)["library"] and kept(tmp_path) == [labels(result.source)[0]["sha256"]]


def test_several_processes_at_once(files, tmp_path):
    problem, result = files
    (tmp_path / "programs").mkdir()
    for found in map(told, [launch(problem, result.source, tmp_path) for _ in range(3)]):
        assert found["library"] and not found["started"] and not found["warnings"]
    assert kept(tmp_path) == [labels(result.source)[0]["sha256"]]
    assert [path.suffix for path in (tmp_path / "cache" / "libraries").iterdir()] == [".so"]


def test_without_a_folder_that_keeps_it(files, tmp_path):
    """A cache below a file can't be made, by an administrator neither: the library is for this process alone."""
    problem, result = files
    found = run(problem, result.source, tmp_path, KERNELWRIGHT_CACHE=str(problem / "cache"))
    assert found["library"] and not found["started"] and not found["warnings"]


def test_plain_c_needs_no_compiler_either(tmp_path):
    path = write_problem(tmp_path, "in_c", """
        class Model(nn.Module):
            def forward(self, x):
                return torch.softmax(torch.tanh(x * 2.0) + 1.0, dim=1)

        def get_inputs():
            return [torch.randn(64, 48)]
    """)
    with pytest.MonkeyPatch.context() as patch:
        short_budgets(patch)
        result = kernelwright.optimize(path, target="c", effort="quick", baselines="none", embed="x86-64")
    found = run(path, result.source, tmp_path / "elsewhere")
    assert found["library"] and not found["started"] and not found["warnings"] and not any(found["why"])
    found = run(path, DAMAGES["another system"](result.source), tmp_path / "other")
    assert found["trouble"] == "the kernels could not be built (not found: the C compiler cc)"


def test_a_library_of_a_long_text_is_made_of_pieces(tmp_path):
    original, emitted, source = emit(tmp_path, "long", """
        class Model(nn.Module):
            def forward(self, x):
                return [torch.softmax(x[:, : 7 + i], 1).mul(i + 2).cumsum(1).sin() + i for i in range(6)]

        def get_inputs():
            return [torch.randn(9, 40)]
    """)
    assert len(emitted._kernelwright_units(8)) > 2
    (library,), _ = compiled_for(kernels_of(source), ("x86-64",), TARGETS["cpp"])
    emitted._kernelwright_library = opened(library, kernels_of(source))
    (x,) = original.get_inputs()
    with torch.no_grad(), kernels_run(emitted):
        torch.testing.assert_close(emitted.ModelNew()(x), original.Model()(x))


def test_a_library_that_fails_its_trials_is_left_out(tmp_path, monkeypatch):
    """One of two gives other numbers than the kernels that were certified."""
    path = write_problem(tmp_path, "other", """
        class Model(nn.Module):
            def forward(self, x):
                return torch.tanh(x * 2.0) + 1.0

        def get_inputs():
            return [torch.randn(640, 480)]
    """)

    def compiled(source, names, target):
        changed = re.sub(r"\b1\.0f\b", "1.25f", source)
        assert changed != source
        return [compiled_for(text, [name], target)[0][0]
                for text, name in zip((changed, source), names, strict=True)], []

    monkeypatch.setattr("kernelwright.deploy.embedded.compiled_for", compiled)
    short_budgets(monkeypatch)
    result = kernelwright.optimize(path, target="cpp", effort="quick", baselines="none", embed="x86-64,x86-64-v2")
    assert [label["for"] for label in labels(result.source)] == ["x86-64"]
    assert any("The library for x86-64-v2 is left out" in note for note in result.notes), result.notes


def test_what_has_no_kernels_holds_none(tmp_path):
    path = write_problem(tmp_path, "plain", """
        class Model(nn.Module):
            def forward(self, x):
                return x @ x

        def get_inputs():
            return [torch.randn(32, 32)]
    """)
    result = kernelwright.optimize(path, target="cpp", effort="quick", baselines="none", embed=True)
    assert "_KERNELWRIGHT_LIBRARIES" not in result.source and any("no kernels" in note for note in result.notes)


# ---- what is made ------------------------------------------------------------------------------------

SOURCES = {
    "cpp": 'extern "C" const char* go(void* const* t, void*) {\n#pragma omp parallel for\n  for (int i = 0; i < 9; ++i)'
           " static_cast<float*>(t[0])[i] *= 2.0f;\n  return nullptr;\n}\n",
    "c": "#include <math.h>\nconst char* go(void* const* t, void* s) { ((float*)t[0])[0] = expf(((float*)t[0])[0]); "
         "return 0; }\n",
    "cuda": "#include <cuda_runtime.h>\n__global__ static void twice(float* x) { x[threadIdx.x] *= 2; }\n"
            'extern "C" const char* go(void* const* t, void* s) {\n'
            "  twice<<<1, 32, 0, (cudaStream_t)s>>>((float*)t[0]);\n  return nullptr;\n}\n",
}
NVCC = pytest.mark.skipif(find_cuda_compiler() is None, reason="there is no nvcc")
NAMES = {"cpp": ("x86-64-v4", "x86-64"), "c": ("x86-64-v3",), "cuda": ("sm_90a", "sm_80", "ptx")}
CASES = ["cpp", "c", pytest.param("cuda", marks=NVCC)]


@pytest.mark.parametrize("target", CASES)
def test_two_builds_give_the_same_bytes_that_name_no_binary_interface(target, tmp_path, monkeypatch):
    made = []
    for name in ("one", "quite/another"):
        (tmp_path / name).mkdir(parents=True)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
        made.append(compiled_for(SOURCES[target], NAMES[target], TARGETS[target]))
    assert made[0] == made[1] and not made[0][1]
    libraries = made[0][0]
    assert len(libraries) == (1 if target == "cuda" else len(NAMES[target]))
    assert libraries_text(libraries) == libraries_text(made[1][0])
    for library in libraries:
        assert not [name for name in (b"libtorch", b"libc10", b"libpython", b"libgomp", str(tmp_path).encode())
                    if name in library.data]
    if target == "c":
        assert libraries[0].glibc and runs_here(libraries[0]) == (own_level() in ("x86-64-v3", "x86-64-v4"))


@pytest.mark.parametrize("target", CASES)
def test_what_does_not_compile_is_said(target):
    libraries, notes = compiled_for("no code", NAMES[target], TARGETS[target])
    assert not libraries and notes and all("do not compile for" in note and "error" in note for note in notes)


@NVCC
def test_libraries_for_devices_say_what_is_in_them():
    (library,), _ = compiled_for(SOURCES["cuda"], NAMES["cuda"], TARGETS["cuda"])
    needs = dict(library.needs)
    assert needs["codes"] == "sm_90a sm_80 sm_90 compute_90" and re.fullmatch(r"\d+\.\d+", needs["toolkit"])
    assert library.name == f"CUDA {needs['toolkit']}, sm_90a sm_80 sm_90 compute_90"
    assert f"libcudart.so.{needs['toolkit'].split('.')[0]}".encode() in library.data


@NVCC
def test_what_one_device_alone_has_is_for_it_alone():
    """The library has what compiles; PTX that the assembler does not take is none."""
    source = SOURCES["cuda"].replace("x[threadIdx.x] *= 2;", 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");')
    (library,), notes = compiled_for(source, ("sm_90a", "sm_80", "ptx"), TARGETS["cuda"])
    assert dict(library.needs)["codes"] == "sm_90a" and len(notes) == 2
    assert "do not compile for sm_80" in notes[0] and "do not compile for ptx" in notes[1] and "wgmma" in notes[1]


@NVCC
def test_a_file_for_devices_holds_its_library(tmp_path):
    """On a machine without one, it is made and labelled, not run; a machine without a device runs the original."""
    path = write_problem(tmp_path, "nested")
    names = names_wanted("sm_80,sm_90a", TARGETS["cuda"])
    source = kernels_of(kernelwright.explain(path, target="cuda", device=H200).source)
    (library,), notes = compiled_for(source, names, TARGETS["cuda"])
    assert not notes and dict(library.needs)["codes"] == "sm_90a sm_80"
    assert runs_here(library) == (torch.cuda.is_available() and torch.cuda.get_device_capability() in ((8, 0), (9, 0)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_file_for_this_device_needs_no_compiler(tmp_path):
    path = write_problem(tmp_path, "norm")
    patch = drop_nothing()
    try:
        result = kernelwright.optimize(path, target="cuda", effort="quick", baselines="none", embed=True)
    finally:
        patch.undo()
    found = run(path, result.source, tmp_path / "elsewhere", CUDA_HOME=str(tmp_path))
    assert found["library"] and not found["started"] and not found["warnings"] and not any(found["why"]), found
    assert kept(tmp_path / "elsewhere") == [labels(result.source)[0]["sha256"]]
    other = result.source.replace('"codes": "sm_', '"codes": "sm_1')
    found = run(path, other, tmp_path / "other", CUDA_HOME=str(tmp_path))
    assert not found["library"] and "this device is of compute capability" in found["warnings"][0]


# ---- which one is taken ------------------------------------------------------------------------------

DEVICES = [  # compute capability, the driver's CUDA, PyTorch's; codes that fit, and others that do not
    ((9, 0), 13000, "13.0", ["sm_90a", "sm_90", "compute_90", "compute_80", "sm_80 compute_80"],
     ["sm_80", "sm_100", "compute_100", "sm_100a"]),
    ((8, 9), 13010, "13.2", ["sm_80", "sm_89", "compute_86"], ["sm_90", "sm_90a", "sm_80a", "compute_90"]),
    ((12, 0), 12080, "13.0", ["sm_120"], ["compute_90", "sm_90a compute_90"]),  # a driver that can't read this PTX
    ((9, 0), 13000, "12.8", [], ["sm_90a", "compute_90"]),  # another runtime
]


@pytest.mark.parametrize(("capability", "driver", "toolkit", "fit", "others"), DEVICES)
def test_devices_run_what_is_made_for_them(monkeypatch, capability, driver, toolkit, fit, others):
    space: dict = {}
    exec(fitting_text(cuda=True), space)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.version, "cuda", toolkit)

    def version(place):
        place._obj.value = driver

    monkeypatch.setitem(space, "ctypes", SimpleNamespace(
        CDLL=lambda name: SimpleNamespace(cuDriverGetVersion=version), c_int=space["ctypes"].c_int,
        byref=space["ctypes"].byref))
    label = {"system": "Linux x86_64", "glibc": "2.3", "toolkit": "13.0"}
    assert all(space["_kernelwright_unfit"]({**label, "codes": codes}) == "" for codes in fit)
    assert all(space["_kernelwright_unfit"]({**label, "codes": codes}) for codes in others)


def test_levels_of_processors():
    assert own_level(f"processor : 0\nflags\t\t: fpu {' '.join(flags_of('x86-64-v3'))} avx512f\n") == "x86-64-v3"
    assert own_level("flags : fpu") == "x86-64" and own_level("") == "x86-64"
    for level in X86_64:
        has = flags_of(level)
        assert own_level(f"flags : {' '.join(has)}") == level
        for flag in has:
            assert own_level(f"flags : {' '.join(set(has) - {flag})}") != level


def test_names_by_default_and_by_hand():
    cpp = TARGETS["cpp"]
    assert names_wanted(True, cpp) == tuple(dict.fromkeys([own_level(), PORTABLE]))[:1 + (own_level() == "x86-64-v4")]
    assert names_wanted("x86-64-v2,x86-64-v4,x86-64-v2", cpp) == ("x86-64-v4", "x86-64-v2")
    with pytest.raises(InvalidOption, match=r"--embed-for cannot be sm_90a"):
        names_wanted("x86-64-v2,sm_90a", cpp)


@NVCC
def test_names_of_devices():
    cuda = TARGETS["cuda"]
    assert names_wanted("ptx,sm_80,sm_90a", cuda) == ("sm_90a", "sm_80", "ptx")
    for wrong in ("x86-64-v3", "sm_90a,sm_31"):
        with pytest.raises(InvalidOption):
            names_wanted(wrong, cuda)


def test_machines_that_make_none(monkeypatch):
    monkeypatch.setattr("kernelwright.build.embedding.find_cuda_compiler", lambda: None)
    with pytest.raises(CannotEmbed, match="nvcc"):
        names_wanted(True, TARGETS["cuda"])
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(CannotEmbed, match="Linux aarch64"):
        names_wanted(True, TARGETS["cpp"])


# ---- what is missing is named ------------------------------------------------------------------------

TOOLS = {"cpp": {"c++": "the C++ compiler c++", "ninja": "ninja"}, "c": {"cc": "the C compiler cc"},
         "cuda": {"c++": "the C++ compiler c++", "ninja": "ninja", "nvcc": "the CUDA compiler nvcc"}}


@pytest.mark.parametrize(("target", "there"), [
    (target, there) for target, tools in TOOLS.items() for there in [set(), *({tool} for tool in tools), set(tools)]])
def test_each_missing_program_is_named_and_no_other(target, there, tmp_path, monkeypatch):
    from torch.utils import cpp_extension

    space: dict = {}
    conditions = {**conditions_of(TARGETS[target]), "EMBEDDED": False, "UNITS": False}
    exec(IMPORTS + used(folded(BUILD, conditions), ["_kernelwright_missing"]), space)
    for tool in there:
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "CC", "PYTORCH_NVCC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    assert space["_kernelwright_missing"]() == [said for tool, said in TOOLS[target].items() if tool not in there]
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setenv("CXX", "clang++-99 -v")
    monkeypatch.setenv("CC", "tcc")
    said = " ".join(space["_kernelwright_missing"]())
    assert ("clang++-99 -v" in said) == (target != "c") and ("the C compiler tcc" in said) == (target == "c")
    assert (f"the CUDA compiler {tmp_path}/toolkit/bin/nvcc" in said) == (target == "cuda")


def test_ninja_is_found_in_its_package(tmp_path, monkeypatch):
    """Without it PyTorch compiles nothing, and the environment's programs need not be in PATH."""
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ninja", None)
    with pytest.raises(NinjaMissing):
        find_tools(TARGETS["cpp"])
    monkeypatch.setenv("CC", sys.executable)
    find_tools(TARGETS["c"])
    monkeypatch.setitem(sys.modules, "ninja", SimpleNamespace(BIN_DIR=str(tmp_path / "bin")))
    with pytest.raises(NinjaMissing):
        find_tools(TARGETS["cpp"])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ninja").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "ninja").chmod(0o755)
    find_tools(TARGETS["cpp"])
    assert os.environ["PATH"] == f"{tmp_path}{os.pathsep}{tmp_path / 'bin'}"


def test_one_missing_program_is_named_by_the_file(files, tmp_path):
    """Whichever there is: the warning of a call says what to install."""
    problem, result = files
    text = DAMAGES["another system"](result.source)
    for there, missing in (("ninja", "the C++ compiler c++"), ("c++", "ninja")):
        found = run(problem, text, tmp_path / there, (there,))
        assert found["trouble"] == f"the kernels could not be built (not found: {missing})"


def test_a_file_for_several_sizes_holds_its_kernels_too(tmp_path):
    """Loaded without a compiler, it serves other sizes than the example's with kernels."""
    text = """
        class Model(nn.Module):
            def forward(self, x):
                return torch.softmax(torch.sigmoid(x) * 2, -1)

        def get_inputs():
            return [torch.rand(4, 3, 32)]
        """
    path = write_problem(tmp_path, "several", text)
    with pytest.MonkeyPatch.context() as patch:
        short_budgets(patch)
        result = kernelwright.optimize(path, target="cpp", effort="quick", baselines="none", dynamic="x:0=1..8",
                                       embed="x86-64,x86-64-v2")
    assert [label["for"] for label in labels(result.source)] == ["x86-64-v2", "x86-64"], result.notes
    assert "sized" in result.source and any("holds its kernels compiled" in note for note in result.notes)
    found = run(path, result.source, tmp_path / "without")
    assert found["library"] and not found["started"] and found["why"] == [{}] * 3 and not found["warnings"]
    ours = load_text(result.source, "several")
    for batch in (1, 3, 8):
        x = torch.rand(batch, 3, 32)
        with torch.no_grad(), kernels_run(ours):
            torch.testing.assert_close(ours.ModelNew()(x), torch.softmax(torch.sigmoid(x) * 2, -1))
