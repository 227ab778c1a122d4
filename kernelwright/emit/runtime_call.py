"""Text of every emitted file: launch, and the forward of ModelNew; of some, classes in their results.

Conditions (:mod:`kernelwright.emit.assembly`) are those of :data:`kernelwright.emit.facts.OPTIONAL`, CUDA, and
TOGETHER: the blocks of some kernel all run at once; SIZED: the file serves calls of several sizes; TYPED: it
serves several floating-point types.
"""

PARTS = '''\
def _kernelwright_part(part, tensors):
    """Call a submodule that stays with PyTorch; its results must have the form that they had."""
    module, arguments, result, kinds = part
    positional, named = _kernelwright_restore(arguments, tensors)
    found = _kernelwright_flatten(result, module(*positional, **named), {})
    results = [found[number] for number in range(len(kinds))]
    if [(tuple(t.shape), t.dtype) for t in results] != list(kinds):
        raise _KernelwrightMisfit(f"a {type(module).__name__}", "gives tensors of other shapes or types")
    return results
'''

STRUCTURES = '''\
class _KernelwrightFixed:
    """In a structure: a value that is the same in every call."""

    def __init__(self, value):
        self.value = value

    def restore(self, parts):
        return self.value

    def flatten(self, value, parts):
        pass


class _KernelwrightDevice:
    """In a structure: the device of the tensors of its kind."""

    def __init__(self, kind):
        self.kind = kind

    def restore(self, parts):
        return next((t.device for t in parts if isinstance(t, torch.Tensor) and t.device.type == self.kind),
                    torch.device(self.kind))

    def flatten(self, value, parts):
        pass


class _KernelwrightForm:
    """In a structure: an object of a class, with its items as a list, tuple or dictionary (or None), and attributes."""

    def __init__(self, kind, items, attributes):
        self.kind, self.items, self.attributes = kind, items, attributes

    def restore(self, parts):
        """The object, made without its constructor."""
        kind, items = self.kind, _kernelwright_restore(self.items, parts)
        if items is None:
            made = object.__new__(kind)
        elif issubclass(kind, tuple):
            made = kind(items) if hasattr(kind, "n_sequence_fields") else tuple.__new__(kind, items)
        elif issubclass(kind, list):
            made = list.__new__(kind)
            list.extend(made, items)
        else:
            base = next(c for c in kind.__mro__ if c.__module__ in ("builtins", "collections"))
            made = base.__new__(kind)
            for key, part in items.items():
                base.__setitem__(made, key, part)
        for name, part in self.attributes.items():
            object.__setattr__(made, name, _kernelwright_restore(part, parts))
        return made

    def flatten(self, value, parts):
        own = {name: getattr(value, name) for name in self.attributes if hasattr(value, name)}
        more = getattr(value, "__dict__", {}).keys() - own.keys()
        if more or type(value).__qualname__ != self.kind.__qualname__:  # the class of the user's own file, maybe
            raise _KernelwrightMisfit("an argument", f"is not a {self.kind.__qualname__} as it was")
        if self.items is not None:
            _kernelwright_flatten(self.items, type(self.items)(value), parts)
        _kernelwright_flatten(self.attributes, own, parts)


def _kernelwright_class(module, name):
    """A class by its name in a module."""
    found = __import__(module, fromlist=["*"])
    for part in name.split("."):
        found = getattr(found, part)
    return found
'''

