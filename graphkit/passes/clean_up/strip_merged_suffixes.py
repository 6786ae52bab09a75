"""Remove the suffixes that merging two decoders added to the names of initializers."""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx

from graphkit.graph.names import counted
from graphkit.graph.view import all_scopes, body_graphs
from graphkit.model import Model
from graphkit.rewrite.base import Declined, Outcome, Pass, copy_proto

__all__ = ["StripMergedSuffixes"]

SUFFIX = re.compile(r"_merged(_\d+)?(?=$|_(scale|zero_point|quantized)$)")


@dataclass(frozen=True)
class StripMergedSuffixes(Pass):
    """Strip the `_merged_0` and `_merged` that exporters append to weights that two decoders share.

    Legality: no other value in the model has the shorter name. Names that a quantiser derived from such a name
    (`..._merged_0_scale`) are shortened too. Inputs and outputs keep their names.

    Before:

        agraph (float[N] x) => (float[N] y) <float[1] w_merged_0 = {2.0}> {
            y = Add (x, w_merged_0)
        }

    After:

        agraph (float[N] x) => (float[N] y) <float[1] w = {2.0}> {
            y = Add (x, w)
        }
    """

    def run(self, model: Model) -> Outcome:
        proto = copy_proto(model)
        used = {name for scope in all_scopes(model.scopes) for name in scope.values}
        ports = {info.name for info in [*proto.graph.input, *proto.graph.output]}
        names: dict[str, str] = {}
        declined = []
        for tensor in [*proto.graph.initializer, *(sparse.values for sparse in proto.graph.sparse_initializer)]:
            short = SUFFIX.sub("", tensor.name)
            if short == tensor.name or tensor.name in ports:
                continue
            if short in used:
                declined.append(Declined(tensor.name, f"'{short}' is in use"))
                continue
            used.add(short)
            names[tensor.name] = short
        if names:
            _rename_graph(proto.graph, names)
        changes = (counted(len(names), "initializer(s) renamed"),) if names else ()
        return Outcome(model.with_proto(proto), changes, tuple(declined))


def _rename_graph(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename main-graph values, also where bodies read them; nothing else has these names."""
    for tensor in [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]:
        tensor.name = names.get(tensor.name, tensor.name)
    for info in graph.value_info:
        info.name = names.get(info.name, info.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = names.get(annotation.tensor_name, annotation.tensor_name)
        for entry in annotation.quant_parameter_tensor_names:
            entry.value = names.get(entry.value, entry.value)
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in names:
                node.input[index] = names[name]
        for _, body in body_graphs(node):
            _rename_graph(body, names)
