"""JSON Schemas of the documents that kernelwright prints and writes, made from the records that they are made of.

``regenerate.py`` writes them to docs/schemas. Types are the records' annotations, as ``verify.plain`` turns their
values into JSON; descriptions are their docstrings. Fields may be added while ``schema`` stays as it is, so that
objects are left open.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from kernelwright.cache.folder import SCHEMA as CACHES
from kernelwright.cache.folder import Cache
from kernelwright.deploy.wheel import SCHEMA as WHEELS
from kernelwright.deploy.wheel import Wheel
from kernelwright.doctor import SCHEMA as MACHINES
from kernelwright.doctor import Machine
from kernelwright.errors import KernelwrightError
from kernelwright.fuzz.oracles import Outcome
from kernelwright.fuzz.runner import Report
from kernelwright.judge import records as judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.propose import records as propose
from kernelwright.propose.critique import Critique
from kernelwright.records import Mode
from kernelwright.report.document import SCHEMA
from kernelwright.result import Result
from kernelwright.roofline.devices import Device
from kernelwright.serve import records as service
from kernelwright.suite.judge_runner import SCHEMA as JUDGED
from kernelwright.suite.judge_runner import Judged
from kernelwright.suite.judge_runner import Summary as JudgedSummary
from kernelwright.suite.results import IN_FULL, Record
from kernelwright.suite.results import SCHEMA as RESULTS
from kernelwright.suite.runner import Summary
from kernelwright.timing import Timing
from kernelwright.timing.rounds import Times
from kernelwright.verify import Certificate

_PLAIN = {bool: {"type": "boolean"}, int: {"type": "integer"}, str: {"type": "string"}, Path: {"type": "string"},
          type(None): {"type": "null"}, Any: {}, float: {"$ref": "#/$defs/number"},
          KernelwrightError: {"$ref": "#/$defs/Error"}}
_NUMBER = {"description": "A number; NaN and infinities are strings, because JSON has no such numbers.",
           "anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
_ERROR = {
    "description": "What went wrong: a coded error of docs/errors.md, a wrong command line (usage), or a bug (KW900).",
    "type": "object", "required": ["code", "error", "what"],
    "properties": {
        "code": {"type": "string"}, "error": {"type": "string", "description": "The class of the error."},
        **{name: {"type": "string"} for name in ("what", "where", "why", "fix", "report", "traceback")},
        "exit_status": {"type": "integer"}}}
_FAILURE = {"description": "Printed in place of the document where the command fails.", "type": "object",
            "required": ["schema", "error"],
            "properties": {"schema": {"const": 1}, "error": {"$ref": "#/$defs/Error"}}}
#: What annotations leave open.
_TYPES: dict[tuple[type, str], Any] = {
    (judge.CandidateResult, "verdict"): Literal[tuple(VERDICTS)],
    (Judged, "verdict"): Literal[tuple(VERDICTS)], (Judged, "error"): KernelwrightError | None,
    (service.Status, "error"): KernelwrightError | None, (service.Status, "verdict"): Literal[tuple(VERDICTS)] | None,
    (Record, "error"): KernelwrightError | None, (Record, "result"): Result | None}
#: Fields that have no place in a document, and properties and sentences that have.
_LEFT_OUT = {Result: {"source", "module", "construction"}, Times: {"seconds", "rounds"}}
_PROPERTIES = {propose.ProposeResult: ("exit_status",), judge.CandidateResult: ("error", "own_share"),
               judge.JudgeResult: ("ranking", "exit_status")}
_SENTENCE = {Certificate: "The verdict in words; of the outermost certificate.", Timing: "The result in words."}


def _hints(kind: type) -> dict[str, Any]:
    """The annotations of a record; some modules import their names for type checkers alone."""
    named = {"Certificate": Certificate, "Device": Device, "Timing": Timing, "nn": nn}
    return typing.get_type_hints(kind, localns=named)


class Schema:
    """The schema of one kind of document, with the records that it needs as definitions."""

    def __init__(self, title: str, left_out: Mapping[type, set[str]] | None = None) -> None:
        self.title = title
        self.left_out = {**_LEFT_OUT, **(left_out or {})}
        self.definitions: dict[str, Any] = {"number": _NUMBER, "Error": _ERROR}

    def text(self, *kinds: dict[str, Any]) -> str:
        """The file's text, for documents that are one of ``kinds``."""
        body = kinds[0] if len(kinds) == 1 else {"anyOf": list(kinds)}
        return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": self.title, **body,
                           "$defs": dict(sorted(self.definitions.items()))}, indent=1) + "\n"

    def failure(self) -> dict[str, Any]:
        """A reference to the document of an error."""
        self.definitions["Failure"] = _FAILURE
        return {"$ref": "#/$defs/Failure"}

    def record(self, kind: type, added: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A reference to the definition of a record; ``added`` are the schemas of further fields."""
        name = kind.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # a record may hold others of its kind
            said, described = _descriptions(kind)
            properties = {**(added or {}), **self.fields(kind, described), **(added or {})}
            needed = [field for field in properties if field != "sentence"]
            self.definitions[name] = {"description": said, "type": "object", "required": needed,
                                      "properties": properties}
        return {"$ref": f"#/$defs/{name}"}

    def fields(self, kind: type, described: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The schema of each field that a record has in the document."""
        described = described or _descriptions(kind)[1]
        hints = {name: hint for name, hint in _hints(kind).items()
                 if name not in self.left_out.get(kind, ())}
        found = {name: self.of(_TYPES.get((kind, name), hint)) for name, hint in hints.items()}
        for name in _PROPERTIES.get(kind, ()):
            getter = getattr(kind, name).fget
            found[name] = self.of(typing.get_type_hints(getter)["return"])
            described = {**described, name: _clean(getter.__doc__)}
        if kind in _SENTENCE:
            found["sentence"] = {"type": "string"}
            described = {**described, "sentence": _SENTENCE[kind]}
        return {name: {"description": described[name], **schema} if name in described else schema
                for name, schema in found.items()}

    def of(self, hint: Any) -> dict[str, Any]:
        """The schema of a type's values as JSON."""
        if hint in _PLAIN:
            return _PLAIN[hint]
        if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
            return self.record(hint)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(argument) for argument in arguments]}
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (list, tuple) and arguments[1:] in ((), (...,)):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is tuple:
            return {"type": "array", "prefixItems": [self.of(argument) for argument in arguments], "items": False,
                    "minItems": len(arguments)}
        if origin in (dict, collections.Counter):
            values = self.of(arguments[1] if arguments[1:] else int)
            return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
        raise TypeError(f"{hint} has no schema")


