"""Faults of loops and indices: what is computed, from where, and what is carried from one part to the next."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from mutations.fault import Fault, binary, called, everywhere, keyword

_PLACES = frozenset({"tail", "unwritten", "reduction-cut"})
_MOVED = frozenset({"shifted", "rolled", "wrong-index", "permuted-slices", "one-for-all", "slice", "roll", "one-slice",
                    "transposed", "reversed", "input-index"})


def _range(node: ast.AST) -> list[str] | None:
    """Start, stop and step of a call of range."""
    if called(node) != "range" or not isinstance(node, ast.Call):
        return None
    given = [ast.unparse(a) for a in node.args]
    return [*(["0"] if len(given) == 1 else []), *given, *(["1"] if len(given) < 3 else [])]


def tail_left_out(node: ast.AST) -> str | None:
    found = _range(node)
    if found and found[2].isupper():
        return f"range({found[0]}, {found[1]} // {found[2]} * {found[2]}, {found[2]})"
    return None


def last_left_out(node: ast.AST) -> str | None:
    found = _range(node)
    return f"range({found[0]}, {found[1]} - 1)" if found and found[2] == "1" else None


def last_of_blocks_left_out(node: ast.AST) -> str | None:
    if called(node) == "min" and isinstance(node, ast.Call):
        first, last = map(ast.unparse, node.args)
        return f"min({first}, {last} - 1)" if re.search(r"\b(TILE|ROWS)\b", first) else None
    return None


def first_left_out(node: ast.AST) -> str | None:
    found = _range(node)
    return f"range(1, {found[1]})" if found and found[2] == "1" else None


def some_left_out(node: ast.AST) -> str | None:
    """Every second tile or every third step is skipped."""
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name):
        return None
    found, name = _range(node.iter), node.target.id
    if not found:
        return None
    number, period = (f"{name} // {found[2]}", 2) if found[2] != "1" else (name, 3)
    body = "\n".join(ast.unparse(s) for s in node.body)
    head = f"for {name} in {ast.unparse(node.iter)}:\n"
    return head + _indented(f"if {number} % {period} == {period - 1}:\n    continue\n{body}")


def first_of_block_wrong(node: ast.AST) -> str | None:
    """The first row of each block is not stored."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
        return None
    target, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
    if target != "out[start:stop]":
        return None
    return f"out[start + 1:stop] = ({value})[1:]"


def index_off_by_one(node: ast.AST) -> str | None:
    """A loop's index reads its neighbour."""
    return _reading(node, lambda name: f"{name} - 1")


def index_wraps(node: ast.AST) -> str | None:
    """An index that overflows its type: it wraps after a few positions."""
    return _reading(node, lambda name: f"{name} % 4")


def _reading(node: ast.AST, change: Callable[[str], str]) -> str | None:
    """A read of one position x[:, i], with another index."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return None
    where = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    last = where[-1]
    if isinstance(last, ast.Name) and last.id in _COUNTERS:
        inside = ", ".join([*map(ast.unparse, where[:-1]), change(last.id)])
        return f"{ast.unparse(node.value)}[{inside}]"
    return None


_COUNTERS = ("head", "channel", "token", "row", "day", "place", "step", "centre", "column", "plane", "entry", "source")


def gathered_index_off(node: ast.AST) -> str | None:
    """An index that is data is one too large."""
    if isinstance(node, ast.Subscript) and ast.unparse(node) in ("places[:, choice]", "words[:, token]"):
        return f"({ast.unparse(node)} + 1) % {'states.shape[1]' if 'places' in ast.unparse(node) else '40'}"
    if isinstance(node, ast.Call) and called(node) == "gather":
        return ast.unparse(node).replace("labels[:, None]", "(labels[:, None] + 1) % logits.shape[1]")
    return None


def carry_lost(node: ast.AST) -> str | None:
    """What one part hands to the next is not handed on."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("carry", "before", "state"):
        inside = ast.unparse(node.value)
        if "carry" in inside or "zeros" in inside or "state" in inside:
            return None
        return ""
    found = binary(node, ast.Add)
    if found and found[1] in ("carry", "self.discount * carry"):
        return found[0]
    return None


def scan_exclusive(node: ast.AST) -> str | None:
    """A scan without the own element, or the reverse."""
    if isinstance(node, ast.Assign) and ast.unparse(node.value) == "sums / count":
        return f"{ast.unparse(node.targets[0])} = (sums - x[:, start:stop]) / count"
    if isinstance(node, ast.Assign) and ast.unparse(node) == "out[:, place] = carry":
        return "out[:, place] = carry - rewards[:, place]"
    return None


def accumulator_overwritten(node: ast.AST) -> str | None:
    """A sum over parts keeps its last part only."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        name, found = node.targets[0].id, binary(node.value, ast.Add)
        if found and found[0] == name:
            return f"{name} = {found[1]}"
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return f"{ast.unparse(node.target)} = {ast.unparse(node.value)}"
    return None


def accumulator_unset(node: ast.AST) -> str | None:
    """Memory that is added to without being set to zero."""
    if called(node) == "zeros" or (called(node) == "zeros_like" and keyword(node, "dtype") is None):
        return ast.unparse(node).replace("torch.zeros", "torch.empty", 1)
    return None


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


FAULTS = (
    Fault("tail left out", "what is left after full tiles is not computed", everywhere(tail_left_out), _PLACES),
    Fault("last left out", "the last position of a loop is not visited",
          everywhere(last_left_out, last_of_blocks_left_out), _PLACES | {"one-slice", "edges"}),
    Fault("first left out", "the first position of a loop is not visited", everywhere(first_left_out),
          frozenset({"head", "one-slice", "unwritten", "reduction-cut", "slice", "edges"})),
    Fault("every k-th left out", "every second tile, or every third step, is skipped", everywhere(some_left_out),
          frozenset({"every-kth", "blocks", "one-slice", "slice", "unwritten", "reduction-cut"})),
    Fault("first of each block", "the first row of each block is not stored", everywhere(first_of_block_wrong),
          frozenset({"every-kth", "blocks", "unwritten"})),
    Fault("index off by one", "a loop reads the neighbour's position", everywhere(index_off_by_one), _MOVED),
    Fault("index overflows", "an index wraps around, as in a type that is too narrow", everywhere(index_wraps),
          _MOVED | {"tail", "reduction-cut"}),
    Fault("gathered index off", "an index that is data is one too large", everywhere(gathered_index_off),
          _MOVED | {"input-index"}),
    Fault("carry lost", "a part of a scan does not get what comes before it", everywhere(carry_lost),
          frozenset({"scan-not-carried", "missing-addend", "missing-operator", "missing-last-operators",
                     "returns-input", "tail", "every-kth"})),
    Fault("inclusive for exclusive", "a scan leaves out its own element", everywhere(scan_exclusive),
          frozenset({"exclusive-scan", "shifted"})),
    Fault("sum overwritten", "a sum over parts keeps the last part only", everywhere(accumulator_overwritten),
          frozenset({"reduction-cut"})),
    Fault("sum not set to zero", "memory is added to that was never set", everywhere(accumulator_unset),
          frozenset({"unwritten", "nondeterministic"}),
          frozenset({"CHEAT-STALE", "WRONG-NONDETERMINISTIC", "WRONG-NUMERIC", "WRONG-NONFINITE",
                     "WRONG-DISTRIBUTION"})),
)
