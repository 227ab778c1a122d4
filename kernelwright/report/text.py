"""The report that `kernelwright optimize` prints."""

from __future__ import annotations

import re

from kernelwright.codegen.generate import TARGETS
from kernelwright.records import ContractionUse, KernelUse, Mode, Result, words_of
from kernelwright.report import units
from kernelwright.report.groups import ModeGroup, kept_by_reason, mode_groups, operators_in_words, rule_groups
from kernelwright.report.layout import Page
from kernelwright.report.measured import OURS, accuracy, loss_sentence, speed_sentence, times

LANGUAGES = {target.name: target.language for target in TARGETS.values()}


def render_text(result: Result, *, colour: bool = False, width: int = 100) -> str:
    """The report as text of at most ``width`` columns where lines can be broken, no final newline.

    ``colour`` adds ANSI colours. Sections that have nothing to say are left out.
    """
    page = Page(colour, width)
    groups = mode_groups(result)
    headline(page, result, groups)
    for group in groups:
        label = f" ({group.words()})" if len(groups) > 1 else ""
        kernels(page, group.first, "What the kernels do" + label)
        _rules(page, group.first, "Algebra" + label)
        kept(page, group.first, "Stays with PyTorch" + label)
        work(page, group.first, "Work of one forward" + label)
    checked = [mode for mode in result.modes if mode.certificate is not None]
    for mode in checked:
        label = f" ({words_of(mode.name)})" if len(result.modes) > 1 else ""
        accuracy(page, mode.certificate, "Accuracy against float64" + label)
    timed = [mode for mode in result.modes if mode.timing is not None]
    for mode in timed:
        label = f" ({words_of(mode.name)})" if len(result.modes) > 1 else ""
        times(page, mode.timing, f"Time on {mode.timing.device or result.device}{label}")
    notes(page, result)
    _usage(page, result)
    return page.text()


def headline(page: Page, result: Result, groups: tuple[ModeGroup, ...]) -> None:
    """What came out, in a few lines."""
    language = LANGUAGES.get(result.target, result.target)
    page.line((result.name, "bold"), f": {language} kernels for {result.device}")
    for group in groups:
        mode = group.first
        label = f"{group.words()}: " if len(groups) > 1 else ""
        captured = f"captured {units.counted(mode.operators, 'operator')}"
        if mode.kernels:
            one, count = len(mode.kernels) == 1, units.counted(len(mode.kernels), "kernel")
            done = f"{'does' if one else 'do'} the work of " \
                   f"{'all' if mode.replaced == mode.operators else mode.replaced} of them"
            stored = f"{'stores' if one else 'store'} tensors in another order for them"
            page.paragraph(f"{label}{captured}; {count} {done if mode.replaced else stored}"
                           + (f" (the same program for {group.words()})" if len(group.modes) > 1 else ""))
        else:
            page.paragraph(f"{label}{captured}; nothing is replaced", "yellow")
        if mode.layout:
            page.paragraph(label + mode.layout)
    for mode in result.modes:
        label = f"{words_of(mode.name)}: " if len(result.modes) > 1 else ""
        if not mode.kernels and mode.timing is not None and mode.timing.ratios:
            page.paragraph(f"{label}kernels were built and checked, and are not worth it: "
                           f"{loss_sentence(mode.timing)}", "yellow")
            continue
        if mode.certificate is not None:
            page.paragraph(label + mode.certificate.sentence(), "green" if mode.certificate.passed else "red")
        if mode.timing is not None and mode.timing.ratios:
            page.paragraph(label + speed_sentence(mode.timing), "green")
    if result.modes and not any(mode.kernels for mode in result.modes):
        reasons = dict.fromkeys(entry.reason for mode in result.modes for entry in mode.kept)
        page.paragraph("The result is the original computation: no replacement pays here"
                       + (" (" + "; ".join(reasons) + ")." if reasons else "."), "yellow")


def kernels(page: Page, mode: Mode, title: str) -> None:
    """Each kernel with its meaning and the operators whose work it does."""
    if not mode.kernels:
        return
    page.heading(title)
    for kernel in mode.kernels:
        _kernel(page, kernel)


def _kernel(page: Page, kernel: KernelUse) -> None:
    page.line("  ", (kernel.name, "cyan"), f" ({kernel.kind})")
    page.paragraph(kernel.meaning, indent=4)
    if kernel.contraction is not None and kernel.contraction.tiling:
        page.paragraph(kernel.contraction.tiling, indent=4)
    if kernel.contraction is not None and kernel.contraction.seconds:
        page.paragraph(_figures(kernel.contraction), indent=4)
    if kernel.covers:
        page.paragraph(_covered(kernel.covers), "dim", indent=4, first="does ")


def _figures(use: ContractionUse) -> str:
    """What was measured of a contraction, beside PyTorch."""
    rate = units.operations(int(use.operations / use.seconds))
    return (f"{units.seconds(use.seconds)} ({rate}/s, {100 * use.share_of_floor:.3g} % of the limit) instead of "
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
    page.paragraph(f"limit of this device: {units.seconds(mode.floor_seconds)}{words}", hanging=4)


def notes(page: Page, result: Result) -> None:
    """Sentences that the user should read."""
    if not result.notes:
        return
    page.heading("Notes")
    for note in result.notes:
        page.paragraph(note, "yellow", hanging=4)


def _usage(page: Page, result: Result) -> None:
    if result.path is None:
        return
    page.heading(f"Written to {result.path}")
    page.verbatim(f"from {result.path.stem} import {OURS}\nmodel = {result.construction}  "
                  "# same parameters for the same seed")
