"""The closed list of verdicts. A verdict is one code; words, evidence and places stand beside it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """One entry of the list. ``meaning`` completes "the candidate ..." (or "the problem ...", "the judge ...")."""

    code: str
    meaning: str

    @property
    def family(self) -> str:
        """OK, BUILD, CRASH, WRONG, CHEAT, PROBLEM or JUDGE."""
        return self.code.partition("-")[0]

    @property
    def passed(self) -> bool:
        """Whether the candidate may be timed and ranked."""
        return self.family == "OK"


_MEANINGS = {
    "OK": "gives the model's results in every respect that was checked",
    "OK-BUT": "gives the model's results, with limits that are named",
    "BUILD-EMPTY": "is an empty file, or one without any statement",
    "BUILD-SYNTAX": "is not Python: a line cannot be parsed, or the text is cut off",
    "BUILD-NO-CLASS": "does not define a class ModelNew derived from torch.nn.Module",
    "BUILD-IMPORT": "raises while its file is imported",
    "BUILD-COMPILE": "has kernels that the compiler refuses",
    "BUILD-LINK": "has kernels that compile, but a function they need or export does not exist",
    "BUILD-ARCHITECTURE": "has kernels that were built for another device than this one",
    "BUILD-TIMEOUT": "did not finish importing, compiling and constructing in its time",
    "BUILD-CONSTRUCT": "raises while ModelNew is constructed with the problem's arguments",
    "BUILD-INCOMPLETE": "uses something that it never creates: a layer, a parameter, a function, a kernel's body",
    "CRASH-RAISED": "raises in forward",
    "CRASH-SIGNAL": "ended its process: by a signal (a segmentation fault, say), or by an exit",
    "CRASH-LAUNCH": "launches a kernel that never ran: its configuration is invalid on this device",
    "CRASH-DEVICE": "broke the CUDA context: an illegal address, an assertion on the device",
    "CRASH-TIMEOUT": "did not return from forward in its time",
    "CRASH-MEMORY": "used more memory than it may",
    "CRASH-PROCESSES": "started more processes or threads than it may",
    "CRASH-FLOOD": "wrote more output or larger files than it may",
    "WRONG-STRUCTURE": "returns another nesting or number of outputs",
    "WRONG-SHAPE": "returns an output of another shape",
    "WRONG-DTYPE": "returns an output of another data type",
    "WRONG-DEVICE": "returns an output on another device, or of another layout",
    "WRONG-NUMERIC": "returns other values than the model on the problem's own inputs",
    "WRONG-DISTRIBUTION": "is right on the problem's own inputs and wrong on others that the model takes",
    "WRONG-NONFINITE": "puts NaN or Inf where the model has numbers, or numbers where it has NaN or Inf",
    "WRONG-PRECISION": "computes with fewer digits than the policy allows",
    "WRONG-PARAMETERS": "does not follow the model's parameters: they do not fit, or changed values are ignored",
    "WRONG-STATE": "does not update buffers (running statistics, hidden state) or parameters as the model does",
    "WRONG-MUTATES-INPUT": "changes an input that the model leaves alone",
    "WRONG-ALIAS": "returns the memory of an input, a parameter or an earlier result instead of its own",
    "WRONG-RANDOM": "uses random numbers where the model does not, or others than the model",
    "WRONG-NONDETERMINISTIC": "gives other bits when called again with the same inputs",
    "WRONG-STALE": "depends on earlier calls: results of an earlier input come back",
    "WRONG-OUT-OF-BOUNDS": "has a kernel that reads or writes outside of the memory that it was given",
    "WRONG-RACE": "has a kernel whose threads use the same memory in no order, or a barrier as they must not",
    "WRONG-GRADIENT": "gives other gradients than the model",
    "CHEAT-STALE": "returns memory that it did not write",
    "CHEAT-REPLAY": "returns a stored earlier result instead of computing",
    "CHEAT-OUTPUT-OBJECT": "returns an object that answers for itself instead of a plain tensor",
    "CHEAT-INPUT-MUTATION": "destroys its inputs so that a wrong result looks right",
    "CHEAT-ASYNC": "returns before its work is done, on a stream or thread that the clock does not see",
    "CHEAT-DEFERRED": "leaves work for later calls, or does several calls' work in one",
    "CHEAT-TIMER": "reports times that the judge's own clock refutes",
    "CHEAT-MODE": "behaves differently where it is checked from where it is timed",
    "CHEAT-FLOOR": "is faster than the device allows for this problem",
    "CHEAT-GHOST": "has kernels that do not contribute to its result, under a policy that asks for its own kernels",
    "CHEAT-PROTOCOL": "wrote to the judge's channel, or broke the protocol",
    "PROBLEM-TRIVIAL": "cannot tell a right candidate from one that does not compute, on any inputs tried",
    "JUDGE-UNFIT": "failed its self-test in this run, so no verdict of the run counts",
    "JUDGE-NO-DEVICE": "has no device on which this candidate could run",
    "JUDGE-BUSY": "cannot tell what the candidate did from what a busy machine does to clocks",
    "JUDGE-ERROR": "failed, which says nothing about the candidate",
}

VERDICTS: dict[str, Verdict] = {code: Verdict(code, meaning) for code, meaning in _MEANINGS.items()}
