"""From the body of a request to what the queue takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import KernelwrightError, SubmissionInvalid
from kernelwright.judge.settings import JudgeSettings
from kernelwright.serve.records import OPTIONS
from kernelwright.serve.settings import ServeSettings
from kernelwright.suite.jobs import find_jobs

#: Bytes of a request's body.
MOST_BYTES = 16 << 20
#: Names that a message lists.
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A submission that the queue can take: two texts, all options that bear on the result, and the seed if one was
    given."""

    problem: str
    candidate: str
    settings: dict[str, Any]
    seed: int | None


class Intake:
    """Reads submissions for one service. Raises what `find_jobs` raises for a folder of problems."""

    def __init__(self, settings: ServeSettings, target: Any) -> None:
        self._given: dict[str, Any] = {"target": target, "threads": settings.threads, "limit": settings.stage_limit,
                                       "memory": settings.memory}
        self._problems = None if settings.problems is None else {
            job.problem: Path(job.path) for job in find_jobs(settings.problems)}
        JudgeSettings(**self._given)  # the service's own are wrong now, or never

    def read(self, body: bytes) -> Asked:
        """The submission of a body. Raises SubmissionInvalid (KW756), InvalidOption (KW403)."""
        try:
            told = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _invalid(f"it is no JSON ({error})") from error
        if not isinstance(told, dict):
            raise _invalid("it is no object")
        if unknown := sorted(set(told) - {"problem", "candidate", "options"}):
            raise _invalid(f"it has a field {unknown[0]}")
        for name in ("problem", "candidate"):
            text = told.get(name)
            if not isinstance(text, str) or (name == "problem" and not text.strip()):
                raise _invalid(f"its {name} is no text")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise _invalid(f"its {name} has half a character") from error
        options = told.get("options", {})
        if not isinstance(options, Mapping):
            raise _invalid("its options are no object")
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise _invalid(f"it has an option {unknown[0]}; there are {', '.join(OPTIONS)}")
        try:
            settings = JudgeSettings(**self._given, **options)
        except KernelwrightError:
            raise
        except (TypeError, ValueError) as error:  # a value of a type that cannot be compared
            raise _invalid(f"an option has a value of another type ({error})") from error
        kept = {name: value for name, value in settings.as_json().items() if name != "device"}
        return Asked(self._problem(told["problem"]), told["candidate"], kept, options.get("seed"))

    def _problem(self, told: str) -> str:
        if self._problems is None:
            return told
        if told not in self._problems:
            named = ", ".join(list(self._problems)[:_MOST_NAMED])
            more = len(self._problems) - _MOST_NAMED
            raise _invalid("its problem is none of this service's, which are known by their names: "
                           f"{named}{f' and {more} more' if more > 0 else ''}")
        return self._problems[told].read_text(encoding="utf-8")


def _invalid(found: str) -> SubmissionInvalid:
    return SubmissionInvalid(found=found)
