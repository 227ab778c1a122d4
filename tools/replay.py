#!/usr/bin/env python3
"""Whether the texts of kernels are still what they were: a change of the code that is to change no text is checked
against hashes that were recorded before it.

    python tools/replay.py --check               differences, and exit status 1 where there are any
    python tools/replay.py --check --every 20    of every twentieth case: faster
    python tools/replay.py --record              write the hashes of today's texts

Texts are those of every contraction of the tests under every tiling that a test gives it or the search proposes, and
of its schedules without tensor cores; and of the tests' loops for both targets. A line of the record is the name of a
case and, behind a tab, the starts of its texts' SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
RECORD = TESTS / "records" / "kernel_texts.txt"
sys.path[:0] = [str(ROOT), str(TESTS / "support"), *sorted({str(path.parent) for path in TESTS.rglob("test_*.py")})]

from contraction_cases import ContractionCase  # noqa: E402

from kernelwright.codegen.cuda.direct_conv.generate import schedules  # noqa: E402
from kernelwright.codegen.cuda.gemm.generate import tilings  # noqa: E402
from kernelwright.codegen.cuda.gemm.tiling import Tiling  # noqa: E402
from kernelwright.codegen.generate import TARGETS, generate_kernel  # noqa: E402
from kernelwright.plan.contraction.record import Contraction  # noqa: E402
from kernelwright.plan.records import Kernel  # noqa: E402

#: The module of loops, whose function `cases` lists them.
_LOOPS = "loop_cases"


def modules() -> list[str]:
    """The modules whose cases are replayed, those of contractions and that of loops."""
    found = [*TESTS.rglob("test_contraction*.py"), *(TESTS / "emulation" / "gemm").rglob("test_*.py")]
    return [*sorted(path.stem for path in found), _LOOPS]


def _given(value: object) -> Iterator[tuple[ContractionCase, Tiling | None]]:
    """The contractions in a value of a test module, each with the tiling that stands beside it."""
    match value:
        case ContractionCase():
            yield value, None
        case (ContractionCase() as case, Tiling() as tiling, *_):
            yield case, tiling
        case dict():
            yield from _given(list(value.values()))
        case list() | tuple():
            for part in value:
                yield from _given(part)


def _forms(kernel: Contraction, tiling: Tiling | None) -> Iterator[Contraction]:
    """The kernel as it is, under the tiling that a test gives, and under each that the search proposes."""
    yield kernel
    if kernel.scheme == "correlation":
        return
    if tiling is not None:
        yield replace(kernel, tiling=tiling)
    if kernel.scheme == "float32":
        yield from (replace(kernel, tiling=number) for number in range(len(schedules(replace(kernel, tiling=None)))))
    else:
        yield from (replace(kernel, tiling=found) for core in ("wgmma", "mma") for found in tilings(kernel, core))


def _kernels(module: str, every: int) -> Iterator[tuple[str, Kernel, str]]:
    """The name, the kernel and the target of each text of a module's cases."""
    loaded = importlib.import_module(module)
    if module == _LOOPS:
        for case in loaded.cases()[::every]:
            yield from ((case.name, case.kernel, target) for target in TARGETS)
        return
    named = [value for name, value in vars(loaded).items() if not name.startswith("__")]  # not all of Python's builtins
    for case, tiling in islice(dict.fromkeys(_given(named)), 0, None, every):
        yield from ((case.name, kernel, "cuda") for kernel in dict.fromkeys(_forms(case.kernel, tiling)))


def texts_of(module: str, every: int = 1) -> dict[str, set[str]]:
    """The hashes of the texts of a module's cases, of one in ``every``, by the cases' names; a kernel that its target
    refuses has none."""
    found: dict[str, set[str]] = {}
    for name, kernel, target in _kernels(module, every):
        try:
            source = generate_kernel(kernel, "kernel", target)
        except ValueError:
            continue
        whole = "\0".join([source.definition, str(source.workspace_bytes), *sorted(source.support)])
        found.setdefault(name, set()).add(hashlib.sha256(whole.encode()).hexdigest()[:12])
    return found


def recorded() -> dict[str, set[str]]:
    """The record: hashes by the names of cases."""
    lines = [line.split("\t") for line in RECORD.read_text(encoding="utf-8").splitlines()]
    return {name: set(keys.split()) for name, keys in lines}


def today(every: int = 1) -> dict[str, set[str]]:
    """What `recorded` would be of the code as it stands, of one case in ``every``."""
    found: dict[str, set[str]] = {}
    with ProcessPoolExecutor(2) as pool:
        for texts in pool.map(texts_of, modules(), repeat(every)):
            for name, keys in texts.items():
                found.setdefault(name, set()).update(keys)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="show what differs from the record")
    action.add_argument("--record", action="store_true", help="write the record")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="look at every N-th case of each module")
    arguments = parser.parse_args()
    if arguments.record:
        found = today()
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text("".join(f"{name}\t{' '.join(sorted(found[name]))}\n" for name in sorted(found)),
                          encoding="utf-8")
        print(f"{sum(map(len, found.values()))} texts of {len(found)} cases")
        return 0
    before, found = recorded(), today(arguments.every)
    new = {name: keys - before.get(name, set()) for name, keys in found.items()}
    gone = {name: keys - found.get(name, set()) for name, keys in before.items()} if arguments.every == 1 else {}
    for words, differences in (("new texts", new), ("texts gone", gone)):
        for name, keys in differences.items():
            if keys:
                print(f"{name}: {len(keys)} {words}")
    print(f"{sum(len(keys) - len(new[name]) for name, keys in found.items())} texts are what they were")
    return int(any(new.values()) or any(gone.values()))


if __name__ == "__main__":
    raise SystemExit(main())
