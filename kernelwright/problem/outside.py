"""What a model's forward reads from outside of its arguments, parameters and buffers.

Found in the code that a forward can reach in the user's own files: globals, what functions closed over, their default
arguments, attributes of classes and objects, the environment, and tensors in any of these or in containers that the
model's modules keep. The code of installed packages is not looked into.
"""

from __future__ import annotations

import dis
import functools
import itertools
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

#: Modules whose functions answer otherwise at another time or on another machine, or read files.
_ELSEWHERE = frozenset({
    "time", "datetime", "uuid", "_uuid", "socket", "_socket", "platform", "secrets", "subprocess", "_posixsubprocess",
    "tempfile", "posix", "nt", "glob", "pathlib", "pathlib._local", "shutil", "genericpath", "linecache"})
#: Others that do, by name: a path is no file, and PyTorch has much that is pure.
_READS = frozenset({"torch.load", "torch.serialization.load", "numpy.load", "numpy.loadtxt",
                    "torch.get_num_threads", "torch.initial_seed", "torch.get_rng_state", "torch.random.initial_seed",
                    "torch.random.get_rng_state"})
_PURE = frozenset({"posix.fspath", "pathlib.PurePath", "datetime.timedelta", "datetime.date", "datetime.datetime"})
#: Builtin functions that read files, or names that stand in texts.
_BUILTINS = ("open", "input", "globals", "eval", "exec", "__import__")
#: Larger containers take too long to compare at every call.
MOST_ELEMENTS = 4096
_DEPTH = 4
#: Where this package is.
_PACKAGE = Path(__file__).parents[1]
_INTERNAL = frozenset(vars(nn.Module()))
#: Methods that no call of a model runs.
_AT_CONSTRUCTION = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__setstate__", "__repr__"})
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(slots=True)
class Outside:
    """What a forward reads, by the Python text that gives each value.

    In the texts the globals of the model's own file stand as they are, ``_model`` is the model, and ``os`` and
    ``sys`` are the modules.
    """

    values: dict[str, Any] = field(default_factory=dict)
    """What Python code reads: numbers, text, functions, containers; tensors are not among them."""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """Tensors within reach, those in containers and of modules' lists included."""
    foreign: dict[str, Any] = field(default_factory=dict)
    """Objects of installed packages, whose parts nobody knows: loggers, generators of random numbers."""
    containers: dict[str, Any] = field(default_factory=dict)
    """Dictionaries, lists and sets within reach that a call may change, attributes of objects among them; not those
    that the model's modules keep."""
    caches: list[Any] = field(default_factory=list)
    """Functions within reach that keep their results (``functools.lru_cache``)."""
    refused: str = ""
    """Why no graph can stand for what is read, or ""."""

    def name_of(self, tensor: torch.Tensor) -> str:
        """The text of a tensor (the very object, or other eyes on all of its memory), or ""."""
        same = [text for text, value in self.tensors.items() if value is tensor]
        return (same or [text for text, value in self.tensors.items() if _alike(value, tensor)] or [""])[0]


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided or other.layout is not torch.strided or not other.numel():
        return False
    return (one.data_ptr(), one.shape, one.stride(), one.dtype, one.device) == (
        other.data_ptr(), other.shape, other.stride(), other.dtype, other.device)


@functools.cache
def is_installed(file: str) -> bool:
    """Whether a source file belongs to Python, to an installed package, or to this one, which may be used from a
    checkout: methods of ours that classes of emitted files have are no code of the user's.

    Installers leave the metadata of packages beside them, whatever the folder is called (``pip install --target``).
    """
    if {"site-packages", "dist-packages"} & set(Path(file).parts) or _PACKAGE in Path(file).parents:
        return True
    if any(folder in Path(file).parents and next(folder.glob("*.dist-info"), None) for folder in map(Path, sys.path)):
        return True
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return any(Path(folder) in Path(file).resolve().parents for folder in folders)


def is_installed_module(name: str) -> bool:
    """Whether a module is Python's own or of an installed package; one without a file is the user's."""
    root = name.split(".")[0]
    files = (getattr(sys.modules.get(known), "__file__", None) for known in (name, root))
    return root in sys.stdlib_module_names or is_installed(next(filter(None, files), ""))


