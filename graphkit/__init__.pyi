# What type checkers see of the package; at run time `__init__.py` imports each name when it is first used.

from graphkit import deploy as deploy
from graphkit import passes as passes
from graphkit import rewrite as rewrite
from graphkit import shapes as shapes
from graphkit import verify as verify
from graphkit.analysis.architecture import Architecture, architecture
from graphkit.analysis.blockers import Blockers, blockers
from graphkit.analysis.bundle_overview import BundleOverview, bundle_overview
from graphkit.analysis.control_flow import ControlFlow, control_flow
from graphkit.analysis.costs.cost_table import Costs
from graphkit.analysis.costs.model_costs import costs
from graphkit.analysis.findings import Finding
from graphkit.analysis.float16_losses import Float16Losses, float16_losses
from graphkit.analysis.hazards import Hazard, Hazards, hazards
from graphkit.analysis.kv_cache import KVCache, kv_cache
from graphkit.analysis.model_interface import Interface, interface
from graphkit.analysis.node_list import NodeList, WeightList, node_list, weight_list
from graphkit.analysis.pipeline_links import Fit, fit
from graphkit.analysis.report import Comparison, Report, compare, report
from graphkit.analysis.report_sections import ReportOptions
from graphkit.analysis.shape_ops import RemainingShapes, ShapeOps, remaining_shapes, shape_ops
from graphkit.analysis.shape_origins import Origins, origins
from graphkit.analysis.summary import Summary, summary
from graphkit.analysis.tensor_shapes import (
    TensorShapes,
    UnknownShapes,
    WhyShape,
    tensor_shapes,
    unknown_shapes,
    why_shape,
)
from graphkit.analysis.verdict import Verdict
from graphkit.analysis.what_if import WhatIf, what_if
from graphkit.deploy.hosts import Host
from graphkit.deploy.hosts.bundle_host import Bundle
from graphkit.deploy.lower import LowerReport, lower_folder
from graphkit.deploy.make_bundle import BundleReport, bundle_folder
from graphkit.deploy.targets import Target, load_target
from graphkit.deploy.verify_folder import verify_folder
from graphkit.errors import (
    GenerationWarning,
    GraphkitError,
    ModelError,
    OutputError,
    PassError,
    TargetError,
    UnprovenWarning,
    UsageError,
)
from graphkit.graph.networkx_export import cone, to_networkx
from graphkit.graph.view import Node, Scope, Value
from graphkit.io.remote.options import RemoteOptions
from graphkit.model import Model, ModelLike, as_model, load
from graphkit.model_diff.diff_models import diff
from graphkit.model_diff.model_diff import ModelDiff
from graphkit.options import (
    BundleOptions,
    CompareOptions,
    DeploymentProofOptions,
    DiffOptions,
    FolderOptions,
    FoldingOptions,
    FoldOptions,
    LowerOptions,
    RewriteOptions,
    RewriteProofOptions,
    SplitOptions,
    SplitProofOptions,
)
from graphkit.passes import PASSES
from graphkit.passes.control_flow.split_merged import Split, split_merged
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.pipeline import parse_pipeline
from graphkit.render.result import Result
from graphkit.rewrite.base import MatchFailure, Pass, Premise, run_passes
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import NodeRewrite, Rewrite
from graphkit.rewrite.outcome import Declined, Outcome
from graphkit.runtime.external_tools import optimized
from graphkit.save import Saved, save_models
from graphkit.shapes.graph_inputs import DimSpec
from graphkit.surgeon import from_graphsurgeon, to_graphsurgeon
from graphkit.verify.bundle_verifier import verify_bundle
from graphkit.verify.deployment_proofs import BundleProof
from graphkit.verify.layers.comparison import ModelComparison
from graphkit.verify.rewrite_proof import RewriteProof
from graphkit.verify.rewrite_verifier import verify_extract, verify_rewrite
from graphkit.verify.runs_at_hazards import check_hazards
from graphkit.verify.split_verifier import SplitProof, verify_split
from graphkit.viewer.make_view import View, view
from graphkit.workflows.compare_models import compare_models
from graphkit.workflows.edit_file import EditReport, edit_file
from graphkit.workflows.fold_file import FoldReport, fold_file
from graphkit.workflows.rewrite_file import RewriteReport, rewrite_file
from graphkit.workflows.specialize import Specializer
from graphkit.workflows.split_decoder_file import SplitReport, split_file

__version__: str

__all__ = [
    "PASSES", "Architecture", "Blockers", "Bundle", "BundleOptions", "BundleOverview", "BundleProof", "BundleReport",
    "CompareOptions", "Comparison", "ControlFlow", "Costs", "Declined", "DeploymentProofOptions", "DiffOptions",
    "DimSpec", "EditReport", "Editor", "Finding", "Fit", "Float16Losses", "FoldOptions", "FoldReport", "FolderOptions",
    "FoldingOptions", "GenerationWarning", "GraphkitError", "Hazard", "Hazards", "Host", "Interface", "KVCache",
    "LowerOptions", "LowerReport", "MatchFailure", "Model", "ModelComparison", "ModelDiff", "ModelError", "ModelLike",
    "NewNode", "Node", "NodeList", "NodeRewrite", "Origins", "Outcome", "OutputError", "Pass", "PassError", "Premise",
    "RemainingShapes", "RemoteOptions", "Report", "ReportOptions", "Result", "Rewrite", "RewriteOptions",
    "RewriteProof", "RewriteProofOptions", "RewriteReport", "Saved", "Scope", "ShapeOps", "Specializer", "Split",
    "SplitOptions", "SplitProof", "SplitProofOptions", "SplitReport", "Summary", "Target", "TargetError",
    "TensorShapes", "UnknownShapes", "UnprovenWarning", "UsageError", "Value", "Verdict", "View", "WeightList",
    "WhatIf", "WhyShape", "architecture", "as_model", "blockers", "bundle_folder", "bundle_overview", "check_hazards",
    "compare", "compare_models", "cone", "control_flow", "costs", "diff", "edit_file", "fit", "float16_losses", "fold",
    "fold_file", "from_graphsurgeon", "hazards", "interface", "kv_cache", "load", "load_target", "lower_folder",
    "node_list", "optimized", "origins", "parse_pipeline", "remaining_shapes", "report", "rewrite_file", "run_passes",
    "save_models", "shape_ops", "split_file", "split_merged", "summary", "tensor_shapes", "to_graphsurgeon",
    "to_networkx", "unknown_shapes", "verify_bundle", "verify_extract", "verify_folder", "verify_rewrite",
    "verify_split", "view", "weight_list", "what_if", "why_shape",
]  # fmt: skip
