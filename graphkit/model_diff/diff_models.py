"""Compare the files of two models, without running them."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from graphkit.analysis.cost_changes import BeforeAndAfter, cost_change
from graphkit.analysis.findings import Finding
from graphkit.analysis.node_costs import function_scopes
from graphkit.analysis.report import BLOCKERS, ReportOptions, judged_sections, report
from graphkit.errors import count_things
from graphkit.graph.declared_types import declared_type, type_text
from graphkit.graph.view import Value, as_text
from graphkit.matching.interfaces import Interfaces
from graphkit.matching.value_matching import known_tensor
from graphkit.model import Model, ModelLike, as_model
from graphkit.model_diff import COSTS
from graphkit.model_diff.model_diff import ModelDiff
from graphkit.model_diff.node_changes import (
    Change,
    FindingChange,
    NoteChange,
    Redeclared,
    declaration_changes,
    node_changes,
    shape_changes,
    tensor_of,
    weight_changes,
)
from graphkit.model_diff.node_matching import NodeMatching, match_nodes, value_path
from graphkit.options import DiffOptions
from graphkit.shapes import infer
from graphkit.targets import load_target

if TYPE_CHECKING:
    from graphkit.targets import Target

# Differences beside nodes and weights: inputs, outputs, operator sets, functions, metadata.


TOLD = {"graph", "functions", "opset_import"}  # fields of a model that other sections tell of
TOLD_OF_GRAPH = {
    *("node", "initializer", "sparse_initializer", "input", "output", "value_info"),
    "quantization_annotation",  # which is told for each tensor
}


def interface_changes(interfaces: Interfaces) -> Iterator[Change]:
    """Yield the inputs and outputs that differ: in name, dtype, dims, order, doc string, or by having a default."""
    for kind, ports in (("input", interfaces.inputs), ("output", interfaces.outputs)):
        for value_a, value_b in (*ports.pairs, *((value, None) for value in ports.lost)):
            before, after = _port(value_a, kind), None if value_b is None else _port(value_b, kind)
            names = dict.fromkeys(f"'{value.name}'" for value in (value_a, value_b) if value is not None)
            if len(names) > 1 or before != after:
                is_same = len(names) == 1 and kind == "output" and value_b is not None and _may_be_one(value_a, value_b)
                what = f"{kind} {' -> '.join(names)}"
                yield (Redeclared if is_same else Change)(what, shorten_text(before), shorten_text(after))
        for value in ports.new:
            yield Change(f"{kind} '{value.name}'", None, shorten_text(_port(value, kind)))
        if ports.order_a != ports.order_b:
            orders = (", ".join(f"'{name}'" for name in order) for order in (ports.order_a, ports.order_b))
            yield Change(f"order of {kind}s", *map(shorten_text, orders))


def _may_be_one(a: Value, b: Value) -> bool:
    """Whether two declarations have one dtype, one rank and no size of one that is another number in the other."""
    types = declared_type(a), declared_type(b)
    if types[0] is None or types[1] is None or types[0].dtype != types[1].dtype:
        return False
    before, after = types[0].dims, types[1].dims
    if before is None or after is None or len(before) != len(after):
        return False
    sizes = zip(before, after, strict=True)
    return before != after and all(x == y for x, y in sizes if isinstance(x, int) and isinstance(y, int))


def _port(value: Value, kind: str) -> str:
    scope = value.scope
    info = scope.infos.get(value.name)
    dtype, shape = type_text(info.type) if info is not None else ("?", "?")
    has_default = kind == "input" and (value.tensor is not None or value.sparse is not None)
    doc = as_text(info.doc_string) if info is not None else ""
    return f"{dtype}{shape}{' with a default' if has_default else ''}{f' {doc!r}' if doc else ''}"


def opset_changes(a: Model, b: Model) -> Iterator[Change]:
    """Yield the versions of operator sets that differ, and the functions that one model lacks or declares otherwise."""
    yield from changed_entries(_opsets(a.proto.opset_import), _opsets(b.proto.opset_import))
    yield from changed_entries(_functions(a), _functions(b))


def _opsets(imports: Any) -> dict[str, str]:
    return {as_text(entry.domain) or "ai.onnx": str(entry.version) for entry in imports}


def _functions(model: Model) -> dict[str, str]:
    signatures = {}
    for key, function in zip(function_scopes(model), model.proto.functions, strict=False):
        parts = [count_things(len(function.input), "input(s)"), count_things(len(function.output), "output(s)")]
        names = [*function.attribute, *(attribute.name for attribute in function.attribute_proto)]
        parts += [f"attributes {', '.join(map(as_text, names))}"] if names else []
        parts += [f"{domain} {version}" for domain, version in _opsets(function.opset_import).items()]
        signatures[f"function '{'.'.join(filter(None, map(as_text, key)))}'"] = ", ".join(parts)
    return signatures


def metadata_changes(a: Model, b: Model) -> Iterator[NoteChange]:
    """Yield the notes of models and their graphs that differ: producer, versions, doc strings, metadata."""
    before, after = (
        dict(_notes(model.proto, TOLD))
        | {f"graph {name}": text for name, text in _notes(model.proto.graph, TOLD_OF_GRAPH)}
        for model in (a, b)
    )
    yield from (NoteChange(change.what, change.before, change.after) for change in changed_entries(before, after))


def _notes(message: Message, without: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a message as texts; metadata by key."""
    for field, value in message.ListFields():
        if field.name in without:
            continue
        if field.name == "metadata_props":
            yield from ((f"metadata '{key}'", text) for key, text in props(value).items())
        elif field.type == FieldDescriptor.TYPE_MESSAGE:  # how many there are, and a checksum of what they say
            parts = value if isinstance(value, Sequence) or hasattr(value, "__len__") else [value]
            content = b"".join(part.SerializeToString(deterministic=True) for part in parts)
            count = count_things(len(parts), "entry(s)").replace("entrys", "entries")
            yield field.name, f"{count}, checksum {zlib.crc32(content):08x}"
        else:
            yield field.name, as_text(value) if isinstance(value, str | bytes) else str(value)


