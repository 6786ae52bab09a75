"""Infer the shape of every tensor of a model, in one pass over its nodes.

Graph inputs have the dims that they declare; all else follows from the operators, never from declared types of values
or outputs: exporters' declarations are often wrong (a first-step decoder may declare `past_sequence_length + 1`).
A shape that no rule knows is unknown, whatever its declaration. A body is inferred where its node stands, a function at
each call. Dims that must be equal for the model to run are noted, and simplify the result at the end.
What a rule says of a node is kept for nodes like it: models have many layers, and are inferred after each change.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from itertools import combinations
from typing import Any

import onnx
import onnx.checker
from msgspec import Struct
from onnx import AttributeProto, TypeProto, shape_inference

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.dataflow import in_order
from graphkit.graph.operator_traits import PICKING, PRESERVING, joined_parts, operator_set
from graphkit.graph.view import Node, Scope, Value, all_nodes
from graphkit.model import Model, ModelLike, as_model
from graphkit.ops.registry import NEEDS, RULES, forget_on_registration, require_parameter_dims
from graphkit.ops.rule_context import InferenceContext, Notes, Rule, UnknownError
from graphkit.ops.tensor import (
    MAX_ELEMENTS,
    Array,
    Tensor,
    agreed_facts,
    array_of,
    is_known,
    plain_element,
    unknown_tensor,
    with_sizes,
)
from graphkit.progress import check_time
from graphkit.shapes import inferred_shapes
from graphkit.shapes.graph_inputs import AS_DECLARED, Bounds, DimSpec, Inputs
from graphkit.shapes.input_dims import DeclaredInputs, Group, Groups, Place, claimed_inputs, declared_inputs
from graphkit.symbolic.algebra import Relation, Requirement
from graphkit.symbolic.expr import Call, Expr, TooComplexError, const

# Inference of one node by onnx itself, for operators without a rule.
#
# Declared types of outputs play no part: onnx gets only the types of the inputs, as the engine knows them. A symbolic
# dim becomes a `dim_param` of its own. Equal dims have equal names, and onnx never calculates with names, so that a
# name in the result stands for the same dim.

MAX_VERSION = (1 << 31) - 1  # which onnx can be asked for
REFUSALS = (
    shape_inference.InferenceError,
    onnx.defs.SchemaError,
    onnx.checker.ValidationError,  # of a node that does not fit its schema
    RuntimeError,
    ValueError,
)


def infer_node(ctx: InferenceContext) -> list[Tensor]:
    """Return the facts that onnx's own inference knows of a node's outputs."""
    node = ctx.node
    if node.bodies or not onnx.defs.has(node.op_type, node.domain):
        raise UnknownError(f"there is no rule for {node.operator}")
    version = min(max(ctx.node.scope.opset(node.domain), 1), MAX_VERSION)
    names: dict[str, Expr] = {}
    types, data = {}, {}
    for value, tensor_in in zip(node.inputs, ctx.inputs, strict=True):
        if value is None or tensor_in is None:
            continue
        if tensor_in.dims is None or not tensor_in.dtype:
            raise UnknownError(tensor_in.reason or f"'{value.name}' is unknown")
        kind = types[value.name] = TypeProto()
        kind.tensor_type.elem_type = tensor_in.dtype
        kind.tensor_type.shape.SetInParent()
        for dim in tensor_in.dims:
            added, size = kind.tensor_type.shape.dim.add(), dim.constant
            if size is not None and size >= 0:
                added.dim_value = size
            else:
                added.dim_param = f"{dim}"
                names[f"{dim}"] = dim
        known = tensor_in.data if tensor_in.may_have_data else None
        if known is not None and all(isinstance(element, (int, float)) for element in known.ravel().tolist()):
            dtype = FLOATS.get(tensor_in.dtype) or onnx.helper.tensor_dtype_to_np_dtype(tensor_in.dtype)
            data[value.name] = onnx.numpy_helper.from_array(known.astype(dtype))
    proto = node.proto
    if any(attribute.ref_attr_name for attribute in proto.attribute):  # in a function: the arguments of the call
        proto = onnx.helper.make_node(node.op_type, proto.input, proto.output, domain=node.domain)
        for name, attribute in ctx.attributes.items():
            proto.attribute.add().CopyFrom(attribute)
            proto.attribute[-1].name = name
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        opsets = [onnx.helper.make_opsetid(node.domain, version)]
        results = shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=opsets)
    except REFUSALS as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:120]
        raise UnknownError(f"onnx cannot infer {node.operator}: {reason}") from error
    return [_read_result(ctx, results.get(value.name) if value else None, names) for value in node.outputs]


def _read_result(ctx: InferenceContext, result: TypeProto | None, names: dict[str, Expr]) -> Tensor:
    if result is None or not result.HasField("tensor_type"):
        return unknown_tensor(f"onnx infers no tensor for {ctx.node.operator}")
    tensor_type = result.tensor_type
    if not tensor_type.HasField("shape"):
        return unknown_tensor(f"onnx infers no rank for {ctx.node.operator}", tensor_type.elem_type)
    dims = []
    for dim in tensor_type.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(const(dim.dim_value))
        elif dim.dim_param in names:
            dims.append(names[dim.dim_param])
        else:
            dims.append(ctx.new_symbol(f"onnx does not infer it for {ctx.node.operator}"))
    return Tensor(tensor_type.elem_type, dims)


_CONSTANTS: dict[Hashable, Tensor] = {}  # that are small and have their bytes in them
MAX_PASSES = 4
MAX_CALLS = 30  # functions in functions
MAX_REASON = 300  # characters
MAX_WORK = 200_000  # nodes of bodies and functions inferred, as often as they are


def infer(
    model: ModelLike,
    spec: DimSpec = AS_DECLARED,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, Bounds] | None = None,
    values: Mapping[str, object] | None = None,
) -> inferred_shapes.Shapes:
    """Return the known facts of every tensor, its shape first, and the relations that must hold for the model to run.

    Args:
        model: The model, or its path.
        spec: The known facts about the input dims; `dims`, `inputs` and `ranges` add to it.
        dims: Numbers for symbols, such as `{"batch_size": 1}`.
        inputs: Shapes of graph inputs, such as `{"pixel_values": (1, 3, 800, 800)}`; symbols in them get those numbers.
        ranges: Bounds of symbols, such as `{"sequence_length": (1, 512)}`; None for an open end.
        values: Elements of graph inputs, such as `{"use_cache_branch": True}`; integers may be expressions.

    Raises:
        UsageError: An input or a symbol does not exist, or the numbers contradict each other.

    Example:
        >>> from graphkit.shapes import infer
        >>> print(infer(graphkit.load("example:causal-attention"))["logits"])
        [batch_size, sequence_length, 64]
    """
    model = as_model(model)
    spec = spec | DimSpec.of(dims, inputs, ranges)
    return infer_from(model, Inputs(model, spec, values)) if values else _infer_spec(model, spec)


@lru_cache(maxsize=12)
def _infer_spec(model: Model, spec: DimSpec) -> inferred_shapes.Shapes:
    return infer_from(model, Inputs(model, spec))


def infer_claimed(model: Model, known: inferred_shapes.Shapes | None = None) -> inferred_shapes.Shapes:
    """Return the shapes at sizes at which dims of one name are equal, as the inputs claim; those known if they are."""
    claimed = claimed_inputs(model)
    if claimed is not declared_inputs(model):
        return infer_from(model, Inputs(model, declared=claimed))
    return known or infer(model)


def infer_from(model: Model, inputs: Inputs, *, is_settled: bool = False) -> inferred_shapes.Shapes:
    """Return the shape of every tensor, inferred from the known facts of the inputs, whose ranges are narrowed.

    It is settled where it is as if all ranges had been known before that the nodes require.
    """
    found = _inference_of(model, inputs)
    shapes = found.settled if is_settled else found.shapes
    if inputs.ranges != found.inputs.ranges:
        inputs.narrow_ranges(found.inputs.ranges)
    return shapes


def infer_roughly(model: Model, inputs: Inputs) -> inferred_shapes.Shapes:
    """Return what a first pass alone says, which learns nothing from what nodes require."""
    return _inference_of(model, inputs).rough


class _Inference:
    """The passes of an inference, as far as they are asked for."""

    def __init__(self, model: Model, inputs: Inputs) -> None:
        self.model, self.inputs = model, inputs.copy()
        self.equal: list[tuple[Expr, Expr]] = []
        self.passes: list[_Engine] = []
        self.unsettled = 0  # passes before the last ranges were learned
        self.is_pure = True  # whether nothing else was learned by then

    def run_pass(self) -> _Engine:
        self.passes.append(engine := _Engine(self.model, self.inputs, self.equal))
        engine.run_main()
        return engine

    @cached_property
    def rough(self) -> inferred_shapes.Shapes:
        first = self.passes[0] if self.passes else self.run_pass()
        return first.finish([first])

    @cached_property
    def shapes(self) -> inferred_shapes.Shapes:
        engine, before = self.passes[0] if self.passes else self.run_pass(), dict(self.inputs.ranges)
        while not engine.is_complete() and engine.learn(self.equal):
            if self.inputs.ranges != before:
                self.unsettled, self.is_pure = len(self.passes), not self.equal
            if len(self.passes) == MAX_PASSES:
                break
            engine, before = self.run_pass(), dict(self.inputs.ranges)
        return engine.finish(self.passes)

    @cached_property
    def settled(self) -> inferred_shapes.Shapes:
        shapes = self.shapes
        if not self.is_pure or self.unsettled == len(self.passes):
            return infer_from(self.model, self.inputs)
        return self.passes[-1].finish(self.passes[self.unsettled :]) if self.unsettled else shapes


@lru_cache(maxsize=12)  # an original is asked about again after all rewrites of it, and with an empty past
def _inferences_at(model: Model, state: Hashable) -> list[_Inference]:  # noqa: ARG001 - it is what they are kept by
    return []


def _inference_of(model: Model, inputs: Inputs) -> _Inference:
    kept: list[_Inference] = [] if inputs.values else _inferences_at(model, inputs.state())
    kept += [] if kept else [_Inference(model, inputs)]
    return kept[0]


for forget in (_inferences_at.cache_clear, _infer_spec.cache_clear, _CONSTANTS.clear):
    forget_on_registration(forget)


def _distinct_requirements(passes: Iterable[Sequence[Requirement]]) -> tuple[Requirement, ...]:
    """Return the requirements of all passes; a later pass, which builds on one, does not see it again."""
    requirements: list[Requirement] = []
    for noted in passes:
        said = {(requirement.scope, str(requirement)) for requirement in requirements}
        requirements.extend(requirement for requirement in noted if (requirement.scope, str(requirement)) not in said)
    return tuple(requirements)


class _Engine:
    def __init__(self, model: Model, given: Inputs, equal: Sequence[tuple[Expr, Expr]]) -> None:
        self.model, self.given = model, given
        self.rewriter = inferred_shapes.rewriter_of(equal)
        self.table: dict[Value, Tensor] = {}
        self.notes = Notes()
        self.bound: Mapping[str, AttributeProto] = {}
        self.work = 0
        self.running: list[Scope] = []  # the functions around, outermost first
        self.body: Scope | None = None  # the innermost body around that may not run
        self.main = model.graph
        self.certain: set[Scope] = {self.main}  # scopes that run whenever the model does
        self.seen_functions: dict[Value, Tensor] = {}
        functions = zip(model.proto.functions, model.scopes[1:], strict=True)
        self.functions = {(f.domain, f.name, f.overload): (f, scope) for f, scope in functions}

    # The interface for rules

    def load(self, tensor: onnx.TensorProto) -> Tensor:
        if math.prod(tensor.dims) > MAX_ELEMENTS:
            return share_tensor(self.read(tensor))
        known: dict[Hashable, Tensor] = self.model.constants
        key: Hashable = tensor.SerializeToString(deterministic=True)
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            known, key = _CONSTANTS, (tensor.data_type, *tensor.dims, tensor.raw_data or key)
        if len(known) >= MAX_KNOWN:
            known.clear()
        return known.get(key) or known.setdefault(key, self.read(tensor))

    def read(self, tensor: onnx.TensorProto) -> Tensor:
        reason, data, loader = "", None, None
        if math.prod(tensor.dims) > MAX_ELEMENTS:
            reason = f"it has more than {MAX_ELEMENTS} elements"
        elif tensor.data_type not in INTEGERS and tensor.data_type not in FLOATS:
            reason = "elements of its dtype are not followed"
        elif tensor.data_location == onnx.TensorProto.EXTERNAL:
            loader = partial(self._elements, tensor)
        else:
            data = self._elements(tensor)  # at once: it is kept for other models
        return Tensor(tensor.data_type, tuple(tensor.dims), data, reason, loader)

    def _elements(self, tensor: onnx.TensorProto) -> Array | None:
        try:
            array = self.model.array(tensor)
        except ModelError:  # its data file is missing
            return None
        to = float if tensor.data_type in FLOATS else int
        return array_of([to(element) for element in array.ravel().tolist()], array.shape)

    def run_body(self, body: Scope, inputs: Sequence[Tensor], *, is_certain: bool = True) -> list[Tensor]:
        for index, value in enumerate(body.inputs):
            missing = unknown_tensor("the body is given no such input")
            self.table[value] = inputs[index] if index < len(inputs) else missing
        around = self.body
        if not is_certain:
            self.body = body
        elif around is None and not self.running:
            self.certain.add(body)
        try:
            self.run_scope(body)
        finally:
            self.body = around
        return [self.known(value) for value in body.outputs]

    def run_main(self) -> None:
        for value in self.main.inputs:
            constant = value.tensor if self.model.proto.ir_version < 4 else None
            self.table[value] = self.given.tensor(value, self.notes) if constant is None else self.load(constant)
        self.run_scope(self.main)

    def run_scope(self, scope: Scope) -> None:
        for value in scope.initializers:
            if value.kind != "initializer":
                continue
            if value.tensor is not None:
                self.table[value] = self.load(value.tensor)
            elif value.sparse is not None:
                self.table[value] = Tensor(value.sparse.values.data_type, value.sparse.dims, None, "it is sparse")
        for node in in_order(scope) if scope.problems else scope.nodes:
            self.run_node(node)

    def known(self, value: Value) -> Tensor:
        return self.table.get(value) or unknown_tensor(f"'{value.name}' is not defined before it is used")

    def run_node(self, node: Node) -> None:
        check_time()
        table = self.table
        inputs = [None if value is None else table.get(value) or self.known(value) for value in node.inputs]
        try:
            results = self._results(node, inputs)
        except UnknownError as reason:
            said = str(reason)  # the nodes that it names already may be many: chains are long
            told = said if len(said) > MAX_REASON else f"{node.label}: {said}"
            results = [unknown_tensor(told) for _ in node.outputs]
        except (TooComplexError, ArithmeticError, LookupError, ValueError) as error:
            results = [unknown_tensor(f"{node.label} does not fit {node.operator}: {error}") for _ in node.outputs]
        for index, value in enumerate(node.outputs):
            if value is not None:
                tensor = results[index] if index < len(results) else unknown_tensor(f"{node.label} has no such output")
                rewritten = self.rewriter.tensor(tensor)
                table[value] = tensor if rewritten is tensor else share_tensor(rewritten)

    def _results(self, node: Node, inputs: Sequence[Tensor | None]) -> Sequence[Tensor]:
        if node.scope is not self.main:
            self.work += 1
            if self.work > MAX_WORK:
                raise UnknownError("the bodies and functions around it take too long")
        rule, key = RULES.get(node.operator), None
        if rule is not None and not (self.functions or node.bodies):
            key = result_key(rule, node, inputs)
            if key is not None and (known := KNOWN_RESULTS.get(key)) is not None:
                return known.repeat(node, self.notes)
        attributes = node.attributes
        if self.running:
            bound = {name: self.bound.get(each.ref_attr_name, each) for name, each in node.attributes.items()}
            attributes = {name: attribute for name, attribute in bound.items() if not attribute.ref_attr_name}
        ctx = InferenceContext(node, inputs, attributes, self)
        function = self.functions.get((node.domain, node.op_type, node.proto.overload)) if self.functions else None
        if function is not None:
            return self._call_function(ctx, *function)
        before = len(self.notes.reasons), self.notes.mark()
        required = len(self.notes.preconditions)
        try:
            if node.operator in NEEDS:
                with suppress(UnknownError, TooComplexError, ArithmeticError, LookupError, ValueError):
                    require_parameter_dims(ctx)
            found = infer_node(ctx) if rule is None else rule(ctx)
        finally:
            ctx.note_violations(required)
        results = [share_tensor(with_sizes(each)) for each in (found if isinstance(found, list) else [found])]
        if key is not None:
            keep_results(key, ctx, results, *before)
        return results

    def _call_function(self, ctx: InferenceContext, function: onnx.FunctionProto, scope: Scope) -> list[Tensor]:
        if scope in self.running:
            raise UnknownError("the function calls itself, at once or through others")
        if len(self.running) >= MAX_CALLS:
            raise UnknownError("functions call each other too deep")
        defaults = {attribute.name: attribute for attribute in function.attribute_proto}
        outer, self.bound = self.bound, {**defaults, **ctx.attributes}
        self.running.append(scope)
        try:
            missing = unknown_tensor("it is left out at this call")
            arguments = [missing if tensor is None else tensor for tensor in ctx.inputs]
            results = self.run_body(scope, arguments + [missing] * (len(scope.inputs) - len(arguments)))
        finally:
            self.running.pop()
            self.bound = outer
        for inner in scope.walk():  # the facts that all calls of the function agree on
            for value in inner.values.values():
                if (now := self.table.get(value)) is not None:
                    before = self.seen_functions.get(value)
                    self.seen_functions[value] = now if before is None else agreed_facts(before, now)
        return results

    def is_complete(self) -> bool:
        """Whether every dim is known, and as plain as can be."""
        return not self.notes.reasons and not self.notes.equalities

    def learn(self, equal: list[tuple[Expr, Expr]]) -> bool:
        """Take the requirements of the main graph's nodes into the next pass, and return whether any is new."""
        notes = self.notes.equalities, self.notes.inequalities
        equalities, inequalities = ([each for each in noted if each.scope is self.main] for noted in notes)
        equalities = [each for each in equalities if is_known(each.left) and is_known(each.right)]
        pairs = dict.fromkeys((requirement.left, requirement.right) for requirement in equalities)
        new_pairs = [
            pair for pair in pairs if pair not in equal and inferred_shapes.find_replacement(*pair) is not None
        ]
        equal += new_pairs
        before = self.given.symbols
        ranges = inferred_shapes.narrower_ranges(inferred_shapes.learned_ranges([*inequalities, *equalities]), before)
        if not ranges:
            return bool(new_pairs)
        self.given.narrow_ranges(ranges)
        now = {name: expr for name, expr in self.given.symbols.items() if expr != before[name]}
        equal[:] = [(left.substitute(now), right.substitute(now)) for left, right in equal]
        return True

    def finish(self, passes: Sequence[_Engine]) -> inferred_shapes.Shapes:
        first = passes[0]
        self.table.update(self.seen_functions)
        first.table.update(first.seen_functions)
        rewriter = inferred_shapes.scope_rewriters(self.notes.equalities)
        pairs = self.table.items() if self.notes.equalities else ()
        table = {value: rewriter(value.scope).tensor(tensor) for value, tensor in pairs} or self.table
        noted = [engine.notes.preconditions for engine in passes]
        noted.append([(node, each.with_exprs(rewriter(node.scope).expr)) for node, each in self.notes.preconditions])
        return inferred_shapes.Shapes(
            model=self.model,
            table=table,
            reasons=self.notes.reasons,
            findings=tuple(dict.fromkeys(self.notes.findings)),
            equalities=_distinct_requirements(engine.notes.equalities for engine in passes),
            inequalities=_distinct_requirements(engine.notes.inequalities for engine in passes),
            first=first.table,
            certain=frozenset(self.certain),
            broadcasts=tuple(first.notes.broadcasts),
            limits=tuple(first.notes.limits),
            wraps=tuple(first.notes.wraps),
            preconditions=tuple(map(tuple, noted)),
        )


