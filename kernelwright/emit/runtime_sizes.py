"""Text of emitted files: what is made of no input is kept; of those that serve calls of several sizes, the facts of
each, and what is kept for it.

Conditions (:mod:`kernelwright.emit.assembly`) are CUDA.
"""

# A launch, and one that gives sizes, too.
_LAUNCH = "def _kernelwright_launch(launcher, stream, *tensors):"
_SIZED_LAUNCH = "def _kernelwright_launch(launcher, stream, *tensors, sizes=()):"


def with_sizes(text: str) -> str:
    """A part of the runtime as it is in files for several sizes: where it launches kernels, it gives them sizes."""
    return text.replace(_LAUNCH, _SIZED_LAUNCH)


ONCE = '''\
_kernelwright_kept = {}


def _kernelwright_once(make, device):
    """What ``make`` makes on a device of no input: made once, as nobody writes to it."""
    kept = _kernelwright_kept.get((make, device))
    if kept is None:
        with torch.inference_mode(False), torch.no_grad():
            kept = make(device)
        if CUDA:
            if device.type == "cuda":
                if torch.cuda.is_current_stream_capturing():
                    return kept  # in memory of the graph, filled as it is replayed
                torch.cuda.current_stream().synchronize()  # another stream may read it next
        _kernelwright_kept[make, device] = kept
    return kept
'''

SIZES = '''\
def _kernelwright_sized(facts, sizes):
    """The facts of a mode for calls of these sizes, and keeps them by these. Raises _KernelwrightMisfit."""
    for (name, _, axis, low, high), size in zip(_KERNELWRIGHT_SIZES, sizes):
        if not low <= size <= high:
            raise _KernelwrightMisfit(f"axis {axis} of {name}", f"has {size} elements, not {low} to {high}")
    own = facts["sized"](*sizes)
    if own is None:
        raise _KernelwrightMisfit("this call", f"has sizes {sizes}, for which there are no kernels")
    found = facts["by_sizes"][sizes] = facts["by_sizes"]["latest"] = {**facts, **own, "sizes": sizes}
    return found


def _kernelwright_resized(facts, inputs):
    """The facts of a mode for a call that may be of other sizes than these, which are the latest call's: those for its
    sizes, or None where they are the same. So calls of one size in a row, whose tensors are seen to be alike, are not
    asked for their sizes. Raises _KernelwrightMisfit."""
    sizes = _kernelwright_sizes_of(inputs)
    if sizes == facts["sizes"]:
        return None
    found = facts["by_sizes"].get(sizes) or _kernelwright_sized(facts, sizes)
    facts["by_sizes"]["latest"] = found
    return found
'''

KEPT_BY_SIZES = '''\
_kernelwright_kept = {}


def _kernelwright_once(make, device, *sizes):
    """What ``make`` makes on a device of no input but sizes, as nobody writes to it: that of the last calls' sizes."""
    kept = _kernelwright_kept.get((make, device, sizes))
    if kept is None:
        with torch.inference_mode(False), torch.no_grad():
            kept = make(device, *sizes)
        if CUDA:
            if device.type == "cuda":
                if torch.cuda.is_current_stream_capturing():
                    return kept  # in memory of the graph, filled as it is replayed
                torch.cuda.current_stream().synchronize()  # another stream may read it next
        for key in [key for key in list(_kernelwright_kept) if key[0] is make][:-7]:
            _kernelwright_kept.pop(key, None)
        _kernelwright_kept[make, device, sizes] = kept
    return kept
'''
