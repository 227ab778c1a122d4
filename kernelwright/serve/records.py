"""What goes in and out of the service: submissions and their states, as JSON."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from kernelwright.judge.records import CandidateResult

#: Version of what the service says; it changes when a field changes its meaning or goes away.
SCHEMA = 1
QUEUED, RUNNING, DONE, CANCELLED, FAILED = "queued", "running", "done", "cancelled", "failed"
STATES = (QUEUED, RUNNING, DONE, CANCELLED, FAILED)
ENDED = frozenset({DONE, CANCELLED, FAILED})
#: What a submission may ask of the judge: options of `JudgeSettings`. Others are the service's.
OPTIONS = ("precision", "effort", "backward", "own_kernels", "rules", "time", "verdict_only", "diagnose_budget",
           "sanitize", "tiny", "model", "seed")


class Submission(TypedDict):
    """The body of ``POST /v1/submissions``."""

    problem: str
    """The problem file's text; of a service with problems of its own, the name of one of these."""
    candidate: str
    """The candidate's text."""
    options: dict[str, Any]
    """Options of the judge by their names in ``JudgeSettings``; what is left out has its default."""


class Status(TypedDict):
    """What is known of a submission. See ``docs/serve.md``."""

    schema: int
    id: str
    """Made of the token's name, both texts and the options: who submits them again gets the same one."""
    state: Literal["queued", "running", "done", "cancelled", "failed"]
    """done: there is a verdict; failed: there is none, and ``error`` says why."""
    position: int | None
    """Of a queued one, how many were submitted before it and wait, too."""
    stage: str
    """Of a running one, what the judge is at; "" where that is not its turn."""
    attempts: int
    """How many of the judge's processes it was given to, but those that ended for another reason than it."""
    submitted: str
    """When: UTC, ISO 8601, as the next two."""
    begun: str | None
    """When a process got it last."""
    ended: str | None
    verdict: str | None
    """A code of the list of ``docs/judge.md``."""
    result: CandidateResult | None
    """As in the document of ``judge --json``; without a rank."""
    error: dict[str, Any] | None
    """The coded error for which it failed."""
    seed: int | None
    """Of everything drawn, told with the verdict."""
    settings: dict[str, Any]
    """All options that bear on the result."""
    device: str
    versions: dict[str, str]


class Listing(TypedDict):
    """Answer to ``GET /v1/submissions``: those of the token, in the order in which they came."""

    schema: int
    submissions: list[Status]
    """Without their results."""
    next: int | None
    """What ``after`` has to be for those that follow; null where these are the last."""


class Listening(TypedDict):
    """The first line of ``serve --json``."""

    schema: int
    address: str
    """Where it listens."""


class Left(TypedDict):
    """The last line of ``serve --json``, where no signal ended it at once."""

    schema: int
    waiting: int
    """Submissions that wait for the next start."""


class Health(TypedDict):
    """Answer to ``GET /v1/health``."""

    schema: int
    status: Literal["ok", "trouble", "stopping"]
    words: str
    """What the trouble is, or ""."""
    version: str
    queued: int
    running: int
