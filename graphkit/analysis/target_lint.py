"""Lint the nodes of a model for a target: the ruling on each operator, or on those that it becomes in TFLite.

`REMEDIES` says which pass removes which blocker, by cause and operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from math import isfinite
from string import ascii_letters
from typing import Any, Literal, NamedTuple, get_args

from msgspec import Struct, structs
from onnx import AttributeProto, TensorProto

from graphkit.dtypes import dtype_name
from graphkit.graph.dataflow import find_lookups, table_entries
from graphkit.graph.declared_types import Dim
from graphkit.graph.operator_traits import (
    MOVING,
    NORMALIZATIONS,
    RANDOM,
    RESHAPING,
    SKIP_NORMALIZATIONS,
    operator_schema,
    value_inputs,
)
from graphkit.graph.view import Node, Value, all_nodes, as_text, attribute_value, unwrap_value
from graphkit.ops.elementwise_and_reduction import NO_WHERE
from graphkit.ops.tensor import Element, TensorSequence, element_number, element_numbers, plain_dims
from graphkit.shapes import Shapes, is_known
from graphkit.targets import ANYTHING, Fact, Facts, Observation, Target, Verdict, joint_verdict, tflite_spellings

CONTROL_FLOW = ("If", "Loop", "Scan")
COUNTING = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)  # of ids, positions and masks: no activations
Cause = Literal["opset", "control flow", "function", "operator", "rank", "dtype", "dynamic shape"]
UNSAID = "no source says"  # of an obstacle that may be none
INPUT_DIMS = "dims of the inputs"
CAUSES: tuple[Cause, ...] = get_args(Cause)  # in the order of a report


Applies = Callable[["Lint", Node], bool]


class Remedy(NamedTuple):
    """A row: of those that fit a blocker, the first one counts."""

    cause: Cause
    of: str  # its operator, or another property of the node, such as a dtype; "" for any
    pass_name: str
    applies: Applies = lambda *_: True  # a further condition on the node


def _looks_tokens_up(lint: Lint, node: Node) -> bool:
    """Whether a node looks tokens up, or does nothing but move the ids to such a node."""
    readers = (reader for value in node.results for reader, _ in find_lookups(value))
    return node in lint.lookups or (_rests_on_hosted(lint, node) and any(reader in lint.lookups for reader in readers))


def _rests_on_hosted(lint: Lint, node: Node) -> bool:
    """Whether a node computes from values alone that rest on no floating-point data."""
    return all(value in lint.hosted for value in node.results)


def _looks_up(lint: Lint, node: Node) -> bool:
    """Whether the first input is a constant table, perhaps dequantized, and the indices are computed."""
    table = node.input(0)
    is_table = table is not None and (table in lint.tensors.static or table_entries(node, table) is not None)
    return is_table and not _second_is_static(lint, node)


def _second_is_static(lint: Lint, node: Node) -> bool:
    return node.input(1) in lint.tensors.static


def _fills_from_data(lint: Lint, node: Node) -> bool:
    """Whether one of the values that a Where chooses from is computed from no data, as the floor of a mask is."""
    return node.is_op("Where") and any(node.input(index) in lint.tensors.derived for index in (1, 2))


def _is_scaled_and_known(lint: Lint, node: Node) -> bool:
    """Whether a Mul scales the data of a node that the target takes elsewhere."""
    fact = lint.target.operators[node.op_type]
    return _is_made_by(node, ("Mul",)) and fact is not None and fact.verdict == "allowed"


def _has_axes_to_merge(lint: Lint, node: Node) -> bool:
    return (lint.shapes[node.input(0)].rank or 0) > 2


def _guards_softmax(_: Lint, node: Node) -> bool:
    return _is_made_by(node, ("Softmax",))


def _finds_assigned(lint: Lint, node: Node) -> bool:
    """Whether a NonZero says where a ScatterND writes one number of a dtype that Where takes."""
    turned = [reader.result() for value in node.results for reader, _ in value.consumers if reader.is_op("Transpose")]
    scatters = [reader for value in turned for reader, _ in value.consumers if reader.is_op("ScatterND")]
    written = [value for each in scatters if (value := each.input(2)) and lint.shapes[value].dtype not in NO_WHERE]
    return any(value.producer and value.producer.is_op("Expand") for value in written)


def _moves_places(_: Lint, node: Node) -> bool:
    """Whether a node moves the places at which others found the largest elements."""
    makers = [unwrap_value(value, MOVING | {"Mul"}).producer for value in node.results]
    return any(maker is not None and maker.is_op("TopK", "ArgMax", "ArgMin") for maker in makers)


QUANTISED = (  # products, whose second input is the weight
    *("MatMulInteger", "ConvInteger", "com.microsoft.MatMulNBits", "com.microsoft.DynamicQuantizeMatMul"),
    "com.microsoft.MatMulIntegerToFloat",
)
REMEDIES: tuple[Remedy, ...] = (
    Remedy("operator", "", "extract-embedding", _looks_tokens_up),
    Remedy("operator", "", "extract-host-values", _rests_on_hosted),
    *(Remedy("operator", operator, "extract-embedding", _looks_up) for operator in ("Gather", "GatherND")),
    *(Remedy("operator", operator, "gather-to-slice", _second_is_static) for operator in ("Gather", "GatherND")),
    Remedy("operator", "Where", "masked-fill-to-add", _fills_from_data),
    Remedy("operator", "Where", "where-to-arithmetic"),
    Remedy("operator", "IsNaN", "masked-fill-to-add", _guards_softmax),
    Remedy("operator", "NonZero", "masked-scatter-to-where", _finds_assigned),
    Remedy("operator", "Attention", "decompose-attention"),
    Remedy("operator", "Einsum", "einsum-to-matmul"),
    Remedy("operator", "Trilu", "tril-to-constant"),
    Remedy("operator", "Expand", "expand-to-broadcast"),
    Remedy("operator", "Erf", "divide-before-erf", _is_scaled_and_known),
    *(Remedy("operator", operator, "gelu-to-tanh") for operator in ("Erf", "Gelu")),
    Remedy("operator", "Cast", "cast-int64-away", lambda _, node: node.attr("to", 0) == TensorProto.INT64),
    *(Remedy("operator", operator, "layer-norm-to-primitives") for operator in NORMALIZATIONS | SKIP_NORMALIZATIONS),
    Remedy("operator", "Neg", "neg-to-mul"),
    Remedy("operator", "SequenceAt", "sequence-to-split", lambda lint, node: node.input(0) in lint.parts),
    Remedy("operator", "SplitToSequence", "sequence-to-split", lambda lint, node: node.outputs[0] in lint.parts),
    Remedy("operator", "Pow", "pow-to-mul", _second_is_static),
    Remedy("operator", "ReduceMean", "merge-mean-axes", _has_axes_to_merge),
    Remedy("operator", "Reciprocal", "reciprocal-to-div"),
    Remedy("operator", "Slice", "slice-steps-to-reshape", lambda _, node: node.input(4) is not None),
    Remedy("operator", "Sqrt", "reciprocal-to-div", lambda _, node: _is_read_by(node, "Reciprocal")),
    Remedy("operator", "Cast", "dequantize", lambda _, node: _is_made_by(node, QUANTISED)),
    Remedy("operator", "DynamicQuantizeLinear", "dequantize"),
    *(Remedy("operator", operator, "dequantize", _second_is_static) for operator in QUANTISED),
    Remedy("operator", "", "cast-int64-away", _moves_places),
    Remedy("control flow", "If", "specialize-input"),
    Remedy("function", "", "inline-functions"),
    Remedy("rank", "Einsum", "einsum-to-matmul"),
    Remedy("rank", "", "reduce-rank"),
    Remedy("dynamic shape", INPUT_DIMS, "freeze-dims"),
    Remedy("dtype", "", "extract-embedding", _looks_tokens_up),
    Remedy("dtype", "", "extract-host-values", _rests_on_hosted),
    Remedy("dtype", "IsNaN", "masked-fill-to-add", _guards_softmax),
    Remedy("dtype", "bool", "masked-fill-to-add", _fills_from_data),
    Remedy("dtype", "bool", "where-to-arithmetic", lambda _, node: node.is_op("Where")),
    Remedy("dtype", "int64", "cast-int64-away"),
)


class Obstacle(Struct, frozen=True):
    """One reason why a node may not, or cannot, be placed on a target."""

    scope: str = ""  # path of the scope of the node, "" for the main graph
    node: str = ""  # its name, or its operator and position where it has none
    op: str = ""
    cause: Cause = "operator"  # the kind of reason
    what: str = ""  # the property of the node: its operator, rank, dims or dtype
    reason: str = ""  # who says so, or why it is not known
    tensor: str = ""  # the tensor that shows it
    rank: int | None = None
    dtype: str = ""  # of that tensor, "?" where unknown
    # of that tensor: numbers, expressions as text, None for an unknown one; None for an unknown rank
    dims: tuple[Dim, ...] | None = None
    pass_name: str | None = None  # the pass that removes it, None where none is known

    @property
    def path(self) -> str:
        """The name of the node, after the path of its scope where that is not the main graph."""
        return f"{self.scope}/{self.node}" if self.scope else self.node


class Lint:
    """The statements of a target about the nodes of one model."""

    def __init__(self, target: Target, shapes: Shapes, passed: Collection[str] = ()) -> None:
        self.target, self.shapes, self.passed = target, shapes, passed  # those have run, and have left what is there
        graph, self.tensors = shapes.model.graph, shapes.model.shape_tensors
        lookups = (lookup for value in graph.inputs for lookup in find_lookups(value))
        # those that look rows of a constant table up by ids as they come in
        self.lookups = {node for node, table in lookups if table_entries(node, table) is not None}
        # what rests on no floating-point data, such as token ids, positions and masks
        hosted = {value for value in shapes.model.graph.inputs if shapes[value].dtype in COUNTING}
        for node in all_nodes((shapes.model.graph,)):
            if node.domain or node.bodies or node.op_type in RANDOM or node in self.lookups:
                continue
            if all(value in hosted or _rests_on_shapes(value, shapes) for value in node.operands):
                hosted.update(node.results)
        self.hosted = hosted
        self.parts: Collection[Value] = set(_sequence_parts(shapes))  # sequences that a Split can give, part by part
        self.local = {(as_text(function.domain), as_text(function.name)) for function in shapes.model.proto.functions}

    def folds(self, node: Node) -> bool:
        """Whether folding removes a node once dims are numbers: it computes from constants and shapes, or nothing."""
        values, source = node.results, node.input(0)
        is_cast = node.is_op("Cast") and source is not None and self.shapes[source].dtype == node.attr("to", -1)
        on_shapes = bool(values) and all(_rests_on_shapes(value, self.shapes) for value in values)
        return node.is_op("Identity") or is_cast or on_shapes

    def obstacles(self, node: Node) -> tuple[tuple[Obstacle, ...], tuple[Obstacle, ...]]:
        """Return the obstacles of a node, and the facts that no source states or no shape decides."""
        found = list(self._obstacles(node))
        return tuple(each for each, refuses in found if refuses), tuple(each for each, refuses in found if not refuses)

    def _obstacles(self, node: Node) -> Iterator[tuple[Obstacle, bool]]:
        if (node.domain, node.op_type) in self.local:
            yield self._obstacle(node, "function", node.operator, "a function of the model", None), True
            return
        said = rule_node(node, self.target, cache(lambda: observe_node(node, self.shapes)))
        if said.verdict != "allowed":
            cause: Cause = "control flow" if node.is_op(*CONTROL_FLOW) else "operator"
            yield self._obstacle(node, cause, node.operator, said.reason, None), said.verdict == "refused"
            if cause == "control flow" and said.verdict == "refused":
                return
        reads = value_inputs(node)  # as a shape, which is no data
        inputs = [value for index, value in enumerate(node.inputs) if value is not None and index not in reads]
        values = list(dict.fromkeys([*node.results, *inputs]))
        yield from self._rank(node, values) if not said.bounds_rank else ()
        yield from self._dims(node, values)
        yield from self._dtypes(node, values)

    def _rank(self, node: Node, values: list[Value]) -> Iterator[tuple[Obstacle, bool]]:
        limit = self.target.max_rank
        if limit is None:
            return
        ranks = {value: rank for value in values if (rank := self.shapes[value].rank) is not None}
        highest = max(ranks, key=lambda value: ranks[value], default=None)
        if highest is not None and ranks[highest] > limit.value:
            reason = f"at most {limit.value} ({limit.source.key})"
            yield self._obstacle(node, "rank", f"rank {ranks[highest]}", reason, highest), True
            return
        if not self.target.needs_static_shapes:  # which says more of a tensor of unknown rank
            for value in [each for each in values if each not in ranks][:1]:
                yield self._obstacle(node, "rank", "unknown rank", self.shapes.reason(value), value), False

    def _dims(self, node: Node, values: list[Value]) -> Iterator[tuple[Obstacle, bool]]:
        if self.target.static_shapes is None or not self.target.needs_static_shapes:
            return
        tensors = [value for value in values if not isinstance(self.shapes[value], TensorSequence)]
        dynamic = [value for value in tensors if self.shapes[value].sizes() is None]
        unfreezable = [value for value in dynamic if not self.shapes[value].is_known]
        if unfreezable:
            reason = self.shapes.reason(unfreezable[0]) or "its dims are not known"
            yield self._obstacle(node, "dynamic shape", "dims not known", reason, unfreezable[0]), True
        elif dynamic:
            reason = f"dims must be numbers ({self.target.static_shapes.source.key})"
            yield self._obstacle(node, "dynamic shape", INPUT_DIMS, reason, dynamic[0]), True

    def _dtypes(self, node: Node, values: list[Value]) -> Iterator[tuple[Obstacle, bool]]:
        met = set()
        for value in values:
            dtype = self.shapes[value].dtype
            if not dtype or dtype in met or _rests_on_shapes(value, self.shapes):
                continue
            met.add(dtype)
            name = dtype_name(dtype)
            fact = self.target.dtype(name)
            if fact is not None and fact.verdict == "allowed":
                continue
            refuses = fact is not None and fact.verdict == "refused"
            note = "" if fact is None else fact.note or ("refused" if refuses else "")
            reason = f"{note} ({fact.source.key})" if fact is not None and note else UNSAID
            yield self._obstacle(node, "dtype", name, reason, value), refuses

    def remedy(self, node: Node, cause: Cause, what: str) -> str | None:
        """Return the pass that removes an obstacle of a node, None where none is known."""
        rows = (row for row in REMEDIES if row.cause == cause and row.of in ("", node.operator, what))
        fitting = (row.pass_name for row in rows if row.pass_name not in self.passed and row.applies(self, node))
        return next(fitting, None)

    def _obstacle(self, node: Node, cause: Cause, what: str, reason: str, value: Value | None) -> Obstacle:
        shown = value or next(iter(node.results), None)
        tensor = None if shown is None else self.shapes[shown]
        dims = None if tensor is None else tensor.dims
        shape = plain_dims(dims)
        return Obstacle(
            scope=node.scope.path,
            node=node.label,
            op=node.operator,
            cause=cause,
            what=what,
            reason=reason,
            tensor="" if shown is None else shown.name,
            rank=None if dims is None else len(dims),
            dtype=dtype_name(tensor.dtype) if tensor is not None and tensor.dtype else "?",
            dims=shape and tuple(dim if is_known(expr) else None for dim, expr in zip(shape, dims or (), strict=True)),
            pass_name=self.remedy(node, cause, what),
        )


def _sequence_parts(shapes: Shapes) -> Iterator[Value]:
    """Yield the sequences of known parts that are read one by one, each at a constant place."""

    def is_read_at_a_place(node: Node, index: int) -> bool:
        return node.is_op("SequenceAt") and not index and element_numbers(shapes[node.input(1)]) is not None

    for node in all_nodes((shapes.model.graph,)):
        for sequence in node.results if node.is_op("SplitToSequence") else ():
            inferred = shapes[sequence]
            has_parts = isinstance(inferred, TensorSequence) and inferred.items is not None
            if has_parts and all(is_read_at_a_place(*use) for use in sequence.consumers):
                yield sequence


def _rests_on_shapes(value: Value, shapes: Shapes) -> bool:
    """Whether a value is computed from constants, and from shapes that follow from those of the inputs."""
    tensors = shapes.model.shape_tensors
    if value not in tensors.derived:
        return False
    return all(source in tensors.derived or shapes[source].is_known for source in tensors.sources(value))


class Ruling(NamedTuple):
    """Whether a target takes an operator, and who says so."""

    verdict: Verdict
    reason: str
    bounds_rank: bool = False  # whether it says how many axes are too many, whatever the target does


def rule_node(node: Node, target: Target, observe: Callable[[], Observation]) -> Ruling:
    """Return the ruling of a target on a node's operator; a joint target has that of the strictest of its parts."""
    if target.others:
        rulings = {part.name: rule_node(node, part, observe) for part in target.others}
        verdict = joint_verdict([ruling.verdict for ruling in rulings.values()])
        names = ", ".join(name for name, ruling in rulings.items() if ruling.verdict == verdict)
        return Ruling(verdict, f"not known for {names}" if verdict == "unknown" else names)
    if target.tflite is not None and node.operator not in target.operators:
        return _by_tflite(node.operator, target.tflite, observe)
    if (fact := target.operators[node.operator]) is None:
        return Ruling("unknown", UNSAID)
    if target.needs_static_shapes:  # dims that are no numbers yet are an obstacle of their own
        return _by_fact(fact, lambda: structs.replace(observe(), is_dynamic=False))
    return _by_fact(fact, observe)


