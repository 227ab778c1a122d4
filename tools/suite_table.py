"""Print the Markdown tables of one or several suite results; of records of one problem the last counts.

    python tools/suite_table.py bench_results/results.jsonl [MORE.jsonl ...]
    python tools/suite_table.py RESULTS.jsonl --set "matrix products=level1/1-3,6-11" [--set ...]

With sets of problems: each problem against the fastest of its baselines, and the geometric mean of each set.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kernelwright.suite.results import read_results
from kernelwright.suite.sets import parse_set, sets_table
from kernelwright.suite.table import markdown_table

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--set", dest="sets", action="append", type=parse_set, default=[])
    arguments = parser.parse_args()
    records: dict = {}
    for name in arguments.results:
        records |= read_results(name)
    found = list(records.values())
    print(sets_table(found, arguments.sets) if arguments.sets else markdown_table(found))
