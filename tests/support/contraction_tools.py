"""Packing and epilogue of a contraction around a plain core, under the CPU emulation, for their tests."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import nan

import pytest
import torch
from contraction_cases import ContractionCase
from test_loops_cuda import aligned

from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.expressions import C_TYPES
from kernelwright.codegen.cuda.gemm import points
from kernelwright.codegen.cuda.gemm.epilogue.subtile import SUBTILE_ROWS, Epilogue, epilogue, subtile_columns
from kernelwright.codegen.cuda.gemm.generate import generate, tilings
from kernelwright.codegen.cuda.gemm.operands.prepack import packing
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.swap_ab.problem import geometry_of
from kernelwright.codegen.cuda.gemm.tap_folding import with_folded_taps
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.math import SCALAR_SNIPPETS, scalar_snippets
from kernelwright.codegen.cuda.support.snippets import snippets
from kernelwright.codegen.reference.loops import required_output_sizes
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.kernels import LoopKernel

_POINTERS = {"repack": "unsigned*", "left_scales": "float*", "right_scales": "float*", "left": "unsigned short*",
             "right": "unsigned short*"}


@dataclass(frozen=True)
class Untiled:
    """What is known of a kernel without tiles."""

    kernel: Contraction
    workspace_bytes: int


@dataclass(frozen=True)
class Source:
    """The text of a contraction: ``NAME(in0, ..., out0, ..., workspace, stream)``."""

    geometry: Geometry | Untiled
    name: str
    text: str
    support: frozenset[str]


def source(geometry: Geometry, name: str, whole: bool = True) -> Source:
    """Packing, and where ``whole`` a core that multiplies packed operands one by one (sums in float64), and the
    epilogue."""
    kernel, packed, finish = geometry.kernel, packing(geometry, name), epilogue(geometry, name)
    parameters = [f"const {C_TYPES[t]}* in{n}" for n, t in enumerate(kernel.input_dtypes)]
    parameters += [f"{C_TYPES[t]}* out{n}" for n, t in enumerate(kernel.output_dtypes)]
    behind = [finish.definitions, _core(geometry, finish, name)] if whole else []
    lines = [packed.definitions, *behind,
             f"static const char* {name}({', '.join([*parameters, 'void* workspace', 'cudaStream_t stream'])}) {{"]
    for part, (at, _) in geometry.places.items():
        if part in _POINTERS:
            kind = _POINTERS[part]
            lines.append(f"  {kind} const {part} = reinterpret_cast<{kind}>(static_cast<char*>(workspace) + {at}LL);")
    lines += [f"  {line}" for line in packed.launches]
    blocks = geometry.blocks[0] * geometry.blocks[1] * kernel.groups * len(geometry.classes)
    arguments = ", ".join(["left", "right", *(p for _, p in finish.parameters)])
    if whole:
        lines.append(f'  KW_LAUNCH("{name}", {name}_core, {blocks}, 128, 0, stream, {arguments});')
    lines += ["  return nullptr;", "}"]
    return Source(geometry, name, "\n".join(lines), packed.support | finish.support)


def _core(geometry: Geometry, finish: Epilogue, name: str) -> str:
    kernel, tiling = geometry.kernel, geometry.tiling
    columns = subtile_columns(kernel, tiling)
    value = f"kw_{geometry.element}_value"
    taps, firsts = [], [0]
    for group in geometry.classes:
        taps += [(run.phase, run.shift + beyond, entry) for run in group.runs for beyond, entry in run.taps]
        firsts.append(len(taps))
    phases = geometry.left_term_bytes // (16 * kernel.groups * geometry.chunks * geometry.allocated_rows)
    window = geometry.right_term_bytes // (16 * kernel.groups * geometry.chunks * geometry.allocated_columns)

    def place(entry: str, line: str, lines: int, together: int) -> str:
        chunks = geometry.chunks
        return f"8 * ({entry} * {chunks * lines}LL + {line} / {together} * {chunks * together}LL + {line} % {together})"

    left = place(f"(g * {phases} + tap[0])", "(row + tap[1])", geometry.allocated_rows, geometry.left_block)
    right = place(f"(g * {window} + tap[2])", "column", geometry.allocated_columns, geometry.right_block)
    terms = ["x[0] * w[0]"] if geometry.terms == 1 else ["x[0] * w[1]", "x[1] * w[0]", "x[0] * w[0]"]
    arguments = "".join(f"{p}, " for _, p in finish.parameters)
    table = fill = ""
    if finish.column_floats:
        table, columns_of = ", table", "".join(f"{p}, " for _, p in finish.column_parameters)
        fill = f"__shared__ alignas(16) float table[{finish.column_floats}];\n  " \
            f"{name}_columns({columns_of}table, threadIdx.x, g, column_block * {tiling.columns});"
    if finish.row_scales:
        table += f", {name}_row_scale(left_scales, threadIdx.x, g, first_row)"
    rows = ", ".join("{" + ", ".join(map(str, t)) + "}" for t in taps) or "{0, 0, 0}"
    return f"""
