"""The JSON Schemas of everything that graphkit writes as JSON: results, programs, and the files beside models.

The schema of a result is made from the annotations of its fields: each class defines its result once.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from graphkit.analysis.architecture import Architecture, ControlFlow
from graphkit.analysis.blockers import Blockers
from graphkit.analysis.bundle_overview import BundleOverview
from graphkit.analysis.comparison import ComparisonRow
from graphkit.analysis.findings import Finding
from graphkit.analysis.float16_losses import Float16Losses
from graphkit.analysis.hazards import Hazards
from graphkit.analysis.kv_cache import KVCache
from graphkit.analysis.model_costs import Costs
from graphkit.analysis.model_fit import Fit
from graphkit.analysis.model_interface import Interface
from graphkit.analysis.node_list import NodeList, WeightList
from graphkit.analysis.node_placement import NodePlacement
from graphkit.analysis.report import Failure, Report
from graphkit.analysis.report_gate import VerdictLock
from graphkit.analysis.shape_ops import ShapeOps, UnknownShapes
from graphkit.analysis.shape_origins import Origins, WhatIf
from graphkit.analysis.summary import Summary
from graphkit.analysis.target_facts import TargetFacts, Targets
from graphkit.analysis.tensor_shapes import TensorShapes, WhyShape
from graphkit.analysis.verdict import Verdict
from graphkit.contract import BundleContract, Contract
from graphkit.contract.contract_files import contract_schema
from graphkit.deploy.genai import GenaiReport
from graphkit.deploy.lower_report import LowerReport
from graphkit.deploy.make_bundle import BundleReport
from graphkit.deploy.transformers_js import TransformersJsReport
from graphkit.errors import UsageError, did_you_mean
from graphkit.fleet.survey_table import SurveyTable
from graphkit.judges.judge_list import JudgeList, ProviderList
from graphkit.model_diff.model_diff import ModelDiff
from graphkit.ops.tensor import Ratio
from graphkit.render.result import Result, Sizes, json_names, versioned_schema
from graphkit.rewrite.base import Declined
from graphkit.shapes.program_contents import Consumer, Input, Source, Unread
from graphkit.symbolic.algebra import Relation
from graphkit.symbolic.expr import Bound, Expr
from graphkit.verify.deployment_proofs import BundleProof, LoweringProof
from graphkit.verify.layers.comparison import ModelComparison
from graphkit.verify.rewrite_proof import RewriteProof, SplitProof
from graphkit.workflows.fold_file import FolderFoldReport, FoldReport
from graphkit.workflows.rewrite_file import EditReport, RewriteReport
from graphkit.workflows.split_decoder_file import SplitReport

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
    "costs": Costs,
    "float16": Float16Losses,
    "blockers": Blockers,
    "placement": NodePlacement,
}
DOCUMENTS: tuple[type[Result], ...] = (
    FolderFoldReport, FoldReport, SplitReport, EditReport, RewriteReport, LowerReport, BundleReport, BundleOverview,
    GenaiReport, TransformersJsReport, RewriteProof, SplitProof, LoweringProof, BundleProof, ModelComparison, ModelDiff,
    Costs, TensorShapes, WhyShape, NodeList, WeightList, Targets, JudgeList, ProviderList, TargetFacts, VerdictLock,
    SurveyTable,
)  # fmt: skip
TREE: Schema = {
    "description": "A number, the name of a symbol, or a list of an operation and trees.",
    "anyOf": [
        {"type": ["integer", "number", "string"]},
        {"type": "array", "minItems": 2, "prefixItems": [{"type": "string"}], "items": {"$ref": "#/$defs/Tree"}},
    ],
}
Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN: Mapping[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
    Sizes: {"type": "object", "additionalProperties": {"type": "integer"}},
    Declined: {"type": "string"},
}


def _report_schema() -> Schema:
    maker = Maker()
    texts: Schema = {"type": "array", "items": {"type": "string"}}
    sections = {name: maker.of(kind) for name, kind in SECTION_RESULTS.items()}
    some = {**closed_object(sections), "required": []}
    model = closed_object({"model": {"type": "string"}, "sections": some})
    properties = {
        "findings": {"type": "array", "items": maker.of(Finding)},
        "comparison": {"type": "array", "items": maker.of(ComparisonRow)},
        "fit": maker.of(Fit | None),
        "commands": texts,
        "failures": {"type": "array", "items": maker.of(Failure)},
        "models": {"type": "array", "minItems": 1, "items": model},
    }
    return document_schema(Report.schema(), properties, maker.named, "Analyses of one or several models.")


def _program_schema() -> Schema:
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


def result_schema(kind: type[Result]) -> Schema:
    """Return the schema of the JSON that a result of a class writes."""
    maker = Maker()
    return document_schema(kind.schema(), maker.fields(kind), maker.named, _first_line(kind))


SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "report": _report_schema,
    **{kind.schema(): partial(result_schema, kind) for kind in (*DOCUMENTS, *SECTION_RESULTS.values())},
    "program": _program_schema,
    "contract": partial(contract_schema, Contract),
    "bundle": partial(contract_schema, BundleContract),
}


def schema_of(name: str) -> Schema:
    """Return a JSON Schema by the name that `graphkit schema` lists. Raises UsageError where there is none."""
    if name not in SCHEMAS:
        raise UsageError(f"no schema '{name}' - {did_you_mean(name, tuple(SCHEMAS))}")
    return SCHEMAS[name]()


def schema_text(name: str) -> str:
    """Return a JSON Schema as text."""
    return json.dumps(schema_of(name), indent=2) + "\n"


def document_schema(name: str, properties: Mapping[str, Schema], named: Mapping[str, Schema], text: str) -> Schema:
    """Return the schema of a document: the versions of graphkit and of the schema, and some properties.

    `named` are schemas that others refer to; `text` describes the document in a sentence.
    """
    begin: Schema = {"graphkit": {"type": "string"}, "schema": {"const": versioned_schema(name)}}
    return {
        "$schema": DIALECT,
        "title": versioned_schema(name),
        "description": text,
        **closed_object({**begin, **properties}),
        "$defs": dict(sorted(named.items())),
    }


class Maker:
    """Makes schemas of types, of which some are known, and keeps those of dataclasses under their names."""

    def __init__(self, known: Mapping[object, Schema] = PLAIN) -> None:
        self.known = {**PLAIN, **known}
        self.named: dict[str, Schema] = {}

    def fields(self, kind: type) -> dict[str, Schema]:
        """Return the schema of each property that the JSON of a Struct or a dataclass has."""
        hints = get_type_hints(kind)
        schemas = {name: self.of(hints[name]) for name in json_names(kind) or ()}
        for name in kind.computed if issubclass(kind, Result) else ():
            schemas[name] = self.of(get_type_hints(getattr(kind, name).fget)["return"])
        return schemas

    def of(self, hint: Any) -> Schema:
        """Return the schema of a type."""
        if hint in self.known:
            return self.known[hint]
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(argument) for argument in arguments]}
        if origin is tuple and arguments[-1] is not Ellipsis:
            size = len(arguments)
            items = {"prefixItems": [self.of(argument) for argument in arguments], "items": False}
            return {"type": "array", **items, "minItems": size, "maxItems": size}
        if origin in (tuple, list, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if isinstance(hint, type) and json_names(hint) is not None:
            return self.reference(hint)
        raise TypeError(f"{hint} has no JSON Schema")

    def reference(self, kind: type) -> Schema:
        """Return a reference to the schema of a dataclass, which is made once."""
        name = kind.__name__
        if name not in self.named:
            self.named[name] = {}  # it may refer to itself
            self.named[name] = {"description": _first_line(kind), **closed_object(self.fields(kind))}
        return {"$ref": f"#/$defs/{name}"}


def closed_object(properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object that has these properties and no others."""
    shown = {"required": list(properties), "properties": dict(properties)}
    return {"type": "object", "additionalProperties": False, **shown}


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
