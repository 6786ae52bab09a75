"""Findings as SARIF 2.1.0, the format of static analysis that code hosts show beside a change.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from graphkit.analysis.finding_pages import finding_page
from graphkit.analysis.findings import KIND_NAMES, KINDS, Finding
from graphkit.analysis.report import Comparison, Failure, Report

__all__ = ["sarif"]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
UNREADABLE = "unreadable-model"
Plain = dict[str, Any]


def sarif(made: Report | Comparison) -> str:
    """Return the findings of a report, and the models without one, as a SARIF log of one run."""
    from graphkit import __version__

    driver = {"name": "graphkit", "semanticVersion": __version__, "rules": [*_rules()]}
    results = [*map(_of_failure, made.failures), *(_result(finding, made) for finding in made.found())]
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not made.failures}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rules() -> Iterator[Plain]:
    for kind in KINDS:
        level = "warning" if kind.is_fault else "note"
        page = finding_page(kind.name)
        yield {
            "id": kind.name,
            "shortDescription": {"text": kind.says},
            "help": {"text": page, "markdown": page},
            "defaultConfiguration": {"level": level},
        }
    yield {
        "id": UNREADABLE,
        "shortDescription": {"text": "the model cannot be read"},
        "defaultConfiguration": {"level": "error"},
    }


def _result(finding: Finding, made: Report | Comparison) -> Plain:
    models = [finding.model] if finding.model else [report.model for report in made.reports]
    identity = hashlib.sha256(f"{finding.kind}\0{finding.key}".encode()).hexdigest()
    return {
        "ruleId": finding.kind,
        "ruleIndex": KIND_NAMES.index(finding.kind),
        "level": "warning" if finding.is_fault else "note",
        "message": {"text": finding.text},
        "locations": [_location(model, finding.where) for model in models],
        "partialFingerprints": {"finding/v1": identity},
    }


def _of_failure(failure: Failure) -> Plain:
    return {
        "ruleId": UNREADABLE,
        "ruleIndex": len(KINDS),
        "level": "error",
        "message": {"text": failure.problem},
        "locations": [_location(failure.model, "")],
    }


def _location(model: str, where: str) -> Plain:
    """Return a place in a model; code hosts show no result without a line, and a model has one."""
    place: Plain = {"physicalLocation": {"artifactLocation": {"uri": _uri(model)}, "region": {"startLine": 1}}}
    return {**place, "logicalLocations": [{"fullyQualifiedName": where}]} if where else place


def _uri(model: str) -> str:
    """Return the URI of a model: relative to the current folder where it lies in it, as code hosts want it."""
    if "://" in model or model.startswith("example:"):
        return model
    path, here = Path(model), Path.cwd()
    if path.is_relative_to(here):
        path = path.relative_to(here)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
