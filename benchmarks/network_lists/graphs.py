"""torch_geometric: networks on graphs of nodes and edges."""

from __future__ import annotations

from typing import Any

from network_lists.declaration import Network

_GRAPH = {"x": "torch.randn(NODES, CHANNELS, dtype=FLOAT)", "edge_index": "torch.randint(0, NODES, (2, EDGES))"}
_SIZES = {"NODES": 4096, "EDGES": 65536, "CHANNELS": 128}
_TINY = {"NODES": 12, "EDGES": 40, "CHANNELS": 8}


def _graph(name: str, network: str, given: dict[str, str] | None = None, **more: Any) -> Network:
    return Network(f"torch_geometric_{name}", "torch_geometric", network, given or _GRAPH, _SIZES, _TINY,
                   "import torch_geometric.nn as geometric", **more)


NETWORKS = (
    _graph("gcn", "geometric.GCN(CHANNELS, 2 * CHANNELS, 3, CHANNELS, norm='batch_norm')"),
    _graph("graph_sage", "geometric.GraphSAGE(CHANNELS, 2 * CHANNELS, 3, CHANNELS)"),
    _graph("gat", "geometric.GAT(CHANNELS, 2 * CHANNELS, 3, CHANNELS, heads=4, v2=True)"),
    _graph("gin", "geometric.GIN(CHANNELS, 2 * CHANNELS, 3, CHANNELS, jk='cat')"),
    _graph("edge_cnn", "geometric.EdgeCNN(CHANNELS, 2 * CHANNELS, 3, CHANNELS)"),
    _graph("light_gcn", "geometric.LightGCN(NODES, CHANNELS, 3)",
           {"edge_index": _GRAPH["edge_index"]}),
    _graph("rgcn", "geometric.RGCNConv(CHANNELS, CHANNELS, 4)",
           {**_GRAPH, "edge_type": "torch.randint(0, 4, (EDGES,))"}),
    _graph("transformer", "geometric.TransformerConv(CHANNELS, CHANNELS // 4, heads=4)"),
    _graph("pooled", "geometric.Sequential('x, edge_index, batch', [(geometric.GCNConv(CHANNELS, CHANNELS), "
                     "'x, edge_index -> x'), nn.ReLU(), (geometric.global_mean_pool, 'x, batch -> x'), "
                     "nn.Linear(CHANNELS, 4)])",
           {**_GRAPH, "batch": "torch.arange(NODES) // (NODES // 4)"}),
)
