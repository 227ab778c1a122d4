"""Write problem files of whole networks (torchvision, timm, transformers, PyTorch; random weights) into a folder.

Nothing is downloaded: weights are those of the constructors. What is not installed is left out with a line. Then, for
times to a file and gains over eager:

    python benchmarks/networks.py networks
    kernelwright bench networks --effort quick --baselines none --workers 1
"""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import dataclass
from pathlib import Path

_FILE = '''"""{name}: random weights, {mode}."""

import torch
import torch.nn as nn
{imports}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = {network}
        self.eval(){cast}

    def forward(self, x):
        return {result}


def get_inputs():
    return [{given}]


def get_init_inputs():
    return []
'''


@dataclass(frozen=True)
class Network:
    """A network: the expression that makes it, of which package, what it is given, and what its forward returns."""

    name: str
    network: str
    given: str
    package: str = "torch"
    imports: str = ""
    result: str = "self.network(x)"
    half: bool = False

    def text(self) -> str:
        """The problem file."""
        floating = self.half and "randint" not in self.given
        return _FILE.format(
            name=self.name, mode="bfloat16" if self.half else "float32", network=self.network, result=self.result,
            imports=f"{self.imports}\n" if self.imports else "",
            cast=".to(torch.bfloat16)" if self.half else "",
            given=f"{self.given}.to(torch.bfloat16)" if floating else self.given)


def _vision(name: str, batch: int, *, half: bool = False) -> Network:
    return Network(name, f"torchvision.models.{name}(weights=None)", f"torch.randn({batch}, 3, 224, 224)",
                   "torchvision", "import torchvision", half=half)


def _timm(name: str, batch: int, *, half: bool = False) -> Network:
    return Network(f"timm_{name}", f"timm.create_model({name!r}, pretrained=False)",
                   f"torch.randn({batch}, 3, 224, 224)", "timm", "import timm", half=half)


def _language(name: str, model: str, configuration: str, options: str = "", tokens: str = "8, 128", *,
              half: bool = False) -> Network:
    return Network(f"transformers_{name}", f"{model}({configuration}({options}))",
                   f"torch.randint(0, 1000, ({tokens}))", "transformers",
                   f"from transformers import {model}, {configuration}", "self.network(x).last_hidden_state", half)


NETWORKS = (
    _vision("resnet50", 32), _vision("efficientnet_b0", 32), _vision("vit_b_16", 32, half=True),
    _vision("swin_t", 16), _vision("densenet121", 16), _vision("mobilenet_v3_large", 32),
    _vision("convnext_tiny", 16), _vision("regnet_y_800mf", 32), _vision("squeezenet1_1", 32, half=True),
    _vision("shufflenet_v2_x1_0", 32, half=True),
    Network("r3d_18", "torchvision.models.video.r3d_18(weights=None)", "torch.randn(4, 3, 8, 112, 112)", "torchvision",
            "import torchvision"),
    _timm("deit_small_patch16_224", 32, half=True), _timm("mixer_b16_224", 16), _timm("resmlp_12_224", 32),
    _timm("poolformer_s12", 32), _timm("ghostnet_100", 32),
    _language("bert", "BertModel", "BertConfig"),
    _language("gpt2", "GPT2Model", "GPT2Config", "use_cache=False", half=True),
    _language("llama", "LlamaModel", "LlamaConfig",
              "hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, "
              "num_key_value_heads=4, vocab_size=32000, use_cache=False", half=True),
    _language("t5_encoder", "T5EncoderModel", "T5Config"),
    _language("distilbert", "DistilBertModel", "DistilBertConfig"),
    _language("mixtral", "MixtralModel", "MixtralConfig",
              "hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, "
              "num_key_value_heads=2, vocab_size=1000, num_local_experts=4, use_cache=False", "4, 64", half=True),
    Network("transformer_encoder", "nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, "
            "norm_first=True), 6, enable_nested_tensor=False)", "torch.randn(8, 256, 512)"),
)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for network in NETWORKS:
        if importlib.util.find_spec(network.package) is None:
            print(f"{network.name}: {network.package} is not installed")
            continue
        (folder / f"{network.name}.py").write_text(network.text(), encoding="utf-8")


if __name__ == "__main__":
    main()
