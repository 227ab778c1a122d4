"""Faults of conduct: what is returned and in which form, what is changed, what is kept between calls, and precision."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from mutations.fault import Change, Fault, called, everywhere, forward_of, in_forward, keyword

_STALE = frozenset({"stale", "variant-same-memory", "variant-other-inputs", "not-repeatable"})
#: No finding is made: the reason says it.
_SAID = frozenset[str]()


def _return_of(node: ast.AST) -> str | None:
    return ast.unparse(node.value) if isinstance(node, ast.Return) and node.value is not None else None


def _returns(pattern: str, single: bool = True) -> Change:
    """Return ``pattern`` of what was returned, where that is one tensor (or several)."""

    def change(node: ast.AST) -> str | None:
        if _return_of(node) is None or isinstance(node.value, ast.Tuple) == single:  # type: ignore[attr-defined]
            return None
        return "return " + pattern.format(_return_of(node))

    return change


def output_left_out(node: ast.AST) -> str | None:
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        return f"return {ast.unparse(node.value.elts[0])}"
    return None


def nothing_returned(node: ast.AST) -> str | None:
    return "pass" if _return_of(node) is not None else None


def outputs_exchanged(node: ast.AST) -> str | None:
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        return f"return {', '.join(ast.unparse(e) for e in reversed(node.value.elts))}"
    return None


def axis_kept(node: ast.AST) -> str | None:
    """keepdim the other way, where the result is returned or comes close to it."""
    if called(node) in ("sum", "mean", "amax", "amin") and isinstance(node, ast.Call) and \
            keyword(node, "dim") is not None and keyword(node, "keepdim") is None:
        return ast.unparse(node)[:-1] + ", keepdim=True)"
    return None


def input_changed(forward: ast.FunctionDef) -> bool:
    """An input is used as scratch memory before forward returns."""
    name = forward.args.args[1].arg
    if name in ("words", "baskets"):
        return False
    place = next(i for i, s in enumerate(forward.body) if isinstance(s, ast.Return))
    result = forward.body[place]
    forward.body[place:] = ast.parse(f"result = {ast.unparse(result.value)}\n{name}.mul_(0.5)\nreturn result").body
    return True


def input_returned(forward: ast.FunctionDef) -> bool:
    """The result is written into the memory of an input of its shape, and that is returned."""
    name = forward.args.args[1].arg
    for node in ast.walk(forward):
        if isinstance(node, ast.Assign) and ast.unparse(node) == f"out = torch.empty_like({name})":
            node.value = ast.parse(name).body[0].value
            return True
    return False


def output_kept(node: ast.AST) -> str | None:
    """One output buffer for all calls: a later call overwrites an earlier result."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "out" and "empty" in called(node.value):
        return f"out = self.__dict__.setdefault('kept', {ast.unparse(node.value)})"
    return None


def _cached(key: str) -> Callable[[str], Iterator[str]]:
    """forward keeps its results by a key that does not say what the inputs hold."""

    def apply(text: str) -> Iterator[str]:
        tree = ast.parse(text)
        forward = forward_of(tree)
        names = [a.arg for a in forward.args.args[1:]]
        model = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ModelNew")
        forward.name = "_compute"
        model.body += ast.parse(
            f"def forward(self, {', '.join(names)}):\n"
            f"    key = {key.format(names[0])}\n"
            f"    known = self.__dict__.setdefault('known', {{}})\n"
            f"    if key not in known:\n"
            f"        known[key] = self._compute({', '.join(names)})\n"
            f"    return known[key]\n").body
        yield ast.unparse(ast.fix_missing_locations(tree)) + "\n"

    return apply


def state_not_updated(node: ast.AST) -> str | None:
    if isinstance(node, ast.Expr) and called(node.value) in ("lerp_", "add_", "copy_", "mul_"):
        return ""
    return None


def momentum_wrong(node: ast.AST) -> str | None:
    if called(node) == "lerp_" and isinstance(node, ast.Call):
        return f"{ast.unparse(node.func)}({ast.unparse(node.args[0])}, 1 - {ast.unparse(node.args[1])})"
    return None


