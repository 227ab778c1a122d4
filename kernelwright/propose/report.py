"""What ``kernelwright propose`` prints: who won and why, a line for each candidate, the critique, what it cost."""

from __future__ import annotations

from kernelwright.judge.report.text import clean
from kernelwright.propose import standing as stand
from kernelwright.propose.critique_text import render_critique
from kernelwright.propose.records import ProposeResult
from kernelwright.propose.standing import Verdict
from kernelwright.report import units
from kernelwright.report.layout import Page

_MOST_NAME = 44


def render_text(result: ProposeResult, *, colour: bool = False, width: int = 100) -> str:
    """The result as text, no final newline."""
    page = Page(colour, width)
    where = ", ".join(filter(None, (result.environment.get("device", ""), result.environment.get("torch", "")
                                    and f"torch {result.environment['torch']}")))
    page.paragraph(f"{clean(result.problem)}: {units.counted(len(result.candidates), 'candidate')}"
                   + (f" on {where}" if where else ""), "bold", indent=0)
    winner = "kernelwright's own file" if result.chosen == "ours" else clean(result.chosen)
    page.paragraph(f"The best: {winner}. {result.why}" if result.written is not None else result.why,
                   "green" if result.written is not None else "yellow")
    rows, styles = [], []
    if result.ours is not None:
        rows.append(["ours", "", *_cells(result.ours)])
        styles.append("bold" if result.chosen == "ours" else "")
    for candidate in result.candidates:
        name = clean(candidate.name)
        name = name if len(name) <= _MOST_NAME else "..." + name[3 - _MOST_NAME:]
        rows.append([name, candidate.form, *_cells(candidate.verdict)])
        styles.append("green" if candidate.name == result.chosen else "")
    page.line()
    page.table(rows, head=("candidate", "answer", "verdict", "error", "time", "over eager"), styles=styles)
    for name, why in result.against.items():
        page.paragraph(f"{clean(name)} is right and was not taken: {clean(why)}", hanging=4)
    if len(result.rounds) > 1 or any(r.number for r in result.rounds):
        page.heading("Rounds")
        page.table([[str(r.number), str(r.candidates), str(r.right), f"{units.digits(r.best)}x" if r.best else "",
                     str(r.tokens)] for r in result.rounds],
                   head=("round", "candidates", "right", "best over eager", "tokens"))
    render_critique(page, result.critique)
    if result.notes:
        page.heading("Notes")
        for note in result.notes:
            page.paragraph(clean(note), "yellow", hanging=4)
    page.heading("Cost and files")
    page.paragraph(_cost(result))
    if result.written is not None:
        page.paragraph(f"Written to {result.written}")
    page.paragraph(f"Prompts, answers, candidates and verdicts are in {result.folder}")
    return page.text()


def _cells(verdict: Verdict) -> list[str]:
    if not verdict:
        return ["not judged", "", "", ""]
    error, time, speed = stand.error(verdict), stand.seconds(verdict), stand.speed(verdict)
    return [verdict["verdict"], "" if error is None else f"{error:.1e}", "" if time is None else units.seconds(time),
            "" if speed is None else f"{units.digits(speed)}x"]


def _cost(result: ProposeResult) -> str:
    spent = result.spent
    parts = [units.seconds(spent.seconds)]
    if spent.calls:
        parts.append(f"{units.counted(spent.calls, 'call')}, {spent.prompt_tokens} tokens of prompts and "
                     f"{spent.answer_tokens} of answers")
    if spent.estimated:
        parts.append(f"{spent.estimated} of them not counted by the endpoint, and so at most")
    if spent.money is not None:
        parts.append(f"{units.digits(spent.money)} of money")
    return "; ".join(parts) + (f". Nothing more was asked: {spent.stopped}." if spent.stopped else ".")