def _is_users(kind: type) -> bool:
    """Whether objects of a class are what the user's code made them: of an own class, or a namespace."""
    return kind.__module__ in ("types", "argparse") or not is_installed_module(kind.__module__)


def read_outside(model: nn.Module) -> Outside:
    """What ``model`` and its modules read from outside when they are called."""
    reader = _Reader(model)
    reader.read()
    return reader.found


class _Reader:
    """One walk through the code that a forward can reach."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.own = type(model).__module__
        self.parts = {id(module) for module in model.modules()}
        self.found = Outside()
        self.seen_code: set[CodeType] = set()
        self.seen_objects: dict[int, Any] = {}
        self.names = {"forward"}  # attributes that the code asks for: methods and properties may be called by them
        self.classes: dict[type, str] = {}
        self.made: set[type] = set()  # classes of which the code may make objects

    def read(self) -> None:
        for path, module in self.model.named_modules():
            text = f"_model.get_submodule({path!r})" if path else "_model"
            self._class(type(module), f"type({text})")
            for key, value in vars(module).items():
                if key not in _INTERNAL and not isinstance(value, torch.Tensor):
                    self._look_into(f"{text}.{key}", value)
        known = -1
        while known != (known := len(self.seen_code) + len(self.names) + len(self.classes) + len(self.made)):
            for kind, text in list(self.classes.items()):
                for name, value in vars(kind).items():
                    if hasattr(value, "cache_info") and name in self.names:
                        self._look_into(f"vars({text})[{name!r}]", value)
                for name, function in _functions(kind):
                    constructs = name in _AT_CONSTRUCTION
                    special = name.startswith("__") and name.endswith("__")
                    if kind in self.made if constructs else name in self.names or special or kind in self.made:
                        self._function(f"{text}.{name}", function)
        for text in [text for text, value in self.found.values.items() if _count(value) > MOST_ELEMENTS]:
            self._refuse(f"it reads {text}, which is too large to be compared at every call")

    def _refuse(self, reason: str) -> None:
        self.found.refused = self.found.refused or reason

    def _class(self, kind: type, text: str) -> None:
        for place, base in enumerate(kind.__mro__):
            if not is_installed_module(base.__module__):
                self.classes.setdefault(base, f"{text}.__mro__[{place}]" if place else text)

    # -- code -------------------------------------------------------------------------------------

    def _function(self, text: str, function: FunctionType) -> None:
        home = function.__globals__.get("__name__", "")
        # The constructor of a NamedTuple, which Python writes, has globals that are no module's.
        made = home.startswith("namedtuple_") and home not in sys.modules
        if function.__code__ in self.seen_code or made or is_installed_module(home):
            return
        # What an object keeps comes with its globals, which need not stand in the emitted file.
        kept_globals = f"{text}.__globals__" if text.startswith("_model.") else ""
        root = kept_globals or ("" if home == self.own else f"sys.modules[{home!r}].")
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        closed = {name: f"{text}.__closure__[{i}].cell_contents" for i, name in enumerate(cells)}
        for kept in ("__defaults__", "__kwdefaults__"):
            given = getattr(function, kept) or ()
            if any(value is not None and not isinstance(value, bool)
                   for value in (given.values() if isinstance(given, dict) else given)):
                self._note(f"{text}.{kept}", given)
        self._code(function.__code__, function.__globals__, root, cells, closed)

    def _code(self, code: CodeType, space: Mapping[str, Any], root: str, cells: Mapping[str, CellType],
              closed: Mapping[str, str]) -> None:
        """Note what ``code`` and the functions in it read. space: the globals; closed: the texts of the cells."""
        if code in self.seen_code:
            return
        self.seen_code.add(code)
        self.names.update(code.co_names)
        instructions = _instructions(code)
        for place, instruction in enumerate(instructions):
            name = instruction.argval
            if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                self._refuse(f"it changes the global {name}")
            elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in space:
                own = f"{root}[{name!r}]" if root.endswith("__globals__") else f"{root}{name}"
                text = "type(_model)" if space[name] is type(self.model) else own
                self._read(text, name, space[name], _attributes(instructions, place + 1), instructions, place)
            elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in _BUILTINS:
                self._refuse(f"it calls {name}(), and nobody knows what that reads")
            elif name in cells and instruction.opname.endswith("DEREF"):
                if instruction.opname.startswith("STORE"):
                    self._refuse(f"it changes {name}, which it closed over")
                elif (value := _contents(cells[name])) is not cells[name]:
                    self._read(closed[name], name, value, _attributes(instructions, place + 1), instructions, place)
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                self._code(inner, space, root, cells, closed)

    def _read(self, text: str, name: str, value: Any, chain: list[str], code: Sequence[dis.Instruction], place: int
              ) -> None:
        """Note what is reached from the value that ``code`` loads at ``place`` by the attributes ``chain``."""
        within = ""  # the installed module that the value is of
        while True:
            if value is os.environ or value is os.getenv:
                self._environment(code, place)
                return
            if value is sys.modules:
                self._refuse("it looks for modules by their names")
                return
            if isinstance(value, ModuleType):
                if not chain or not hasattr(value, chain[0]):
                    return
                if is_installed_module(value.__name__):
                    within = value.__name__
                value, name, text = getattr(value, chain[0]), chain[0], f"{text}.{chain[0]}"
                chain = chain[1:]
                continue
            if asked := _elsewhere(value, chain):
                self._refuse(f"it asks for {asked}, which is not the same at every call")
                return
            if within:
                return
            kind = value if isinstance(value, type) else type(value)
            is_users = _is_users(kind)
            if is_users and chain and not isinstance(value, FunctionType):
                homes = [vars(o) for o in (value, *kind.__mro__) if hasattr(o, "__dict__")]
                kept = next((home[chain[0]] for home in homes if chain[0] in home), _MISSING)
                if kept is not _MISSING and not callable(kept) and not hasattr(kept, "__get__"):
                    value, name, text, chain = kept, chain[0], f"{text}.{chain[0]}", chain[1:]
                    continue
            break
        if isinstance(value, type):
            if is_users and not issubclass(value, nn.Module):
                self._class(value, text)
                self.made.add(value)
            return
        home = getattr(value, "__module__", None) or kind.__module__
        if hasattr(value, "cache_info"):
            self._look_into(text, value)
        elif isinstance(value, MethodType) or not is_installed_module(home) or getattr(value, "__name__", "") != name:
            self._note(text, value)  # all but what an installed package calls so

    def _environment(self, code: Sequence[dis.Instruction], place: int) -> None:
        """Note the variable whose name stands beside the environment, or all that may be names."""
        after = next((i for i in code[place + 1:] if not i.opname.startswith(("LOAD_ATTR", "LOAD_METHOD"))), None)
        beside = [i.argval for i in (after, code[place - 1]) if i is not None and i.opname == "LOAD_CONST"]
        words = beside or [i.argval for i in code if i.opname == "LOAD_CONST"]
        names = [w for w in dict.fromkeys(words) if isinstance(w, str) and re.fullmatch(r"[A-Za-z_]\w*", w)]
        if not names:
            self._refuse("it reads the environment by a name that only a call knows")
        for name in names[:1] if beside else names:
            self.found.values[f"sys.intern(repr(os.environ.get({name!r})))"] = repr(os.environ.get(name))

    # -- values -----------------------------------------------------------------------------------

    def _note(self, text: str, value: Any) -> None:
        """Note a value that Python code reads, and what can be reached from it."""
        if isinstance(value, torch.Tensor):
            self.found.tensors.setdefault(text, value)
            return
        if id(value) in self.parts:  # a function of the model reaches a part of it, of which modes know
            return
        if isinstance(value, nn.Module):  # a layer that is no part of the model
            for path, module in value.named_modules():
                self._class(type(module), f"type({text}.get_submodule({path!r}))")
                for key, kept in vars(module).items():
                    if key == "training" or (key not in _INTERNAL and isinstance(kept, _PLAIN)):
                        where = f"{text}.get_submodule({path!r})" if path else text
                        self.found.values[f"{where}.{key}"] = kept
        elif text not in self.found.values:
            # A method of the model has another name in what is emitted. An object of an installed package (a logger,
            # say) is not looked into.
            is_method = isinstance(value, FunctionType) and value.__qualname__.startswith(
                f"{type(self.model).__qualname__}.")
            is_foreign = isinstance(getattr(value, "__dict__", None), dict) and not _is_users(type(value)) and \
                not isinstance(value, (FunctionType, functools.partial, type))
            if not is_method:
                (self.found.foreign if is_foreign else self.found.values)[text] = value
            self._look_into(text, value)

    def _look_into(self, text: str, value: Any, depth: int = 0) -> None:
        """Find functions, objects and tensors in a value."""
        if isinstance(value, torch.Tensor):
            self.found.tensors.setdefault(text, value)
            return
        if id(value) in self.seen_objects or depth > _DEPTH or isinstance(value, (nn.Module, *_PLAIN)):
            return
        self.seen_objects[id(value)] = value
        # What modules keep is state of the model.
        is_own = text.startswith("_model") and not any(part in text for part in (".__closure__", ".__globals__"))
        if isinstance(value, (dict, list, set)) and not is_own:
            self.found.containers[text] = value
        if isinstance(value, FunctionType):
            self._function(text, value)
        elif hasattr(value, "cache_info") and hasattr(value, "__wrapped__"):
            self.found.caches.append(value)
            self._look_into(f"{text}.__wrapped__", value.__wrapped__, depth + 1)
        elif isinstance(value, MethodType):
            self.names.add(value.__name__)
            self._look_into(f"{text}.__self__", value.__self__, depth + 1)
        elif isinstance(value, functools.partial):
            self._look_into(f"{text}.func", value.func, depth + 1)
            self._look_into(f"{text}.args", value.args, depth + 1)
            self._look_into(f"{text}.keywords", value.keywords, depth + 1)
        elif isinstance(value, dict):
            for key, item in value.items():
                if isinstance(key, (str, int)):
                    self._look_into(f"{text}[{key!r}]", item, depth + 1)
        elif isinstance(value, (list, tuple)):
            for place, item in enumerate(value):
                self._look_into(f"{text}[{place}]", item, depth + 1)
        elif not isinstance(value, type) and isinstance(getattr(value, "__dict__", None), dict) \
                and _is_users(type(value)):
            self._class(type(value), f"type({text})")
            if not is_own:
                self.found.containers[text] = vars(value)
            for key, item in vars(value).items():
                self._look_into(f"{text}.{key}", item, depth + 1)


@functools.lru_cache(maxsize=8192)
def _instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """The instructions of code: each mode of a model, and each trial of it, asks for those of the same functions."""
    return tuple(dis.get_instructions(code))


_MISSING = object()


def _contents(cell: CellType) -> Any:
    """What a cell holds; the cell itself while it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _attributes(code: Sequence[dis.Instruction], place: int) -> list[str]:
    """The attributes that instructions from ``place`` on ask for in a row: of ``a.b.c``, after a."""
    found = []
    for instruction in itertools.islice(code, place, None):
        if instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        found.append(instruction.argval)
    return found


