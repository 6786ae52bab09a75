"""Findings as JUnit XML, which CI services show as tests: a suite for each model, a case for each kind of finding.

https://github.com/testmoapp/junitxml
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from graphkit.analysis.findings import KINDS, Finding, Kind
from graphkit.analysis.report import Comparison, Failure, Report
from graphkit.analysis.report_sections import VERDICT
from graphkit.analysis.verdict import Verdict
from graphkit.render.document_blocks import printable

__all__ = ["junit"]


def junit(made: Report | Comparison) -> str:
    """Return the findings of a report: faults are failures, notes output of a case, broken models errors."""
    suites = [*map(_suite, made.reports), *map(_of_failure, made.failures)]
    if isinstance(made, Comparison) and made.fit is not None:
        suites.append(_cases("fit", [kind for kind in KINDS if kind.section == "fit"], made.fit.found()))
    root = ET.Element("testsuites", name="graphkit")
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in suites)))
    root.extend(suites)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(report: Report) -> ET.Element:
    verdict = report.sections.get(VERDICT.name)
    judged = {*report.sections, *(verdict.sections if isinstance(verdict, Verdict) else ())}
    return _cases(report.model, [kind for kind in KINDS if kind.section in judged], report.found())


def _cases(name: str, kinds: list[Kind], findings: tuple[Finding, ...]) -> ET.Element:
    failed = {finding.kind for finding in findings if finding.is_fault}
    suite = _element(name, tests=len(kinds), failures=len(failed), errors=0)
    for kind in kinds:
        case = ET.SubElement(suite, "testcase", name=kind.name, classname=printable(name), time="0")
        texts = [printable(finding.text) for finding in findings if finding.kind == kind.name]
        if kind.name in failed:
            ET.SubElement(case, "failure", type=kind.name, message=kind.says).text = "\n".join(texts)
        elif texts:
            ET.SubElement(case, "system-out").text = "\n".join(texts)
    return suite


def _of_failure(failure: Failure) -> ET.Element:
    suite = _element(failure.model, tests=1, failures=0, errors=1)
    case = ET.SubElement(suite, "testcase", name="read", classname=printable(failure.model), time="0")
    ET.SubElement(case, "error", type="unreadable-model", message=printable(failure.problem))
    return suite


def _element(name: str, **counts: int) -> ET.Element:
    return ET.Element("testsuite", {"name": printable(name), **{key: str(count) for key, count in counts.items()}})