def _by_fact(fact: Fact, observe: Callable[[], Observation]) -> Ruling:
    note = f"{fact.note} ({fact.source.key})" if fact.note else fact.source.key
    if fact.condition == ANYTHING:
        return Ruling(fact.verdict, note)
    held = {condition.holds(observe()): condition for condition in (*fact.alternatives[::-1], fact.condition)}
    if True in held:
        return Ruling("allowed", note, held[True].max_rank is not None)
    if None in held:
        return Ruling("unknown", f"taken with {fact.conditions} only, which is not known here ({fact.source.key})")
    return Ruling("refused", f"taken with {fact.conditions} only ({fact.source.key})")


def _by_tflite(op: str, tflite: Facts, observe: Callable[[], Observation]) -> Ruling:
    spellings = tflite_spellings().get(op, ())
    chosen = next((each for each in spellings if each.condition == ANYTHING or each.condition.holds(observe())), None)
    if chosen is None:
        return Ruling("unknown", "no source says what it becomes in TFLite")
    facts = [(name, tflite[name]) for name in chosen.becomes]
    refused = [(name, fact) for name, fact in facts if fact is not None and fact.verdict == "refused"]
    if refused:
        names = ", ".join(name for name, _ in refused)
        return Ruling("refused", f"becomes {names}: {refused[0][1].note} ({refused[0][1].source.key})")
    open_ = [name for name, fact in facts if fact is None or fact.verdict == "unknown"]
    if open_:
        return Ruling("unknown", f"becomes {', '.join(open_)}, of which no source says anything")
    return Ruling("allowed", f"becomes {', '.join(chosen.becomes) or 'nothing'}")


