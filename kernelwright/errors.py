"""The catalogue of coded errors.

A user's error derives from :class:`KernelwrightError` (exit status 2) and says four things: what
happened, where (the user's own line), why, and what to do. A bug of ours is an
:class:`InternalError` (exit status 70) and carries a report instead. Each error is one class with one
templated sentence; its docstring is its section of ``docs/errors.md`` (:func:`catalogue_markdown`).
"""

from __future__ import annotations

import linecache
import platform
import re
import shlex
import sys
import traceback
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


class KernelwrightError(Exception):
    """Root of the errors that a user can mend.

    A subclass fills ``code``, ``sentence`` (what), ``reason`` (why) and ``remedy`` (fix), each a
    ``str.format`` template over the keyword arguments given when it is raised. ``where`` is made by
    :func:`where_of` or :func:`place`: ``file:line`` with the source line below it, or "".

    >>> try:
    ...     kernelwright.optimize("nowhere.py")
    ... except kernelwright.KernelwrightError as error:
    ...     print(error.code)
    KW101
    """

    code: ClassVar[str] = "KW000"
    sentence: ClassVar[str] = ""
    reason: ClassVar[str] = ""
    remedy: ClassVar[str] = ""
    exit_status: ClassVar[int] = 2

    def __init__(self, *, where: str = "", **fields: Any) -> None:
        self.where = where
        self.what = self.sentence.format(**fields)
        self.why = self.reason.format(**fields)
        self.fix = self.remedy.format(**fields)
        super().__init__(self.what)

    def __str__(self) -> str:
        return f"{self.code}: {self.what}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only constructors defeat the default; errors cross process borders in the suite.
        return _restore_error, (type(self), dict(vars(self)))

    def render(self) -> str:
        """The four parts as plain text, several lines, without a final newline."""
        parts = (("where", self.where), ("why", self.why), ("fix", self.fix))
        lines = [f"error {self.code}: {self.what}"]
        for label, text in parts:
            if text:
                lines.append(f"  {label + ':':<6} " + text.replace("\n", "\n         "))
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The error as a JSON-ready dictionary of strings and one integer."""
        return {"code": self.code, "error": type(self).__name__, "what": self.what, "where": self.where,
                "why": self.why, "fix": self.fix, "exit_status": self.exit_status}


def _restore_error(kind: type[KernelwrightError], state: dict[str, Any]) -> KernelwrightError:
    error = kind.__new__(kind)
    Exception.__init__(error, state["what"])
    vars(error).update(state)
    return error


# ---- KW1xx: LOAD, the problem file and what it defines -----------------------------------------


class FileMissing(KernelwrightError):
    """The path given does not exist."""

    code = "KW101"
    sentence = "There is no file {path}."
    reason = "Nothing stands at that path, seen from {folder}."
    remedy = "Check the spelling and the folder, or give an absolute path."


class NotAPythonFile(KernelwrightError):
    """A problem is one Python file (name ending in ``.py``), encoded as its first lines declare."""

    code = "KW102"
    sentence = "{path} is not a Python file: it is {found}."
    reason = "A problem is one file ending in .py that defines Model and get_inputs."
    remedy = "Give the path of that file; for a folder of problems use `kernelwright bench`."


class FileSyntaxError(KernelwrightError):
    """The problem file does not parse under the running Python."""

    code = "KW103"
    sentence = "{path} has a syntax error: {message}."
    reason = "Python {python} cannot parse the file, so nothing of it ran."
    remedy = "Mend the line shown; `python -m py_compile {path}` gives the same message."


class ImportRaised(KernelwrightError):
    """The file's top-level code raised while it was imported."""

    code = "KW104"
    sentence = "Importing {path} raised {exception}."
    reason = "Code at the file's top level runs once, when it is loaded, and this line of it failed."
    remedy = "Make `python {path}` run without an error first; scripts belong under `if __name__ == ...`."


class MissingPackage(KernelwrightError):
    """The file imports a package that is not installed beside kernelwright."""

    code = "KW105"
    sentence = "{path} imports the package {package}, which is not installed."
    reason = "The module search of {executable} does not find it: {exception}."
    remedy = "Install what provides it into that environment, or remove the import if nothing needs it."


class NoModelClass(KernelwrightError):
    """The file defines no name ``Model``."""

    code = "KW106"
    sentence = "{path} has no class {name} to optimize."
    reason = ("The class is the one that --model (or `model=`) names, else Model, else the only module class that no "
              "other one of the file uses; {classes}.")
    remedy = "Name the class: `--model {example}`, or `Model = {example}` at the end of the file."


class ModelNotModule(KernelwrightError):
    """``Model`` (or the object given from Python) is not an ``nn.Module``."""

    code = "KW107"
    sentence = "{subject} is {found}, not {expected}."
    reason = "Only torch.nn.Module classes and their instances can be captured and replaced."
    remedy = "Derive the class from torch.nn.Module; wrap a function in a module that calls it."