def schemas() -> dict[str, str]:
    """The text of each file in docs/schemas, by its name."""
    version = {"schema": {"const": SCHEMA}}
    optimize = Schema("kernelwright optimize --json, kernelwright explain --json")
    verdicts = Schema("kernelwright judge --json, kernelwright judge --output")
    judged = verdicts.record(judge.JudgeResult, {"schema": {"const": judge.SCHEMA}})
    results = Schema("kernelwright bench: a line of results.jsonl",
                     {Result: {*_LEFT_OUT[Result], "path"}, Mode: set(IN_FULL)})
    results.record(Result, version)
    record = results.record(Record, {"schema": {"const": RESULTS}})
    suite = Schema("kernelwright bench --json")
    summary = suite.record(Summary, {"schema": {"const": 1}})
    candidates = Schema("kernelwright judge --set: a line of results.jsonl, and the last one of --json")
    judged_line = candidates.record(Judged, {"schema": {"const": JUDGED}})
    judged_summary = candidates.record(JudgedSummary, {"schema": {"const": JUDGED}})
    proposed = Schema("kernelwright propose --json, result.json of a run")
    proposed.record(Critique, {"schema": {"const": 1}})
    chosen = proposed.record(propose.ProposeResult, {"schema": {"const": propose.SCHEMA}})
    packed = Schema("kernelwright package --json")
    wheel = packed.record(Wheel, {"schema": {"const": WHEELS}})
    stored = Schema("kernelwright cache --json")
    cache = stored.record(Cache, {"schema": {"const": CACHES}})
    examined = Schema("kernelwright doctor --json")
    machine = examined.record(Machine, {"schema": {"const": MACHINES}})
    served = Schema("kernelwright serve: what is submitted, what it answers, and the lines of --json")
    answers = {"schema": {"const": service.SCHEMA}}
    told = [served.record(kind, answers) for kind in (
        service.Status, service.Listing, service.Health, service.Listening, service.Left)]
    fuzz = Schema("kernelwright fuzz --json")
    outcome = fuzz.fields(Outcome)
    one = fuzz_object({"schema": {"const": 1}, "path": _PLAIN[str], **outcome}, "Of one file.")
    finding = {"seed": _PLAIN[int], **outcome, "model": {"description": "The smallest one's text.", **_PLAIN[str]},
               "file": {"description": "Where it was written.", **fuzz.of(str | None)}}
    many = {"schema": {"const": 1}, **fuzz.fields(Report), "seed": {"description": "The first.", **_PLAIN[int]},
            "findings": {"type": "array", "items": fuzz_object(finding, "A model that goes wrong.")}}
    return {
        "optimize.json": optimize.text(optimize.record(Result, version), optimize.failure()),
        "judge.json": verdicts.text(judged, verdicts.failure()),
        "judged.json": candidates.text(judged_line, judged_summary, candidates.failure()),
        "propose.json": proposed.text(chosen, proposed.failure()),
        "results.json": results.text(record),
        "bench.json": suite.text(summary, suite.failure()),
        "doctor.json": examined.text(machine, examined.failure()),
        "package.json": packed.text(wheel, packed.failure()),
        "cache.json": stored.text(cache, stored.failure()),
        "serve.json": served.text(submission(served), *told, served.failure()),
        "fuzz.json": fuzz.text(fuzz_object(many, "Of random models."), one, fuzz.failure()),
    }