def observe_node(node: Node, shapes: Shapes) -> Observation:
    """Return what conditions ask of a node."""
    opset, static = node.scope.opset(node.domain), shapes.model.shape_tensors.static
    formal = formal_node(node.op_type, opset, node.domain)
    attributes, values = dict(formal.defaults), dict[str, int | float | None]()
    for name, attribute in node.attributes.items():
        if name == "equation":
            text = "".join(as_text(attribute.s).split())
            order = "".join(dict.fromkeys(filter(str.isalpha, text)))
            attributes[name] = text.translate(str.maketrans(order, ascii_letters[: len(order)]))
        elif (number := plain_attribute(attribute)) is not None:
            attributes[name] = number
        elif attribute.ints or attribute.floats:
            values[name] = _same_number(attribute.ints or attribute.floats)
    dtypes, producers, constant = dict[str, str](), dict[str, str](), list[str]()
    for name, value in zip(formal.names(formal.inputs, len(node.inputs)), node.inputs, strict=True):
        if value is None:
            continue
        if value in static or _rests_on_shapes(value, shapes):
            constant.append(name)
        if name in dtypes:  # it is one of several of a name
            continue
        dtypes[name] = _dtype_of(value, shapes)
        if (number := _same_number(shapes[value].elements or ())) is not None:
            values[name] = number
        if value.producer is not None:
            producers[name] = value.producer.operator
    for name, value in zip(formal.names(formal.outputs, len(node.outputs), "output "), node.outputs, strict=True):
        if value is not None:
            dtypes.setdefault(name, _dtype_of(value, shapes))
    tensors = [shapes[value] for value in (*node.inputs, *node.outputs) if value is not None]
    given = [value for value in node.results if value in node.scope.outputs]
    ends = [shapes.dims(value) for value in (*node.inputs[:1], *node.outputs[:1])]
    readers = {reader.operator for value in node.results for reader, _ in value.consumers}
    rank = max((tensor.rank for tensor in tensors if tensor.rank is not None), default=0)
    return Observation(
        op=node.operator,
        since=formal.since or opset,
        dtypes=dtypes,
        constant=tuple(constant),
        rank=rank,
        attributes=attributes,
        is_dynamic=any(tensor.sizes() is None for tensor in tensors),
        opset=node.scope.opset(),
        dims=tuple(None if dims is None else tuple(dim.constant for dim in dims) for dims in ends),
        values=values,
        readers=readers.pop() if len(readers) == 1 and not given else "",
        producers=producers,
        given=tuple(_dtype_of(value, shapes) for value in given),
        has_every_rank=all(tensor.rank is not None for tensor in tensors),
        unit_stays=_keeps_unit(node, rank, shapes),
    )