class NoGetInputs(KernelwrightError):
    """The file defines no function ``get_inputs``, and no inputs were given from Python."""

    code = "KW108"
    sentence = "{path} defines no function get_inputs."
    reason = "Shapes and dtypes are taken from the list of arguments that get_inputs() returns."
    remedy = "Add `def get_inputs(): return [torch.rand(...)]`, or pass `inputs=` to load_problem."


class GetInitInputsFailed(KernelwrightError):
    """``get_init_inputs`` raised. Leaving it out is fine: it means ``[]``."""

    code = "KW109"
    sentence = "get_init_inputs() of {path} raised {exception}."
    reason = "It is called once, for the arguments of the model's constructor, and this line of it failed."
    remedy = "Mend that line, or leave the function out where the constructor takes no arguments."


class ConstructorRaised(KernelwrightError):
    """The model's constructor raised."""

    code = "KW110"
    sentence = "The constructor {model}({arguments}) raised {exception}."
    reason = "The model is built for real, with these arguments, and this line of the file failed."
    remedy = "Mend that line or the arguments; the same call fails in plain PyTorch."


class InitInputsMismatch(KernelwrightError):
    """The constructor does not take the arguments given, in whichever form they are read."""

    code = "KW111"
    sentence = "{model} cannot be constructed from {count} initial input(s): {exception}."
    reason = "The constructor's signature is {model}{signature}; get_init_inputs gave ({arguments})."
    remedy = ("Make get_init_inputs (or `init_inputs=`) return a list with one value per parameter, a dictionary of "
              "keyword arguments, or a list of positional arguments beside such a dictionary.")


class GetInputsRaised(KernelwrightError):
    """``get_inputs`` raised."""

    code = "KW112"
    sentence = "get_inputs() of {path} raised {exception}."
    reason = "It is called to make every fresh set of inputs, and this line of it failed."
    remedy = ("Mend that line; get_inputs takes no arguments and must work when called repeatedly. It need not name a "
              "device, with .cuda() or device=: what it makes is moved to the device that is used.")


class InputsInvalid(KernelwrightError):
    """Inputs are not arguments of forward: tensors, plain values, or containers of these.

    They may be given as a list or tuple of positional arguments, as ``[[positional], {keyword}]``, as a dictionary of
    keyword arguments, or as the one argument itself. Containers are lists, tuples, dictionaries, and objects of other
    classes that hold nothing else, such as NamedTuples and dataclasses.
    """

    code = "KW113"
    sentence = "The inputs from {source} cannot be used: {found}."
    reason = ("forward is called with tensors, NumPy arrays (as tensors), numbers, strings, None, and containers of "
              "these, as positional or keyword arguments.")
    remedy = ("Return a list with one value per parameter, a dictionary of keyword arguments, or a list of positional "
              "arguments beside such a dictionary; move other values into the model.")


class ForwardRaised(KernelwrightError):
    """The model's ``forward`` raised on its own inputs."""

    code = "KW114"
    sentence = "The forward of {model} raised {exception}."
    reason = "The model itself, run by PyTorch on {device} with its own inputs, failed on this line."
    remedy = "Make `Model(*get_init_inputs())(*get_inputs())` run in plain PyTorch first."


class NotEnoughMemory(KernelwrightError):
    """Inputs, parameters or intermediate results would not fit into the device's memory.

    Sizes are compared with what is free before large tensors are made, because a machine that
    overcommits memory ends the process instead of raising.
    """

    code = "KW115"
    sentence = "There is not enough memory on {device} for {subject}."
    reason = "{amounts}"
    remedy = "Lower the batch size or the shapes in the problem file, or use a machine with more memory."


class InstanceNeedsInputs(KernelwrightError):
    """A module object or class was given without example inputs."""

    code = "KW116"
    sentence = "load_problem was given {model} without inputs."
    reason = "A module does not say the shapes and dtypes that it is called with; a file does, in get_inputs."
    remedy = "Pass them: `load_problem(model, inputs=(x,))`."


class ModelNotCopyable(KernelwrightError):
    """A module instance cannot be deep-copied, so it cannot be run without changing it."""

    code = "KW117"
    sentence = "The {model} instance cannot be copied: {exception}."
    reason = "Every run uses a deep copy, so that your instance's buffers stay as they are."
    remedy = "Remove what cannot be copied (open files, locks, non-leaf tensors), or give a problem file."


class SourceUnavailable(KernelwrightError):
    """The class's source text, which the emitted file must contain, cannot be taken out."""

    code = "KW118"
    sentence = "The source of class {model} cannot be used: {found}."
    reason = "The emitted file keeps the original class, so that parameters and fallback stay the same."
    remedy = "Define the class at the top level of a .py file or of a notebook's cell (not in a function or an if)."


class TinyUnusable(KernelwrightError):
    """``--tiny`` was asked for, and the file has no usable dictionary ``TINY``.

    ``TINY = {"batch_size": 2, "width": 8}`` at the top level of a problem file names globals of it and the small
    values that they get under ``--tiny``.
    """

    code = "KW119"
    sentence = "{path} cannot be made tiny: {found}."
    reason = "--tiny replaces globals of the problem file by the values of its dictionary TINY, by name."
    remedy = "Define TINY in the file, with names of its globals and literal values, or run without --tiny."


