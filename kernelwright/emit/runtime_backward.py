"""Text of emitted files: the backward of a call by kernels, and whose call it is where none find gradients.

Such a call runs kernels, and its backward the original computation: a step then computes its forward twice. So calls
that record gradients are the original computation's once a backward has shown what they are for. Who records gradients
and asks for none, as an evaluation without ``torch.no_grad()`` does, keeps the kernels.

Conditions (:mod:`kernelwright.emit.assembly`) are those of :data:`kernelwright.emit.facts.OPTIONAL`, and SAVING: calls
hand a backward what they have computed.
"""

BACKWARD = '''\
def _kernelwright_readable(value, order):
    """A tensor as kernels read it: contiguous and aligned, with its axes in an order (None: its own)."""
    value = value.detach()
    if order is not None:
        value = value.permute(order)
    if value.is_contiguous() and not value.is_neg() and not value.data_ptr() & 15:
        return value
    return torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value)


def _kernelwright_backward_of(ctx):
    """The program that finds the gradients of a call, and the names of its tensors; no program where none finds all
    that the call needs."""
    backward, names = ctx.facts["backward"], (*ctx.places, *ctx.state)
    wanted = [name for name, n in zip(names, ctx.needs_input_grad[5:]) if n]
    if backward is None or any([name in ctx.binding.buffers or name in backward["frozen"] for name in wanted]):
        return None, names
    everything = backward["programs"][-1]["gives"]
    return next(p for p in backward["programs"]
                if all([name in p["gives"] or name not in everything for name in wanted])), names


def _kernelwright_gradients(ctx, gradients):
    """The gradients of a call by kernels, one for each of its tensors; None where the original computation is to find
    them: where they get a graph of their own, or gradients of some results are missing, or of another kind."""
    (program, names), tensors = _kernelwright_backward_of(ctx), ctx.saved_tensors
    if program is None or torch.is_grad_enabled() or torch.is_anomaly_enabled() or _kernelwright_intercepted():
        return None
    given = [gradients[place] for place in ctx.facts["backward"]["of"]]
    if any([type(g) is not torch.Tensor or g.layout is not torch.strided or g.device != tensors[0].device
            for g in given]) or sum([g is not None for g in gradients]) != len(given):
        return None
    saved = dict(zip(names, tensors))
    values = [*tensors[:len(ctx.places)], *given, *[saved[name] for name in program["tensors"]]]
    if SAVING:
        if program.get("saved"):
            if len(tensors) == len(names):  # the call ran as one that nothing was to be kept of
                return None
            values[len(ctx.places) + len(given):len(ctx.places) + len(given)] = tensors[len(names):]
    orders = program["orders"] or (None,) * len(values)
    try:
        values = list(map(_kernelwright_readable, values, orders))
    except RuntimeError:  # a batch of gradients in the place of one
        return None
    found = _kernelwright_run(program, values)
    gives = program["gives"]
    return [found[gives[name]] if n and name in gives else None for name, n in zip(names, ctx.needs_input_grad[5:])]
'''

STEPS = '''\
# By model the modes (whether of training) in which a backward computed the forward once more; None among them where
# all calls are to run kernels, as who judges these wants it.
_kernelwright_steps = weakref.WeakKeyDictionary()
# What saved tensors go through; torch.utils.checkpoint wants a call in a backward to save what the first one did.
_kernelwright_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_is_tracing: True)


def _kernelwright_twice(binding, facts):
    """Whether a call that records gradients is better the original computation's: no kernels find them in this mode, so
    that a backward computes the forward once more, and there was a backward of such a call, or hooks wait for one."""
    if BACKWARD:
        if facts["backward"] is not None:
            return False
    return None not in binding.steps and (facts["training"] in binding.steps or _kernelwright_hooks(True) is not None)
'''
