"""A critique as text for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from kernelwright.judge.report.text import clean
from kernelwright.propose.critique import Critique, Review
from kernelwright.report.layout import Page


def render_critique(page: Page, critique: Critique) -> None:
    """Write the critique on a page."""
    page.heading("Critique")
    for review in critique.reviews:
        page.paragraph(f"{clean(review.name)}: {review.verdict}, {review.standing}", "bold", hanging=4)
        page.paragraph(review.what, indent=4)
        for label, text in _said(review):
            page.paragraph(text, indent=4, first=f"{label}: ", hanging=2)
    for title, sentences in _of_all(critique):
        page.heading(title)
        for sentence in sentences:
            page.paragraph(sentence, hanging=4)


def markdown(critique: Critique) -> str:
    """The critique as Markdown, with a final newline."""
    lines = [f"# Critique of candidates for {_plain(critique.problem)}", ""]
    for review in critique.reviews:
        lines += [f"## {_plain(review.name)}: {review.verdict}, {review.standing}", "", _plain(review.what), ""]
        lines += [f"- **{label}**: {_plain(text)}" for label, text in _said(review)]
        lines += [""]
    for title, sentences in _of_all(critique):
        lines += [f"## {title}", "", *(f"- {_plain(sentence)}" for sentence in sentences), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _said(review: Review) -> Iterator[tuple[str, str]]:
    for label, text in (("wrong", review.wrong), ("where", review.where), ("fix", review.mend)):
        if text:
            yield label, text
    for label, texts in (("speed", review.speed), ("limit", review.limits), ("hint", review.hints)):
        for text in texts:
            yield label, text


def _of_all(critique: Critique) -> Iterator[tuple[str, tuple[str, ...]]]:
    for title, sentences in (("What they have in common", critique.common),
                             ("What could be combined", critique.combinations), ("What to do first", critique.next)):
        if sentences:
            yield title, sentences


def _plain(text: str) -> str:
    """Text of candidates that cannot become markup of the page."""
    return clean(text).replace("<", "&lt;")
