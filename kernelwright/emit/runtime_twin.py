"""Text of emitted files: the copy of a model in which a backward runs the original computation again.

Conditions (:mod:`kernelwright.emit.assembly`) are those of :data:`kernelwright.emit.facts.OPTIONAL`, and FUNCTIONS:
modules keep functions that have something around them.
"""

TWIN = '''\
def _kernelwright_twin(model, binding):
    """A copy of a model without its tensors: a backward fills in what the forward saw.

    The model itself may change before the backward, and may be in use by another thread.
    """
    memo = {}
    if OUTSIDE:
        memo.update({id(value): value for value in binding.outside if isinstance(value, torch.Tensor)})
    for module in model.modules():
        memo.update({id(p): torch.nn.Parameter(torch.empty(0)) for p in module._parameters.values() if p is not None})
        memo.update({id(b): torch.empty(0) for b in module._buffers.values() if b is not None})
        memo.update({id(value): value for value in vars(module).values() if isinstance(value, torch.Tensor)})
        for key in _kernelwright_internal - {"_parameters", "_buffers", "_modules"}:
            value = vars(module).get(key)
            if isinstance(value, (dict, set)):  # hooks
                memo[id(value)] = type(value)()
    twin = copy.deepcopy(model, memo)
    if FUNCTIONS:
        for module, own in zip(model.modules(), twin.modules()):
            for name, value in vars(module).items():
                if name not in _kernelwright_internal and name in vars(own):
                    vars(own)[name] = _kernelwright_with_functions(value, vars(own)[name], memo)
    return twin


def _kernelwright_with_functions(value, copied, memo):
    """The copy of an attribute, in which functions, too, are of the copied model; ``copied`` where it has none."""
    if isinstance(value, types.FunctionType):
        return _kernelwright_function(value, memo)
    if type(value) in (list, tuple) and len(value) == len(copied):
        return type(value)([_kernelwright_with_functions(v, c, memo) for v, c in zip(value, copied)])
    if type(value) is dict and value.keys() == copied.keys():
        return {key: _kernelwright_with_functions(part, copied[key], memo) for key, part in value.items()}
    if type(value) is functools.partial:
        func, args, named = [_kernelwright_with_functions(v, c, memo) for v, c in zip(
            (value.func, value.args, value.keywords), (copied.func, copied.args, copied.keywords))]
        return functools.partial(func, *args, **named)
    return copied


def _kernelwright_function(function, memo):
    """A copy of a function of a model: what it has around it, or as defaults, as submodules, is the copied model's."""
    if id(function) in memo:
        return memo[id(function)]

    def around(value):
        if isinstance(value, (types.FunctionType, functools.partial, list, tuple, dict, torch.nn.Module,
                              types.MethodType)):
            return _kernelwright_with_functions(value, copy.deepcopy(value, memo), memo)
        return value

    cells = tuple([types.CellType() for _ in function.__closure__ or ()])
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells or None)
    memo[id(function)] = made
    made.__defaults__, made.__kwdefaults__ = around(function.__defaults__), around(function.__kwdefaults__)
    for cell, outer in zip(cells, function.__closure__ or ()):
        try:
            cell.cell_contents = around(outer.cell_contents)
        except ValueError:  # nothing is there yet
            continue
    return made


def _kernelwright_filled(twin, state):
    """The copy with tensors of its own; what one module shares with another is shared still."""
    shared = (*twin.named_parameters(remove_duplicate=False), *twin.named_buffers(remove_duplicate=False))
    held = {id(tensor): state[name] for name, tensor in shared if name in state}
    for module in twin.modules():
        for table in (module._parameters, module._buffers):
            table.update({key: held[id(t)] for key, t in table.items() if id(t) in held})
    return twin


def _kernelwright_random_states(device):
    """What a call on a device draws random numbers from: the state of the host's generator, and of the device's."""
    if CUDA:
        if device.type == "cuda":
            return torch.get_rng_state(), torch.cuda.get_rng_state(device), device
    return (torch.get_rng_state(),)


class _KernelwrightOriginal(torch.nn.Module):
    """What is made of the original computation's result, as a module of its own (for functional_call)."""

    def __init__(self, model, then):
        super().__init__()
        self.model, self.then = model, then

    if RANDOM:
        drawn = None  # the states of the generators at the call, where it drew

        def __call__(self, *inputs, **named):
            if self.drawn is None:
                return super().__call__(*inputs, **named)
            host, *device = self.drawn
            with torch.random.fork_rng(device[1:]):
                torch.set_rng_state(host)
                if CUDA:
                    if device:
                        torch.cuda.set_rng_state(*device)
                return super().__call__(*inputs, **named)

    def forward(self, *inputs, **named):
        if ATTRIBUTES:
            names = self.model._kernelwright_left  # what it leaves in these attributes is a result, too
            places = [name.partition("[")[0].rpartition(".") for name in names]
            places = [(vars(self.model.get_submodule(path)), key) for path, _, key in places]
            before = [table.get(key) for table, key in places]
            result = self.model._original_forward(*inputs, **named)
            left = [table[key] for table, key in places]
            for (table, key), value in zip(places, before):
                table[key] = value
            return self.then((result, left) if names else result)
        else:
            return self.then(self.model._original_forward(*inputs, **named))
'''
