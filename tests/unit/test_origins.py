"""Where nodes come from: nodes that two models share are of the one that is captured now."""

from __future__ import annotations

from kernelwright.ir.node import Origin, made_for, make


def test_a_node_that_an_earlier_model_left_is_of_the_new_one() -> None:
    x = make("input", name="x", shape=(2, 3), dtype="float32")
    with made_for(Origin(file="one.py", line=3, text="x.exp()")):
        held = make("exp", x)
    with made_for(Origin(file="two.py", line=7, text="torch.exp(x)")):
        again = make("exp", x)
        assert again is held and again.origin == Origin(file="two.py", line=7, text="torch.exp(x)")
    with made_for(Origin(file="two.py", line=9, text="x.exp()")):  # of one file the first line stays
        assert make("exp", x).origin.line == 7
    assert make("exp", x).origin.line == 7
