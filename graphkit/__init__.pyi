# The public names and their modules; at run time each is imported when it is first used.

from . import deploy as deploy
from . import passes as passes
from . import rewrite as rewrite
from . import shapes as shapes
from . import verify as verify
from .analysis.architecture import Architecture, ControlFlow, architecture, control_flow
from .analysis.blockers import Blockers, blockers
from .analysis.bundle_overview import BundleOverview, bundle_overview
from .analysis.comparison import Comparison, compare
from .analysis.findings import Finding
from .analysis.float16_losses import Float16Losses, float16_losses
from .analysis.hazards import Hazard, Hazards, hazards
from .analysis.kv_cache import KVCache, kv_cache
from .analysis.model_costs import Costs, costs
from .analysis.model_fit import Fit, fit
from .analysis.model_interface import Interface, interface
from .analysis.node_list import NodeList, WeightList, node_list, weight_list
from .analysis.node_placement import NodePlacement, placement
from .analysis.report import Report, ReportOptions, report
from .analysis.shape_ops import ShapeOps, UnknownShapes, shape_ops, unknown_shapes
from .analysis.shape_origins import Origins, WhatIf, origins, what_if
from .analysis.summary import Summary, summary
from .analysis.tensor_shapes import RemainingShapes, TensorShapes, WhyShape, remaining_shapes, tensor_shapes, why_shape
from .analysis.verdict import Verdict
from .deploy.genai import GenaiReport, genai_folder
from .deploy.lower import lower_folder
from .deploy.lower_report import LowerReport
from .deploy.make_bundle import BundleReport, bundle_folder
from .deploy.transformers_js import TransformersJsReport, transformers_js_folder
from .deploy.verify_folder import verify_folder
from .errors import (
    GenerationWarning,
    GraphkitError,
    ModelError,
    OutputError,
    PassError,
    TargetError,
    UnprovenWarning,
    UsageError,
)
from .graph.view import Node, Scope, Value
from .hosts import Host
from .hosts.bundle_host import Bundle
from .io.urls import RemoteOptions
from .judges.judge_list import ProviderList, list_providers
from .model import Model, ModelLike, as_model, load
from .model_diff.model_diff import ModelDiff, diff
from .options import (
    BundleOptions,
    CompareOptions,
    DeploymentProofOptions,
    DiffOptions,
    FolderOptions,
    FoldingOptions,
    FoldOptions,
    GenaiOptions,
    LowerOptions,
    RewriteOptions,
    RewriteProofOptions,
    SplitOptions,
    SplitProofOptions,
    TransformersJsOptions,
)
from .passes import PASSES
from .passes.control_flow.merged_decoders import Merge, MergeDecoders, Split, merge_decoders, split_merged
from .passes.fold_pipeline import fold
from .passes.registry import parse_pipeline
from .render.result import Result
from .rewrite.base import Declined, MatchFailure, Outcome, Pass, Premise, run_passes
from .rewrite.editor import Editor
from .rewrite.edits import NewNode
from .rewrite.fixpoint import NodeRewrite, Rewrite
from .runtime.external_tools import optimized
from .runtime.providers import Provider
from .save import Saved, save_models
from .shapes.graph_inputs import DimSpec
from .surgeon import cone, from_graphsurgeon, to_graphsurgeon, to_networkx
from .targets import Target, load_target
from .verify.bundle_verifier import verify_bundle
from .verify.deployment_proofs import BundleProof
from .verify.layers.comparison import ModelComparison
from .verify.rewrite_proof import RewriteProof, SplitProof
from .verify.rewrite_verifier import verify_extract, verify_rewrite
from .verify.runs_at_hazards import check_hazards
from .verify.split_verifier import verify_split
from .workflows.compare_models import compare_models
from .workflows.fold_file import FolderFoldReport, FoldReport, fold_file, fold_folder
from .workflows.rewrite_file import EditReport, RewriteReport, edit_file, rewrite_file
from .workflows.specialize import Specializer
from .workflows.split_decoder_file import SplitReport, split_file

__version__: str

__all__ = [
    "PASSES", "Architecture", "Blockers", "Bundle", "BundleOptions", "BundleOverview", "BundleProof", "BundleReport",
    "CompareOptions", "Comparison", "ControlFlow", "Costs", "Declined", "DeploymentProofOptions", "DiffOptions",
    "DimSpec", "EditReport", "Editor", "Finding", "Fit", "Float16Losses", "FoldOptions", "FoldReport",
    "FolderFoldReport", "FolderOptions", "FoldingOptions", "GenaiOptions", "GenaiReport", "GenerationWarning",
    "GraphkitError", "Hazard", "Hazards", "Host", "Interface", "KVCache", "LowerOptions", "LowerReport", "MatchFailure",
    "Merge", "MergeDecoders", "Model", "ModelComparison", "ModelDiff", "ModelError", "ModelLike", "NewNode", "Node",
    "NodeList", "NodePlacement", "NodeRewrite", "Origins", "Outcome", "OutputError", "Pass", "PassError", "Premise",
    "Provider", "ProviderList", "RemainingShapes", "RemoteOptions", "Report", "ReportOptions", "Result", "Rewrite",
    "RewriteOptions", "RewriteProof", "RewriteProofOptions", "RewriteReport", "Saved", "Scope", "ShapeOps",
    "Specializer", "Split", "SplitOptions", "SplitProof", "SplitProofOptions", "SplitReport", "Summary", "Target",
    "TargetError", "TensorShapes", "TransformersJsOptions", "TransformersJsReport", "UnknownShapes", "UnprovenWarning",
    "UsageError", "Value", "Verdict", "WeightList", "WhatIf", "WhyShape", "architecture", "as_model",
    "blockers", "bundle_folder", "bundle_overview", "check_hazards", "compare", "compare_models", "cone",
    "control_flow", "costs", "diff", "edit_file", "fit", "float16_losses", "fold", "fold_file", "fold_folder",
    "from_graphsurgeon", "genai_folder", "hazards", "interface", "kv_cache", "list_providers", "load", "load_target",
    "lower_folder", "merge_decoders", "node_list", "optimized", "origins", "parse_pipeline", "placement",
    "remaining_shapes", "report", "rewrite_file", "run_passes", "save_models", "shape_ops", "split_file",
    "split_merged", "summary", "tensor_shapes", "to_graphsurgeon", "to_networkx", "transformers_js_folder",
    "unknown_shapes", "verify_bundle", "verify_extract", "verify_folder", "verify_rewrite", "verify_split",
    "weight_list", "what_if", "why_shape",
]  # fmt: skip
