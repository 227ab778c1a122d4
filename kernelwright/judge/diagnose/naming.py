"""Operators, constants and parameters of the model's graph, in words with their source line."""

from __future__ import annotations

from pathlib import Path

from kernelwright.ir.node import Node

_NAMES = {
    "add": "addition", "sub": "subtraction", "mul": "multiplication", "div": "division", "pow": "power",
    "neg": "negation", "abs": "absolute value", "square": "square", "sqrt": "square root",
    "rsqrt": "reciprocal square root", "reciprocal": "reciprocal", "exp": "exp", "log": "log", "relu": "ReLU",
    "gelu_erf": "GELU", "gelu_tanh": "GELU (tanh form)", "silu": "SiLU", "mish": "Mish", "sigmoid": "sigmoid",
    "tanh": "tanh", "leaky_relu": "leaky ReLU", "prelu": "PReLU", "elu": "ELU", "selu": "SELU", "celu": "CELU",
    "hardswish": "hardswish", "hardsigmoid": "hardsigmoid", "softplus": "softplus", "softsign": "softsign",
    "logsigmoid": "log-sigmoid", "clamp_min": "clamp from below", "clamp_max": "clamp from above",
    "maximum": "maximum", "minimum": "minimum", "where": "choice (where)", "sum": "sum", "mean": "mean",
    "amax": "maximum", "amin": "minimum", "prod": "product", "logsumexp": "log-sum-exp", "var": "variance",
    "argmax": "argmax", "std": "standard deviation", "argmin": "argmin", "softmax": "softmax",
    "log_softmax": "log-softmax",
    "linear": "linear layer", "matmul": "matrix product", "contract": "contraction", "convolution": "convolution",
    "batch_norm_training": "batch norm", "batch_norm_inference": "batch norm", "layer_norm": "layer norm",
    "rms_norm": "RMS norm", "group_norm": "group norm", "instance_norm": "instance norm", "max_pool": "max pooling",
    "average_pool": "average pooling", "adaptive_average_pool": "adaptive average pooling", "cumsum": "cumulative sum",
    "cumprod": "cumulative product", "concatenate": "concatenation", "pad": "padding", "flip": "flip", "roll": "roll",
    "triangle": "triangle", "permute": "permutation", "slice": "slice", "reshape": "reshape",
    "vector_norm": "norm", "upsample_nearest": "upsampling", "cast": "conversion",
}
#: Pointwise operators that people call an activation.
ACTIVATIONS = frozenset({
    "relu", "gelu_erf", "gelu_tanh", "silu", "mish", "sigmoid", "tanh", "leaky_relu", "prelu", "elu", "selu", "celu",
    "hardswish", "hardsigmoid", "softplus", "softsign", "logsigmoid", "softshrink", "hardshrink", "threshold"})


def name(node: Node) -> str:
    """"ReLU", "multiplication by 10", "sum over axis 1", "parameter conv.bias"."""
    if node.op == "constant":
        return f"constant {node['value']:g}" if isinstance(node["value"], float) else f"constant {node['value']}"
    if node.kind == "leaf":
        return f"{node.op} {node.get('name', '')}".strip()
    if node.op == "opaque":
        return node["target"].removeprefix("aten.").removesuffix(".default")
    told = _NAMES.get(node.op, node.op.replace("_", " "))
    if node.op == "convolution" and node["transposed"]:
        return "transposed convolution"
    if node.op in ("mul", "div", "add", "sub", "pow"):
        fixed = next((i for i in node.inputs if i.op == "constant"), None) or \
            next((i for i in node.inputs if i.op == "parameter"), None)
        if fixed is not None:
            word = {"mul": "by", "div": "by", "add": "of", "sub": "of", "pow": "to"}[node.op]
            of = f"{fixed['value']:g}" if fixed.op == "constant" else fixed["name"]
            return f"{told} {word} {of}"
    if node.op in ("clamp_min", "clamp_max") and node.inputs[1].op == "constant":
        return f"{told} at {node.inputs[1]['value']:g}"
    axes = node.get("axes") if node.kind == "reduction" else None
    if axes is not None:
        if len(axes) == node.inputs[0].rank:
            return f"{told} over everything"
        return f"{told} over ax{'is' if len(axes) == 1 else 'es'} {', '.join(map(str, axes))}"
    if node.kind == "row":
        return f"{told} over axis {node['axis']}"
    return told


def place(node: Node) -> str:
    """Where the node stands in the model: " (model.py:31: `return x * 10`)"; "" where that is unknown."""
    origin = node.origin
    if origin is None or node.kind == "leaf":
        return ""
    if origin.line:
        text = f": `{origin.text}`" if origin.text else ""
        return f" ({Path(origin.file).name}:{origin.line}{text})"
    return f" ({origin.module})" if origin.module else ""


def told(node: Node) -> str:
    """The name with the place."""
    return f"the {name(node)}{place(node)}"


def sequence(nodes: list[Node]) -> str:
    """Several operators in a row: "sum over axis 1 and multiplication by 10 (model.py:31: ...)"."""
    names = [name(n) for n in nodes[:4]] + (["..."] if len(nodes) > 4 else [])
    listed = names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
    return listed + place(nodes[0])
