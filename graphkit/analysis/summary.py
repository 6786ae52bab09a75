"""Weights as they are stored: parameters and bytes by dtype and bit width, each tensor once, read from no file.

Operators that unpack blocks of 4 or 2 bits read tensors of bytes: these count as as many parameters as they hold. Two
tensors at the same place of a file are tied, and count once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import onnx
from msgspec import Struct

from graphkit.analysis.findings import Finding, Judged
from graphkit.dtypes import BITS, INTEGERS, dtype_name
from graphkit.errors import count_things
from graphkit.graph.dataflow import find_misfit
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import group_pairs
from graphkit.graph.operator_traits import EXTRA, QUANTIZED, operator_schema
from graphkit.graph.roles import trace_condition
from graphkit.graph.view import Node, all_nodes, all_scopes, as_text, find_nodes
from graphkit.io.byte_source import source_of
from graphkit.io.tensors import bytes_place, element_count, is_in_a_file, payload_size
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, Shortened, size_text, table, table_of
from graphkit.shapes import Shapes
from graphkit.shapes.infer import infer_claimed

# Operator -> the inputs that hold packed weights, and the attribute and its default that says of how many bits
PACKED: Mapping[str, tuple[tuple[int, ...], str, int]] = {
    "com.microsoft.MatMulNBits": ((1,), "bits", 4),
    "com.microsoft.MatMulBnb4": ((1,), "", 4),
    "com.microsoft.MatMulFpQ4": ((1,), "", 4),
    "com.microsoft.GatherBlockQuantized": ((0,), "bits", 4),
    "com.microsoft.QMoE": ((2, 5, 8), "expert_weight_bits", 4),
}
WHOLE = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)  # dtypes that may hold packed elements
StoredTensor = tuple[onnx.TensorProto, str | None, int]  # with the node that holds it, and its bytes
LARGEST = 5
LARGE_MATRIX = 1 << 20  # bytes of one that is looked for in other places
STANDARD_DOMAINS = {"", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"}
CONTRIB_DOMAINS = {"com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"}
PLACES, FIRST = 64, 4  # elements that are read of each matrix, and those that must be equal before the others are
TELLING = 8  # numbers among them that differ, without which they say nothing
BLOCK = 1024  # columns
STEPS = 2654435761, 40503  # that spread the places over rows and columns


class Weight(Struct, frozen=True):
    """A tensor that is stored in the model."""

    name: str
    dtype: str
    bits: int  # of each element, as it is packed
    parameters: int  # its elements if it holds weights: numbers of floating point, or integers of at most 8 bits
    bytes: int  # as it is stored


class WeightBits(Struct, frozen=True):
    """All tensors of one dtype and bit width."""

    dtype: str  # the dtype in which they are stored, such as `uint8`
    bits: int  # of each element: 4 where two are packed into a byte
    tensors: int  # how many, and as in `Weight`
    parameters: int
    bytes: int


@lru_cache(maxsize=4)  # a report asks twice
def stored_weights(model: Model) -> Sequence[tuple[Weight, Node | None]]:
    """Return the tensors that are stored in a model, tied ones once, each with the first node that reads it."""
    packed: dict[str, int] = {}  # bits of the elements that tensors of bytes hold, by name
    for node in find_nodes(model.scopes, *PACKED):
        inputs, attribute, default = PACKED[node.operator]
        bits = (node.attr(attribute, default) if attribute else default) or default
        packed |= {value.name: min(max(bits, 1), 8) for index in inputs if (value := node.input(index)) is not None}
    readers: dict[int, Node] = {}
    constants: dict[str, Node] = {}
    for scope in all_scopes(model.scopes):
        for value in scope.initializers:
            if value.tensor is not None and value.consumers:
                readers[id(value.tensor)] = value.consumers[0][0]
        for node in scope.nodes_of("Constant"):
            out = node.outputs[0] if node.outputs else None
            constants[node.proto.name or node.op_type] = out.consumers[0][0] if out and out.consumers else node
    weights: dict[object, tuple[Weight, Node | None]] = {}
    for number, (tensor, holder) in enumerate(model.tensors):
        dtype, whole = tensor.data_type, BITS.get(tensor.data_type, 0)
        bits = packed.get(tensor.name, whole) if dtype in WHOLE else whole
        is_weight = whole and dtype != onnx.TensorProto.BOOL and (dtype not in INTEGERS or whole <= 8)
        parameters = element_count(tensor) * (whole // bits) if is_weight else 0
        weight = Weight(str(tensor.name), dtype_name(dtype), bits, parameters, payload_size(tensor) or 0)
        reader = constants.get(holder) if holder is not None else readers.get(id(tensor))
        weights.setdefault(bytes_place(tensor) or number, (weight, reader))
    return tuple(weights.values())


def shared_bytes(models: Sequence[Model]) -> int:
    """Return the bytes of weights that several models read from one place of a file, each time but the first."""
    read = Counter[tuple[object, int]]()
    for model in models:
        outside = [each for each, _ in model.tensors if is_in_a_file(each) and model.path and not model.is_inside(each)]
        folder = model.path and model.path.parent
        read.update({((folder, bytes_place(tensor)), payload_size(tensor) or 0) for tensor in outside})
    return sum(size * (count - 1) for (_, size), count in read.items())


def weight_bits(all_weights: Iterable[Weight]) -> tuple[WeightBits, ...]:
    """Return weights by dtype and bit width, the most bytes first."""
    groups = group_pairs(((weight.dtype, weight.bits), weight) for weight in all_weights)
    rows = (
        WeightBits(dtype, bits, len(group), sum(w.parameters for w in group), sum(w.bytes for w in group))
        for (dtype, bits), group in groups.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.bytes))


class DataFileRow(Struct, frozen=True):
    """A file of external data; `size` is None if it is missing."""

    location: str
    size: int | None


class WeightBytes(Struct, frozen=True):
    """Bytes and tensors of one dtype, initializers and constants together."""

    dtype: str
    tensors: int
    bytes: int

    @property
    def mebibytes(self) -> str:
        """The bytes in units of 2^20."""
        return f"{self.bytes / (1 << 20):,.2f}"


class OperatorCount(Struct, frozen=True):
    """Nodes of one operator; `domain` is "" for ONNX's own."""

    op: str
    domain: str
    count: int

    @property
    def full_name(self) -> str:
        """The operator, with its domain unless that is ONNX's own."""
        return f"{self.domain}.{self.op}" if self.domain else self.op


