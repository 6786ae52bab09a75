"""A node applied to terms, which is the question to an axiom; and a model as terms."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy

import onnx
from msgspec import Struct, field
from msgspec.structs import replace
from onnx import AttributeProto, NodeProto, TensorProto

from graphkit.equivalence.movement import Movement
from graphkit.equivalence.sizes import RequiredProducts
from graphkit.equivalence.terms import Constants, Key, RealConstants, Term, Terms, without_reshape
from graphkit.graph.operator_traits import schema_of
from graphkit.graph.view import Node, Scope, T, Value
from graphkit.io.tensors import attribute_tensors, is_in_a_file
from graphkit.model import Model
from graphkit.ops.rule_context import UnknownError
from graphkit.ops.tensor import MAX_ELEMENTS, Dims
from graphkit.shapes import Expr

Result = Term | str | None  # of an axiom: the normal form, what was missing, or nothing to say
Names = Mapping[str, str]  # what inputs and outputs of a rewritten model are called in its original

Formal = onnx.defs.OpSchema.FormalParameterOption
GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
FIELDS = {
    AttributeProto.INT: "i", AttributeProto.STRING: "s", AttributeProto.INTS: "ints", AttributeProto.STRINGS: "strings",
}  # fmt: skip


class Tools(Struct, frozen=True):
    """The makers of terms, which axioms call, and the products of dims that the original requires."""

    terms: Terms
    constants: Constants
    movement: Movement
    reals: RealConstants
    required: RequiredProducts

    @classmethod
    def of(cls, constants: Constants, required: RequiredProducts) -> Tools:
        """Return the tools for one table of terms, that of the constants."""
        terms = constants.terms
        return cls(terms, constants, Movement(terms, constants), RealConstants(constants), required)


class Application(Struct, frozen=True, eq=False):
    """One output of a node, with terms as its inputs."""

    node: Node
    attributes: Key  # the canonical ones, defaults left out
    args: Sequence[Term | None]
    index: int
    dtype: int
    dims: Dims | None  # of the output; None if some are not known
    tools: Tools
    has_sign: bool = True  # whether the sign of zeros in the output matters
    is_real: bool = False  # whether it is read in exact arithmetic, where that sign never matters

    @property
    def shape(self) -> Dims:
        """The dims of the output, which must be known."""
        if self.dims is None:
            raise UnknownError("some dims are not known")
        return self.dims

    @property
    def opset(self) -> int:
        """The version of the default operator set."""
        return self.node.scope.opset()

    def attr(self, name: str, default: T) -> T:
        """Return the value of an attribute, which must be of the kind of its default."""
        if (value := self.node.attr(name, default)) is None:
            raise UnknownError(f"its attribute '{name}' is of another kind")
        return value

    def make_term(self, op: str, args: Iterable[Term | None], dims: Iterable[Expr] | None) -> Term:
        """Return a term of other arguments, with the attributes of this one."""
        return self.tools.terms.make(op, (*self.attributes, self.index), args, self.dtype, dims)

    def other_operator(self, op: str, version: int, args: Sequence[Term | None], dims: Dims | None) -> Application:
        """Return another operator on terms, with the dtype of this one."""
        node = Node(NodeProto(op_type=op, name=self.node.proto.name, output=["y"]), self.node.scope, self.node.index)
        return replace(self, node=node, attributes=(("", 0, version),), args=list(args), index=0, dims=dims)

    def arg(self, index: int) -> Term | None:
        """Return an argument, None if it is left out."""
        return self.args[index] if index < len(self.args) else None

    def operand(self, index: int) -> Term:
        """Return an argument, which must be given."""
        if (term := self.arg(index)) is None:
            raise UnknownError(f"input {index} is left out")
        return term

    def front_axes(self, listed: Sequence[int], rank: int) -> list[int]:
        """Return axes counted from the front, each of which must be in range, and none twice."""
        found = [axis % rank for axis in listed if -rank <= axis < rank]
        if len({*found}) < len(listed):
            raise UnknownError("its axes are not known")
        return found

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the front, which must be in range."""
        return self.front_axes([axis], rank)[0]

    def elements(self, index: int) -> tuple[Expr, ...]:
        """Return the elements of a small integer argument, which must be known."""
        if (found := self.elements_of(self.operand(index))) is None:
            raise UnknownError(f"the elements of input {index} are not known")
        return found

    def elements_of(self, term: Term) -> tuple[Expr, ...] | None:
        """Return the elements of a small integer term, None if they are not known."""
        if term.op == "Elements":
            return term.attributes[2]  # type: ignore[return-value]
        if not term.is_constant or (array := self.tools.constants.array(term)) is None:
            return None
        is_small = array.dtype.kind in "iu" and array.size <= MAX_ELEMENTS
        return tuple(Expr.of(int(each)) for each in array.ravel()) if is_small else None

    def numbers(self, index: int) -> list[int]:
        """Return the elements of a small integer argument, which must be numbers."""
        found = [each.constant for each in self.elements(index)]
        if None in found:
            raise UnknownError(f"the elements of input {index} depend on sizes")
        return [each for each in found if each is not None]

    def listed_numbers(self, name: str) -> list[int] | None:
        """Return the numbers of the second argument, or of the attribute that it was once; None without either."""
        if self.arg(1) is not None:
            return self.numbers(1)
        return None if name not in self.node.attributes else [*self.attr(name, ())]


