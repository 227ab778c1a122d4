"""The device table, and the machine that `doctor` measures."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from schemas import assert_fits

from kernelwright import doctor as doctor_module
from kernelwright.roofline import peaks
from kernelwright.roofline.devices import (
    A100_80,
    GENERIC_CPU,
    GENERIC_CUDA,
    H100,
    H200,
    ROWS,
    Device,
    device_from_properties,
    named_device,
    processor_name,
)
from kernelwright.roofline.peaks import current_device


@pytest.fixture
def cache(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(peaks, "waits", dict)  # nobody sees how busy this machine is
    return tmp_path


@pytest.mark.parametrize("row", [*ROWS.values(), GENERIC_CUDA], ids=lambda row: row.name)
def test_rows_are_consistent(row: Device) -> None:
    assert row.copy <= row.read <= row.memory_peak
    assert row.float32_matmul <= row.float32 < row.tf32 < row.bfloat16
    assert Device.from_json(json.loads(json.dumps(row.to_json()))) == row


def test_rows_are_found_by_name() -> None:
    assert named_device("NVIDIA H200") is H200 and named_device("nvidia  h200") is H200
    assert named_device("NVIDIA H100 80GB HBM3") is H100
    assert named_device("NVIDIA Nonesuch") is None
    assert (H200.read, H200.copy, H200.cores) == (4.38e12, 4.25e12, 132)


def test_best_arithmetic_is_the_fastest_unit_that_keeps_the_accuracy() -> None:
    assert H200.best_arithmetic() == pytest.approx(8.36e14 / 3)
    assert H200.best_arithmetic(tf32=True) == 3.9e14
    assert H200.best_arithmetic(torch.float64) == 6.7e13
    assert H200.best_arithmetic(torch.bfloat16) == 8.36e14


def test_rows_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        replace(H200, read=0.0)
    with pytest.raises(ValueError, match="kind"):
        replace(H200, kind="abacus")
    with pytest.raises(ValueError, match="CPU and for CUDA"):
        current_device("meta")


def test_a_row_from_properties_is_near_the_known_one() -> None:
    properties = SimpleNamespace(
        name="NVIDIA A100-SXM4-80GB",
        multi_processor_count=108,
        clock_rate=1410000,
        memory_clock_rate=1593000,
        memory_bus_width=5120,
        major=8,
        minor=0,
        L2_cache_size=40 << 20,
    )
    made = device_from_properties(properties)
    for rate in ("memory_peak", "read", "copy", "float32", "bfloat16", "float64"):
        assert getattr(made, rate) == pytest.approx(getattr(A100_80, rate), rel=0.1), rate
    bare = device_from_properties(SimpleNamespace(name="unknown"))
    assert bare.memory_peak == GENERIC_CUDA.memory_peak and bare.cores == GENERIC_CUDA.cores


def test_a_cpu_says_how_many_threads_its_figures_are_for():
    assert GENERIC_CPU.title == "generic CPU, 8 threads" and "eight threads" in GENERIC_CPU.source
    assert replace(GENERIC_CPU, cores=1).parallel == "1 thread" and H200.title == H200.name


def test_the_cpu_is_measured_once_and_cached(cache, monkeypatch: pytest.MonkeyPatch) -> None:
    row = current_device("cpu")
    assert row.kind == "cpu" and row.name == processor_name() and row.cores == torch.get_num_threads()
    assert 1e8 < row.read < 1e13 and 1e8 < row.float32 < 1e15 and 0 < row.launch_seconds < 1e-2
    monkeypatch.setattr(peaks, "measure_cpu", lambda *_: pytest.fail("measured again"))
    assert current_device(torch.device("cpu")) == row
    (path,) = (cache / "peaks").iterdir()  # nothing temporary is left
    path.write_text(path.read_text()[:50])
    monkeypatch.setattr(peaks, "measure_cpu", lambda *_: replace(row, read=1.0))
    assert current_device("cpu").read == 1.0  # a damaged file counts as none


def test_measuring_again_only_raises_the_peaks(cache, monkeypatch: pytest.MonkeyPatch) -> None:
    made = replace(H200, kind="cpu", read=5.0, copy=4.0, launch_seconds=2.0)
    monkeypatch.setattr(peaks, "measure_cpu", lambda *_: made)
    assert peaks.measured_cpu() == made
    made = replace(made, read=3.0, copy=9.0, launch_seconds=1.0)
    again = peaks.measured_cpu(refresh=True)
    assert (again.read, again.copy, again.launch_seconds) == (5.0, 9.0, 1.0)
    assert peaks.measured_cpu() == again


def test_a_device_that_was_measured_beside_other_work_turns_out_faster(cache, monkeypatch: pytest.MonkeyPatch) -> None:
    made = replace(H200, kind="cpu", read=5.0, copy=4.0)
    monkeypatch.setattr(peaks, "measure_cpu", lambda *_: made)
    assert peaks.measured_faster(torch.device("cpu")) == 1.0
    made = replace(made, read=4.0, copy=10.0)
    assert peaks.measured_faster(torch.device("cpu")) == 2.5
    assert peaks.measured_faster(torch.device("cpu")) == 1.0


def test_the_key_holds_the_thread_count(cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        peaks, "measure_cpu", lambda name, threads: replace(H200, kind="cpu", cores=threads)
    )
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        assert peaks.measured_cpu().cores == threads
    assert len(list((cache / "peaks").iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_no_error(cache, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(cache / "file"))
    monkeypatch.setattr(peaks, "measure_cpu", lambda *_: replace(H200, kind="cpu"))
    assert peaks.measured_cpu().read == H200.read


@pytest.fixture
def bare(cache, monkeypatch: pytest.MonkeyPatch):
    """A machine with nothing but PyTorch."""
    monkeypatch.setattr(peaks, "measure_cpu", lambda *_: replace(H200, name="a processor", kind="cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("CXX", "CC", "NVCC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.setenv("CUDA_HOME", str(cache))
    return cache


def program(folder, name: str, version: str = "1.2") -> None:
    (folder / name).write_text(f"#!/bin/sh\necho Some heading\necho {name} version {version}\n")
    (folder / name).chmod(0o755)


def test_a_machine_that_lacks_a_compiler_is_told_what_that_costs(bare) -> None:
    machine = doctor_module.doctor()
    first, text = machine.render().splitlines()[0], machine.render(400)
    assert first.startswith("Not ready: no C++ compiler, so that no kernel is built") and machine.verdict == first
    assert torch.__version__ in text and "read 4.38 TB/s" in text and "a processor, 132 threads" in text
    lacking = {missing.name: missing for missing in machine.missing}
    assert {"C++ compiler", "CUDA device", "nvcc", "C compiler"} <= set(lacking)
    assert [name for name, missing in lacking.items() if missing.needed] == ["C++ compiler"]
    for missing in machine.missing:
        assert f"  {missing.name}" in text and missing.sentence() in text and missing.cost
    assert "set CXX to the path of one" in lacking["C++ compiler"].fix and machine.compilers.keys() <= {"ninja"}
    assert_fits(machine.to_json(), "doctor")


def test_a_report_has_what_the_device_has_and_fits(bare, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare, "g++", "12.2.0")
    machine = doctor_module.doctor()
    text = machine.render(60)
    assert text.startswith("Ready: kernels for a processor are built")
    assert f"g++ version 12.2.0 ({bare}/g++)" in " ".join(text.split())
    assert "products TF32" not in text and "products TF32" in replace(machine, devices=(H200,)).render(60)
    cuts = [line for line in text.splitlines() if len(line) > 60]
    assert all(str(bare) in line or "http" in line for line in cuts), cuts  # a path is one word
    assert "Other programs" not in text and "Other programs" in replace(machine, measured_busy=True).render(60)
    fake = SimpleNamespace(name="NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: fake)
    monkeypatch.setattr(doctor_module, "measured_cuda", lambda index, refresh: H200)
    without = doctor_module.doctor()
    assert without.verdict == ("Ready: kernels for a processor are built, checked and timed here; none for the GPU, as "
                               "there is no nvcc.")
    program(bare, "nvcc", "13.0")
    both = doctor_module.doctor()
    assert both.verdict == "Ready: kernels for a processor and NVIDIA H200 are built, checked and timed here."
    assert "CUDA device" not in {missing.name for missing in both.missing} and "nvcc version 13.0" in both.render(400)
    assert_fits(both.to_json(), "doctor")


def test_figures_of_a_busy_machine_are_said_to_be(bare, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where threads waited while they were measured, whoever measured them; and they are measured until they hold."""
    program(bare, "g++")
    waited = [0.0]

    def waits() -> dict[str, float]:
        waited[0] += 9.0
        return {"1": waited[0]}

    monkeypatch.setattr(peaks, "waits", waits)
    assert peaks.measured_busy(current_device("cpu")) and peaks.measured_busy(current_device("cpu"))
    machine = doctor_module.doctor()
    assert machine.measured_busy and "beside other programs" in machine.render(400)
    monkeypatch.setattr(peaks, "waits", dict)
    quiet = doctor_module.doctor()
    assert not quiet.measured_busy and "other programs" not in quiet.render(400).lower()
    monkeypatch.setattr(peaks, "waits", waits)
    assert not doctor_module.doctor(refresh=True).measured_busy  # the figures of a quiet machine stay


def test_programs_are_told_with_their_versions(tmp_path) -> None:
    program(tmp_path, "clang++", "17.0.6")
    assert doctor_module.version_of(str(tmp_path / "clang++")) == f"clang++ version 17.0.6 ({tmp_path}/clang++)"
    assert doctor_module.version_of("/no/such/compiler") == "does not run (/no/such/compiler)"


def test_without_a_gpu_cuda_is_the_generic_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert current_device("cuda") is GENERIC_CUDA
