"""Text of emitted files for calls that another compiler traces: torch.compile gets the kernels as one operator.

The original computation is traced beside it, so that all that it reads of the model and the call is compared when the
compiled call runs again; what it would compute is left out by the compiler, as nobody reads it. Such calls have no
check of ours but that of the tensors, and of the model's floats, which the compiler may leave open. Calls that record
gradients are the original computation's: the compiler then differentiates it, and needs its values.

Conditions (:mod:`kernelwright.emit.assembly`) are those of :data:`kernelwright.emit.facts.OPTIONAL`, ORDERS and TYPED.
"""

from __future__ import annotations

#: What the class has of it: a method, as TorchDynamo then calls it with the model itself, of which it keeps nothing.
METHOD = '''\
def _kernelwright_traced(self, count, names):
    """What serves a call of so many arguments, and these by keyword, while torch.compile traces it."""
    return _kernelwright_serving(self, count, names)

def _kernelwright_misfits(self, thing, problem):
    """Say what does not fit, while torch.compile traces a call."""
    _kernelwright_warn(self, _KernelwrightMisfit(thing, problem))

# TorchDynamo calls these, and traces what follows from what they return.
_kernelwright_traced._dynamo_marked_constant = _kernelwright_misfits._dynamo_marked_constant = True
'''

