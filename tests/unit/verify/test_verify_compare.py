"""VERIFY compares outputs with a reference, and draws inputs from distributions."""

from __future__ import annotations

import collections
import json
import math

import pytest
import torch
from test_verify import random

from kernelwright.verify import DISTRIBUTIONS, Tolerance, compare
from kernelwright.verify.choices import with_choices_of
from kernelwright.verify.compare import compare_with_eager
from kernelwright.verify.computation import nonfinite, settled, without_lost
from kernelwright.verify.flatten import clone_tensors, flatten, map_paths, tensors_of
from kernelwright.verify.statistics import BLOCK_ELEMENTS, measure_error, spread
from kernelwright.verify.ties import with_signs_of


def one(candidate, eager, reference, **options):
    return compare(candidate, eager, reference, **options).outputs[0]


# --- comparing ------------------------------------------------------------------------------------


def test_eager_itself_passes_and_figures_are_right() -> None:
    reference = random(6, 5, 40)
    eager = reference.float()
    candidate = eager.clone()
    candidate[2, 3, 7] += 1e-6
    found = one(candidate, eager, reference)
    assert found.passed
    error = (candidate.double() - reference).abs()
    assert found.worst_absolute == pytest.approx(float(error.max()))
    assert found.worst_index == (2, 3, 7)
    assert found.relative == pytest.approx(float(error.norm() / reference.norm()))
    assert found.elements == 1200 and found.shape == (6, 5, 40)


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.complex64])
def test_what_a_type_loses_is_counted_beside_large_sums(kind) -> None:
    """Elements whose sum leaves the range are finite, all the same, and one that is not is found among them."""
    wide = torch.complex128 if kind.is_complex else torch.float64
    exact = torch.full((3, 4), 0.9 * torch.finfo(kind).max, dtype=wide)
    value = exact.to(kind)
    assert not bool(torch.view_as_real(value).sum().isfinite() if kind.is_complex else value.sum().isfinite())
    assert nonfinite(value, exact) == 0 and without_lost(value, exact) is None
    value[1, 2] = math.inf
    assert nonfinite(value, exact) == 1
    lost, right = without_lost(value, exact) or (value, exact)
    assert int(lost.isnan().sum()) == int(right.isnan().sum()) == 1
    ordinary, small = torch.ones(3, 4, dtype=exact.dtype), 2 * torch.finfo(kind).smallest_normal
    ordinary[0, 1] = small
    held = ordinary.to(kind)
    assert without_lost(held, ordinary) is None and nonfinite(held, ordinary) == 0
    held[0, 1] = 0.0
    lost, _ = without_lost(held, ordinary) or (held, ordinary)
    assert lost.isnan().nonzero().tolist() == ([[0, 1]])
    ordinary[0, 1] = math.inf
    assert without_lost(held, ordinary) is None


def test_errors_are_spread_over_elements_as_they_are() -> None:
    """Of a sample at equal distances; in any order of axes, and where NaN stand."""
    reference = torch.ones(8, 1000, dtype=torch.float64)
    wrong, eager = reference.clone(), reference.clone()
    wrong[:, ::20] += 1e-4  # one element of twenty
    eager += 1e-6
    found = one(wrong, eager, reference)
    assert found.spread == pytest.approx((0.0, 0.0, 1e-4, 1e-4)) and found.eager_spread == pytest.approx((1e-6,) * 4)
    turned = [t.t().contiguous().t() for t in (wrong, eager, reference)]
    assert one(*turned).spread == pytest.approx(found.spread)
    for t in (wrong, eager, reference):
        t[0] = math.nan
    assert one(wrong, eager, reference).spread == pytest.approx(found.spread)
    single = torch.tensor(2.0, dtype=torch.float64)
    assert one(single + 2e-7, single, single).spread == pytest.approx((1e-7,) * 4)
    far = torch.ones(3, 5, 7, 11, dtype=torch.float64).transpose(0, 2)  # so few that all are looked at
    moved = far.clone()
    moved[4, 0, 1, 6] += 0.5
    assert spread(moved, far)[-1] == 0.5 and spread(far[:, :0], far[:, :0]) == ()
    nothing = torch.zeros(3, dtype=torch.float64)
    assert one(nothing, nothing, nothing).spread == () and one(nothing[:0], nothing[:0], nothing[:0]).spread == ()


