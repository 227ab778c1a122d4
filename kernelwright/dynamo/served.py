"""The function that a compiled graph becomes: kernels for calls without gradients, the graph itself for all others."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import fx, nn

from kernelwright.build.module import load_text
from kernelwright.dynamo.graph_model import GraphModel, Held, Refused, attribute, graph_model, is_plain, made_model
from kernelwright.dynamo.kept import alone, keep, name_of, recall
from kernelwright.errors import KernelwrightError
from kernelwright.failures import told
from kernelwright.pipeline import optimize
from kernelwright.problem.inputs import fresh_copy
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.problem.seeds import seeded
from kernelwright.progress import Progress
from kernelwright.settings import Settings, Target
from kernelwright.tune.budget import budget_of
from kernelwright.tune.memory import machine, package_digest

log = logging.getLogger("kernelwright")

#: The target of each type of device that there is one for.
_TARGETS: dict[str, Target] = {"cpu": "cpp", "cuda": "cuda"}
#: A graph of changing sizes, or other numbers, is compiled for so many of them that come again; for others, and for
#: those that come once, it runs as it is. So many are remembered as having come once.
MOST_SIZES = 8
_MOST_SEEN = 4096
#: For another process that makes the same: times the budget of one.
_WAITED_BUDGETS = 3.0

#: How the names of the operators of emitted files begin.
OPERATORS = "kernelwright."
#: In place of a tensor that a call has not put in yet.
_NOTHING = torch.empty(0)
#: The files that this process has made of graphs, or found, by their keys; None where PyTorch's calls stay.
_modules: dict[str, ModuleType | None] = {}
_settled = threading.Lock()


def served(graph_module: fx.GraphModule, examples: Sequence[Any], settings: Settings) -> Callable[..., Any]:
    """What runs in a graph's place. examples: a tensor or a whole number for each of its inputs."""
    if any(str(node.target).startswith(OPERATORS) for node in graph_module.graph.nodes):
        # The kernels of a file of ours: beside them stands what they replace, which this backend leaves out.
        log.info("A graph has the kernels of a ModelNew already.")
        return torch._dynamo.lookup_backend("aot_eager")(graph_module, list(examples))
    try:
        model = graph_model(graph_module, examples)
        if model.device not in _TARGETS:
            raise Refused(f"there are no kernels for the device {model.device}")
    except Refused as reason:
        log.info("A graph stays with PyTorch: %s.", reason)
        return graph_module.forward
    except Exception as error:  # whatever it is: PyTorch runs the graph
        log.warning("A graph stays with PyTorch: %s.", told(error))
        return graph_module.forward
    return Served(graph_module, model, settings)


