"""Text of every file: whether the kernels fit a model and a call. Conditions are those of ``emit.facts.OPTIONAL``, and
KERNELS: any, not calls of PyTorch's alone; OBJECTS: attributes beside numbers, texts, tuples of these; ORDERS: other
orders of axes in memory; VALUES: arguments that are no tensors; SIZED: the file serves calls of several sizes."""

GUARD = '''\
_kernelwright_own = {__name__}  # modules whose classes are those of this file
_kernelwright_bindings = weakref.WeakKeyDictionary()
_kernelwright_warned = weakref.WeakKeyDictionary()
_kernelwright_fell_back = weakref.WeakKeyDictionary()


class _KernelwrightMisfit(Exception):
    """The kernels don't fit a call: what does not fit, and what is wrong with it."""


def _kernelwright_count(model, reason):
    """Count a call that runs the original computation."""
    counts = _kernelwright_fell_back.setdefault(model, {})
    counts[reason] = counts.get(reason, 0) + 1


def _kernelwright_warn(model, misfit):
    """Say, once per model and misfitting thing, that the original computation runs; count each time."""
    thing, problem = misfit.args
    _kernelwright_count(model, f"{thing} {problem}")
    warned = _kernelwright_warned.setdefault(model, set())
    if ATTRIBUTES:
        if problem == "holds no tensor yet":  # as a constructor leaves it
            return
    if thing not in warned:
        warned.add(thing)
        warnings.warn(f"ModelNew runs the original computation: {thing} {problem}", RuntimeWarning, stacklevel=6)


def _kernelwright_quick():
    """Two functions of torch.compile's own, which are private, where this PyTorch has them and they work: by them
    dictionaries tell by a version, and tensors by one call, that they are as they were. Elsewhere all is compared."""
    try:
        from torch._C._dynamo.guards import TensorGuards, dict_version

        module = torch.nn.Module()
        table = vars(module)
        seen = [dict_version(table)]
        for change in (lambda: setattr(module, "mine", 1), lambda: setattr(module, "mine", 1.0),
                       lambda: object.__setattr__(module, "mine", 2), lambda: table.update(training=False),
                       lambda: delattr(module, "mine"), lambda: table.pop("training")):
            change()
            seen.append(dict_version(table))
        like = torch.zeros(2, 3)
        others = (like.t(), like.double(), like[:, :2], torch.nn.Parameter(like), torch.zeros(3, 2), like.to_sparse())
        guard = TensorGuards(like, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        works = len(set(seen)) == len(seen) and dict_version(table) == seen[-1] and guard.check(torch.ones(2, 3)) \\
            and not any([guard.check(other) for other in others])
    except Exception:
        works = False
    return (dict_version, TensorGuards) if works else (None, None)


_kernelwright_version, _kernelwright_tensors = _kernelwright_quick()


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


_kernelwright_types = operator.attrgetter("dtype", "shape", "layout", "device")


def _kernelwright_check(values, checks, count=0):
    """Compare tensors one by one with (name, shape, dtype, maybe order). count: how many are the call's own. Raises
    _KernelwrightMisfit."""
    for place, (value, (name, shape, dtype, *_)) in enumerate(zip(values, checks)):
        if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
            raise _KernelwrightMisfit(name, f"is a {type(value).__name__}")
        if value.dtype is not dtype or value.shape != shape:
            problem = f"is {value.dtype} {list(value.shape)}, not {dtype} {list(shape)}"
            if not SIZED:
                if place < count and value.dtype is dtype and value.ndim == len(shape):
                    problem += "; kernelwright's option --dynamic writes a file for several sizes"
            if not TYPED:
                if value.is_floating_point() and dtype.is_floating_point and value.dtype is not dtype:
                    problem += "; kernelwright's option --dtypes writes a file for several types"
            raise _KernelwrightMisfit(name, problem)
        if value.layout is not torch.strided:
            raise _KernelwrightMisfit(name, "is sparse")
        if value.device != values[0].device:
            raise _KernelwrightMisfit("the model", "has tensors on several devices")
        if KERNELS:
            if value.device.type != _KERNELWRIGHT_DEVICE or value.device.index not in _kernelwright_devices:
                raise _KernelwrightMisfit(name, f"is on {value.device}, for which the kernels were not built")
        else:
            if value.device.type != _KERNELWRIGHT_DEVICE:
                raise _KernelwrightMisfit(name, f"is on {value.device}, not on {_KERNELWRIGHT_DEVICE}")


def _kernelwright_intercepted():
    """What stands between this call and the tensors' memory, or ""."""
    if torch.is_autocast_enabled(_KERNELWRIGHT_DEVICE):
        return "autocast"
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return "a transform such as vmap or forward-mode differentiation"
    if torch._C._len_torch_dispatch_stack() or torch._C._is_tracing():
        return "a tracer or a dispatch mode"
    if torch._C._len_torch_function_stack() and any(
            type(mode).__name__ != "DeviceContext" for mode in torch.overrides._get_current_function_mode_stack()):
        return "a torch function mode"
    return "a global module hook" if torch.nn.modules.module._has_any_global_hook() else ""


def _kernelwright_fit(model, facts, inputs):
    """The binding and the tensors (inputs, then the model's) of a call, as kernels read them and as the caller has
    them. Raises _KernelwrightMisfit."""
    if KERNELS:
        if _kernelwright_library is None:
            raise _KernelwrightMisfit("this machine", f"can't run the kernels: {_kernelwright_trouble}")
    intercepted = _kernelwright_intercepted()
    if intercepted:
        raise _KernelwrightMisfit("this call", f"is under {intercepted}")
    if torch.get_default_dtype() is not facts["default_dtype"]:
        raise _KernelwrightMisfit("this call", f"is under another default type than {facts['default_dtype']}")
    bindings = _kernelwright_bindings.get(model)
    if bindings is None:
        bindings = _kernelwright_bindings.setdefault(model, {})
    binding = bindings.get(id(facts))
    if binding is None or not binding.holds(model):
        binding = bindings[id(facts)] = _KernelwrightBinding(model, facts)
    if VALUES:
        values = []
        for expected, value in zip(facts["inputs"], inputs):
            if len(expected) > 2:
                values.append(value)
            elif type(value) is not type(expected[1]) or repr(value) != repr(expected[1]):
                raise _KernelwrightMisfit(expected[0], f"is {value!r}, not {expected[1]!r}")
    else:
        values = list(inputs)
    count = len(values)
    if ATTRIBUTES:
        binding.attributes.find()
    try:
        values += map(operator.getitem, binding.homes, binding.keys)
    except KeyError as missing:
        raise _KernelwrightMisfit(missing.args[0], "is missing") from None
    if ATTRIBUTES:
        for name, place in binding.carried:
            if values[place] is None:
                raise _KernelwrightMisfit(f"attribute {name}", "holds no tensor yet")
    same = binding.same is not None and binding.same.check(*values)
    if SIZED:
        if not same and (other := _kernelwright_resized(facts, inputs)) is not None:
            return _kernelwright_fit(model, other, inputs)
    if not same:
        kinds = list(map(type, values))
        if kinds != binding.kinds or list(map(_kernelwright_types, values)) != binding.types:
            _kernelwright_check(values, binding.checks, count)
            binding.kinds, binding.types = kinds, list(map(_kernelwright_types, values))
    if ASKED:
        if facts["asked"] is not None:
            tensors = values[:count], [home[key] for home, key in binding.parameters.values()]
            for some, asked in zip(tensors, facts["asked"]):
                if any([stands is not None and stands != (t.requires_grad, t.is_leaf)
                        for t, stands in zip(some, asked)]):
                    raise _KernelwrightMisfit("this call",
                                              "has other tensors that require gradients, which matters here")
    if DECIDED:
        for name, value in facts["decided"]:
            home, key = binding.buffers[name]
            if repr(home[key].item()) != repr(value):
                raise _KernelwrightMisfit(f"buffer {name}", f"is not {value!r}, by which the forward decides")
    if OF_INPUTS:
        for name, ask, value in facts["of_inputs"]:
            if ask(values[:count]) != value:
                raise _KernelwrightMisfit(name, f"is not {value!r}, by which the forward decides")
    if ATTRIBUTES:
        if not same:
            for name, place in binding.carried:
                strides = zip(values[place].stride(), facts["carried"][name], values[place].shape)
                if any([found != kept and size > 1 for found, kept, size in strides]):
                    raise _KernelwrightMisfit(f"attribute {name}", "has other strides than a call leaves")
    given = tuple(values)
    if ORDERS:
        for place, order in binding.orders:
            values[place] = values[place].permute(order)
    addresses = list(map(torch.Tensor.data_ptr, values))
    readable = same or (all(map(torch.Tensor.is_contiguous, values)) and not any(map(torch.Tensor.is_neg, values)))
    if not same and readable and _kernelwright_tensors is not None:
        binding.same = _kernelwright_tensors(*given, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    if TURNABLE:
        turned = ()
    if not readable or any([address & 15 or not address for address in addresses]):
        for place, (value, (name, *kind)) in enumerate(zip(values, binding.checks)):
            somewhere = bool(value.data_ptr()) or value.numel() == 0
            if value.is_contiguous() and not value.is_neg() and not value.data_ptr() & 15 and somewhere:
                continue
            is_read_alone = place < count and somewhere
            if ATTRIBUTES:
                is_read_alone = is_read_alone or (place in binding.fresh and somewhere)
            if RETURNED:
                is_read_alone = is_read_alone and name not in facts["returned"]
            if not is_read_alone:
                problem = "is not contiguous and aligned to 16 bytes"
                if ORDERS:
                    if len(kind) > 2:
                        problem = f"is not aligned to 16 bytes, with the axes {kind[2]} in memory"
                raise _KernelwrightMisfit(name, problem)
            if TURNABLE:
                steps = [step for step, size in zip(value.stride(), value.shape) if size > 1 and step]
                if place < count and steps != sorted(steps, reverse=True):
                    turned = (*turned, (name, value.stride()))
            # An input of another layout is copied: one pass over it, where the original makes many.
            values[place] = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value.detach())
            addresses[place] = values[place].data_ptr()
    if UPDATED:
        if any([addresses.count(addresses[i]) > 1 for i in binding.updated]):
            raise _KernelwrightMisfit("a buffer that is updated", "shares its memory with another tensor")
    if TURNABLE:
        if binding.shows.get(turned):
            raise _KernelwrightMisfit(turned[0][0], "has its axes in another order in memory, which the result shows")
        return binding, values, given, turned
    else:
        return binding, values, given
'''
