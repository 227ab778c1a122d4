"""The report that `kernelwright explain` prints: what would be done, with its mathematics."""

from __future__ import annotations

from kernelwright.records import Mode, ResultRecord, RuleUse
from kernelwright.report.groups import mode_groups
from kernelwright.report.layout import Page
from kernelwright.report.text import backward, graphs, headline, kept, kernels, notes, work


def render_explanation(result: ResultRecord, *, colour: bool = False, width: int = 100, verbose: bool = False) -> str:
    """Every use of a rule with its law, condition and exactness; then the kernels.

    ``verbose`` adds the captured and the rewritten graph of each program, and what each step finds and leaves of it. No
    final newline.
    """
    page = Page(colour, width)
    groups = mode_groups(result)
    headline(page, result, groups)
    for group in groups:
        mode = group.first
        label = f" ({group.words()})" if len(groups) > 1 else ""
        if verbose:
            graphs(page, mode, label)
        _steps(page, mode, "Algebra, step by step" + label, verbose=verbose)
        kernels(page, mode, "What the kernels would do" + label)
        backward(page, group, "What the kernels of the backward would do", label)
        kept(page, mode, "Stays with PyTorch" + label)
        work(page, mode, "Work of one forward" + label)
    notes(page, result)
    return page.text()


def _steps(page: Page, mode: Mode, title: str, *, verbose: bool) -> None:
    page.heading(title)
    if not mode.rules:
        page.paragraph("no rule applies")
    for number, use in enumerate(mode.rules, 1):
        _step(page, number, use, verbose=verbose)


def _step(page: Page, number: int, use: RuleUse, *, verbose: bool) -> None:
    often = f", {use.count} times" if use.count > 1 else ""
    page.line(f"  {number}. ", (use.name, "cyan"), often)
    rows = [("law", use.law), ("condition", use.condition), ("exactness", use.exactness), ("where", use.where)]
    rows += [("before", use.before), ("after", use.after)] if verbose else []
    for label, text in rows:
        if text:
            page.paragraph(text, "dim" if label == "where" else "", indent=5, first=f"{label:<10}")
