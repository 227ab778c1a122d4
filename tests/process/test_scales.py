"""Sums of squares at scales where their terms leave float32, and at large means: no less accurate than eager.

Every schedule of a reduction (rows, long and cut ones, columns, written-out windows) has its own accumulators.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from emitted_tools import import_path, kernels_run, write_problem

from kernelwright.build.emulation import load_emulated
from kernelwright.build.module import load_text
from kernelwright.codegen.cuda.target import CUDA
from kernelwright.emit.file import kernel_source
from kernelwright.plan.records import TorchStep
from kernelwright.problem import load_problem
from kernelwright.programs import Stages, emitted_text, new_model, understand
from kernelwright.progress import Progress
from kernelwright.roofline.devices import GENERIC_CPU, H200
from kernelwright.settings import Settings

MODEL = """
    SHAPES = {{"rows": (6, 300), "cut": (2, 70000), "tall": (9000, 32), "short": (4, 7, 40), "columns": (300, 24)}}


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(24, momentum=0.5, track_running_stats=False)
            self.few = nn.BatchNorm1d(7, affine=False, track_running_stats=False)

        def forward(self, rows, cut, tall, short, columns):
            return {{
                "rows": rows.std(-1),
                "deviation of all": (columns * 3).std(unbiased=False),
                "layer norm": F.layer_norm(rows, (300,)),
                "norm by the mean square": F.rms_norm(rows, (300,)) * 2,
                "norm by the mean square and eps": F.rms_norm(rows, (300,), eps=1e-6) + 1,
                "hand-made norm": (rows - rows.mean(-1, keepdim=True)) / (rows.std(-1, keepdim=True) + 1e-6),
                "hand-made root": rows / torch.sqrt(rows.var(-1, keepdim=True) + 1e-12),
                "inverse root": torch.rsqrt(rows.square().var(-1) * 4),
                "group norm": F.group_norm(short, 7),
                "cut": cut.std(-1),
                "cut, variance": cut.var(-1),
                "tall": tall.std(0),
                "tall, variance": tall.var(0, unbiased=False),
                "columns": columns.std(0),
                "batch norm": self.norm(columns),
                "columns of few": columns[:90].std(0) + columns[:90].var(0),
                "windows": short.std(1),
                "windows, variance": short.var(1),
                "windows normed": F.layer_norm(short.transpose(1, 2), (7,)),
                "few": self.few(short[:, :, 0]),
                "similarity": F.cosine_similarity(rows[:3], rows[3:] + rows[:3], dim=-1),
                "similarity of columns": F.cosine_similarity(columns, columns + columns.roll(1, 1), dim=0),
            }}

    def get_inputs():
        torch.manual_seed(1)
        return [torch.randn(s, dtype=torch.{dtype}) for s in SHAPES.values()]
"""


def _first_apart(x: torch.Tensor) -> torch.Tensor:
    """The first element of everything that is reduced is far from the others."""
    return x.index_fill(0, torch.tensor(0), 1e4).index_fill(1, torch.tensor(0), -1e4)


INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda x: x,
    "tiny": lambda x: x * 1e-25,
    "huge": lambda x: x * 1e25,
    "subnormal": lambda x: x * 1e-38,
    "large mean": lambda x: x + 1e6,
    "first apart": _first_apart,
}


@pytest.fixture(scope="module", params=[("cpp", "float32"), ("cpp", "float64"), ("cuda", "float32")], ids="-".join)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The model, and the same with kernels for one target."""
    target, dtype = request.param
    folder: Path = tmp_path_factory.mktemp("scales")
    path = write_problem(folder, "scales", MODEL.format(dtype=dtype))
    original = import_path(path)
    problem, inputs, device = load_problem(path), original.get_inputs(), GENERIC_CPU if target == "cpp" else H200
    modes, _ = understand(problem, inputs, device, Settings(), Stages(Progress()))
    assert not [s for s in modes[0].plan.steps if isinstance(s, TorchStep) and s.node.kind in ("norm", "loss")]
    text, parts = emitted_text(problem, modes, inputs, target, device)
    module = load_text(text, "scales") if target == "cpp" else load_emulated(
        text, kernel_source(*parts, target=CUDA), "scales")
    assert module._kernelwright_library is not None, module._kernelwright_details
    model = original.Model().to(getattr(torch, dtype))
    return SimpleNamespace(model=model, new=new_model(module, problem, 0), module=module, inputs=inputs)


@pytest.mark.parametrize("name", INPUTS)
def test_no_less_accurate_than_eager(program: SimpleNamespace, name: str) -> None:
    inputs = [INPUTS[name](x) for x in program.inputs]
    with torch.no_grad():
        with kernels_run(program.module):
            found = program.new(*inputs)
        eager = program.model(*inputs)
        exact = copy.deepcopy(program.model).double()(*[x.double() for x in inputs])
    limits = torch.finfo(inputs[0].dtype)
    # In float64 eager is the reference itself, and rounds as much as the kernels do.
    multiple, rounding = (4, 16 * limits.eps) if limits.bits == 32 else (0, 1e-9)
    worse = []
    for output, reference in exact.items():
        held = reference.abs() <= limits.max  # what the type can hold at all
        if not held.all() or not eager[output].isfinite().all():
            continue
        least = limits.tiny if name != "subnormal" else limits.smallest_normal * 1e-3
        scale = max(float(reference.abs().max()), least)
        ours, theirs = (float((x[output].double() - reference).abs().max()) / scale for x in (found, eager))
        if not ours <= multiple * theirs + rounding:
            worse.append(f"{output}: {ours:.2g}, eager's {theirs:.2g}")
    assert not worse, worse


def test_a_constant_batch_is_normalised_to_zero(program: SimpleNamespace) -> None:
    """A norm divides by the root of its epsilon what a rounded mean leaves."""
    inputs = [torch.full_like(x, 10.1) for x in program.inputs]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = program.new(*inputs)
    for output in ("layer norm", "group norm", "batch norm", "few", "windows normed", "windows", "columns", "tall"):
        assert float(found[output].abs().max()) < (1e-30 if found[output].dtype == torch.float32 else 1e-11), output