def mode_inverted(node: ast.AST) -> str | None:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "self.training" and node.orelse:
        return "if not self.training:\n" + _block(node.body) + "\nelse:\n" + _block(node.orelse)
    return None


def _block(body: list[ast.stmt]) -> str:
    return "\n".join("    " + line for s in body for line in ast.unparse(s).splitlines())


def state_by_other_statistic(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call) and called(node) == "lerp_" and ast.unparse(node.args[0]) == "unbiased":
        return f"{ast.unparse(node.func)}(variance, {ast.unparse(node.args[1])})"
    return None


def dropout_dropped(node: ast.AST) -> str | None:
    return ast.unparse(node.args[0]) if called(node) == "dropout" and isinstance(node, ast.Call) else None


def dropout_share(node: ast.AST) -> str | None:
    if called(node) == "dropout" and isinstance(node, ast.Call):
        return f"F.dropout({ast.unparse(node.args[0])}, 0.5, {ast.unparse(node.args[2])})"
    return None


def seed_fixed(forward: ast.FunctionDef) -> bool:
    """Random numbers always from the same seed."""
    if "dropout" not in ast.unparse(forward):
        return False
    forward.body.insert(0, ast.parse("torch.manual_seed(0)").body[0])
    return True


def random_drawn(forward: ast.FunctionDef) -> bool:
    """Random numbers are drawn where the model draws none."""
    if "dropout" in ast.unparse(forward):
        return False
    forward.body.insert(0, ast.parse("torch.rand(1)").body[0])
    return True


_PRODUCTS = ("mm", "bmm", "mv", "matmul")


def narrow_operands(kind: str) -> Change:
    """A product of operands that are rounded to a narrower type."""

    def change(node: ast.AST) -> str | None:
        if called(node) not in _PRODUCTS or not isinstance(node, ast.Call):
            return None
        operands = ", ".join(f"({ast.unparse(a)}).to(torch.{kind}).float()" for a in node.args)
        return f"{ast.unparse(node.func)}({operands})"

    return change


def narrow_result(kind: str) -> Change:
    """The result passes through a narrower type."""
    return _returns("({}).to(torch." + kind + ").float()")


def not_deterministic(forward: ast.FunctionDef) -> bool:
    """Some sums lose a part, each time another one: what a race of two threads does, made certain."""
    for node in ast.walk(forward):
        if isinstance(node, ast.For):
            name = ast.unparse(node.target)
            hit = "hash(time.perf_counter_ns()) // 256 % 4 == 1"
            if isinstance(node.body[-1], ast.Assign) and ast.unparse(node.body[-1].targets[0]) == "total":
                node.body.insert(0, ast.parse(f"import time\nif {name} and {hit}:\n    continue").body[1])
                forward.body.insert(0, ast.parse("import time").body[0])
                return True
    return False


