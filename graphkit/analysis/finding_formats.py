"""Findings in the formats of CI services: SARIF, which code hosts show beside a change, and JUnit XML, as tests.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html and https://github.com/testmoapp/junitxml
"""

from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from graphkit.analysis.comparison import Comparison
from graphkit.analysis.findings import KIND_NAMES, KINDS, Finding, finding_page
from graphkit.analysis.report import VERDICT, Report
from graphkit.analysis.verdict import Verdict
from graphkit.render.document_blocks import printable

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
UNREADABLE = "unreadable-model"
Plain = dict[str, Any]


def as_sarif(made: Report | Comparison) -> str:
    """Return the findings of a report, and the models without one, as a SARIF log of one run."""
    from graphkit import __version__

    level_of = {True: "warning", False: "note"}  # by whether it is a fault
    rules = [_sarif_rule(kind.name, kind.says, level_of[kind.is_fault]) for kind in KINDS]
    for rule in rules:
        page = finding_page(rule["id"])
        rule["help"] = {"text": page, "markdown": page}
    rules.append(_sarif_rule(UNREADABLE, "the model cannot be read", "error"))
    results = [_sarif_result(UNREADABLE, "error", one.problem, [_sarif_location(one.model)]) for one in made.failures]
    for finding in made.found():
        models = [finding.model] if finding.model else [report.model for report in made.reports]
        locations = [_sarif_location(model, finding.where) for model in models]
        identity = hashlib.sha256(f"{finding.kind}\0{finding.key}".encode()).hexdigest()
        result = _sarif_result(finding.kind, level_of[finding.is_fault], finding.text, locations)
        results.append({**result, "partialFingerprints": {"finding/v1": identity}})
    run = {
        "tool": {"driver": {"name": "graphkit", "semanticVersion": __version__, "rules": rules}},
        "invocations": [{"executionSuccessful": not made.failures}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _sarif_rule(name: str, text: str, level: str) -> Plain:
    return {"id": name, "shortDescription": {"text": text}, "defaultConfiguration": {"level": level}}


def _sarif_result(rule: str, level: str, text: str, locations: list[Plain]) -> Plain:
    number = KIND_NAMES.index(rule) if rule in KIND_NAMES else len(KINDS)
    return {"ruleId": rule, "ruleIndex": number, "level": level, "message": {"text": text}, "locations": locations}


def _sarif_location(model: str, where: str = "") -> Plain:
    """Return a place in a model; code hosts show no result without a line, and a model has one."""
    uri = model
    if "://" not in model and not model.startswith("example:"):  # in the current folder relative to it, as they want it
        path, here = Path(model), Path.cwd()
        path = path.relative_to(here) if path.is_relative_to(here) else path
        uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    place: Plain = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}}
    return {**place, "logicalLocations": [{"fullyQualifiedName": where}]} if where else place


def as_junit(made: Report | Comparison) -> str:
    """Return the findings of a report: faults are failures, notes output of a case, broken models errors."""
    suites = []
    for report in made.reports:
        verdict = report.sections.get(VERDICT.name)
        judged = {*report.sections, *(verdict.sections if isinstance(verdict, Verdict) else ())}
        suites.append(_suite_cases(report.model, judged, report.found()))
    for failure in made.failures:
        suite = _suite_element(failure.model, tests=1, failures=0, errors=1)
        case = ET.SubElement(suite, "testcase", name="read", classname=printable(failure.model), time="0")
        ET.SubElement(case, "error", type=UNREADABLE, message=printable(failure.problem))
        suites.append(suite)
    if isinstance(made, Comparison) and made.fit is not None:
        suites.append(_suite_cases("fit", {"fit"}, made.fit.found()))
    root = ET.Element("testsuites", name="graphkit")
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in suites)))
    root.extend(suites)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite_cases(name: str, sections: Collection[str], findings: tuple[Finding, ...]) -> ET.Element:
    """Return a suite with a case for each kind of finding that some sections show."""
    kinds = [kind for kind in KINDS if kind.section in sections]
    failed = {finding.kind for finding in findings if finding.is_fault}
    suite = _suite_element(name, tests=len(kinds), failures=len(failed), errors=0)
    for kind in kinds:
        case = ET.SubElement(suite, "testcase", name=kind.name, classname=printable(name), time="0")
        texts = [printable(finding.text) for finding in findings if finding.kind == kind.name]
        if kind.name in failed:
            ET.SubElement(case, "failure", type=kind.name, message=kind.says).text = "\n".join(texts)
        elif texts:
            ET.SubElement(case, "system-out").text = "\n".join(texts)
    return suite


def _suite_element(name: str, **counts: int) -> ET.Element:
    return ET.Element("testsuite", {"name": printable(name), **{key: str(count) for key, count in counts.items()}})