MAX_KNOWN = 1 << 15
MAX_COMPARED, COMPARED = 64, frozenset({int, Expr})  # elements: floats have signs of zeros
UNLIKE = ("Constant", "ConstantOfShape", "ConcatFromSequence")  # may hold much, lie in a file; asks another rule


class Known(Struct, frozen=True):
    """What a rule says: of the outputs, and of what must hold; the inputs keep their identity as long as it is kept."""

    inputs: Sequence[Tensor | None]
    results: Sequence[Tensor]
    notes: Sequence[tuple[int, Any]]  # in which list of the notes

    def repeat(self, node: Node, notes: Notes) -> Sequence[Tensor]:
        """Note of a node what the rule noted of another one, and return its outputs."""
        for at, noted in self.notes:
            is_relation = isinstance(noted, Relation)
            again = Requirement(noted.left, noted.relation, noted.right, node) if is_relation else (node, noted)
            notes.lists[at].append(again)
        return self.results


KNOWN_RESULTS: dict[Hashable, Known] = {}
_TENSORS: dict[Hashable, Tensor] = {}
forget_on_registration(KNOWN_RESULTS.clear)


def share_tensor(tensor: Tensor) -> Tensor:
    """Return the one tensor of these facts, or itself where its rank is unknown."""
    key: Hashable = None
    if type(tensor) is Tensor and not tensor.may_have_data:
        key = tensor.dtype, tensor.dims, tensor.reason
    elif type(tensor) is Tensor and not tensor.is_unread and (data := tensor.data) is not None:
        elements = tuple(data.ravel().tolist()) if data.size <= MAX_COMPARED else (None,)
        if COMPARED.issuperset(map(type, elements)):
            if any(type(each) is Expr and each.constant is not None for each in elements):  # they equal ints, as a key
                elements = tuple(plain_element(each) if type(each) is Expr else each for each in elements)
                tensor = tensor.with_contents(tensor.dims, array_of(elements, data.shape))
            key = tensor.dtype, tensor.dims, tensor.reason, data.shape, elements
    if key is None or tensor.dims is None:
        return tensor
    if len(_TENSORS) >= MAX_KNOWN:
        _TENSORS.clear()
    return _TENSORS.setdefault(key, tensor)


