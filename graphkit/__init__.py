"""graphkit: read, explain, rewrite and prove ONNX graphs, without touching their weights.

    import graphkit
    model = graphkit.load("model.onnx")  # or "example:merged-decoder", which ships with graphkit
    print(graphkit.kv_cache(model))
    graphkit.fold(model, dims={"batch_size": 1}).model.save("folded.onnx")

Every function takes a model or its path. Results print themselves, show themselves in notebooks, and have `to_text()`,
`to_markdown()`, `to_json()` and `to_html()`. What to call:

Read
    load                    a model; `model.graph` is its view, `model.array(tensor)` the values of a weight
    Model.save              write one
    to_networkx             its graph for networkx; `cone` is what a value depends on
    to_graphsurgeon         its graph for onnx-graphsurgeon; `from_graphsurgeon` takes it back

Explain
    report                  all sections by name, a verdict first; `compare` for several models
    summary, architecture   what it is: size, opset, role, layers, heads
    interface, kv_cache     what a runtime has to feed, and to carry from step to step
    shape_ops, origins      operators that compute shapes, and the expressions behind them
    tensor_shapes           the shape of every tensor as an expression; `why_shape` says where one comes from
    node_list, weight_list  rows of nodes, and of initializers and constants
    costs                   parameters, MACs, bytes moved and peak memory, by layer, as expressions and numbers
    unknown_shapes          tensors whose shapes are not known before a run
    what_if, hazards        what each dim decides, and the dims that break the model; `check_hazards` runs it there
    control_flow, fit       branches of If, Loop and Scan; which models of a folder feed each other
    blockers                what keeps it from an NPU, such as "ethos-u65"
    float16_losses          constants that float16 cannot hold
    view                    it, or two side by side, as Google's Model Explorer shows them

Rewrite
    fold                    shape computations, with or without frozen dims; `fold_file` writes and proves
    split_merged            a merged decoder in two; `split_file` writes and proves
    edit_file               a part of it, other names, sizes for dims, another opset; writes and proves
    run_passes              the passes of `parse_pipeline`, and your own; `rewrite_file` writes and proves
    NodeRewrite, Rewrite    base classes for a pass of your own, as is `Pass`; it works with an `Editor`, each
                            `NewNode`, and a `MatchFailure` for what stays
    save_models             several models over one file of weights

Prove
    verify_rewrite          that any two models give the same, at sizes that matter
    verify_extract          that a part of a model gives what the whole gives
    verify_split            that a pair gives what the merged decoder gives; `verify_bundle` for a bundle
    verify_folder           that a lowered folder or a bundle, as it is now, gives what its export gives
    compare_models          where two models part, layer by layer, and why
    diff                    what differs between the files of two models

Lower, bundle and run
    lower_folder            an export for an NPU, with a contract; `Host` runs it
    bundle_folder           an export as methods over one state; `Bundle` runs it
    Specializer             sessions folded for the shapes that come

`graphkit.shapes`, `passes`, `rewrite`, `deploy` and `verify` have more. Errors are `GraphkitError`s.
"""