class StateWithoutValues(KernelwrightError):
    """The model holds a parameter or a buffer that has no values: of a lazy module, or on the meta device."""

    code = "KW120"
    sentence = "{model} holds {name}, {found}."
    reason = "Models are copied, given the same values and compared before their first call."
    remedy = "Give lazy modules their sizes (nn.Linear for nn.LazyLinear), and tensors on the meta device values."


class StateNotPlain(KernelwrightError):
    """The judge was asked about a model with a sparse, nested or quantized parameter or buffer."""

    code = "KW121"
    sentence = "{model} holds {name}, which is {found}: nothing can be judged for it."
    reason = "Candidates run in processes of their own, which get the model's parameters and buffers as plain memory."
    remedy = "Hold the values in plain tensors, and make the sparse or quantized one of them in forward."


# ---- KW2xx: CAPTURE, what a model does when it runs ----------------------------------------------


class DataDependentControlFlow(KernelwrightError):
    """A branch, loop or shape depends on the values in a tensor, in every mode of the model.

    Such a program is not one graph. Shapes, Python numbers, the values of buffers of one element and what is made of
    inputs of whole numbers and truth values (lengths, masks) may decide; other values may not. Where one mode does so,
    it stays as it is, and the others are served; so does a submodule that decides.
    """

    code = "KW201"
    module: str = ""
    """The path of the submodule that decides, "" for the model itself."""
    sentence = "The forward of {model} decides by the values of a tensor."
    reason = "{exception}"
    remedy = "Write the decision with torch.where or a mask, or move it into the caller of the model."


class HiddenState(KernelwrightError):
    """``forward`` leaves numbers, objects or containers that grow behind in plain attributes of the module, in every
    mode.

    A captured graph has no place for them, and the next call would silently differ. Tensors are fine, and lists, tuples
    and dictionaries of tensors, where each call leaves the same shapes and types; so are buffers, and caches that do
    not depend on the inputs.
    """

    code = "KW202"
    module: str = ""
    """The path of the submodule that changes them, "" for the model itself."""
    sentence = "The forward of {model} changes the attribute(s) {attributes}."
    reason = "State in plain attributes is part of a graph where it is a tensor of one shape and type."
    remedy = "Make a tensor of it (`self.calls = torch.tensor(0)`), or pass and return it."


class OutputsUnsupported(KernelwrightError):
    """``forward`` returns something else than tensors, plain values (numbers, strings, None) and containers of these.

    Containers are tuples, lists, dictionaries, and objects of other classes that hold nothing else, such as
    NamedTuples, dataclasses and what ``torch.max`` returns.
    """

    code = "KW203"
    sentence = "The forward of {model} returns {found}."
    reason = "Outputs are compared as tensors; other values have no error bound."
    remedy = "Return tensors, plain values, or containers of these: tuples, lists, dictionaries, dataclasses."


# ---- KW3xx: the machine --------------------------------------------------------------------------


class NoCppCompiler(KernelwrightError):
    """No compiler was found for the target's kernels."""

    code = "KW301"
    sentence = "No C or C++ compiler was found."
    reason = "Looked for {looked_for}; {variable} is {value}."
    remedy = "Install g++ or clang++ with C++17 (gcc or clang for the target c), or set {variable} to the path of one."


class NoCudaDevice(KernelwrightError):
    """A CUDA device was asked for, and PyTorch sees none."""

    code = "KW302"
    sentence = "The device {device} was asked for, and is not there."
    reason = "{found}"
    remedy = "Use `--target cpp`, whose kernels run on the CPU, or a machine and a PyTorch build with CUDA."


class CompilerFlagsFailed(KernelwrightError):
    """The compiler failed on flags that the user set; the same source compiles without them."""

    code = "KW303"
    sentence = "The compiler {compiler} failed with the flags {flags} from {source}."
    reason = "{message}"
    remedy = "Unset or mend {source}; the same kernels compile without those flags."


class UnsupportedVersion(KernelwrightError):
    """The running Python or PyTorch is older than what the emitted code needs."""

    code = "KW304"
    sentence = "{package} {found} is too old; kernelwright needs {needed} or newer."
    reason = "Capture and inline compilation rely on interfaces that older versions lack."
    remedy = "Run kernelwright in an environment with {package} {needed} or newer."


class DeviceLost(KernelwrightError):
    """A kernel that was tried out left the CUDA device unusable for the process."""

    code = "KW305"
    sentence = "The CUDA device can no longer be used by this process: {kernel} failed while it was tried out."
    reason = "{message}"
    remedy = "Run the same command again: that kernel is noted in {folder} and is not tried again."


class FolderFull(KernelwrightError):
    """A folder for compiled kernels or temporary files has no space left, or may not be written to."""

    code = "KW306"
    sentence = "The folder {folder} {problem}."
    reason = "Compiled kernels, what is measured and temporary files are written there; nothing half-written is left."
    remedy = "Free space there, or choose other folders with the variables KERNELWRIGHT_CACHE and TMPDIR."


