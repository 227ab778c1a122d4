"""Emitted models inside of other compilers: torch.compile calls the kernels as one operator, wherever that is sound."""

from __future__ import annotations

import copy
import gc
import warnings

import pytest
import torch
import torch._dynamo
from emitted_tools import assert_like, assert_same_state, emit, import_text, kernels_run, models, original_runs
from torch import nn

import kernelwright.dynamo

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._inductor.compile_fx

TEXTS = {
    "orders": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.convolution = nn.Conv2d(4, 8, 3)

            def forward(self, x, *, scale):
                y = torch.sigmoid(self.convolution(x)) * scale
                return y, y.t() if y.dim() == 2 else y.mean((2, 3)), x.flatten(1)

        def get_inputs():
            x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
            return [[x], {"scale": torch.rand(8, 1, 1)}]
    ''',
    "twice": '''
        class Model(nn.Module):
            def forward(self, x, factor=2.0):
                y = torch.sigmoid(x) * factor
                return {"all": [y, (y, x)], "turned": y.t(), "none": None}

        def get_inputs():
            return [torch.randn(6, 8)]
    ''',
    "helper": '''
        def gate(x):
            return torch.sigmoid(x) * 2

        class Model(nn.Module):
            def forward(self, x):
                return gate(x) + 1

        def get_inputs():
            return [torch.randn(6, 8)]
    ''',
    "constant": '''
        FACTOR = 2.5

        class Model(nn.Module):
            def forward(self, x):
                return torch.sigmoid(x) * FACTOR

        def get_inputs():
            return [torch.randn(6, 8)]
    ''',
    "random": '''
        class Model(nn.Module):
            def forward(self, x):
                return torch.sigmoid(torch.nn.functional.dropout(x, 0.5)) * 2

        def get_inputs():
            return [torch.randn(6, 8)]
    ''',
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("compiled"), {}

    def get(name):
        if name not in made:
            made[name] = emit(folder, name, TEXTS.get(name))
        return made[name]

    return get


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pair(built, name, training=False):
    original, emitted, _ = built(name)
    old, new, inputs = models(original, emitted)
    return old.train(training), new.train(training), inputs, emitted


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["norm", "nested", "again", "lists", "helper"])
def test_kernels_are_an_operator(built, name, backend):
    old, new, inputs, emitted = pair(built, name)
    compiled = torch.compile(new, backend=backend, fullgraph=True)
    for scope in (torch.no_grad, torch.inference_mode):
        with scope():
            for _ in range(2):
                with kernels_run(emitted, 1):
                    found = compiled(*inputs)
                expected = old(*inputs)
                assert_like(found, expected)
                leaves = torch.utils._pytree.tree_leaves
                assert [t.stride() for t in leaves(found) if isinstance(t, torch.Tensor)] == \
                    [t.stride() for t in leaves(expected) if isinstance(t, torch.Tensor)]


def test_what_the_original_would_compute_is_left_out(built):
    """The compiler's graph has our operator alone."""
    from torch._dynamo.backends.common import aot_autograd

    _, new, (x,), emitted = pair(built, "norm")
    graphs = []
    backend = aot_autograd(fw_compiler=lambda graph, _: graphs.append(graph) or graph.forward)
    with torch.no_grad(), kernels_run(emitted, 1):
        torch.compile(new, backend=backend, fullgraph=True)(x)
    called = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert len(called) == 2 and called[0].startswith("kernelwright.norm_"), called


def test_our_own_backend_leaves_it_out_too(built):
    old, new, (x,), emitted = pair(built, "norm")
    compiled = torch.compile(new, backend=kernelwright.dynamo.backend, fullgraph=True)
    calls = []
    with torch.no_grad(), kernels_run(emitted, 3):
        assert_like(compiled(x), old(x))
        for call in (compiled, new):
            with torch.profiler.profile() as profile:
                call(x)
            calls.append({e.key: e.count for e in profile.key_averages() if e.key.startswith("aten::conv")})
    assert calls[0] == calls[1], "of PyTorch's operators those of the program alone"


def test_calls_with_gradients_are_compiled_as_they_are(built):
    old, new, (x,), emitted = pair(built, "norm")
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    wanted = torch.autograd.grad(old(x).square().sum(), list(old.parameters()))
    with original_runs(emitted, "torch.no_grad()"):
        found = torch.autograd.grad(compiled(x).square().sum(), list(new.parameters()))
    assert_like(list(found), list(wanted))
    for parameter in new.parameters():
        parameter.requires_grad_(False)
    with kernels_run(emitted, 1):
        assert_like(compiled(x), old(x).detach())
    leaf = x.clone().requires_grad_()
    assert_like(torch.autograd.grad(compiled(leaf).sum(), leaf), torch.autograd.grad(old(x.requires_grad_()).sum(), x))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_kernels_beside_what_is_trained(built, backend):
    """A part without gradients of a step that has some."""
    old, new, (x,), emitted = pair(built, "norm")
    weight = torch.randn(8, 1, 1, requires_grad=True)

    def step(model, x):
        with torch.no_grad():
            target = model(x)
        return (target - weight.sigmoid()).square().mean()

    compiled = torch.compile(step, backend=backend, fullgraph=True)
    with kernels_run(emitted, 1):
        loss = compiled(new, x)
    expected = step(old, x)
    assert_like(loss.detach(), expected.detach())
    assert_like(torch.autograd.grad(loss, weight), torch.autograd.grad(expected, weight))


def test_what_changes_after_it_was_compiled(built):
    """The original computation is traced, too, so that what it reads is compared when the call runs again."""
    old, new, (x,), emitted = pair(built, "norm")
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        with kernels_run(emitted, 2):
            compiled(x)
            new.conv.weight.mul_(2), old.conv.weight.mul_(2)
            assert_like(compiled(x), old(x))
        with original_runs(emitted, "x has a size"):
            assert_like(compiled(x[:2]), old(x[:2]))
            assert_like(compiled(x[:3]), old(x[:3]))
        with kernels_run(emitted, 1):
            assert_like(compiled(x), old(x))
        new.norm.eps = old.norm.eps = 0.1
        with original_runs(emitted, "attribute norm.eps"):
            assert_like(compiled(x), old(x))
        old.double(), new.double()
        assert_like(compiled(x.double()), old(x.double()))


@pytest.mark.parametrize("dynamic", [None, True])
def test_floats_that_the_compiler_may_leave_open(built, dynamic):
    """It does so of those that have changed, or of all: kernels are for one value all the same."""
    old, new, (x,), emitted = pair(built, "norm")
    compiled = torch.compile(new, backend="eager", fullgraph=True, dynamic=dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for multiplier in (2.0, 3.0, 2.0, 5.0, 7.0, 2.0):
            new.multiplier = old.multiplier = multiplier
            assert_like(compiled(x), old(x))
        torch._dynamo.reset()
        with kernels_run(emitted, 1):
            assert_like(compiled(x), old(x))


def test_sizes_that_are_declared_to_change(built):
    old, new, (x,), emitted = pair(built, "norm")
    with torch.no_grad():
        with kernels_run(emitted, 1):
            assert_like(torch.compile(new, backend="aot_eager", dynamic=True)(x), old(x))
        torch._dynamo.reset()
        torch._dynamo.mark_dynamic(x, 0)
        with original_runs(emitted, "x has a size"):
            assert_like(torch.compile(new, backend="aot_eager")(x), old(x))


def test_layouts_keywords_and_results_of_all_kinds(built):
    old, new, _, _ = pair(built, "orders")
    (x,), named = built("orders")[0].get_inputs()
    scale = named["scale"]
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for given in (x, x.contiguous(), x[:, :, ::1].flip(3).flip(3)):
            assert_like(compiled(given, scale=scale), old(given, scale=scale))
    old, new, (x,), _ = pair(built, "twice")
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in (lambda m: m(x), lambda m: m(x=x), lambda m: m(x, 2.0), lambda m: m(x, factor=3.0)):
            found, expected = call(compiled), call(old)
            assert_like(found, expected)
            assert (found["all"][0] is found["all"][1][0]) == (expected["all"][0] is expected["all"][1][0])


@pytest.mark.parametrize(("name", "training"), [("norm", True), ("random", False), ("attributes", False),
                                                  ("constant", False)])
def test_what_is_no_function_of_tensors_is_compiled_as_it_is(built, name, training):
    """Buffers that change, numbers that are drawn, floats in objects and globals."""
    old, new, inputs, emitted = pair(built, name, training)
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    with torch.no_grad(), original_runs(emitted, "as one operator"):
        for seed in (1, 2):
            torch.manual_seed(seed)
            found = compiled(*inputs)
            torch.manual_seed(seed)
            assert_like(found, old(*inputs))
    assert_same_state(new, old)


def test_models_of_one_class_share_what_was_compiled(built):
    """As parts of another model, from which values come that are no leaves."""
    original, emitted, _ = built("norm")
    pairs = [models(original, emitted, seed)[:2] for seed in range(3)]
    old, new = (nn.ModuleList(m[place] for m in pairs).eval() for place in (0, 1))
    x, counter = torch.rand(4, 3, 8, 8), torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def called(model, x):
        return model(x * 2).sum((2, 3)) + 1

    compiled = torch.compile(called, backend=counter, fullgraph=True)
    with torch.no_grad(), kernels_run(emitted, 3):
        for mine, theirs in zip(new, old, strict=True):
            assert_like(compiled(mine, x), called(theirs, x))
    assert counter.frame_count == 1
    duplicate = copy.deepcopy(new[0])
    del new, pairs
    gc.collect()
    with torch.no_grad(), kernels_run(emitted, 1):
        assert_like(compiled(duplicate, x), called(old[0], x))


def test_one_file_imported_twice(built, tmp_path):
    original, emitted, text = built("norm")
    again = import_text(text, tmp_path, "again")
    x = torch.rand(4, 3, 8, 8)
    with torch.no_grad():
        for module in (emitted, again, emitted):
            old, new, _ = models(original, module)
            compiled = torch.compile(new.eval(), backend="aot_eager", fullgraph=True)
            assert_like(compiled(x), old.eval()(x))


def test_transforms_and_scopes_inside(built):
    old, new, (x,), emitted = pair(built, "norm")
    xs = torch.stack([x, x + 1])
    with torch.no_grad(), original_runs(emitted, "this call"):
        batched = torch.func.vmap(lambda x: new(x))
        compiled = torch.compile(lambda xs: batched(xs), backend="aot_eager", fullgraph=True)
        assert_like(compiled(xs), torch.func.vmap(old)(xs))

        def under(x):
            with torch.autocast("cpu", torch.bfloat16):
                return new(x)

        with torch.autocast("cpu", torch.bfloat16):
            expected = old(x)
        assert_like(torch.compile(under, backend="aot_eager", fullgraph=True)(x), expected, 1e-2)
        with torch.autocast("cpu", torch.bfloat16):
            assert_like(torch.compile(new, backend="aot_eager", fullgraph=True)(x), expected, 1e-2)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_need_nothing_of_the_file(built, strict):
    old, new, (x,), emitted = pair(built, "norm")
    with torch.no_grad(), original_runs(emitted, "torch.export"):
        program = torch.export.export(new, (x,), strict=strict)
        assert_like(program.module()(x), old(x))
        assert all("kernelwright" not in str(node.target) for node in program.graph.nodes)
    with torch.no_grad(), kernels_run(emitted, 1):
        assert_like(new(x), old(x))


def test_the_operator_is_sound(built):
    """By PyTorch's own check: schema, fake results, tracing with sizes left open."""
    _, new, (x,), emitted = pair(built, "norm")
    with torch.no_grad():
        torch.compile(new, backend="aot_eager", fullgraph=True)(x)
    (name, facts), = emitted._kernelwright_operators.items()
    state = dict(new.named_parameters()) | dict(new.named_buffers())
    values = [x, *[state[key].detach() for key in facts["tensors"]]]
    torch.library.opcheck(getattr(torch.ops.kernelwright, name).default, (values,))
    with pytest.raises(Exception, match="not"):
        getattr(torch.ops.kernelwright, name)([x[:2], *values[1:]])
