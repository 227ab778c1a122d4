"""The report that `kernelwright explain` prints: what would be done, with its mathematics."""

from __future__ import annotations

from kernelwright.records import Mode, Result, RuleUse
from kernelwright.report.groups import mode_groups
from kernelwright.report.layout import Page
from kernelwright.report.text import headline, kept, kernels, notes, work


def render_explanation(result: Result, *, colour: bool = False, width: int = 100, verbose: bool = False) -> str:
    """Every use of a rule with its law, condition, exactness, before and after; then the kernels.

    ``verbose`` adds the captured and the rewritten graph of each program. No final newline.
    """
    page = Page(colour, width)
    groups = mode_groups(result)
    headline(page, result, groups)
    for group in groups:
        mode = group.first
        label = f" ({group.words()})" if len(groups) > 1 else ""
        if verbose and mode.graph:
            page.heading("Captured graph" + label)
            page.verbatim(mode.graph)
        _steps(page, mode, "Algebra, step by step" + label)
        if verbose and mode.rewritten:
            page.heading("Rewritten graph" + label)
            page.verbatim(mode.rewritten)
        kernels(page, mode, "What the kernels would do" + label)
        kept(page, mode, "Stays with PyTorch" + label)
        work(page, mode, "Work of one forward" + label)
    notes(page, result)
    return page.text()


def _steps(page: Page, mode: Mode, title: str) -> None:
    page.heading(title)
    if not mode.rules:
        page.paragraph("no rule applies")
    for number, use in enumerate(mode.rules, 1):
        _step(page, number, use)


def _step(page: Page, number: int, use: RuleUse) -> None:
    often = f", {use.count} times" if use.count > 1 else ""
    page.line(f"  {number}. ", (use.name, "cyan"), often)
    rows = (("law", use.law), ("condition", use.condition), ("exactness", use.exactness), ("where", use.where),
            ("before", use.before), ("after", use.after))
    for label, text in rows:
        if text:
            page.paragraph(text, "dim" if label == "where" else "", indent=5, first=f"{label:<10}")