Pairs = Iterable[tuple[Value, Value]]


def note_changes(matching: NodeMatching, weights: Pairs, a: Model, b: Model) -> Iterator[NoteChange]:
    """Yield the notes that differ of what both models have, one for each note; `weights` are constants that match."""
    inputs, outputs = matching.interface.inputs.pairs, matching.interface.outputs.pairs
    nodes, tensors = matching.forth.items(), [(x, tensor_of(x), tensor_of(y)) for x, y in weights]
    notes = [
        *(("input", x.name, _port_notes(x), _port_notes(y)) for x, y in inputs),
        *(("output", x.name, _port_notes(x), _port_notes(y)) for x, y in outputs),
        *(("weight", value_path(v), _doc_and_metadata(x), _doc_and_metadata(y)) for v, x, y in tensors if x and y),
        *(("node", node.path, _doc_and_metadata(node.proto), _doc_and_metadata(twin.proto)) for node, twin in nodes),
    ]
    for kind, name, before, after in notes:
        for each in changed_entries(before, after) if before != after else ():
            yield NoteChange(f"{each.what} of {kind} '{name}'", each.before, each.after, note=each.what, of=kind)
    yield from _quantization_changes(matching, a, b)


def _doc_and_metadata(message: Any) -> dict[str, str]:
    doc = {"doc string": as_text(message.doc_string)} if message.doc_string else {}
    return doc | {f"metadata '{key}'": text for key, text in props(message.metadata_props).items()}


def _port_notes(value: Value) -> dict[str, str]:
    """Return the metadata and the denotations of an input or output; the interface has its doc string."""
    info = value.scope.infos.get(value.name)
    if info is None:
        return {}
    dims = info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ()
    denotations = {"denotation": info.type.denotation}
    denotations |= {f"denotation of dim {axis}": dim.denotation for axis, dim in enumerate(dims)}
    notes = {f"metadata '{key}'": text for key, text in props(info.metadata_props).items()}
    return notes | {name: as_text(text) for name, text in denotations.items() if text}


def _quantization_changes(matching: NodeMatching, a: Model, b: Model) -> Iterator[NoteChange]:
    mine, theirs = (_annotations(model, matching) for model in (a, b))
    for token in dict.fromkeys([*mine, *theirs]):
        before, after = mine.get(token, []), theirs.get(token, [])
        if Counter(said for said, _ in before) != Counter(said for said, _ in after):
            name = (before or after)[0][1].tensor_name
            was, now = (", ".join(map(_annotation_text, annotations)) or None for annotations in (before, after))
            note = "quantization annotation"
            yield NoteChange(f"{note} of '{as_text(name)}'", was, now, note=note, of="tensor")


Annotated = tuple[frozenset[tuple[str, Hashable]], onnx.TensorAnnotation]  # what it says, and itself


def _annotations(model: Model, matching: NodeMatching) -> dict[Hashable, list[Annotated]]:
    """Return the annotations by the tensors that they are for, those of A as the tensors of B that they are."""

    def token(name: str) -> Hashable:
        value = model.graph.find(name)
        if value is None:
            return name
        twin = matching.values.forth.get(value, value)
        return twin if twin in matching.values.back else matching.values.numbers.value(value)

    annotations: dict[Hashable, list[Annotated]] = {}
    for each in model.proto.graph.quantization_annotation:
        said = frozenset((as_text(e.key), token(e.value)) for e in each.quant_parameter_tensor_names)
        annotations.setdefault(token(each.tensor_name), []).append((said, each))
    return annotations