class CannotEmbed(KernelwrightError):
    """Compiled kernels were asked for in the file, and can't be made on this machine."""

    code = "KW307"
    sentence = "The file can't hold compiled kernels: {found}."
    reason = ("Libraries for processors are made on Linux on x86-64, by the C or C++ compiler; for GPUs on Linux by "
              "nvcc.")
    remedy = "Run it on such a machine, or leave out `--embed`: the file then compiles its source when used."


class NinjaMissing(KernelwrightError):
    """PyTorch, which compiles C++ and CUDA kernels, needs the program ninja."""

    code = "KW308"
    sentence = "The program ninja was not found."
    reason = "torch.utils.cpp_extension compiles with it; it is in no folder of PATH."
    remedy = "`pip install ninja` and put the environment's bin folder into PATH, or install the system's ninja-build."


# ---- KW4xx: options and output -------------------------------------------------------------------


class OutputFolderUnusable(KernelwrightError):
    """The folder for an output file is missing, is no folder, or may not be written to."""

    code = "KW401"
    sentence = "The output folder {folder} {problem}."
    reason = "The file {file} would stand there, and folders are never made by guess."
    remedy = "Create the folder or give it write permission, or choose another with `--output`."


class OutputExists(KernelwrightError):
    """The output file is there already."""

    code = "KW402"
    sentence = "{file} exists already."
    reason = "Unasked a run replaces only what an earlier one of the same model wrote and nobody changed."
    remedy = "Add `--force` to replace it, or choose another name with `--output`."


class InvalidOption(KernelwrightError):
    """An option or environment variable has a value that it does not take."""

    code = "KW403"
    sentence = "{option} cannot be {value}."
    reason = "It takes {choices}."
    remedy = "Give one of these, or leave it out for the default, {default}."

    def __init__(self, *, default: object, **fields: Any) -> None:
        """default: what holds without the option; "" where it cannot be left out."""
        super().__init__(default=default, **fields)
        if default == "":
            self.fix = "Give one of these."


class UnknownOption(KernelwrightError):
    """The backend of torch.compile, or kernelwright.compile, was given an option that it does not have."""

    code = "KW404"
    sentence = "torch.compile's backend kernelwright has no option {option}."
    reason = "Its options are {known}."
    remedy = "Give one of these in `options`, or leave it out."


class NotForWheel(KernelwrightError):
    """`kernelwright package` was given a file that can't be a module of its wheel."""

    code = "KW405"
    sentence = "{path} can't be a module of the wheel: {found}."
    reason = "A wheel is made of emitted files, each of which defines ModelNew and is imported by its name."
    remedy = "Give files that `kernelwright optimize` has written, under names that differ and that Python can import."


class DynamicSizesInvalid(KernelwrightError):
    """A size that ``--dynamic``, or ``dynamic=``, names is none of the example's: the argument, the axis or the range
    does not fit.

    ``--dynamic x:0=1..64`` names axis 0 of the tensor that forward's parameter ``x`` gets, which may have 1 to 64
    elements; the example's number is one of these.
    """

    code = "KW406"
    sentence = "The size {asked} cannot be served: {found}."
    reason = ("A size is an axis of a tensor among forward's arguments, by the parameter's name; the example's number "
              "of elements lies within its range.")
    remedy = "Name an argument, an axis and a range that fit the example call, or give another example."


class DtypesInvalid(KernelwrightError):
    """Kernels for further floating-point types were asked for with ``--dtypes``, or ``dtypes=``, where there can be
    none: the model has no tensors of such a type."""

    code = "KW408"
    sentence = "Kernels for {asked} cannot be made: {found}."
    reason = ("A type is what .bfloat16(), .half(), .float() or .double() make of a model's parameters and of its "
              "inputs.")
    remedy = "Leave --dtypes out."


class CacheFileInvalid(KernelwrightError):
    """`kernelwright cache import` was given a file that is no exported cache, or a damaged one."""

    code = "KW407"
    sentence = "{path} can't be imported: {found}."
    reason = "What is imported has the form that `kernelwright cache export` writes; all of it is looked at before."
    remedy = "Export it again on the machine that it comes from. Nothing was taken over before this was found."


# ---- KW5xx: VERIFY -------------------------------------------------------------------------------


class VerificationFailed(KernelwrightError):
    """The result was wrong, and so was the original computation in its place, so nothing was written.

    What fails its check is given up: the rules and kernels at fault, else little by little, at last all kernels of
    every mode. No emitted file ever stands beside a failed certificate.
    """

    code = "KW501"
    sentence = "The emitted {model} does not give what the original gives, even without kernels; nothing was written."
    reason = "{finding}"
    remedy = "Please report the problem file: this is a fault of kernelwright."


# ---- KW6xx: SUITE, many problems -----------------------------------------------------------------


