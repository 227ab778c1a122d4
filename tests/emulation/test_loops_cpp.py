"""The C++ loop kernels and scalar functions against PyTorch in float64."""

from __future__ import annotations

import ctypes
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import inf, isinf, isnan, nan, pi

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exact_functions import erfcx
from loop_cases import LoopCase, call, cases, kernel_of, load, softmax_parts, store

from kernelwright.codegen.cpp.expressions import ANGULAR
from kernelwright.codegen.cpp.loops.generate import generate
from kernelwright.codegen.cpp.support.snippets import snippets
from kernelwright.codegen.source import KernelSource
from kernelwright.ir.scalar import FUNCTIONS
from kernelwright.plan.expressions import Apply, Constant, Expression
from kernelwright.plan.kernels import LoopKernel

FLAGS = [
    "-O3",
    "-march=native",
    "-fopenmp",
    "-std=c++17",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
]


def build(sources: list[KernelSource], folder, name: str) -> ctypes.CDLL:
    """Compile kernels into one library; every kernel is also exported as ``run_NAME``."""
    text = snippets({snippet for source in sources for snippet in source.support})
    for source in sources:
        text += "\n" + source.definition
        signature = source.definition.split("static const char* ")[-1].split("{")[0].strip()
        arguments = signature[signature.index("(") :]
        passed = ", ".join(part.split()[-1].lstrip("*") for part in arguments.strip("()").split(","))
        text += f'extern "C" const char* run_{source.name}{arguments} {{ return {source.name}({passed}); }}\n'
    path = folder / f"{name}.cpp"
    path.write_text(text)
    library = path.with_suffix(".so")
    done = subprocess.run(["g++", *FLAGS, str(path), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


def launch(library: ctypes.CDLL, source: KernelSource, tensors: list[torch.Tensor]) -> None:
    """Run a kernel on inputs then outputs."""
    workspace = torch.full((source.workspace_bytes + 256,), 255, dtype=torch.uint8)
    address = -(-workspace.data_ptr() // 256) * 256
    function = getattr(library, f"run_{source.name}")
    function.restype = ctypes.c_char_p
    message = function(*(ctypes.c_void_p(t.data_ptr()) for t in tensors), ctypes.c_void_p(address))
    assert message is None, message


CASES = cases()
DIVISORS = (3.0, -0.1, 7e6, 1.0, -2.0**-23, 1e-30, -1e-39, 1e38, 0.0, -0.0, inf, nan)


def quotients(dtype: str, *divisors: Expression | float) -> LoopKernel:
    """Rows of 100 numbers over each of some divisors."""
    stores = [store(n, (100, 1), call("div", load(0, 100, 1), divisor)) for n, divisor in enumerate(divisors)]
    return kernel_of((len(DIVISORS), 100), (), inputs=(dtype, dtype), outputs=(dtype,) * len(divisors), compute=dtype,
                     outer_stores=stores)


QUOTIENTS = {f"quotients_{kind}_{dtype}": quotients(dtype, *divisors) for dtype in ("float32", "float64")
             for kind, divisors in (("of_rows", (load(1, 1, 0), -7.1)), ("of_constants", (-7.1, 3.0)))}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Case name to its library and source: two translation units, compiled side by side."""
    folder = tmp_path_factory.mktemp("loops")
    sources = [generate(case.kernel, case.name) for case in CASES]
    sources += [generate(kernel, name) for name, kernel in QUOTIENTS.items()]
    halves = [sources[::2], sources[1::2]]
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda n: build(halves[n], folder, f"half{n}"), range(2)))
    return {
        source.name: (library, source) for library, half in zip(built, halves, strict=True) for source in half
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_evaluator(case: LoopCase, libraries) -> None:
    library, source = libraries[case.name]
    inputs = case.inputs()
    outputs = [
        torch.zeros(size, dtype=getattr(torch, dtype))
        for size, dtype in zip(case.output_sizes, case.kernel.output_dtypes, strict=True)
    ]
    launch(library, source, [*inputs, *outputs])
    problem = case.mismatch(outputs)
    assert problem is None, problem


@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients_by_one_divisor(name, libraries) -> None:
    """They are those of a division: to the last digit where both numbers are of usual size."""
    kind = getattr(torch, QUOTIENTS[name].compute)
    library, source = libraries[name]
    assert source.definition.count("kw_quotient") == 2
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(len(DIVISORS), 100, generator=generator, dtype=kind)
    special = torch.tensor([0.0, -0.0, inf, -inf, nan, 1e-40, -3e38, 1e-25, 2e-38], dtype=kind)
    x[:, :9], x[:, 9:20] = special, torch.arange(11, dtype=kind)
    divisors = torch.tensor(DIVISORS, dtype=kind)
    found = [torch.zeros_like(x), torch.zeros_like(x)]
    launch(library, source, [x, divisors, *found])
    by = (divisors[:, None], -7.1) if "of_rows" in name else (-7.1, 3.0)
    for value, expected in zip(found, (x / divisor if isinstance(divisor, torch.Tensor) else
                                       x / torch.tensor(divisor, dtype=kind) for divisor in by), strict=True):
        low, high = (torch.nextafter(expected, torch.full_like(expected, end)) for end in (-inf, inf))
        assert (value.isnan() == expected.isnan()).all()
        assert (value.isnan() | ((low <= value) & (value <= high))).all()
        assert (value[:, 9:] == expected[:, 9:])[~expected[:, 9:].isnan()].all()
        assert (value.signbit() == expected.signbit())[~expected.isnan()].all()


# Arguments beyond the first, and bounds in units of the last place (of |value| + floor * |x|).
PARAMETERS = {
    "leaky_relu": (0.01,),
    "elu": (1.3,),
    "celu": (1.7,),
    "softplus": (2.0, 20.0),
    "threshold": (0.5, 2.0),
    "softshrink": (0.5,),
    "hardshrink": (0.5,),
    "clamp_min": (-0.5,),
    "clamp_max": (0.5,),
    "nan_to_num": (0.5, 9.0, -9.0),
}
EXACT = {
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "abs",
    "reciprocal",
    "square",
    "sqrt",
    "sign",
    "floor",
    "ceil",
    "round",
    "trunc",
    "maximum",
    "minimum",
    "relu",
    "fmax",
    "fmin",
    "fmod",
    "remainder",
    "floor_divide",
    "copysign",
    "heaviside",
    "nan_to_num",
    "isfinite",
    "isinf",
    "signbit",
}
BOUNDS = {
    "log1p": 3.0,
    "logaddexp": 4.0,
    "logaddexp2": 4.0,
    "logsigmoid": 4.0,
    "softplus": 4.0,
    "silu": 4.0,
    "gelu_erf": 4.0,
    "gelu_tanh": 8.0,
    "mish": 4.0,
}
# Results that are far smaller than the argument are relative to this fraction of it.
FLOORS = {"gelu_erf": 2.0**-4, "gelu_tanh": 2.0**-9, "logaddexp": 1.0, "logaddexp2": 1.0}


#: Whole powers, the largest that is made of products among them, and the next; their bases, at ends of the ranges, too.
POWERS = (2, 3, 4, 5, 7, 16, 17)
BASES = [0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 3.0, -3.0, 1e-40, -1e-40, 1e-12, -1e-12, 1e30, -3.4e38,
         *torch.linspace(-7, 7, 999).tolist(), *torch.logspace(-10, 10, 999).tolist()]


def arguments_of(name: str) -> list[torch.Tensor]:
    special = torch.tensor(
        [
            0.0,
            -0.0,
            inf,
            -inf,
            nan,
            1.0,
            -1.0,
            2.0,
            -2.0,
            3.0,
            0.5,
            -0.5,
            1.5,
            2.5,
            -1.5,
            1e-40,
            -1e-40,
            1e-20,
            1e30,
            -1e30,
            88.72283,
            88.73,
            -87.34,
            -103.9,
            16777217.0,
            3.4e38,
            -3.4e38,
        ]
    )
    count = 60001
    if FUNCTIONS[name].arity >= 2 and name not in PARAMETERS:
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(count, generator=generator) * 4
        if name == "pow":
            x = torch.exp(x)
        others = [torch.randn(count, generator=generator) * 4 for _ in range(FUNCTIONS[name].arity - 1)]
        pairs = [special.repeat(len(special)), *[special.repeat_interleave(len(special))] * len(others)]
        return [torch.cat(both) for both in zip(pairs, [x, *others], strict=True)]
    dense = [
        torch.linspace(-110, 110, count),
        torch.linspace(-2, 2, count),
        torch.linspace(-12, 12, count),
        torch.logspace(-44, 14, 5001),
        -torch.logspace(-44, 14, 5001),
    ]
    return [torch.cat([special, *dense])]


def reference(name: str, arguments: list[torch.Tensor]) -> torch.Tensor:
    """The function in float64; without the cancellation of PyTorch's own formula where it has one."""
    x = arguments[0]
    if name == "gelu_erf":
        return x * 0.5 * torch.erfc(-x * 0.5**0.5)
    if name == "gelu_tanh":
        return x * torch.sigmoid(1.5957691216057308 * (x + 0.044715 * x**3))
    if name == "erfcx":
        return erfcx(x)
    if name == "softplus":
        return F.softplus(x, *PARAMETERS[name])
    extra = [torch.full_like(x, value) for value in PARAMETERS.get(name, ())]
    return FUNCTIONS[name].reference(*arguments, *extra).double()


_TURNS = (torch.arange(-81, 82) * (pi / 2)).float().view(torch.int32)
#: Floats beside the multiples of pi/2 up to 128, and others up to there; both zeros.
NEAR = torch.cat([(_TURNS[:, None] + torch.arange(-50, 51, dtype=torch.int32)).view(torch.float32).flatten(),
                  torch.linspace(-128, 128, 9999), torch.tensor([0.0, -0.0, 1e-30, -1e-30])])
NEAR = NEAR[NEAR.abs() <= 128]


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """Function and type to a library, its source and arguments."""
    sources, given = {}, {}
    for name in FUNCTIONS:
        given[name] = arguments_of(name)
        for compute in ("float32", "float64"):
            loads = [load(n, 1) for n in range(len(given[name]))]
            expression = Apply(name, (*loads, *map(Constant, PARAMETERS.get(name, ()))))
            kernel = kernel_of(
                (given[name][0].numel(),),
                (),
                outer_stores=[store(0, (1,), expression)],
                inputs=(compute,) * len(loads),
                outputs=(compute,),
                compute=compute,
            )
            sources[name, compute] = generate(kernel, f"{name}_{compute}")
    for compute, power in product(("float32", "float64"), POWERS):
        kernel = kernel_of((len(BASES),), (), outer_stores=[
            store(0, (1,), Apply("pow", (load(0, 1), Constant(float(power)))))], inputs=(compute,), outputs=(compute,),
            compute=compute)
        sources[power, compute] = generate(kernel, f"power{power}_{compute}")
    for name in ANGULAR:
        sources[name, "near"] = generate(
            kernel_of((NEAR.numel(),), (), outer_stores=[store(0, (1,), Apply(name, (load(0, 1),)))]), f"{name}_near")
    library = build(list(sources.values()), tmp_path_factory.mktemp("functions"), "functions")
    return library, sources, given


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scalar_function_in_float(name: str, functions) -> None:
    library, sources, given = functions
    result = torch.empty_like(given[name][0])
    launch(library, sources[name, "float32"], [*given[name], result])
    expected = reference(name, [argument.double() for argument in given[name]])
    rounded = expected.float()
    same = (result == rounded) | (result.isnan() & rounded.isnan())
    size = expected.abs() + FLOORS.get(name, 0.0) * given[name][0].double().abs().nan_to_num(0, 0, 0)
    size = size.nan_to_num(1.0, 1.0, 1.0).float().clamp(2.0**-126, 2.0**127)
    unit = torch.nextafter(size, torch.tensor(inf)).double() - size.double()
    # Intermediate results below the normal numbers may be flushed to zero.
    error = torch.where(
        same | (expected.abs() < 2.0**-118) & (result.abs() <= 2.0**-118),
        0.0,
        (result.double() - expected).abs() / unit,
    )
    error = error.nan_to_num(nan=inf)
    worst = int(error.argmax())
    bound = 0.51 if name in EXACT else BOUNDS.get(name, 2.6)
    point = [float(argument[worst]) for argument in given[name]]
    assert error[worst] <= bound, (
        f"{name}{point} = {result[worst]}, expected {rounded[worst]}: {error[worst]:.3g} ulp"
    )


@pytest.mark.parametrize("name", ANGULAR)
def test_angles_of_usual_size(name: str, functions) -> None:
    """Those of a strip without large ones are reduced in float32: also beside multiples of pi/2 no digit is lost."""
    library, sources, _ = functions
    result = torch.empty_like(NEAR)
    launch(library, sources[name, "near"], [NEAR, result])
    expected = getattr(torch, name)(NEAR.double())
    size = expected.abs().float()
    error = (result.double() - expected).abs() / (torch.nextafter(size, torch.tensor(inf)).double() - size.double())
    assert float(error.max()) <= (2.6 if name == "tan" else 0.9), NEAR[error.argmax()]
    assert torch.equal(result.signbit(), expected.signbit())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scalar_function_in_double(name: str, functions) -> None:
    library, sources, given = functions
    arguments = [argument.double() for argument in given[name]]
    result = torch.empty_like(arguments[0])
    launch(library, sources[name, "float64"], [*arguments, result])
    expected = reference(name, arguments)
    size = expected.abs() + arguments[0].abs().nan_to_num(0, 0, 0) * 1e-2 * (name in FLOORS)
    error = (result - expected).abs() / (size + 1e-290)
    error = torch.where((result == expected) | (result.isnan() & expected.isnan()), 0.0, error).nan_to_num(
        nan=inf
    )
    worst = int(error.argmax())
    assert error[worst] <= 4e-14, (
        f"{name}({arguments[0][worst]}) = {result[worst]}, expected {expected[worst]}"
    )


@pytest.mark.parametrize("compute", ["float32", "float64"])
@pytest.mark.parametrize("power", POWERS)
def test_whole_power_is_rounded_once(power: int, compute: str, functions) -> None:
    """What rounding the exact power gives, to a little more than half of the last place."""
    library, sources, _ = functions
    x = torch.tensor(BASES, dtype=getattr(torch, compute))
    result = torch.empty_like(x)
    launch(library, sources[power, compute], [x, result])
    round_to = np.float32 if compute == "float32" else np.float64
    with np.errstate(over="ignore"):
        for base, found in zip(x.tolist(), result.tolist(), strict=True):
            if base == 0 or isinf(base) or isnan(base):
                assert str(base**power) == str(found), (base, found)
                continue
            exact = Fraction(base) ** power
            nearest = float(round_to(float(exact)) if abs(exact) < 1e308 else inf if exact > 0 else -inf)
            if isinf(nearest) or nearest == 0 or isinf(found):
                assert found == nearest, (base, found)
            else:
                bound = Fraction(0.52) * Fraction(float(np.spacing(round_to(abs(nearest)))))
                assert abs(Fraction(found) - exact) <= bound, (base, found, nearest)


def test_text_is_stable_and_offsets_are_wide() -> None:
    kernel = kernel_of(
        (3, 1 << 31), (), outer_stores=[store(0, (1 << 31, 1), call("neg", load(0, 1 << 31, 1)))]
    )
    first, second = generate(kernel, "wide"), generate(kernel, "wide")
    assert first == second
    assert "int64_t" in first.definition and str((3 << 31) // 8192) in first.definition


def test_truth_values_are_read_as_bytes() -> None:
    """g++ 12 vectorises no loop that converts a bool."""
    chosen = call("where", load(1, 1), load(0, 1), 0.0)
    kernel = kernel_of((64,), (), outer_stores=[store(0, (1,), chosen)], inputs=("float32", "bool"))
    assert "const uint8_t* __restrict__ in1" in generate(kernel, "masked").definition


@pytest.mark.parametrize("rows", [2, 3], ids=["a row to a task", "rows in chunks"])
def test_exponentials_of_long_rows_are_taken_once(rows: int) -> None:
    x = load(0, 60000, 1)
    reductions, value = softmax_parts(x)
    softmax = kernel_of((rows,), (60000,), reductions=reductions, row_stores=[store(0, (60000, 1), value)])
    text = generate(softmax, "k").definition
    assert text.count("kw_exp(") == 1 and ("task" in text) == (rows == 3)
    half = replace(softmax, output_dtypes=("bfloat16",))  # has no room for the exponentials
    assert generate(half, "k").definition.count("kw_exp(") == (1 if rows == 2 else 2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_stored_is_rounded_once(dtype: str) -> None:
    other = "float16" if dtype == "bfloat16" else "bfloat16"
    total = call(f"round_{dtype}", call("add", load(0, 1), load(1, 1)))
    stores = [store(0, (1,), total), store(1, (1,), total)]

    def text(count: int, *outputs: str) -> str:
        return generate(kernel_of((64,), (), outer_stores=stores[:count], inputs=(dtype,) * 2, outputs=outputs), "k"
                        ).definition

    assert text(2, dtype, other).count(f"kw_{dtype}_bits(") == 1  # the other output has those digits alone
    assert f"kw_{dtype}_bits(" not in text(1, dtype)