def test_zeros_under_the_absolute_tolerance_are_rejected() -> None:
    reference = torch.softmax(random(16, 4096) * 0.1, 1) * 1e-3  # all far below atol
    eager = reference.float()
    zeros = torch.zeros_like(eager)
    assert torch.allclose(zeros, eager, atol=1e-5, rtol=1e-5)
    found = one(zeros, eager, reference)
    assert not found.passed and found.relative == pytest.approx(1.0)
    assert "the relative error is 1, PyTorch's own is " in found.sentence()
    assert one(eager, eager, reference).passed


def test_a_tiny_channel_cannot_hide_beside_large_ones() -> None:
    reference = random(4, 8, 64)
    reference[:, 5] *= 1e-7
    eager = reference.float()
    candidate = eager.clone()
    candidate[:, 5] = 0
    found = one(candidate, eager, reference)
    assert not found.passed
    assert "slice 5 of axis 1" in found.sentence()
    assert len(found.problems) == 1  # neither the elements nor the whole output show it


def test_zeros_of_a_relu_are_no_evidence():
    """A column that is clipped but for a few elements has as much luck as those few have, on either side."""
    torch.manual_seed(0)
    layer, refused = torch.nn.Linear(64, 256), 0
    with torch.no_grad():
        for seed in range(60):
            x = torch.randn(48, 64, generator=torch.Generator().manual_seed(seed))
            bias = layer.bias - 1.2  # most elements are clipped
            eager = torch.relu(x @ layer.weight.T + bias)
            other = torch.relu(sum(x[:, k:k + 4] @ layer.weight[:, k:k + 4].T for k in range(0, 64, 4)) + bias)
            reference = torch.relu(x.double() @ layer.weight.double().T + bias.double())
            refused += not compare(other, eager, reference).passed
    assert refused == 0


def test_a_single_element_is_no_slice():
    """In a vector every element is the whole of its slice: one that is almost zero has no digits of its own, and the
    element and the vector are judged already."""
    reference = torch.linspace(-1, 1, 201, dtype=torch.float64) + 1e-5
    eager = reference.float()
    candidate = eager + 1e-9
    candidate[100] += 1e-8  # a thousandth of that element
    assert compare(candidate, eager, reference).passed
    candidate[100] += 1e-4
    assert not compare(candidate, eager, reference).passed


def test_channels_off_by_one_are_rejected() -> None:
    reference = random(3, 6, 10)
    eager = reference.float()
    found = one(eager.roll(1, 1), eager, reference)
    assert not found.passed and found.failing_share > 0.9


def test_as_accurate_as_eager_is_enough_and_much_worse_is_not() -> None:
    reference = random(32, 256)
    noise = random(32, 256, seed=1) * 3e-4  # as with TF32
    eager = (reference + noise).float()
    same = (reference - noise * 1.5).float()
    worse = (reference - noise * 3).float()
    assert not torch.allclose(same.double(), reference, atol=1e-5, rtol=1e-5)
    assert one(same, eager, reference).passed
    assert not one(worse, eager, reference).passed
    assert one(worse, eager, reference, tolerance=Tolerance(multiple=4.0)).passed
    exact = reference.float()
    assert one(exact, eager, reference).passed
    assert not one(same, exact, reference).passed


def test_output_that_is_zero_but_for_rounding() -> None:
    """The mean of a normalised tensor: float64 gives 1e-17, float32 1e-8, and a candidate exactly zero."""
    reference = random(16) * 1e-17
    eager = (random(16, seed=1) * 1e-8).float()
    assert one(torch.zeros(16), eager, reference).passed
    assert one((random(16, seed=2) * 1e-8).float(), eager, reference).passed
    assert not one(torch.full((16,), 1e-3), eager, reference).passed


@pytest.mark.parametrize("values", [(math.nan, math.nan), (math.inf, math.inf), (-math.inf, -math.inf)])
def test_nonfinite_where_the_reference_has_it(values: tuple[float, float]) -> None:
    reference = random(4, 8)
    reference[1, 2] = values[0]
    eager = reference.float()
    assert one(eager.clone(), eager, reference).passed
    missing = eager.clone()
    missing[1, 2] = 0
    found = one(missing, eager, reference)
    assert not found.passed and found.misplaced_nonfinite == 1 and "(1, 2)" in found.sentence()
    moved = eager.clone()
    moved[1, 2], moved[3, 3] = 0, values[1]
    assert one(moved, eager, reference).misplaced_nonfinite == 2