COMPILE = '''\
_kernelwright_operators = {}  # the facts of a mode by the name of its operator


def _kernelwright_operator(facts):
    """The name of the operator that runs a mode's program, made when it is first asked for: a list of the tensors, as
    the caller has them, to a list of the computed results."""
    name = _KERNELWRIGHT_OPERATORS + facts["run"].__name__.removeprefix("_kernelwright")
    if name in _kernelwright_operators:
        return name
    checks = [(name, *kind) for name, *kind in facts["inputs"] if len(kind) > 1]
    checks += [(name, *kind) for name, kind in facts["tensors"].items()]

    def program(values):
        _kernelwright_check(values, checks)
        taken, results = {value.untyped_storage().data_ptr() for value in values}, []
        with torch.no_grad():
            given = []
            for value, check in zip(values, checks):
                if ORDERS:
                    if len(check) > 3:
                        value = value.permute(check[3])
                if not value.is_contiguous() or value.is_neg() or value.data_ptr() & 15 or not value.data_ptr():
                    value = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value)
                given.append(value)
            for value, (shape, strides, dtype) in zip(_kernelwright_run(facts, given), facts["compiled"]):
                value = _kernelwright_laid(value, strides)
                if value.untyped_storage().data_ptr() in taken:  # an operator's results have memory of their own
                    value = torch.empty_strided(shape, strides, dtype=dtype, device=value.device).copy_(value)
                taken.add(value.untyped_storage().data_ptr())
                results.append(value)
        return results

    def described(values):
        return [torch.empty_strided(shape, strides, dtype=dtype, device=values[0].device)
                for shape, strides, dtype in facts["compiled"]]

    operator = torch.library.custom_op(f"kernelwright::{name}", program, mutates_args=(),
                                       schema="(Tensor[] values) -> Tensor[]")
    operator.register_fake(described)
    _kernelwright_operators[name] = facts
    return name


def _kernelwright_serving(model, count, names):
    """The name of the operator that serves a call of ``count`` arguments by position and ``names`` by keyword, and
    those names in the order of the arguments; then, a line each, path, name and value of each float of the model's. ""
    where the original computation serves it. Warns of what does not fit."""
    if TYPED:
        asked = model.training, torch.is_grad_enabled()
        facts = next((found for call, found in _KERNELWRIGHT_PLANS.items() if call[1:] == asked), None)
    else:
        facts = _KERNELWRIGHT_PLANS.get((model.training, torch.is_grad_enabled()))
    if OTHER_MODE:
        if type(facts) is tuple:
            others = tuple([path for path, m in model.named_modules() if m.training != model.training])
            facts = next((f for f in facts if f["other_mode"] == others), None)
    if facts is None:
        return ""
    try:
        if torch.compiler.is_exporting():
            raise _KernelwrightMisfit("torch.export", "exports it, so that the program needs nothing of this file")
        if COMPILED:
            served = facts["compiled"] is not None
        else:
            served = False
        if not served:
            raise _KernelwrightMisfit("torch.compile", "compiles it, as it can't call these kernels as one operator")
        if COMPILED:
            return _kernelwright_called(model, facts, count, names)
    except _KernelwrightMisfit as misfit:
        _kernelwright_warn(model, misfit)
    return ""


def _kernelwright_called(model, facts, count, names):
    """As above, for a mode whose kernels can be an operator. Raises _KernelwrightMisfit."""
    if _kernelwright_library is None:
        raise _KernelwrightMisfit("this machine", f"can't run the kernels: {_kernelwright_trouble}")
    intercepted = _kernelwright_intercepted()
    if intercepted:
        raise _KernelwrightMisfit("this call", f"is under {intercepted}")
    if torch.get_default_dtype() is not facts["default_dtype"]:
        raise _KernelwrightMisfit("this call", f"is under another default type than {facts['default_dtype']}")
    if torch._dynamo.config.allow_unspec_int_on_nn_module:
        raise _KernelwrightMisfit("torch.compile", "may leave whole numbers of the model open")
    if torch.is_grad_enabled() and any([p.requires_grad for p in model.parameters()]):
        raise _KernelwrightMisfit(*_kernelwright_recorded_call)
    binding = _KernelwrightBinding(model, facts)
    values = list(map(operator.getitem, binding.homes, binding.keys))
    _kernelwright_check(values, binding.checks[len(binding.checks) - len(values):])
    if NESTED:
        expected = len(facts["inputs"] if facts["nested"] is None else facts["nested"])
    else:
        expected = len(facts["inputs"])
    order = list(inspect.signature(model._original_forward).parameters)[count:expected]
    if count + len(names) != expected or set(order) != set(names):
        raise _KernelwrightMisfit("this call", "gives other arguments than the example")
    floats = [f"{path}\\t{key.removeprefix('class ')}\\t{value!r}" for path, found in facts["attributes"].items()
              for key, value in found.items() if type(value) is float and value - value == 0]
    return "\\n".join((" ".join((_kernelwright_operator(facts), *order)), *floats))


_kernelwright_recorded_call = (
    "torch.compile", "compiles it where gradients are recorded; under torch.no_grad() it calls the kernels")


def _kernelwright_unlike(facts, arguments):
    """What of the arguments of a traced call the kernels do not take, and why; None where all is well. What is compiled
    for changing sizes then is not for the kernels' own, which are asked for at each call. Sizes that the caller has
    declared to change, or that only a call knows, are not theirs."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    for expected, value in zip(facts["inputs"], arguments):
        if len(expected) == 2:
            kept = expected[1]
            alike = type(value) is type(kept) and (kept is None or guard_or_false(value == kept))
            if not alike or (isinstance(kept, float) and not kept):  # zeros have signs
                return expected[0], f"is not {kept!r}"
            continue
        name, shape, dtype = expected[:3]
        if not isinstance(value, torch.Tensor) or value.dtype != dtype or len(value.shape) != len(shape):
            return name, f"is no tensor of type {dtype} and shape {list(shape)}"
        for size, wanted in zip(value.shape, shape):
            if hasattr(value, "_dynamo_dynamic_indices") or not guard_or_false(size == wanted):
                return name, f"has a size that is not the one in {list(shape)}"
        if value.device.type != _KERNELWRIGHT_DEVICE or value.device.index not in _kernelwright_devices:
            return name, f"is on {value.device}, for which the kernels were not built"
        if torch.is_grad_enabled() and value.requires_grad:
            return _kernelwright_recorded_call
    return None


def _kernelwright_compiled(model, inputs, named):
    """The forward of ModelNew while another compiler traces it."""
    result = model._original_forward(*inputs, **named)
    serving = model._kernelwright_traced(len(inputs), tuple(named))
    if COMPILED:
        if serving:
            return _kernelwright_replaced(model, inputs, named, result, serving)
    return result


def _kernelwright_replaced(model, inputs, named, result, serving):
    """The result with what the kernels' operator gives for what the original computation does."""
    served, *floats = serving.split("\\n")
    for line in floats:
        path, key, text = line.split("\\t")
        if getattr(model.get_submodule(path), key) != float(text):
            return result
    name, *order = served.split(" ")
    facts = _kernelwright_operators[name]
    arguments = [*inputs, *[named[key] for key in order]]
    unlike = None
    if NESTED:
        if facts["nested"] is not None:
            try:
                arguments = list(_kernelwright_flatten(facts["nested"], arguments, {}).values())
            except _KernelwrightMisfit:
                unlike = "this call", "has arguments that are nested in another way"
    if unlike is None:
        unlike = _kernelwright_unlike(facts, arguments)
    if unlike is not None:
        model._kernelwright_misfits(*unlike)
        return result
    values = [value for value in arguments if isinstance(value, torch.Tensor)]
    for tensor in facts["tensors"]:
        path, _, key = tensor.rpartition(".")
        values.append(getattr(model.get_submodule(path), key))
    computed = getattr(torch.ops.kernelwright, name)(values)
    if RESULTS:
        parts = _kernelwright_flatten(facts["structure"], result, {})
        results, used = [], []
        for number, (place, blind) in enumerate(facts["results"]):
            value = parts[number]  # of the call's own tensors, or views of them
            if place < len(computed):
                value = computed[place].view_as(computed[place]) if place in used else computed[place]
                used.append(place)
            results.append(value)
        return _kernelwright_restore(facts["structure"], results)
    else:
        return computed[0]
'''
