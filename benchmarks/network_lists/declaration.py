"""What a network is here: how it is made and what it is given, in a size for a GPU and a tiny one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DTYPES = ("float32", "bfloat16", "float16")

_FILE = '''"""{name}: random weights, {dtype}."""

import torch
from torch import nn
{imports}
FLOAT = torch.{dtype}
{constants}
TINY = {tiny}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = {network}
        {mode}

    def forward(self, {parameters}):
        return {result}


def get_inputs():
    return {inputs}


def get_init_inputs():
    return []
'''


@dataclass(frozen=True)
class Network:
    """A network with random weights.

    network: the expression that makes it. given: the expression of each argument, by its name in forward; in both, the
    names of ``full`` (values of a size for a GPU) and FLOAT (the dtype) may stand. tiny: those of the values that are
    smaller on a CPU. keywords: whether arguments are given by name. result: what forward returns, as an expression.
    outer_training: whether the module around the network stays in training mode, as one has it that only puts a loaded
    network into evaluation mode.
    """

    name: str
    package: str
    network: str
    given: Mapping[str, str]
    full: Mapping[str, Any] = field(default_factory=dict)
    tiny: Mapping[str, Any] = field(default_factory=dict)
    imports: str = ""
    keywords: bool = False
    result: str = ""
    outer_training: bool = False

    def missing(self) -> str:
        """Why the package cannot be used here; "" where it can."""
        try:
            importlib.import_module(self.package)
        except Exception as error:  # a package built for another PyTorch fails with errors of all kinds
            return f"{self.package} cannot be imported: {error}"
        return ""

    def text(self, dtype: str = "float32") -> str:
        """The problem file, whose values are those of ``full``; its TINY has the others."""
        names = list(self.given)
        called = ", ".join(f"{n}={n}" if self.keywords else n for n in names)
        inputs = ", ".join(f'"{n}": {e}' if self.keywords else e for n, e in self.given.items())
        return _FILE.format(
            name=self.name, dtype=dtype, network=self.network, tiny=dict(self.tiny),
            imports=f"{self.imports}\n" if self.imports else "", parameters=", ".join(names),
            constants="\n".join(f"{name} = {value!r}" for name, value in self.full.items()),
            mode="self.to(FLOAT)\n        " + ("self.network.eval()" if self.outer_training else "self.eval()"),
            result=self.result or f"self.network({called})", inputs=f"{{{inputs}}}" if self.keywords else f"[{inputs}]")


def of_torch() -> tuple[Network, ...]:
    """Networks of PyTorch alone."""
    layer = ("nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, norm_first=NORM_FIRST)")
    sizes = {"WIDTH": 512, "HEADS": 8, "LAYERS": 6, "BATCH": 8, "LENGTH": 256}
    small = {"WIDTH": 32, "HEADS": 2, "LAYERS": 2, "BATCH": 2, "LENGTH": 8}
    sequence = "torch.randn(BATCH, LENGTH, WIDTH, dtype=FLOAT)"
    return (
        Network("transformer_encoder", "torch", f"nn.TransformerEncoder({layer}, LAYERS, enable_nested_tensor=False)",
                {"x": sequence}, {**sizes, "NORM_FIRST": True}, small),
        Network("transformer_post_norm", "torch", f"nn.TransformerEncoder({layer}, LAYERS)",
                {"x": sequence}, {**sizes, "NORM_FIRST": False}, small),
        Network("transformer", "torch", "nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, 4 * WIDTH, batch_first=True)",
                {"source": sequence, "target": sequence}, sizes, small),
        Network("lstm", "torch", "nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True, bidirectional=True)",
                {"x": sequence}, {k: v for k, v in sizes.items() if k != "HEADS"} | {"LAYERS": 2},
                {k: v for k, v in small.items() if k != "HEADS"}),
        Network("gru", "torch", "nn.GRU(WIDTH, WIDTH, LAYERS, batch_first=True)",
                {"x": sequence}, {k: v for k, v in sizes.items() if k != "HEADS"} | {"LAYERS": 2},
                {k: v for k, v in small.items() if k != "HEADS"}),
    )
