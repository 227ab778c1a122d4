"""Write the table of measured times into README.md, from benchmarks/results/*.json.

    python tools/measured_table.py
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = "<!-- measured -->"


def times(seconds: float) -> str:
    """Three significant digits of milliseconds."""
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"


def cells(entry: dict) -> list[str]:
    """ms of eager, torch.compile and ours, and the ratios with their intervals."""
    found = entry.get("times", {})
    row = [times(found[k]["median"]) if k in found else "" for k in ("eager", "torch.compile", "candidate")]
    ratios = entry.get("ratios", {})
    if "candidate" not in found:
        return [*row[:2], "the original", "", "", ""]
    row += [f"{ratios[k]['value']:.3g} ({ratios[k]['low']:.3g} to {ratios[k]['high']:.3g})" if k in ratios else ""
            for k in ("eager", "torch.compile")]
    return [*row, f"{entry['error']['candidate']:.1e} / {entry['error']['eager']:.1e}"]


def table(path: Path) -> list[str]:
    """One device's table in Markdown."""
    document = json.loads(path.read_text())
    versions = document["versions"]
    head = (f"**{document['device']}**, torch {versions['torch']}, {document['threads']} threads, {document['date']} "
            f"(`benchmarks/results/{path.name}`, `{document['command']}`); milliseconds:")
    lines = [head, "",
             "| example | mode | eager | torch.compile | ModelNew | over eager | over compile | error / eager's |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, example in document["examples"].items():
        for mode, entry in example.get("modes", {}).items():
            when = f" ({example['date'][11:16]} UTC)" if "date" in example else ""  # measured apart from the others
            lines.append(f"| {name}{when} | {mode} | " + " | ".join(cells(entry)) + " |")
    return [*lines, ""]


def main() -> None:
    """Replace what stands between the marks."""
    readme = ROOT / "README.md"
    before, _, after = readme.read_text().split(MARK)
    lines = [line for name in ("h200.json", "cpu.json") for line in table(ROOT / "benchmarks" / "results" / name)]
    readme.write_text(before + MARK + "\n" + "\n".join(lines).rstrip() + "\n" + MARK + after)


if __name__ == "__main__":
    main()
