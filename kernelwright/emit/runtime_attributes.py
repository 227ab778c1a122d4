"""Text of emitted files about plain attributes: their forms, by which they are compared, and, of a forward that reads
tensors in some, as an earlier call left them, or leaves some there, where they are.

Conditions (:mod:`kernelwright.emit.assembly`) are OBJECTS: attributes beside numbers, texts, tuples of these.
"""

FORMS = '''\
def _kernelwright_name(value, own):
    """The full name of a class or function; without its module's where that is one of ``own``."""
    name = value.__qualname__.rpartition("<locals>.")[2]
    return name if value.__module__ in own else f"{value.__module__}.{name}"


def _kernelwright_form(value, own, depth=0):
    """An attribute's value as plain numbers, text and tuples, which compare across processes."""
    kind = type(value)
    if kind in (bool, int, float, str, bytes, type(None)):
        return value
    if isinstance(value, (tuple, list)):
        return (kind.__name__, *[_kernelwright_form(v, own, depth) for v in value])
    if OBJECTS:
        if isinstance(value, torch.Tensor):
            return ("tensor", str(value.dtype), str(tuple(value.shape)))  # its values are read at every call
        if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
            return ("array", str(value.dtype), str(value.shape), hashlib.sha256(value.tobytes()).hexdigest())
        if isinstance(value, torch.nn.Module) or depth > 3:
            return _kernelwright_name(kind, own)
        if isinstance(value, (set, frozenset)):
            return ("set", *sorted(repr(_kernelwright_form(v, own, depth + 1)) for v in value))
        if isinstance(value, dict):
            return ("dict", *[(_kernelwright_form(k, own, depth + 1), _kernelwright_form(v, own, depth + 1))
                              for k, v in value.items()])
        if isinstance(getattr(value, "__qualname__", None), str):
            return _kernelwright_name(value, own)
        if isinstance(value, functools.partial):
            return ("partial", *[_kernelwright_form(v, own, depth + 1)
                                 for v in (value.func, value.args, value.keywords)])
        if isinstance(getattr(value, "__dict__", None), dict):
            return (_kernelwright_name(kind, own), *[(k, _kernelwright_form(v, own, depth + 1))
                                                     for k, v in vars(value).items()])
        text = repr(value)
        return _kernelwright_name(kind, own) if " at 0x" in text else text
    else:
        return ("object", _kernelwright_name(kind, own))  # as no attribute was


# What nn.Module and torch.compile keep for themselves.
_kernelwright_internal = frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl", "_is_torch_compile"}


def _kernelwright_attributes(module, own):
    """The form of every attribute of a module and of every plain attribute of its own classes."""
    found = {key: _kernelwright_form(value, own) for key, value in vars(module).items()
             if key not in _kernelwright_internal and not isinstance(value, torch.Tensor)}
    for kind in type(module).__mro__:
        if kind.__module__ in own:
            found.update({f"class {key}": _kernelwright_form(value, own) for key, value in vars(kind).items()
                          if not key.startswith("__") and "class " + key not in found
                          and isinstance(value, (bool, int, float, str, tuple, list, dict))})
    return found
'''

ATTRIBUTES = '''\
class _KernelwrightAttributes:
    """Where the attributes are that a mode's calls read or assign.

    homes: (table, key) by name. containers: (name, table, key, structure) of those that hold containers; parts: the
    tensors in these, as they were found last. left: (table, key, whether its container is changed in place).
    Raises _KernelwrightMisfit.
    """

    def __init__(self, facts, modules):
        names = dict.fromkeys([name.partition("[")[0] for name in (*facts["carried"], *facts["left"])])
        self.homes = {name: (vars(modules[name.rpartition(".")[0]]), name.rpartition(".")[2]) for name in names}
        self.containers = [(name, *self.homes[name], part) for name, part in facts["containers"].items()]
        self.carried = list(facts["carried"])
        self.parts = [None] * len(self.carried)
        self.left = [(*self.homes[name.partition("[")[0]], "[" in name) for name in facts["left"]]
        for name in self.carried:
            table, key = self.homes[name.partition("[")[0]]
            self.must_hold(name, table.get(key))
        self.find()

    def must_hold(self, name, value):
        """Raise where an attribute does not hold anything."""
        if value is None or (type(value) in (list, dict) and not value):
            raise _KernelwrightMisfit(f"attribute {name}", "holds no tensor yet")

    def find(self):
        """Look for the tensors in containers."""
        for name, table, key, structure in self.containers:
            self.must_hold(name, table.get(key))
            try:
                found = _kernelwright_flatten(structure, table[key], {})
            except _KernelwrightMisfit:
                raise _KernelwrightMisfit(f"attribute {name}", "holds another container than it did") from None
            for place, value in found.items():
                self.parts[place] = value

    def home(self, name):
        """Where a tensor is found."""
        return (self.parts, self.carried.index(name)) if "[" in name else self.homes[name]

    def assign(self, values, binding):
        """Leave tensors in the attributes, and note that their tables are as they should be."""
        for (table, key, in_place), value in zip(self.left, values):
            if not in_place:
                table[key] = value
            elif type(value) is list:
                table[key][:] = value
            else:
                table[key].clear()
                table[key].update(value)
        if binding.versions is not None:
            for i in binding.assigned:
                binding.versions[i] = _kernelwright_version(binding.dicts[i])
'''
