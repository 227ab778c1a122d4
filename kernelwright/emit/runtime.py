"""The text of the small runtime that stands in every emitted file: build, guard, launch, gradients.

It is text and not an import, because an emitted file depends on PyTorch alone. Names start with
``_kernelwright`` so that they can't meet the user's.
"""

IMPORTS = """\
import ctypes
import hashlib
import inspect
import os
import platform
import tempfile
import warnings
import weakref
from pathlib import Path

import torch
"""

BUILD = '''\
def _kernelwright_build():
    """Compile the kernels once for this machine; later imports load the finished library."""
    identity = [_KERNELWRIGHT_SOURCE, *_KERNELWRIGHT_FLAGS, torch.__version__, platform.machine()]
    if _KERNELWRIGHT_DEVICE == "cuda":
        major, minor = torch.cuda.get_device_capability()
        architecture = f"{major}.{minor}" + ("a" if (major, minor) == (9, 0) else "")
        identity.append(architecture)
    elif os.path.exists("/proc/cpuinfo"):  # -march=native: a library is for one kind of processor
        with open("/proc/cpuinfo") as lines:
            identity += sorted({line for line in lines if line.startswith(("flags", "Features"))})
    key = hashlib.sha256("\\0".join(identity).encode()).hexdigest()[:20]
    home = os.environ.get("KERNELWRIGHT_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kernelwright")
    library = Path(home) / "libraries" / f"{_KERNELWRIGHT_NAME}_{key}.so"
    if not library.exists():
        from torch.utils.cpp_extension import load_inline

        library.parent.mkdir(parents=True, exist_ok=True)
        # A folder of its own, then one atomic rename: builds can't wait for each other or be seen half done.
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            options = {"name": f"{_KERNELWRIGHT_NAME}_{key}", "build_directory": folder, "is_python_module": False,
                       "no_implicit_headers": True}
            if _KERNELWRIGHT_DEVICE == "cuda":
                before = os.environ.get("TORCH_CUDA_ARCH_LIST")
                os.environ["TORCH_CUDA_ARCH_LIST"] = architecture
                try:
                    load_inline(cpp_sources=[""], cuda_sources=[_KERNELWRIGHT_SOURCE],
                                extra_cuda_cflags=_KERNELWRIGHT_FLAGS, **options)
                finally:
                    if before is None:
                        del os.environ["TORCH_CUDA_ARCH_LIST"]
                    else:
                        os.environ["TORCH_CUDA_ARCH_LIST"] = before
            else:
                load_inline(cpp_sources=[_KERNELWRIGHT_SOURCE], extra_cflags=_KERNELWRIGHT_FLAGS,
                            extra_ldflags=["-fopenmp"], **options)
            os.replace(next(Path(folder).glob("*.so")), library)
    loaded = ctypes.CDLL(str(library))
    for launcher in _KERNELWRIGHT_LAUNCHERS:
        getattr(loaded, launcher).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        getattr(loaded, launcher).restype = ctypes.c_char_p
    return loaded


_kernelwright_library = None
_kernelwright_trouble = ""  # why there is no library
_kernelwright_details = ""  # the compiler's messages
if _KERNELWRIGHT_DEVICE == "cpu" or torch.cuda.is_available():
    try:
        _kernelwright_library = _kernelwright_build()
    except Exception as error:
        _kernelwright_details = str(error).strip()
        _kernelwright_trouble = f"the kernels could not be built ({_kernelwright_details.splitlines()[0][:200]})"
else:
    _kernelwright_trouble = "there is no CUDA device"
'''

