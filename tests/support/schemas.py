"""Documents against the JSON Schemas of docs/schemas."""

from __future__ import annotations

import json
from typing import Any

from places import ROOT

FOLDER = ROOT / "docs" / "schemas"


def assert_fits(document: Any, name: str) -> None:
    """A document, as JSON, has all fields of docs/schemas/NAME.json, of their types, and no field that is not there."""
    from jsonschema import Draft202012Validator  # the other tests of a file need no more than they did

    schema = json.loads((FOLDER / f"{name}.json").read_text())
    found = Draft202012Validator(_closed(schema)).iter_errors(json.loads(json.dumps(document, allow_nan=False)))
    assert [f"{error.json_path}: {error.message[:300]}" for error in found] == []


def _closed(schema: Any) -> Any:
    """The schema, allowing no field that it does not name: a reader's allows those of later versions."""
    if isinstance(schema, list):
        return [_closed(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    own = {key: _closed(value) for key, value in schema.items()}
    return {**own, "additionalProperties": False} if isinstance(own.get("required"), list) else own
