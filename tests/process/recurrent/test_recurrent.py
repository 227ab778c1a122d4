"""Files for models with recurrent layers: right as eager is, in values, strides, memory and gradients."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from emitted_tools import emit, kernels_run, models, original_runs, write_problem

import kernelwright

TEXT = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.{kind}(12, 20, {layers}, batch_first={batch_first}, bidirectional={both})
            self.head = nn.Linear({width}, 3)

        def forward(self, x{more}):
            states, last = self.layer(x{hidden})
            return self.head(states.tanh()), states, last

    def get_inputs():
        return [torch.randn(5, 9, 12){drawn}]

    def get_init_inputs():
        return []
"""
FORMS = [("LSTM", 2, True, True), ("LSTM", 1, False, False), ("GRU", 2, True, False), ("GRU", 1, False, True),
         ("RNN", 3, True, False)]


def emitted_for(folder: Path, kind: str, layers: int, batch_first: bool, both: bool, given: bool = False):
    batch = 5 if batch_first else 9
    drawn = f", torch.randn({layers * (1 + both)}, {batch}, 20)" if given else ""
    hidden = "" if not given else ", (h, h.sin())" if kind == "LSTM" else ", h"
    return emit(folder, "recurrent", TEXT.format(
        kind=kind, layers=layers, batch_first=batch_first, both=both, width=40 if both else 20,
        more=", h" if given else "", hidden=hidden, drawn=drawn))


def flat(results) -> list[torch.Tensor]:
    return torch.utils._pytree.tree_leaves(results)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form)))
def test_results_are_those_of_eager(form, given, tmp_path):
    original, emitted, source = emitted_for(tmp_path, *form, given)
    assert "static inline void advance" in source
    old, new, inputs = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted, 1):
        found = flat(new(*inputs))
    exact = flat(copy.deepcopy(old).double()(*[value.double() for value in inputs]))
    with torch.no_grad():
        eager = flat(old(*inputs))
    for ours, theirs, right in zip(found, eager, exact, strict=True):
        assert ours.stride() == theirs.stride() and ours.dtype == theirs.dtype
        errors = [float((value - right).abs().max() / right.abs().max()) for value in (ours, theirs)]
        assert errors[0] <= 2 * errors[1] + 3e-7
    assert len({t.untyped_storage().data_ptr() for t in found}) == len(found)


@pytest.mark.parametrize("form", FORMS[::2], ids=lambda form: "-".join(map(str, form)))
def test_gradients_are_eagers(form, tmp_path):
    original, emitted, _ = emitted_for(tmp_path, *form)
    old, new, inputs = models(original, emitted)
    for model in (old, new):
        sum(value.square().sum() for value in flat(model(*inputs))).backward()
    for one, other in zip(old.parameters(), new.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_another_length_is_pytorchs(tmp_path):
    original, emitted, _ = emitted_for(tmp_path, *FORMS[0])
    old, new, inputs = models(original, emitted)
    longer = torch.cat([inputs[0]] * 2, 1)
    with torch.no_grad(), original_runs(emitted):
        found = flat(new(longer))
    with torch.no_grad():
        assert all(map(torch.equal, found, flat(old(longer))))


# For a GPU that is not there ---------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="the emulation is for machines without a GPU")
@pytest.mark.parametrize("form", FORMS[:3], ids=lambda form: "-".join(map(str, form)))
def test_a_device_takes_one_launch_a_layer(form, tmp_path):
    kind, layers, batch_first, both = form
    path = write_problem(tmp_path, "recurrent", TEXT.format(
        kind=kind, layers=layers, batch_first=batch_first, both=both, width=40 if both else 20, more="", hidden="",
        drawn=""))
    result = kernelwright.optimize(path, effort="quick", target="cuda")
    assert sum(k.kind == "recurrence" for k in result.modes[0].kernels) == layers * (1 + both)
    assert any("Checked by emulation" in note for note in result.notes), result.notes


def test_a_state_that_no_device_holds_is_pytorchs(tmp_path):
    path = write_problem(tmp_path, "mixed", """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.large, self.small = nn.LSTM(4, 2048), nn.GRU(2048, 16)

            def forward(self, x):
                return self.small(self.large(x)[0])[0]

        def get_inputs():
            return [torch.randn(2, 3, 4)]
    """)
    mode = kernelwright.explain(path, target="cuda").modes[0]
    assert [k.kind for k in mode.kernels] == ["recurrence"]
    assert any("2048 elements needs more than all" in kept.reason for kept in mode.kept)
