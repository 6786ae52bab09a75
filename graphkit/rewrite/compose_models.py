"""Compose two models into one: outputs of the first become inputs of the second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx
import onnx.compose

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.rewrite.renaming import declared_dims_in

__all__ = ["compose_models"]


def compose_models(first: Model, second: Model, links: Mapping[str, str], prefix: str) -> Model:
    """Return a model that runs one model and then another.

    It has the inputs and outputs of both, without those that are linked. Weights stay where they lie.

    Args:
        first: The model that runs first.
        second: The model that reads it, whose names and metadata stay.
        links: The output of the first that an input of the second becomes, by that input.
        prefix: What goes before all names of the first, and before its symbolic dims that the second has too.

    Raises:
        UsageError: They have different opsets, or a name in common in spite of the prefix; or there is no such output
            or input.
    """
    model = second.with_proto(second.proto)
    ahead = onnx.compose.add_prefix(model.adopt(first), prefix, inplace=True)
    _tell_dims_apart(ahead.graph, second.proto.graph, links, prefix)
    proto = onnx.ModelProto()
    proto.CopyFrom(second.proto)
    _merge_opsets(first, ahead, second, proto)
    pairs = [(f"{prefix}{source}", name) for name, source in links.items()]
    graph = second.proto.graph
    try:
        merged = onnx.compose.merge_graphs(ahead.graph, graph, pairs, name=graph.name, doc_string=graph.doc_string)
    except ValueError as error:
        raise UsageError(f"{first.name} and {second.name} cannot be composed: {error}") from error
    merged.metadata_props.extend(graph.metadata_props)
    _annotate_quantization(merged, ahead.graph, lambda name: f"{prefix}{name}")
    first_names = {name: f"{prefix}{source}" for name, source in links.items()}
    _annotate_quantization(merged, graph, lambda name: first_names.get(name, name))
    proto.graph.CopyFrom(merged)
    proto.functions.extend(ahead.functions)
    known = {entry.key for entry in proto.metadata_props}
    proto.metadata_props.extend(entry for entry in ahead.metadata_props if entry.key not in known)
    return model.with_proto(proto)


def _tell_dims_apart(ahead: onnx.GraphProto, behind: onnx.GraphProto, links: Mapping[str, str], prefix: str) -> None:
    """Rename symbolic dims of the first model that the second uses for possibly other lengths.

    Names that shape inference made up, such as `unk__0`, stand in both for anything, and onnxruntime plans one buffer
    for what is of one size by its symbols. The batch is that of both, and so is a dim that both name alike on one axis
    of what links them, as far as no input that stays has that name.
    """
    fed = _declared_symbols(info for info in behind.input if info.name not in links)
    known = fed | _declared_symbols((*behind.output, *behind.value_info))
    linked = _linked_symbols(ahead, behind, links, prefix) - fed
    batch = {name for name in _declared_symbols(ahead.input) & _declared_symbols(behind.input) if "batch" in name}
    apart = known - linked - batch
    for dim in declared_dims_in((*ahead.input, *ahead.output, *ahead.value_info)):
        if dim.dim_param in apart:
            dim.dim_param = f"{prefix}{dim.dim_param}"


def _linked_symbols(ahead: onnx.GraphProto, behind: onnx.GraphProto, links: Mapping[str, str], prefix: str) -> set[str]:
    """Return the symbols that an output of the first and the input that it becomes have on the same axis."""
    outputs = {info.name: info for info in ahead.output}
    pairs = ((outputs.get(f"{prefix}{links[info.name]}"), info) for info in behind.input if info.name in links)
    return {
        given_dim.dim_param
        for output, info in pairs
        if output is not None
        for given_dim, dim in zip(declared_dims_in([output]), declared_dims_in([info]), strict=False)
        if given_dim.dim_param == dim.dim_param
    } - {""}


def _declared_symbols(infos: Iterable[onnx.ValueInfoProto]) -> set[str]:
    return {dim.dim_param for dim in declared_dims_in(infos)} - {""}


def _annotate_quantization(merged: onnx.GraphProto, graph: onnx.GraphProto, name: Callable[[str], str]) -> None:
    """Give a graph the quantization annotations of a part of it, whose names onnx leaves."""
    for annotation in graph.quantization_annotation:
        made = merged.quantization_annotation.add(tensor_name=name(annotation.tensor_name))
        for entry in annotation.quant_parameter_tensor_names:
            made.quant_parameter_tensor_names.add(key=entry.key, value=name(entry.value))


def _merge_opsets(first: Model, ahead: onnx.ModelProto, second: Model, proto: onnx.ModelProto) -> None:
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    for entry in ahead.opset_import:
        if versions.setdefault(entry.domain, entry.version) != entry.version:
            domain = entry.domain or "ai.onnx"
            raise UsageError(
                f"{first.name} has opset {entry.version} of {domain}, {second.name} has {versions[entry.domain]} - "
                "convert one with convert-opset"
            )
    present = {entry.domain for entry in proto.opset_import}
    proto.opset_import.extend(entry for entry in ahead.opset_import if entry.domain not in present)
    proto.ir_version = max(proto.ir_version, ahead.ir_version)