class Served:
    """A graph with the files that were made of it, by the numbers that it is given. Threads call it at once: each has
    models of its own, into which the tensors of a call are put."""

    def __init__(self, graph_module: fx.GraphModule, model: GraphModel, settings: Settings) -> None:
        self.graph_module, self.model = graph_module, model
        self.settings = replace(settings, target=_TARGETS[model.device])
        self.constants = [attribute(graph_module, h.attribute) for h in model.held if h.number is None]
        self.modules: dict[tuple[int | float, ...], ModuleType | None] = {}
        self.seen: set[tuple[int | float, ...]] = set()
        self.building = threading.Lock()
        self.own = threading.local()
        self.is_full = False

    def __call__(self, *inputs: Any) -> Any:
        if torch.is_grad_enabled() and any([t.requires_grad for t in (*_tensors(inputs), *self.constants)]):
            return self.graph_module.forward(*inputs)
        given = inputs
        if self.model.scalars:
            inputs = tuple([t.item() if n in self.model.scalars else t for n, t in enumerate(inputs)])
        numbers = tuple([inputs[n] for n in self.model.numbers])
        try:
            module = self.modules[numbers]
        except KeyError:
            module = self._made(numbers, inputs)
        if module is None:
            return self.graph_module.forward(*given)
        models = self.own.__dict__
        if module.__name__ not in models:
            models[module.__name__] = self._shell(module)
        model, places = models[module.__name__]
        for table, held in places:
            table[held.name] = self._value(held, inputs)
        arguments = [inputs[n] for n in self.model.arguments]
        try:
            if self.model.autocast:  # the model has its own
                with torch.autocast(self.model.device, enabled=False):
                    return model.forward(*arguments)
            return model.forward(*arguments)
        finally:
            for table, held in places:  # nobody else's tensors live on for us
                table[held.name] = _NOTHING

    def _value(self, held: Held, inputs: Sequence[Any]) -> Any:
        return attribute(self.graph_module, held.attribute) if held.number is None else inputs[held.number]

    def _shell(self, module: ModuleType) -> tuple[nn.Module, list[tuple[dict[str, Any], Held]]]:
        """A ModelNew whose tensors are still to be put in, and where each goes."""
        model = made_model(module.ModelNew, {held.name: _NOTHING for held in self.model.held},
                           [held.name for held in self.model.held if held.is_parameter])
        return model, [(model._parameters if held.is_parameter else model._buffers, held) for held in self.model.held]

    def _made(self, numbers: tuple[int | float, ...], inputs: Sequence[Any]) -> ModuleType | None:
        """The module for these numbers, made where it must be; None where PyTorch runs the graph, as it does while
        another thread makes one."""
        if len(self.modules) >= MOST_SIZES:
            if not self.is_full:
                self.is_full = True
                log.info("A graph was compiled for %d sizes; PyTorch runs it for others.", MOST_SIZES)
            return None
        if numbers and numbers not in self.seen:
            if len(self.seen) < _MOST_SEEN:
                self.seen.add(numbers)
            return None
        if not all(map(is_plain, _tensors(inputs))) or _is_watched() or not self.building.acquire(blocking=False):
            return None
        try:
            if numbers not in self.modules:
                self.modules[numbers] = self._compiled(inputs)
            return self.modules[numbers]
        finally:
            self.building.release()

    def _compiled(self, inputs: Sequence[Any]) -> ModuleType | None:
        """The module of these inputs, from this process, from an earlier one, or made now."""
        try:
            name = name_of(self._key(inputs))
            with _settled:
                if name in _modules:
                    return _modules[name]
            with ExitStack() as around:
                around.enter_context(seeded(self.settings.seed))
                around.enter_context(torch.inference_mode(False))
                around.enter_context(torch.enable_grad())
                around.enter_context(torch.autocast(self.model.device, enabled=False))
                if torch._C._len_torch_function_stack():  # a default device is none of ours
                    around.enter_context(torch.device("cpu"))
                if self.model.device == "cuda":
                    around.enter_context(torch.cuda.device(_tensors(inputs)[0].device))
                module = self._found_or_made(name, inputs)
        except Refused as reason:
            log.info("A graph stays with PyTorch: %s.", reason)
            return None
        except KernelwrightError as refusal:
            log.info("A graph stays with PyTorch: %s %s", refusal, refusal.why)
            return None
        except Exception as error:  # whatever it is: PyTorch runs the graph
            said = "there is too little memory to compile it" if is_out_of_memory(error) else told(error)
            log.warning("A graph stays with PyTorch: %s.", said)
            return None
        with _settled:
            return _modules.setdefault(name, module)

    def _found_or_made(self, name: str, inputs: Sequence[Any]) -> ModuleType | None:
        settings = self.settings
        budget = budget_of(settings.effort, settings.budget, baselines=settings.baselines)
        if (text := recall(name)) is None:
            with alone(name, _WAITED_BUDGETS * budget.seconds):
                if (text := recall(name)) is None:
                    text = self._written(inputs)
                    keep(name, text)
        if "_KERNELWRIGHT_PLANS" not in text:
            log.info("A graph stays with PyTorch, as it is without kernels.")
            return None
        module = load_text(text, "graph")
        if module._kernelwright_library is None:
            raise Refused(module._kernelwright_trouble)
        vars(module)["_kernelwright_warn"] = _log_misfit
        return module

    def _written(self, inputs: Sequence[Any]) -> str:
        """The text of the file that the pipeline makes of the graph and these inputs."""
        module = load_text(self.model.text, "graph")
        tensors = {h.name: self._value(h, inputs) for h in self.model.held}
        model = made_model(module.Model, {name: fresh_copy(t, t.device) for name, t in tensors.items()},
                           [h.name for h in self.model.held if h.is_parameter])
        arguments = [inputs[n] for n in self.model.arguments]
        result = optimize(model, [fresh_copy(v, v.device) if isinstance(v, torch.Tensor) else v for v in arguments],
                          settings=self.settings, progress=Progress())
        if not any(mode.runs for mode in result.modes):
            log.info("No kernel pays in a graph. %s", " ".join(result.notes))
        return result.source

    def _key(self, inputs: Sequence[Any]) -> str:
        """What a file of this graph depends on."""
        tensors = [(tuple(t.shape), t.stride(), t.dtype, t.requires_grad) if isinstance(t, torch.Tensor) else t
                   for t in (*inputs, *(self._value(h, inputs) for h in self.model.held))]
        return repr((package_digest(), machine(torch.device(self.model.device)), self.model.text, self.model.held,
                     tensors, self.settings, torch.get_default_dtype(), torch.get_float32_matmul_precision(),
                     torch.backends.cudnn.allow_tf32, sys.version_info[:2]))


def _tensors(inputs: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in inputs if isinstance(value, torch.Tensor)]


def _is_watched() -> bool:
    """Whether a tracer or another mode stands between calls and tensors: what runs under it is not to be measured."""
    functions = [type(mode).__name__ for mode in torch.overrides._get_current_function_mode_stack()]
    return bool(torch._C._len_torch_dispatch_stack() or set(functions) - {"DeviceContext"}
                or torch._C._functorch.peek_interpreter_stack() is not None or torch.jit.is_tracing())


def _log_misfit(model: nn.Module, misfit: Exception) -> None:
    """In place of a file's warning that its original computation runs, which here is the graph."""
    log.info("PyTorch runs a graph: %s %s.", *misfit.args)
