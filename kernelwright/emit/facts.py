"""The facts that an emitted forward checks before it trusts its kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kernelwright.ir.node import walk
from kernelwright.plan.records import Plan

_PLAIN = (bool, int, float, str, bytes, type(None))


def literal(value: Any) -> str:
    """Python text of a plain value, a tuple, list or dict of them, or a dtype."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    if isinstance(value, tuple):
        return "(" + ", ".join(map(literal, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    return repr(value)


def plain(value: Any) -> Any:
    """As ``_kernelwright_print`` of the emitted file: a form that compares across processes."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(plain, value))
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name else f"a {type(value).__module__}.{type(value).__qualname__}"


def module_facts(model: nn.Module) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Class names of the submodules by path, and the plain attributes of every module by path.

    A class of the user's own file has another ``__module__`` in the emitted file, so attributes that are
    objects are told apart by class only where the class comes from elsewhere.
    """
    classes = {path: type(m).__qualname__ for path, m in model.named_modules() if path}
    own = type(model).__module__
    attributes: dict[str, dict[str, Any]] = {}
    for path, module in model.named_modules():
        found = {}
        for key, value in vars(module).items():
            if key.startswith("_") or key == "training" or isinstance(value, (torch.Tensor, nn.Module)):
                continue
            form = plain(value)
            if own not in repr(form):
                found[key] = form
        if found:
            attributes[path] = found
    return classes, attributes


def plan_facts(plan: Plan, model: nn.Module, inputs: list[Any], mode: str) -> list[tuple[str, str]]:
    """The entries of a plan's table of facts, as (key, text)."""
    given = []
    for position, (node, value) in enumerate(zip(plan.graph.inputs, inputs, strict=True)):
        if node is None:
            given.append(f'("argument {position}", {literal(value)})')
        else:
            given.append(f'("{node["name"]}", ({literal(node.shape)}, torch.{node.dtype}))')
    leaves = {n["name"]: n for n in walk([*plan.graph.roots(), *(e.value for e in plan.graph.effects)])
              if n.op in ("parameter", "buffer", "attribute")}
    leaves |= {e.name: e.value for e in plan.graph.effects if e.name not in leaves}
    tensors = ", ".join(f'"{n}": ({literal(leaf.shape)}, torch.{leaf.dtype})' for n, leaf in leaves.items())
    other = tuple(p for p, m in model.named_modules() if m.training != model.training)
    drawn = any(n.get("serial", -1) >= 0 for n in plan.graph.nodes())
    return [("training", repr(model.training)), ("other_mode", literal(other)),
            ("inputs", "(" + ", ".join(given) + ("," if len(given) == 1 else "") + ")"),
            ("tensors", "{" + tensors + "}"), ("structure", literal(plan.graph.structure)), ("random", repr(drawn)),
            ("run", f"_kernelwright_{mode}")]