# Names are imported when they are first used, so that `import graphkit` is quick; `__init__.pyi` tells type checkers.
from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "graphkit.analysis.architecture": ("Architecture", "architecture"),
    "graphkit.analysis.blockers": ("Blockers", "blockers"),
    "graphkit.analysis.bundle_overview": ("BundleOverview", "bundle_overview"),
    "graphkit.analysis.control_flow": ("ControlFlow", "control_flow"),
    "graphkit.analysis.costs.cost_table": ("Costs",),
    "graphkit.analysis.costs.model_costs": ("costs",),
    "graphkit.analysis.float16_losses": ("Float16Losses", "float16_losses"),
    "graphkit.analysis.hazards": ("Hazard", "Hazards", "hazards"),
    "graphkit.analysis.model_interface": ("Interface", "interface"),
    "graphkit.analysis.kv_cache": ("KVCache", "kv_cache"),
    "graphkit.runtime.external_tools": ("optimized",),
    "graphkit.analysis.shape_origins": ("Origins", "origins"),
    "graphkit.analysis.pipeline_links": ("Fit", "fit"),
    "graphkit.analysis.report": ("Comparison", "Report", "compare", "report"),
    "graphkit.analysis.report_sections": ("ReportOptions",),
    "graphkit.analysis.shape_ops": ("RemainingShapes", "ShapeOps", "remaining_shapes", "shape_ops"),
    "graphkit.analysis.summary": ("Summary", "summary"),
    "graphkit.analysis.node_list": ("NodeList", "WeightList", "node_list", "weight_list"),
    "graphkit.analysis.tensor_shapes": (
        "TensorShapes",
        "UnknownShapes",
        "WhyShape",
        "tensor_shapes",
        "unknown_shapes",
        "why_shape",
    ),
    "graphkit.analysis.findings": ("Finding",),
    "graphkit.analysis.verdict": ("Verdict",),
    "graphkit.analysis.what_if": ("WhatIf", "what_if"),
    "graphkit.errors": (
        "GenerationWarning",
        "GraphkitError",
        "ModelError",
        "OutputError",
        "PassError",
        "TargetError",
        "UnprovenWarning",
        "UsageError",
    ),
    "graphkit.workflows.compare_models": ("compare_models",),
    "graphkit.deploy.hosts": ("Host",),
    "graphkit.deploy.hosts.bundle_host": ("Bundle",),
    "graphkit.workflows.fold_file": ("FoldReport", "fold_file"),
    "graphkit.graph.networkx_export": ("cone", "to_networkx"),
    "graphkit.graph.view": ("Node", "Scope", "Value"),
    "graphkit.io.remote.options": ("RemoteOptions",),
    "graphkit.model": ("Model", "ModelLike", "as_model", "load"),
    "graphkit.model_diff.diff_models": ("diff",),
    "graphkit.model_diff.model_diff": ("ModelDiff",),
    "graphkit.options": (
        "BundleOptions",
        "CompareOptions",
        "DeploymentProofOptions",
        "DiffOptions",
        "FoldOptions",
        "FoldingOptions",
        "FolderOptions",
        "LowerOptions",
        "RewriteOptions",
        "RewriteProofOptions",
        "SplitOptions",
        "SplitProofOptions",
    ),
    "graphkit.render.result": ("Result",),
    "graphkit.passes": ("PASSES",),
    "graphkit.passes.fold_pipeline": ("fold",),
    "graphkit.passes.control_flow.split_merged": ("Split", "split_merged"),
    "graphkit.passes.pipeline": ("parse_pipeline",),
    "graphkit.rewrite.base": ("MatchFailure", "Pass", "Premise", "run_passes"),
    "graphkit.rewrite.editor": ("Editor",),
    "graphkit.rewrite.edits": ("NewNode",),
    "graphkit.rewrite.fixpoint": ("NodeRewrite", "Rewrite"),
    "graphkit.rewrite.outcome": ("Declined", "Outcome"),
    "graphkit.save": ("Saved", "save_models"),
    "graphkit.deploy.make_bundle": ("BundleReport", "bundle_folder"),
    "graphkit.workflows.specialize": ("Specializer",),
    "graphkit.workflows.edit_file": ("EditReport", "edit_file"),
    "graphkit.deploy.lower": ("LowerReport", "lower_folder"),
    "graphkit.workflows.rewrite_file": ("RewriteReport", "rewrite_file"),
    "graphkit.workflows.split_decoder_file": ("SplitReport", "split_file"),
    "graphkit.shapes.graph_inputs": ("DimSpec",),
    "graphkit.surgeon": ("from_graphsurgeon", "to_graphsurgeon"),
    "graphkit.deploy.targets": ("Target", "load_target"),
    "graphkit.verify.runs_at_hazards": ("check_hazards",),
    "graphkit.verify.layers.comparison": ("ModelComparison",),
    "graphkit.verify.rewrite_proof": ("RewriteProof",),
    "graphkit.verify.bundle_verifier": ("verify_bundle",),
    "graphkit.deploy.verify_folder": ("verify_folder",),
    "graphkit.verify.deployment_proofs": ("BundleProof",),
    "graphkit.verify.rewrite_verifier": ("verify_extract", "verify_rewrite"),
    "graphkit.verify.split_verifier": ("SplitProof", "verify_split"),
    "graphkit.viewer.make_view": ("View", "view"),
}
_ROOMS = ("deploy", "passes", "rewrite", "shapes", "verify")  # packages with public names of their own
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
