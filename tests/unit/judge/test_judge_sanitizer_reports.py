"""What Compute Sanitizer prints, as its manual has it: kinds, places and threads of faults, and words on itself."""

from __future__ import annotations

import pytest

from kernelwright.judge.reading.sanitizer import (
    BARRIER,
    MAYBE_RACE,
    MISALIGNED,
    OTHER,
    OUT_OF_BOUNDS,
    RACE,
    UNSET,
    Fault,
    function_name,
    read_report,
)

BEYOND = """\
========= COMPUTE-SANITIZER
epoch 1: the program's own line
========= Invalid __global__ write of size 4 bytes
=========     at shift(float *, int)+0x90 in cuda.cu:12
=========     by thread (44,0,0) in block (2,0,0)
=========     Access to 0x7f3b2fa00c00 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3b2fa00000 of size 3,072 bytes
=========     Device Frame: run_tile(float *)+0x20 in cuda.cu:40
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main [0x8f0d] in app.cpp:3
=========
========= ERROR SUMMARY: 1 error
"""
OLDER = """\
========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 16 bytes
=========     at 0xc8 in /src/kernels/tile.cuh:75:void load_tile<double>(double*, int)
=========     by thread (9,0,0) in block (0,0,0)
=========     Address 0x370e8 is misaligned
=========
========= ERROR SUMMARY: 1 error
"""
RACES = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void softmax<(int)128>(float *, int)+0x580 in cuda.cu:25
=========     and Read access at void softmax<(int)128>(float *, int)+0x890 in cuda.cu:31 [4080 hazards]
=========
========= WARNING: Race reported between Write access at RAW()+0xf0
=========     and Write access at RAW()+0x280 [4 hazards]
=========
========= ERROR: Potential WAW hazard detected at __shared__ 0x0 in block (0,0,0) :
=========     Write Thread (0,0,0) at WAW()+0x2f0 in race.cu:20
=========     Write Thread (1,0,0) at WAW()+0x2f0 in race.cu:20
=========     Current Value : 1, Incoming Value : 2
=========
========= Potential invalid __shared__ read of size 4 bytes
=========     at remote(int *, int)+0x170 in cluster.cu:10
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x1000400 is located in a block that might have already exited
=========
========= RACECHECK SUMMARY: 4 hazards displayed (3 errors, 1 warning)
"""
OTHERS = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at _ZN2at6native13scale_kernelEPf+0x2a0
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f65e5204710
=========
========= Barrier error detected. Divergent thread(s) in warp
=========     at (anonymous namespace)::diverge(int *, int)+0xf0 in sync.cu:79
=========     by thread (37,0,0) in block (0,0,0)
=========
========= Warp Illegal Address
=========     at store(float *)+0x40
=========
========= Program hit cudaErrorNotSupported (error 801) due to "operation not supported" on CUDA API call to cudaFoo.
=========     Saved host backtrace up to driver entry point at error
=========
========= ERROR SUMMARY: 3 errors
========= ERROR SUMMARY: 2 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
TWO_LINES = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at buggy(float *, int)+0x580
=========     in memory.cu:25
=========     and Read access at buggy(float *, int)+0x890 in memory.cu:31
=========     [4080 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_an_access_beyond_the_end_is_read_with_its_place() -> None:
    report = read_report(BEYOND)
    assert report.begun and report.ended and report.faults == (Fault(
        OUT_OF_BOUNDS, "writes 4 bytes outside of its global memory (1 bytes after the nearest allocation of size "
        "3,072 bytes)", ("shift", "run_tile"), "cuda.cu", 12, "(44,0,0)", "(2,0,0)"),)


def test_what_the_process_prints_hides_no_line() -> None:
    """A process may leave its own line open; equal records count once."""
    glued = BEYOND.replace("epoch 1: the program's own line\n", "epoch 1: no end of this line ")
    assert read_report(glued).faults == read_report(BEYOND).faults == read_report(BEYOND + BEYOND).faults
    assert read_report("".join(f"{line.lstrip('= ')}\n" for line in BEYOND.splitlines())) == read_report("")


def test_older_versions_place_the_function_behind_the_line() -> None:
    fault, = read_report(OLDER).faults
    assert (fault.kind, fault.functions, fault.file, fault.line) == (MISALIGNED, ("load_tile",), "tile.cuh", 75)


def test_races_have_levels_and_places() -> None:
    found = read_report(RACES).faults
    assert [f.kind for f in found] == [RACE, MAYBE_RACE, RACE, RACE]
    assert [f.functions for f in found] == [("softmax",), ("RAW",), ("WAW",), ("remote",)]
    assert [f.line for f in found] == [25, None, 20, 10]
    assert "reads and writes" in found[0].words and found[1].words.startswith("writes the same")
    split, = read_report(TWO_LINES).faults
    assert (split.kind, split.functions, split.file, split.line) == (RACE, ("buggy",), "memory.cu", 25)


def test_reads_of_unset_memory_barriers_and_exceptions() -> None:
    report = read_report(OTHERS)
    assert [f.kind for f in report.faults] == [UNSET, BARRIER, OTHER] and report.ended
    assert report.faults[1].functions == ("diverge",) and "divergent thread(s) in warp" in report.faults[1].words


@pytest.mark.parametrize("printed", [
    "", "Traceback (most recent call last):\n", BEYOND.replace("========= ERROR SUMMARY: 1 error\n", ""),
    BEYOND.partition("\n")[2]])
def test_a_report_without_an_end_is_seen(printed: str) -> None:
    report = read_report(printed)
    assert not (report.begun and report.ended)


def test_what_the_tool_says_of_itself_is_kept() -> None:
    said = "========= COMPUTE-SANITIZER\n========= Error: Device not supported. Please refer to the documentation.\n"
    report = read_report(said)
    assert not report.faults and report.own == ("Error: Device not supported. Please refer to the documentation.",)


@pytest.mark.parametrize(("text", "name"), [
    ("scale(float *, int)+0x70", "scale"), ("void scale<float>(T1 *, int)+0x70", "scale"), ("scale", "scale"),
    ("scale+0x70", "scale"), ("unaligned_kernel():0x160", "unaligned_kernel"),
    ("std::pair<int, long>::type a::b::Load<(int)4, const int *>(T2)+0x8a70", "Load"),
    ("(anonymous namespace)::k<a<b<1>>>(float*)", "k"), ("", "")])
def test_names_of_functions(text: str, name: str) -> None:
    assert function_name(text) == name
