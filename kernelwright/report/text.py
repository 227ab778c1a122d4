"""The report that `kernelwright optimize` prints."""

from __future__ import annotations

import re

from kernelwright.records import ContractionUse, KernelUse, Mode, ResultRecord, words_of
from kernelwright.report import units, verdict
from kernelwright.report.groups import ModeGroup, kept_by_reason, mode_groups, operators_in_words, rule_groups
from kernelwright.report.layout import Page
from kernelwright.report.measured import OURS, accuracy, times


def render_text(result: ResultRecord, *, colour: bool = False, width: int = 100, verbose: bool = False) -> str:
    """The report as text of at most ``width`` columns where lines can be broken, no final newline: the verdict first.

    ``colour`` adds ANSI colours; ``verbose`` the captured and the rewritten graph of each program. Sections that have
    nothing to say are left out.
    """
    page = Page(colour, width)
    groups = mode_groups(result)
    headline(page, result, groups)
    for group in groups:
        label = f" ({group.words()})" if len(groups) > 1 else ""
        if verbose:
            graphs(page, group.first, label)
        kernels(page, group.first, "What the kernels do" + label)
        backward(page, group, "What the kernels of the backward do", label)
        _rules(page, group.first, "Algebra" + label)
        kept(page, group.first, "Stays with PyTorch" + label)
        work(page, group.first, "Work of one forward" + label)
    labels = {mode.name: f" ({words_of(mode.name)})" if len(result.modes) > 1 else "" for mode in result.modes}
    for mode in result.modes:
        if mode.certificate is not None:
            accuracy(page, mode.certificate, "Accuracy against float64" + labels[mode.name])
    for mode in result.modes:
        if mode.timing is not None:
            times(page, mode.timing, f"Time on {mode.timing.device or result.device}{labels[mode.name]}")
    notes(page, result)
    _usage(page, result)
    return page.text()


def headline(page: Page, result: ResultRecord, groups: tuple[ModeGroup, ...]) -> None:
    """The verdict, then what was done, in a few lines."""
    page.line((result.name, "bold"), f": {verdict.title(result)}")
    said = verdict.lines(result)
    widest = max((len(label) for label, *_ in said), default=0)
    for label, text, style in said:
        page.paragraph(text, style, first=f"{label}: ".ljust(widest + 2))
    if said:
        page.line()
    for text, style in summary(result, groups):
        page.paragraph(text, style)


def summary(result: ResultRecord, groups: tuple[ModeGroup, ...]) -> list[tuple[str, str]]:
    """What was done, as sentences with their styles."""
    said: list[tuple[str, str]] = []
    for group in groups:
        mode = group.first
        label = f"{group.words()}: " if len(groups) > 1 else ""
        captured = f"captured {units.counted(mode.operators, 'operator')}"
        if mode.kernels:
            one, count = len(mode.kernels) == 1, units.counted(len(mode.kernels), "kernel")
            done = f"{'does' if one else 'do'} the work of " \
                   f"{'all' if mode.replaced == mode.operators else mode.replaced} of them"
            stored = f"{'stores' if one else 'store'} tensors in another order for them"
            said.append((f"{label}{captured}; {count} {done if mode.replaced else stored}"
                         + (f" (the same program for {group.words()})" if len(group.modes) > 1 else ""), ""))
        elif mode.runs:
            said.append((f"{label}{captured}; none is replaced, and all are launched as one CUDA graph where a call "
                         "asks for no gradient", ""))
        else:
            said.append((f"{label}{captured}; nothing is replaced", "yellow"))
        if mode.layout:
            said.append((label + mode.layout, ""))
    if result.modes and not any(mode.runs for mode in result.modes):
        reasons = dict.fromkeys(entry.reason for mode in result.modes for entry in mode.kept)
        said.append(("The result is the original computation: no replacement pays here"
                     + (" (" + "; ".join(reasons) + ")." if reasons else "."), "yellow"))
    return said


def graphs(page: Page, mode: Mode, label: str) -> None:
    """The captured and the rewritten graph."""
    for title, text in (("Captured graph", mode.graph), ("Rewritten graph", mode.rewritten)):
        if text:
            page.heading(title + label)
            page.verbatim(text)


def kernels(page: Page, mode: Mode, title: str) -> None:
    """Each kernel with its meaning and the operators whose work it does."""
    if not mode.kernels:
        return
    page.heading(title)
    for kernel in mode.kernels:
        _kernel(page, kernel)


