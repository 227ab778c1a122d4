"""Records as plain data: what every record of VERIFY and TIME uses for its JSON form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def plain(value: Any) -> Any:
    """Return ``value`` built of dict, list, str, int, float, bool and None only.

    Dataclasses become dicts of their fields; tuples and sets become lists; mapping keys become strings;
    NaN and infinities become the strings "nan", "inf" and "-inf", because JSON has no such numbers; dtypes,
    devices and paths become their text.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, (torch.dtype, torch.device, Path)):
        return str(value)
    if isinstance(value, torch.Tensor):
        return plain(value.detach().cpu().tolist())
    return str(value)