def result_key(rule: Rule, node: Node, inputs: Sequence[Tensor | None]) -> Hashable | None:
    """Return all that a rule of graphkit's own sees of a node; None for rules that see more."""
    return None if node.op_type in UNLIKE or not _is_own(rule) else (node.signature, *map(id, inputs))


@lru_cache(maxsize=1024)
def _is_own(rule: Rule) -> bool:
    return str(getattr(rule, "__module__", "")).startswith("graphkit.ops.")


def keep_results(
    key: Hashable, ctx: InferenceContext, results: Sequence[Tensor], symbols: int, mark: Sequence[int]
) -> None:
    """Keep what a rule said beyond some symbols and a mark of the notes, unless that names something of its node."""
    notes = ctx.notes
    if len(notes.reasons) > symbols or len(notes.findings) > mark[0]:
        return
    if any(type(each) is not Tensor or each.is_unread for each in (*ctx.inputs, *results) if each is not None):
        return  # it would keep its model
    noted: list[tuple[int, Any]] = []  # without the node
    for at, listed in enumerate(notes.lists):
        for each in listed[mark[at] :]:
            is_relation = isinstance(each, Requirement)
            noted.append((at, Relation(each.left, each.relation, each.right) if is_relation else each[1]))
    if len(KNOWN_RESULTS) >= MAX_KNOWN:
        KNOWN_RESULTS.clear()
    KNOWN_RESULTS[key] = Known(tuple(ctx.inputs), results, noted)


