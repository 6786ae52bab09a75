"""The JSON Schemas of everything that graphkit writes as JSON: results, programs, and the files beside models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from graphkit.analysis.architecture import Architecture
from graphkit.analysis.blockers import Blockers
from graphkit.analysis.bundle_overview import BundleOverview
from graphkit.analysis.control_flow import ControlFlow
from graphkit.analysis.findings import Finding
from graphkit.analysis.float16 import Float16Losses
from graphkit.analysis.hazards import Hazards
from graphkit.analysis.interface import Interface
from graphkit.analysis.kv_cache import KVCache
from graphkit.analysis.origins import Origins
from graphkit.analysis.pipeline_links import Fit
from graphkit.analysis.report import ComparisonRow, Failure, Report
from graphkit.analysis.shape_ops import ShapeOps
from graphkit.analysis.summary import Summary
from graphkit.analysis.target_facts import TargetFacts, Targets
from graphkit.analysis.tensor_shapes import TensorShapes, WhyShape
from graphkit.analysis.unknown_shapes import UnknownShapes
from graphkit.analysis.verdict import Verdict
from graphkit.analysis.what_if import WhatIf
from graphkit.deploy.bundle import BundleReport
from graphkit.deploy.lower_report import LowerReport
from graphkit.errors import UsageError
from graphkit.render.result import Result
from graphkit.render.schema import Maker, Schema, closed, document_schema, result_schema
from graphkit.shapes.expr import Expr
from graphkit.shapes.program import Input
from graphkit.shapes.program_contents import Consumer, Source, Unread
from graphkit.shapes.relations import Relation
from graphkit.shapes.symbols import Bound
from graphkit.shapes.tensor import Ratio
from graphkit.suggest import did_you_mean
from graphkit.verify.deployment_proofs import BundleProof, LoweringProof
from graphkit.verify.layers.comparison import ModelComparison
from graphkit.verify.rewrite_proof import RewriteProof
from graphkit.verify.split_proof import SplitProof
from graphkit.workflows.edit import EditReport
from graphkit.workflows.fold import FoldReport
from graphkit.workflows.rewrite import RewriteReport
from graphkit.workflows.split import SplitReport

__all__ = ["SCHEMAS", "SECTION_RESULTS", "schema_of", "schema_text"]

SECTION_RESULTS: Mapping[str, type[Result]] = {
    "verdict": Verdict,
    "summary": Summary,
    "architecture": Architecture,
    "interface": Interface,
    "kv-cache": KVCache,
    "shape-ops": ShapeOps,
    "origins": Origins,
    "what-if": WhatIf,
    "hazards": Hazards,
    "unknown-shapes": UnknownShapes,
    "control-flow": ControlFlow,
    "float16": Float16Losses,
    "blockers": Blockers,
}
DOCUMENTS: tuple[type[Result], ...] = (
    *(FoldReport, SplitReport, EditReport, RewriteReport, LowerReport, BundleReport, BundleOverview),
    *(
        RewriteProof,
        SplitProof,
        LoweringProof,
        BundleProof,
        ModelComparison,
        TensorShapes,
        WhyShape,
        Targets,
        TargetFacts,
    ),
)
TREE: Schema = {
    "description": "A number, the name of a symbol, or a list of an operation and trees.",
    "anyOf": [
        {"type": ["integer", "number", "string"]},
        {"type": "array", "minItems": 2, "prefixItems": [{"type": "string"}], "items": {"$ref": "#/$defs/Tree"}},
    ],
}


def _report() -> Schema:
    """Return the schema of a report, which is one for one model and for several."""
    maker = Maker()
    texts: Schema = {"type": "array", "items": {"type": "string"}}
    sections = {name: maker.of(kind) for name, kind in SECTION_RESULTS.items()}
    some = {**closed(sections), "required": []}
    model = closed({"model": {"type": "string"}, "sections": some})
    properties = {
        "findings": {"type": "array", "items": maker.of(Finding)},
        "comparison": {"type": "array", "items": maker.of(ComparisonRow)},
        "fit": maker.of(Fit | None),
        "commands": texts,
        "failures": {"type": "array", "items": maker.of(Failure)},
        "models": {"type": "array", "minItems": 1, "items": model},
    }
    return document_schema(Report.schema(), properties, maker.named, "Analyses of one or several models.")


def _program() -> Schema:
    """Return the schema of a shape program: an expression is a number, or a text that `expressions` has a tree for."""
    number: Schema = {"type": ["integer", "number", "string"]}
    maker = Maker({Expr: number, Ratio: number, Bound: {"type": ["integer", "null"]}})
    parts: Mapping[str, type] = {
        "inputs": Input,
        "symbols": Source,
        "unread": Unread,
        "conditions": Relation,
        "consumers": Consumer,
    }
    properties: dict[str, Schema] = {"model": {"type": "string"}}
    properties |= {name: {"type": "array", "items": maker.of(kind)} for name, kind in parts.items()}
    properties["expressions"] = {"type": "object", "additionalProperties": {"$ref": "#/$defs/Tree"}}
    text = "What every node reads as a shape, an axis or a count, as expressions in the input dims."
    return document_schema("program", properties, {**maker.named, "Tree": TREE}, text)


def _file(name: str) -> Callable[[], Schema]:
    def read() -> Schema:
        text = (files("graphkit.deploy.contract") / f"{name}.schema.json").read_text("utf-8")
        plain: dict[str, Any] = json.loads(text)
        return plain

    return read


def _of(kind: type[Result]) -> Callable[[], Schema]:
    return lambda: result_schema(kind)


SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "report": _report,
    **{kind.schema(): _of(kind) for kind in (*DOCUMENTS, *SECTION_RESULTS.values())},
    "program": _program,
    "contract": _file("contract"),
    "bundle": _file("bundle"),
}


def schema_of(name: str) -> Schema:
    """Return a JSON Schema by the name that `graphkit schema` lists.

    Raises:
        UsageError: There is none.
    """
    if name not in SCHEMAS:
        raise UsageError(f"no schema '{name}' - {did_you_mean(name, tuple(SCHEMAS))}")
    return SCHEMAS[name]()


def schema_text(name: str) -> str:
    """Return a JSON Schema as text."""
    return json.dumps(schema_of(name), indent=2) + "\n"
