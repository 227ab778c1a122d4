"""Reading what a candidate does beside computing: caches, subclasses, threads, patches, files, frames. Hints only:
honest programs do some of these, and a dishonest one may hide them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernelwright.judge.reading.python import candidate_class
from kernelwright.judge.reading.source import Source
from kernelwright.judge.records import Finding

#: Dotted names that are called, the kind of finding, and what they do in words.
_CALLS = (
    (r"(?:threading\.)?(?:Thread|Timer)|_thread\.start_new_thread|(?:concurrent\.futures\.)?ThreadPoolExecutor|"
     r"(?:multiprocessing\.)?(?:Process|Pool)|(?:concurrent\.futures\.)?ProcessPoolExecutor|os\.fork|asyncio\.run",
     "thread", "starts work on another thread or process, which a clock may not see"),
    (r"torch\.cuda\.(?:Stream|stream|set_stream|ExternalStream)", "stream",
     "uses a stream of its own; its work must be joined before forward returns"),
    (r"gc\.get_(?:objects|referrers|referents)|inspect\.(?:currentframe|stack|getouterframes|trace)|sys\._getframe",
     "introspection", "looks at objects or frames that are not its own"),
    (r"os\.(?:system|popen|exec\w+|spawn\w+|kill|_exit)|subprocess\.\w+", "process", "starts or ends processes"),
    (r"socket\.\w+|urllib\.\w+(?:\.\w+)*|requests\.\w+|http\.client\.\w+", "network", "uses the network"),
    (r"open|io\.open|torch\.(?:save|load)|pickle\.(?:dump|load)|np\.(?:save|load)|numpy\.(?:save|load)|"
     r"shutil\.(?!which\b)\w+",
     "file", "reads or writes files, so results may come from there"),
    (r"eval|exec|__import__|importlib\.import_module", "dynamic-code", "runs or imports what the text does not name "
                                                                       "plainly"),
    (r"atexit\.register|signal\.(?:signal|setitimer|alarm)|sys\.exit|exit|quit", "exit", "acts when the process ends "
                                                                                         "or is "
     "interrupted, or ends it"),
    (r"torch\.set_float32_matmul_precision", "precision-flag", "changes the precision of float32 products"),
    (r"torch\.Tensor\._make_subclass|torch\.Tensor\._make_wrapper_subclass", "tensor-subclass", "makes a tensor of a "
                                                                                                "class of "
     "its own"),
)
_ATTRIBUTES = {"__globals__": "introspection", "f_locals": "introspection", "f_back": "introspection",
               "f_globals": "introspection", "__code__": "introspection", "__closure__": "introspection"}
_HARMLESS_FILES = ("/proc/cpuinfo", "/sys/")
_BUILD_VARIABLES = re.compile(r"CUDA|TORCH|MAX_JOBS|HOME|CACHE|CXX|\bCC\b|PATH|OMP|TMP")
# What only writes brings nothing in: sources of kernels are written to be built.
_METHODS = ("as_subclass", "read_text", "read_bytes")
_KEY_CALLS = {"data_ptr", "id", "_version", "untyped_storage"}


def read_conduct(source: Source) -> Iterator[Finding]:
    """Findings on what the Python text does beside computing, each kind once."""
    seen: set[str] = set()
    for finding in _all(source):
        if finding.kind not in seen or finding.kind == "patch":
            seen.add(finding.kind)
            yield finding


def _all(source: Source) -> Iterator[Finding]:
    names = _imported(source.tree)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield from _call(source, node, names)
        elif isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
            yield source.hint(_ATTRIBUTES[node.attr], f"Line {node.lineno} reads {node.attr} of a function or "
                                                      "frame.", node.lineno)
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            yield from _patch(source, node, names)
        elif isinstance(node, ast.ClassDef):
            yield from _class(source, node, names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _replay(source, node)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and \
                _dotted(node.value, names) == "os.environ":
            yield from _environment(source, node, node.slice)
        if isinstance(node, ast.Attribute) and _dotted(node, names) == "sys.modules":
            yield source.hint("introspection", f"Line {node.lineno} reads sys.modules.", node.lineno)
        if isinstance(node, ast.ImportFrom) and any(a.name == "Model" for a in node.names):
            yield source.hint("reference", f"Line {node.lineno} imports a class Model from {node.module}: the "
                                           "candidate may not "
                              "use the reference.", node.lineno, "Compute the result in ModelNew itself.")


def _imported(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for, dotted."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        left = _dotted(node.value, names)
        return f"{left}.{node.attr}" if left else ""
    return ""


def _call(source: Source, node: ast.Call, names: dict[str, str]) -> Iterator[Finding]:
    name = _dotted(node.func, names)
    first = node.args[0] if node.args else None
    if name in ("os.getenv", "os.environ.get"):
        yield from _environment(source, node, first)
        return
    if name == "setattr" and first is not None and _foreign(first, names):
        yield source.hint("patch", f"Line {node.lineno} replaces an attribute of {ast.unparse(first)}, which belongs "
                                   "to a "
                          "library.", node.lineno, "Leave libraries as they are.")
    for pattern, kind, words in _CALLS:
        if re.fullmatch(pattern, name):
            if kind == "file" and isinstance(first, ast.Constant) and str(first.value).startswith(_HARMLESS_FILES):
                return
            yield source.hint(kind, f"Line {node.lineno} calls {name}: it {words}.", node.lineno)
    if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        kind = "tensor-subclass" if node.func.attr == "as_subclass" else "file"
        yield source.hint(kind, f"Line {node.lineno} calls {node.func.attr}.", node.lineno)


def _environment(source: Source, node: ast.expr, key: ast.expr | None) -> Iterator[Finding]:
    name = key.value if isinstance(key, ast.Constant) else None
    if not isinstance(name, str) or not _BUILD_VARIABLES.search(name):
        yield source.hint("environment", f"Line {node.lineno} reads the environment variable "
                                         f"{name or 'named at run time'}: what it "
                          "computes may depend on where it runs.", node.lineno)


def _foreign(node: ast.AST, names: dict[str, str]) -> bool:
    """Whether an expression is a module that was imported, or something in it."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def _patch(source: Source, node: ast.Assign | ast.AugAssign, names: dict[str, str]) -> Iterator[Finding]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if not (isinstance(target, ast.Attribute) and _foreign(target, names)):
            continue
        name = _dotted(target, names)
        if name.startswith("torch.backends."):
            yield source.hint("precision-flag", f"Line {node.lineno} sets {name}, a switch of the whole "
                                                "process.", node.lineno)
        else:
            yield source.hint("patch", f"Line {node.lineno} replaces {name}, which belongs to a library.", node.lineno,
                              "Leave libraries as they are.")


