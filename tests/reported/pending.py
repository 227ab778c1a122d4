"""What is known to be wrong with models of the tables: each leaves this list with what mends it."""

from __future__ import annotations

#: Names of models by what is wrong with them.
_KNOWN: dict[str, tuple[str, ...]] = {
    "does not take PyTorch's fast path": (
        "attention: an encoder whose last places are padding", "attention: rows without a key",
        "attention: a bias of attention",
    ),
    "lies otherwise in memory": (
        "attention: several heads with weights", "attention: several heads without weights",
        "complexes: windows of a signal", "layouts: channels last through functions",
        "layouts: channels last beside contiguous", "layouts: transposed in and out",
        "layouts: not contiguous and complex pairs", "layouts: channels last in three dimensions",
        "layouts: channels last through a norm", "layouts: channels last through pools", "layouts: made contiguous",
        "loops: both directions",
    ),
    "shares other memory": (
        "changes: the input itself", "changes: one result twice", "states: a buffer returned",
    ),
    "has other gradients, or says so of outputs": (
        "complexes: a conjugate", "complexes: times an imaginary number", "complexes: a spectrum returned",
        "dtypes: comparison of a type with another", "dtypes: sum of truth values", "dtypes: mixed branches of where",
        "dtypes: a type asked for by the model", "gradients: an output that is cut off",
        "gradients: cut off in place", "gradients: an output without a parameter", "gradients: a tensor made inside",
        "gradients: a second gradient", "gradients: computed again in the backward", "loops: a state read twice",
        "losses: a loss beside its detached self", "outputs: sizes as a tensor",
    ),
    "does not round where the model casts": (
        "dtypes: down and up again",
    ),
    "takes minutes": (
        "loops: steps of a solver",
    ),
    "raises nothing, or something else": (
        "losses: a class that is not there", "losses: targets that are no probabilities",
        "losses: inputs that are no probabilities",
    ),
    "was captured in the other gradient mode": (
        "modes: asks whether gradients are recorded", "modes: asks whether an input requires a gradient",
        "modes: gradients turned off inside",
    ),
    "gives up its kernels": (
        "norms: layer norm of huge numbers", "norms: layer norm at the end of the range",
        "norms: deviation of huge and tiny numbers", "signs: more functions at their ends", "signs: large angles",
    ),
    "is refused": (
        "outputs: a data class", "outputs: a shape",
    ),
    "returns another container": (
        "outputs: an ordered dictionary",
    ),
    "ends in a crash": (
        "reductions: an axis of a number",
    ),
    "has other signs, infinities or NaN": (
        "signs: zeros by both zeros", "signs: divided by zeros", "signs: functions at their ends",
    ),
}
PENDING: dict[str, str] = {name: words for words, names in _KNOWN.items() for name in names}
#: Those that would not end.
ENDLESS = frozenset(_KNOWN["takes minutes"])
