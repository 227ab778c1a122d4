"""Every option and environment variable, with its default and its effect, in one table."""

# ruff: noqa: RUF009  (options are declared by a function)

from __future__ import annotations

import difflib
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TextIO, TypedDict, get_args

from kernelwright.errors import InvalidOption, OutputExists, OutputFolderUnusable, UnsupportedVersion

MINIMUM_PYTHON = (3, 11)
MINIMUM_TORCH = (2, 11)


#: A target is a folder of codegen/ that has an object of that name.
TARGET_NAMES = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("codegen/*/target.py")))

Target = Literal["auto", "c", "cpp", "cuda"]
Precision = Literal["match", "strict"]
Contractions = Literal["auto", "library", "measured"]
Effort = Literal["quick", "normal", "thorough"]
Baselines = Literal["compile", "all", "graph", "none"]
Launch = Literal["auto", "graph", "direct"]

#: The floating-point types that a file may serve.
DTYPES = ("float16", "bfloat16", "float32", "float64")
#: What a file may hold compiled kernels for.
EMBED_CHOICES = "names with commas between: x86-64 to x86-64-v4 for processors; sm_80, sm_90a and others, ptx, for GPUs"
_LEVEL = r"(?:x86-64(?:-v[234])?|sm_\d{2,3}a?|ptx)"
_LEVELS = re.compile(rf"{_LEVEL}(?:,{_LEVEL})*")

#: What "auto" is where there is no device but the host.
HOST_TARGET = "cpp"