def _class(source: Source, node: ast.ClassDef, names: dict[str, str]) -> Iterator[Finding]:
    bases = {_dotted(base, names) for base in node.bases}
    hooks = {s.name for s in node.body if isinstance(s, ast.FunctionDef)} & {"__torch_function__", "__torch_dispatch__"}
    if hooks or bases & {"torch.Tensor", "torch.nn.Parameter", "torch.overrides.TorchFunctionMode",
                         "torch.utils._python_dispatch.TorchDispatchMode"}:
        yield source.hint("tensor-subclass", f"Class {node.name} (line {node.lineno}) is a tensor, or answers for "
                                             "tensors.",
                          node.lineno, "Return plain tensors.")
    aliases = {t.id for s in source.tree.body if isinstance(s, ast.Assign) and _dotted(s.value, names) == "torch.Tensor"
               for t in s.targets if isinstance(t, ast.Name)}
    if bases & aliases:
        yield source.hint("tensor-subclass", f"Class {node.name} (line {node.lineno}) is a tensor under another name.",
                          node.lineno, "Return plain tensors.")
    if node is candidate_class(source) and bases & {"Model"} and "forward" not in {
            s.name for s in node.body if isinstance(s, ast.FunctionDef)}:
        yield source.hint("reference", f"Class {node.name} (line {node.lineno}) takes forward from a class "
                                       "Model.", node.lineno,
                          "Compute the result in ModelNew itself.")


def _replay(source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Finding]:
    """A result that is looked up by the address, identity or shape of an input and returned."""
    assigned: dict[str, ast.expr] = {t.id: node.value for node in ast.walk(function) if isinstance(node, ast.Assign)
                                     for t in node.targets if isinstance(t, ast.Name)}

    def keyed(expression: ast.expr | None) -> str:
        if isinstance(expression, ast.Name):
            expression = assigned.get(expression.id)
        for part in ast.walk(expression) if expression is not None else ():
            if isinstance(part, ast.Call):
                name = part.func.attr if isinstance(part.func, ast.Attribute) else getattr(part.func, "id", "")
                if name in _KEY_CALLS:
                    return f"{name}()"
            if isinstance(part, ast.Attribute) and part.attr in ("shape", "_version"):
                return part.attr
        return ""

    def stored(expression: ast.expr | None, depth: int = 0) -> str:
        if isinstance(expression, ast.Name) and depth < 3:
            return stored(assigned.get(expression.id), depth + 1)
        if isinstance(expression, ast.Subscript) and not isinstance(expression.value, ast.Call):
            return keyed(expression.slice)
        if isinstance(expression, ast.Call) and getattr(expression.func, "attr", "") == "get":
            return keyed(expression.args[0]) if expression.args else ""
        return ""

    for node in ast.walk(function):
        if isinstance(node, ast.Return) and (key := stored(node.value)):
            yield source.hint("output-cache", f"Line {node.lineno} returns what is stored under {key} of an input; "
                                              "another input "
                              "may have the same.", node.lineno, "Compute the result in every call.", key=key)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and any(
                isinstance(s, ast.Return) and isinstance(s.value, ast.Attribute) for s in node.body):
            sides = [keyed(side) for side in (node.test.left, *node.test.comparators)]
            if any(sides) and not any("shape" in side for side in sides):
                yield source.hint("output-cache", f"Line {node.lineno} returns a kept result where "
                                                  f"{next(filter(None, sides))} of an "
                                  "input is as before.", node.lineno, "Compute the result in every call.")