def _keeps_unit(node: Node, rank: int, shapes: Shapes) -> bool:
    """Whether it is in a chain of three, around a Transpose of its rank that leaves an axis of 1; the last reshapes."""
    made = [value.producer for value in node.inputs[:1] if value is not None]
    for middle in (node, *made, *(reader for value in node.results for reader, _ in value.consumers)):
        if middle is not None and middle.is_op("Transpose") and middle.operands and middle.results:
            source, result = middle.operands[0], middle.results[0]
            chain = [source.producer, middle, *(reader for reader, _ in result.consumers)]
            is_alone = len(chain) == 3 and len(source.consumers) == 1 and not {source, result} & {*node.scope.outputs}
            sizes = shapes[source].sizes() or ()
            stays = any(
                pair == (1, index) for index, pair in enumerate(zip(sizes, middle.attr("perm", ()) or (), strict=False))
            )
            if node in chain and is_alone and stays and len(sizes) == rank:
                return chain[2] is not None and chain[2].operator in RESHAPING
    return False


class FormalNode(NamedTuple):
    """What the specification says of an operator; nothing where it does not know it."""

    since: int = 0  # the version of the operator set in which it last changed; 0 where that is not known
    inputs: tuple[str, ...] = ()  # names of inputs
    outputs: tuple[str, ...] = ()  # names of outputs
    defaults: Mapping[str, int | float | str] = {}  # of attributes that are a number or a text

    @staticmethod
    def names(formals: Sequence[str], count: int, other: str = "") -> list[str]:
        """Return what so many tensors are called, the last ones alike where they are many; else by their numbers."""
        return [formals[min(index, len(formals) - 1)] if formals else f"{other}{index}" for index in range(count)]


