"""Whole networks of public packages, one declaration each: a file for every package."""

from __future__ import annotations

from network_lists import audio, graphs, kernelbench, language, timm_families, vision
from network_lists.declaration import Network, of_torch

#: Sets of networks by name. All but the last are of sizes that were chosen here.
SETS: dict[str, tuple[Network, ...]] = {
    "torch": of_torch(), "torchvision": vision.NETWORKS, "timm": timm_families.NETWORKS,
    "transformers": language.NETWORKS, "torchaudio": audio.NETWORKS, "torch_geometric": graphs.NETWORKS,
    "kernelbench_level4": kernelbench.NETWORKS}
