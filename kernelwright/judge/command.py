"""The command ``kernelwright judge``: what it is given, and where its result goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kernelwright.emit.write import write_file
from kernelwright.judge.candidates import find_candidates
from kernelwright.judge.records import JudgeResult
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import Progress, progress_of_python
from kernelwright.settings import check_output


def judge_files(model: Path | str, given: Sequence[Path | str], settings: JudgeSettings | None = None,
                progress: Progress | None = None, finish: Callable[[JudgeResult], JudgeResult] | None = None
                ) -> JudgeResult:
    """Judge the candidates among ``given`` (files and folders), and write the document and the page where these were
    asked for. ``finish`` may add to the result before.

    Raises what :func:`find_candidates` raises, the coded errors of the model's file, and OutputFolderUnusable (KW401)
    or OutputExists (KW402): before anything runs, where that can be known.

    >>> judged = kernelwright.judge_files("model.py", ["mine.py"], JudgeSettings(effort="quick", time=False))
    >>> [(candidate.verdict, candidate.file.endswith("mine.py")) for candidate in judged.candidates]
    [('OK', True)]
    """
    settings = settings or JudgeSettings()
    progress = progress or progress_of_python(settings.quiet)
    candidates = find_candidates(Path(model), [Path(path) for path in given])
    if settings.known:
        settings = replace(settings, known=tuple(find_candidates(Path(model), settings.known)))
    for written in filter(None, (settings.output, settings.report)):
        check_output(written, settings.force)
    from kernelwright.judge.run import judge

    result = judge(Path(model), candidates, settings, progress)
    if finish is not None:
        result = finish(result)
    if settings.output is not None:
        document = json.dumps(result.to_json(), indent=1, allow_nan=False)
        write_file(settings.output, document + "\n", force=settings.force)
    if settings.report is not None:
        from kernelwright.judge.report.page import render_page

        write_file(settings.report, render_page(result), force=settings.force)
    return result
