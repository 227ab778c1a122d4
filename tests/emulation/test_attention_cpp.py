"""Attention of C++ against its meaning in float64: sizes, scores, magnitudes, and what is not finite."""

from __future__ import annotations

import pytest
import torch
from attention_cases import CASES, Case, attention, error
from native_tools import aligned, compiled, launch

from kernelwright.codegen.cpp.attention import generate
from kernelwright.codegen.source import Unsuitable

#: One for each way through the text: sizes of tiles and beside them, scores with and without arrays of their own.
SIZES = [case for case in CASES if case.name == "sizes" and case.kernel.domain[2:] in (
    (200, 1, 8, 16), (63, 65, 17, 7), (129, 127, 33, 129), (16, 17, 1, 200), (40, 33, 255, 136))]
OTHERS = [case for case in CASES if case.name in (
    "divided", "mask", "bias of a column", "numbers", "of everything", "decays", "causal and rectified",
    "causal and biased")]
CAUSAL = [case for case in CASES if case.name == "causal" and case.kernel.shift in (0, 30, -30)]
TAKEN = [*SIZES, *OTHERS, *CAUSAL]
KINDS = {name: next(n for n, case in enumerate(TAKEN) if case.name == name) for name in (
    "divided", "of everything", "decays", "causal")}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory):
    sources = [generate.generate(case.kernel, f"k{n}_attention") for n, case in enumerate(TAKEN)]
    return sources, compiled(sources, "cpp", tmp_path_factory.mktemp("attention"))


def run(library: tuple, number: int, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The result of a case's kernel."""
    sources, built = library
    output = aligned(TAKEN[number].node.size, torch.float32).fill_(-7.0)
    launch(built, sources[number], "cpp", inputs, [output])
    return output.reshape(TAKEN[number].node.shape)


def check(case: Case, inputs: list[torch.Tensor], found: torch.Tensor, beside: float = 3e-7) -> None:
    """No further from float64 than twice what PyTorch's float32 is, and not finite where float64 is not."""
    wanted, eager = case.computed(inputs), case.computed(inputs, torch.float32)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.isinf(), wanted.float().isinf())
    ours, theirs = (error(case, inputs, result, wanted) for result in (found, eager))
    assert ours <= 2 * theirs + beside, (case.name, ours, theirs)


@pytest.mark.parametrize("number", range(len(TAKEN)), ids=lambda n: f"{n}-{TAKEN[n].name}")
def test_results(library, number):
    case, inputs = TAKEN[number], TAKEN[number].tensors()
    once, again = (run(library, number, inputs) for _ in range(2))
    assert torch.equal(once.nan_to_num(), again.nan_to_num())
    check(case, inputs, once)


@kinds
@pytest.mark.parametrize("scales", [(1e-25, 1, 1), (1, 1e25, 1), (1, 1, 1e-25), (1, 1, 1e25), (1e25, 1e-25, 1),
                                    (1e-25, 1e-25, 1e-25)], ids=str)
def test_every_magnitude_comes_through(library, kind, scales):
    case, inputs = TAKEN[KINDS[kind]], TAKEN[KINDS[kind]].tensors()
    inputs[:3] = [t * scale for t, scale in zip(inputs, scales, strict=False)]
    check(case, inputs, run(library, KINDS[kind], inputs))


@pytest.mark.parametrize("kind", ["divided", "of everything", "causal"])
def test_means_of_values_near_the_end_of_the_range_are_finite(library, kind):
    """Sums of these that are not divided yet are not."""
    case, inputs = TAKEN[KINDS[kind]], TAKEN[KINDS[kind]].tensors()
    inputs[2] = torch.full_like(inputs[2], 3e38)
    found = run(library, KINDS[kind], inputs)
    assert bool(found.isfinite().all())
    check(case, inputs, found)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("kind", "operand"), [(k, n) for k in KINDS for n in range(3)])
def test_what_is_not_finite_reaches_what_it_reaches_in_pytorch(library, kind, operand, value):
    case, inputs = TAKEN[KINDS[kind]], TAKEN[KINDS[kind]].tensors()
    inputs[operand].flatten(0, -3)[-1, 11, 5] = value
    check(case, inputs, run(library, KINDS[kind], inputs))


def test_columns_that_are_hidden_have_no_influence(library):
    number = KINDS["causal"]
    case = TAKEN[number]
    before = run(library, number, case.tensors())
    for operand in (1, 2):
        for value in (float("nan"), float("inf"), 1e30):
            inputs = case.tensors()
            inputs[operand][:, :, 90:] = value
            found = run(library, number, inputs)
            torch.testing.assert_close(found[:, :, :90], before[:, :, :90], rtol=1e-5, atol=1e-6)


def test_threads_change_no_bit(library):
    number = KINDS["divided"]
    inputs, built = TAKEN[number].tensors(), library[1]
    before, found = built.omp_get_max_threads(), []
    try:
        for count in (1, 3):
            built.omp_set_num_threads(count)
            found.append(run(library, number, inputs))
    finally:
        built.omp_set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.parametrize(("sizes", "words"), [((70, 300, 2000, 100), "2000"), ((15, 3000, 64, 64), "15 leave most")])
def test_sizes_that_no_vectors_suit_are_refused(sizes, words):
    with pytest.raises(Unsuitable, match=words):
        generate.generate(attention("unsuitable", *sizes).kernel, "k0_attention")