def _option(default: Any, effect: str, choices: Any = None) -> Any:
    return field(default=default, metadata={"effect": effect, "choices": get_args(choices)})


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis whose size may differ from call to call: of forward's ``argument``, from ``low`` to ``high``. Axes of one
    ``name`` have one size."""

    argument: str
    number: int
    name: str
    low: int
    high: int

    def text(self) -> str:
        """It as the command line has it."""
        return f"{self.argument}:{self.number}={self.name}{':' * bool(self.name)}{self.low}..{self.high}"


_AXIS = re.compile(r"\s*(\w+):(\d+)=(?:([A-Za-z_]\w*):)?(\d+)\.\.(\d+)\s*")
#: Sizes that differ from call to call: by argument and axis (low, high) or (name, low, high); or texts.
Dynamic = Mapping[str, Mapping[int, tuple[Any, ...]]] | Sequence[str]


def axis_of(text: str) -> Axis:
    """An axis of its text, ``x:0=1..64`` or ``x:0=batch:1..64``. Raises ValueError."""
    found = _AXIS.fullmatch(text)
    if found is None or not 1 <= int(found[4]) <= int(found[5]):
        raise ValueError(text)
    return Axis(found[1], int(found[2]), found[3] or "", int(found[4]), int(found[5]))


def _axes(dynamic: Any) -> tuple[str, ...]:
    """The texts of axes, however they were given. Raises ValueError."""
    if isinstance(dynamic, str):
        dynamic = [dynamic]
    if isinstance(dynamic, Mapping):
        texts = []
        for argument, axes in dynamic.items():
            for number, given in axes.items():
                *name, low, high = given
                texts.append(f"{argument}:{number}={''.join(f'{n}:' for n in name)}{low}..{high}")
        dynamic = texts
    axes = [axis_of(text) for text in dynamic or ()]
    if len({(a.argument, a.number) for a in axes}) < len(axes):
        raise ValueError
    return tuple(a.text() for a in axes)


class Options(TypedDict, total=False):
    """The fields of :class:`Settings`, as functions take them by keyword, so that type checkers know their names and
    values."""

    target: Target
    precision: Precision
    contractions: Contractions
    effort: Effort
    budget: float | None
    baselines: Baselines
    launch: Launch
    force: bool
    refresh: bool
    quiet: bool
    json: bool
    output: Path | str | None
    report: Path | str | None
    trace: Path | str | None
    seed: int
    threads: int | None
    tiny: bool
    model: str | None
    dynamic: Dynamic
    dtypes: Sequence[Any] | str
    embed: bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run was asked to do. Raises InvalidOption (KW403) for a value that an option does not take.

    >>> Settings(effort="quick", threads=2).precision
    'match'
    """

    target: Target = _option("auto", "Language of the kernels; auto is cuda where PyTorch sees a CUDA device, "
                          "else cpp.", Target)
    """Language of the kernels."""
    precision: Precision = _option("match", "match: never less accurate than the model as PyTorch runs it; strict: "
                             "float32 accuracy everywhere.", Precision)
    """Accuracy policy, measured against float64."""
    contractions: Contractions = _option("auto", "Matrix products and convolutions: measured makes CUDA kernels of "
                                         "those that win; library leaves all to cuBLAS and cuDNN; auto is measured "
                                         "where PyTorch sees a CUDA device, else library.", Contractions)
    """Whether contractions may become kernels."""
    effort: Effort = _option("normal", "How long a run may take, unless budget says so, and how many schedules are "
                          "measured: quick 60 s (without baselines 30 s), normal 120 s, thorough 900 s; with all "
                          "baselines 180 s more.", Effort)
    """How much time a run may take."""
    budget: float | None = _option(None, "Seconds from loading to the written file, baselines included; by default, "
                                   "the effort's. What certifies a file is never left out.")
    """Seconds of a run, or None for the effort's."""
    baselines: Baselines = _option("compile", "What is timed besides eager: compile is a CUDA graph of eager and "
                             "torch.compile, with its graphs (reduce-overhead) where launches matter; all is these "
                             "and max-autotune, too, which takes minutes to compile; graph is a CUDA graph of eager "
                             "alone.", Baselines)
    """Compiled baselines."""
    launch: Launch = _option("auto", "How a file starts its kernels: graph launches a program as one CUDA graph, where "
                          "no gradient is asked of the call; direct one kernel after another; auto what is measured to "
                          "be faster.", Launch)
    """How kernels are launched."""
    force: bool = _option(False, "Replace an output file that exists already.")
    """Overwrite the output."""
    refresh: bool = _option(False, "Plan, check and time again, though the result of the same command is kept.")
    """Make the result anew."""
    quiet: bool = _option(False, "Print no progress on stderr; errors are still printed.")
    """No progress."""
    json: bool = _option(False, "Print one JSON document on stdout instead of text.")
    """Machine-readable output."""
    output: Path | None = _option(
        None, "The emitted file; by default NAME_new.py beside the problem.")
    """Path of the emitted file, or None for the default."""
    report: Path | None = _option(None, "An HTML page with the whole report, beside what is printed; by default, none.")
    """Path of the report's page, or None for none."""
    trace: Path | None = _option(None, "A trace of the run, of eager's operators and of the kernels, for "
                                 "ui.perfetto.dev; by default, none.")
    """Path of the trace, or None for none."""
    seed: int = _option(0, "Seed of the first parameters and inputs; checks use further seeds after it.")
    """First seed, 0 <= seed < 2**63."""
    threads: int | None = _option(None, "CPU threads for kernels and the reference; by default, PyTorch's.")
    """Number of CPU threads, at least 1, or None for PyTorch's own number."""
    tiny: bool = _option(False, "Give the problem file's globals the small values of its dictionary TINY.")
    """Run a problem file with the values of its TINY."""
    model: str | None = _option(None, "The class of the file to work on; by default Model, else the only module class "
                                "that no other one of the file uses.")
    """Name of the model's class in its file, or None to find it."""
    dynamic: tuple[str, ...] = _option((), "Sizes that may differ from call to call: x:0=1..64 is axis 0 of the "
                                       "argument x, x:0=batch:1..64 the same with a name, by which others are the same "
                                       "size.")
    """Sizes that may differ from call to call, as texts; a mapping of arguments to axes to (low, high) or (name, low,
    high) is taken, too."""
    dtypes: tuple[str, ...] = _option((), "Floating-point types that the file serves beside the model's own: kernels "
                                      "for the model after .bfloat16(), .half(), .float() or .double().")
    """Names of further floating-point types, of DTYPES; a text with commas and PyTorch's own are taken, too."""
    embed: bool | str = _option(False, "Compiled kernels in the file, so that it needs no compiler: True for machines "
                                "like this one (its level of x86-64 and x86-64-v3, or its GPU), or names of what they "
                                "are for, with commas between: x86-64-v2, x86-64-v3, x86-64-v4; sm_80, sm_90a, ptx.")
    """Whether the file holds its kernels compiled, or for what."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "dynamic", _axes(self.dynamic))
        except (ValueError, TypeError, AttributeError):
            texts = isinstance(self.dynamic, (tuple, list)) and all(isinstance(text, str) for text in self.dynamic)
            asked = ", ".join(self.dynamic) if texts else self.dynamic
            raise _invalid("dynamic", asked, "argument:axis=low..high or argument:axis=name:low..high, each "
                           "axis once, with 1 <= low <= high", "the example's sizes alone") from None
        named = self.dtypes.split(",") if isinstance(self.dtypes, str) else self.dtypes
        try:
            dtypes = tuple(str(dtype).strip().removeprefix("torch.") for dtype in named)
        except TypeError:
            dtypes = ("",)
        if not set(dtypes) <= set(DTYPES) or len(set(dtypes)) < len(dtypes):
            raise _invalid("dtypes", self.dtypes, f"names with commas between, each once: {', '.join(DTYPES)}",
                           "the model's own type alone")
        object.__setattr__(self, "dtypes", dtypes)
        for option in fields(self):
            value, choices = getattr(self, option.name), option.metadata["choices"]
            if choices and value not in choices:
                raise _invalid(option.name, value, " or ".join(choices), option.default)
            if option.type == "bool" and not isinstance(value, bool):
                raise _invalid(option.name, value, "True or False", option.default)
        for name, ending, default in (("output", ".py", "NAME_new.py"), ("report", ".html", "no page"),
                                      ("trace", ".json", "no trace")):
            if isinstance(path := getattr(self, name), str):
                path = Path(path)
                object.__setattr__(self, name, path)
            if path is not None and (not isinstance(path, Path) or path.suffix != ending):
                raise _invalid(name, str(path), f"the path of a file ending in {ending}", default)
        if not _is_integer(self.seed) or not 0 <= self.seed < 2**63:
            raise _invalid("seed", self.seed, "a whole number from 0 to 2**63 - 1", 0)
        if self.model is not None and not (isinstance(self.model, str) and self.model.isidentifier()):
            raise _invalid("model", self.model, "the name of a class", "the file's Model")
        if not isinstance(self.embed, bool) and not _LEVELS.fullmatch(str(self.embed)):
            raise _invalid("embed-for", self.embed, EMBED_CHOICES, "this machine's")
        if self.budget is not None and not (_is_number(self.budget) and 0 < self.budget < math.inf):
            raise _invalid("budget", self.budget, "a number of seconds above 0", "the effort's")
        if self.threads is not None and (not _is_integer(self.threads) or not 1 <= self.threads <= 4096):
            raise _invalid("threads", self.threads, "a whole number from 1 to 4096", "PyTorch's number")

    def as_json(self) -> dict[str, Any]:
        """The settings as a JSON-ready dictionary."""
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        values |= {"dynamic": list(self.dynamic), "dtypes": list(self.dtypes)}
        return values | {name: str(values[name]) if values[name] else None for name in ("output", "report", "trace")}


def settings_of(**values: Any) -> Settings:
    """Settings of values that nobody has looked at, as a command line has them. Raises InvalidOption (KW403)."""
    return Settings(**values)


def changed(settings: Settings | None, options: Options) -> Settings:
    """Settings with some of their fields given apart. Raises InvalidOption (KW403), and TypeError for a name that is
    none."""
    given: dict[str, Any] = {**options}
    known = [option.name for option in fields(Settings)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise TypeError(f"there is no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else
                                                              f": the options are {', '.join(known)}"))
    return replace(settings or Settings(), **given)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _invalid(option: str, value: object, choices: str, default: object) -> InvalidOption:
    return InvalidOption(option=f"--{option}", value=repr(value), choices=choices, default=default)


@dataclass(frozen=True, slots=True)
class EnvironmentVariable:
    """A variable that is read from the environment: name, default in words, effect."""

    name: str
    default: str
    effect: str

    def read(self) -> str | None:
        """The variable's value now, or None where it is unset or empty."""
        return os.environ.get(self.name) or None


