"""What ``optimize`` and ``explain`` return: the module, its file's text, and all that is known of both."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from pathlib import Path

from kernelwright.emit.write import write_file
from kernelwright.records import ResultRecord
from kernelwright.report import render_explanation, render_text, verdict
from kernelwright.report.trace import render_trace
from kernelwright.settings import check_output, settings_of
from kernelwright.timing.baselines import EAGER, Timing
from kernelwright.timing.speedup import UNKNOWN
from kernelwright.verify.certificate import Certificate


@dataclass(frozen=True, slots=True, repr=False)
class Result(ResultRecord):
    """What ``optimize`` returns.

    source: text of the emitted file. path: where it was written, or None. target: its name.
    module: a live ModelNew with the problem's parameters, or None where it can't run here.
    notes: plain sentences that the user should read (what was not done, and why).
    stages: seconds spent in each stage, by name. construction: how the model is constructed, as text.

    >>> result = kernelwright.explain(torch.nn.GELU(), inputs=(torch.randn(8, 16),), target="cpp")
    >>> result.name, len(result.modes[0].kernels)
    ('GELU', 1)
    """

    @property
    def certificate(self) -> Certificate | None:
        """The certificate of the mode as constructed; None where nothing was checked.

        >>> result.certificate.passed
        True
        """
        return self.modes[0].certificate if self.modes else None

    @property
    def timing(self) -> Timing | None:
        """The times of the mode as constructed; None where nothing was timed.

        >>> result.timing.entries["eager"].median > 0.0
        True
        """
        return self.modes[0].timing if self.modes else None

    @property
    def speedup(self) -> float | None:
        """How many times faster the module is than eager, in the mode as constructed: of medians on flushed caches.

        1.0 where it is the original; None where nothing was timed, or no number holds (``report`` says why).

        >>> result.speedup is None or result.speedup > 0.0
        True
        """
        if not self.modes or not self.modes[0].runs:
            return 1.0
        found = self.timing.speed_up(EAGER) if self.timing is not None else None
        return None if found is None or found.verdict == UNKNOWN else found.value

    def why(self) -> dict[str, int]:
        """The reasons why calls of ``module`` ran the original computation so far, with the number of calls of each.

        >>> result.why()
        {}
        """
        told = getattr(self.module, "why", None)
        return dict(told()) if self.module is not None and "_kernelwright_fell_back" in self.source and told else {}

    def report(self, *, width: int = 100, colour: bool = False) -> str:
        """The report that the command line prints: ``width`` columns wide, without a final newline.

        >>> print(result.report().splitlines()[1].strip().split(":")[0])
        speed-up
        """
        checked = any(mode.certificate is not None for mode in self.modes)
        render = render_text if checked or self.path is not None else render_explanation
        return render(self, width=width, colour=colour)

    def save(self, path: Path | str, *, force: bool = False) -> Path:
        """Write the file's text to ``path``, which ends in .py, and return that. ``force``: also over another file.

        Raises OutputFolderUnusable (KW401), OutputExists (KW402) or InvalidOption (KW403); then nothing is written.

        >>> result.save("fast.py").name
        'fast.py'
        """
        path = settings_of(output=Path(path)).output or Path(path)
        check_output(path, force)
        write_file(path, self.source, force=force)
        return path

    def save_report(self, path: Path | str, *, force: bool = False) -> Path:
        """Write the report as an HTML page to ``path``, which ends in .html, and return that: charts, graphs, errors
        and times with their spread, and the text of each kernel. It loads nothing from elsewhere. ``force``: also over
        another file.

        Raises OutputFolderUnusable (KW401), OutputExists (KW402) or InvalidOption (KW403); then nothing is written.

        >>> result.save_report("report.html").name
        'report.html'
        """
        path = settings_of(report=Path(path)).report or Path(path)
        check_output(path, force)
        from kernelwright.report.html.page import render_html  # jinja2 is imported for whoever wants a page

        write_file(path, render_html(self), force=force)
        return path

    def save_trace(self, path: Path | str, *, force: bool = False) -> Path:
        """Write a trace to ``path``, which ends in .json, and return that: the stages of the run, eager's operators and
        the kernels of a forward in order, with the times that are known of them, in the Chrome trace event format that
        ui.perfetto.dev opens. ``force``: also over another file.

        Raises OutputFolderUnusable (KW401), OutputExists (KW402) or InvalidOption (KW403); then nothing is written.

        >>> result.save_trace("trace.json").name
        'trace.json'
        """
        path = settings_of(trace=Path(path)).trace or Path(path)
        check_output(path, force)
        write_file(path, render_trace(self), force=force)
        return path

    def __repr__(self) -> str:
        said = [f"  {label}: {text}" for label, text in self._said()]
        return "\n".join([f"{self.name}: {verdict.title(self)}", *said])

    def _repr_html_(self) -> str:
        """The same for a notebook, with the whole report to unfold."""
        rows = "".join(f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
                       f"<td style='text-align:left'>{html.escape(text)}</td></tr>" for label, text in self._said())
        return (f"<div><b>{html.escape(self.name)}</b>: {html.escape(verdict.title(self))}<table>{rows}</table>"
                f"<details><summary>report</summary><pre>{html.escape(self.report())}</pre></details></div>")

    def _said(self) -> list[tuple[str, str]]:
        """About four lines: the verdict of the mode as constructed, the file, and how much more there is to read."""
        found = [(label, text) for label, text, _ in verdict.lines(replace(self, modes=self.modes[:1]))]
        if self.path is None:
            found.append(("file", "not written; .save(path) writes it"))
        more = [f"{len(self.modes) - 1} more modes" if len(self.modes) > 2 else "one more mode"] * (len(self.modes) > 1)
        told = " ".join(self.notes) or "none"
        notes = told if len(told) <= 120 else f"{told[:117]}... ({len(self.notes)} in all)"
        return [*found, ("notes", "; ".join([notes.rstrip("."), *more, ".report() has all"]))]
