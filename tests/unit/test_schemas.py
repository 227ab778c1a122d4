"""The JSON Schemas of docs/schemas: up to date, valid, and true of documents; the tests of commands hold theirs."""

from __future__ import annotations

import dataclasses
import importlib.util
import json

import pytest
from jsonschema import Draft202012Validator
from places import ROOT
from schemas import FOLDER, assert_fits
from test_judge_report import all_kinds
from test_report import CONTRACTION, KERNEL, certificate, mode, result, timing
from test_scores import EVIL

from kernelwright import errors
from kernelwright.cli import app
from kernelwright.judge.records import Finding
from kernelwright.report import as_json

_specification = importlib.util.spec_from_file_location("regenerate", ROOT / "tools" / "regenerate.py")
regenerate = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(regenerate)


def full():
    checked = certificate()
    return result(mode(certificate=dataclasses.replace(checked, recorded=checked), timing=timing(), floor_seconds=1e999,
                       kernels=(KERNEL, CONTRACTION)), mode("training"))


def test_up_to_date():
    texts = regenerate.schema_texts()
    assert {path: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()} == texts, "run tools/regenerate.py"
    for text in texts.values():
        Draft202012Validator.check_schema(json.loads(text))


def test_documents_of_optimize():
    assert_fits(as_json(full()), "optimize")
    assert_fits(as_json(result(mode(certificate=certificate(scale=1.5)), path=None)), "optimize")


def test_documents_of_the_judge():
    assert_fits(all_kinds().to_json(), "judge")


def test_every_command_has_a_schema():
    titles = [json.loads(text)["title"] for text in regenerate.schema_texts().values()]
    for command in app.registered_commands:
        name = command.callback.__name__
        assert [title for title in titles if f"kernelwright {name}" in title and "--json" in title], name


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.iterdir() if path.stem != "results"))
def test_errors_are_documents(name, tmp_path):
    for error in (errors.FileMissing(path="a.py", folder="b"),
                  errors.InternalError.wrap(ValueError(EVIL), ["kernelwright"], tmp_path)):
        assert_fits({"schema": 1, "error": error.as_json()}, name)


def changed(**changes):
    return {**as_json(full()), **changes}


@pytest.mark.parametrize("document", [
    changed(more=1), changed(schema=2), changed(modes=[{}]), changed(target=None),
    {key: value for key, value in as_json(full()).items() if key != "device"}])
def test_other_documents_do_not_fit(document):
    with pytest.raises(AssertionError):
        assert_fits(document, "optimize")


def test_fields_are_described():
    schema = json.loads((FOLDER / "judge.json").read_text())["$defs"]
    finding = schema["Finding"]
    assert list(finding["properties"]) == [field.name for field in dataclasses.fields(Finding)]
    assert finding["description"] == "One thing that was found about a candidate."
    assert finding["properties"]["fix"]["description"] == "`fix` says what would mend it."
    assert "null where there is no time" in schema["CandidateResult"]["properties"]["rank"]["description"]
    both = [schema["Certificate"]["properties"][name]["description"] for name in ("candidate_error", "eager_error")]
    assert both[0] == both[1] and both[0].startswith("`eager_error` and `candidate_error` are the worst")