class NoProblems(KernelwrightError):
    """There is no problem file to run: the folder has none, or the filters leave none."""

    code = "KW601"
    sentence = "{folder} has no problem to run."
    reason = "{found}"
    remedy = "Give a folder with problem files (names ending in .py, not beginning with _ or .), or other filters."


class ResultsExist(KernelwrightError):
    """The output folder has results already, or another run writes to it."""

    code = "KW602"
    sentence = "{folder} {found}."
    reason = "Results are never overwritten or mixed unasked."
    remedy = "Go on with `--resume`, replace them with `--force`, or choose another folder with `--output`."


class ResultsDiffer(KernelwrightError):
    """``--resume`` was asked for, and the results that are there were made with other settings."""

    code = "KW603"
    sentence = "The results in {folder} were made with other settings: {differences}."
    reason = "Times and checks under different settings cannot stand in one table."
    remedy = "Give the same options, replace the results with `--force`, or choose another folder with `--output`."


class ProblemCrashed(KernelwrightError):
    """The process of one problem of a suite ended without a result. The other problems are not affected."""

    code = "KW604"
    sentence = "The process of {problem} {ending} in stage {stage}."
    reason = "{output}"
    remedy = "Run `kernelwright optimize` on the file alone; {log} has what the process printed."


class ProblemTimedOut(KernelwrightError):
    """One problem of a suite took longer than ``--limit`` and was ended. Time spent stopped does not count."""

    code = "KW605"
    sentence = "{problem} was ended after {seconds} s, in stage {stage}."
    reason = "A problem may take {limit} s, not counting the time in which it was stopped for others' measurements."
    remedy = "Give it more time with `--limit`; {log} shows where it was."


class ProblemOutOfMemory(KernelwrightError):
    """One problem of a suite was ended because the machine ran short of memory, also when it ran alone."""

    code = "KW606"
    sentence = "{problem} was ended in stage {stage}: its processes used {used} of the machine's memory."
    reason = "{found}"
    remedy = "Use fewer `--workers`, a machine with more memory, or a larger `--memory` if that was the limit."


class NotChecked(KernelwrightError):
    """One problem of a suite gave a file of which no mode could be checked here, so that it does not count."""

    code = "KW607"
    sentence = "The result of {problem} was not checked."
    reason = "{notes}"
    remedy = "See the notes in the record; CUDA kernels are checked where there is a CUDA device."


class RunnerMissing(KernelwrightError):
    """``--runner ray`` was asked for, and Ray is not installed or cannot be reached."""

    code = "KW608"
    sentence = "The Ray runner cannot be used: {found}."
    reason = "Only this runner needs Ray; it is an optional extra."
    remedy = "Install it (`pip install 'kernelwright[ray]'`) and start a cluster, or leave out `--runner`."


# ---- KW7xx: JUDGE, files that claim to be a model's ModelNew ---------------------------------------


class NoCandidates(KernelwrightError):
    """Nothing is left to judge: a folder has no Python file but the model's own, or those whose names begin with ``_``
    or ``.``."""

    code = "KW701"
    sentence = "{folder} has no candidate to judge."
    reason = "A folder stands for its .py files; names that begin with _ or . and the model's own file are left out."
    remedy = "Give the candidates' files, or the folder that they stand in."


class CandidateMissing(KernelwrightError):
    """A candidate's path does not exist."""

    code = "KW702"
    sentence = "There is no candidate {path}."
    reason = "Nothing stands at that path, seen from {folder}, so nothing was judged."
    remedy = "Check the spelling and the folder, or leave the path out."


class CandidateUnreadable(KernelwrightError):
    """A candidate was named that is no Python file, or cannot be read. What a readable file contains is no error: an
    empty or broken one gets its verdict."""

    code = "KW703"
    sentence = "{path} cannot be judged: {found}."
    reason = "A candidate is one readable file ending in .py, written to be read by a person."
    remedy = "Mend or rename the file, or leave it out."


class CandidateIsModel(KernelwrightError):
    """The model's own file stands among the candidates that were named."""

    code = "KW704"
    sentence = "The candidate {path} is the model's own file."
    reason = "{model} says what is right, so judging it by itself says nothing."
    remedy = "Leave it out; the first path is the model, and the candidates follow it."


class CandidateTwice(KernelwrightError):
    """One file was given twice, directly, through a folder or through a link. Copies are different files."""

    code = "KW705"
    sentence = "The candidate {path} was given twice."
    reason = "It is the same file as {first}, and one file gets one verdict and one rank."
    remedy = "Leave one of them out; to see whether equal files tie, judge a copy."


class SetUnreadable(KernelwrightError):
    """A line of a set of candidates does not say which problem and which candidate."""

    code = "KW706"
    sentence = "Line {line} of {path} is no candidate: {found}."
    reason = "Each line is a JSON object with problem and candidate, paths or texts, and, if wanted, an id of its own."
    remedy = "Mend the line, or leave it out."