def submission(served: Schema) -> dict[str, Any]:
    """A reference to the definition of the body of a submission, of which only the texts are needed."""
    all_options = served.fields(JudgeSettings)
    options = {"type": "object", "properties": {name: all_options[name] for name in service.OPTIONS},
               "additionalProperties": False}
    said, described = _descriptions(service.Submission)
    texts = {name: {"description": described[name], **_PLAIN[str]} for name in ("problem", "candidate")}
    served.definitions["Submission"] = {
        "description": said, "type": "object", "required": list(texts), "additionalProperties": False,
        "properties": {**texts, "options": {"description": described["options"], **options}}}
    return {"$ref": "#/$defs/Submission"}


def fuzz_object(properties: Mapping[str, Any], said: str) -> dict[str, Any]:
    """An object that has all of these fields."""
    return {"description": said, "type": "object", "required": list(properties), "properties": dict(properties)}


def _descriptions(kind: type) -> tuple[str, dict[str, str]]:
    """What a record's docstrings say of it, and of its fields.

    The class's own describes fields in clauses that begin with their names, as "``low`` and ``high`` are ..." or
    "low: ..."; a docstring, or a comment that begins with "#:", may stand beside a field.
    """
    names = set(_hints(kind))
    text = " ".join((kind.__doc__ or "").split())
    starts = [(found, re.findall(r"\b(?!and\b)\w+", found[1])) for found in re.finditer(
        r"(?:^|(?<=[.;:] ))((?:``\w+``|\w+)(?:, (?:``\w+``|\w+))*(?: and (?:``\w+``|\w+))?)(?=(:?) )", text)]
    starts = [(found, own) for found, own in starts if names.issuperset(own) and ("``" in found[1] or found[2])]
    ends = [found.start() for found, _ in starts[1:]] + [len(text)]
    fields: dict[str, str] = {}
    for (found, own), end in zip(starts, ends):
        clause = text[found.end() + 2 if found[2] else found.start():end]
        fields |= dict.fromkeys(own, _clean(clause))
    fields |= dict(_beside(kind))
    return _clean(text[:starts[0][0].start()] if starts else text), fields


def _beside(kind: type) -> Iterable[tuple[str, str]]:
    """The fields that have a docstring below them or a comment above, with its text."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines, (tree,) = source.split("\n"), ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for node, following in zip(tree.body, [*tree.body[1:], None]):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above = lines[node.lineno - 2].strip()
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                yield node.target.id, _clean(str(following.value.value))
            elif above.startswith("#:"):
                yield node.target.id, _clean(above[2:])


def _clean(text: str) -> str:
    """A docstring's text on one line, as sentences, without what marks names for another reader."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", " ".join(text.split())).replace("``", "`")
    return re.sub(r"\bNone\b", "null", text).rstrip("; .") + "."
