"""What is right of each transcript: what reading shows, the verdict, and what the critique must say."""

from __future__ import annotations

from typing import NamedTuple


class Expected(NamedTuple):
    """``form``: of the answer. ``verdicts``: those that are right. ``said``: parts of sentences of its review."""

    form: str
    verdicts: tuple[str, ...]
    said: tuple[str, ...]


RIGHT = ("OK",)
EXPECTED: dict[str, dict[str, Expected]] = {
    "norm_softmax": {
        "01_thinks_aloud.md": Expected("complete", RIGHT, ("A complete file",)),
        "02_no_room.md": Expected("cut off", ("BUILD-SYNTAX",), ("A text that is cut off", "cpp_source", "never ends")),
        "03_placeholder.md": Expected("placeholder", ("BUILD-INCOMPLETE",),
                                      ("placeholder", "no attribute 'norm'", "Create it in __init__", "line 11")),
        "04_forgets_affine.md": Expected("complete", ("WRONG-PARAMETERS",),
                                         ("almost right", "without the weight and bias", "multiply by the weight")),
        "05_three_versions.md": Expected("complete", RIGHT, ("A complete file",)),
    },
    "conv_scale": {
        "06_split_class.md": Expected("complete", RIGHT, ("A complete file",)),
        "07_forgets_shift.md": Expected("complete", ("WRONG-NUMERIC",),
                                        ("almost right", "without adding shift", "add shift", "at [0, 0, 0, 0]")),
        "08_does_not_compile.md": Expected("complete", ("BUILD-COMPILE",),
                                           ("does not build", "line 17", "semicolon")),
        "09_takes_it_back.md": Expected("complete", RIGHT, ("A complete file",)),
        "10_half.md": Expected("complete", ("WRONG-PRECISION",),
                               ("almost right", "bfloat16", "accumulate in float32")),
    },
    "gated_scan": {
        "11_kernel_apart.md": Expected("complete", RIGHT, ("A complete file",)),
        "12_exclusive.md": Expected("complete", ("WRONG-NUMERIC",), ("almost right",)),
        "13_only_thinks.md": Expected("cut off", ("BUILD-EMPTY",), ("A text that is cut off", "nothing to judge")),
        "14_no_code.md": Expected("no code", ("BUILD-EMPTY",), ("Words without code", "Write the whole file")),
        "15_no_fences.txt": Expected("complete", RIGHT, ("A complete file",)),
    },
    "linear_norm": {
        "16_wrong_groups.md": Expected("complete", ("WRONG-NUMERIC", "WRONG-DISTRIBUTION"), ("norm",)),
        "17_other_name.md": Expected("complete", RIGHT, ("A complete file",)),
        "18_stores_results.md": Expected("complete", ("CHEAT-REPLAY", "WRONG-STALE", "WRONG-ALIAS"),
                                         ("earlier",)),
        "19_goes_on.json": Expected("complete", RIGHT, ("A complete file",)),
        "20_gives_orders.md": Expected("complete", ("WRONG-NUMERIC", "CHEAT-STALE"), ("zero",)),
    },
}