@lru_cache(maxsize=256)
def formal_node(op: str, opset: int, domain: str) -> FormalNode:
    """Return what the specification says of an operator in a version."""
    if (schema := operator_schema(op, opset, domain)) is None:
        return FormalNode()
    plain = {name: plain_attribute(attribute.default_value) for name, attribute in schema.attributes.items()}
    inputs, outputs = (tuple(formal.name for formal in formals) for formals in (schema.inputs, schema.outputs))
    defaults = {name: value for name, value in plain.items() if value is not None}
    return FormalNode(schema.since_version, inputs, outputs, defaults)


def plain_attribute(attribute: AttributeProto) -> int | float | str | None:
    """Return the number or the text of an attribute, None where it has another kind."""
    kinds = {AttributeProto.INT: int, AttributeProto.FLOAT: float, AttributeProto.STRING: str}
    kind: Any = kinds.get(attribute.type)
    return None if kind is None else attribute_value(attribute, kind)


def _dtype_of(value: Value, shapes: Shapes) -> str:
    dtype = shapes[value].dtype
    return dtype_name(dtype) if dtype else ""


def _same_number(elements: Sequence[Element]) -> int | float | None:
    """Return the finite number that all elements are, None where they are not one."""
    first = elements[0] if elements else None
    number = first if first is None or isinstance(first, float) else element_number(first)
    return number if number is not None and isfinite(number) and all(each == first for each in elements) else None


def _is_made_by(node: Node, operators: Collection[str]) -> bool:
    source = node.input(0)
    return source is not None and source.producer is not None and source.producer.operator in operators


def _is_read_by(node: Node, op: str) -> bool:
    readers = [reader for value in node.results for reader, _ in value.consumers]
    return bool(readers) and all(reader.operator == op for reader in readers)