class NoSet(KernelwrightError):
    """A set of candidates is empty: no problem in it has a candidate, or none fits the filters."""

    code = "KW707"
    sentence = "{path} is no set of candidates: {found}."
    reason = "A set is a folder whose subfolders hold problem.py and candidates, or a file of JSON lines."
    remedy = "Give such a folder or file; without --set `kernelwright judge` takes one problem and its candidates."


# ---- KW75x: SERVE, the judge as a service -----------------------------------------------------------


class TokensMissing(KernelwrightError):
    """A service that other machines can reach has no tokens by which it would know its clients."""

    code = "KW751"
    sentence = "The service would be open to everybody who reaches {host}."
    reason = "A problem is code that the judge runs, so who may submit one may run code on this machine."
    remedy = "Give a file of tokens (`--tokens FILE`) or KERNELWRIGHT_TOKEN, or leave out `--host`."


class TokensUnusable(KernelwrightError):
    """The file of tokens cannot be read, or a line of it is no name and token."""

    code = "KW752"
    sentence = "The tokens of {path} cannot be used: {found}."
    reason = "Each line is a name, a space and a token of at least 16 characters; names and tokens stand once."
    remedy = "Mend it; `python -c 'import secrets; print(secrets.token_urlsafe(32))'` makes a token."


class ServerMissing(KernelwrightError):
    """The service needs the packages ``starlette`` and ``uvicorn``, an optional extra that is not installed."""

    code = "KW753"
    sentence = "There can be no service: {found}."
    reason = "Starlette and uvicorn speak HTTP; only the service needs them, its client does not."
    remedy = "Install them: `pip install 'kernelwright[serve]'`."


class ServiceFolderUnusable(KernelwrightError):
    """The folder of a service is in use by another one, or holds something else."""

    code = "KW754"
    sentence = "The folder {folder} cannot be used: {found}."
    reason = "A queue belongs to one service at a time, so that nothing is judged twice."
    remedy = "Stop the other service, or give another folder (`--folder`)."


class AddressUnusable(KernelwrightError):
    """Nobody can listen at the address, or somebody does."""

    code = "KW755"
    sentence = "The service cannot listen at {address}: {found}."
    reason = "Another program may have the port, or the machine has no such address."
    remedy = "Give another `--port` (0: any that is free) or `--host`."


class SubmissionInvalid(KernelwrightError):
    """The body of a request is no submission. HTTP status 400."""

    code = "KW756"
    sentence = "That is no submission: {found}."
    reason = "A submission is a JSON object with problem and candidate, both texts, and, if wanted, options."
    remedy = "Mend it; docs/schemas/serve.json is its JSON Schema, docs/serve.md has an example."


class NotAuthorised(KernelwrightError):
    """A request has no token, or one that the service does not know. HTTP status 401."""

    code = "KW757"
    sentence = "The service does not know you: {found}."
    reason = "Each client has a token, and sees what was submitted with it alone."
    remedy = "Send the header `Authorization: Bearer TOKEN`; the client takes it from KERNELWRIGHT_TOKEN."


class SubmissionUnknown(KernelwrightError):
    """There is no submission of that id, or it is another client's. HTTP status 404."""

    code = "KW758"
    sentence = "There is no submission {id} of yours."
    reason = "It was never submitted with this token, or was deleted."
    remedy = "Check the id and the token; submitting the same texts and options again gives the same id."


class QueueFull(KernelwrightError):
    """As many submissions wait as may. HTTP status 429."""

    code = "KW759"
    sentence = "{queued} submissions wait already."
    reason = "The queue is limited (`--queue`), so that nobody waits without end."
    remedy = "Submit it again after the seconds of the header Retry-After; the client does."


class SubmissionTooLarge(KernelwrightError):
    """The body of a request is too long. HTTP status 413."""

    code = "KW760"
    sentence = "The submission has more than {most} MiB."
    reason = "Problem and candidate are texts to be read by a person."
    remedy = "Leave out what is not program text, such as tables of numbers or compiled kernels."


class ServiceFull(KernelwrightError):
    """The disk of the service is full. HTTP status 507. What was accepted before is kept."""

    code = "KW761"
    sentence = "The service has no room on its disk."
    reason = "What is accepted is on disk before the answer, and this would not be."
    remedy = "Submit it again later; whoever runs the service makes room, or deletes submissions."


class NotEnded(KernelwrightError):
    """A submission is to be deleted that has not ended. HTTP status 409."""

    code = "KW762"
    sentence = "The submission {id} is {state}."
    reason = "Only what is done, cancelled or failed can be deleted."
    remedy = "Cancel it first, or wait."


class GivenUp(KernelwrightError):
    """The service itself ended again and again while a submission was judged."""

    code = "KW763"
    sentence = "The submission was given up after {attempts} attempts."
    reason = "The service, or its machine, ended each time while this was judged, which may be why."
    remedy = "Look into the logs of the machine; submitting it again begins anew."


# ---- KW8xx: PROPOSE, candidates from language models and from texts --------------------------------


