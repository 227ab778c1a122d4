"""A sample of the mutation corpus (tools/mutation_corpus.py): every fault is refused, and most are named rightly."""

from __future__ import annotations

import random
import sys

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "tools"))

from mutation_corpus import judge_all
from mutations.bases import BASES
from mutations.corpus import FAULTS, Mutant, Texts, candidates, collect
from mutations.fault import Fault

#: Sampled kinds of fault, one candidate each.
SAMPLE = 12
WRITTEN = [base for base in BASES if not base.emitted]


@pytest.mark.slow
def test_a_sample_is_refused_and_named(tmp_path):
    chosen = random.Random(20).sample(sorted(fault.name for fault in FAULTS), SAMPLE)
    texts = Texts(tmp_path)
    mutants, left = collect(texts, 4, 1, 0, chosen)
    assert len(mutants) >= SAMPLE - 2, (len(mutants), left)
    # Without a fault a base is right.
    bases = random.Random(21).sample(WRITTEN, 2)
    unchanged = Fault("none", "nothing", lambda text: iter([text]))
    mutants += [Mutant(unchanged, base, 0, texts.text(base)) for base in bases]
    outcomes = judge_all(mutants, texts, tmp_path, 3)
    right = [o for o in outcomes if o.mutant.fault is unchanged]
    assert [o.result.verdict.partition("-")[0] for o in right] == ["OK", "OK"], [o.result.reason for o in right]
    faulty = [o for o in outcomes if o.mutant.fault is not unchanged]
    assert [o.mutant.name for o in faulty if not o.refused] == []
    assert all(o.result.reason and o.result.verdict for o in faulty)
    misnamed = [(o.mutant.name, o.result.verdict, o.kind, o.result.reason) for o in faulty if not o.named]
    assert len(misnamed) <= 0.2 * len(faulty), misnamed


@pytest.mark.parametrize(("fault", "base"), [("cached by address", "silu_gate"),
                                             ("extremum starts at zero", "heatmap_peak")])
def test_what_only_special_calls_show(fault, base, tmp_path):
    """Other values at an address that is kept, and inputs without positive values."""
    texts = Texts(tmp_path)
    found = [m for _, mutants in candidates(texts, [f for f in FAULTS if f.name == fault], 1,
                                            [b for b in BASES if b.name == base]) for m in mutants]
    outcomes = judge_all(found[:1], texts, tmp_path, 1)
    # Which inputs meet at one address is the allocator's choice: by chance some of a trial do, and are wrong values of
    # whatever kind.
    met_by_chance = fault == "cached by address" and outcomes[0].result.verdict.startswith("WRONG-")
    assert [o.refused and (o.named or met_by_chance) for o in outcomes] == [True], [
        (o.result.verdict, o.kind) for o in outcomes]


def names(texts, seed, bases):
    return {fault.name: [m.name for m in mutants] for fault, mutants in candidates(texts, FAULTS, seed, bases)}


def test_the_corpus_is_large(tmp_path):
    """Places of faults in hand-written kernels; which of them differ from their bases is not asked."""
    found = names(Texts(tmp_path), 1, WRITTEN)
    assert len(found) == len(FAULTS) >= 20 and all(found.values())
    assert sum(min(4, len(places)) for places in found.values()) >= 200
    assert len({name for places in found.values() for name in places}) == sum(map(len, found.values()))


def test_a_seed_decides(tmp_path):
    first, again, other = (names(Texts(tmp_path), seed, WRITTEN[:5]) for seed in (1, 1, 2))
    assert first == again != other