def backward(page: Page, group: ModeGroup, title: str, label: str) -> None:
    """Each kernel of each program of gradients, with the time that none like it can beat, and what calls hand over."""
    for use in group.backward:
        page.heading(f"{title}, for {use.of}{label}")
        least = {step.name: step.least_seconds for step in use.steps if step.is_kernel}
        for kernel in use.kernels:
            _kernel(page, kernel)
            if kernel.name in least:
                page.paragraph(f"takes {units.seconds(least[kernel.name])} or more on this device", "dim", indent=4)
        if use.saved:
            page.paragraph(f"reads {units.memory(use.saved_bytes)} that the call hands over: {_covered(use.saved)}")
        page.paragraph(f"roofline of this device: {units.seconds(use.floor_seconds)}: {use.floor_words}", hanging=4)


def _kernel(page: Page, kernel: KernelUse) -> None:
    page.line("  ", (kernel.name, "cyan"), f" ({kernel.kind})")
    page.paragraph(kernel.meaning, indent=4)
    if kernel.contraction is not None and kernel.contraction.tiling:
        page.paragraph(kernel.contraction.tiling, indent=4)
    if kernel.contraction is not None and kernel.contraction.seconds:
        page.paragraph(figures(kernel.contraction), indent=4)
    if kernel.covers:
        page.paragraph(_covered(kernel.covers), "dim", indent=4, first="does ")


def figures(use: ContractionUse) -> str:
    """What was measured of a contraction, beside PyTorch."""
    rate = units.operations(int(use.operations / use.seconds))
    return (f"{units.seconds(use.seconds)} ({rate}/s, {100 * use.share_of_floor:.3g} % of the roofline) instead of "
            f"{units.seconds(use.torch_seconds)}; rms error {use.error:.2e}, PyTorch's {use.torch_error:.2e}")


def _covered(covers: tuple[str, ...]) -> str:
    """``mul, add (file:line)``: the operators of one line together, those without a known place first."""
    lines: dict[str, list[str]] = {}
    for cover in covers:
        name, _, place = cover.removesuffix(")").partition(" (")
        found = re.match(r".*?:\d+(?=: |$)", place)
        lines.setdefault(found.group() if found else place, []).append(name)
    parts = [", ".join(dict.fromkeys(names)) + (f" ({place})" if place else "")
             for place, names in sorted(lines.items(), key=lambda entry: entry[0] != "")]
    return "; ".join(parts)


def _rules(page: Page, mode: Mode, title: str) -> None:
    if not mode.rules:
        return
    page.heading(title)
    for group in rule_groups(mode.rules):
        use = group.first
        often = f", {group.count} times" if group.count > 1 else ""
        page.line("  ", (use.name, "cyan"), f" ({use.exactness}{often})")
        page.paragraph(use.law, indent=4, hanging=2)
        for place in group.places():
            page.paragraph(place, "dim", indent=4, hanging=2)


def kept(page: Page, mode: Mode, title: str) -> None:
    """What stays a torch call, by reason."""
    if not mode.kept:
        return
    page.heading(title)
    for reason, entries in kept_by_reason(mode.kept).items():
        page.paragraph(operators_in_words(entries))
        page.paragraph(reason, "dim", indent=4)


def work(page: Page, mode: Mode, title: str) -> None:
    """Operations and bytes before and after, and the time that no version can beat."""
    page.heading(title)
    page.table([
        ["operations", units.operations(mode.before.operations), units.operations(mode.after.operations),
         units.change(mode.before.operations, mode.after.operations, "fewer")],
        ["memory traffic", units.memory(mode.before.bytes), units.memory(mode.after.bytes),
         units.change(mode.before.bytes, mode.after.bytes)],
    ], head=("", "before", "after", ""))
    words = f": {mode.floor_words}" if mode.floor_words else ""
    page.paragraph(f"roofline of this device: {units.seconds(mode.floor_seconds)}{words}", hanging=4)


def notes(page: Page, result: ResultRecord) -> None:
    """Sentences that the user should read."""
    if not result.notes:
        return
    page.heading("Notes")
    for note in result.notes:
        page.paragraph(note, "yellow", hanging=4)


def _usage(page: Page, result: ResultRecord) -> None:
    if result.path is not None:
        page.heading(f"Written to {result.path}")
        page.verbatim(usage(result, result.path.stem))


def usage(result: ResultRecord, module: str) -> str:
    """The lines that make a model of the emitted file, which can be imported as ``module``."""
    given = f"from {result.name} import get_init_inputs\n" if "get_init_inputs" in result.construction else ""
    return (f"from {module} import {OURS}\n{given}# the same seed gives the same parameters\n"
            f"model = {result.construction}")
