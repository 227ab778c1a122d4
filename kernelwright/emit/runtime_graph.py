"""Text of emitted files that run a program as a CUDA graph: recorded once, then launched as a whole.

A graph has its addresses in it: of the model's tensors, which stay where they are while a graph is used, and of memory
of its own, into which inputs are copied and out of which results are. So a caller's inputs may lie anywhere, and no
call writes over the results of another. What a program requires of values is asked at its end, and of a graph after its
launch.

Conditions are those of the other texts, and REQUIRED: some program has values by which the original computation raises
an error or decides otherwise.
"""

REQUIRE = '''\
_kernelwright_asked = threading.local()


def _kernelwright_require(*conditions):
    """Conditions that hold unless the original computation raises an error, or takes another branch: then it shall do
    that itself."""
    holds = conditions[0] if len(conditions) == 1 else torch.stack(conditions).all()
    if GRAPHS:
        recorded = getattr(_kernelwright_asked, "conditions", None)
        if recorded is not None:  # a graph is asked after each launch
            recorded.append(holds)
            return
    if not bool(holds):
        raise ValueError("the original computation refuses a value, or decides otherwise by it")
'''

GRAPH = '''\
# A model whose tensors move again and again is not recorded more often.
_KERNELWRIGHT_RECORDINGS = 8


class _KernelwrightGraph:
    """A program with tensors of its own for inputs and results, as a CUDA graph; bytes: what it keeps of the device's
    memory. Raises RuntimeError where the program, or its results, cannot be recorded."""

    def __init__(self, facts, values, count):
        device, run = values[0].device, facts["run"]
        before = torch.cuda.memory_reserved(device)
        self.graph, self.last, self.done = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Event()
        with torch.inference_mode(False), torch.no_grad():
            # Not within the graph: where PyTorch fills new memory it would do so at each launch.
            self.inputs = [torch.empty_like(value) for value in values[:count]]
        stream, collects = torch.cuda.Stream(device), gc.isenabled()
        stream.wait_stream(self.last)
        gc.disable()  # what it frees may wait for the device
        if REQUIRED:
            self.required = _kernelwright_asked.conditions = []
        try:
            with torch.inference_mode(False), torch.no_grad(), torch.cuda.stream(stream):
                if SIZED:
                    given = (*self.inputs, *values[count:], *facts["sizes"])
                else:
                    given = (*self.inputs, *values[count:])
                results = _kernelwright_while_recorded(self.graph, lambda: run(device, stream.cuda_stream, *given))
        finally:
            if REQUIRED:
                _kernelwright_asked.conditions = None
            if collects:
                gc.enable()
        self.bytes = torch.cuda.memory_reserved(device) - before
        taken = [value.untyped_storage().data_ptr() for value in (*self.inputs, *values[count:])]
        memory = {}  # storages of the results, with these by their places
        for place, result in enumerate(results):
            memory.setdefault(result.untyped_storage().data_ptr(), []).append((place, result))
        if any([address and address in taken for address in memory]):
            raise RuntimeError("a result shares the memory of an argument")
        # Views of one memory stay that.
        self.alone = [found[0] for found in memory.values() if len(found) == 1 and _kernelwright_fills(found[0][1])]
        self.shared = [(torch.empty(0, dtype=torch.uint8, device=device).set_(found[0][1].untyped_storage()),
                        [(place, result, result.storage_offset()) for place, result in found])
                       for found in memory.values() if len(found) > 1 or not _kernelwright_fills(found[0][1])]
        self.count = len(results)

    def __call__(self, values):
        """The results for these inputs, in memory of their own."""
        stream = torch.cuda.current_stream()
        if stream != self.last:
            stream.wait_event(self.done)  # the call before may still be at work on the other stream
            for own in self.inputs:
                own.record_stream(stream)
        for own, value in zip(self.inputs, values):
            own.copy_(value)
        self.graph.replay()
        if REQUIRED:
            if not all(map(bool, self.required)):
                self.done.record()
                self.last = stream
                raise ValueError("the original computation refuses a value, or decides otherwise by it")
        results = [None] * self.count
        for place, result in self.alone:
            results[place] = result.clone()
        for memory, found in self.shared:
            storage = memory.clone().untyped_storage()
            for place, result, offset in found:
                results[place] = torch.empty(0, dtype=result.dtype, device=result.device).set_(
                    storage, offset, result.shape, result.stride())
        self.done.record()
        self.last = stream
        return tuple(results)


def _kernelwright_while_recorded(graph, run):
    """What run gives while the current stream's work is recorded. Where CUDA ends that with an error, PyTorch (to 2.11)
    takes random numbers and memory for recorded ones ever after, so both are told the end."""
    pool = torch.cuda.graph_pool_handle()
    graph.capture_begin(pool, capture_error_mode="thread_local")
    try:
        return run()
    finally:
        try:
            graph.capture_end()
        except RuntimeError:
            try:
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
                torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
            except (RuntimeError, AttributeError):
                pass  # memory was told already
            other, filled = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
            other.capture_begin(capture_error_mode="thread_local")
            filled.zero_()
            other.capture_end()  # a recording that ends well is one for the generator, too
            raise


def _kernelwright_fills(result):
    """Whether a tensor is all of its memory, each element once: a clone is then laid out alike."""
    return result.untyped_storage().nbytes() == result.numel() * result.element_size() and (
        torch.empty_like(result).stride() == result.stride())


def _kernelwright_recorded(binding, facts, values, depth=6):
    """The program's results by its graph, which is recorded at the second call in a row with the same tensors of the
    model; by a direct run where there is none. depth: of the caller's frame, which a warning names."""
    device = values[0].device
    if not facts["graph"] or device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return _kernelwright_run(facts, values)
    count = len(values) - len(facts["tensors"])
    if ATTRIBUTES:
        count += len(binding.fresh)  # they come first among tensors, and are others at each call
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _kernelwright_recorded(binding, facts, values, depth + 1)
    key = [device, *map(torch.Tensor.data_ptr, values[count:])]
    with binding.recording:
        if binding.graph is not None and binding.graph_of == key:
            found = binding.graph(values)
            if UPDATED:
                for place in binding.updated:
                    torch.autograd.graph.increment_version(values[place])
            return found
        if binding.graph_of != key or binding.recordings >= _KERNELWRIGHT_RECORDINGS:
            binding.graph, binding.graph_of = None, key
            return _kernelwright_run(facts, values)
        binding.recordings += 1
        try:
            binding.graph = _KernelwrightGraph(facts, values, count)
        except RuntimeError as error:  # what waits for the device, or too little memory; nothing has run
            binding.recordings = _KERNELWRIGHT_RECORDINGS
            reason = str(error).partition("\\n")[0]
            warnings.warn(f"ModelNew launches its kernels one by one, as they make no CUDA graph: {reason}",
                          RuntimeWarning, stacklevel=depth)
            return _kernelwright_run(facts, values)
        return binding.graph(values)
'''