FAULTS = (
    Fault("data type wrong", "the result has another type", everywhere(_returns("({}).double()"), _returns(
        "({}).half()")), frozenset({"dtype"}), frozenset({"WRONG-DTYPE"})),
    Fault("shape wrong", "an axis is kept, added or flattened away", everywhere(
        axis_kept, _returns("({}).unsqueeze(0)"), _returns("({}).flatten()")), frozenset({"shape"}),
        frozenset({"WRONG-SHAPE"})),
    Fault("structure wrong", "an output too many, too few, or none", everywhere(
        output_left_out, _returns("({},)"), _returns("[{}]", single=False), nothing_returned),
        frozenset({"structure", "returns-nothing", "shape", "plain-value"}),
        frozenset({"WRONG-STRUCTURE"})),
    Fault("outputs exchanged", "two outputs change places", everywhere(outputs_exchanged),
          frozenset({"swapped-outputs", "shape", "dtype"}),
          frozenset({"WRONG-NUMERIC", "WRONG-SHAPE", "WRONG-DTYPE"})),
    Fault("input changed", "an input is scratch memory", in_forward(input_changed), _SAID,
          frozenset({"WRONG-MUTATES-INPUT"}),
          says=r"input.*(chang|overwr|modif)|(chang|overwr|modif).*input"),
    Fault("input returned", "the result is written into an input", in_forward(input_returned), _SAID,
          frozenset({"WRONG-MUTATES-INPUT", "WRONG-ALIAS", "CHEAT-INPUT-MUTATION"}),
          says=r"input"),
    Fault("output buffer kept", "every call returns the same memory", everywhere(output_kept), _SAID,
          frozenset({"WRONG-ALIAS", "WRONG-STALE"}),
          says=r"same memory|earlier result|overwritten"),
    Fault("cached by address", "results are kept by the input's address", _cached("{}.data_ptr()"), _STALE,
          frozenset({"WRONG-STALE", "CHEAT-STALE", "CHEAT-REPLAY", "WRONG-NONDETERMINISTIC", "WRONG-ALIAS"}),
          says=r"earlier|other input|stored|kept|same memory"),
    Fault("cached by shape", "results are kept by the input's shape", _cached("{}.shape"), _STALE,
          frozenset({"WRONG-STALE", "CHEAT-STALE", "CHEAT-REPLAY"}),
          says=r"earlier|other input|stored|kept"),
    Fault("state not updated", "a buffer stays as it was", everywhere(state_not_updated),
          frozenset({"state-not-updated", "state-missing"}), frozenset({"WRONG-STATE", "WRONG-NUMERIC",
                                                                        "WRONG-DISTRIBUTION"})),
    Fault("momentum wrong", "a running statistic moves by the other share", everywhere(momentum_wrong),
          frozenset({"state-momentum", "wrong-constant", "operands-exchanged"}),
          frozenset({"WRONG-STATE"})),
    Fault("running variance biased", "the running variance gets the variance divided by N",
          everywhere(state_by_other_statistic),
          frozenset({"state-factor", "biased-variance", "wrong-constant", "wrong-divisor"}),
          frozenset({"WRONG-STATE"})),
    Fault("mode inverted", "running statistics for the batch's, or the reverse", everywhere(mode_inverted),
          frozenset({"eval-for-training", "batch-statistics", "statistics-ignored", "state-not-updated",
                     "state-missing"}),
          frozenset({"WRONG-NUMERIC", "WRONG-STATE", "WRONG-PARAMETERS", "WRONG-DISTRIBUTION"})),
    Fault("dropout dropped", "no dropout in training", everywhere(dropout_dropped),
          frozenset({"missing-dropout", "random-state"}), frozenset({"WRONG-NUMERIC", "WRONG-RANDOM"})),
    Fault("dropout share", "dropout of another share", everywhere(dropout_share),
          _SAID, frozenset({"WRONG-RANDOM"}), says=r"random"),
    Fault("seed fixed", "forward sets the seed", in_forward(seed_fixed), _SAID, frozenset({"WRONG-RANDOM"}),
          says=r"random"),
    Fault("random drawn", "random numbers are drawn where the model draws none", in_forward(random_drawn), _SAID,
          frozenset({"WRONG-RANDOM"}),
          says=r"random"),
    Fault("operands narrow", "a product of bfloat16 or float16 operands", everywhere(
        narrow_operands("bfloat16"), narrow_operands("float16")),
        frozenset({"precision-bfloat16", "precision-float16", "precision-tf32", "precision", "fp16-overflow"}),
        frozenset({"WRONG-PRECISION", "WRONG-NONFINITE"})),
    Fault("result narrow", "the result passes through bfloat16 or float16", everywhere(
        narrow_result("bfloat16"), narrow_result("float16")),
        frozenset({"precision-bfloat16", "precision-float16", "fp16-overflow"}),
        frozenset({"WRONG-PRECISION", "WRONG-NONFINITE"})),
    Fault("NaN swallowed", "NaN becomes zero", everywhere(_returns("torch.nan_to_num({}, 0.0, torch.inf, -torch.inf)")),
          frozenset({"nan-swallowed"}), frozenset({"WRONG-NONFINITE"})),
    Fault("infinity clamped", "Inf becomes the largest number", everywhere(
        _returns("torch.nan_to_num({}, torch.nan)")),
        frozenset({"nan-swallowed", "cut-off"}), frozenset({"WRONG-NONFINITE"})),
    Fault("race", "a part is lost in some calls", in_forward(not_deterministic),
          frozenset({"nondeterministic", "not-repeatable"}),
          frozenset({"WRONG-NONDETERMINISTIC"})),
)
