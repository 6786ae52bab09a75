"""graphkit: analyse ONNX graphs without touching their weights.

    import graphkit
    model = graphkit.load("model.onnx")
    print(graphkit.kv_cache(model).to_text())

Names are imported when they are first used, so that `import graphkit` is quick; `__init__.pyi` tells type checkers.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "graphkit.analysis.architecture": ("Architecture", "architecture"),
    "graphkit.analysis.blockers": ("Blockers", "blockers"),
    "graphkit.analysis.bundle": ("BundleOverview", "bundle_overview"),
    "graphkit.analysis.control_flow": ("ControlFlow", "control_flow"),
    "graphkit.analysis.fit": ("Fit", "fit"),
    "graphkit.analysis.float16": ("Float16Losses", "float16_losses"),
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
    "graphkit.errors": ("GraphkitError", "ModelError", "OutputError", "PassError", "TargetError", "UsageError"),
    "graphkit.workflows.compare": ("CompareOptions", "compare_models"),
    "graphkit.host": ("Host",),
    "graphkit.host.bundle": ("Bundle",),
    "graphkit.workflows.fold": ("FoldOptions", "FoldReport", "fold_file"),
    "graphkit.graph.networks": ("cone", "to_networkx"),
    "graphkit.graph.view": ("Node", "Scope", "Value"),
    "graphkit.model": ("Model", "ModelLike", "as_model", "load"),
    "graphkit.render.result": ("Result",),
    "graphkit.passes": ("PASSES",),
    "graphkit.passes.fold": ("fold",),
    "graphkit.passes.control_flow.split_merged": ("Split", "split_merged"),
    "graphkit.passes.pipeline": ("parse_pipeline",),
    "graphkit.rewrite.base": ("Pass", "Premise", "run_passes"),
    "graphkit.rewrite.editor": ("Editor",),
    "graphkit.rewrite.edits": ("NewNode",),
    "graphkit.rewrite.fixpoint": ("Rewrite",),
    "graphkit.rewrite.outcome": ("Declined", "Outcome"),
    "graphkit.save": ("Saved", "save_models"),
    "graphkit.workflows.bundle": ("BundleOptions", "BundleReport", "bundle_folder"),
    "graphkit.workflows.specialize": ("Specializer",),
    "graphkit.workflows.edit": ("EditReport", "edit_file"),
    "graphkit.workflows.lower": ("LowerOptions", "LowerReport", "lower_folder"),
    "graphkit.workflows.proven": ("RewriteOptions",),
    "graphkit.workflows.rewrite": ("RewriteReport", "rewrite_file"),
    "graphkit.workflows.split": ("SplitOptions", "SplitReport", "split_file"),
    "graphkit.shapes.dim_spec": ("DimSpec",),
    "graphkit.surgeon": ("from_graphsurgeon", "to_graphsurgeon"),
    "graphkit.targets": ("Target", "load_target"),
    "graphkit.verify.hazards": ("check_hazards",),
    "graphkit.verify.layers.result": ("ModelComparison",),
    "graphkit.verify.proof": ("RewriteProof",),
    "graphkit.verify.bundle": ("BundleProof", "verify_bundle"),
    "graphkit.verify.rewrite": ("verify_extract", "verify_rewrite"),
    "graphkit.verify.split": ("SplitProof", "verify_split"),
}
_ROOMS = ("passes", "rewrite", "shapes", "targets", "verify")  # packages with public names of their own
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


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
