"""Text of emitted files: calls that record gradients, their backward, by kernels or by the original computation, and
whose call it is where no kernels find gradients.

Such a call runs kernels, and its backward the original computation: a step then computes its forward twice. So calls
that record gradients are the original computation's once a backward has shown what they are for. Who records gradients
and asks for none, as an evaluation without ``torch.no_grad()`` does, keeps the kernels.

Conditions (:mod:`kernelwright.emit.assembly`) are those of :data:`kernelwright.emit.facts.OPTIONAL`, VALUES: some
arguments are no tensors, and SAVING: calls hand a backward what they have computed.
"""

FUNCTION = '''\
class _KernelwrightFunction(torch.autograd.Function):
    """Kernels forward; backward recomputes the original under autograd, with the tensors of the forward, unless kernels
    find the gradients: where none do in a mode, further calls that record gradients are the original's."""

    @staticmethod
    def forward(ctx, call, *tensors):
        # In ``tensors`` are the inputs, then the state of the binding. Buffers that the forward changes are kept as
        # they are now where anything depends on them: the recomputation must not see the updates.
        binding, facts, inputs, values = call
        ctx.binding, ctx.facts, ctx.device = binding, facts, values[0].device
        if VALUES:
            ctx.inputs = [None if isinstance(value, torch.Tensor) else value for value in inputs]
        if UPDATED:
            ctx.changed = {name: home[key].clone() for name, (home, key) in binding.buffers.items()
                           if name in facts["seen"]}
        if RANDOM:
            ctx.drawn = _kernelwright_random_states(ctx.device) if facts["random"] else None
        ctx.set_materialize_grads(False)
        if SAVING:
            kernels = _kernelwright_backward_of(binding, facts, ctx.needs_input_grad)
            if kernels is not None and kernels.saved:
                saving = facts["backward"]["saving"]
                made = _kernelwright_run(saving, values)
                outputs = made[:saving["results"]]
                ctx.save_for_backward(*tensors, *[made[place] for place in kernels.saved])
            else:
                outputs = _kernelwright_run(facts, values)
                ctx.save_for_backward(*tensors)
        else:
            ctx.save_for_backward(*tensors)
            outputs = _kernelwright_run(facts, values)
        if RESULTS:
            # Eager's result has a gradient where a tensor that it reaches requires one.
            blind = [facts["results"][number][1] for number in facts["computed"]]
            if any([b != () for b in blind]):
                needed = [name for name, n in zip((*binding.places, *binding.state), ctx.needs_input_grad[1:]) if n]
                ctx.mark_non_differentiable(*[o for o, b in zip(outputs, blind)
                                              if b is None or (b and all([name in b for name in needed]))])
        return outputs

    @staticmethod
    def backward(ctx, *gradients):
        if BACKWARD:
            found = _kernelwright_gradients(ctx, gradients)
            if found is not None:
                return (None, *found)
        ctx.binding.steps.add(ctx.facts["training"])
        again = torch.is_grad_enabled()  # create_graph: keep the graph to the tensors of the forward
        needed = ctx.needs_input_grad[1:]
        with torch.enable_grad(), torch.autocast(ctx.device.type, enabled=False):
            # Aliases: one tensor may be given twice, and each place has a gradient of its own.
            # Behind them stands what kernels of a backward read.
            given = [t if not n else t.view_as(t) if again else t.detach().requires_grad_()
                     for t, n in zip(ctx.saved_tensors, needed)]
            places = ctx.binding.places
            if VALUES:
                inputs = list(ctx.inputs)
                for place, value in zip(places, given):
                    inputs[place] = value
            else:
                inputs = given[:len(places)]
            if NESTED:
                if ctx.facts["nested"] is not None:
                    inputs = _kernelwright_restore(ctx.facts["nested"], inputs)
            state = dict(zip(ctx.binding.state, given[len(places):]))
            if UPDATED:
                # Nor may it repeat them: it updates copies.
                kept = {name: home[key] for name, (home, key) in ctx.binding.buffers.items()
                        if name in ctx.facts["updated"]}
                state.update({name: ctx.changed.get(name, buffer).clone() for name, buffer in kept.items()})
            named = {}
            if NESTED:
                count = len(inputs) - len(ctx.facts["keywords"])
                named = dict(zip(ctx.facts["keywords"], inputs[count:]))
                inputs = inputs[:count]
            wanted = [i for i, n in enumerate(needed) if n]

            def gradients_of(result):
                if RESULTS:
                    outputs = _kernelwright_flatten(ctx.facts["structure"], result, {})
                    pairs = [(outputs[i], g) for i, g in zip(ctx.facts["computed"], gradients)]
                else:
                    pairs = [(result, gradients[0])]
                pairs = [(output, g) for output, g in pairs if g is not None and output.requires_grad]
                return torch.autograd.grad([o for o, _ in pairs], [given[i] for i in wanted], [g for _, g in pairs],
                                           create_graph=again, allow_unused=True) if pairs and wanted else []

            # What a backward computes again (torch.utils.checkpoint) reads the copy's tensors, which it has until then,
            # or for good where its gradients have a graph.
            with ctx.binding.lock:
                twin = ctx.binding.twin
                if again:
                    twin = _kernelwright_filled(_kernelwright_twin(twin, ctx.binding), state)
                original = _KernelwrightOriginal(twin, gradients_of)
                if RANDOM:
                    original.drawn = ctx.drawn
                found = torch.func.functional_call(original, {f"model.{name}": t for name, t in state.items()},
                                                   tuple(inputs), named)
        result = [None] * len(given)
        for i, gradient in zip(wanted, found):
            result[i] = gradient
        return (None, *result)


# As a call under functorch's transforms is not for kernels, nothing of theirs is looked for in its arguments.
_kernelwright_apply = super(torch.autograd.Function, _KernelwrightFunction).apply
'''

