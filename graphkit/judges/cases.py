"""Cases: models of one operator, of which a judge is asked; from onnx's own test models, and from nodes of exports.

Each is varied: other dtypes, more axes, older opsets, operands that are constant or computed, dims that are symbols.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from msgspec import Struct
from msgspec.structs import replace
from onnx import NodeProto, TensorProto, checker, defs, helper, numpy_helper, shape_inference

from graphkit.graph.operator_traits import value_inputs
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.ops.tensor import element_numbers
from graphkit.passes.opset.convert_opset import ConvertOpset
from graphkit.shapes import Shapes

NAME = "case"  # of the node that is asked about
NAMES = "FLOAT FLOAT16 INT64 INT32 BOOL INT8 UINT8 DOUBLE BFLOAT16"
DTYPES: tuple[int, ...] = tuple(map(TensorProto.DataType.Value, NAMES.split()))
OPSETS = range(9, 29)
MOST_BYTES = 1 << 20  # of a constant operand
MORE_AXES = (1, 2, 3)
EXPORTED = 18  # the version of the operator set that most exports have
SEEDS = 5  # test models of an operator that are varied


class Operand(Struct, frozen=True, eq=False):
    """An operand of a case."""

    name: str
    dtype: int
    dims: tuple[int, ...]
    array: np.ndarray | None = None  # its elements, None where they are not known
    is_constant: bool = False  # whether the model has them
    is_read: bool = False  # whether its elements decide shapes, as those of an axis

    def elements(self) -> np.ndarray:
        dtype = helper.tensor_dtype_to_np_dtype(self.dtype)
        return np.ones(self.dims, dtype) if self.array is None else self.array.astype(dtype).reshape(self.dims)


class Case(Struct, frozen=True, eq=False):
    """A node with its operands."""

    node: NodeProto
    opset: int
    operands: tuple[Operand | None, ...]
    outputs: tuple[tuple[int, tuple[int, ...]], ...] = ()  # dtype and dims of each, where onnx cannot infer them
    is_dynamic: bool = False

    def schema(self) -> defs.OpSchema | None:
        known = defs.has(self.node.op_type, max_inclusive_version=self.opset, domain=self.node.domain)
        return defs.get_schema(self.node.op_type, self.opset, self.node.domain) if known else None

    def feed(self) -> dict[str, np.ndarray]:
        """Return what its model can be run on."""
        return {each.name: each.elements() for each in self.operands if each is not None and not each.is_constant}

    def model(self) -> onnx.ModelProto | None:
        inputs, constants = [], []
        for operand in {operand.name: operand for operand in self.operands if operand is not None}.values():
            if operand.is_constant:
                constants.append(numpy_helper.from_array(operand.elements(), operand.name))
            else:
                names = [f"{operand.name}_{axis}" for axis in range(len(operand.dims))]
                dims = names if self.is_dynamic else operand.dims
                inputs.append(helper.make_tensor_value_info(operand.name, operand.dtype, dims))
        if not inputs:
            return None
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(self.node.domain, 1)] if self.node.domain else []
        empty = [helper.make_empty_tensor_value_info(name) for name in self.node.output if name]
        graph = helper.make_graph([self.node], "g", inputs, empty, constants)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=min(10, 8 + (self.opset > 20)))
        try:
            model = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
            for value, (dtype, dims) in zip(model.graph.output, self.outputs, strict=False):
                if not value.type.tensor_type.elem_type:
                    value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, None if self.is_dynamic else dims))
            checker.check_model(model)
        except (checker.ValidationError, shape_inference.InferenceError):
            return None
        return model


def library_cases() -> Iterator[Case]:
    """Yield cases of onnx's test models: most operators of the specification, by the attributes that they may have."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        tests: Any = collect_testcases(None)
    met: dict[str, set[object]] = {}
    for test in tests:
        nodes: Any = test.model.graph.node if test.model is not None else ()
        given: Any = test.data_sets[0][0] if test.data_sets else []
        arrays = [numpy_helper.to_array(each) if isinstance(each, TensorProto) else each for each in given]
        is_plain = all(isinstance(array, np.ndarray | np.generic) and array.dtype.kind not in "OSU" for array in arrays)
        if len(nodes) != 1 or nodes[0].domain or not arrays or not is_plain:
            continue
        kinds = met.setdefault(nodes[0].op_type, set())
        kind = ({attribute.name for attribute in nodes[0].attribute}, [*map(bool, nodes[0].input)])
        if str(kind) in kinds or len(kinds) == SEEDS:
            continue
        kinds.add(str(kind))
        names = [value.name for value in test.model.graph.input]
        opset = next(each.version for each in test.model.opset_import if not each.domain)
        case = _make_case(nodes[0], opset, dict(zip(names, map(np.asarray, arrays), strict=False)))
        yield _with_opset(case, EXPORTED) or case


