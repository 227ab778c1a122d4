"""The programs of a backward in words and figures, for the report."""

from __future__ import annotations

from dataclasses import replace

from kernelwright.adjoint.backward import Backward
from kernelwright.plan.describe import kept_uses, kernel_uses, place, title
from kernelwright.plan.steps import planned_steps
from kernelwright.records import BackwardUse
from kernelwright.roofline.cost import floor
from kernelwright.roofline.devices import Device


def described_backward(backward: Backward, device: Device) -> BackwardUse:
    """What is known of a program of gradients."""
    plan, gives = backward.plan, backward.gradients.gives
    inputs, parameters = backward.of_inputs, any(isinstance(who, str) for who in gives)
    of = "inputs and parameters" if inputs and parameters else "inputs" if inputs else "parameters alone"
    seconds, words = floor(plan.graph.roots(), device)
    steps = tuple(replace(step, replaces=()) for step in planned_steps(plan, plan.graph, device))
    saved = backward.gradients.saved
    return BackwardUse(of, kernel_uses(plan, device), kept_uses(plan), steps, seconds, words,
                       tuple(f"{title(node)} ({place(node.origin)})" for node in saved), sum(n.bytes for n in saved))
