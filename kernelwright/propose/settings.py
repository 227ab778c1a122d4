"""What a run of ``kernelwright propose`` was asked to do."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kernelwright.errors import InvalidOption, NothingToPropose
from kernelwright.judge.settings import JudgeSettings, Limit
from kernelwright.settings import Effort, Precision, Settings, Target
from kernelwright.verify.plain import plain

SEARCHES = ("islands", "best")
#: Settings that say where a result goes and how it is shown, or how much may be spent, not what is asked: a run may be
#: gone on with under others.
NOT_KEPT = ("output", "record", "force", "json", "quiet", "resume", "replay", "rounds", "budget_tokens",
            "budget_seconds", "budget_money", "prices")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeSettings:
    """Options of ``kernelwright propose``. Raises InvalidOption (KW403) for a value that an option does not take, and
    NothingToPropose (KW804) where nothing, or too much, says where candidates come from."""

    endpoint: str | None = None
    """Base address of an endpoint that speaks the OpenAI protocol."""
    model: str | None = None
    """Name of the language model there."""
    answers: tuple[Path, ...] = ()
    """Texts, transcripts and files that exist (``--from``)."""
    replay: Path | None = None
    """Folder of an earlier run whose answers are taken in place of an endpoint's."""
    resume: bool = False
    """Go on with the run in ``record``."""
    record: Path | None = None
    """Folder of prompts, answers, candidates and verdicts; None: NAME_propose beside the problem."""
    output: Path | None = None
    """The file that is written; None: NAME_new.py beside the problem."""
    force: bool = False
    """Replace ``output`` and the run in ``record``."""
    candidates: int = 8
    """Answers that are asked for in each round."""
    rounds: int = 4
    """Rounds at most."""
    search: str = "islands"
    """islands: candidates evolve on islands from the best, the most different and the almost right; best: every answer
    is asked for anew, and the best counts."""
    blind: bool = False
    """Do not show our own kernels."""
    temperature: float | None = None
    """Of the language model; None: the endpoint's own."""
    answer_tokens: int = 16384
    """Tokens of one answer at most."""
    budget_tokens: int | None = None
    """Tokens of all prompts and answers together at most."""
    budget_seconds: float | None = None
    """Seconds after which nothing more is asked."""
    budget_money: float | None = None
    """Money that all calls together may cost, in the currency of ``prices``."""
    prices: Path | None = None
    """TOML or JSON file with prices per million tokens."""
    seed: int = 0
    """Seed of the search, and of what the judge draws."""
    target: Target = "auto"
    """Where model and candidates run, and the language of our kernels."""
    precision: Precision = "match"
    """match or strict, as for ``optimize``."""
    effort: Effort = "normal"
    """quick, normal or thorough: how much time our own file, checks, diagnosis and clock may take."""
    backward: bool = False
    """Compare gradients, too."""
    own_kernels: bool = False
    """Refuse candidates whose result does not come from their own kernels."""
    threads: int | None = None
    time: bool = True
    """Whether right candidates are timed; without times ours stays."""
    tiny: bool = False
    class_name: str | None = None
    """Name of the model's class in its file."""
    limit: Limit = None
    """Seconds that a candidate may take to build, and for a call, as ``limit`` of the judge."""
    memory: float | None = None
    """GiB of host memory that a candidate may use."""
    json: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        self.own_settings()  # the values of the options that every command has are checked in one place
        self.judge_settings(0)
        for name in ("candidates", "rounds", "answer_tokens", "budget_tokens"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40):
                raise _invalid(name, value, "a whole number from 1 on", "without limit"
                               if name == "budget_tokens" else getattr(ProposeSettings, name, None))
        if self.candidates > 256:
            raise _invalid("candidates", self.candidates, "a whole number from 1 to 256", 8)
        for name in ("budget_seconds", "budget_money"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise _invalid(name, value, "a number above 0", "without limit")
        if self.temperature is not None and not 0 <= self.temperature <= 5:
            raise _invalid("temperature", self.temperature, "a number from 0 to 5", "the endpoint's")
        if self.search not in SEARCHES:
            raise _invalid("search", self.search, " or ".join(SEARCHES), SEARCHES[0])
        if self.budget_money is not None and self.prices is None:
            raise _invalid("budget_money", self.budget_money, "a number beside --prices", "without limit")
        self._check_where_from()

    def _check_where_from(self) -> None:
        given = [name for name, value in (("--endpoint", self.endpoint), ("--from", self.answers),
                                          ("--replay", self.replay)) if value]
        if not given:
            raise NothingToPropose(found="nobody to ask, and no text to read")
        if len(given) > 1:
            raise NothingToPropose(found=f"more than one place that candidates come from: {' and '.join(given)}")
        if self.endpoint and not self.model:
            raise NothingToPropose(found="an endpoint, and no name of the language model to ask there (--model)")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise _invalid("endpoint", self.endpoint, "an address that begins with http:// or https://", "none")

    def own_settings(self, output: Path | None = None) -> Settings:
        """The options of ``optimize`` for our own file."""
        return Settings(target=self.target, precision=self.precision, effort=self.effort, threads=self.threads,
                        tiny=self.tiny, model=self.class_name, force=True, baselines="none", output=output,
                        seed=self.seed)

    def judge_settings(self, run: int) -> JudgeSettings:
        """The options of the judge for its ``run``-th run: other draws in each, all of one seed."""
        return JudgeSettings(target=self.target, precision=self.precision, effort=self.effort, backward=self.backward,
                             own_kernels=self.own_kernels, seed=(self.seed * 1_000_003 + 7919 * run + 1) % 2**48,
                             threads=self.threads, time=self.time, tiny=self.tiny, model=self.class_name,
                             limit=self.limit, memory=self.memory)

    def kept(self) -> dict[str, Any]:
        """What bears on what is asked and found, as plain data: the settings of a run that is gone on with."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in NOT_KEPT}

    def without_source(self) -> ProposeSettings:
        """These settings for a replay: nobody is asked."""
        return replace(self, endpoint=None, model=None, answers=())


def _invalid(option: str, value: object, choices: str, default: object) -> InvalidOption:
    names = {"class_name": "class", "answers": "from"}
    return InvalidOption(option=f"--{names.get(option, option).replace('_', '-')}", value=repr(value), choices=choices,
                         default=default)
