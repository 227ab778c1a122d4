"""Print the Markdown tables of one or several suite results; of records of one problem the last counts.

    python tools/suite_table.py bench_results/results.jsonl [MORE.jsonl ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

from kernelwright.suite.results import read_results
from kernelwright.suite.table import markdown_table

if __name__ == "__main__":
    records: dict = {}
    for name in sys.argv[1:]:
        records |= read_results(Path(name))
    print(markdown_table(list(records.values())))