KERNELWRIGHT_CACHE = EnvironmentVariable(
    "KERNELWRIGHT_CACHE", "$XDG_CACHE_HOME/kernelwright, else ~/.cache/kernelwright",
    "Folder for compiled kernels, what was measured, and tracebacks.")
CXX = EnvironmentVariable("CXX", "g++", "The C++ compiler.")
CC = EnvironmentVariable("CC", "cc", "The C compiler, of the target c.")
NVCC = EnvironmentVariable("NVCC", "nvcc of PATH, else of CUDA_HOME", "The CUDA compiler.")
NO_COLOR = EnvironmentVariable("NO_COLOR", "unset", "Any value turns colours off.")
API_KEY = EnvironmentVariable("KERNELWRIGHT_API_KEY", "OPENAI_API_KEY, else the system's keyring",
                              "The key of the endpoint that `propose` asks.")
SERVICE_TOKEN = EnvironmentVariable("KERNELWRIGHT_TOKEN", "unset", "The token of a client of `serve`; of the service "
                                    "itself where no file of tokens is given.")
ENVIRONMENT = (KERNELWRIGHT_CACHE, CXX, CC, NVCC, API_KEY, SERVICE_TOKEN, NO_COLOR)


def cache_folder() -> Path:
    """The folder for compiled kernels and measurements; not created here.

    KERNELWRIGHT_CACHE, else XDG_CACHE_HOME/kernelwright (if that variable is an absolute path, as its
    specification asks), else ~/.cache/kernelwright.
    """
    own = KERNELWRIGHT_CACHE.read()
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(shared) if os.path.isabs(shared) else Path.home() / ".cache"
    return base / "kernelwright"


