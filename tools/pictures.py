"""The pictures of README.md and of the documents: what was measured, from benchmarks/results, and the pipeline.

    python tools/pictures.py        # writes docs/pictures/*.svg, as tools/regenerate.py does

A picture has its own ground, light or dark as the reader's system asks, so that it can be read wherever it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean

from kernelwright.report.html.scale import around

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
RESULTS = ROOT / "benchmarks" / "results"
#: Of a problem that several of these hold, the last one counts.
MEASURED = ("kernelbench_h200.md", "contractions_h200.md", "level3_h200.md")
LEVELS = ("level1", "level2", "level3")

STYLE = """
  .ground { fill: #fdfdfc; stroke: #d9dce1; } text { font: 13px system-ui, sans-serif; fill: #1d2430; }
  .head { font-weight: 600; font-size: 15px; } .dim { fill: #596273; font-size: 11.5px; } .line { stroke: #d9dce1; }
  .one { stroke: #1d2430; stroke-dasharray: 4 3; } .faster { fill: #2563a8; } .slower { fill: #c2410c; }
  .box { fill: #f1f3f5; stroke: #9aa3b0; } .arrow { stroke: #596273; fill: none; } .tip { fill: #596273; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #14181d; stroke: #333a44; } text { fill: #e4e7eb; } .dim { fill: #9ca6b3; }
    .line { stroke: #333a44; } .one { stroke: #e4e7eb; } .faster { fill: #6fb1f5; } .slower { fill: #fb923c; }
    .box { fill: #1d232a; stroke: #596273; } .arrow { stroke: #9ca6b3; } .tip { fill: #9ca6b3; }
  }
"""


def picture(width: int, height: int, description: str, parts: Sequence[str]) -> str:
    """An SVG file's text."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(description)}">', f"<style>{STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
        *parts, "</svg>", ""])


def label(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text."""
    classes = f' class="{kind}"' if kind else ""
    return f'<text{classes} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


# ---- what was measured -----------------------------------------------------------------------------


def _rows(text: str) -> Iterator[dict[str, str]]:
    """The rows of a document's tables, by the names of their columns."""
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if "".join(cells).replace("-", "").replace("|", "").strip() == "":
            head = head if cells else []
        elif not head:
            head = cells
        else:
            yield dict(zip(head, cells, strict=False))


def speed_ups() -> dict[str, dict[str, float]]:
    """For each level the speed-up of its problems over the better of eager and torch.compile, by name."""
    found: dict[str, dict[str, float]] = {level: {} for level in LEVELS}
    for name in MEASURED:
        for row in _rows((RESULTS / name).read_text(encoding="utf-8")):
            level, _, problem = row.get("problem", "").replace("\\_", "_").partition("/")
            if level not in found or "ours ms" not in row:
                continue
            over = row.get("speed-up") or (row.get("x eager", ""), row.get("x compile", ""))
            ratios = [float(r) for r in ([over] if isinstance(over, str) else over) if re.fullmatch(r"[\d.]+", r)]
            found[level][problem] = min(ratios)
    return found


def measured() -> str:
    """The chart: every problem of KernelBench's levels 1 to 3, sorted, on a logarithmic scale."""
    levels = speed_ups()
    left, right, top, bottom, gap, width, height = 58, 16, 66, 82, 26, 920, 400
    each = (width - left - right - gap * (len(levels) - 1)) / len(levels)
    everything = [value for problems in levels.values() for value in problems.values()]
    scale = around(everything, height - bottom, top, margin=1.15)
    assert scale is not None
    parts = [label(left, 26, "KernelBench on an NVIDIA H200: how many times faster than the better of eager and "
                             "torch.compile", "head"),
             label(left, 45, "Each dot is a problem, checked against float64. Below the dashed line torch.compile is "
                             "faster.", "dim")]
    parts += [f'<line class="{"one" if value == 1 else "line"}" x1="{left}" x2="{width - right}" y1="{y:.1f}" '
              f'y2="{y:.1f}"/>' + label(left - 8, y + 4, f"{value:g}x", "dim", "end")
              for value, y in scale.ticks()]
    for number, (level, problems) in enumerate(levels.items()):
        start, shown = left + number * (each + gap), sorted(problems.items(), key=lambda pair: (pair[1], pair[0]))
        for place, (problem, value) in enumerate(shown):
            x = start + (place + 0.5) * each / len(shown)
            kind, title = "slower" if value < 1 else "faster", escape(f"{level}/{problem}: {value:g}x")
            parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{scale.at(value):.1f}" r="2.6">'
                         f"<title>{title}</title></circle>")
        mean = exp(fmean(log(value) for value in problems.values()))
        below = sum(value < 1 for value in problems.values())
        middle = start + each / 2
        parts += [label(middle, height - 56, f"level {level[-1]}: {len(problems)} problems", anchor="middle"),
                  label(middle, height - 39, f"geometric mean {mean:.2f}x; {below} below 1x", "dim", "middle")]
    parts.append(label(left, height - 13, f"benchmarks/results: {', '.join(MEASURED)} (2026-11-21 to 23); without a "
                                          "time of torch.compile, over eager", "dim"))
    return picture(width, height, "Speed-ups of KernelBench's problems over the better of eager and torch.compile",
                   parts)


# ---- the pipeline ----------------------------------------------------------------------------------

#: The stages in the order of the data: its word, its folder, what it makes.
STAGES = (
    ("LOAD", "problem/", "class and inputs"), ("CAPTURE", "capture/", "a graph"),
    ("REWRITE", "algebra/", "a smaller graph"), ("PLAN", "plan/", "kernels' records"),
    ("GENERATE", "codegen/", "C++, C, CUDA"), ("EMIT", "emit/", "one Python file"), ("BUILD", "build/", "ModelNew"),
    ("VERIFY", "verify/", "a certificate"), ("TUNE", "tune/", "what wins"), ("TIME", "timing/", "honest times"))


def pipeline() -> str:
    """The stages from a model's file to the emitted one, and the way back."""
    width, height, across, wide, tall = 920, 350, 5, 132, 66
    step, top = (width - 80 - wide) / (across - 1), 84
    parts = [label(40, 34, "From model.py to model_new.py", "head"),
             label(40, 54, "Each stage hands the next one a frozen record; what fails its check goes back, and its "
                           "operators stay with PyTorch.", "dim")]
    parts.append('<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                 'orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>')
    places = [(40 + (n if n < across else 2 * across - 1 - n) * step, top if n < across else top + 128)
              for n in range(len(STAGES))]
    for (word, folder, made), (x, y) in zip(STAGES, places, strict=True):
        middle = x + wide / 2
        parts += [f'<rect class="box" x="{x:g}" y="{y}" width="{wide}" height="{tall}" rx="5"/>',
                  label(middle, y + 20, word, "head", "middle"), label(middle, y + 38, folder, "dim", "middle"),
                  label(middle, y + 55, made, anchor="middle")]
    for (x, y), (next_x, next_y) in pairwise(places):
        if y != next_y:
            line = f"M{x + wide / 2:g} {y + tall} V{next_y - 2}"
        else:
            line = f"M{x + wide:g} {y + tall / 2:g} H{next_x - 2:g}" if next_x > x else \
                f"M{x:g} {y + tall / 2:g} H{next_x + wide + 2:g}"
        parts.append(f'<path class="arrow" d="{line}" marker-end="url(#tip)"/>')
    by_word = {stage[0]: place for stage, place in zip(STAGES, places, strict=True)}
    (from_x, from_y), (to_x, to_y) = by_word["VERIFY"], by_word["PLAN"]
    parts += [f'<path class="arrow" stroke-dasharray="4 3" d="M{from_x + wide / 2:g} {from_y} V{to_y + tall + 31} '
              f'H{to_x + wide / 2:g} V{to_y + tall + 2}" marker-end="url(#tip)"/>',
              label(from_x + wide / 2 + 8, from_y - 12, "what failed steps back", "dim"),
              label(40, height - 30, "roofline/ says what a rewrite saves. report/ says what was done, why, and what "
                                     "was not. judge/ gives a verdict on any such file.", "dim")]
    return picture(width, height, "The stages of kernelwright from a model's file to the emitted file", parts)


def pictures() -> dict[Path, str]:
    """The text of each file in docs/pictures, by its path."""
    return {PICTURES / "measured.svg": measured(), PICTURES / "pipeline.svg": pipeline()}


if __name__ == "__main__":
    for path, text in pictures().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
