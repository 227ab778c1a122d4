"""The matrix of GEMM's tests: what is asked of a kernel whatever its core and its epilogue are, written once.

A module of tests/emulation/gemm lists its kernels, pairs of a case and a tiling, and says what is asked of which:

    libraries = built(CHECKED)        # compiled once for all tests of the file

    class TestMatrix(Matrix):
        entries = CHECKED             # all agree with float64, under the emulation and on a device
        in_orders = one_in(3)         # no order of threads changes a bit of every third one
        not_finite = [0, 2]           # NaN and Inf come out where PyTorch has them

What is asked is the same of all epilogues; `check` knows how far each may be off.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from contraction_cases import ContractionCase
from contraction_tools import (
    Source,
    all_generated,
    compiled,
    generated,
    guessed_scales,
    on_hopper,
    output_sizes,
    run,
    unit,
    wrong_scales,
)

from kernelwright.build.module import find_cuda_compiler
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.contraction import evaluate_contraction
from kernelwright.plan.contraction.record import Contraction

Entry = tuple[ContractionCase, Tiling | None]
Which = Sequence[int] | slice
Check = Callable[..., None]

ALL = slice(None)
#: What rounding to a type may come to, of a value.
HALF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: What rounding of operands and sums may come to: of the sums of magnitudes, of a value that is reduced over channels,
#: and of the greatest total.
_SUMS = {"fp16x3": 2.0**-20, "fp16": 2.0**-10, "native": 2.0**-8}
_CHANNELS = {"fp16x3": 1e-5, "fp16": 1e-2, "native": 1e-4}
_POSITIONS = {"fp16x3": 1e-5, "fp16": 2e-3, "native": 2e-2}


def one_in(step: int) -> slice:
    """One entry in so many."""
    return slice(None, None, step)


def name_of(case: ContractionCase, tiling: Tiling | None) -> str:
    """The id of an entry: its case, and of its tiling, if it has one, what most tests vary."""
    if tiling is None:
        return case.name
    return f"{case.name}-{tiling.core}{tiling.rows}x{tiling.columns}x{tiling.depth}s{tiling.stages}c{tiling.cluster}" \
        f"p{tiling.promote}t{tiling.pingpong}k{tiling.split_k}f{tiling.parities}"


def built(entries: Sequence[Entry], sanitize: bool = True) -> Any:
    """A fixture: a library and its source for each entry."""
    return pytest.fixture(scope="module", name="libraries")(lambda: compiled(all_generated(entries), sanitize))


def same_where_not_finite(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Which values are finite, those that are not being the same."""
    finite = expected.isfinite()
    assert found.shape == expected.shape
    assert torch.equal(found.double()[~finite].nan_to_num(nan=7.0), expected[~finite].nan_to_num(nan=7.0))
    return finite