def colour_allowed(stream: TextIO) -> bool:
    """Whether text on ``stream`` may be coloured: a terminal, and NO_COLOR is unset or empty."""
    return NO_COLOR.read() is None and stream.isatty()


def check_output(path: Path, force: bool) -> None:
    """Check that the emitted file may be written to ``path``, without writing anything.

    Raises OutputFolderUnusable (KW401) or OutputExists (KW402).
    """
    folder = path.parent
    problem = ("does not exist" if not folder.exists() else "is a file" if not folder.is_dir()
               else "" if os.access(folder, os.W_OK | os.X_OK) else "may not be written to")
    if problem:
        raise OutputFolderUnusable(folder=folder, problem=problem, file=path.name)
    if path.exists() and (path.is_dir() or not force):
        raise OutputExists(file=path)


def check_versions(torch_version: str, python: tuple[int, ...] = tuple(sys.version_info[:3])) -> None:
    """Raise UnsupportedVersion (KW304) for a Python or PyTorch older than the minimum.

    ``torch_version`` is ``torch.__version__``; suffixes such as ``+cu130`` do not matter.
    """
    release = tuple(int(part) for part in torch_version.split("+")[0].split(".")[:2])
    for package, found, minimum in (("Python", python, MINIMUM_PYTHON), ("PyTorch", release, MINIMUM_TORCH)):
        if tuple(found[:2]) < minimum:
            raise UnsupportedVersion(package=package, found=".".join(map(str, found)),
                                     needed=".".join(map(str, minimum)))