# The dims of whose inputs go together in other ways.
APART = PRESERVING | PICKING | operator_set("Einsum Gemm MatMul OneHot")


def related_groups(model: Model, groups: Groups, apart: Collection[Group]) -> dict[str, list[Group]]:
    """Return groups of dims of one name, joined where a node relates them, but for those that are to stay apart."""
    declared = DeclaredInputs.of(model, groups)
    inputs = Inputs(model, declared=declared)
    joined = _join_groups(_zero_differences(infer_roughly(model, inputs)), declared, groups, apart)
    if any(len(parts) > 1 for parts in joined.values()):  # what further passes learn may relate others
        joined = _join_groups(_zero_differences(infer_from(model, inputs)), declared, groups, apart)
    return joined


def _join_groups(
    known_facts: Iterable[Expr], declared: DeclaredInputs, groups: Groups, apart: Collection[Group]
) -> dict[str, list[Group]]:
    symbols = {declared.at(group[0]): (name, group in apart) for name, parts in groups.items() for group in parts}
    facts = list(known_facts)
    one: dict[str, Expr] = {}  # the symbol that another one equals, by its name
    while equal := next(filter(None, (_equal_symbols(fact, symbols) for fact in facts)), None):
        one |= equal
        facts = [fact.substitute(equal) for fact in facts]
    joined: dict[str, dict[Expr, list[Place]]] = {name: {} for name in groups}
    for name, parts in groups.items():
        for group in parts:
            known = declared.at(group[0])
            while known.name in one:
                known = one[known.name]
            joined[name].setdefault(known, []).extend(group)
    return {name: [tuple(places) for places in parts.values()] for name, parts in joined.items()}


