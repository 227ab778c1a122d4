"""What a service was asked to be."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from kernelwright.errors import InvalidOption, TokensMissing
from kernelwright.judge.settings import Limit
from kernelwright.serve.tokens import Tokens, read_tokens
from kernelwright.settings import Target
from kernelwright.suite.judge_runner import WORK
from kernelwright.suite.options import RUNNERS

PORT, FOLDER, QUEUE, LIMIT_SECONDS = 8750, Path("judge_service"), 1000, 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Options of ``kernelwright serve``. Raises InvalidOption (KW403) for a value that an option does not take."""

    host: str = "127.0.0.1"
    """Address to listen at."""
    port: int = PORT
    """0: any that is free."""
    folder: Path = FOLDER
    """Holds the queue with all texts and results; one service at a time."""
    tokens: Path | None = None
    """File with a line ``NAME TOKEN`` for each client; None: the variable KERNELWRIGHT_TOKEN, else no tokens."""
    problems: Path | None = None
    """Folder of problem files: submissions name one of these, and their own texts are refused; None: any text."""
    workers: int | None = None
    """Judging processes per device; None: as of ``judge --set``."""
    queue: int = QUEUE
    """Submissions that may wait."""
    limit: float = LIMIT_SECONDS
    """Seconds that a process may take for a submission, not counting those in which it stood still for others."""
    stage_limit: Limit = None
    """Seconds that a candidate may take to build, and for a call, as ``limit`` of the judge; None: its own limits."""
    memory: float | None = None
    """GiB of host memory that a candidate may use; None: a share of what is free."""
    devices: tuple[str, ...] = ()
    """``cpu`` or numbers of GPUs as PyTorch counts them; none: all GPUs, else the CPU."""
    target: Target = "auto"
    """As of ``judge``."""
    threads: int | None = None
    """CPU threads of model and candidates; None: PyTorch's number."""
    runner: str = "local"
    """``local``: this machine's devices judge; ``ray``: those of a Ray cluster."""
    address: str = ""
    """Address of a Ray cluster; "": the one that this machine belongs to, else a new one on it."""
    work: str = WORK
    """``module:function`` that does the work of one job in its process."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise _invalid("port", self.port, "a number from 0 to 65535", PORT)
        if self.runner not in RUNNERS:
            raise _invalid("runner", self.runner, " or ".join(RUNNERS), RUNNERS[0])
        if not 1 <= self.queue <= 1_000_000:
            raise _invalid("queue", self.queue, "a whole number from 1 to 1000000", QUEUE)

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the service."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name, which may stand for anything
            return False

    def read_tokens(self) -> Tokens:
        """The tokens by which clients are known. Raises TokensUnusable (KW752), TokensMissing (KW751)."""
        tokens = read_tokens(self.tokens)
        if not tokens and not self.local:
            raise TokensMissing(host=self.host)
        return tokens


def _invalid(option: str, value: object, choices: str, default: object) -> InvalidOption:
    return InvalidOption(option=f"--{option}", value=repr(value), choices=choices, default=default)