def _named_node(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = NAME
    return copy


def _make_case(node: NodeProto, opset: int, arrays: Mapping[str, np.ndarray]) -> Case:
    copy = _named_node(node)
    copy.output[:] = [name or f"output_{index}" for index, name in enumerate(node.output)]  # as exports have them
    text = helper.make_model(helper.make_graph([copy], "g", [], []), opset_imports=[helper.make_opsetid("", opset)])
    read = value_inputs(Model.from_proto(text).graph.nodes[0])
    operands: list[Operand | None] = []
    for index, name in enumerate(node.input):
        if not name:
            operands.append(None)
            continue
        array, is_read = arrays[name], index in read
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        operands.append(Operand(name, dtype, array.shape, array, is_constant=is_read, is_read=is_read))
    return Case(copy, opset, tuple(operands))


def model_cases(shapes: Shapes) -> Iterator[tuple[Node, Case]]:
    """Yield a case for each node of a model whose shapes are numbers; large constants become ones."""
    model = shapes.model
    for node in model.graph.nodes:
        operands = [_operand_of(value, node, index, shapes) for index, value in enumerate(node.inputs)]
        outputs = [(shapes[value].dtype or 0, shapes[value].sizes()) for value in node.results]
        known = tuple((dtype, tuple(dims)) for dtype, dims in outputs if dims is not None and dtype)
        is_known = all(each is not None or value is None for each, value in zip(operands, node.inputs, strict=True))
        is_folded = set(node.results) <= model.shape_tensors.derived  # no compiler gets to place it
        if not node.bodies and is_known and len(known) == len(outputs) and not is_folded:
            yield node, Case(_named_node(node.proto), node.scope.opset(), tuple(operands), known)


def kind_of(case: Case) -> object:
    """Return what two nodes have in common about which a judge need not be asked twice."""
    tensors = tuple(op and (op.dtype, op.is_constant, *(size == 1 for size in op.dims)) for op in case.operands)
    attributes = tuple(sorted(attribute.SerializeToString() for attribute in case.node.attribute))
    return case.node.domain, case.node.op_type, case.opset, attributes, tensors


def _operand_of(value: Value | None, node: Node, index: int, shapes: Shapes) -> Operand | None:
    if value is None:
        return None
    dims, dtype, is_read = shapes[value].sizes(), shapes[value].dtype, index in value_inputs(node)
    if dims is None or not dtype:
        return None
    array = element_numbers(shapes[value]) if is_read else None
    if value.constant is not None and (is_read or np.prod(dims) * 8 <= MOST_BYTES):
        array = shapes.model.array(value.constant)
    is_constant = value in shapes.model.shape_tensors.derived and (array is not None or not is_read)  # once folded
    return Operand(value.name, dtype, tuple(dims), array, is_constant=is_constant, is_read=is_read)


def varied_cases(case: Case, *, is_first: bool = True) -> Iterator[Case]:
    """Yield a case and its variants; the first one of an operator has all of them."""
    yield case
    tensors = [operand for operand in case.operands if operand is not None]
    constant = {operand.name for operand in tensors if operand.is_constant}
    others = {operand.name for operand in tensors[1:]}  # all but the data
    for names in [*(constant ^ {operand.name} for operand in tensors), others]:
        changed = _change_operands(case, lambda each, names=names: replace(each, is_constant=each.name in names))
        yield replace(case, operands=changed)

    def double_ones(operand: Operand) -> Operand:  # such as the steps of a Slice
        array = operand.array if operand.is_read else None
        is_one = array is not None and array.size > 0 and (array == 1).all()
        return replace(operand, array=operand.elements() * 2) if is_one else operand

    doubled = _change_operands(case, double_ones)
    if doubled != case.operands:
        yield replace(case, operands=doubled, outputs=())
    if is_first:
        yield replace(case, is_dynamic=True)
        yield from (_with_axes(case, count) for count in MORE_AXES)
        yield from _with_dtypes(case)
        schema, node = case.schema(), case.node
        if schema is None or node.domain:
            return
        for opset in OPSETS:
            known = defs.has(node.op_type, max_inclusive_version=opset)
            since = defs.get_schema(node.op_type, opset, "").since_version if known else 0
            if since == opset != schema.since_version and (older := _with_opset(case, opset)) is not None:
                yield older


def _change_operands(case: Case, change: Any) -> tuple[Operand | None, ...]:
    return tuple(None if operand is None else change(operand) for operand in case.operands)


def _with_axes(case: Case, count: int) -> Case:
    """Return a case with more axes in front, of length 2; whether it is valid shows later."""
    data = case.operands[0]
    rank = 0 if data is None else len(data.dims)
    node = _named_node(case.node)
    for attribute in node.attribute:
        if attribute.name == "axis" and attribute.i >= 0:
            attribute.i += count
        elif attribute.name == "perm":
            attribute.ints[:] = [*range(count), *(axis + count for axis in attribute.ints)]
        elif attribute.name == "axes":
            attribute.ints[:] = [axis + count * (axis >= 0) for axis in attribute.ints]

    def widen_operand(operand: Operand) -> Operand:
        if operand.is_read or len(operand.dims) != rank:
            return operand
        dims = (*[2] * count, *operand.dims)
        array = None if operand.array is None else np.broadcast_to(operand.array, dims)
        return replace(operand, dims=dims, array=array)

    return replace(case, node=node, operands=_change_operands(case, widen_operand), outputs=())


def _with_dtypes(case: Case) -> Iterator[Case]:
    """Yield a case with the other dtypes that its data may have."""
    schema = case.schema()
    if schema is None or not schema.inputs:
        return
    formals = [schema.inputs[min(index, len(schema.inputs) - 1)] for index in range(len(case.operands))]
    for variable in dict.fromkeys(formal.type_str for formal in formals):
        allowed = [each for each in schema.type_constraints if each.type_param_str == variable]
        for dtype in DTYPES if allowed else ():
            kind = f"tensor({onnx.TensorProto.DataType.Name(dtype).lower()})"
            if kind not in allowed[0].allowed_type_strs:
                continue
            operands = tuple(
                operand and (replace(operand, dtype=dtype) if formal.type_str == variable else operand)
                for operand, formal in zip(case.operands, formals, strict=True)
            )
            yield (typed := replace(case, operands=operands, outputs=()))
            for result in DTYPES if any(attribute.name == "to" for attribute in case.node.attribute) else ():
                node = _named_node(case.node)  # an attribute is the dtype of its result
                next(attribute for attribute in node.attribute if attribute.name == "to").i = result
                yield replace(typed, node=node)


def _with_opset(case: Case, opset: int) -> Case | None:
    """Return a case in another version of the operator set, None where it has no equal there."""
    if case.opset == opset:
        return case
    if case.opset < opset:
        return replace(case, opset=opset)
    model = case.model()
    outcome = ConvertOpset(opset).run(Model.from_proto(model)) if model is not None else None
    nodes = outcome.model.graph.nodes if outcome is not None and not outcome.declined else ()
    operands = {operand.name: operand for operand in case.operands if operand is not None}
    names = [value.name if value is not None else "" for node in nodes for value in node.inputs]
    if len(nodes) != 1 or not set(filter(None, names)) <= set(operands):
        return None
    return Case(_named_node(nodes[0].proto), opset, tuple(operands.get(name) for name in names))


def distinct_cases(cases: Iterable[Case]) -> Iterator[tuple[Case, onnx.ModelProto]]:
    """Yield each case that is valid, with its model; equal models once."""
    met = set()
    for case in cases:
        model = case.model()
        if model is not None and (content := hash(model.SerializeToString(deterministic=True))) not in met:
            met.add(content)
            yield case, model
