"""All passes, in the order in which a pipeline runs them; those of a lowering; pipelines as text.

`specialize-input{input=use_cache_branch,value=true},my_passes:Mine{option=1}` is a pipeline.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from importlib import import_module

from graphkit.errors import GraphkitError, PassError, UsageError, did_you_mean
from graphkit.passes.attention.decompose_attention import DecomposeAttention
from graphkit.passes.attention.mask_arithmetic import TrilToConstant, WhereToArithmetic
from graphkit.passes.attention.masks import DropNanGuard, MaskedFillToAdd
from graphkit.passes.clean_up.eliminate_identity import EliminateIdentity
from graphkit.passes.clean_up.fold_constants import FoldConstants
from graphkit.passes.clean_up.redundant_nodes import (
    DropEmptyOutputs,
    DropUnusedInputs,
    EliminateDeadCode,
    MergeCommonSubexpressions,
)
from graphkit.passes.control_flow.inline_constant_if import InlineConstantIf, SpecializeInput
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.passes.control_flow.merged_decoders import StripMergedSuffixes
from graphkit.passes.fold_pipeline import FOLDING
from graphkit.passes.fuse_passes import FUSING, SHARING
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.passes.interface.rename import Rename
from graphkit.passes.npu.cache_interface import ReduceCacheRank, SplitCrossKv, StackCaches, StaticKvCache
from graphkit.passes.npu.change_dtypes import CastInt64Away, Dequantize, DequantizeTable
from graphkit.passes.npu.decompose_operators import (
    DivideBeforeErf,
    EinsumToMatmul,
    GeluToTanh,
    LayerNormToPrimitives,
    MoveConstantsRight,
    NegToMul,
    PowToMul,
    ReciprocalToDiv,
    RotarySignToTable,
    WriteLayerNormDefaults,
)
from graphkit.passes.npu.gather_to_slice import GatherToSlice
from graphkit.passes.npu.host_inputs import (
    DequantizeAfterGather,
    ExtractEmbedding,
    ExtractHostValues,
    InsertAttentionMask,
    PoolRowByOneHot,
)
from graphkit.passes.npu.reduce_rank import MergeMeanAxes, MoveUnitAxesFirst, ReduceInterfaceRank, ReduceRank
from graphkit.passes.opset.convert_opset import ConvertOpset
from graphkit.passes.shapes.declare_shapes import DeclareShapes, FreezeDims, InferOutputShapes, SetDims
from graphkit.passes.shapes.rematerialize_shapes import RematerializeShapes
from graphkit.passes.shapes.simplify_expand import ExpandToBroadcast
from graphkit.passes.shapes.simplify_reshape import CanonicalizeReshape, MergeChains
from graphkit.passes.shapes.simplify_scatter import MaskedScatterToWhere
from graphkit.passes.shapes.simplify_slice import JoinBeforeReshape, SliceStepsToReshape
from graphkit.passes.state.decode_step import KeepLastLogits, SqueezeTokenAxis, UnpackLogitsWeight
from graphkit.passes.state.static_cache import CountSlotsInUse
from graphkit.passes.state.update_cache_in_place import UpdateCacheInPlace
from graphkit.rewrite import Pass, Rewrite
from graphkit.rewrite.base import read_option

# What a fold does to raise ranks is not among them.
NPU_PASSES: tuple[type[Rewrite], ...] = (
    EliminateIdentity,
    CanonicalizeReshape,
    MergeChains,
    GatherToSlice,
    ExpandToBroadcast,
    ReduceRank,
    MoveUnitAxesFirst,
    JoinBeforeReshape,
    RotarySignToTable,
    CastInt64Away,
    MoveConstantsRight,
    WriteLayerNormDefaults,
    FoldConstants,
    MergeCommonSubexpressions,
)


PASSES: tuple[type[Pass], ...] = (
    InlineFunctions,
    SpecializeInput,
    ExtractSubgraph,
    Rename,
    FreezeDims,
    SetDims,
    InlineConstantIf,
    DropEmptyOutputs,
    *SHARING,
    *FOLDING,
    *FUSING,
    RematerializeShapes,
    EliminateDeadCode,
    DropUnusedInputs,
    InferOutputShapes,
    DeclareShapes,
    StripMergedSuffixes,
    ConvertOpset,
    Dequantize,
    DecomposeAttention,
    MaskedScatterToWhere,
    MaskedFillToAdd,
    DropNanGuard,
    SplitCrossKv,
    DequantizeAfterGather,
    DequantizeTable,
    ExtractEmbedding,
    InsertAttentionMask,
    PoolRowByOneHot,
    ExtractHostValues,
    StaticKvCache,
    TrilToConstant,
    WhereToArithmetic,
    ReduceInterfaceRank,
    ReduceCacheRank,
    StackCaches,
    GatherToSlice,
    ExpandToBroadcast,
    EinsumToMatmul,
    ReduceRank,
    MoveUnitAxesFirst,
    JoinBeforeReshape,
    RotarySignToTable,
    CastInt64Away,
    MoveConstantsRight,
    WriteLayerNormDefaults,
    PowToMul,
    NegToMul,
    ReciprocalToDiv,
    SliceStepsToReshape,
    LayerNormToPrimitives,
    MergeMeanAxes,
    DivideBeforeErf,
    GeluToTanh,
    UpdateCacheInPlace,
    CountSlotsInUse,
    SqueezeTokenAxis,
    KeepLastLogits,
    UnpackLogitsWeight,
)
NAME = r"[a-z0-9-]+|\w+(?:\.\w+)*:\w+"
STEP = re.compile(rf"\s*(?P<name>{NAME})\s*(?:\{{(?P<options>[^{{}}]*)\}})?\s*(?:,|$)")
OPTIONAL = re.compile(r"(?:typing\.)?Optional\[(\w+)\]")
NUMBER = re.compile(r"[+-]?\d{1,40}(\.\d{0,40})?(e[+-]?\d{1,3})?", re.A | re.I)


def import_pass(name: str) -> type[Pass]:
    """Return the pass that a name `package.module:Pass` leads to; this runs the code of that module."""
    place, _, kind = name.partition(":")
    try:
        module = import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise PassError.of(name, f"the import of '{place}' failed", error) from error
        hint = "is it in a folder of PYTHONPATH or in the current one?"
        hint += f" Write {place.removesuffix('.py')}, without .py." if place.endswith(".py") else ""
        raise PassError(name, f"there is no module '{error.name}'", hint) from error
    except (Exception, SystemExit) as error:  # a module is anybody's code
        raise PassError.of(name, f"the import of '{place}' failed", error) from error
    member = getattr(module, kind, None)
    if not isinstance(member, type) or not issubclass(member, Pass):
        members = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Pass)]
        passes = ", ".join(each.__name__ for each in members if each.__module__ == place)
        hint = f"its passes are: {passes}" if passes else "derive a class from graphkit.Pass or graphkit.Rewrite"
        raise PassError(name, f"'{place}' has no '{kind}'" if member is None else f"'{kind}' is no Pass", hint)
    return member


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Return the passes that a text names, in order, with their options.

    Args:
        text: Names, comma-separated, options in braces: `name{option=value,...}`. A name is that of a pass of graphkit,
            in kebab-case, or `package.module:Pass`, whose module is imported.

    Raises:
        UsageError: A pass or an option does not exist, a required option is missing, or a value is wrong.
        PassError: A module cannot be imported, or has no such pass.

    Example:
        >>> graphkit.parse_pipeline("fold-shapes, convert-opset{version=17}")
        (FoldShapes(ranges=()), ConvertOpset(version=17))
    """
    steps: list[Pass] = []
    position = 0
    while position < len(text):
        if (match := STEP.match(text, position)) is None:
            raise UsageError(f"cannot read the pipeline at '{text[position:]}' - write name{{option=value}},name,...")
        steps.append(_build_pass(match["name"], match["options"] or ""))
        position = match.end()
    if not steps:
        raise UsageError(f"the pipeline is empty - choose from {', '.join(kind.name() for kind in PASSES)}")
    return tuple(steps)


