"""Inputs for a run: token ids within the vocabulary, masks with real padding, floats from a seeded generator.

A `Draw` says which elements: the usual ones, or those at the edges of a dtype and role, as far as an input may have
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from onnx import TensorProto

from graphkit.dtypes import BITS, FLOATS, INTEGERS, dtype_name
from graphkit.errors import ModelError, UsageError
from graphkit.graph.dataflow import find_lookups, find_readers, lookup_axis, moves_elements, table_entries
from graphkit.graph.declared_types import TensorType, declared_type, type_text
from graphkit.graph.mask_polarity import TOTALS, mask_elements
from graphkit.graph.operator_traits import GATHERING, MEASURING, copied_inputs, value_inputs
from graphkit.graph.roles import MASKS, Role
from graphkit.graph.view import Node, Value, all_nodes, follow_chain, walk_breadth_first
from graphkit.model import Model, ModelLike, as_model
from graphkit.progress import DEFAULT_LIMITS
from graphkit.shapes import Expr, declarations, infer
from graphkit.shapes.constraints.legal_sizes import Sizes as Sizes
from graphkit.shapes.constraints.legal_sizes import input_shapes, symbol_roles
from graphkit.verify.input_elements import (
    UNPADDED,
    USUAL,
    Draw,
    Kind,
    Marks,
    draw_array,
    edges_of,
    float_mask,
    image_mask,
    marks_of,
    padding_mask,
    with_specials,
)

SPECIALS = (0, 1, 2, 3)  # padding, start, end, unknown, in one order or another
SMALL_VOCABULARY = 8  # ids to draw from where the vocabulary is unknown
POSITIONS = 4096  # to draw from where no table ends
MAX_ELEMENTS = 1 << 46  # of an array without elements, not counting its empty dims
INDEX_ROLES: tuple[Role, ...] = ("tokens", "encoder tokens", "positions", "token types", "condition")
MASK_TYPES = {TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL}
DRAWN: Mapping[int, int] = {  # dtype -> numbers to draw from, where nothing says more
    **dict.fromkeys((TensorProto.INT16, TensorProto.INT32, TensorProto.INT64), SMALL_VOCABULARY),
    **dict.fromkeys((TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64), SMALL_VOCABULARY),
    TensorProto.INT8: 100,
    TensorProto.UINT8: 256,
}
NARROW_INTEGERS: Mapping[int, tuple[int, int]] = {TensorProto.UINT4: (0, 16), TensorProto.INT4: (-8, 8)}
NARROW_FLOATS = {TensorProto.BFLOAT16, *range(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2FNUZ + 1)}
NARROW_FLOATS |= {TensorProto.FLOAT4E2M1}
SEARCH = {"max_length": 20, "min_length": 1, "num_beams": 2, "num_return_sequences": 1}  # of BeamSearch and its kin
# Operators that take the count of a row's ones for the end of its cache: padding may not reach into the new tokens.
COUNTING = {"GroupQueryAttention", "SparseAttention", "PagedAttention"}
HARMLESS = ("axis", "axes", "starts", "ends")  # onnxruntime refuses, or clamps, those that do not exist
CHECKED = ("", "ai.onnx", "ai.onnx.ml")  # domains of operators that check their indices
UNCHECKED = ("MaxUnpool", "RotaryEmbedding", "TensorScatter")  # what onnxruntime may not check the indices of


class TooLargeError(ModelError):
    """The inputs of a run would take more memory than inputs may."""


class InputGenerator:
    """Makes inputs for one model.

    Args:
        model: The model, or its path.
        seed: Of the generator; the same seed and sizes give the same inputs.
        others: Models that take the same inputs; numbers that their nodes compare with are edges too.
        most: Bytes that the inputs of one run may take.
        is_unpadded: Whether masks hide nothing.
    """

    def __init__(
        self,
        model: ModelLike,
        seed: int = 0,
        *,
        others: Iterable[Model] = (),
        most: int = DEFAULT_LIMITS.inputs(),
        is_unpadded: bool = False,
    ) -> None:
        model = as_model(model)
        self.model, self.seed, self.is_unpadded = declarations(model).model, seed, is_unpadded
        self.bounds = {value.name: index_bound(value, self.model) for value in self.model.graph.inputs}
        self.tables = {value.name: [*_table_lengths(value, self.model)] for value in self.model.graph.inputs}
        self.counts_masks = any(node.op_type in COUNTING for node in all_nodes(self.model.scopes))
        self._others, self._most = tuple(others), most

    @cached_property
    def marks(self) -> Marks:
        """The numbers that nodes compare with."""
        marks = Marks()
        for model in (self.model, *self._others):
            marks |= marks_of(model)
        return marks

    @cached_property
    def steering_inputs(self) -> frozenset[str]:
        """The inputs that decide sizes or loops, whose elements stay usual."""
        deciding, trusted = steering_values(self.model)
        kinds = {value: declared_type(value) for value in self.model.roles.inputs}
        integers = {value for value, declared in kinds.items() if declared is not None and declared.dtype in INTEGERS}
        return frozenset(value.name for value in kinds if value in (trusted if value in integers else deciding))

    @cached_property
    def takes_numbers(self) -> bool:
        """Whether masks take numbers other than 0 and 1, and no operator takes their sums for the ends of rows."""
        masks = (declared_type(value) for value in self.model.roles.all("mask", "encoder mask"))
        kinds = {declared.dtype for declared in masks if declared is not None}
        return bool(kinds - {TensorProto.BOOL}) and not self.counts_masks

    @cached_property
    def counting_inputs(self) -> tuple[str, ...]:
        """The integers among these of whose legal values nothing is known, such as the end of a Range."""
        inputs = [value for value in self.model.roles.all("other") if value.name in self.steering_inputs]
        kinds = {value.name: declared_type(value) for value in inputs if value.name not in SEARCH}
        return tuple(name for name, kind in kinds.items() if kind is not None and kind.dtype in DRAWN)

    @cached_property
    def has_float_masks(self) -> bool:
        """Whether a mask is of floats."""
        kinds = map(declared_type, self.model.roles.all(*MASKS))
        return any(kind is not None and kind.dtype in FLOATS for kind in kinds)

    def has_edges(self, value: Value, draw: Draw) -> bool:
        """Whether an input gets other elements with this draw than the usual ones."""
        declared, role = declared_type(value), self.model.roles.of(value)
        if declared is None or draw.kind == "usual" or draw.only not in ("", value.name):
            return False
        if role in MASKS or declared.dtype in (TensorProto.BOOL, TensorProto.STRING, *NARROW_INTEGERS):
            return False
        if value.name.endswith("_penalty") or value.name in SEARCH or value.name in self.steering_inputs:
            return False
        if declared.dtype in DRAWN and (self._is_bounded(value) or role in INDEX_ROLES):
            return role in ("tokens", "encoder tokens", "positions", "other") and draw.kind == "edges"
        return declared.dtype not in DRAWN or draw.kind != "not finite"

    def draws(self, kind: Kind, shapes: Mapping[str, tuple[int, ...] | None]) -> int:
        """Return how many runs show each edge of a kind at least once, 0 where no input has such edges."""
        draw, most = Draw(kind), 0
        for value in self.model.roles.inputs:
            declared = declared_type(value)
            if value.name not in shapes or declared is None or not self.has_edges(value, draw):
                continue
            is_index = self.model.roles.of(value) in INDEX_ROLES or self._is_bounded(value)
            edges = 1 if is_index else len(edges_of(declared.numpy_dtype, draw, self.marks))
            most = max(most, -(-edges // max(math.prod(shapes[value.name] or ()), 1)))
        return most

    def make(self, sizes: Sizes, given: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Return an array for each input without a default; those given are as they are. Raises ModelError for none."""
        return self.arrays(self.shapes(sizes), past=sizes.past, given=given)

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...] | None]:
        """Return the shape of each input of the model, None where its rank is not known."""
        return input_shapes(self.model, sizes, symbol_roles(self.model))

    def arrays(
        self,
        shapes: Mapping[str, tuple[int, ...] | None],
        *,
        past: int = 0,
        given: Mapping[str, np.ndarray] | None = None,
        seed: int = 0,
        draw: Draw = USUAL,
    ) -> dict[str, np.ndarray]:
        """Return an array of a given shape for each input of the model that has no default, those given as they are.

        Positions begin at `past`, the number of those in the KV cache; `seed` is added to that of the maker. Raises
        ModelError where no array can be made; TooLargeError where they would take more memory than inputs may.
        """
        rng, total, known = np.random.default_rng(self.seed + seed), 0, given or {}
        for value in self.model.roles.inputs:
            shape, declared = shapes.get(value.name), declared_type(value)
            if shape is None or declared is None or value.name in known:
                continue
            total += max(BITS.get(declared.dtype, 64) // 8, 1) * math.prod(shape)
            if total > self._most or math.prod(filter(None, shape)) > MAX_ELEMENTS:  # numpy holds no dims above 2**63
                problem = f"no input can be made for it: {list(shape)} is too large"
                hint = "give smaller sizes with --dim or --input"
                raise TooLargeError(problem, file=self.model.label, tensor=value.name, hint=hint)
        feed: dict[str, np.ndarray] = {}
        for value in self.model.roles.inputs:
            if (array := known.get(value.name)) is not None:
                feed[value.name] = array
                continue
            lengths = self.tables[value.name]
            sizes = self._symbol_sizes(shapes) if lengths else {}
            rows = [int(length.evaluate(sizes)) for length in lengths if length.symbols <= sizes.keys()]
            bounds = [*rows, *filter(None, [self.bounds[value.name]])]
            bound = max(min(bounds), 1) if bounds else None
            feed[value.name] = self.array(value, shapes.get(value.name), rng, past=past, draw=draw, bound=bound)
        return feed

    def array(
        self,
        value: Value,
        shape: tuple[int, ...] | None,
        rng: np.random.Generator,
        *,
        past: int = 0,
        draw: Draw = USUAL,
        bound: int | None = None,
    ) -> np.ndarray:
        """Return an array for one input, for a KV cache of `past` positions. Raises ModelError where none can be made.

        Integers that are indices are below `bound`; where that is None, they are rows of the tables that they look up
        in.
        """
        bound = self.bounds[value.name] if bound is None else bound
        array = self._make_array(value, shape, past, rng, draw, bound)
        if self.has_edges(value, draw) and bound is None and self.model.roles.of(value) not in INDEX_ROLES:
            array = draw_array(array, edges_of(array.dtype, draw, self.marks), rng, draw)
        return array

    def _symbol_sizes(self, shapes: Mapping[str, tuple[int, ...] | None]) -> dict[str, int]:
        inferred, values = infer(self.model), self.model.graph.values
        dims = ((inferred[values[name]].dims or (), shape) for name, shape in shapes.items() if shape is not None)
        return {dim.name: size for pair in dims for dim, size in zip(*pair, strict=False) if dim.name is not None}

    def _is_bounded(self, value: Value) -> bool:
        return self.bounds[value.name] is not None or bool(self.tables[value.name])

    def _make_array(
        self,
        value: Value,
        shape: tuple[int, ...] | None,
        past: int,
        rng: np.random.Generator,
        draw: Draw,
        bound: int | None,
    ) -> np.ndarray:
        declared, role = declared_type(value), self.model.roles.of(value)
        if declared is None or shape is None:
            why, hint = "its shape or type is not declared", "declare the shape of this input"
            info = self.model.graph.infos.get(value.name)
            if info is not None and info.type.WhichOneof("value") not in (None, "tensor_type"):
                why, hint = f"it is {type_text(info.type)[0]}", "only tensors can be made up"
            problem = f"no input can be made for it: {why}"
            raise ModelError(problem, file=self.model.label, tensor=value.name, hint=hint)
        dtype, kind = declared.dtype, declared.numpy_dtype
        if role in MASKS and self.is_unpadded:
            draw = replace(draw, padding=UNPADDED.padding)
        polarity = self.model.roles.polarities[value] if role in MASKS else None
        if role in MASKS and dtype in MASK_TYPES:
            mask = self._mask(role, shape, past, rng, draw)  # which may have other numbers than 0 and 1
            return (mask if polarity in ("keeps", None) else mask_elements(mask, polarity)).astype(kind)
        if role in MASKS and dtype in FLOATS and draw is not USUAL:
            with np.errstate(over="ignore"):
                return float_mask(shape, kind, rng, draw, polarity).astype(kind)
        if dtype in DRAWN:
            return self._draw_integers(value, declared, shape, past, rng, draw, bound).astype(kind)
        if dtype == TensorProto.BOOL:
            return np.zeros(shape, np.bool_) if is_flag(value) else rng.random(shape) < 0.5
        if dtype in NARROW_INTEGERS:
            return rng.integers(*NARROW_INTEGERS[dtype], shape).astype(kind)
        if dtype in FLOATS or dtype in NARROW_FLOATS:
            return (np.ones(shape) if value.name.endswith("_penalty") else rng.standard_normal(shape)).astype(kind)
        if dtype == TensorProto.STRING:
            return rng.choice(np.array(["a", "bc", "a bc", ""], dtype=object), shape)
        raise ModelError(f"no input can be made for it: {dtype_name(dtype)}", file=self.model.label, tensor=value.name)

    def _mask(self, role: Role, shape: tuple[int, ...], past: int, rng: np.random.Generator, draw: Draw) -> np.ndarray:
        if role == "image mask":
            return image_mask(shape, rng, draw)
        if self.counts_masks and len(shape) == 2:
            return padding_mask(shape, rng, shape[-1] - past, UNPADDED if self.is_unpadded else USUAL)
        return padding_mask(shape, rng, draw=draw)

    def _draw_integers(
        self,
        value: Value,
        declared: TensorType,
        shape: tuple[int, ...],
        past: int,
        rng: np.random.Generator,
        draw: Draw,
        bound: int | None,
    ) -> np.ndarray:
        name, role = value.name, self.model.roles.of(value)
        if role == "positions" and self.has_edges(value, draw):
            positions = rng.integers(0, POSITIONS if bound is None else bound, shape)
            positions.reshape(-1)[-1:] = POSITIONS - 1 if bound is None else bound - 1
            return positions
        if role == "positions" and len(shape) == 2:
            positions = np.arange(past, past + shape[1])
            return np.broadcast_to(positions if bound is None else np.minimum(positions, bound - 1), shape)
        if name in SEARCH:
            return np.full(shape, SEARCH[name])
        if not shape:  # how many slots are in use, of those that there are
            slots = past if past and self.model.roles.has_slots else 4
            return rng.integers(0, min(bound or 4, slots, 4), shape)
        if bound is None and role == "token types":
            return np.zeros(shape, np.int64)
        if role in ("tokens", "encoder tokens"):
            known = bound or self.model.roles.vocabulary  # None where any number may be a token
            high = known or SMALL_VOCABULARY
            ids = rng.integers(0, high, shape)
            specials = dict.fromkeys((high - 1, *self.marks.integers, *SPECIALS))  # which models treat in their own way
            chosen = [each for each in specials if each >= 0 and (known is None or each < known)]
            return ids if draw is USUAL else with_specials(ids, chosen, draw)
        high = DRAWN[declared.dtype] if bound is None else bound
        if bound is not None and self.has_edges(value, draw):  # from the end too, which Gather allows
            return rng.choice(np.array([0, bound // 2, bound - 1, -1, -((bound + 1) // 2), -bound]), shape)
        return rng.integers(0, high, shape)


class InputSpec(Struct, frozen=True):
    """An input of a model that was made of an export."""

    name: str  # its name, that of an input of the export
    dtype: str
    takes_tokens: bool = False  # whether it takes tokens, by whatever name the export does
    logits: int | None = None  # how many logits there are, for tokens whose table is not known


class ExportInputs:
    """Makes inputs for models that were made of an export, each as the models of the export would have it."""

    most = 64  # below which number integers are drawn where neither a table nor logits tell more

    def __init__(self, models: Iterable[Model], rng: np.random.Generator) -> None:
        self.rng, self.makers = rng, [InputGenerator(model) for model in dict.fromkeys(models)]

    def array(self, spec: InputSpec, shape: Sequence[int], draw: Draw = UNPADDED) -> np.ndarray:
        """Return an array for an input. Raises UsageError where no model takes it."""
        if not (takers := self._inputs_to_make(spec)):
            raise UsageError(f"none of the models takes an input '{spec.name}' - name their export")
        maker, value = takers[0]
        chosen = draw if maker.model.roles.of(value) in MASKS else USUAL
        return maker.array(value, tuple(shape), self.rng, draw=chosen, bound=self.bound(spec)).astype(spec.dtype)

    def bound(self, spec: InputSpec) -> int | None:
        """Return below which number the integers of an input are drawn, None where nothing limits them.

        That is how many rows the tables have that they are looked up in; for tokens whose table is not known, how many
        logits there are.
        """
        takers = self._inputs_to_make(spec)
        known = [rows for maker, value in takers if (rows := maker.bounds[value.name]) is not None]
        roles = {maker.model.roles.of(value) for maker, value in takers}
        if spec.takes_tokens or "tokens" in roles:
            return min(known, default=spec.logits or self.most)
        return min(known, default=self.most if "other" in roles else None)

    def _inputs_to_make(self, spec: InputSpec) -> list[tuple[InputGenerator, Value]]:
        return [
            (maker, value)
            for maker in self.makers
            for value in maker.model.graph.inputs
            if value.name == spec.name or (spec.takes_tokens and maker.model.roles.of(value) == "tokens")
        ]


def is_flag(value: Value) -> bool:
    """Whether an input is one boolean, such as `use_cache_branch`."""
    declared = declared_type(value)
    return declared is not None and declared.dtype == TensorProto.BOOL and declared.dims in ((), (1,))


def index_bound(value: Value, model: Model) -> int | None:
    """Return the entries of the smallest table of a known length that an input looks up in, None for none.

    What a total of it looks up, as positions that a mask counts, exists where its elements are 0 and 1.
    """

    def computed_entries(node: Node, table: Value) -> int | None:  # such as those of a Range; None where they vary
        dims = infer(model)[table].dims or ()
        axis = lookup_axis(node, len(dims))
        return dims[axis].constant or None if axis is not None and dims else None

    def lowers_none(node: Node, index: int) -> bool:  # of the indices
        raises = node.is_op("Max") or (node.is_op("Clip") and not index and node.input(2) is None)
        return raises or moves_elements(node, index) or index in copied_inputs(node)

    sizes = (table_entries(*lookup) or computed_entries(*lookup) for lookup in find_lookups(value, lowers_none))
    bound = min((size for size in sizes if size is not None), default=None)
    if bound is not None:
        return bound

    def counts(node: Node, index: int) -> bool:
        return moves_elements(node, index) or node.is_op("Add", "Clip", "Mul", "Sub")

    totals = (node.result() for node, index in find_readers(value, counts) if node.is_op(*TOTALS) and not index)
    uses = (use for total in totals for use in find_readers(total, counts))
    return 2 if any(node.is_op(*GATHERING) and index == 1 for node, index in uses) else None


def _table_lengths(value: Value, model: Model) -> Iterator[Expr]:
    for node, index in find_readers(value, moves_elements):
        table = node.input(0)
        if index == 1 and table is not None and node.is_op(*GATHERING):
            dims, places = (infer(model)[each].dims or () for each in (table, node.input(1)))
            axis = node.attr("batch_dims", 0) if node.is_op("GatherND") else node.axis(len(dims))
            count = (places[-1].constant if places else None) if node.is_op("GatherND") else 1
            if axis is not None:  # a row of GatherND has an index for each of so many axes
                yield from dims[axis:] if count is None else dims[axis : axis + count]


def steering_values(model: Model) -> tuple[frozenset[Value], frozenset[Value]]:
    """Return the values whose elements reach a size, a count or a loop; and with them those of unchecked indices."""
    uses = [(node, index) for node in all_nodes(model.scopes) for index, each in enumerate(node.inputs) if each]
    decided = [node.operand(index) for node, index in uses if _decides_runs(node, index)]
    trusted = [node.operand(at) for node, at in uses if node.domain not in CHECKED or node.is_op(*UNCHECKED)]

    def computed_from(reached: Value) -> Sequence[Value]:
        node = reached.producer
        return () if node is None or node.is_op(*MEASURING) else node.operands

    deciding = frozenset(walk_breadth_first(decided, computed_from))
    return deciding, deciding.union(walk_breadth_first(trusted, computed_from))


def _decides_runs(node: Node, index: int) -> bool:
    """Whether an input of a node is a size or a count, or the node is a loop or in one."""
    if (name := value_inputs(node).get(index)) is not None and name not in HARMLESS:
        return True
    return any(around.is_op("Loop", "Scan") for around in follow_chain(node, lambda each: each.scope.owner))