def test_kinds_of_nonfinite_and_overflow() -> None:
    reference = random(4, 8)
    reference[0, 0] = math.inf
    eager = reference.float()
    candidate = eager.clone()
    candidate[0, 0] = math.nan
    assert not one(candidate, eager, reference).passed
    assert one(candidate, eager, reference, tolerance=Tolerance(nonfinite="position")).passed
    # float32 overflows in the middle of the computation, float64 does not: both answers are accepted.
    reference[0, 0] = 3.0
    assert one(eager.clone(), eager, reference).passed
    candidate[0, 0] = 3.0
    assert one(candidate, eager, reference).passed
    candidate[0, 0] = 4.0
    assert not one(candidate, eager, reference).passed
    candidate[0, 0] = math.nan
    assert not one(candidate, eager, reference).passed


def test_shape_dtype_type_and_nesting() -> None:
    reference = random(4, 8)
    eager = reference.float()
    assert "shape" in one(eager[:, :7], eager, reference).sentence()
    assert "dtype" in one(reference, eager, reference).sentence()

    class Lazy(torch.Tensor):
        pass

    assert not one(eager.as_subclass(Lazy), eager, reference).passed
    found = compare((eager,), (eager, eager), (reference, reference))
    assert not found.passed and found.structure == ("output[1] is missing.",)
    nested = {"a": [eager, 3], "b": None}
    assert compare(nested, nested, {"a": [reference, 3], "b": None}).passed
    assert not compare({"a": [eager, 4], "b": None}, nested, nested).passed
    assert list(flatten((1, {"k": [2]}))) == ["output[0]", "output[1]['k'][0]"]
    strided = eager.t().contiguous().t()
    assert one(strided, eager, reference).passed and one(strided, eager, reference).strides == (1, 4)


def test_integers_are_equal_or_wrong() -> None:
    eager = torch.arange(12).reshape(3, 4)
    assert one(eager.clone(), eager, eager).passed
    candidate = eager.clone()
    candidate[2, 1] = 0
    found = one(candidate, eager, eager)
    assert not found.passed and found.worst_index == (2, 1) and "1 of 12" in found.sentence()
    tie = eager.clone()
    tie[2, 1] = 0
    assert one(candidate, eager, tie).passed  # float64 decides this near tie otherwise than eager
    assert not one(torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool), torch.zeros(3)).passed