RUNTIME = '''\
_kernelwright_bindings = weakref.WeakKeyDictionary()
_kernelwright_warned = set()


def _kernelwright_warn(model, reason):
    """Say once per model and reason that the original computation runs."""
    if (id(model), reason) not in _kernelwright_warned:
        _kernelwright_warned.add((id(model), reason))
        warnings.warn(f"ModelNew runs the original computation: {reason}", RuntimeWarning, stacklevel=4)


def _kernelwright_print(value):
    """A plain attribute in a form that compares across processes."""
    if isinstance(value, (bool, int, float, str, bytes, type(None))):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(_kernelwright_print, value))
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name else f"a {type(value).__module__}.{type(value).__qualname__}"


def _kernelwright_bind(model, facts):
    """Compare a model with the facts of a plan, once; returns (difference, identities, tensors).

    identities: (dictionary, key, value) triples that must still hold at every later call.
    tensors: (name, dictionary, key) of every parameter and buffer that the plan uses.
    """
    modules = dict(model.named_modules())
    if {path: type(m).__qualname__ for path, m in modules.items() if path} != facts["modules"]:
        return "its modules are not those it was built with", (), ()
    identities = []
    for path, module in modules.items():
        attributes = vars(module)
        if "forward" in attributes or (path and (module._forward_hooks or module._forward_pre_hooks)):
            return f"module {path!r} has a hook or a forward of its own", (), ()
        for key, value in facts["attributes"].get(path, {}).items():
            if key not in attributes or _kernelwright_print(attributes[key]) != value:
                return f"attribute {(path + '.' + key).lstrip('.')} is not {value!r}", (), ()
            identities.append((attributes, key, attributes[key]))
        if attributes["training"] != (facts["training"] if path not in facts["other_mode"] else not facts["training"]):
            return "its modules are neither all in training nor all in evaluation mode", (), ()
        identities.append((attributes, "training", attributes["training"]))
        identities += [(module._modules, name, child) for name, child in module._modules.items()]
        if path:
            identities += [(attributes, hooks, attributes[hooks]) for hooks in ("_forward_hooks", "_forward_pre_hooks")]
    tensors = []
    for name in facts["tensors"]:
        path, _, key = name.rpartition(".")
        owner = modules[path]
        home = next((d for d in (owner._parameters, owner._buffers, vars(owner)) if key in d), None)
        if home is None:
            return f"it has no {name}", (), ()
        tensors.append((name, home, key))
    return "", tuple(identities), tuple(tensors)


def _kernelwright_tensor_misfit(name, tensor, shape, dtype):
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        return f"{name} is a {type(tensor).__name__}"
    if tensor.shape != shape or tensor.dtype is not dtype:
        return f"{name} is {tensor.dtype} {list(tensor.shape)}, not {dtype} {list(shape)}"
    if tensor.device.type != _KERNELWRIGHT_DEVICE:
        return f"{name} is on {tensor.device}"
    if not tensor.is_contiguous() or tensor.data_ptr() % 16:
        return f"{name} is not contiguous and aligned"
    return ""


def _kernelwright_check(model, facts, inputs):
    """Whether the kernels fit this call: (reason why not, or ""; the tensors by name)."""
    if _kernelwright_library is None:
        return _kernelwright_trouble, None
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(_KERNELWRIGHT_DEVICE):
        return "it runs under torch.compile or autocast", None
    if facts is None:
        return "this mode was not built", None
    bindings = _kernelwright_bindings.setdefault(model, {})
    mode = facts["training"]
    bound = bindings.get(mode)
    if bound is None or bound[0] or not all(d.get(k) is v for d, k, v in bound[1]) \\
            or any(d and k.endswith("hooks") for d, k in ((d[k], k) for d, k, _ in bound[1] if k.endswith("hooks"))):
        bound = bindings[mode] = _kernelwright_bind(model, facts)
    if bound[0]:
        return bound[0], None
    if len(inputs) != len(facts["inputs"]):
        return f"it got {len(inputs)} arguments, not {len(facts['inputs'])}", None
    tensors, devices = {}, set()
    for (name, expected), value in zip(facts["inputs"], inputs):
        if type(expected) is not tuple:
            if value != expected or type(value) is not type(expected):
                return f"argument {name} is {value!r}, not {expected!r}", None
            continue
        misfit = _kernelwright_tensor_misfit(name, value, *expected)
        if misfit:
            return misfit, None
        tensors[name] = value
        devices.add(value.device)
    for name, home, key in bound[2]:
        value = home[key]
        misfit = _kernelwright_tensor_misfit(name, value, *facts["tensors"][name])
        if misfit:
            return misfit, None
        tensors[name] = value
        devices.add(value.device)
    if len(devices) > 1:
        return "its tensors are on several devices", None
    return "", tensors


def _kernelwright_launch(launcher, device, *tensors):
    """Call a launcher with the addresses of its tensors; failures raise and name the kernel."""
    addresses = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
    function = getattr(_kernelwright_library, launcher)
    if device.type != "cuda":
        failure = function(addresses, None)
    elif device.index == torch.cuda.current_device():
        failure = function(addresses, torch.cuda.current_stream(device).cuda_stream)
    else:
        with torch.cuda.device(device):
            failure = function(addresses, torch.cuda.current_stream(device).cuda_stream)
    if failure:
        raise RuntimeError(f"kernelwright: {failure.decode(errors='replace')}")


def _kernelwright_restore(structure, outputs):
    """The returned value from its structure, in which numbers stand for outputs."""
    if isinstance(structure, dict):
        return {key: _kernelwright_restore(part, outputs) for key, part in structure.items()}
    if isinstance(structure, (tuple, list)):
        return type(structure)(_kernelwright_restore(part, outputs) for part in structure)
    return None if structure is None else outputs[structure]


def _kernelwright_flatten(structure, value, outputs):
    """The outputs of a returned value, by their numbers in its structure."""
    if isinstance(structure, dict):
        for key, part in structure.items():
            _kernelwright_flatten(part, value[key], outputs)
    elif isinstance(structure, (tuple, list)):
        for part, inner in zip(structure, value):
            _kernelwright_flatten(part, inner, outputs)
    elif structure is not None:
        outputs[structure] = value


class _KernelwrightOriginal(torch.nn.Module):
    """The original computation of a model, as a module of its own (for functional_call)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        return self.model._original_forward(*inputs)


class _KernelwrightFunction(torch.autograd.Function):
    """Kernels forward; backward recomputes the original under autograd."""

    @staticmethod
    def forward(ctx, model, facts, arguments, names, *tensors):
        ctx.model, ctx.facts, ctx.arguments, ctx.names = model, facts, arguments, names
        # Buffers as they are now: the recomputation must neither see nor repeat their updates.
        ctx.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        ctx.save_for_backward(*tensors)
        values = dict(zip(names, tensors))
        inputs = [values.get(name, argument) for (name, _), argument in zip(facts["inputs"], arguments)]
        outputs = facts["run"](model, values, *inputs)
        ctx.mark_non_differentiable(*[o for o in outputs if not o.is_floating_point()])
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *gradients):
        again = torch.is_grad_enabled()  # create_graph: keep the graph to the saved tensors themselves
        saved = ctx.saved_tensors if again else [t.detach().requires_grad_(t.is_floating_point())
                                                  for t in ctx.saved_tensors]
        values = dict(zip(ctx.names, saved))
        state = {f"model.{name}": buffer.clone() for name, buffer in ctx.buffers.items()}
        inputs = [values.get(name, argument) for (name, _), argument in zip(ctx.facts["inputs"], ctx.arguments)]
        given = {name for name, _ in ctx.facts["inputs"]}
        state.update({f"model.{name}": value for name, value in values.items()
                      if name not in given and name not in ctx.buffers})
        with torch.enable_grad():
            result = torch.func.functional_call(_KernelwrightOriginal(ctx.model), state, tuple(inputs))
        outputs = {}
        _kernelwright_flatten(ctx.facts["structure"], result, outputs)
        pairs = [(outputs[i], g) for i, g in enumerate(gradients) if g is not None and outputs[i].requires_grad]
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[4:]) if needed and saved[i].requires_grad]
        found = torch.autograd.grad([o for o, _ in pairs], [saved[i] for i in wanted], [g for _, g in pairs],
                                    create_graph=again, allow_unused=True) if pairs and wanted else []
        result = [None] * len(saved)
        for i, gradient in zip(wanted, found):
            result[i] = gradient
        return (None, None, None, None, *result)


def _kernelwright_call(model, inputs, named, plans):
    """The forward of ModelNew: kernels where they fit, the original computation elsewhere."""
    if named or len(inputs) != len(plans[0]["inputs"]):
        bound = inspect.signature(model._original_forward).bind(*inputs, **named)
        bound.apply_defaults()
        inputs = bound.args if not bound.kwargs else inputs
        defaults = [p.default for p in inspect.signature(model._original_forward).parameters.values()]
        while len(inputs) > len(plans[0]["inputs"]) and inputs[-1] is defaults[len(inputs) - 1]:
            inputs = inputs[:-1]
        if bound.kwargs:
            _kernelwright_warn(model, "it got keyword-only arguments")
            return model._original_forward(*bound.args, **bound.kwargs)
    facts = next((p for p in plans if p["training"] == model.training), None)
    reason, tensors = _kernelwright_check(model, facts, inputs)
    if reason:
        _kernelwright_warn(model, reason)
        return model._original_forward(*inputs)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values()):
        if facts["random"]:
            return model._original_forward(*inputs)
        outputs = _KernelwrightFunction.apply(model, facts, inputs, tuple(tensors), *tensors.values())
    else:
        with torch.no_grad():
            outputs = facts["run"](model, tensors, *inputs)
    return _kernelwright_restore(facts["structure"], outputs)
'''