class NoAnswers(KernelwrightError):
    """Nothing that was given has an answer: texts, transcripts and Python files are read, names that begin with ``_``
    or ``.`` and the model's own file are not."""

    code = "KW801"
    sentence = "{folder} has no answer to read."
    reason = "Read are .md, .txt, .log, .json, .jsonl and .py files; a transcript needs messages of an assistant."
    remedy = "Give the files, or the folder that they stand in."


class AnswersMissing(KernelwrightError):
    """A path of answers does not exist."""

    code = "KW802"
    sentence = "There is no file or folder {path}."
    reason = "Nothing stands at that path, seen from {folder}, so nothing was read."
    remedy = "Check the spelling and the folder, or leave the path out."


class AnswerUnreadable(KernelwrightError):
    """A file was named as an answer that cannot be one. What a readable file says is no error: it gets its verdict."""

    code = "KW803"
    sentence = "{path} cannot be read as an answer: {found}."
    reason = "An answer is one readable text of at most 16 MiB."
    remedy = "Mend the file, or leave it out."


class NothingToPropose(KernelwrightError):
    """``propose`` needs somebody to ask, texts to read, or a folder to replay or go on with; one of these."""

    code = "KW804"
    sentence = "There is {found}."
    reason = ("Candidates come from an endpoint (--endpoint and --model), from texts (--from), or from an earlier run "
              "(--replay).")
    remedy = "Give one of these; docs/propose.md has examples."


class ClientMissing(KernelwrightError):
    """The endpoint's protocol is spoken by the package ``openai``, an optional extra that is not installed."""

    code = "KW805"
    sentence = "No endpoint can be asked: the package openai cannot be imported ({found})."
    reason = "It speaks the OpenAI protocol; only an endpoint needs it."
    remedy = "Install it (`pip install 'kernelwright[propose]'`), or use `--from` with answers that exist."


class EndpointRefused(KernelwrightError):
    """The endpoint refuses what no repetition mends: the key, the model's name, the address."""

    code = "KW806"
    sentence = "{endpoint} refuses to answer: {found}."
    reason = "Asking again would give the same; what was answered before is kept in {folder}."
    remedy = "Mend the address, the model's name or the key ({key}), and go on with `--resume`."


class PricesUnusable(KernelwrightError):
    """A budget of money needs the prices of the model, per million tokens, from a file (TOML or JSON)."""

    code = "KW807"
    sentence = "The price of {model} is not known: {found}."
    reason = "Before each call what it may cost at most is held against the budget of money."
    remedy = "Give a file: `--prices prices.toml`, with a table [\"{model}\"], input = 0.5, output = 1.5."


class RunExists(KernelwrightError):
    """The folder holds a run already. Nothing of it is replaced unasked."""

    code = "KW808"
    sentence = "{folder} holds a run already."
    reason = "Its answers were paid for, so they are not replaced."
    remedy = "Go on with it (`--resume`), give another folder (`--record`), or replace it (`--force`)."


class RunDiffers(KernelwrightError):
    """The run in the folder was of another model or with other settings, so its answers do not fit."""

    code = "KW809"
    sentence = "The run in {folder} was made otherwise: {found}."
    reason = "Answers to other questions would be mixed with those of this run."
    remedy = "Give the options of that run, or another folder (`--record`)."


class RunMissing(KernelwrightError):
    """The folder to go on with, or to replay, holds no run."""

    code = "KW810"
    sentence = "{folder} holds no run: {found}."
    reason = "A run is a folder with run.json and events.jsonl, as `--record` names it."
    remedy = "Check the folder, or begin a run without `--resume` and `--replay`."


# ---- notes: worth saying, no error -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth saying that stops nothing. ``code`` begins with KWN."""

    code: str
    what: str
    fix: str

    def render(self) -> str:
        """The note as one line of plain text."""
        return f"note {self.code}: {self.what} {self.fix}".rstrip()


NO_CUDA_COMPILER = Note(
    "KWN01", "No CUDA compiler (nvcc) was found; CUDA kernels were generated but not compiled here.",
    "Set NVCC or CUDA_HOME to compile them on this machine.")
NOTES = (NO_CUDA_COMPILER,)


# ---- bugs of ours ----------------------------------------------------------------------------------


class InternalError(RuntimeError):
    """A bug of kernelwright, exit status 70. ``report`` is the text to send; ``traceback_path`` a file."""

    code = "KW900"
    exit_status = 70

    def __init__(self, message: str, report: str = "", traceback_path: Path | None = None) -> None:
        super().__init__(message, report, traceback_path)
        self.report = report
        self.traceback_path = traceback_path

    def __str__(self) -> str:
        return f"{self.code}: {self.args[0]}"

    @classmethod
    def wrap(cls, exception: BaseException, command: list[str], folder: Path) -> InternalError:
        """An InternalError around ``exception`` whose traceback is written under ``folder``.

        ``command`` is the argument list that reproduces it. Where the folder cannot be written, the
        traceback stands in the report itself.
        """
        text = "".join(traceback.format_exception(exception))
        path = keep_traceback(exception, folder)
        message = f"kernelwright failed unexpectedly: {describe(exception)}"
        lines = [message, f"reproduce:  {shlex.join(command)}", f"versions:   {versions()}",
                 f"traceback:  {path}" if path else "traceback:\n" + text.rstrip()]
        error = cls(message, "\n".join(lines), path)
        error.__cause__ = exception
        return error

    def render(self) -> str:
        """The report as plain text, with the line that says whose fault it is."""
        body = self.report or str(self.args[0])
        return f"internal error {self.code}: this is a bug of kernelwright, please report it.\n{body}"

    def as_json(self) -> dict[str, Any]:
        """The error as a JSON-ready dictionary."""
        return {"code": self.code, "error": "InternalError", "what": self.args[0], "report": self.report,
                "traceback": str(self.traceback_path) if self.traceback_path else "",
                "exit_status": self.exit_status}


