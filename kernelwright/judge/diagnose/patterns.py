"""Patterns in the tensors of one trial: where they are wrong and how, as findings, the best first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from kernelwright.judge.diagnose.digits import find_digits, find_whole
from kernelwright.judge.diagnose.evidence import FEW, Evidence, like_poison
from kernelwright.judge.diagnose.factors import name_factor
from kernelwright.judge.diagnose.leaf import Leaf, leaves_of, measure, plain_tensor
from kernelwright.judge.diagnose.moved import find_moved
from kernelwright.judge.diagnose.places import Place, find_places
from kernelwright.judge.diagnose.several import on_all_inputs, one_value
from kernelwright.judge.diagnose.shapes import find_forms
from kernelwright.judge.diagnose.slices import find_growth, find_slices
from kernelwright.judge.diagnose.values import ENOUGH, Seen, find_values, sample
from kernelwright.judge.records import Finding
from kernelwright.verify.flatten import flatten

#: Outputs that are looked at in full.
MOST_LEAVES = 4
#: Faults that depend on values, wherever they stand.
_BY_VALUE = ("overflow", "nan-swallowed", "fp16-overflow", "missing-activation", "cut-off", "negative-part",
             "wrong-index", "one-for-all", "reversed", "rolled", "shifted", "transposed", "swapped-outputs",
             "precision", "precision-tf32", "precision-float16", "precision-bfloat16")


def find_patterns(evidence: Evidence) -> list[Finding]:
    """What the tensors of ``evidence`` show, best first. Each finding's evidence holds ``weight`` (how much it tells:
    the share of wrong elements it explains plus how specific it is), the place, and index, got, expected, float64."""
    if evidence.error is not None:
        return [Finding("raises", f"The candidate raises {evidence.error}.", fix="", evidence={"weight": 3.0})]
    found = find_forms(evidence)
    wrong = leaves_of(evidence)
    for leaf in wrong[:MOST_LEAVES]:
        own = leaf_findings(leaf, evidence)
        if leaf.share < 0.5 * wrong[0].share:  # the most wrong output tells most
            own = [replace(f, evidence={**f.evidence, "weight": 0.5 * f.evidence["weight"]}) for f in own]
        found += own
    found += _state(evidence, 0.05 if found else 1.2)
    found += _repeats(evidence)
    return sorted(found, key=lambda finding: -finding.evidence.get("weight", 3.0))


def leaf_findings(leaf: Leaf, evidence: Evidence) -> list[Finding]:
    """All that can be said about one output, best first; something is said always."""
    places = find_places(leaf)
    many = on_all_inputs(leaf, evidence) if leaf.size <= FEW else leaf
    seen = [*find_whole(leaf, evidence), *find_values(many, evidence), *find_moved(leaf, evidence),
            *find_slices(leaf, evidence), *find_digits(many), *find_growth(leaf)]
    seen = [*one_value(leaf, evidence), *seen]
    seen.sort(key=lambda s: -(s.explained + s.strength))
    place = places[0] if places else None
    found = []
    if place is not None:
        # What the wrong values are is said with the place, unless it says no more than the place does.
        found.append(_placed(leaf, place, seen[0] if seen else None))
        if seen and seen[0].kind in _BY_VALUE:  # places follow from the values then
            found[0].evidence["weight"] = min(found[0].evidence["weight"], seen[0].explained + seen[0].strength - 0.01)
    found += [_valued(leaf, s, place, evidence) for s in seen[:4]]
    if not found:
        found.append(_unexplained(leaf))
    return sorted(found, key=lambda finding: -finding.evidence["weight"])


def _placed(leaf: Leaf, place: Place, seen: Seen | None) -> Finding:
    how = f"; the values there {seen.words}" if seen is not None else ""
    told = {**place.evidence, **(seen.evidence if seen else {}), "holds": seen.kind if seen else None}
    fix = place.fix if seen is None or seen.kind in ("zeros", "unwritten", "constant", "factor", "affine") \
        else f"{place.fix}; {seen.fix}"
    return Finding(place.kind, f"{leaf.path} is wrong only in {place.words}{how} ({_share(leaf)}; {_example(leaf)}).",
                   fix=fix, evidence={**told, **_facts(leaf), "weight": 1.0 + place.strength})


def _valued(leaf: Leaf, seen: Seen, place: Place | None, evidence: Evidence) -> Finding:
    words, fix, told = seen.words, seen.fix, dict(seen.evidence)
    if seen.kind == "factor":
        named = name_factor(seen.evidence["factor"], leaf, evidence)
        if named is not None:
            words = words if named[0] == f"{seen.evidence['factor']:.6g}" else f"{words} ({named[0]})"
            fix = f"correct the scale: {named[1]}"
            told["named"] = named[0]
    where = "everywhere" if leaf.share > 0.99 else f"in {place.words}" if place else f"in {_percent(leaf.share)} of it"
    if seen.explained < ENOUGH:
        words = f"{words}, at {_percent(seen.explained)} of these places"
    weight = seen.explained + seen.strength
    return Finding(seen.kind, f"{leaf.path} is wrong {where}: its values {words} ({_example(leaf)}).", fix=fix,
                   evidence={**told, **_facts(leaf), "explained": seen.explained, "weight": weight})


def _unexplained(leaf: Leaf) -> Finding:
    values = sample(leaf, leaf.all_at)
    finite = torch.isfinite(values.got) & torch.isfinite(values.best)
    got, best = values.got[finite], values.best[finite]
    likeness = math.nan
    if got.numel() > 2 and float(got.std()) > 0 and float(best.std()) > 0:
        likeness = float(torch.corrcoef(torch.stack((got, best)))[0, 1])
    relative = float((got - best).square().mean().sqrt()) / leaf.scale if leaf.scale and got.numel() else math.inf
    words = f"the error is {relative:.2g} of its size"
    if not math.isnan(likeness):
        words += (", and its values have nothing to do with the model's" if abs(likeness) < 0.1 else
                  f", and its values go with the model's (correlation {likeness:.3g})")
    return Finding("wrong-values", f"{leaf.path} is wrong in {_percent(leaf.share)} of it without a pattern: {words} "
                   f"({_example(leaf)}).", fix="compare intermediate results with the model's, operator by operator",
                   evidence={**_facts(leaf), "weight": 0.1, "correlation": None if math.isnan(likeness) else likeness,
                             "relative_error": relative})


def _state(evidence: Evidence, weight: float) -> Iterator[Finding]:
    """Buffers and attributes after the call; ``weight`` is for those that may follow from a wrong output."""
    by_eager, own = evidence.changed
    before = {**evidence.state.buffers, **evidence.state.attributes}
    for name, wanted in by_eager.items():
        if name not in own:
            if not _same(wanted, before.get(name)):
                yield Finding("state-missing", f"The model updates {name}, the candidate does not have it.",
                              fix=f"keep {name} as the model does, and update it in forward", evidence={"weight": 2.0})
            continue
        if not isinstance(wanted, torch.Tensor) or not isinstance(own[name], torch.Tensor) or \
                wanted.shape != own[name].shape or wanted.dtype != own[name].dtype or not wanted.numel():
            continue
        leaf = measure(name, *(plain_tensor(t) for t in (own[name].to(wanted.device), wanted, wanted)))
        if not leaf.count:
            continue
        old = before.get(name)
        if isinstance(old, torch.Tensor) and _same(own[name], old):
            yield Finding("state-not-updated", f"The model updates {name}, the candidate leaves it as it was "
                          f"({_example(leaf)}).", fix=f"update {name} in forward, in training mode", evidence={
                              **_facts(leaf), "weight": 1.5})
            continue
        moved = _moved_otherwise(leaf, old, weight)
        if moved is not None:
            yield moved
            continue
        best = leaf_findings(leaf, evidence)[0]
        yield Finding(f"state-{best.kind}", f"After the call {best.sentence}", fix=f"{name}: {best.fix}",
                      evidence={**best.evidence, "weight": weight})


def _moved_otherwise(leaf: Leaf, old: Any, weight: float) -> Finding | None:
    """A running value that takes another share of the new one, or of which the new one has another factor:
    got = a wanted + b old."""
    name, got, wanted = leaf.path, leaf.got, leaf.eager
    if not isinstance(old, torch.Tensor) or old.shape != got.shape or not got.dtype.is_floating_point or \
            got.numel() < 3:
        return None
    g, w, o = (t.detach().double().flatten().cpu() for t in (got, wanted, old))
    if not bool(torch.isfinite(torch.stack((g, w, o))).all()):
        return None
    known = torch.stack((w, o), 1)
    share, of_old = torch.linalg.lstsq(known, g[:, None], driver="gelsd").solution.flatten().tolist()
    rest = float((known @ torch.tensor([share, of_old], dtype=known.dtype) - g).norm())
    if rest > 1e-3 * float((g - w).norm()) or abs(share - 1) < 1e-6:
        return None
    if not bool(o.any()) or abs(share + of_old - 1) < 1e-2 * abs(share - 1):
        return Finding("state-momentum", f"After the call {name} has moved {share:.6g} times as far from its old value "
                       "as the model's.", fix=f"{name}: correct the momentum: new = (1 - momentum) * old + momentum * "
                       "batch", evidence={**_facts(leaf), "weight": weight, "factor": share})
    return Finding("state-factor", f"After the call {name} has moved towards {share:.6g} times what the model's moves "
                   "to.", fix=f"{name}: correct the scale of the batch's statistic (the running variance takes the sum "
                   "divided by N - 1, the norm itself the one divided by N)",
                   evidence={**_facts(leaf), "weight": weight, "factor": share})


def _unwritten_place(evidence: Evidence, path: str, again: torch.Tensor) -> str:
    """Where the call on poisoned memory is wrong: what was never written, though it held the right values before."""
    eager, best = flatten(evidence.eager).get(path), flatten(evidence.reference).get(path)
    if not isinstance(eager, torch.Tensor) or eager.shape != again.shape or eager.dtype != again.dtype:
        return ""
    best = best if isinstance(best, torch.Tensor) and best.shape == eager.shape else eager
    places = find_places(measure(path, *map(plain_tensor, (again, eager, best))))
    return f"; what is never written: {places[0].words}" if places else ""


#: What mends a race.
RACE_FIX = ("remove the race: a barrier between writing and reading shared memory, an atomic or one writer for every "
             "element, and no use of memory before it is set")


def _repeats(evidence: Evidence) -> Iterator[Finding]:
    """Other bits in a further call on the same inputs."""
    if evidence.repeated is None:
        return
    first, again = flatten(evidence.candidate), flatten(evidence.repeated)
    for path, got in first.items():
        other = again.get(path)
        if not isinstance(got, torch.Tensor) or not isinstance(other, torch.Tensor) or got.shape != other.shape:
            continue
        differs = (got != other) & ~((got != got) & (other != other))
        count = int(differs.sum())
        if not count:
            continue
        at = int(differs.reshape(-1).to(torch.uint8).argmax())
        a, b = float(got.reshape(-1)[at]), float(other.reshape(-1)[at])
        if _is_earlier(evidence, path, other):
            yield Finding("stale", f"{path} is what the model gives for an earlier call's inputs when called again "
                          f"with the same inputs: at {count} of {got.numel()} elements, {a:.9g}, then {b:.9g}.",
                          fix="compute from this call's inputs: look for a cache whose key (an address, say) does not "
                          "tell inputs apart", evidence={"weight": 1.8})
            return
        memory = ~like_poison(got) | (torch.isnan(got) != torch.isnan(other))  # poison of one kind, then of another
        poison = bool((differs & like_poison(other) & memory).any())
        where = _unwritten_place(evidence, path, other) if poison else ""
        # What holds poison in both calls was written in neither.
        told = int((differs | (like_poison(got) & like_poison(other))).sum()) if poison else count
        yield Finding("unwritten" if poison else "nondeterministic",
                      f"{path} has other bits when called again with the same inputs, at {count} of {got.numel()} "
                      f"elements: {a:.9g}, then {b:.9g}" + (f" on poisoned memory{where}." if poison else "."),
                      fix="write every element of the output" if poison else RACE_FIX,
                      evidence={"weight": _weight_of_repeat(evidence, path, other, differs, poison),
                                "share": told / max(1, got.numel())})
        return


def _weight_of_repeat(evidence: Evidence, path: str, again: torch.Tensor, differs: torch.Tensor, poison: bool) -> float:
    """How much other bits in a further call tell: most where a result is right in one call and wrong in another, so
    that where the first call was wrong is chance."""
    eager, first = flatten(evidence.eager).get(path), flatten(evidence.candidate).get(path)
    unlike = 1.9 if poison else 1.6
    if not isinstance(eager, torch.Tensor) or not isinstance(first, torch.Tensor):
        return unlike
    same_form = eager.shape == again.shape == first.shape and eager.dtype == again.dtype == first.dtype
    if not same_form or eager.is_complex() or eager.layout != torch.strided:
        return unlike
    wrong = [measure(path, value, eager, eager).wrong for value in (first, again)]
    chance = int(((wrong[0] != wrong[1]) & differs).sum()) > 0.1 * int(differs.sum())
    if poison:
        return 2.1 if chance and bool(wrong[0].any()) else 1.9
    return 2.7 if chance else 1.6


def _is_earlier(evidence: Evidence, path: str, got: torch.Tensor) -> bool:
    """Whether a result of another call was returned: what the model gives for that call's inputs."""
    finite = got.detach().double().nan_to_num(0.0, 0.0, 0.0)
    if got.numel() < 2 or float(finite.std()) <= 1e-3 * float(finite.abs().max()):
        return False  # near a constant, which many results are
    for before in evidence.earlier:
        known = flatten(before).get(path)
        if isinstance(known, torch.Tensor) and known.shape == got.shape and known.dtype == got.dtype and \
                measure(path, *(plain_tensor(t) for t in (got, known, known))).count == 0:
            return True
    return False


def _same(left: Any, right: Any) -> bool:
    return isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.shape == right.shape and \
        torch.equal(left.to(right.device), right)


def _facts(leaf: Leaf) -> dict[str, Any]:
    return {"output": leaf.path, "share": leaf.share, **leaf.example()}


def _share(leaf: Leaf) -> str:
    return f"{leaf.count} of {leaf.size} elements"


def _percent(share: float) -> str:
    return "nearly all" if 0.995 < share < 1 else f"{100 * share:.3g} %"


def _example(leaf: Leaf) -> str:
    one = leaf.example()
    if not one:
        return "no example"
    if not leaf.floating:
        return f"at {one['index']} {one['got']:g} instead of {one['expected']:g}"
    return f"at {one['index']} {one['got']:.6g} instead of {one['expected']:.6g}, float64 {one['float64']:.9g}"