def _equal_symbols(fact: Expr, symbols: Mapping[Expr, tuple[str, bool]]) -> dict[str, Expr]:
    """Return symbols of one name that a fact says to be equal: two of them, or else as many as there are."""
    by_name: dict[str, list[Expr]] = {}
    for known, (name, is_apart) in symbols.items():
        if known.symbols <= fact.symbols:
            by_name.setdefault(name, []).insert(0 if is_apart else len(symbols), known)
    pairs = [pair for known in by_name.values() for pair in combinations(known, 2) if not symbols[pair[1]][1]]
    if any(_cuts_dim(fact, first.symbols | second.symbols) for first, second in pairs):
        return {}
    every = {str(second.name): first for first, second in reversed(pairs)}
    choices = [*({str(second.name): first} for first, second in pairs), every]
    return next((choice for choice in choices if fact.terms and fact.substitute(choice) == 0), {})


def _cuts_dim(expr: Expr, names: Collection[str]) -> bool:
    """Whether one of two dims is divided by the other: what is cut into pieces is as large as all of these, always."""
    calls = [atom for monomial, _ in expr.terms for atom in monomial if isinstance(atom, Call)]
    divisions = [call for call in calls if call.op in ("//", "%")]
    is_cut = any({*names} <= call.args[0].symbols | call.args[1].symbols for call in divisions)
    return is_cut or any(_cuts_dim(arg, names) for call in calls for arg in call.args)


def _zero_differences(shapes: inferred_shapes.Shapes) -> Iterator[Expr]:
    """Yield differences that are 0 wherever nodes run, or where they do not broadcast."""
    noted = (*shapes.equalities, *shapes.broadcasts)
    pairs = dict.fromkeys([*((fact.left, fact.right) for fact in noted), *_at_one_axis(shapes)])
    for left, right in pairs:
        with suppress(TooComplexError):
            difference = left - right
            if len(difference.symbols) > 1:
                yield difference


def _at_one_axis(shapes: inferred_shapes.Shapes) -> Iterator[tuple[Expr, Expr]]:
    """Yield the dims of inputs of one node that are at the same axis, where it computes with both."""
    for node in all_nodes(shapes.model.scopes):
        if node.operator in APART:
            continue
        every = [dims for value in node.operands if (dims := shapes[value].dims) is not None and len(dims) > 1]
        joined = node.axis(len(every[0])) if joined_parts(node) and every else None
        for left, right in combinations(every, 2):
            yield from (pair for axis, pair in enumerate(zip(left, right, strict=False)) if axis != joined)