def find_pass(name: str, others: tuple[str, ...] = ()) -> type[Pass]:
    """Return the pass of that name; the error says that there is none, as none of others, or its module has none."""
    if ":" in name:
        return import_pass(name)
    for kind in PASSES:
        if kind.name() == name:
            return kind
    hint = did_you_mean(name, (*others, *(kind.name() for kind in PASSES)), "`graphkit explain passes` lists them")
    raise UsageError(f"no {'finding or ' if others else ''}pass '{name}' - {hint}")


def pass_help(name: str, others: tuple[str, ...] = ()) -> str:
    """Return the docstring of a pass, which says its effect, its conditions and an example, with its options."""
    return f"{name}\n\n{inspect.getdoc(find_pass(name, others))}\n"


def _build_pass(step: str, options: str) -> Pass:
    kind = find_pass(step)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    values: dict[str, object] = {}
    for item in filter(None, (part.strip() for part in options.split(","))):
        key, separator, value = (part.strip() for part in item.partition("="))
        name = key.replace("-", "_")
        if not separator or name not in fields:
            raise UsageError(f"{step}: has no option '{key}' - {did_you_mean(name, fields)}")
        kinds = fields[name].type  # a module without `from __future__ import annotations` has types, not texts
        text = kinds.__name__ if isinstance(kinds, type) else str(kinds)
        optional = OPTIONAL.fullmatch(text)
        text = f"{optional[1]} | None" if optional is not None else text
        values[name] = _convert_option(step, name, text, value)
    none = dataclasses.MISSING
    required = (name for name, field in fields.items() if field.default is none and field.default_factory is none)
    if missing := [name for name in required if name not in values]:
        raise UsageError(f"{step}: option '{missing[0]}' is missing - write {step}{{{missing[0]}=...}}")
    try:
        return kind(**values)
    except GraphkitError:
        raise
    except Exception as error:  # a pass that is not graphkit's own is anybody's code
        if ":" not in step:
            raise
        raise PassError.of(step, "cannot be made: its code failed", error) from error


def _convert_option(step: str, name: str, annotation: str, text: str) -> object:
    try:
        if (read := read_option(annotation, text)) is not None:
            return read
    except UsageError as error:
        raise UsageError(f"{step}: option '{name}': {error}") from error
    kinds = [part.strip() for part in annotation.split("|")]
    if "bool" in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "int" in kinds and re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if "float" in kinds and NUMBER.fullmatch(text):
        return float(text)
    if "str" in kinds:
        return text
    raise UsageError(f"{step}: option '{name}' is '{text}' - it takes {' or '.join(kinds)}")