BACKWARD = '''\
def _kernelwright_readable(value, order):
    """A tensor as kernels read it: contiguous and aligned, with its axes in an order (None: its own)."""
    value = value.detach()
    if order is not None:
        value = value.permute(order)
    if value.is_contiguous() and not value.is_neg() and not value.data_ptr() & 15:
        return value
    return torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value)


class _KernelwrightBackward:
    """How kernels find the gradients of calls in which the same of these tensors need some.

    reads: places of what the program reads among the call's tensors, what the call handed over (``count`` of both), and
    the gradients of its results. gives: for each of the call's tensors the place of its gradient among the program's
    results, or None. saved: places of what is handed over among the results of the program of calls.
    """

    def __init__(self, backward, program, binding, needed):
        names = (*binding.places, *binding.state)
        self.program, self.saved = program, program.get("saved", ())
        self.count = len(names) + len(self.saved)
        self.reads = [*range(len(binding.places)), *[self.count + place for place in backward["of"]],
                      *range(len(names), self.count), *map(names.index, program["tensors"])]
        self.gives = [program["gives"].get(name) if n else None for name, n in zip(names, needed)]


def _kernelwright_backward_of(binding, facts, needed):
    """How kernels find the gradients of a call, by ``needs_input_grad``; None where they do not find all."""
    if needed not in binding.backwards:
        backward, names, found = facts["backward"], (*binding.places, *binding.state), None
        wanted = [name for name, n in zip(names, needed[1:]) if n]
        if backward is not None and not any([name in binding.buffers or name in backward["frozen"] for name in wanted]):
            everything = backward["programs"][-1]["gives"]
            program = next(p for p in backward["programs"]
                           if all([name in p["gives"] or name not in everything for name in wanted]))
            found = _KernelwrightBackward(backward, program, binding, needed[1:])
        binding.backwards[needed] = found
    return binding.backwards[needed]


def _kernelwright_gradients(ctx, gradients):
    """The gradients of a call by kernels, one for each of its tensors; None where the original computation is to find
    them: where they get a graph of their own, or gradients of some results are missing, or of another kind."""
    kernels, tensors = _kernelwright_backward_of(ctx.binding, ctx.facts, ctx.needs_input_grad), ctx.saved_tensors
    if kernels is None or torch.is_grad_enabled() or torch.is_anomaly_enabled() or _kernelwright_intercepted():
        return None
    given = [gradients[place] for place in ctx.facts["backward"]["of"]]
    if any([type(g) is not torch.Tensor or g.layout is not torch.strided or g.device != ctx.device
            for g in given]) or sum([g is not None for g in gradients]) != len(given):
        return None
    if SAVING:
        if len(tensors) != kernels.count:  # the call ran as one that nothing was to be kept of
            return None
    program, all_of = kernels.program, (*tensors, *gradients)
    values = [all_of[place] for place in kernels.reads]
    try:
        if program["orders"] or not all(map(torch.Tensor.is_contiguous, values)) or any(
                map(torch.Tensor.is_neg, values)) or any([v.data_ptr() & 15 for v in values]):
            values = list(map(_kernelwright_readable, values, program["orders"] or (None,) * len(values)))
    except RuntimeError:  # a batch of gradients in the place of one
        return None
    found = _kernelwright_run(program, values)
    return [None if place is None else found[place] for place in kernels.gives]
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
