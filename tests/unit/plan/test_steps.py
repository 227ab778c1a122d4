"""The steps of a program before and after, with what they cost: what reports are made of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import kernelwright
from kernelwright.plan.describe import title
from kernelwright.roofline.cost import arithmetic_seconds, node_seconds, node_work
from kernelwright.roofline.devices import GENERIC_CPU


class Twice(nn.Module):
    """Two blocks of one line each, and an extremum of what both give."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x) * 2.0 + 1.0).reshape(32, 64)
        return x.amax(dim=1)


class Pooled(nn.Module):
    """The mean of a convolution, of which sums are left, and a norm that counts its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.ConvTranspose2d(8, 16, 3, stride=2), nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.mean(self.up(x) * 0.5, dim=(2, 3)))


@pytest.fixture(scope="module")
def mode():
    result = kernelwright.explain(Twice(), inputs=(torch.rand(32, 64),), target="cpp", device=GENERIC_CPU)
    assert result.figures is GENERIC_CPU
    return result.modes[0]


def test_captured_operators_read_each_other_through_views(mode):
    names = [step.name for step in mode.captured_steps]
    assert names == ["linear", "mul", "add", "tanh"] * 2 + ["amax"] and len(names) == mode.operators
    assert [step.reads for step in mode.captured_steps] == [(), *((n,) for n in range(len(names) - 1))]
    assert sum(step.operations for step in mode.captured_steps) == mode.before.operations
    assert sum(step.bytes for step in mode.captured_steps) == mode.before.bytes


def test_steps_of_the_file_do_all_of_the_work_once(mode):
    assert [step.is_kernel for step in mode.steps] == [False, True, False, True]
    assert [step.name for step in mode.steps if step.is_kernel] == [kernel.name for kernel in mode.kernels]
    assert [step.replaces for step in mode.steps] == [(0,), (1, 2, 3), (4,), (5, 6, 7, 8)]
    first = mode.steps[1]
    assert first.reads == (0,)
    assert first.bytes == 2 * 32 * 64 * 4  # its input and its output, and nothing between them
    assert first.seconds < sum(step.seconds for step in mode.captured_steps[1:4])
    assert mode.rewritten_operators == 9 and mode.rewritten_seconds == pytest.approx(
        sum(step.seconds for step in mode.captured_steps))


def test_no_step_is_faster_than_its_least(mode):
    for step in (*mode.captured_steps, *mode.steps):
        assert 0.0 < step.least_seconds <= step.seconds


def test_a_file_without_a_program_has_no_steps():
    result = kernelwright.explain(nn.Linear(8, 8), inputs=(torch.rand(4, 8),), target="cpp", device=GENERIC_CPU)
    assert [step.name for step in result.modes[0].captured_steps] == ["linear"] and result.modes[0].steps == ()


def test_counters_and_casts_of_rules_are_no_operators():
    """What batch norms count, and what stands for rounding that kernels leave out."""
    result = kernelwright.explain(Pooled(), inputs=(torch.rand(8, 8, 64, 64),), target="cpp", device=GENERIC_CPU)
    for mode in result.modes:
        names = [step.name for step in mode.captured_steps]
        assert len(names) == mode.operators and names[:3] == ["conv_transpose2d", "mul", "mean"] and "add" not in names
        casts = mode.rewritten.count(" = cast(")
        assert casts and 0 < mode.rewritten_operators <= mode.rewritten.count(" = ") - casts
        assert mode.rewritten_seconds < sum(step.seconds for step in mode.captured_steps)
        assert {n for step in mode.steps for n in step.replaces} == set(range(len(names)))


def test_names_are_those_of_the_file():
    """Two modes with kernels of their own: the second one's names go on where the first one's end."""
    model = nn.Sequential(nn.BatchNorm1d(16), nn.GELU())
    result = kernelwright.explain(model, inputs=(torch.rand(64, 16),), target="cpp", device=GENERIC_CPU)
    names = [kernel.name for mode in result.modes for kernel in mode.kernels]
    assert len(result.modes) == 2 and len(set(names)) == len(names) > 1
    assert all(f"\n//// {name}\n" in result.source and f"kernel {name}: " in result.source for name in names)


def test_arithmetic_is_part_of_a_nodes_time():
    from kernelwright.capture.export import capture

    graph = capture(Twice().eval(), (torch.rand(32, 64),))
    for node in graph.nodes():
        assert arithmetic_seconds(node, GENERIC_CPU) <= node_seconds(node, GENERIC_CPU)
        assert (arithmetic_seconds(node, GENERIC_CPU) > 0.0) == (node_work(node).operations > 0), title(node)
