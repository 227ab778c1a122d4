"""What is said of a candidate that failed beside what its wrong values show: what its constructor has made of the
model's parameters, and whether a diagnosis may change the verdict."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from kernelwright.judge.check.own_state import stale_copy
from kernelwright.judge.check.precision import FLOAT32, precision_class
from kernelwright.judge.diagnose.digits import MOST
from kernelwright.judge.diagnose.misfit import listed
from kernelwright.judge.diagnose.words import OF_VALUES, says_parameters, weight
from kernelwright.judge.records import Finding
from kernelwright.judge.worker.remote import RemoteCandidate
from kernelwright.verify.certificate import Certificate
from kernelwright.verify.distributions import AS_GIVEN

#: How far a parameter is, in units of its own rounding, from a multiple of the model's that it counts as.
_ROUNDINGS = 64.0
_FEW = 1 << 16
#: From this weight on a finding explains the results of parameters that could not be loaded.
TELLING = 2.0


def knows_lacked(misfit: Finding, fixed: Mapping[str, torch.Tensor]) -> bool:
    """Whether all that a candidate lacks of the model's state is the same under every seed (a norm's ones and zeros,
    see `fixed_state`), and it has nothing else in its place: its results on the model's own parameters can be right."""
    lacked = (*misfit.evidence["missing"], *misfit.evidence["shapes"])
    return bool(lacked) and not misfit.evidence["extra"] and all(name in fixed for name in lacked)


def find_folded(model: nn.Module, candidate: nn.Module) -> Finding | None:
    """The first parameter that the candidate's constructor has made a multiple of the model's of that name, or shifted
    by a number, as both were constructed under one seed. The model's own values are loaded into it, as of any
    state_dict, and then lack what was folded in. None where there is none."""
    own = dict(candidate.named_parameters())
    for name, value in model.named_parameters():
        if name not in own or own[name].shape != value.shape or value.numel() < 2 or not value.is_floating_point():
            continue
        wanted, made = (t.detach().reshape(-1)[:_FEW].double().cpu() for t in (value, own[name]))
        how = _folded(wanted, made, torch.finfo(own[name].dtype).eps)
        if how:
            return Finding(
                "folded-parameter", f"The constructor makes {name} {how} the model's: with the model's own values, "
                "which are loaded under that name, results are others.",
                fix=f"Leave {name} as the model makes it, and compute what is to be folded in from it in forward.",
                evidence={"name": name, "how": how, "weight": 2.5})
    return None


def _folded(wanted: torch.Tensor, made: torch.Tensor, eps: float) -> str:
    if not wanted.isfinite().all() or not made.isfinite().all() or not wanted.norm() or not wanted.std():
        return ""
    close = _ROUNDINGS * eps
    if (made - wanted).norm() <= close * wanted.norm():
        return ""
    factor = float(made @ wanted / (wanted @ wanted))
    if (made - factor * wanted).norm() <= close * made.norm():
        return f"{factor:.6g} times"
    shift = float((made - wanted).mean())
    if (made - wanted - shift).norm() <= close * (made.norm() + wanted.norm()):
        return f"{abs(shift):.6g} {'more' if shift > 0 else 'less'} than"
    return ""


def used_once(misfit: Finding | None) -> Finding:
    """What is said of a candidate that is right with the parameters that it was constructed with, and wrong with others
    in their place."""
    extra = misfit.evidence["extra"] if misfit is not None else []
    made = f": {listed(extra)} {'is' if len(extra) == 1 else 'are'} made of them once" if extra else ""
    return Finding("parameters-once", "The candidate goes on with what its constructor or an earlier call has made of "
                   f"the parameters, where other values have taken their place{made}.",
                   fix="Compute from the parameters in every forward, or make what is kept anew where they have "
                       "changed.",
                   evidence={"extra": list(extra), "weight": 1.8})


def is_to_be_studied(verdict: str, certificate: Certificate) -> bool:
    """Whether a diagnosis may give a failed check another verdict than its trials do: where an error is as small as
    fewer digits leave it, where inputs were changed, and where results hold memory that was not written."""
    if verdict not in OF_VALUES:
        return False
    failed = [trial for trial in certificate.trials if trial.gates and not trial.passed]
    kinds = {kind for trial in failed for kind in trial.kinds}
    if kinds & {"input-changed", "poisoned"}:
        return True
    few = precision_class(certificate) not in (FLOAT32, None) and certificate.candidate_error < MOST
    return few and verdict != "WRONG-NONFINITE" and any(
        trial.plan.distribution == AS_GIVEN or trial.plan.redrawn_parameters for trial in failed)


def of_parameters(verdict: str, certificate: Certificate, model: nn.Module, candidate: RemoteCandidate,
                  misfit: Finding | None, folded: Finding | None, findings: list[Finding]) -> str:
    """The verdict where parameters may be what is wrong: what the constructor ``folded`` into them, copies that stay as
    they are, and what was made of them once. ``findings`` get what is known of it; ``model``: as it was constructed."""
    if folded is not None and verdict in OF_VALUES:
        findings.insert(0, folded)
        return "WRONG-PARAMETERS"
    changed = all(trial.plan.changes_parameters for trial in certificate.trials if trial.gates and not trial.passed)
    if verdict != "WRONG-PARAMETERS" and not (changed and verdict == "WRONG-DISTRIBUTION"):
        return verdict
    stale = stale_copy(model, candidate)
    if verdict == "WRONG-DISTRIBUTION" and stale is None:
        return verdict
    fits = misfit is None or not says_parameters(misfit)
    if fits and not any(weight(found) >= TELLING for found in findings if found is not misfit):
        findings.insert(0, stale or used_once(misfit))
    elif stale is not None:
        findings.insert(1, stale)
    return "WRONG-PARAMETERS"
