"""graphkit: analyse ONNX graphs without touching their weights.

    import graphkit
    model = graphkit.load("model.onnx")
    print(graphkit.kv_cache(model).to_text())

Names are imported when they are first used, so that `import graphkit` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphkit.analysis.architecture import Architecture, architecture
    from graphkit.analysis.control_flow import ControlFlow, control_flow
    from graphkit.analysis.fit import Fit, fit
    from graphkit.analysis.hazards import Hazard, Hazards, hazards
    from graphkit.analysis.interface import Interface, interface
    from graphkit.analysis.kv_cache import KVCache, kv_cache
    from graphkit.analysis.optimize import optimized
    from graphkit.analysis.origins import Origins, origins
    from graphkit.analysis.remaining_shapes import RemainingShapes, remaining_shapes
    from graphkit.analysis.report import Comparison, Report, compare, report
    from graphkit.analysis.sections import ReportOptions
    from graphkit.analysis.shape_ops import ShapeOps, shape_ops
    from graphkit.analysis.summary import Summary, summary
    from graphkit.analysis.tensor_shapes import TensorShapes, WhyShape, tensor_shapes, why_shape
    from graphkit.analysis.what_if import WhatIf, what_if
    from graphkit.errors import GraphkitError, ModelError, OutputError, UsageError
    from graphkit.graph.networks import cone, to_networkx
    from graphkit.graph.view import Node, Scope, Value
    from graphkit.model import Model, load
    from graphkit.passes.control_flow.split_merged import Split, split_merged
    from graphkit.passes.fold import fold
    from graphkit.render.result import Result
    from graphkit.save import save_models
    from graphkit.shapes.dim_spec import DimSpec
    from graphkit.surgeon import from_graphsurgeon, to_graphsurgeon
    from graphkit.verify.hazards import check_hazards
    from graphkit.verify.proof import RewriteProof
    from graphkit.verify.rewrite import verify_rewrite
    from graphkit.verify.split import SplitProof, verify_split
    from graphkit.workflows.fold import FoldOptions, FoldReport, fold_file
    from graphkit.workflows.specialize import Specializer
    from graphkit.workflows.split import SplitOptions, SplitReport, split_file

__version__ = "0.1.0"

_HOMES = {
    "graphkit.analysis.architecture": ("Architecture", "architecture"),
    "graphkit.analysis.control_flow": ("ControlFlow", "control_flow"),
    "graphkit.analysis.fit": ("Fit", "fit"),
    "graphkit.analysis.hazards": ("Hazard", "Hazards", "hazards"),
    "graphkit.analysis.interface": ("Interface", "interface"),
    "graphkit.analysis.kv_cache": ("KVCache", "kv_cache"),
    "graphkit.analysis.optimize": ("optimized",),
    "graphkit.analysis.origins": ("Origins", "origins"),
    "graphkit.analysis.remaining_shapes": ("RemainingShapes", "remaining_shapes"),
    "graphkit.analysis.report": ("Comparison", "Report", "compare", "report"),
    "graphkit.analysis.sections": ("ReportOptions",),
    "graphkit.analysis.shape_ops": ("ShapeOps", "shape_ops"),
    "graphkit.analysis.summary": ("Summary", "summary"),
    "graphkit.analysis.tensor_shapes": ("TensorShapes", "WhyShape", "tensor_shapes", "why_shape"),
    "graphkit.analysis.what_if": ("WhatIf", "what_if"),
    "graphkit.errors": ("GraphkitError", "ModelError", "OutputError", "UsageError"),
    "graphkit.workflows.fold": ("FoldOptions", "FoldReport", "fold_file"),
    "graphkit.graph.networks": ("cone", "to_networkx"),
    "graphkit.graph.view": ("Node", "Scope", "Value"),
    "graphkit.model": ("Model", "load"),
    "graphkit.render.result": ("Result",),
    "graphkit.passes.fold": ("fold",),
    "graphkit.passes.control_flow.split_merged": ("Split", "split_merged"),
    "graphkit.save": ("save_models",),
    "graphkit.workflows.specialize": ("Specializer",),
    "graphkit.workflows.split": ("SplitOptions", "SplitReport", "split_file"),
    "graphkit.shapes.dim_spec": ("DimSpec",),
    "graphkit.surgeon": ("from_graphsurgeon", "to_graphsurgeon"),
    "graphkit.verify.hazards": ("check_hazards",),
    "graphkit.verify.proof": ("RewriteProof",),
    "graphkit.verify.rewrite": ("verify_rewrite",),
    "graphkit.verify.split": ("SplitProof", "verify_split"),
}
_ROOMS = ("passes", "rewrite", "shapes", "verify")  # packages with public names of their own
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Architecture", "Comparison", "ControlFlow", "DimSpec", "Fit", "FoldOptions", "FoldReport", "GraphkitError",
    "Hazard", "Hazards", "Interface", "KVCache", "Model", "ModelError", "Node", "Origins", "OutputError",
    "RemainingShapes", "Report", "ReportOptions", "Result", "RewriteProof", "Scope", "ShapeOps", "Specializer",
    "Split", "SplitOptions", "SplitProof", "SplitReport", "Summary", "TensorShapes", "UsageError", "Value",
    "WhatIf", "WhyShape", "architecture", "check_hazards", "compare", "cone", "control_flow", "fit", "fold",
    "fold_file", "from_graphsurgeon", "hazards", "interface", "kv_cache", "load", "optimized", "origins",
    "remaining_shapes", "report", "save_models", "shape_ops", "split_file", "split_merged", "summary",
    "tensor_shapes", "to_graphsurgeon", "to_networkx", "verify_rewrite", "verify_split", "what_if", "why_shape",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"graphkit.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'graphkit' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
