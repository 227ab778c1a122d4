"""Text of every file: whether its kernels fit a call, and the tensors of the call as kernels read them.

A call is compared with the model's binding (:mod:`kernelwright.emit.runtime_binding`) and with what the kernels were
built for: what stands between the call and its tensors' memory, the default type, arguments that are no tensors, and
each tensor's type, shape, device, and place in memory. The latest call's tensors are remembered, so that calls of the
same kinds are compared by one function of PyTorch's. What does not fit is counted at each call, and said once.

Conditions (:mod:`kernelwright.emit.assembly`) are those of :data:`kernelwright.emit.facts.OPTIONAL`, and
KERNELS: the file has kernels, and not calls of PyTorch's alone; ORDERS: some tensors have their axes in another order
in memory; VALUES: some arguments are no tensors; SIZED: the file serves calls of several sizes; TYPED: it serves
several floating-point types.
"""

MISFITS = '''\
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
'''

GUARD = '''\
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