def _functions(kind: type) -> Iterator[tuple[str, FunctionType]]:
    """The functions that a class itself defines, those of its properties included."""
    for name, value in vars(kind).items():
        value = getattr(value, "__func__", value)
        value = getattr(value, "fget", value)
        if isinstance(value, FunctionType):
            yield name, value


def _elsewhere(value: Any, chain: list[str]) -> str:
    """What a function, or the method ``chain`` of a class, asks of the machine it runs on; else ""."""
    for attribute in chain if isinstance(value, type) else ():
        value = getattr(value, attribute, None)
    if not callable(value) or isinstance(value, nn.Module):
        return ""
    owner = getattr(value, "__self__", None)
    of = owner if isinstance(owner, type) else type(owner)
    home = getattr(value, "__module__", None) or getattr(owner, "__name__", None) or of.__module__
    name = f"{home}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    is_elsewhere = bool({home, of.__module__} & _ELSEWHERE) and name not in _PURE
    return name if name in _READS or is_elsewhere else ""


def _count(value: Any) -> int:
    """How many plain values a container holds, and what is in it."""
    if isinstance(value, dict):
        return sum(map(_count, value.values())) + len(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return sum(map(_count, value)) + len(value)
    if type(value).__module__ == "numpy" and hasattr(value, "size"):
        return int(value.size)
    return 1
