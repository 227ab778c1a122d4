"""Whole networks (torchvision, timm, transformers, torchaudio, torch_geometric, PyTorch) as problem files.

Nothing is downloaded: configurations stand in `network_lists/`, weights are the random ones of the constructors. Each
file is of a size for a GPU, with a tiny one in its TINY. What is not installed is left out with a line.

    python benchmarks/networks.py write networks --set timm --dtype float32 --dtype bfloat16
    kernelwright bench networks --effort quick --baselines none --workers 1                 # or --tiny
    python benchmarks/networks.py table bench_results/results.jsonl
    python benchmarks/networks.py times bench_results/results.jsonl

    python benchmarks/networks.py plan networks --tiny --output planned.jsonl               # seconds each on one core
    python benchmarks/networks.py table planned.jsonl

`plan` goes up to the plan alone, which it evaluates in float64 against the model. `table` prints Markdown: how many are
served whole, in part or not, and each with its reason. `times` prints the device's time and that of calls that are
waited for, beside every baseline.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from network_lists import SETS
from network_lists.declaration import DTYPES
from network_lists.planned import plan_all
from network_lists.table import table
from network_lists.times import times


def write(folder: Path, sets: list[str], dtypes: list[str]) -> None:
    """Write the files of sets into subfolders of their names."""
    for name in sets:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for network in SETS[name]:
            for dtype in dtypes:
                if missing := network.missing():
                    print(f"{network.name}: {missing}")
                    break
                ending = "" if dtype == "float32" else f"_{dtype}"
                (folder / name / f"{network.name}{ending}.py").write_text(network.text(dtype), encoding="utf-8")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write problem files")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--set", action="append", choices=list(SETS), help="by default all")
    writing.add_argument("--dtype", action="append", choices=DTYPES, help="by default float32")
    telling = commands.add_parser("table", help="the table of records of plan or of kernelwright bench")
    telling.add_argument("records", type=Path, nargs="+")
    timing = commands.add_parser("times", help="the times in records of kernelwright bench, beside every baseline")
    timing.add_argument("records", type=Path, nargs="+")
    planning = commands.add_parser("plan", help="capture, plan and evaluate, without compiling anything")
    planning.add_argument("folder", type=Path)
    planning.add_argument("--filter", default="*/*", help="a shell pattern of set/name")
    planning.add_argument("--output", type=Path, default=Path("planned.jsonl"), help="records; those there are kept")
    planning.add_argument("--limit", type=float, default=600.0, help="processor seconds of one network")
    planning.add_argument("--tiny", action="store_true", help="with the values of each file's TINY")
    given = parser.parse_args()
    if given.command == "write":
        write(given.folder, given.set or list(SETS), given.dtype or ["float32"])
    elif given.command == "plan":
        plan_all(sorted(given.folder.glob(f"{given.filter}.py")), given.output, given.limit, tiny=given.tiny)
    else:
        print((times if given.command == "times" else table)(given.records))


if __name__ == "__main__":
    main()