class TensorRow(Struct, frozen=True):
    """A tensor and its size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


class TiedTensors(Struct, frozen=True):
    """Tensors whose bytes are the same."""

    names: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Summary(Judged):
    """The main facts about a model file.

    Attributes:
        bytes: Bytes of the graph and its weights, wherever these are.
        graph_bytes: Bytes of the graph without the weights that stay in files.
        weight_bytes: Bytes of all tensors, by dtype.
        parameters: Elements of the initializers and constants that are weights: floating-point or quantised numbers.
        ir_version, opsets, producer, model_version, domain, metadata, functions, doc_string: As in the model.
        nodes, scopes, initializers: Counts, subgraphs and functions included.
        operators: The histogram, the most frequent first.
        contrib, custom: Operators of ONNX Runtime's domains, and of others.
        quantization: Styles that occur, each with its operators.
        tied: Tensors with the same bytes; None without `hash_weights`.
        problems: Faults of the model or its files.
    """

    title: ClassVar[str] = "Summary"
    file: str
    file_bytes: int
    bytes: int
    graph_bytes: int
    weight_bytes: tuple[WeightBytes, ...]
    parameters: int
    data_files: tuple[DataFileRow, ...]
    ir_version: int
    opsets: tuple[tuple[str, int], ...]
    producer: str
    model_version: int
    domain: str
    metadata: tuple[tuple[str, str], ...]
    functions: tuple[str, ...]
    doc_string: str
    nodes: int
    scopes: int
    initializers: int
    operators: tuple[OperatorCount, ...]
    contrib: tuple[OperatorCount, ...]
    custom: tuple[OperatorCount, ...]
    quantization: tuple[str, ...]
    largest: tuple[TensorRow, ...]
    tied: tuple[TiedTensors, ...] | None
    problems: tuple[Finding, ...]

    @property
    def total_weight_bytes(self) -> int:
        return sum(row.bytes for row in self.weight_bytes)

    def found(self) -> tuple[Finding, ...]:
        return self.problems

    def in_short(self) -> str:
        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets)
        return f"{count_things(self.nodes, 'node(s)')}, {count_things(self.initializers, 'initializer(s)')}, {opsets}"

    def blocks(self) -> Iterator[Block]:
        yield table("Property | Value", [row for row in self._properties() if row[1]])
        if self.weight_bytes:
            headings = "Dtype | Tensors:number | Bytes:number | MiB:number=mebibytes"
            yield table_of(headings, self.weight_bytes, "Weights and constants")
            yield table_of("Tensor:code=name | Dtype | Shape:note | Bytes:number", self.largest, "Largest tensors")
        if self.operators:
            counts = [(operator.full_name, operator.count) for operator in self.operators]
            yield table("Operator | Count:number", counts, "Operators")
        if self.tied is not None:
            rows_tied = [(" = ".join(group.names), group.bytes) for group in self.tied]
            none = Prose("No two large tensors have the same bytes.")
            yield table("Same bytes:code | Bytes each:number", rows_tied, "Tied tensors") if rows_tied else none
        for problem in self.problems:
            yield Prose(problem.text, "warning")

    def _properties(self) -> Iterator[tuple[str, str]]:
        yield "file", f"{self.file} ({self.file_bytes:,} bytes)"
        yield "graph", Shortened.of(f"{self.graph_bytes:,} bytes without the weights", str(self.graph_bytes))
        yield "weights", Shortened.of(f"{self.total_weight_bytes:,} bytes", str(self.total_weight_bytes))
        for data in self.data_files:
            yield "data file", f"{data.location} ({'missing' if data.size is None else f'{data.size:,} bytes'})"
        yield "nodes", Shortened.of(f"{self.nodes:,} in {count_things(self.scopes, 'graph(s)')}", str(self.nodes))
        yield "initializers", Shortened.of(f"{self.initializers:,}", str(self.initializers))
        yield "IR version", str(self.ir_version)
        yield "opsets", ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets)
        yield "producer", self.producer
        yield "model version", str(self.model_version) if self.model_version else ""
        yield "domain", self.domain
        yield "functions", ", ".join(self.functions)
        for name, operators in (("contrib operators", self.contrib), ("custom operators", self.custom)):
            yield name, ", ".join(f"{o.full_name} ({o.count:,})" for o in operators)
        yield "quantisation", "; ".join(self.quantization) or "none"
        for key, value in self.metadata:
            yield f"metadata {key}", value if len(value) <= 200 else f"{value[:200]}... ({len(value):,} characters)"
        yield "description", self.doc_string


def summary(model: ModelLike, *, hash_weights: bool = False) -> Summary:
    """Return the facts about a model that a report begins with.

    Args:
        model: The model, or its path.
        hash_weights: Read all large tensors to find those with the same bytes.

    Raises:
        ModelError: A data file is missing whose tensors are to be read.

    Example:
        >>> graphkit.summary(graphkit.load("example:causal-attention")).nodes
        213
    """
    model = as_model(model)
    proto, graph_bytes = model.proto, model.proto.ByteSize()
    counts = Counter((node.op_type, node.domain) for node in all_nodes(model.scopes))
    by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    operators = tuple(OperatorCount(op, domain, count) for (op, domain), count in by_count)
    local = {(as_text(function.domain), as_text(function.name)) for function in proto.functions}
    foreign = [o for o in operators if o.domain not in STANDARD_DOMAINS and (o.domain, o.op) not in local]
    tensors = [(tensor, node, payload_size(tensor) or 0) for tensor, node in model.tensors]
    by_size = sorted(tensors, key=lambda item: -item[2])[:LARGEST]
    counts_of, sizes_of = Counter[str](), Counter[str]()  # by dtype
    for tensor, _, size in tensors:
        name = dtype_name(tensor.data_type)
        counts_of[name] += 1
        sizes_of[name] += size
    left_out = "dequantised weights" if "QuantizeLinear" in {o.op for o in operators} else "QDQ"
    styles = []
    for style, ops in QUANTIZED.items():
        if style == left_out:
            continue
        shown = [f"{o.full_name} {o.count:,}" for o in operators if o.op in ops]
        if shown:
            styles.append(f"{style} ({', '.join(shown)})")
    return Summary(
        file=model.name,
        file_bytes=model.source.size,
        bytes=graph_bytes + sum(size for tensor, _, size in tensors if is_in_a_file(tensor)),
        graph_bytes=graph_bytes,
        weight_bytes=tuple(WeightBytes(name, counts_of[name], size) for name, size in sizes_of.most_common()),
        parameters=sum(weight.parameters for weight, _ in stored_weights(model)),
        data_files=tuple(DataFileRow(data.location, data.size) for data in model.source.data_files),
        ir_version=proto.ir_version,
        opsets=tuple((as_text(entry.domain), entry.version) for entry in proto.opset_import),
        producer=f"{as_text(proto.producer_name)} {as_text(proto.producer_version)}".strip(),
        model_version=proto.model_version,
        domain=as_text(proto.domain),
        metadata=tuple((as_text(entry.key), as_text(entry.value)) for entry in proto.metadata_props),
        functions=tuple(as_text(function.name) for function in proto.functions),
        doc_string=as_text(proto.doc_string).strip() or as_text(proto.graph.doc_string).strip(),
        nodes=sum(operator.count for operator in operators),
        scopes=sum(1 for _ in all_scopes(model.scopes)),
        initializers=sum(len(scope.initializers) for scope in all_scopes(model.scopes)),
        operators=operators,
        contrib=tuple(o for o in foreign if o.domain in CONTRIB_DOMAINS),
        custom=tuple(o for o in foreign if o.domain not in CONTRIB_DOMAINS),
        quantization=tuple(styles),
        largest=tuple(
            TensorRow(_tensor_name(tensor, node), dtype_name(tensor.data_type), shape=tuple(tensor.dims), bytes=size)
            for tensor, node, size in by_size
            if size
        ),
        tied=_tied_groups(model, tensors) if hash_weights else None,
        problems=(*_model_problems(model), *_find_stored_twice(model, tensors, reads_all=hash_weights)),
    )


def _find_wrong_nodes(nodes: Iterable[Node], shapes: Shapes) -> Iterator[tuple[Node, str, str]]:
    """Yield the nodes that are not as their operator is, what is wrong, and what to do."""
    for node in nodes:
        dtypes = () if node.bodies else tuple([0 if each is None else shapes[each].dtype for each in node.inputs])
        if misfit := find_misfit(node):
            yield node, misfit, "look at what its exporter said of it"
        elif read := _wrong_dtypes(node.op_type, node.scope.opset(), dtypes):
            yield node, f"reads {read}", "a Cast before it would do"
        else:
            for value in node.results:
                declared, given = declared_type(value), shapes[value].dtype
                if declared is not None and declared.dtype in BITS and given in BITS and declared.dtype != given:
                    gives, said = dtype_name(given), dtype_name(declared.dtype)
                    yield node, f"gives {gives}, and '{value.name}' is declared as {said}", "correct the declaration"


@lru_cache(maxsize=4096)  # layers repeat
def _wrong_dtypes(op_type: str, version: int, read: Sequence[int]) -> str:
    """Return those of the dtypes that a node reads which its operator does not take, "" if there are none."""
    schema = operator_schema(op_type, version)
    formals = [] if schema is None else [(formal.type_str, formal.types) for formal in schema.inputs]
    dtypes: dict[str, int] = {}
    for dtype, (variable, types) in zip(read, (*formals, *formals[-1:] * len(read)), strict=False):
        if dtype in BITS and f"tensor({onnx.TensorProto.DataType.Name(dtype).lower()})" not in types:
            return dtype_name(dtype)
        if dtype in BITS and (other := dtypes.setdefault(variable, dtype)) != dtype:
            return f"{dtype_name(other)} and {dtype_name(dtype)} where both must be one"
    return ""


def _tensor_name(tensor: onnx.TensorProto, node: str | None) -> str:
    return as_text(tensor.name) or (f"value of node {node}" if node else "")


def _tied_groups(model: Model, tensors: Sequence[StoredTensor]) -> tuple[TiedTensors, ...]:
    """Return the groups of equal tensors among those that stay in files; only those of equal size are read."""
    import hashlib  # only `--hash` needs it

    by_size = group_pairs((size, (tensor, node)) for tensor, node, size in tensors if is_in_a_file(tensor))
    groups: dict[tuple[int, bytes], list[str]] = defaultdict(list)
    for size, members in by_size.items():
        for tensor, node in members if len(members) > 1 else []:
            digest = hashlib.blake2b(model.payload(tensor), digest_size=16).digest()
            groups[size, digest].append(_tensor_name(tensor, node))
    tied = [TiedTensors(tuple(names), size) for (size, _), names in groups.items() if len(names) > 1]
    return tuple(sorted(tied, key=lambda group: -group.bytes))


def _model_problems(model: Model) -> Iterator[Finding]:
    for data in model.source.data_files:
        if data.size is None:
            text = f"The data file '{data.location}' is missing: the model cannot run, and its weights cannot be read."
            yield Finding("missing-data", f"first put '{data.location}' beside it", text, data.location)
    for scope in all_scopes(model.scopes):
        where = f" in {scope.path}" if scope.path else ""
        if scope.problems:
            more = f" (and {len(scope.problems) - 1} more)" if len(scope.problems) > 1 else ""
            text = f"The graph is not valid{where}: {scope.problems[0]}{more}."
            yield Finding("invalid-graph", scope.problems[0], text, count=len(scope.problems))
    newest = onnx.defs.onnx_opset_version()
    if (opset := model.graph.opset()) > newest:
        where = f"opset {opset}, where ONNX {onnx.__version__} ends at {newest}"
        text = f"onnxruntime does not load it: {where} - export it for opset {newest} or less."
        yield Finding("unloadable", where, text, str(opset))
    own = EXTRA | {function.name for function in model.proto.functions if not function.domain}
    standard = [node for node in all_nodes(model.scopes) if not node.domain and node.op_type not in own]
    for (operator, opset), count in Counter((node.op_type, node.scope.opset()) for node in standard).items():
        if opset <= newest and not onnx.defs.has(operator, max_inclusive_version=opset):
            where = f"{count_things(count, 'node(s)')} of '{operator}', which opset {opset} has not"
            text = f"The graph is not valid: {where}, so no runtime loads it - look at what its exporter said of them."
            yield Finding("invalid-graph", where, text, operator, count)
    shapes = infer_claimed(model)
    wrong = list(_find_wrong_nodes(standard, shapes))
    for node, fault, advice in wrong[:1]:
        where = f"{node.operator} '{node.path}' {fault}"
        text = f"The graph is not valid: {where}, so no runtime loads it - {advice}."
        yield Finding("invalid-graph", where, text, node.path, len(wrong))
    # What keeps onnxruntime from loading a model although no run meets it: names twice (a Constant becomes a tensor),
    # and branches that never run, of which there is none where inputs decide
    others = (node for node in all_nodes(model.scopes) if not node.is_op("Constant"))
    named = [(node.scope, name) for node in others if (name := node.proto.name)]
    is_repeated = len(set(named)) < len(named)
    if not is_repeated and all(map(trace_condition, find_nodes(model.scopes, "If"))):
        return
    from graphkit.equivalence.loading import loadable_copy  # which few models need

    copy = loadable_copy(model)
    for fault in () if copy is None else copy.faults:
        yield Finding("unloadable", fault, f"onnxruntime does not load it: {fault}; `graphkit fold` mends that.", fault)


def _find_stored_twice(model: Model, tensors: Sequence[StoredTensor], *, reads_all: bool) -> Iterator[Finding]:
    """Yield the large matrices in files that are stored twice, as they are or transposed, such as a head that is tied.

    A few elements are read, and all of those that agree in these where that is asked for; nothing where a data file is
    missing, or on a server.
    """
    large = [(tensor, size) for tensor, _, size in tensors if size >= LARGE_MATRIX and len(tensor.dims) == 2]
    matrices = [(tensor, size) for tensor, size in large if is_in_a_file(tensor)]
    groups: dict[tuple[int, int, int], dict[object, onnx.TensorProto]] = {}
    for tensor, size in matrices:
        place = tuple(sorted((entry.key, entry.value) for entry in tensor.external_data))
        most, least = sorted(tensor.dims, reverse=True)
        if size in (most * least * width for width in (1, 2, 4, 8)):
            groups.setdefault((tensor.data_type, most, least), {}).setdefault(place, tensor)

    def are_equal(one: np.ndarray, other: np.ndarray) -> bool:
        return all(np.array_equal(one[at : at + BLOCK], other[at : at + BLOCK]) for at in range(0, len(one), BLOCK))

    several = {key: list(members.values()) for key, members in groups.items() if len(members) > 1}
    if not several or any(data.size is None for data in model.source.data_files):
        return
    if not all(source_of(path).is_local for path in model.files):
        return
    for (_, most, least), members in several.items():
        alike = [members]
        for count in (FIRST, PLACES):
            alike = [same for group in alike for same in _group_by_elements(model, group, count) if len(same) > 1]
        for one, *others in alike:
            array = _element_bytes(model, one)
            equal = [each for each in others if not reads_all or are_equal(array, _element_bytes(model, each))]
            if not equal:
                continue
            wasted, first = size_text(most * least * array.itemsize * len(equal), "B"), as_text(one.name)
            again = [f"{'' if each.dims == one.dims else 'transposed '}'{as_text(each.name)}'" for each in equal]
            sure = "" if reads_all else f" (as far as {PLACES} of its elements tell; --hash reads all)"
            text = f"The weight '{first}' is stored again as {', '.join(again)}, which takes {wasted}{sure}."
            key = "x".join(map(str, sorted(one.dims)))
            yield Finding("stored-twice", f"{wasted}, '{first}' as {again[0]}", text, key, len(equal))


def _group_by_elements(model: Model, members: list[onnx.TensorProto], count: int) -> list[list[onnx.TensorProto]]:
    """Return the matrices that agree in some elements, which are not all one number where they are many."""
    groups: dict[bytes, list[onnx.TensorProto]] = {}
    for tensor in members:
        array = _element_bytes(model, tensor)
        numbers = np.arange(1, count + 1)
        found = array[numbers * STEPS[0] % array.shape[0], numbers * STEPS[1] % array.shape[1]]
        if count < PLACES or len(np.unique(found)) >= TELLING:
            groups.setdefault(found.tobytes(), []).append(tensor)
    return list(groups.values())


def _element_bytes(model: Model, tensor: onnx.TensorProto) -> np.ndarray:
    """Return the bytes of each element of a matrix, whose longer side comes first."""
    payload, rows, columns = model.payload(tensor), *tensor.dims
    array = np.frombuffer(payload, f"u{len(payload) // (rows * columns)}").reshape(rows, columns)
    return array if rows >= columns else array.T
