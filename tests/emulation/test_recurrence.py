"""Recurrences as kernels against their meaning in float64: the layers of torch.nn, and cells of any other form."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from native_tools import aligned, compiled, launch
from recurrence_cases import KINDS, Case, cell, expected, layer, tensors

from kernelwright.codegen.cuda.recurrence import generate
from kernelwright.codegen.cuda.recurrence.layout import PORTABLE, Layout, choose, layouts
from kernelwright.codegen.generate import generate_kernel
from kernelwright.codegen.reference.recurrence import evaluate
from kernelwright.codegen.source import Unsuitable
from kernelwright.ir.node import Node, constant, make
from kernelwright.ir.ops.recurrence import recurrence


def _leaky(memory: Node, x: Node, decay: Node):
    rises = make("add", make("mul", memory, decay), x)
    spikes = make("cast", make("gt", rises, constant(0.5)), to="float32", dtype="float32", shape=rises.shape)
    return [make("sub", rises, spikes)], [spikes]


def _several_weights(memory: Node, state: Node, x: Node, keep: Node, new: Node, scale: Node):
    """A state that another one beside it remembers, two matrices, and a value that is no state."""
    gate = make("sigmoid", make("add", make("linear", state, keep), x))
    own = make("linear", state, new)
    shown = make("mul", make("tanh", make("add", own, make("mul", scale, memory))), gate)
    return [make("add", make("mul", gate, memory), make("sub", shown, state)), make("sin", shown)], [shown]


def _momentum(y: Node, before: Node, x: Node):
    """Of two steps before: a state that hands on another one."""
    return [make("add", make("mul", y, constant(0.5)), make("add", make("mul", before, constant(-0.25)), x)), y], []


def _turning(state: Node, x: Node):
    """Sines and cosines, which take another path for angles that are far."""
    return [make("sin", make("add", make("mul", state, constant(0.5)), x))], [make("cos", make("mul", x, state))]


def _outer(state: Node, decay: Node, x: Node, b: Node):
    """States of three axes, with operands that lack some of them."""
    part = make("reshape", x, shape=(*x.shape, 1))
    return [make("add", make("mul", make("exp", decay), state), make("mul", part, make("reshape", b, shape=(
        b.shape[0], 1, b.shape[1]))))], []


_RESULTS = ([(1, None, False), (0, None, False)], [(2, 1, False), (1, 0, True), (0, 0, False)], [(1, 1, False)])
#: A layer of each number of gates: those of one differ in a function alone.
WIDTHS = ("lstm", "gru", "rnn_tanh")
#: Sizes below, at and above those of vectors, panels and blocks of rows, with all that is given and stored.
CASES = [
    *(layer(kind, 5, batch, hidden)
      for kind, (batch, hidden) in product(WIDTHS, ((1, 1), (3, 16), (7, 33), (13, 64)))),
    layer("rnn_relu", 5, 7, 33),
    *(layer(kind, 4, 2, 20, reverse=True, batch_first=True, given=()) for kind in KINDS),
    *(layer(kind, 3, 5, 70, batch_first=True, given=given) for kind in WIDTHS for given in (("bias",), ("state",))),
    layer("lstm", 6, 4, 24, given=("memory",), results=("memory",)),
    layer("lstm", 6, 4, 24, given=("bias", "memory"), results=("memory", "states"), reverse=True),
    layer("lstm", 3, 9, 130, results=("states",)),
    layer("gru", 1, 17, 48), layer("rnn_relu", 2, 40, 8), layer("rnn_tanh", 2, 1, 200),
    *(cell("leaky", 9, (batch, hidden), [((9, batch, hidden), 0, 0, 1), ((hidden,),)], _leaky, [0.0],
           [(0, None, False), (1, 0, False), (0, 1, True)]) for batch, hidden in ((1, 1), (5, 300), (70, 9))),
    *(cell("weights", 7, (batch, hidden), [((batch, 7, hidden), 1, 6, -1), ((hidden, hidden),), ((hidden, hidden),),
                                           ((batch, 1),), ((1, hidden),)],
           lambda memory, state, x, keep, new, scale, _: _several_weights(memory, state, x, keep, new, scale),
           [4, 0.25], results)
      for batch, hidden, results in ((1, 3, _RESULTS[0]), *((6, 40, results) for results in _RESULTS),
                                     (11, 65, _RESULTS[1]))),
    *(cell("momentum", 8, shape, [((8, *shape), 0, 0, 1)], _momentum, [0.0, 1.0], [(0, 0, False), (1, None, False)])
      for shape in ((4,), (2, 3, 40))),
    cell("turning", 5, (2, 300), [((5, 2, 300), 0, 0, 1)], _turning, [0.5], [(0, 0, False), (1, 1, False)]),
    cell("outer", 6, (3, 5, 4), [((5, 4),), ((3, 6, 5), 1, 0, 1), ((6, 3, 4), 0, 5, -1)], _outer, [0.0],
         [(0, 0, False), (0, None, False)]),
]


@pytest.fixture(scope="module", params=["cpp", "cuda"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    target = request.param
    sources = [generate_kernel(case.kernel, f"k{n}_recurrence", target) for n, case in enumerate(CASES)]
    return target, sources, compiled(sources, target, tmp_path_factory.mktemp("recurrence"))


numbered = pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n].name}")


@numbered
def test_records_mean_what_nodes_mean(number):
    case, inputs = CASES[number], tensors(CASES[number])
    wanted = expected(case, inputs)
    found = evaluate(case.kernel, [t.double() for t in inputs], [w.numel() for w in wanted])
    for ours, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.reshape(right.shape), right.double(), rtol=1e-11, atol=1e-12)


@numbered
def test_states_and_memories(library, number):
    target, sources, built = library
    case, inputs = CASES[number], tensors(CASES[number])
    wanted = expected(case, inputs)
    found = []
    for _ in range(2):
        outputs = [aligned(w.numel(), torch.float32).fill_(float("nan")) for w in wanted]
        launch(built, sources[number], target, inputs, outputs)
        found.append([o.reshape(w.shape) for o, w in zip(outputs, wanted, strict=True)])
    for once, again, right in zip(*found, wanted, strict=True):
        assert torch.equal(once, again)
        torch.testing.assert_close(once.double(), right.double(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("number", [n for n, c in enumerate(CASES) if c.cell.shape[0] > 2][::3])
def test_results_are_those_of_any_number_of_threads(library, number):
    target, sources, built = library
    if target != "cpp":
        pytest.skip("a device's threads are chosen with the text")
    inputs, wanted = tensors(CASES[number]), expected(CASES[number], tensors(CASES[number]))
    found = []
    for threads in (1, 2, 3, 7):
        built.omp_set_num_threads(threads)
        outputs = [aligned(w.numel(), torch.float32) for w in wanted]
        launch(built, sources[number], target, inputs, outputs)
        found.append(outputs)
    built.omp_set_num_threads(torch.get_num_threads())
    for outputs in found[1:]:
        assert all(map(torch.equal, outputs, found[0]))


@pytest.mark.parametrize("number", [n for n, c in enumerate(CASES) if c.name in KINDS and c.cell.shape[0] > 2
                                    and c.results[0][0] == 0])
def test_what_is_not_finite_stays_so(library, number):
    """NaN in one row of the batch reaches that row alone, also through a rectifier."""
    target, sources, built = library
    case, inputs = CASES[number], tensors(CASES[number])
    first = case.cell.operands[0]
    inputs[0].select(first.axis, first.start)[1] = float("nan")
    output = [aligned(w.numel(), torch.float32) for w in expected(case, inputs)]
    launch(built, sources[number], target, inputs, output)
    states = output[0].reshape(case.cell.steps, *case.cell.shape)
    last = 0 if case.results[0][2] else -1
    assert states[last, 1].isnan().all() and not states[:, 0].isnan().any() and not states[:, 2].isnan().any()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_weight_that_is_no_number_meets_a_state_of_zeros(library, value):
    """Zero times infinity is NaN at the first step, too, where zeros are else not multiplied."""
    target, sources, built = library
    for number, case in enumerate(CASES):
        if case.name not in KINDS or case.cell.initial[0].op != "literal":
            continue
        inputs = tensors(case)
        inputs[1][-1, 0] = value
        wanted = expected(case, inputs)
        outputs = [aligned(w.numel(), torch.float32) for w in wanted]
        launch(built, sources[number], target, inputs, outputs)
        for ours, right in zip(outputs, wanted, strict=True):
            torch.testing.assert_close(ours.reshape(right.shape).double(), right, rtol=2e-5, atol=2e-6, equal_nan=True)


def test_a_jump_sees_what_pytorchs_sees(library):
    """Products are not fused into sums of a cell without gates: whether it spikes is decided by the rounded sum."""
    target, sources, built = library
    number = next(n for n, c in enumerate(CASES) if c.name == "leaky" and c.cell.shape == (5, 300))
    case, (x, decay) = CASES[number], tensors(CASES[number])
    wanted = recurrence(x, decay, **dict(case.nodes[1].attributes))
    outputs = [aligned(5 * 300 * (9 if n else 1), torch.float32) for n in range(3)]
    launch(built, sources[number], target, [x, decay], outputs)
    assert torch.equal(outputs[1].reshape(wanted.shape), wanted) and 0 < wanted.sum() < wanted.numel()


# Layouts on a device ---------------------------------------------------------------------------------


def layouts_of(case: Case) -> list[Layout]:
    """Some layouts that hold the kernel's weights, of every number of blocks, and such that leave weights to shared
    memory although registers have room, and take several rows at once."""
    by_cluster: dict[int, list[Layout]] = {}
    batch, hidden = case.kernel.shape
    for layout in layouts(case.kernel.gates, batch, hidden):
        if not layout.grid:
            by_cluster.setdefault(layout.cluster, []).append(layout)
    some = [found[batch % len(found)] for found in by_cluster.values()]
    few = replace(by_cluster[4][0], grid=True, rows=batch)  # blocks, as the emulation runs not many at once
    most = max((x for found in by_cluster.values() for x in found), key=lambda x: x.quads)
    return [*some, few, replace(few, together=2), replace(most, held=most.quads // 2),
            replace(some[0], held=0, rows=min(3, batch), together=2)]


LAID_OUT = [(case, layout) for case in (layer("lstm", 4, 3, 45), layer("gru", 3, 5, 96, reverse=True),
                                        layer("rnn_tanh", 3, 4, 130, batch_first=True), layer("rnn_relu", 3, 2, 19))
            for layout in layouts_of(case)]


def test_every_layout_computes_the_same(tmp_path):
    assert {layout.cluster for _, layout in LAID_OUT} == {1, 2, 4, PORTABLE, 2 * PORTABLE}
    assert any(0 < layout.held < layout.quads for _, layout in LAID_OUT) and any(x.held == 0 for _, x in LAID_OUT)
    assert sum(layout.grid for _, layout in LAID_OUT) == 8
    assert any(layout.together > 1 for _, layout in LAID_OUT) and any(x.own > 1 for _, x in LAID_OUT)
    sources = [generate.generate(case.kernel, f"k{n}_recurrence", layout) for n, (case, layout) in enumerate(LAID_OUT)]
    built = compiled(sources, "cuda", tmp_path)
    for source, (case, layout) in zip(sources, LAID_OUT, strict=True):
        inputs = tensors(case)
        wanted = expected(case, inputs)
        outputs = [aligned(w.numel(), torch.float32).fill_(float("nan")) for w in wanted]
        launch(built, source, "cuda", inputs, outputs)
        for found, right in zip(outputs, wanted, strict=True):
            torch.testing.assert_close(found.reshape(right.shape).double(), right, rtol=2e-5, atol=2e-6,
                                       msg=lambda text, layout=layout: f"{layout}: {text}")


@pytest.mark.parametrize(("gates", "batch", "hidden"), [(g, b, h) for g in (1, 3, 4) for b in (1, 10, 64, 300, 5000)
                                                        for h in (1, 31, 64, 128, 256, 300, 512, 1024)])
def test_layouts_hold_all_weights_and_rows(gates, batch, hidden):
    found = list(layouts(gates, batch, hidden))
    assert choose(gates, batch, hidden) in (found or [None]) and (found or batch * hidden > 10000)
    for layout in found:
        groups = layout.threads // layout.slices
        assert layout.units * layout.cluster >= hidden > layout.units * (layout.cluster - 1)
        assert layout.own * groups >= layout.units and layout.padded >= hidden
        assert 4 * layout.held * layout.own * gates <= (72 if layout.threads == 512 else 160)
        assert layout.shared_bytes(gates) <= 227 * 1024 and 1 <= layout.together <= layout.rows <= batch


def test_what_not_every_device_runs_is_the_last_choice():
    assert choose(4, 10, 256).cluster <= PORTABLE < choose(4, 10, 512).cluster
    assert not choose(4, 10, 256).grid and choose(4, 10, 1024).grid


def test_a_state_that_no_device_holds_is_refused():
    with pytest.raises(Unsuitable, match="4096 elements"):
        generate_kernel(layer("lstm", 3, 2, 4096).kernel, "k0_recurrence", "cuda")
