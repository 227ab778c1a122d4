"""Text of emitted files for a GPU whose calls launch their kernels before they ask whether the model is as it was.

So the device works while the processor asks. Conditions (:mod:`kernelwright.emit.assembly`) are those of
:data:`kernelwright.emit.facts.OPTIONAL`; ORDERS: some tensors have their axes in another order in memory; VALUES: some
arguments are no tensors.
"""

AHEAD = '''\
def _kernelwright_ahead(model, facts, inputs):
    """The result, as a tuple of one, of a call whose tensors are of the kinds of those of the call before; or None.
    Whether all else is as it was is asked once the kernels are launched. Where it is not, what they computed is
    dropped: they change nothing, and read tensors that are known to fit."""
    binding = _kernelwright_bindings.get(model, {}).get(id(facts))
    recording = torch.is_grad_enabled()
    if binding is None or binding.trusted is not recording or not facts["ahead"] or _kernelwright_intercepted():
        return None
    binding.trusted = None  # a model that is another is not tried again and again
    try:
        given = (*[value for value in inputs if isinstance(value, torch.Tensor)],
                 *map(operator.getitem, binding.homes, binding.keys))
        if binding.same is None or not binding.same.check(*given):
            return None
        values = list(given)
        if ORDERS:
            for place, order in binding.orders:
                values[place] = values[place].permute(order)
        if any([address & 15 or not address for address in map(torch.Tensor.data_ptr, values)]):
            return None
        with torch.no_grad():
            if GRAPHS:
                computed = _kernelwright_recorded(binding, facts, values, 7)
            else:
                computed = _kernelwright_run(facts, values)
    except Exception:  # found again, and said, where all is asked first
        return None
    if not binding.holds(model) or torch.get_default_dtype() is not facts["default_dtype"]:
        return None
    if VALUES:
        if any([len(expected) < 3 and (type(value) is not type(expected[1]) or repr(value) != repr(expected[1]))
                for expected, value in zip(facts["inputs"], inputs)]):
            return None
    if recording and any([home[key].requires_grad for home, key in binding.parameters.values()]):
        return None
    try:
        if RESULTS:
            found = _kernelwright_returned(facts, computed, given)
        else:
            found = computed[0]
    except Exception:  # as above
        return None
    binding.trusted = recording
    return (found,)
'''
