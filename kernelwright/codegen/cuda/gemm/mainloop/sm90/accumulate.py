"""How the text of a contraction's core on wgmma forms the sums of a tile: its steps, and promotion.

`mainloop.sm90.accumulation_intervals` says what is done and why. Three forms: all steps written out, rounds of
intervals, and a loop over steps with one set of registers beside the sums, or none. ``@NAME@`` stands for what
`mainloop.sm90.core` fills in.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.mainloop.sm90 import accumulate_text as parts
from kernelwright.codegen.cuda.gemm.mainloop.sm90 import output_parity as phases
from kernelwright.codegen.cuda.gemm.mainloop.sm90.frame import pass_order
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.precision.truncation_bias import make_up
from kernelwright.codegen.template import fill_some
from kernelwright.codegen.terms import plus, times


def values(layout: Layout, free: str, arrive: str) -> dict[str, object]:
    """What stands for the names in the core's text that form the sums.

    ``free``: frees the stage ``before`` if there is one; ``arrive``: frees the stage ``@STAGE@`` in any case.
    """
    common = {
        "FREE": free, "ADD_FUNCTION": parts.ADD if layout.parts else "",
        "ADD_PARAMETER": ", int add" if layout.parts else "",
        "FREE_THIS": fill_some(arrive, {"STAGE": "stage"}),
        "OWN_TAP_GROUPS": "" if layout.written_out else parts.OWN_TAP_GROUPS,
        "OWN_BEGIN": "" if layout.written_out else "@BEGIN@",
        "STEPS": f"constexpr int steps = {layout.steps};" if layout.written_out else "const int steps = end - begin;"}
    if layout.written_out:
        text = _written_out(layout, arrive)
    else:
        text = (_rounds if layout.parts == 2 else _halves if layout.halves else _loop)(layout)
    return {**common, "SUMS": text + make_up(layout)}


def _yield(layout: Layout, last: str, margin: int) -> str:
    """The line that lets the next consumer warpgroup multiply, once all of the tile's products are on their way: where
    there are consumer warpgroups."""
    if layout.geometry.tiling.pingpong == 1:
        return ""
    return "\n" + " " * margin + pass_order("(worker + 1) % WARPGROUPS", last)


def _no_steps(layout: Layout) -> str:
    """The same for tiles that have no steps, where there are such."""
    return "" if layout.always_steps else _yield(layout, "begin == end", 6)


def _zero(names: str, first: object = 0, end: object = "@ALL_SUMS@") -> str:
    return fill_some(parts.ZERO, {"ZEROS": names, "FIRST": first, "END": end})


def _add(part: str, sets: tuple[object, object] = (0, "@SUM_SETS@")) -> str:
    """The statement that adds up a set of registers, or some of it."""
    return f"@NAME@_add<{sets[0]}, {sets[1]}>(sums, {part});"


def _behind(last: bool, add: str) -> str:
    """What stands behind an interval of a round, the ``last`` one or another: ``add`` adds what nothing has added
    yet."""
    return fill_some(parts.ROUND_DRAINS if last else parts.ROUND_ENDS, {"ADD_OWN": add})


def _loop(layout: Layout) -> str:
    """One set of registers beside the sums, or none."""
    promoted, add = layout.parts > 0, _add("part")
    if promoted and not layout.complete:
        one = layout.products
        add = f"if (add & 1) {_add('part', (0, one))}\n          if (add & 2) {_add('part', (one, 2 * one))}"
    calls = [*phases.calls(layout, "part" if promoted else "sums", "add" if promoted else "", promoted),
             *([phases.added(layout)] if promoted else [])]
    promotion = {
        "PROMOTE": parts.PROMOTE, "REST": parts.REST, "COUNTS": parts.COUNTS, "PART": ", part[@ALL_SUMS@][COLUMNS / 2]",
        "ADD_PART": add, "EVERY": layout.geometry.tiling.promote,
        "OFFSET": times("worker", layout.offset),
    } if promoted else {"PROMOTE": parts.NO_PROMOTION, "REST": "", "COUNTS": "", "PART": ""}
    return fill_some(parts.LOOP, {
        "MULTIPLY": "\n        ".join(calls), "NO_STEPS": _no_steps(layout),
        "YIELD": _yield(layout, "step + 1 == end", 8), "ZERO": _zero("sums[p][i]" + " = part[p][i]" * promoted),
        **promotion})


def _rounds(layout: Layout) -> str:
    """Rounds of intervals, with two sets of registers beside the sums."""
    several, intervals = not layout.single_steps, []
    many = layout.round_intervals
    for number in range(many):
        own, other = f"part[{number % 2}]", f"part[{1 - number % 2}]"
        calls = phases.calls(layout, own, "add" if several else "0", several)
        text = fill_some(parts.INTERVAL, {"CALLS": "\n          ".join(calls),
                                          "ADD_OTHER": "\n        " + _add(other) if number else ""})
        intervals.append(text + _behind(number + 1 == many, _add(own)))
    promote = layout.geometry.tiling.promote
    opened = "for (int add = 0, since = 0;;) {" if several else "{"
    closed = f"  if (since >= {promote} || step == end) break;\n        }}" if several else "}"
    ends = several or len(phases.variants(layout)) > 1
    return fill_some(parts.ROUNDS, {
        "INTERVALS": "".join(intervals), "NO_STEPS": _no_steps(layout), "OPEN": opened, "CLOSE": closed,
        "COUNT": f"\n          {phases.added(layout)}\n          since += @ADVANCE@;" if several else "",
        "YIELD": _yield(layout, "step == end", 10),
        "LAST_TAP": ", last = @NAME@_first_tap[tap_group + 1]" if ends else "",
        # Those that are added to begin as zeros; so do others, so that they do not live from tile to tile.
        "ZERO": _zero("sums[p][i]" + " = part[0][p][i] = part[1][p][i]" * several)})


def _halves(layout: Layout) -> str:
    """Rounds of steps, each an interval, with one set of registers beside the sums."""
    sets, many, intervals = layout.products * layout.geometry.tiling.parities, layout.round_intervals, []
    one, two = (_add("part", (half * sets // 2, (half + 1) * sets // 2)) for half in range(2))
    margin = "\n          "
    for number in range(many):
        calls = [margin.join(phases.calls(layout, "part", "0", False, half)) for half in range(2)]
        if layout.geometry.tiling.parities == 2:  # what was defined for the first half is there
            calls[1] = margin.join(line for line in calls[1].split(margin) if not line.startswith("const"))
        text = fill_some(parts.HALF_INTERVAL, {
            "ONE": calls[0], "TWO": calls[1], "ADD_ONE": one,
            "BEFORE": fill_some(parts.HALF_BEFORE, {"ADD_TWO": two}) if number else ""})
        intervals.append(text + _behind(number + 1 == many, two))
    last = ", last = @NAME@_first_tap[tap_group + 1]" if len(phases.variants(layout)) > 1 else ""
    return fill_some(parts.HALF_ROUNDS, {
        "INTERVALS": "".join(intervals), "NO_STEPS": _no_steps(layout), "LAST_TAP": last,
        "YIELD": _yield(layout, "step == end", 10), "ZERO": _zero("sums[p][i]")})


def _written_out(layout: Layout, arrive: str) -> str:
    """All steps of a tile, one behind the other."""
    tap_groups, products, numbers = layout.tap_groups[0], layout.products, layout.interval_numbers
    both, sets = layout.geometry.tiling.parities == 2, "part[2]" if layout.parts == 2 else "part"
    lines = [f"float sums[@ALL_SUMS@][COLUMNS / 2], {sets}[@ALL_SUMS@][COLUMNS / 2];"]
    first_taps = [sum(len(tap_group.taps) for tap_group in tap_groups[:i]) for i in range(len(tap_groups))]
    names = ["sums", *(f"part[{(n - 1) % 2}]" if layout.parts == 2 else "part" for n in range(1, numbers[-1] + 1))]
    fed = [0] * (numbers[-1] + 1)  # of each interval, the output phases that its sums have something of

    def freed() -> list[str]:
        return [fill_some(arrive, {"STAGE": "before"})]

    def added(interval: int) -> list[str]:
        if interval < 1:
            return []
        if fed[interval] == (3 if both else 1):
            return [_add(names[interval])]
        return [_add(names[interval], (phase * products, (phase + 1) * products)) for phase in range(2)
                if fed[interval] >> phase & 1]

    body: list[str] = []
    running = False  # whether products of the step before may be on their way
    for step, interval in enumerate(numbers):
        counts = tap_groups[step // layout.geometry.depths].counts
        begins = step > 0 and interval != numbers[step - 1]
        body += ["", f"// Step {step}, of interval {interval}.", "kw_barrier_wait(full + 8 * stage, parity);"]
        if begins and layout.parts == 1 and interval > 1:
            body += ["kw_wgmma_wait<0>();  // The registers are needed.", *freed(), *added(interval - 1)]
            running = False
        body += [f"{'' if step else 'unsigned '}buffer = stages + stage * STAGE_BYTES;",
                 f"@NAME@_multiply<{', '.join(map(str, counts))}>({names[interval]}, "
                 "kw_operand(buffer + part_row * 16, @LEADING@), kw_operand(buffer + LEFT_BYTES, COLUMNS * 16), "
                 f"{plus('@NAME@_taps', first_taps[step // layout.geometry.depths])}, {fed[interval]});"]
        fed[interval] |= sum(1 << phase for phase, count in enumerate(counts) if count)
        if step + 1 == len(numbers):
            body += _yield(layout, "", 0).split("\n")[1:]
        if running:
            body += ["kw_wgmma_wait<1>();  // The step before is done.", *freed()]
        if begins and layout.parts == 2:
            body += added(interval - 1)
        body += [f"{'' if step else 'int '}before = stage;", "@NEXT_STAGE@"]
        running = True
    body += ["", "kw_wgmma_wait<0>();", *freed(), *added(numbers[-1])]
    missing = [phase for phase in range(2 if both else 1) if not fed[0] >> phase & 1]
    zeros = "".join(_zero("sums[p][i]", phase * products, (phase + 1) * products) for phase in missing)
    lines += ["// The first interval is summed where all are added up; a later one is added while products of the next",
              "// are on their way, as far as there are registers."]
    return "\n" + "\n".join(f"      {line}" if line else "" for line in lines) + zeros + \
        "\n".join(f"      {line}" if line else "" for line in ["", *body[1:]]) + "\n"
