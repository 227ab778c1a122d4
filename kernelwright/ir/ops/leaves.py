"""Where values come from: inputs, parameters, buffers, literals; and operators that we do not know."""

from __future__ import annotations

from typing import Any

import torch

from kernelwright.ir.grouped import GROUPED_PRODUCTS, grouped_products
from kernelwright.ir.registry import Applied, declare, torch_dtype


def _no_reference(*_: Any, **__: Any) -> Any:
    raise TypeError("a leaf has no reference: the evaluator binds its value")


#: How names of tensors begin that stand outside of the model's own attributes; what gives them in Python follows
#: (see :mod:`kernelwright.problem.outside`).
OUTSIDE = "outside "

# input: attribute name; parameter and buffer: name in the state_dict; attribute: path of a tensor
# kept as a plain attribute of a module, or where else it is kept. All carry shape and dtype. Where the elements lie in
# memory in another order of the axes than the model's (channels last, say) the node has the order of memory, so that
# its memory is contiguous like everybody's, with the attribute "order": its axis i is the tensor's axis order[i].
for _leaf in ("input", "parameter", "buffer", "attribute"):
    declare(_leaf, "leaf", _no_reference, "{name}")
# A Python scalar; and a tensor written out: nested tuples of numbers, or one number that is everywhere in its shape.
declare("constant", "leaf", _no_reference, lambda _, node: _literal(node["value"]))
declare("literal", "leaf", _no_reference, lambda _, node: _written_out(node))


def literal_tensor(node: Applied, device: torch.device | None = None, *, widest: bool = False) -> torch.Tensor:
    """The tensor of a literal. widest: floating ones in float64, into which no number is rounded."""
    dtype = torch_dtype(node["dtype"])
    dtype = torch.float64 if widest and dtype.is_floating_point else dtype
    if isinstance(node["value"], tuple):
        return torch.tensor(node["value"], dtype=dtype, device=device).reshape(node["shape"])
    return torch.full(node["shape"], node["value"], dtype=dtype, device=device)


def _written_out(node: Applied) -> str:
    how = f"dtype=torch.{node['dtype']}, device=_device"
    if isinstance(node["value"], tuple):
        return f"torch.tensor({_plain(node['value'])}, {how})"
    return f"torch.full({tuple(node['shape'])!r}, {_literal(node['value'])}, {how})"


def _literal(value: Any) -> str:
    return f'float("{value}")' if isinstance(value, float) and (value != value or abs(value) == float("inf")) \
        else repr(value)


def _plain(value: Any) -> str:
    return "[" + ", ".join(map(_plain, value)) + "]" if isinstance(value, tuple) else _literal(value)


#: The target of calls of submodules that stay with PyTorch; the last argument is the call's number.
PART = "kernelwright.part.default"


def call_opaque(*inputs: Any, target: str, template: Any, keywords: Any, apart: str | None = None, **_: Any) -> Any:
    """Run an operator that we do not know: ``template`` is its argument list with input numbers."""
    call = resolve(target)
    if call in GROUPED_PRODUCTS and any(isinstance(i, torch.Tensor) and i.dtype is torch.float64 for i in inputs):
        call = grouped_products
    result = call(*fill(template, inputs), **{name: fill(part, inputs) for name, part in keywords})
    return result if apart is None else result.to(apart)


def resolve(target: str) -> Any:
    """The callable of a target such as "aten.cumsum.default" or "getitem"."""
    value: Any = torch.ops
    for part in target.split("."):
        value = getattr(value, part)
    return value


def fill(template: Any, inputs: tuple) -> Any:
    """Replace ("input", i) by inputs[i] throughout nested tuples; ("list", ...) makes a list,
    ("dtype", n), ("device", n), ("layout", n), ("memory_format", n) make torch objects."""
    if not isinstance(template, tuple):
        return template
    tag = template[0] if template and isinstance(template[0], str) else None
    if tag == "input":
        return inputs[template[1]]
    if tag == "list":
        return [fill(part, inputs) for part in template[1:]]
    if tag in ("dtype", "layout", "memory_format"):
        return getattr(torch, template[1])
    if tag == "device":
        tensor = next((i for i in inputs if isinstance(i, torch.Tensor)), None)
        return tensor.device if tensor is not None else torch.device(template[1])
    if tag == "str":
        return template[1]
    return tuple(fill(part, inputs) for part in template)


def _template_code(template: Any, inputs: list[str]) -> str:
    if not isinstance(template, tuple):
        return _literal(template)
    tag = template[0] if template and isinstance(template[0], str) else None
    if tag == "input":
        return inputs[template[1]]
    if tag == "list":
        return "[" + ", ".join(_template_code(part, inputs) for part in template[1:]) + "]"
    if tag in ("dtype", "layout", "memory_format"):
        return f"torch.{template[1]}"
    if tag == "device":
        return "_device"
    if tag == "str":
        return repr(template[1])
    return "(" + "".join(_template_code(part, inputs) + ", " for part in template) + ")"


def _opaque_code(inputs: list[str], node: Any) -> str:
    if node["target"] == PART:  # the program knows which of its parts has this number
        given = "".join(f"{_template_code(part, inputs)}, " for part in node["template"][0][1:])
        return f"_kernelwright_part(_numbered[{node['template'][-1]}], ({given}))"
    arguments = [_template_code(part, inputs) for part in node["template"]]
    if node.get("apart") is None:
        arguments += [f"{name}={_template_code(part, inputs)}" for name, part in node["keywords"]]
        return f"torch.ops.{node['target']}({', '.join(arguments)})"
    arguments += [f"{name}={_template_code(part, inputs) if name != 'device' else repr(part[1])}"
                  for name, part in node["keywords"]]
    return f"torch.ops.{node['target']}({', '.join(arguments)})"  # what reads it has it taken to the device


# opaque: attributes target, template, keywords, shape, dtype ("tuple" for several results), types
# (shape and dtype of each result), serial (its place in the program where it draws random numbers
# or has another effect, so that it is neither merged nor reordered; -1 otherwise), part (the call of a submodule),
# apart (the program's device, to which the result is taken, where random numbers are drawn on another one, say by
# torch.rand(3) in a model on a GPU: each device has a generator of its own).
declare("opaque", "opaque", call_opaque, _opaque_code)
# item: one of the results of an opaque node; attributes index, shape, dtype.
declare("item", "opaque", lambda value, *, index, **_: value[index],
        lambda inputs, node: f"{inputs[0]}[{node['index']}]",
        operations=lambda node: 0)
