"""Text of every file: the comparison of a model with what its kernels were built for, and how a call sees that it
still holds.

A model is compared once, as a whole: its submodules and their classes, attributes, hooks, and where its tensors are
kept (``_KernelwrightBinding``). At later calls this is looked at as quickly as can be (``holds``); what the call itself
brings is compared by :mod:`kernelwright.emit.runtime_guard`.

Conditions (:mod:`kernelwright.emit.assembly`) are those of :data:`kernelwright.emit.facts.OPTIONAL`, and
OBJECTS: the model has attributes other than numbers, texts, and tuples of these; ORDERS: some tensors have their axes
in another order in memory; SIZED: the file serves calls of several sizes.
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

BINDING = '''\
class _KernelwrightBinding:
    """A model that was compared with the facts of a mode, and how to see at later calls that it is the same.

    tables and snapshots: dictionaries (of attributes, submodules) and lists that must equal their copies. hooks: those
    that must be empty; to look at two for each takes longer, as a large model's are in no cache.
    numbers: (dictionary, key, value) of the own modules' attributes, and of_classes of their classes'; 2, 2.0 and True
    are equal, yet not the same. versions: of the tables that are dictionaries, when they were last compared. same: what
    tells whether tensors are of the kinds of those that were last found to fit and that kernels can read as they are.
    homes and keys: where the tensors of the facts are kept. Raises _KernelwrightMisfit.
    """

    def __init__(self, model, facts):
        own = _kernelwright_own | {type(model).__module__}
        if SIZED:
            self.facts = facts
        modules = dict(model.named_modules())
        classes = {path: _kernelwright_name(type(m), own) for path, m in modules.items() if path}
        if classes != facts["modules"]:
            changed = sorted(p for p in classes.keys() | facts["modules"].keys()
                             if classes.get(p) != facts["modules"].get(p))
            raise _KernelwrightMisfit("a submodule", f"is not what it was: {', '.join(changed)}")
        if PARTS:
            self.parts = [(modules[path], *call) for path, *call in facts["parts"]]
            free = [id(m) for module, *_ in self.parts for m in module.modules()]  # called themselves, as they are
        if ATTRIBUTES:
            self.attributes = _KernelwrightAttributes(facts, modules)
        if OBJECTS:
            self.special = []
        self.tables, self.hooks, self.numbers, self.sized, self.absent, self.of_classes = [], [], [], [], [], []
        for path, module in modules.items():
            training = facts["training"]
            if OTHER_MODE:
                training = training != (path in facts["other_mode"])
            if module.training != training:
                raise _KernelwrightMisfit("the model", "has modules in training and others in evaluation mode")
            if PARTS:
                if id(module) in free:
                    continue
            attributes, expected = _kernelwright_attributes(module, own), facts["attributes"].get(path, {})
            # Other versions of PyTorch may keep other attributes in its modules.
            both = attributes.keys() | expected.keys() if type(module).__module__ in own \\
                else attributes.keys() & expected.keys()
            if ATTRIBUTES:
                both = {key for key in both if f"{path}.{key}".lstrip(".") not in self.attributes.homes}
            for key in sorted(both):
                if repr(attributes.get(key, "missing")) != repr(expected.get(key, "missing")):
                    raise _KernelwrightMisfit(f"attribute {(path + '.' + key).lstrip('.')}",
                                              f"is not {expected.get(key, 'missing')!r}")
            hooks = [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks,
                     module._backward_pre_hooks]
            if path and any(hooks):
                raise _KernelwrightMisfit(f"module {path}", "has a hook")
            self.tables += [vars(module), *([module._modules] if module._modules else [])]
            self.sized += [] if module._modules else [module._modules]
            self.hooks += hooks if path else []
            if OBJECTS:
                for key, value in vars(module).items():
                    if key not in _kernelwright_internal:
                        if ATTRIBUTES:
                            if f"{path}.{key}".lstrip(".") in self.attributes.homes:
                                continue
                        self._watch(value)
            if type(module).__module__ in own:
                self.numbers += [(vars(module), key, value) for key, value in vars(module).items()
                                 if isinstance(value, (bool, int, float))]
                self.of_classes += [(vars(kind), key[6:], vars(kind)[key[6:]]) for kind in type(module).__mro__
                                    for key in expected if key.startswith("class ") and key[6:] in vars(kind)]
            self.sized += [module._parameters, module._buffers]
            self.absent += [(table, key) for table in (module._parameters, module._buffers)
                            for key, value in table.items() if value is None]
        if OUTSIDE:
            self._bind_outside(model, facts["outside"], own)
        self.snapshots = [copy.copy(table) for table in self.tables]
        self.versions, self.dicts = None, [table for table in self.tables if type(table) is dict]
        if ATTRIBUTES:
            # Attributes that calls change: in a table and in its copy.
            self.changing = [(table, key, kept) for table, key in self.attributes.homes.values()
                             for other, kept in zip(self.tables, self.snapshots) if other is table]
            self.assigned = [i for i, other in enumerate(self.dicts)
                             if any([other is table for table, *_ in self.attributes.left])]
        if OBJECTS:
            self.lists = [(table, kept) for table, kept in zip(self.tables, self.snapshots) if type(table) is not dict]
        self.sizes = list(map(len, self.sized))
        self._bind_tensors(model, modules, facts)
        self.checks = [(name, *kind) for name, *kind in facts["inputs"] if len(kind) > 1]
        if UPDATED:
            self.updated = [len(self.checks) + i for i, name in enumerate(facts["tensors"]) if name in facts["updated"]]
        self.checks += [(name, *kind) for name, kind in facts["tensors"].items()]
        if ATTRIBUTES:
            places = {name: place for place, (name, *_) in enumerate(self.checks)}
            self.carried = [(name, places[name]) for name in facts["carried"]]
            updated = ()
            if UPDATED:
                updated = facts["updated"]
            self.written = [place for name, place in self.carried if name in updated]
            self.fresh = [place for name, place in self.carried if name not in updated]
        if ORDERS:
            self.orders = [(i, check[3]) for i, check in enumerate(self.checks) if len(check) > 3]
        self.kinds = self.types = self.same = None  # of the tensors that were last found to fit
        if TURNABLE:
            # Whether results show the order of inputs' axes in memory, by strides: as calls of the original told.
            self.shows = {(): False}
            if GAPS:
                self.shows[facts["layout"]] = False
        self.steps = _kernelwright_steps.setdefault(model, set())
        if BACKWARD:
            self.backwards = {}  # how kernels find gradients, by which tensors need some
        self.twin, self.lock = None, threading.RLock()  # gradients of one call may need those of another
        if AHEAD:
            # In which gradient mode the next call is likely to find all as it was, and ask for no gradients.
            self.trusted = None
        if GRAPHS:
            self.graph = self.graph_of = None
            self.recordings, self.recording = 0, threading.Lock()

    if OUTSIDE:
        def _bind_outside(self, model, expected, own):
            """Compare what is read from outside of the model, but for tensors."""
            try:
                self.outside = _kernelwright_outside(model) if expected else ()
            except (NameError, LookupError, AttributeError, TypeError, ValueError) as error:
                raise _KernelwrightMisfit("what the forward reads from outside", f"is missing ({error})") from None
            for (text, form), value in zip(expected.items(), self.outside):
                if form is not None and repr(_kernelwright_form(value, own)) != repr(form):
                    raise _KernelwrightMisfit(text, f"is not {form!r}")
                if isinstance(value, dict):
                    self._keep_form(value)
                else:
                    self._watch(value)

    if OBJECTS:
        def _keep_form(self, value):
            """Keep the form of a value to compare it at each call: once, though many modules may have one object."""
            if not any(value is other for other, _ in self.special):
                self.special.append((value, repr(_kernelwright_form(value, ()))))

        def _watch(self, value):
            """Keep a copy of an attribute that can change without being replaced."""
            if isinstance(value, (torch.Tensor, torch.nn.Module, type, types.FunctionType, types.MethodType)):
                return
            if isinstance(value, (list, tuple)):
                if isinstance(value, list):
                    self.tables.append(value)
                if any(isinstance(v, torch.Tensor) for v in value):
                    self._keep_form(value)
                for part in value:
                    self._watch(part)
            elif isinstance(value, set):
                self.tables.append(value)
            elif type(value).__module__ == "numpy":
                self._keep_form(value)
            elif not isinstance(value, dict) and (isinstance(getattr(value, "__dict__", None), dict)
                                                  or hasattr(type(value), "__slots__")):
                self._keep_form(value)
            elif type(value) is dict and value and not any(isinstance(v, torch.Tensor) for v in value.values()):
                self._keep_form(value)

    def _bind_tensors(self, model, modules, facts):
        tables = {(path, key): table for path, m in modules.items()
                  for table in (vars(m), m._buffers, m._parameters) for key in table}

        if OUTSIDE:
            outside = list(facts["outside"])

        def home(name):
            if OUTSIDE:
                if name.startswith("outside "):
                    return self.outside, outside.index(name[8:])
            if ATTRIBUTES:
                if name in facts["carried"]:
                    return self.attributes.home(name)
            path, _, key = name.rpartition(".")
            if (path, key) not in tables:
                raise _KernelwrightMisfit(name, "is missing")
            return tables[path, key], key

        held = tuple(sorted(f"{path}.{key}".lstrip(".") for path, m in modules.items()
                            for table in (m._parameters, m._buffers) for key in table if table[key] is not None))
        if held != facts["held"]:
            changed = sorted(set(held) ^ set(facts["held"]))
            raise _KernelwrightMisfit("the model", f"has other parameters or buffers: {', '.join(changed)}")
        places = [home(name) for name in facts["tensors"]]
        self.homes, self.keys = [h for h, _ in places], [k for _, k in places]
        self.parameters = {name: home(name) for name, _ in model.named_parameters()}
        self.buffers = {name: home(name) for name, _ in model.named_buffers()}
        if ATTRIBUTES:
            self.buffers.update({name: home(name) for name in facts["carried"]})
        # Of the model's tensors those that a backward may need, behind a call's own; and where these are.
        self.state = {**self.parameters, **self.buffers}
        if UPDATED:
            self.state = {name: place for name, place in self.state.items() if name not in facts["updated"]}
        self.places = [i for i, kind in enumerate(facts["inputs"]) if len(kind) > 2]
        finds = (model.named_parameters, model.named_buffers)
        own = [name for find in finds for name, _ in find(remove_duplicate=False)]
        self.kept = [home(name) for name in facts["tensors"] if name not in own]
        if TIED:
            self.tied = [(home(name), home(group[0])) for group in facts["tied"] for name in group[1:]]
            for (table, key), (other, other_key) in self.tied:
                if table[key] is not other[other_key]:
                    raise _KernelwrightMisfit(f"{key} of a module", "is no longer another module's, too")

    def holds(self, model):
        """Whether the model, and what it reads from outside, is still as it was when it was bound."""
        try:
            if OUTSIDE:
                if not all(map(operator.is_, self.outside, _kernelwright_outside(model))):
                    return False
            if TIED:
                if not all([h[k] is other[key] for (h, k), (other, key) in self.tied]):
                    return False
            if OBJECTS:
                if not all([repr(_kernelwright_form(value, ())) == form for value, form in self.special]):
                    return False
            versions = list(map(_kernelwright_version, self.dicts)) if _kernelwright_version else None
            if versions is None or versions != self.versions:
                if ATTRIBUTES:
                    for table, key, kept in self.changing:
                        kept[key] = table.get(key)
                if self.tables != self.snapshots:
                    return False
                if not all([table[key] is value for table, key, value in self.numbers]):
                    return False
                self.versions = versions
            if OBJECTS:
                if not all([table == kept for table, kept in self.lists]):
                    return False
            return (not any(self.hooks) and list(map(len, self.sized)) == self.sizes
                    and all([table[key] is value for table, key, value in self.of_classes])
                    and all([table[key] is None for table, key in self.absent]))
        except (NameError, LookupError, AttributeError, RuntimeError, ValueError, TypeError):
            return False  # something is gone, or can't be compared: bind anew
'''
