"""Speed-ups of a suite as inline SVG: one mark per problem, sorted, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from kernelwright.report import units
from kernelwright.report.html.scale import ticks
from kernelwright.suite.scores import KINDS, ProblemScore

WIDTH, HEIGHT = 920, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 26
#: The scale shows at least these speed-ups.
LEAST, MOST = 0.5, 2.0


def speed_chart(scores: Sequence[ProblemScore], baseline: str) -> str:
    """An ``<svg>`` of the verified problems' speed-ups over ``baseline``, from the lowest to the highest.

    The colour is that of the kind (class ``kind-NAME``), a bar shows the interval, and each mark has its name and its
    figures as a title. "" where no problem has this baseline.
    """
    shown = sorted(((s.speeds[baseline], s) for s in scores if s.verified and baseline in s.speeds),
                   key=lambda pair: (pair[0].value, pair[1].name))
    if not shown:
        return ""
    low = min(LEAST, *(speed.low for speed, _ in shown if speed.low > 0), *(speed.value for speed, _ in shown))
    high = max(MOST, *(speed.high for speed, _ in shown))
    bottom, span = math.log(low), math.log(high) - math.log(low)

    def across(index: int) -> float:
        return LEFT + (index + 0.5) * (WIDTH - LEFT - RIGHT) / len(shown)

    def down(value: float) -> float:
        share = (math.log(max(value, low)) - bottom) / span
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Speed-ups over {escape(baseline)}, sorted">']
    for tick in ticks(low, high):
        kind = "one" if tick == 1 else "grid"
        y = down(tick)
        parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}x</text>')
    for index, (speed, score) in enumerate(shown):
        x = across(index)
        title = (f"{score.name}: {units.digits(speed.value)}x ({units.digits(speed.low)} to "
                 f"{units.digits(speed.high)}), {score.kind}")
        parts.append(f'<g class="kind-{escape(score.kind)}"><title>{escape(title)}</title>'
                     f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{down(speed.low):.1f}" y2="{down(speed.high):.1f}"/>'
                     f'<circle cx="{x:.1f}" cy="{down(speed.value):.1f}" r="3"/></g>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">{units.counted(len(shown), "problem")}, sorted by speed-up over '
                 f"{escape(baseline)}</text>{_legend([score.kind for _, score in shown])}</svg>")
    return "".join(parts)


def _legend(kinds: Sequence[str]) -> str:
    present = [kind for kind in KINDS if kind in kinds]
    parts, x = [], WIDTH - RIGHT - 100 * len(present)
    for kind in present:
        parts.append(f'<g class="kind-{kind}"><circle cx="{x}" cy="{HEIGHT - 10}" r="4"/></g>'
                     f'<text x="{x + 9}" y="{HEIGHT - 6}">{kind}</text>')
        x += 100
    return "".join(parts)