static __constant__ int {name}_runs[][3] = {{{rows}}};
static __constant__ int {name}_firsts[] = {{{", ".join(map(str, firsts))}}};
static __global__ void {name}_core(const unsigned short* left, const unsigned short* right{
    "".join(f", {kind} {p}" for kind, p in finish.parameters)}) {{
  __shared__ alignas(16) float sums[{finish.floats}];
  int block = blockIdx.x;
  const int row_block = block % {geometry.blocks[0]}; block /= {geometry.blocks[0]};
  const int column_block = block % {geometry.blocks[1]}; block /= {geometry.blocks[1]};
  const int g = block % {kernel.groups}, phase_class = block / {kernel.groups};
  {fill}
  for (int first_row = row_block * {tiling.rows}; first_row < (row_block + 1) * {tiling.rows};
       first_row += {SUBTILE_ROWS})
    for (int first = column_block * {tiling.columns}; first < (column_block + 1) * {tiling.columns};
         first += {columns}) {{
      for (int element = threadIdx.x; element < {SUBTILE_ROWS * columns}; element += 128) {{
        const int row = first_row + element % {SUBTILE_ROWS}, column = first + element / {SUBTILE_ROWS};
        if (row >= {geometry.rows} || column >= {kernel.out_channels}) continue;
        double sum = 0.0;
        for (int t = {name}_firsts[phase_class]; t < {name}_firsts[phase_class + 1]; ++t) {{
          const int* tap = {name}_runs[t];
          const unsigned short *xs = left + {left}, *ws = right + {right};
          for (int chunk = 0; chunk < {geometry.chunks}; ++chunk) {{
            for (int c = 0; c < 8; ++c) {{
              double x[{geometry.terms}], w[{geometry.terms}];
              for (int term = 0; term < {geometry.terms}; ++term) {{
                x[term] = {value}(xs[term * {geometry.left_term_bytes // 2}LL + c]);
                w[term] = {value}(ws[term * {geometry.right_term_bytes // 2}LL + c]);
              }}
              sum += {" + ".join(terms)};
            }}
            xs += {8 * geometry.left_block};
            ws += {8 * geometry.right_block};
          }}
        }}
        sums[element % {SUBTILE_ROWS} * {finish.row_stride} + element / {SUBTILE_ROWS} * {finish.column_stride}] = sum;
      }}
      __syncthreads();
      {name}_finish({arguments}sums{table}, threadIdx.x, phase_class, g, first_row, first);
      __syncthreads();
    }}
}}
"""


def unit(sources: Sequence[Source]) -> str:
    """One translation unit; each contraction is exported as ``run_NAME(pointers)``."""
    names = frozenset({name for source in sources for name in source.support})
    text = snippets(names - SCALAR_SNIPPETS.keys()) + scalar_snippets(names & SCALAR_SNIPPETS.keys())
    for source in sources:
        kernel = source.geometry.kernel
        types = [f"const {C_TYPES[t]}*" for t in kernel.input_dtypes] + [f"{C_TYPES[t]}*" for t in kernel.output_dtypes]
        passed = [*(f"static_cast<{t}>(p[{i}])" for i, t in enumerate(types)), f"p[{len(types)}]", "nullptr"]
        text += f'\n{source.text}\nextern "C" const char* run_{source.name}(void** p) {{\n' \
            f"  return {source.name}({', '.join(passed)});\n}}\n"
    return text


def build(kernels: Sequence[tuple[Contraction, Tiling]], whole: bool = True, sanitize: bool = True
          ) -> list[tuple[ctypes.CDLL, Source]]:
    """One library for all kernels (``sanitize``: half as long again)."""
    return compiled([source(Geometry(kernel, tiling), f"k{n}", whole) for n, (kernel, tiling) in enumerate(kernels)],
                    sanitize)


def generated(kernel: Contraction, tiling: Tiling | None, name: str) -> Source:
    """All of a contraction's text under a tiling, as it is emitted; the schemes float32 and correlation have none."""
    kernel = replace(kernel, tiling=tiling)
    made = generate(kernel, name)
    if tiling is None:
        return Source(Untiled(kernel, made.workspace_bytes), name, made.definition, frozenset(made.support))
    if tiling.folded_taps > 1:
        kernel, tiling = with_folded_taps(kernel, tiling.folded_taps), replace(tiling, folded_taps=1)
    return Source(geometry_of(kernel, tiling), name, made.definition, frozenset(made.support))


def all_generated(kernels: Sequence[tuple[ContractionCase, Tiling | None]]) -> list[Source]:
    """`generated` of each case under its tiling; their names differ."""
    return [generated(case.kernel, tiling, f"case{n}") for n, (case, tiling) in enumerate(kernels)]


def compiled(sources: Sequence[Source], sanitize: bool = True) -> list[tuple[ctypes.CDLL, Source]]:
    """One library of all sources, whose names differ. The compiler goes through the emulation once for each library,
    which takes it as long as a kernel does."""
    library = compile_emulated(unit(sources), sanitize=sanitize)
    return [(library, one) for one in sources]


def run(library: ctypes.CDLL, source: Source, inputs: Sequence[torch.Tensor]
        ) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The outputs, flat, and the workspace; raises AssertionError with the message of a failure."""
    kernel = source.geometry.kernel
    flat = []
    for tensor in inputs:
        # NaN on both sides: what is read outside of a tensor and used shows in the results.
        own = aligned(tensor.numel() + 128, tensor.dtype, nan if tensor.is_floating_point() else 0)
        flat.append(own[64:-64].copy_(tensor.reshape(-1)))
    # And what is written outside of outputs and of the workspace shows beside them.
    whole = [aligned(size + 128, getattr(torch, t)) for size, t in
             zip(output_sizes(kernel), kernel.output_dtypes, strict=True)]
    whole.append(aligned(source.geometry.workspace_bytes + 512, torch.uint8, 255))
    margins = [64] * (len(whole) - 1) + [256]
    *outputs, workspace = (own[margin:-margin] for own, margin in zip(whole, margins, strict=True))
    pointers = [t.data_ptr() for t in (*flat, *outputs, workspace)]
    function = getattr(library, f"run_{source.name}")
    function.restype = ctypes.c_char_p
    message = function((ctypes.c_void_p * len(pointers))(*pointers))
    assert message is None, message.decode()
    for own, margin, fill in zip(whole, margins, [0] * len(outputs) + [255], strict=True):
        beside = torch.cat([own[:margin], own[-margin:]])
        assert (beside == fill).all(), "writes outside of its memory"
    return outputs, workspace


@contextmanager
def guessed_scales(least: str = "LEAST_SHARED") -> Iterator[None]:
    """What is generated here guesses scales from a part of the elements, as it would of many more. ``least``: the
    number of elements of a scale that counts, of a convolution's x or of matrices (LEAST_DEPTH)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(points, least, 1)
        patch.setattr(points, "LEAST_BYTES", 1)
        patch.setattr(points, "LEAST_MATRIX_BYTES", 1)
        yield


def tilings_of_rows(kernel: Contraction, core: str = "wgmma") -> list[Tiling]:
    """The tilings that are proposed for a core, but those that are row-buffered."""
    return [tiling for tiling in tilings(kernel, core) if tiling.core == core]


def on_hopper(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs a device of compute capability 9."""
    lacking = not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9
    return pytest.mark.gpu(pytest.mark.skipif(lacking, reason="needs a device of compute capability 9")(test))


def check_thread_order(order: str, cases: Sequence[ContractionCase], libraries: Sequence[tuple[ctypes.CDLL, Source]]
                       ) -> None:
    """That no bit of what the libraries, one of each case, give changes with the order in which threads are emulated:
    "reverse", or the seed of one."""
    for case, library in zip(cases, libraries, strict=True):
        inputs = case.inputs()
        before = run(*library, inputs)[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
            after = run(*library, inputs)[0]
        assert all(torch.equal(first, second) for first, second in zip(before, after, strict=True)), case.name


def wrong_scales(source: Source, workspace: torch.Tensor) -> int:
    """How many scales of x a run has marked as wrong guesses."""
    at, size = source.geometry.places["left_scales"]
    return int(workspace[at:at + size].view(torch.float32).signbit().sum())


def output_sizes(kernel: Contraction) -> list[int]:
    """Elements of each output."""
    return required_output_sizes(LoopKernel(kernel.pooled_domain, (), (), (), kernel.stores, kernel.input_dtypes,
                                            kernel.output_dtypes))
