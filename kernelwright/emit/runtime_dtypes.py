"""Text of emitted files with kernels for several floating-point types: which of them a call is for.

The condition TYPED (:mod:`kernelwright.emit.assembly`) holds in such files.
"""

from __future__ import annotations

DTYPES = '''\
def _kernelwright_dtype(values):
    """The type of the first floating-point tensor among values and what stands in them; None without one."""
    for value in values:
        found = None
        if isinstance(value, torch.Tensor):
            found = value.dtype if value.is_floating_point() else None
        elif isinstance(value, (list, tuple)):
            found = _kernelwright_dtype(value)
        elif isinstance(value, dict):
            found = _kernelwright_dtype(value.values())
        if found is not None:
            return found
    return None


def _kernelwright_dtype_of_model(model):
    """The type of the first floating-point parameter or buffer; None without one."""
    for module in model.modules():  # those of the model itself are there at once, as model.parameters() are not
        found = _kernelwright_dtype(module._parameters.values()) or _kernelwright_dtype(module._buffers.values())
        if found is not None:
            return found
    return None


def _kernelwright_dtype_of(model, inputs, named):
    """The floating-point type of a call: of its arguments, else of the model. Raises _KernelwrightMisfit."""
    dtype = _kernelwright_dtype(inputs) or _kernelwright_dtype(named.values()) or _kernelwright_dtype_of_model(
        model) or _KERNELWRIGHT_DTYPES[0]
    if dtype not in _KERNELWRIGHT_DTYPES:
        raise _KernelwrightMisfit("the floating-point type", f"is {dtype}; there are kernels for "
                                  f"{' and '.join(map(str, _KERNELWRIGHT_DTYPES))}")
    return dtype
'''


def type_functions() -> str:
    """The part of the runtime that says of which type values and models are."""
    return DTYPES[:DTYPES.index("def _kernelwright_dtype_of(")]
