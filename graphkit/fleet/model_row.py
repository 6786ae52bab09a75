"""The row of one model: the facts that its verdict rests on."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter

from graphkit.analysis.blockers import blockers
from graphkit.analysis.report import Report, ReportOptions, report
from graphkit.analysis.shape_ops import UnknownShapes, shape_ops
from graphkit.analysis.summary import Summary
from graphkit.analysis.verdict import Verdict
from graphkit.errors import GraphkitError, ModelError
from graphkit.fleet import storage
from graphkit.fleet.survey_task import UNKNOWN, Row, SurveyTask, blockers_column, data_revisions, found_column, row_of
from graphkit.io.urls import RemoteOptions, is_url
from graphkit.model import load
from graphkit.passes.fold_pipeline import fold
from graphkit.targets import load_target

FACTS = ReportOptions(only=("verdict", "summary", "unknown-shapes"))
NOT_IN_A_NAME, LONGEST_NAME = re.compile(r"[^A-Za-z0-9._-]+"), 80


def model_row(task: SurveyTask) -> Row:
    """Return the row of a model; one that cannot be read or analysed is a row with its error."""
    start, options = time.monotonic(), task.options
    facts: dict[str, object] = {}
    try:
        remote = RemoteOptions(download=options.download, cache=options.cache, timeout=options.timeout)
        model = load(task.path, remote=remote)
        if not is_url(task.path):
            facts["data_files"] = data_revisions(task.path, [file.location for file in model.source.data_files])
        made = report(model, ReportOptions() if options.reports else FACTS)
        facts |= _model_facts(made)
        for name in options.targets:
            facts[blockers_column(name)] = len(blockers(model, load_target(name)).blockers)
        if options.folds:
            facts["shape_nodes_folded"] = shape_ops(fold(model).model).on_shapes
        if options.reports:
            readable = NOT_IN_A_NAME.sub("-", task.name.rpartition("::")[2])[-LONGEST_NAME:].strip("-.")
            digest = hashlib.sha256(task.name.encode(errors="surrogateescape")).hexdigest()[:12]  # of the path
            page = storage.place_inside(options.reports, f"{readable}-{digest}.html")
            storage.write_text(made.to_html(), page)
            facts["report"] = f"{storage.name_of(options.reports)}/{storage.name_of(page)}"
    except GraphkitError as error:
        is_of_tensor = isinstance(error, ModelError) and error.tensor is not None  # whose file nobody has told
        files = facts.get("data_files", UNKNOWN if is_of_tensor else None)
        return row_of(task, {"error": str(error), "data_files": files}, time.monotonic() - start)
    return row_of(task, facts, time.monotonic() - start)


def _model_facts(made: Report) -> dict[str, object]:
    verdict, summary, unknown = (made.sections[name] for name in FACTS.only)
    assert isinstance(verdict, Verdict)
    assert isinstance(summary, Summary)
    assert isinstance(unknown, UnknownShapes)
    counts: Counter[str] = Counter()
    for finding in verdict.faults:
        counts[found_column(finding.kind)] += finding.count
    return {
        "bytes": summary.bytes,
        "role": verdict.role,
        "architecture": verdict.is_a,
        "opset": next((version for domain, version in summary.opsets if domain in ("", "ai.onnx")), None),
        "producer": summary.producer,
        "dtypes": ", ".join(row.dtype for row in summary.weight_bytes),
        "parameters": summary.parameters,
        "nodes": verdict.nodes,
        "shape_nodes": verdict.shape_nodes,
        "unknown_shapes": unknown.unknown,
        "kv_bytes_per_token": verdict.kv_bytes_per_token,
        "macs": verdict.macs.value,
        "peak_bytes": verdict.peak_bytes.value,
        "faults": sum(finding.is_fault for finding in verdict.faults),
        "notes": sum(not finding.is_fault for finding in verdict.faults),
        **counts,
    }