def version_of(node: Node) -> int:
    """Return since which version its operator is as it is, that of its domain where onnx does not know it."""
    schema = schema_of(node)
    return node.scope.opset(node.domain) if schema is None else schema.since_version


def attributes_of(node: Node, of_tensor: Callable[[TensorProto], Term] | None = None) -> Key:
    """Return the attributes of a node in one order, without those that have their default value.

    Tensors in files beside the model are known by their terms, unless it makes no difference what they hold.
    """
    schema = schema_of(node)
    found: list[tuple[str, int, object]] = [("", 0, version_of(node))]
    for name, attribute in node.attributes.items():
        if attribute.type in GRAPHS:
            continue
        content = _attribute_content(attribute)
        outside = [tensor for tensor, _ in attribute_tensors(attribute) if is_in_a_file(tensor)]
        if outside and of_tensor is not None:
            content = content, tuple(of_tensor(tensor).attributes for tensor in outside)
        declared = schema.attributes.get(name) if schema is not None else None
        default = None if declared is None else declared.default_value
        if default is None or default.type != attribute.type or content != _attribute_content(default):
            found.append((name, attribute.type, content))
    return tuple(sorted(found, key=lambda each: each[0]))


def _attribute_content(attribute: AttributeProto) -> object:
    if attribute.ref_attr_name:
        return "reference", attribute.ref_attr_name
    if attribute.type == AttributeProto.FLOAT:
        return struct.pack("<f", attribute.f)
    if attribute.type == AttributeProto.FLOATS:
        return struct.pack(f"<{len(attribute.floats)}f", *attribute.floats)
    if attribute.type in FIELDS:
        value = getattr(attribute, FIELDS[attribute.type])
        return value if isinstance(value, (int, bytes)) else tuple(value)
    bare = deepcopy(attribute)
    bare.ClearField("doc_string")
    return bare.SerializeToString(deterministic=True)


# A model as terms: what its values stand for, and which nodes run under which conditions.

Context = tuple[tuple[Term, str], ...]  # the conditions under which a node runs, outermost first


class Run(Struct, frozen=True, eq=False):
    """A node that runs under conditions."""

    context: Context
    raw: Term  # its term before any axiom
    application: Application
    normal: Term  # its term in normal form

    @property
    def core(self) -> Term:
        """The normal form without other dims around it."""
        return without_reshape(self.normal) or self.normal


class Reading(Struct):
    """A model as terms."""

    model: Model
    values: dict[Value, Term] = field(default_factory=dict)  # the term of each value that was read
    runs: list[Run] = field(default_factory=list)  # each node that runs
    unread: list[Scope] = field(default_factory=list)  # branches that never run
    nodes: list[Node] = field(default_factory=list)  # those that run, of all scopes