def _annotation_text(annotated: Annotated) -> str:
    return ", ".join(f"{key} '{name}'" for key, name in props(annotated[1].quant_parameter_tensor_names).items())


SHORT = 160  # characters of a text


def changed_entries(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    """Yield the differences of two mappings of texts by name."""
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield Change(name, shorten_text(before.get(name)), shorten_text(after.get(name)))


def props(entries: Any) -> dict[str, str]:
    """Return key and value of entries of a message."""
    return {as_text(entry.key): as_text(entry.value) for entry in entries}


def shorten_text(text: str | None) -> str | None:
    """Return a text, or its beginning and how long it is."""
    if text is None or len(text) <= SHORT:
        return text
    return f"{text[:SHORT]}... ({len(text):,} characters)"


def findings_of(model: Model, target: Target | None) -> tuple[Finding, ...]:
    """Return the findings of a report, blockers of a target included where there is one."""
    sections = [section.name for section in judged_sections(ReportOptions(target=target))]
    only = tuple(name for name in sections if name != COSTS)  # which find nothing, and take a while
    return report(model, ReportOptions(only=only, target=target)).found()


def finding_changes(before: Sequence[Finding], after: Sequence[Finding]) -> Iterator[FindingChange]:
    """Yield the findings that are new, gone, or concern another number; matched by kind and key as in a baseline."""
    counts: dict[tuple[str, str], list[int]] = {}
    first: dict[tuple[str, str], Finding] = {}
    for side, findings in enumerate((before, after)):
        for finding in findings:
            key = finding.kind, finding.key
            counts.setdefault(key, [0, 0])[side] += finding.count
            first[key] = finding
    for key, (was, now) in counts.items():
        if was != now:
            yield FindingChange(kind=key[0], text=first[key].text, before=was, after=now)


def diff(a: ModelLike, b: ModelLike, options: DiffOptions = DiffOptions()) -> ModelDiff:
    """Compare the files of two models: interface, operator sets, metadata, nodes, weights, shapes and findings.

    Nodes match by name, and by what they compute; names of values and the order of nodes make no difference. Weights
    are read where two have one dtype and the same dims, and lie at different places.

    Args:
        a: A model.
        b: Another one, such as a later version of it.
        options: What to compare and to list.

    Returns:
        What differs; `is_equal` says whether nothing does.

    Raises:
        ModelError: A model cannot be read, or a file of weights has shrunk since.
        TargetError: There is no such target, or its file cannot be read.

    Example:
        >>> model = graphkit.load("example:causal-attention")
        >>> graphkit.diff(model, graphkit.fold(model).model).differing
        ('findings', 'nodes', 'weights')
    """
    models = first, second = as_model(a), as_model(b)
    target = load_target(options.target) if options.target is not None else None
    shapes, findings = zip(*((infer(model), findings_of(model, target)) for model in models), strict=True)
    matching = match_nodes(first, second, shapes)
    nodes, constants = node_changes(matching)
    weights = weight_changes(matching, constants, first, second)
    changes = tuple(finding_changes(*findings))
    return ModelDiff(
        a=first.label,
        b=second.label,
        interface=tuple(interface_changes(matching.interface)),
        opsets=tuple(opset_changes(first, second)),
        metadata=(
            *metadata_changes(first, second),
            *note_changes(matching, weights.pairs, first, second),
            *declaration_changes(matching),
        ),
        nodes=nodes,
        weights=weights.changes,
        shapes=tuple(shape_changes(matching, shapes)),
        finding_changes=tuple(change for change in changes if change.kind != BLOCKERS.name),
        blockers=tuple(change for change in changes if change.kind == BLOCKERS.name),
        costs=cost_change(BeforeAndAfter([first], second)),
        target=target.name if target is not None else "",
        renamed_values=_renamed_values(matching, first),
        renamed_weights=weights.renamed,
        unread_weights=weights.unread,
        lists_renames=options.renames,
        is_brief=options.brief,
        models=models,
    )


def _renamed_values(matching: NodeMatching, a: Model) -> tuple[tuple[str, str], ...]:
    ends = {*a.graph.inputs, *a.graph.outputs}
    return tuple(
        (value_path(value_a), value_path(value_b))
        for value_a, value_b in matching.values.forth.items()
        if value_a.name != value_b.name
        and value_a not in ends
        and known_tensor(value_a) is None
        and value_a.producer in matching.forth
    )