CALL = '''\
class _KernelwrightFailure(RuntimeError):
    """The kernels could not run."""


# How torch.utils.checkpoint ends a recomputation, where the last tensor is kept for the backward.
_kernelwright_stop = getattr(torch.utils.checkpoint, "_StopRecomputationError", _KernelwrightFailure)


def _kernelwright_exact(call):
    """A convolution in true float32, where cuDNN would round its operands to TF32, and not by atomic additions."""
    cudnn = torch.backends.cudnn
    with cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=True, allow_tf32=False):
        return call()


_kernelwright_profiled = getattr(torch.autograd, "_profiler_enabled", bool)  # whether torch.profiler runs


def _kernelwright_launch(launcher, stream, *tensors):
    """Call a launcher with the addresses of its tensors; failures raise and name the kernel. In a profile it stands
    with the names of its kernels."""
    if SIZED:
        values = [*map(torch.Tensor.data_ptr, tensors), *sizes]
        addresses = struct.pack(f"{len(values)}P", *values)
    else:
        addresses = struct.pack(f"{len(tensors)}P", *[t.data_ptr() for t in tensors])
    if _kernelwright_profiled():
        with torch.profiler.record_function(f"kernelwright: {', '.join(_KERNELWRIGHT_LAUNCHERS[launcher])}"):
            failure = getattr(_kernelwright_library, launcher)(addresses, stream)
    else:
        failure = getattr(_kernelwright_library, launcher)(addresses, stream)
    if failure:
        if TOGETHER:
            if b"too many blocks in cooperative launch" in failure:  # the device is smaller, or shared: nothing has run
                raise RuntimeError("the device does not run all blocks of a kernel at once")
        raise _KernelwrightFailure(f"kernelwright: {failure.decode(errors='replace')}")


# The current stream of a device, by its index; PyTorch's own function for it makes no object.
_kernelwright_stream = getattr(torch._C, "_cuda_getCurrentRawStream",
                               lambda index: torch.cuda.current_stream(index).cuda_stream)


def _kernelwright_run(facts, values):
    """Run the program of a mode on its tensors' device and stream; gradients must be off."""
    device = values[0].device
    if CUDA:
        if device.type == "cuda":
            if device.index != torch.cuda.current_device():
                with torch.cuda.device(device):
                    return _kernelwright_run(facts, values)
            if SIZED:
                return facts["run"](device, _kernelwright_stream(device.index), *values, *facts["sizes"])
            else:
                return facts["run"](device, _kernelwright_stream(device.index), *values)
    if SIZED:
        return facts["run"](device, None, *values, *facts["sizes"])
    else:
        return facts["run"](device, None, *values)


def _kernelwright_restore(structure, parts):
    """A nested value from its structure, in which numbers stand for the parts."""
    kind = type(structure)
    if kind is int:
        return parts[structure]
    if kind is dict:
        return {key: _kernelwright_restore(part, parts) for key, part in structure.items()}
    if kind in (tuple, list):
        return kind(_kernelwright_restore(part, parts) for part in structure)
    return structure.restore(parts) if hasattr(structure, "restore") else structure


def _kernelwright_flatten(structure, value, parts):
    """Put the parts of a nested value, by their numbers in its structure, into a dictionary."""
    if type(structure) is int:
        parts[structure] = value
    elif hasattr(structure, "flatten"):
        structure.flatten(value, parts)
    elif type(structure) in (dict, list, tuple):
        if type(value) is not type(structure) or len(value) != len(structure):
            raise _KernelwrightMisfit("an argument", "is nested in another way")
        keys = structure if isinstance(structure, dict) else range(len(structure))
        for key in keys:
            if isinstance(structure, dict) and key not in value:
                raise _KernelwrightMisfit("an argument", "has other keys")
            _kernelwright_flatten(structure[key], value[key], parts)
    return parts


def _kernelwright_laid(value, strides):
    """A result in memory as eager lays it out."""
    if all([a == b or size < 2 for a, b, size in zip(value.stride(), strides, value.shape)]) or not value.numel():
        return value
    wide = value  # what eager expands is stored once
    for axis, stride in enumerate(strides):
        value = value.narrow(axis, 0, 1) if not stride else value
    laid = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return laid.copy_(value).expand(wide.shape)


def _kernelwright_returned(facts, computed, tensors):
    """The results of a call, each a tensor of its own where eager's is, without a gradient where eager's has none."""
    parts = computed if facts["given"] is None else (*computed, *facts["given"](*tensors))
    if facts["structure"] == 0:
        return parts[0]
    results, used = [], set()
    for place, blind in facts["results"]:
        value = parts[place]
        if blind is None and value.requires_grad and value.grad_fn is not None:
            value = value.detach()
        elif place in used:
            value = value.view_as(value)
        used.add(place)
        results.append(value)
    return _kernelwright_restore(facts["structure"], results)


_kernelwright_signatures = weakref.WeakKeyDictionary()


def _kernelwright_signature(forward):
    """The signature of a method, of what decorators wrap in it, too; asked for once."""
    function = getattr(forward, "__func__", forward)
    if function not in _kernelwright_signatures:
        _kernelwright_signatures[function] = inspect.signature(forward)
    return _kernelwright_signatures[function]


def _kernelwright_is_default(value, default):
    """Whether an argument is as if it were left out."""
    return value is default or (type(value) is type(default) and type(value) in (bool, int, float, str)
                                and repr(value) == repr(default))


def _kernelwright_arguments(model, inputs, named, count, keywords):
    """The arguments of a call: ``count`` by position, then those by keyword only; None where it is no call.

    Defaults beyond these are left out, as they are in what the kernels were made of.
    """
    signature = _kernelwright_signature(model._original_forward)
    try:
        bound = signature.bind(*inputs, **named)
    except TypeError:
        return None
    bound.apply_defaults()
    inputs, named = list(bound.args), bound.kwargs
    defaults = [p.default for p in signature.parameters.values()]
    while len(inputs) > count and len(inputs) <= len(defaults) and _kernelwright_is_default(
            inputs[-1], defaults[len(inputs) - 1]):
        inputs.pop()
    more = [name for name, value in named.items() if name not in keywords
            and (name not in signature.parameters
                 or not _kernelwright_is_default(value, signature.parameters[name].default))]
    beyond = list(signature.parameters)[count:len(inputs)] + more
    missing = [name for name in keywords if name not in named]
    if beyond:
        raise _KernelwrightMisfit("this call", f"gives {', '.join(beyond)}, which the example left out")
    if missing:
        raise _KernelwrightMisfit("this call", f"leaves out {', '.join(missing)}")
    if len(inputs) != count:
        raise _KernelwrightMisfit("this call", f"has {len(inputs)} arguments, not {count}")
    return inputs + [named[name] for name in keywords]


if TURNABLE:
    def _kernelwright_shows(facts, result):
        """Whether results of the original computation lie in another order than those of the kernels."""
        if ATTRIBUTES:
            if facts["left"]:
                return True
        if RESULTS:
            parts = _kernelwright_flatten(facts["structure"], result, {})
        else:
            parts = {0: result}
        lain = [(parts[number], strides) for number, strides in enumerate(facts["strides"]) if strides is not None]
        return any([step != wanted and size > 1 for part, strides in lain
                    for step, wanted, size in zip(part.stride(), strides, part.shape)])


def _kernelwright_call(model, inputs, named, plans):
    """The forward of ModelNew: kernels where they fit, the original computation elsewhere."""
    if torch.compiler.is_compiling():
        return _kernelwright_compiled(model, inputs, named)
    try:
        if TYPED:
            facts = plans.get((_kernelwright_dtype_of(model, inputs, named), model.training, torch.is_grad_enabled()))
        else:
            facts = plans.get((model.training, torch.is_grad_enabled()))
        if OTHER_MODE:
            if type(facts) is tuple:  # by the modules in the other mode
                others = tuple([path for path, m in model.named_modules() if m.training != model.training])
                facts = next((f for f in facts if f["other_mode"] == others), None)
        if facts is None:
            mode = f"{'training' if model.training else 'inference'} mode"
            _kernelwright_count(model, f"nothing pays in {mode}{' with gradients' * torch.is_grad_enabled()}")
            return model._original_forward(*inputs, **named)
        if NESTED:
            nested, keywords = facts["nested"], facts["keywords"]
            count = len(facts["inputs"] if nested is None else nested) - len(keywords)
        else:
            keywords, count = (), len(facts["inputs"])
        given = inputs
        if named or keywords or len(inputs) != count:
            given = _kernelwright_arguments(model, inputs, named, count, keywords)
        if given is None:
            return model._original_forward(*inputs, **named)  # raises
        if NESTED:
            if nested is not None:
                given = list(_kernelwright_flatten(nested, list(given), {}).values())
        if SIZED:
            facts = facts["by_sizes"].get("latest") or _kernelwright_sized(facts, _kernelwright_sizes_of(given))
        if AHEAD:
            ahead = _kernelwright_ahead(model, facts, given)
            if ahead is not None:
                return ahead[0]
        if not TURNABLE:
            binding, values, tensors = _kernelwright_fit(model, facts, given)
        else:
            binding, values, tensors, turned = _kernelwright_fit(model, facts, given)
        if SIZED:
            facts = binding.facts
        if TURNABLE:
            if turned not in binding.shows:
                _kernelwright_count(model, "strides of inputs are new, and it is seen what results make of them")
                result = model._original_forward(*inputs, **named)
                binding.shows[turned] = _kernelwright_shows(facts, result)
                return result
        differentiated = torch.is_grad_enabled() and (
            any([value.requires_grad for value in tensors])
            or any([home[key].requires_grad for home, key in binding.parameters.values()]))
        twice = differentiated and _kernelwright_twice(binding, facts)
        if differentiated and not twice and binding.twin is None:
            try:
                binding.twin = _kernelwright_twin(model, binding)
                if ATTRIBUTES:
                    vars(binding.twin)["_kernelwright_left"] = facts["left"]
            except Exception as error:
                raise _KernelwrightMisfit("the model", f"can't be copied for gradients ({error})") from None
    except _KernelwrightMisfit as misfit:
        reason = misfit
    else:
        if twice:
            _kernelwright_count(model, "no kernels find gradients here, and a step would compute its forward twice")
            return model._original_forward(*inputs, **named)
        if RANDOM:
            drawn = facts["random"]
            if BACKWARD:
                drawn = drawn and facts["backward"] is None  # else calls hand over what they have drawn
            if differentiated and drawn:
                _kernelwright_count(model, "gradients of random numbers are asked for")
                return model._original_forward(*inputs, **named)
        if differentiated and any([home[key].requires_grad for home, key in binding.kept]):
            _kernelwright_count(model, "gradients of tensors that are not the model's own are asked for")
            return model._original_forward(*inputs, **named)
        if ATTRIBUTES:
            if differentiated and (binding.attributes.containers
                                   or any([values[i].is_floating_point() for i in binding.written])):
                _kernelwright_count(model, "gradients of what attributes hold are asked for")
                return model._original_forward(*inputs, **named)
        if PARTS:
            if binding.parts:
                values = [*values, binding.parts]
        try:
            if differentiated:
                computed = _kernelwright_apply((binding, facts, given, values), *tensors[:len(binding.places)],
                                               *[home[key] for home, key in binding.state.values()])
            elif torch.is_grad_enabled():
                with torch.no_grad():
                    if GRAPHS:
                        computed = _kernelwright_recorded(binding, facts, values)
                    else:
                        computed = _kernelwright_run(facts, values)
            else:
                if GRAPHS:
                    computed = _kernelwright_recorded(binding, facts, values)
                else:
                    computed = _kernelwright_run(facts, values)
            if AHEAD:
                binding.trusted = None if differentiated else torch.is_grad_enabled()
            if RESULTS:
                result = _kernelwright_returned(facts, computed, tensors)
                if ATTRIBUTES:
                    if facts["left"]:
                        result, left = result
                        binding.attributes.assign(left, binding)
                return result
            else:
                return computed[0]
        except (_KernelwrightFailure, _kernelwright_stop):
            raise
        except Exception as error:  # a value that PyTorch refuses: the original computation says so in its own words
            reason = _KernelwrightMisfit("this call", f"is not for the kernels ({error})")
        result = model._original_forward(*inputs, **named)
        _kernelwright_warn(model, reason)
        return result
    _kernelwright_warn(model, reason)
    return model._original_forward(*inputs, **named)
'''
