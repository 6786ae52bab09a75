"""Compose two models into one, such as an encoder and the first step of its decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.compose
import onnx.numpy_helper

from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.rewrite import Editor, Matched, NewNode, Pass, copy_proto
from graphkit.rewrite.new_interface import NewInput, declared_dims_in, drop_dead_inputs, with_interface, with_names
from graphkit.shapes import infer

PREFIX = "encoder/"


def compose_models(first: Model, second: Model, links: Mapping[str, str], prefix: str) -> Model:
    """Return a model that runs one model and then another, which reads it and whose names and metadata stay.

    It has the inputs and outputs of both, without those that are linked, by input of the second and output of the
    first. Weights stay where they lie. The prefix goes before all names of the first, and before its symbolic dims that
    the second has too. A UsageError says that opsets differ, that a name is in both in spite of the prefix, or that
    there is no such output or input.
    """
    model = second.with_proto(second.proto)
    ahead = onnx.compose.add_prefix(model.adopt(first), prefix, inplace=True)
    _tell_dims_apart(ahead.graph, second.proto.graph, links, prefix)
    proto = onnx.ModelProto()
    proto.CopyFrom(second.proto)
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    for entry in ahead.opset_import:
        if entry.domain not in versions:
            proto.opset_import.append(entry)
        elif versions[entry.domain] != entry.version:
            both = f"{first.name} has opset {entry.version} of {entry.domain or 'ai.onnx'}, {second.name} has"
            raise UsageError(f"{both} {versions[entry.domain]} - convert one with convert-opset")
    proto.ir_version = max(proto.ir_version, ahead.ir_version)
    first_names = {name: f"{prefix}{source}" for name, source in links.items()}
    pairs, graph = [(source, name) for name, source in first_names.items()], second.proto.graph
    try:
        merged = onnx.compose.merge_graphs(ahead.graph, graph, pairs, name=graph.name, doc_string=graph.doc_string)
    except ValueError as error:
        raise UsageError(f"{first.name} and {second.name} cannot be composed: {error}") from error
    merged.metadata_props.extend(graph.metadata_props)
    _annotate_quantization(merged, ahead.graph, lambda name: f"{prefix}{name}")
    _annotate_quantization(merged, graph, lambda name: first_names.get(name, name))
    proto.graph.CopyFrom(merged)
    proto.functions.extend(ahead.functions)
    known = {entry.key for entry in proto.metadata_props}
    proto.metadata_props.extend(entry for entry in ahead.metadata_props if entry.key not in known)
    return model.with_proto(proto)


def chain_models(name: str, models: Sequence[Model], links: Mapping[str, str] = {}) -> Model:
    """Return models that run one after the other as one, whose inputs and outputs keep their names.

    Each reads what those before it give, by name or, where names differ, by links: the output that an input becomes.
    Errors call the chain by its name.
    """
    model = models[0]
    for number, behind in enumerate(models[1:]):
        outputs = {value.name for value in model.graph.outputs}
        sources = {value.name: links.get(value.name, value.name) for value in behind.graph.inputs}
        sources = {name: source for name, source in sources.items() if source in outputs}
        if not sources:
            raise UsageError(f"{name}: {behind.name} reads nothing that the models before it give - add links")
        prefix = f"{number}/"
        ports = [value.name for value in (*model.graph.inputs, *model.graph.outputs) if value.tensor is None]
        both = compose_models(model, behind, sources, prefix)
        taken = set(both.graph.values)
        model = with_names(both, {f"{prefix}{port}": port for port in ports if port not in taken})
    return model


def _tell_dims_apart(ahead: onnx.GraphProto, behind: onnx.GraphProto, links: Mapping[str, str], prefix: str) -> None:
    """Rename symbolic dims of the first model that the second uses for possibly other lengths.

    Names that shape inference made up, such as `unk__0`, stand in both for anything, and onnxruntime plans one buffer
    for what is of one size by its symbols. The batch is that of both, and so is a dim that both name alike on one axis
    of what links them, as far as no input that stays has that name.
    """
    fed = _declared_symbols(info for info in behind.input if info.name not in links)
    known = fed | _declared_symbols((*behind.output, *behind.value_info))
    outputs, linked = {info.name: info for info in ahead.output}, set[str]()
    for info in behind.input:
        output = outputs.get(f"{prefix}{links[info.name]}") if info.name in links else None
        dims = zip(declared_dims_in([output] if output is not None else []), declared_dims_in([info]), strict=False)
        linked |= {dim.dim_param for output_dim, dim in dims if output_dim.dim_param == dim.dim_param}
    batch = {name for name in _declared_symbols(ahead.input) & _declared_symbols(behind.input) if "batch" in name}
    apart = known - (linked - fed) - batch
    for dim in declared_dims_in((*ahead.input, *ahead.output, *ahead.value_info)):
        if dim.dim_param in apart:
            dim.dim_param = f"{prefix}{dim.dim_param}"


def _declared_symbols(infos: Iterable[onnx.ValueInfoProto]) -> set[str]:
    return {dim.dim_param for dim in declared_dims_in(infos)} - {""}


def _annotate_quantization(merged: onnx.GraphProto, graph: onnx.GraphProto, name: Callable[[str], str]) -> None:
    """Give a graph the quantization annotations of a part of it, whose names onnx leaves."""
    for annotation in graph.quantization_annotation:
        made = merged.quantization_annotation.add(tensor_name=name(annotation.tensor_name))
        for entry in annotation.quant_parameter_tensor_names:
            made.quant_parameter_tensor_names.add(key=entry.key, value=name(entry.value))


@dataclass(frozen=True)
class JoinEncoder(Pass):
    """Join an encoder and the first step of its decoder, which this rewrites, into one model.

    The mask of the encoder is that of the cross-attention too, as it is: its length is that of the encoder's input. For
    an encoder without one, all of its output counts, and so the mask of the cross-attention is no input. What later
    steps read of the encoder becomes an output: its states and their mask. The matches are pairs of such an output and
    the input of later steps that it becomes.

    Legality: the decoder reads one output of the encoder, and no other input has a name that the encoder's have. It
    takes a model as an option, so that no text names this pass.
    """

    changes_interface = True

    encoder: Model
    reads: Mapping[str, str]  # inputs of later steps that come from the encoder: the role of each, by name

    def run(self, model: Model) -> Matched[tuple[str, str]]:
        encoder, first, states = self.encoder, model, model.roles.all("encoder state")
        hidden = encoder.roles.encoder_state
        if len(states) != 1 or hidden is None:
            raise UsageError(f"{first.name} does not read one output of {encoder.name} - export both together")
        cross_mask, mask = first.roles.first("encoder mask"), encoder.roles.first("mask")
        renamed, cross = dict[str, str](), ""
        if cross_mask is not None and mask is not None:
            cross = renamed[cross_mask.name] = mask.name
        elif cross_mask is not None:
            editor = Editor(first)  # in which the mask is ones for the first two axes of the states
            shape, cross = (editor.unique_name(f"{cross_mask.name}_{part}") for part in ("shape", "ones"))
            fill = onnx.numpy_helper.from_array(np.ones(1, dtype_name(editor.shapes[cross_mask].dtype)))
            editor.insert_first(first.graph, NewNode("Shape", [states[0]], [shape], {"start": 0, "end": 2}))
            editor.insert_first(first.graph, NewNode("ConstantOfShape", [shape], [cross], {"value": fill}))
            editor.replace_all_uses(cross_mask, cross)
            first = drop_dead_inputs(editor.result())
        linked = {states[0].name, cross_mask.name if cross_mask is not None else ""}
        of_decoder = {value.name for value in first.graph.inputs} - linked
        if both := sorted(of_decoder & {value.name for value in encoder.graph.inputs}):
            raise UsageError(f"{encoder.name} and {first.name} each have an input '{both[0]}' - name one of them anew")
        whole = compose_models(encoder, first, {states[0].name: hidden.name}, PREFIX)
        if cross_mask is not None and mask is not None:
            proto = copy_proto(whole)
            infos = {info.name: info for info in proto.graph.input}
            infos[cross_mask.name].type.CopyFrom(infos[f"{PREFIX}{mask.name}"].type)
            whole = whole.with_proto(proto)  # which declares both alike, as they become one
        inputs = [value.name for value in encoder.graph.inputs if value.tensor is None]
        outputs = [value.name for value in encoder.graph.outputs if value.name != hidden.name]
        renamed |= {f"{PREFIX}{name}": name for name in (*inputs, *outputs)}
        sources = {"encoder mask": cross, "encoder state": f"{PREFIX}{hidden.name}"}
        kept = {name: sources[role] for name, role in self.reads.items() if role in sources}
        changes = ("the encoder and the first step of the decoder are one model",)
        matches = tuple((f"{name}_kept", name) for name in kept)
        named = with_names(whole, renamed)
        shapes, ports = infer(named), dict[str, NewInput]()
        for name, source in kept.items():
            value = named.graph.values.get(source)
            dims = shapes[value].dims
            if value is None or dims is None:
                raise UsageError(f"later steps read '{name}', which the encoder and the first step do not give")
            ports[f"{name}_kept"] = NewInput(f"{name}_kept", shapes[value].dtype, dims)
        nodes = [NewNode("Identity", [source], [f"{name}_kept"]) for name, source in kept.items()]
        return Matched(with_interface(named, {}, ports, (), nodes), changes, matches=matches)