@pytest.mark.parametrize("shape", [(), (7,), (5, 9), (3, 4, 5), (2, 3, 4, 5), (1, 2, 101)])
def test_blocks_do_not_change_the_statistics(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    reference = random(*shape)
    eager = (reference + random(*shape, seed=1) * 1e-6).float()
    candidate = (reference + random(*shape, seed=2) * 1e-4).float()
    whole = measure_error(candidate, eager, reference, atol=1e-5, rtol=1e-5)
    for limit in (1, 7, 16):
        monkeypatch.setitem(BLOCK_ELEMENTS, "cpu", limit)
        parts = measure_error(candidate, eager, reference, atol=1e-5, rtol=1e-5)
        assert parts.worst_index == whole.worst_index and parts.failing == whole.failing
        assert parts.square_error == pytest.approx(whole.square_error)
        for a, b in zip(parts.slices, whole.slices, strict=True):
            assert torch.allclose(a.error, b.error) and torch.allclose(a.reference, b.reference)
    units = (candidate.double() - reference).abs() / (1e-5 + 1e-5 * reference.abs())
    assert float(units.reshape(shape)[whole.worst_index]) == pytest.approx(float(units.max()))


@pytest.mark.parametrize("case", ["rounded", "eager's bits", "eager is the reference", "zeros", "non-finite"])
def test_statistics_are_those_of_the_plain_formulas(case: str) -> None:
    reference = random(4, 6, 5)
    if case == "zeros":
        reference[:, 2] = 0.0
    eager = (reference + random(4, 6, 5, seed=1) * 1e-6).float()
    reference = eager if case == "eager is the reference" else reference
    candidate = eager.clone() if case == "eager's bits" else (reference + random(4, 6, 5, seed=2) * 1e-4).float()
    finite = torch.ones(4, 6, 5, dtype=torch.bool)
    if case == "zeros":
        eager[0, 2, :2], candidate[0, 2, :2] = 0.0, torch.tensor([-0.0, 0.0])
    if case == "non-finite":
        eager[1, 1, 1] = reference[1, 1, 1] = candidate[1, 1, 1] = torch.inf
        candidate[2, 3, 4] = torch.nan
        finite[1, 1, 1] = finite[2, 3, 4] = False
    found = measure_error(candidate, eager, reference, atol=1e-5, rtol=1e-5)
    exact = torch.where(finite, reference.double(), 0.0)
    own, theirs = (torch.where(finite, t.double() - exact, 0.0).abs() for t in (candidate, eager))
    allowed = 1e-5 + 1e-5 * exact.abs()
    assert found.compared == int(finite.sum()) and found.misplaced == (case == "non-finite")
    assert found.zero_signs == (case == "zeros")
    assert found.failing == int((own / allowed > 1).sum()) and found.eager_failing == int((theirs / allowed > 1).sum())
    assert (found.failing > 0) == (case != "eager's bits")
    for got, wanted in ((found.worst_units, (own / allowed).max()), (found.eager_worst_units, (theirs / allowed).max()),
                        (found.worst_absolute, own.max()), (found.eager_worst_absolute, theirs.max()),
                        (found.square_error, own.square().sum()), (found.eager_square_error, theirs.square().sum()),
                        (found.square_reference, exact.square().sum())):
        assert got == pytest.approx(float(wanted), rel=1e-12)
    for sums, others in zip(found.slices, ((1, 2), (0, 2)), strict=True):
        for total, part in ((sums.error, own.square()), (sums.eager_error, theirs.square()),
                            (sums.reference, exact.square()), (sums.nonzero, (exact != 0).double())):
            assert torch.allclose(total, part.sum(others), rtol=1e-12, atol=0.0)


def test_elements_that_cancel_may_be_off_by_a_share_of_the_whole() -> None:
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    exact[3, 4] = 1e-3
    eager, other = exact.float(), exact.float()
    other[3, 4] = 0.06
    usual = {"atol": 2e-2, "rtol": 2e-2, "scaled": 2e-2}
    assert not compare(other, eager, exact, tolerance=Tolerance(**usual)).passed
    assert compare(other, eager, exact, tolerance=Tolerance(**usual, of_size=0.1)).passed
    other[3, 4] = 0.2
    assert not compare(other, eager, exact, tolerance=Tolerance(**usual, of_size=0.1)).passed
    assert not compare(1.03 * eager, eager, exact, tolerance=Tolerance(**usual, of_size=0.1)).passed


def test_comparison_has_a_json_form() -> None:
    reference = random(4, 4)
    reference[0, 0] = math.nan
    found = compare([reference.float()], [reference.float()], [reference])
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["passed"] is True


# --- distributions --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_what_is_drawn_lies_in_memory_as_it_did(name: str) -> None:
    """A model gives results in the order of what it is given, and what is expanded is one element."""
    given = [torch.rand(4, 1, 6).expand(4, 5, 6), torch.rand(3, 8)[:, ::2], torch.rand(2, 3, 4).transpose(0, 2),
             torch.arange(6).expand(2, 6), torch.ones(3, 4, dtype=torch.bool).t()]
    found = DISTRIBUTIONS[name].apply(given, 1)
    for copied in (found, clone_tensors(given), clone_tensors(found)):
        assert [x.stride() for x in copied] == [x.stride() for x in given]
        assert torch.equal(copied[3], given[3]) and torch.equal(copied[4], given[4])
        assert not {x.data_ptr() for x in copied} & {x.data_ptr() for x in given}


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_distributions(name: str) -> None:
    given = [
        torch.rand(8, 16, generator=torch.Generator().manual_seed(3)),
        torch.arange(5),
        2.0,
        torch.rand(()),
    ]
    before, random_state = (
        [v.clone() if isinstance(v, torch.Tensor) else v for v in given],
        torch.get_rng_state(),
    )
    distribution = DISTRIBUTIONS[name]
    first, second, other = (distribution.apply(given, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(given[:2], before[:2], strict=True))
    assert torch.equal(random_state, torch.get_rng_state())
    assert torch.equal(first[1], given[1]) and first[2] == 2.0 and first[0].shape == (8, 16)
    assert torch.equal(first[0].nan_to_num(7.0), second[0].nan_to_num(7.0))
    finite = torch.isfinite(first[0])
    assert bool(finite.all()) != distribution.plants
    if distribution.plants:
        assert int((~finite).any(1).sum()) == 1  # one entry only
    if name in ("normal", "large", "heavy-tailed", "sparse", "with NaN"):
        assert not torch.equal(first[0], other[0])
    if name == "shifted":
        assert bool((first[0] < 0).any()) and bool((first[0] > 0).any())
    if name == "heavy-tailed":
        assert float(first[0].abs().max()) >= 100


class Named(collections.OrderedDict):
    """As results of large libraries' models are: each part is an attribute, too; and one that is no part."""

    def __init__(self, **parts: object) -> None:
        super().__init__(**parts)
        self.__dict__.update(parts)
        self.extra = torch.full((3,), 7.0)


def test_parts_that_are_attributes_too_are_met_once() -> None:
    """What works by paths takes each part for the one that it is, also behind attributes of a class of its own."""
    eager = [Named(x=torch.tensor([0.0, -0.0, 3.0]), inner=[Named(y=torch.tensor([1.0, 2.0]))]), torch.tensor([5.0])]
    own = [Named(x=torch.tensor([-0.0, -0.0, 3.0]), inner=[Named(y=torch.tensor([1.0, 4.0]))]), torch.tensor([6.0])]
    met: list[str] = []
    copied = map_paths(eager, lambda path, tensor: (met.append(path), tensor + 1)[1])
    assert met == list(flatten(eager)) and copied[0].x is copied[0]["x"] and copied[0].extra.tolist() == [7.0] * 3
    assert torch.equal(copied[0]["inner"][0].y, torch.tensor([2.0, 3.0])) and copied[1].item() == 6.0
    signs = with_signs_of(own, eager, [own])
    assert torch.signbit(signs[0].x).tolist() == [True, True, False] and torch.equal(signs[1], eager[1])
    chosen = with_choices_of(own, eager, [own], Tolerance(), compare(own, eager, eager))
    assert chosen[0]["inner"][0]["y"].tolist() == [1.0, 2.0] and chosen[1].item() == 5.0
    lost = [Named(x=torch.tensor([torch.inf, 1.0, 3.0]), inner=[Named(y=torch.tensor([1.0, 2.0]))]),
            torch.tensor([5.0])]
    found = without_lost(lost, [{"x": torch.tensor([1e30, 1.0, 3.0], dtype=torch.float64),
                                 "inner": [{"y": torch.tensor([1.0, 2.0], dtype=torch.float64)}]},
                                torch.tensor([5.0], dtype=torch.float64)])
    assert found is not None and torch.isnan(found[0][0].x).tolist() == [True, False, False]
    assert found[0][1].item() == 5.0
    assert len(tensors_of(clone_tensors(eager))) == len(tensors_of(eager))


def test_zeros_of_eager_are_no_evidence_where_most_of_them_are_lost_values() -> None:
    """A ReLU behind a norm whose squares overflow: eager is zero all over, float64 where the ReLU makes it so, and a
    candidate that computes these numbers rounds some of them to the other side of zero."""
    normalised = random(8, 4, 100, seed=3)
    exact, eager = normalised.clamp_min(0), torch.zeros(8, 4, 100)
    rounded = (normalised + 1e-3 * random(8, 4, 100, seed=4)).clamp_min(0).float()
    assert one(*settled(rounded, eager, exact)).passed


@pytest.mark.parametrize("lost", [0, 8])
def test_few_lost_values_leave_the_other_zeros_of_eager_what_they_are(lost: int) -> None:
    exact = random(8, 4, 100, seed=3).clamp_min(0)
    eager, candidate = exact.float(), exact.float()
    positive, zeros = (exact > 0).nonzero(), (exact == 0).nonzero()
    for place in positive[:lost].tolist():
        eager[tuple(place)] = 0
    assert one(*settled(candidate, eager, exact)).passed
    candidate[tuple(zeros[0].tolist())] = 1e-3
    assert not one(*settled(candidate, eager, exact)).passed


# --- jumps at places that rounding chooses --------------------------------------------------------


def jumping(slices: list[int], size: float = 0.1, count: int = 200) -> torch.Tensor:
    """What a model gives that takes another way in some slices: of bfloat16's accuracy, and far off in those."""
    result = JUMPS_OF[:, :count] * (1 + random(*JUMPS_OF[:, :count].shape, seed=sum(slices)) * 1e-3)
    for place in slices:
        result[1, place] *= 1 + size
    return result.bfloat16()


JUMPS_OF = torch.rand(8, 200, 64, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 0.5


def jumped(candidate: torch.Tensor, eager: list[int], draws: list[list[int]]):
    tolerance = Tolerance().for_dtype(torch.bfloat16)
    own = jumping(eager)
    moved = [measure_error(jumping(places), own, JUMPS_OF, atol=tolerance.atol, rtol=tolerance.rtol)
             for places in draws]
    return one(candidate, own, JUMPS_OF, moved={"output": moved})


DRAWN = [[11, 60], [150], [33, 90, 199], []]


def test_slices_that_rounding_chooses_may_jump_as_eager_s_do() -> None:
    """As many as in one call of eager's, and so far: a token that goes to another expert."""
    assert jumped(jumping([54, 100]), [7, 20], DRAWN).passed
    assert jumped(jumping([54, 100, 3, 4, 5, 77]), [7, 20], DRAWN).passed
    assert not jumped(jumping([54, 100]), [7, 20], []).passed


@pytest.mark.parametrize(("candidate", "eager", "draws"), [
    (jumping([54], size=0.5), [7, 20], DRAWN),  # farther
    (jumping(list(range(40, 52))), [7, 20], DRAWN),  # more of them
    (jumping([54]), [7], [[7], [7], [7], [7]]),  # eager has its error always there
    (jumping([54]), [], [[], [], [9], []]),  # once is no evidence
    (jumping([54]), [], [[]] * 4),
], ids=["farther", "more", "always", "once", "never"])
def test_what_jumps_otherwise_is_wrong(candidate: torch.Tensor, eager: list[int], draws: list[list[int]]) -> None:
    found = jumped(candidate, eager, draws)
    assert not found.passed and "slice" in " ".join(found.kinds)


def test_sums_that_cancel_excuse_no_other_slice() -> None:
    """Their errors are as large as they are, and larger in one call than in the next: as much is little elsewhere."""
    reference = JUMPS_OF.clone()
    reference[:, :20] *= 1e-4

    def rounded(seed: int, wide: range) -> torch.Tensor:
        result = reference * (1 + random(*reference.shape, seed=seed) * 1e-3)
        for place in wide:
            result[:, place] += 3e-5 * random(8, 64, seed=seed + place)
        return result.bfloat16()

    own, limits = rounded(1, range(0, 3)), Tolerance().for_dtype(torch.bfloat16)
    moved = [measure_error(rounded(9 * n, range(3 * n, 3 * n + 3)), own, reference, atol=limits.atol, rtol=limits.rtol)
             for n in range(1, 5)]
    candidate = own.clone()
    candidate[:, 100] *= 1.1
    found = one(candidate, own, reference, moved={"output": moved})
    assert not found.passed and "slice" in " ".join(found.kinds)


@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_zeros_beyond_a_sample_may_be_rounding(scale: float) -> None:
    """A ReLU makes zeros of one side: some element of a large output lies so near to it that rounding chooses the side,
    as none of the entries does that float64 ran. An element that is wrong by more is still wrong."""
    torch.manual_seed(0)
    exact = torch.randn(512, 256, dtype=torch.float64).mul(scale)
    rounded = exact.float() * (1 + 1e-7 * torch.randn(512, 256))
    eager, candidate = rounded.relu(), (exact.float() * (1 + 1e-7 * torch.randn(512, 256))).relu()
    few = slice(0, 2)
    sampled = compare(candidate[few], eager[few], exact[few].relu())
    assert sampled.passed
    near = candidate.clone()
    near[200, 7], by_eager = 2e-7 * scale, eager.clone()
    by_eager[200, 7] = 0.0
    assert compare_with_eager(near, by_eager, sampled).passed
    far = near.clone()
    far[200, 7] = 2e-4 * scale
    found = compare_with_eager(far, by_eager, sampled)
    assert not found.passed and found.outputs[0].kinds == ("elements",)


def test_what_lies_beside_a_relu_may_round_to_either_side() -> None:
    """Of what eager has without a right digit nothing is left to measure a candidate's by, where its type has lost
    values: that of a candidate is left out, too, up to the size of eager's."""
    exact = torch.randn(4096, dtype=torch.float64).mul(1e25).relu()
    eager, candidate = exact.float(), exact.float()
    exact[:4], eager[:4] = torch.tensor([0.0, 3e18, 0.0, 0.0]), torch.tensor([4e18, 0.0, 0.0, 0.0])
    candidate[:4] = torch.tensor([0.0, 2e18, 1e18, 0.0])

    def passed(mine: torch.Tensor) -> bool:
        return one(*settled(mine, eager, exact)).passed

    assert passed(candidate)
    further = candidate.clone()
    further[3] = 9e18
    assert not passed(further)
    assert not one(candidate, eager.where(exact != 0, 0.0), exact).passed