def bounds(kernel: Contraction, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What rounding of operands and sums may come to in each output: of a pool the greatest of a window counts."""
    most = tuple(replace(pool, kind="max" if pool.kind == "min" else pool.kind) for pool in kernel.pools)
    sizes = evaluate_contraction(replace(kernel, pools=most), [x.abs() for x in inputs])
    found = []
    for size, dtype in zip(sizes, kernel.output_dtypes, strict=True):
        # Operands of 16 bits as they are lose nothing: what is stored does.
        share = 2.0**-20 if kernel.scheme == "native" and dtype == "float32" else _SUMS[kernel.scheme]
        found.append((share + 2 * HALF[dtype] * bool(kernel.pools)) * size.abs() + 1e-30)
    return found


def check_sums(case: ContractionCase, found: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor] | None = None
               ) -> None:
    """Within what rounding may add up to: of the operands, the sum, and the epilogue. Of pools as well."""
    inputs = case.inputs() if inputs is None else inputs
    sizes = bounds(case.kernel, [x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for x in inputs])
    for mine, expected, bound in zip(found, case.expected(inputs), sizes, strict=True):
        finite = same_where_not_finite(mine, expected)
        assert ((mine.double() - expected).abs() <= bound)[finite].all()


def check_channels(case: ContractionCase, found: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor] | None = None,
                   shares: Mapping[str, float] = _CHANNELS) -> None:
    """Of reductions over channels: within a part of each value and of their root mean square, of ``shares`` by scheme.
    """
    inputs = case.inputs() if inputs is None else inputs
    for mine, expected, dtype in zip(found, case.expected(inputs), case.kernel.output_dtypes, strict=True):
        finite = same_where_not_finite(mine, expected)
        usual = expected[finite].square().mean().sqrt() if finite.any() else 0.0
        bound = (shares[case.kernel.scheme] + 2 * HALF[dtype]) * (expected[finite].abs() + usual)
        assert bool(((mine.double() - expected)[finite].abs() <= bound).all())


def check_positions(case: ContractionCase, found: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor] | None = None
                    ) -> None:
    """Of reductions over positions: within a part of the largest of each output."""
    inputs = case.inputs() if inputs is None else inputs
    for mine, expected in zip(found, case.expected(inputs), strict=True):
        finite = same_where_not_finite(mine, expected)
        if finite.any():
            largest = expected[finite].abs().max()
            assert (mine.double() - expected)[finite].abs().max() <= _POSITIONS[case.kernel.scheme] * largest + 1e-44


def check(case: ContractionCase, found: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor] | None = None) -> None:
    """Outputs are those of float64, up to what rounding may come to behind the case's epilogue; what is not finite is
    the same."""
    kernel = case.kernel
    own = check_channels if kernel.reductions else check_positions if kernel.position_reductions else check_sums
    own(case, found, inputs)


def check_closely(case: ContractionCase, found: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor] | None = None
                  ) -> None:
    """`check`, of reductions over channels in ``fp16`` within five times less: for short sums."""
    if case.kernel.reductions:
        check_channels(case, found, inputs, _CHANNELS | {"fp16": 2.0**-9})
    else:
        check(case, found, inputs)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The root mean square of differences, of that of what is expected."""
    return float((found.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def check_as_accurate_as_float32(case: ContractionCase, found: Sequence[torch.Tensor]) -> None:
    """Two terms of 11 bits each lose no more than sums in float32, of which PyTorch has several for each result."""
    inputs = case.inputs()
    expected, single = case.expected(inputs)[0], evaluate_contraction(case.kernel, inputs, torch.float32)[0]
    assert relative_error(found[0], expected) <= max(2 * relative_error(single, expected), 2.5e-7), case.name


def promoted(entries: Sequence[Entry]) -> list[int]:
    """The entries of ``fp16x3`` whose sums are promoted, and stored as they are."""
    return [n for n, (case, tiling, *_) in enumerate(entries) if case.kernel.scheme == "fp16x3" and tiling.promote
            and not (case.kernel.reductions or case.kernel.position_reductions or case.kernel.pools)]


def spoiled(case: ContractionCase, both: bool) -> list[torch.Tensor]:
    """Inputs of which some are not finite: of x in the first and the last image, and ``both``: of the weight, too. A
    zero of the weight meets them."""
    inputs = case.inputs()
    x, w = inputs[0].view(-1), inputs[1].view(-1)
    x[3], x[4], w[-3] = nan, nan, 0.0  # of two neighbours a stride passes by one
    if case.kernel.batch > 1 + bool(case.kernel.position_reductions):  # of a total nothing else would be finite
        x[-1] = inf
    if both:
        w[2] = -inf
    return inputs


class Matrix:
    """What is asked of the kernels of a module, which has a fixture of their ``libraries``.

    entries: the kernels. Numbers of them, or slices, say of which is asked
    agreeing: whether they are those of float64
    in_orders: whether an order of threads, of ``orders``, changes a bit
    as_accurate: whether they are as accurate as sums in float32, where sums of ``fp16x3`` are promoted
    not_finite: whether NaN and Inf of x come out where PyTorch has them, and ``weight_not_finite``: those of the weight
    of_magnitudes: whether operands of ``magnitudes``, whose products are in the range of float32, come through
    side_by_side: whether an image that is tiny, not finite, or zero stands beside others
    on_device: whether a device gives the same
    """

    entries: ClassVar[Sequence[Entry]] = ()
    check: ClassVar[Check] = staticmethod(check)
    agreeing: ClassVar[Which] = ALL
    orders: ClassVar[tuple[str, ...]] = ("reverse", "2026")
    in_orders: ClassVar[Which] = ALL
    as_accurate: ClassVar[Which] = ()
    not_finite: ClassVar[Which] = ()
    weight_not_finite: ClassVar[Which] = ()
    of_magnitudes: ClassVar[Which] = ()
    magnitudes: ClassVar[tuple[tuple[float, float], ...]] = ((1e-35, 1e30), (1e25, 1e-40), (1e-42, 1e36))
    side_by_side: ClassVar[Which] = ()
    on_device: ClassVar[Which] = ALL
    _found: ClassVar[dict[int, list[torch.Tensor]]] = {}

    @classmethod
    def _numbers(cls, which: Which) -> list[int]:
        numbers = list(range(len(cls.entries)))
        return numbers[which] if isinstance(which, slice) else list(which)

    @classmethod
    def _asked(cls) -> dict[str, list[int]]:
        """The entries of which each test is asked."""
        asked = {"test_agrees_with_float64": cls.agreeing, "test_as_accurate_as_float32": cls.as_accurate,
                 "test_no_order_of_threads_changes_a_bit": cls.in_orders,
                 "test_nan_and_inf_come_out_where_pytorch_has_them": cls.not_finite,
                 "test_every_magnitude_comes_through": cls.of_magnitudes,
                 "test_images_of_any_magnitude_stand_side_by_side": cls.side_by_side,
                 "test_on_the_device": cls.on_device}
        return {test: cls._numbers(which) for test, which in asked.items()}

    def __init_subclass__(cls) -> None:
        if cls.__module__ != __name__:  # what nobody asks for would be lost without a word
            unknown = [name for name, value in vars(cls).items() if not name.startswith("_") and not callable(value)
                       and not any(hasattr(base, name) for base in cls.__mro__[1:])]
            assert not unknown, f"{cls.__qualname__} says {unknown}, of which no test is asked"
        cls._found = {}
        for test, numbers in cls._asked().items():
            if cls.entries and not numbers:
                setattr(cls, test, None)  # nobody is asked

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "number" in metafunc.fixturenames:
            numbers = self._asked()[metafunc.function.__name__]
            metafunc.parametrize("number", numbers, ids=[name_of(*self.entries[n][:2]) for n in numbers])
        if "order" in metafunc.fixturenames:
            metafunc.parametrize("order", self.orders)
        if "factors" in metafunc.fixturenames:
            metafunc.parametrize("factors", self.magnitudes, ids=[f"{left}-{right}" for left, right in self.magnitudes])

    def found(self, number: int, libraries: Sequence[tuple[ctypes.CDLL, Source]]) -> list[torch.Tensor]:
        """What an entry gives for its own inputs: it is run once."""
        if number not in self._found:
            self._found[number] = run(*libraries[number], self.entries[number][0].inputs())[0]
        return self._found[number]

    def test_agrees_with_float64(self, number, libraries):
        self.check(self.entries[number][0], self.found(number, libraries))

    def test_as_accurate_as_float32(self, number, libraries):
        check_as_accurate_as_float32(self.entries[number][0], self.found(number, libraries))

    def test_no_order_of_threads_changes_a_bit(self, order, libraries, monkeypatch):
        """``order``: "reverse", or the seed of one. Entries take turns with orders; one alone is run in each."""
        numbers = self._numbers(self.in_orders)
        for number in numbers[self.orders.index(order)::len(self.orders)] or numbers:
            case, before = self.entries[number][0], self.found(number, libraries)
            with monkeypatch.context() as patch:
                patch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
                after = run(*libraries[number], case.inputs())[0]
            assert all(torch.equal(first, second) for first, second in zip(before, after, strict=True)), case.name

    def test_nan_and_inf_come_out_where_pytorch_has_them(self, number, libraries):
        """Sums that meet what is not finite are computed again; those of other positions are as ever."""
        case = self.entries[number][0]
        inputs = spoiled(case, number in self._numbers(self.weight_not_finite))
        found, expected = run(*libraries[number], inputs)[0], case.expected(inputs)
        assert any(not right.isfinite().all() for right in expected)
        assert any(right.isfinite().any() for right in expected)
        self.check(case, found, inputs)

    def test_every_magnitude_comes_through(self, number, factors, libraries):
        """Products in the range of float32, of operands anywhere in it."""
        case = self.entries[number][0]
        inputs = [t.clamp(-3, 3) for t in case.inputs()]
        inputs = [inputs[0] * factors[0], inputs[1] * factors[1], *inputs[2:]]
        found = run(*libraries[number], inputs)[0]
        if case.kernel.reductions or case.kernel.position_reductions:
            self.check(case, found, inputs)
            return
        for mine, expected in zip(found, case.expected(inputs), strict=True):
            scale = expected.square().mean().sqrt()
            error = (mine.double() - expected).square().mean().sqrt()
            # Results that are denormal are rounded to multiples of 2^-149.
            assert error < 2.0**(-20 if case.kernel.pools else -21) * scale + 2.0**(-148 if case.kernel.pools else -149)

    def test_images_of_any_magnitude_stand_side_by_side(self, number, libraries):
        """Rows whose scale is usual, and others, in one subtile."""
        case = self.entries[number][0]
        inputs = case.inputs()
        assert len(inputs[0]) > 1
        last = inputs[0][-1]
        last *= 1e-30
        self.check(case, run(*libraries[number], inputs)[0], inputs)
        last.view(-1)[5], last.view(-1)[-1] = inf, nan
        self.check(case, run(*libraries[number], inputs)[0], inputs)
        last.zero_()
        self.check(case, run(*libraries[number], inputs)[0], inputs)

    def test_the_same_text_each_time(self, libraries):
        case, tiling = self.entries[0][:2]
        source = libraries[0][1]
        assert generated(case.kernel, tiling, source.name).text == source.text

    @on_hopper
    def test_on_the_device(self, tmp_path):
        check_on_the_device([self.entries[n][:2] for n in self._numbers(self.on_device)], tmp_path, self.check)


class StoreMatrix(Matrix):
    """What is asked of stores of positions, in each of their thread-value layouts.

    rescaled: entries in which scales of an image and of an output channel beyond the fast path come through.
    keeps_what_is_before: whether what lies before a store's offset, and belongs to nobody, stays on a device
    """

    orders = ("reverse",)
    in_orders = one_in(3)
    rescaled: ClassVar[Which] = ()
    keeps_what_is_before: ClassVar[bool] = False

    @classmethod
    def _asked(cls) -> dict[str, list[int]]:
        return super()._asked() | {"test_scales_beyond_the_fast_path": cls._numbers(cls.rescaled)}

    def test_scales_beyond_the_fast_path(self, number, libraries):
        """An image so small, and an output channel so large, that their scales are not usual; and what is not
        finite."""
        case = self.entries[number][0]
        for factor, value in ((2.0**90, 1.0), (1.0, inf), (1.0, nan)):
            inputs = case.inputs()
            inputs[0][1] /= factor
            (inputs[1][:, 1] if case.name.startswith("convolution_t_") else inputs[1][0]).mul_(factor)
            inputs[0].view(-1)[5] *= value
            found, single = run(*libraries[number], inputs)[0], case.expected(inputs)[0].float()
            assert torch.equal(found[0].isnan(), single.isnan()) and torch.equal(found[0].isinf(), single.isinf())
            size = evaluate_contraction(case.kernel, [x.abs() for x in inputs])[0].abs()
            close = (found[0].double() - case.expected(inputs)[0]).abs() <= _SUMS[case.kernel.scheme] * size + 1e-37
            assert close[single.isfinite()].all() and (value != 1.0 or single.isfinite().all())

    @on_hopper
    def test_on_the_device(self, tmp_path):
        def check_stored(case: ContractionCase, found: list[torch.Tensor]) -> None:
            for output, store in zip(found, case.kernel.stores, strict=True):
                before = output[:store.index.offset]
                assert not self.keeps_what_is_before or before.isnan().all()
                before.zero_()
            check(case, found)

        check_on_the_device([entry for entry in self.entries if entry[1].core == "wgmma"], tmp_path, check_stored)


def rare(x: torch.Tensor) -> None:
    x.view(-1)[4000] = 1e7


def hidden(x: torch.Tensor) -> None:
    x[0] *= 1e-20
    x.view(-1)[:3712] = x.view(-1)[4096:9600] = 0.0  # what is left of the first image is not looked at


def unseen_nan(x: torch.Tensor) -> None:
    x.view(-1)[4000], x.view(-1)[0] = nan, inf


def only_nan(x: torch.Tensor) -> None:
    x.view(-1)[4000] = nan


#: What is done to x, of whose elements 128 of 512 neighbours are looked at, and how many scales are wrong then.
EDITS = {"plain": (lambda x: None, 0), "rare": (rare, 1), "hidden": (hidden, 1), "nan": (unseen_nan, 1),
         "zeros": (lambda x: x.zero_(), 0), "tiny": (lambda x: x.mul_(1e-36), 0), "huge": (lambda x: x.mul_(1e30), 0)}
#: The same where x is read as it is needed: where Inf was seen nothing else is looked at; NaN alone is found.
EDITS_WHERE_READ = EDITS | {"nan": (unseen_nan, 0), "only nan": (only_nan, 1)}
#: Of totals those that leave one finite.
EDITS_OF_TOTALS = {name: EDITS_WHERE_READ[name] for name in ("plain", "rare", "only nan")}


class GuessedScales:
    """What is asked of kernels whose scales of x are guessed from a part of its elements: a guess that was too small is
    mended, image by image.

    entries: the kernels, of images of 9600 elements
    bound: what an image may be off, of its root mean square
    """

    entries: ClassVar[Sequence[Entry]] = ()
    edits: ClassVar[Mapping[str, tuple[Callable[[torch.Tensor], Any], int]]] = EDITS
    bound: ClassVar[float] = 2.0**-21

    @pytest.fixture(scope="class")
    @classmethod
    def guessing(cls) -> list[tuple[ctypes.CDLL, Source]]:
        with guessed_scales():
            return compiled(all_generated(cls.entries))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "edit" in metafunc.fixturenames:
            metafunc.parametrize("edit", self.edits)
            metafunc.parametrize("number", range(len(self.entries)), ids=[name_of(*entry) for entry in self.entries])

    def test_guessed_scales_are_mended(self, number, edit, guessing):
        case, (library, text) = self.entries[number][0], guessing[number]
        change, wrong = self.edits[edit]
        inputs = case.inputs()
        change(inputs[0])
        found, workspace = run(library, text, inputs)
        assert wrong_scales(text, workspace) == wrong
        if case.kernel.position_reductions:
            check(case, found, inputs)
        else:
            check_images(case, inputs, found[0], self.bound)
        assert bool(case.expected(inputs)[0].isfinite().all()) == ("nan" not in edit)


def check_images(case: ContractionCase, inputs: Sequence[torch.Tensor], found: torch.Tensor, bound: float) -> None:
    """Each image is off by no more than a part of its own root mean square; what is not finite is the same."""
    expected, batch = case.expected(inputs)[0], case.kernel.batch
    same_where_not_finite(found, expected)
    for image, right in zip(found.double().reshape(batch, -1), expected.reshape(batch, -1), strict=True):
        kept = right.isfinite()
        assert (image - right)[kept].square().mean().sqrt() <= bound * right[kept].square().mean().sqrt()


def check_on_the_device(checked: Sequence[tuple[ContractionCase, Tiling | None]], folder: Path, check: Check = check
                        ) -> None:
    """Compile each case under its tiling for this machine's device, and ``check`` what it gives there."""
    sources = all_generated(checked)
    (folder / "all.cu").write_text(unit(sources))
    command = [find_cuda_compiler(), "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-shared",
               "-Xcompiler", "-fPIC", "-o", "all.so", "all.cu"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    library = ctypes.CDLL(str(folder / "all.so"))
    for (case, _), source in zip(checked, sources, strict=True):
        inputs = [x.cuda() for x in case.inputs()]
        outputs = [torch.full((size,), torch.nan, dtype=getattr(torch, dtype), device="cuda")
                   for size, dtype in zip(output_sizes(case.kernel), case.kernel.output_dtypes, strict=True)]
        workspace = torch.full((source.geometry.workspace_bytes,), 255, dtype=torch.uint8, device="cuda")
        pointers = [x.data_ptr() for x in (*inputs, *outputs, workspace)]
        function = getattr(library, f"run_{source.name}")
        function.restype = ctypes.c_char_p
        message = function((ctypes.c_void_p * len(pointers))(*pointers))
        assert message is None, message.decode()
        torch.cuda.synchronize()
        check(case, [x.cpu() for x in outputs])
