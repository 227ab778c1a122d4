"""DYNAMO: the pipeline as a backend of torch.compile, which hands it graphs of operators in place of a model.

``torch.compile(model, backend="kernelwright")`` finds :func:`backend` by the package's entry point; :func:`compile` is
the same without a name to look up. The folder's other modules say what becomes of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from kernelwright.errors import UnknownOption
from kernelwright.settings import Contractions, Effort, Launch, Precision, Settings


class BackendOptions(TypedDict, total=False):
    """The options of a backend, all of them fields of :class:`Settings`."""

    effort: Effort
    budget: float | None
    precision: Precision
    contractions: Contractions
    launch: Launch


#: Their names.
OPTIONS = tuple(BackendOptions.__annotations__)
#: What stands in for options that are not given: who calls a model waits for its compiler.
_DEFAULTS = Settings(effort="quick", baselines="none")


def settings_of(options: Mapping[str, Any] | None) -> Settings:
    """The settings of a backend's options. Raises UnknownOption (KW404), InvalidOption (KW403)."""
    given: dict[str, Any] = dict(options or {})
    unknown = next((name for name in given if name not in OPTIONS), None)
    if unknown is not None:
        raise UnknownOption(option=unknown, known=", ".join(OPTIONS))
    return replace(_DEFAULTS, **given)


def backend(graph_module: Any, example_inputs: list[Any], *, options: Mapping[str, Any] | None = None,
            mode: str | None = None) -> Callable[..., Any]:
    """A graph of TorchDynamo as a function of the same inputs, with kernels where they pay and no gradient is recorded.

    graph_module: a ``torch.fx.GraphModule``; example_inputs: tensors and sizes, one for each of its placeholders.
    Nothing is compiled here, but at the first call that records no gradient.
    Raises UnknownOption (KW404), InvalidOption (KW403).
    """
    settings = settings_of(options if mode is None else {"mode": mode})
    from kernelwright.dynamo.served import served

    return served(graph_module, example_inputs, settings)


def compile(model: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None,
            **options: Unpack[BackendOptions]) -> Any:
    """``torch.compile`` with our backend: of a module or a function, or as a decorator with options.

    fullgraph, dynamic: as torch.compile has them. options: ``effort``, ``budget``, ``precision``, ``contractions`` and
    ``launch``, as :class:`kernelwright.Settings` has them; the effort is quick unless it is given.
    Raises UnknownOption (KW404), InvalidOption (KW403).

    >>> fast = kernelwright.compile(torch.nn.Sequential(torch.nn.Softmax(-1), torch.nn.Tanh()))
    >>> with torch.no_grad():
    ...     fast(torch.zeros(32, 4)).shape
    torch.Size([32, 4])
    """
    import torch

    given: dict[str, Any] = {**options}
    settings_of(given)
    return torch.compile(model, fullgraph=fullgraph, dynamic=dynamic, backend=backend, options=given or None)