def keep_traceback(exception: BaseException, folder: Path) -> Path | None:
    """The file under ``folder`` that the traceback was written to; None where none could be."""
    text = "".join(traceback.format_exception(exception))
    path = folder / f"traceback-{zlib.crc32(text.encode()):08x}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path


def versions() -> str:
    """Versions of Python, PyTorch and CUDA, and the platform, in one line; imports nothing."""
    torch = sys.modules.get("torch")
    parts = [f"python {platform.python_version()}"]
    if torch is not None:
        parts += [f"torch {torch.__version__}", f"cuda {torch.version.cuda or 'none'}"]
    return ", ".join([*parts, platform.platform()])


# ---- the user's line -------------------------------------------------------------------------------


def describe(exception: BaseException) -> str:
    """``Type: first line of the message``, without a final full stop, at most 300 characters."""
    lines = str(exception).strip().splitlines()
    text = f"{type(exception).__name__}: {lines[0].strip()}" if lines else type(exception).__name__
    return (text[:297] + "..." if len(text) > 300 else text).rstrip(".")


def place(file: str | Path | None, line: int = 0, text: str = "") -> str:
    """The ``where`` text: ``file:line`` and, below it, the source line (read from the file if not given)."""
    if not file:
        return ""
    if line and not text:
        text = linecache.getline(str(file), line)
    head = f"{file}:{line}" if line else str(file)
    return f"{head}\n{text.strip()}" if text.strip() else head


def _chain(exception: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = exception
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def user_frame(exception: BaseException, file: str | Path | None) -> tuple[int, str]:
    """Line number (from 1) and text of the innermost place inside ``file`` that led to ``exception``.

    Looks at the traceback, then at its causes, then at ``File "...", line N`` in the messages, where
    tracing compilers put the user's stack. Gives ``(0, "")`` if the file has no part in it.
    """
    if file is None:
        return 0, ""
    wanted = str(file)
    resolved = str(Path(wanted).resolve())
    for error in _chain(exception):
        if isinstance(error, SyntaxError) and error.filename in (wanted, resolved) and error.lineno:
            return error.lineno, (error.text or "").strip()
        lines = [line for frame, line in traceback.walk_tb(error.__traceback__)
                 if frame.f_code.co_filename in (wanted, resolved)]
        if lines:
            return lines[-1], linecache.getline(wanted, lines[-1]).strip()
    pattern = re.compile(rf'File "(?:{re.escape(wanted)}|{re.escape(resolved)})", line (\d+)')
    for error in _chain(exception):
        found = pattern.findall(str(error))
        if found:
            return int(found[-1]), linecache.getline(wanted, int(found[-1])).strip()
    return 0, ""


def where_of(exception: BaseException, file: str | Path | None) -> str:
    """The ``where`` text of an exception that passed through the user's ``file``, or the file alone."""
    line, text = user_frame(exception, file)
    return place(file, line, text)


# ---- docs/errors.md --------------------------------------------------------------------------------


def catalogue() -> list[type[KernelwrightError]]:
    """Every error class, by code."""
    return sorted(KernelwrightError.__subclasses__(), key=lambda kind: kind.code)


def catalogue_markdown() -> str:
    """The text of ``docs/errors.md``; a test keeps the file equal to it."""
    blocks = [(
        "# Errors\n\n"
        "Generated by `python -m kernelwright.errors > docs/errors.md`; edit the catalogue in "
        "`kernelwright/errors.py`.\n\n"
        "An error that you can mend has exit status 2 and says what happened, where (your line), why, and "
        "what to do. Words in braces are filled in. An error with exit status 70 (KW900) is a bug of "
        "kernelwright: it prints the command that reproduces it, the versions, and where its traceback is.")]
    for kind in catalogue():
        doc = "\n".join(line.strip() for line in (kind.__doc__ or "").strip().splitlines())
        blocks.append(f"## {kind.code} {kind.__name__}\n\n{doc}\n\n"
                      f"- **what**: {kind.sentence}\n- **why**: {kind.reason}\n- **fix**: {kind.remedy}")
    blocks.append("# Notes\n\nNotes stop nothing.")
    blocks += [f"## {note.code}\n\n{note.what} {note.fix}" for note in NOTES]
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    sys.stdout.write(catalogue_markdown())
