"""Terms: the values that models compute, each distinct one once, and the constants among them.

A term is an operator, its attributes and its arguments, so that equal terms of two models are one object. Besides, it
has what is known of it: dtype and dims, which are no part of its identity unless its operator (a Reshape, a constant)
is determined by them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable
from contextlib import suppress
from typing import Literal

import numpy as np
from msgspec import Struct, field
from onnx import ModelProto, TensorProto, helper

from graphkit.dtypes import FLOATS
from graphkit.equivalence.result import ComparedConstants
from graphkit.errors import ModelError
from graphkit.graph.operator_traits import CUTTING, PRESERVING
from graphkit.io.byte_source import external_extent
from graphkit.io.tensors import payload_size
from graphkit.matching.value_numbering import ConstantNumbers, place_of
from graphkit.model import Model
from graphkit.ops.rule_context import UnknownError
from graphkit.ops.tensor import Dims, sizes_of
from graphkit.shapes import Expr, const

Key = tuple[Hashable, ...]


class Term:
    """One node of the shared graph of terms. Equal terms are identical.

    Its operator has its domain unless that is the default one; or it is `Input`, `Constant` or `Elements`.
    """

    __slots__ = ("args", "attributes", "dims", "dtype", "nearly", "number", "op", "origins")

    def __init__(self, number: int, op: str, attributes: Key, args: tuple[Term | None, ...]) -> None:
        self.number, self.op = number, op  # the order in which terms were made, the original's first
        self.attributes, self.args = attributes, args  # also its version, output index and target dims
        self.dtype = 0
        self.dims: Dims | None = None  # None if some are not known
        self.origins = ["", ""]  # the node that it stands for in the original and in the rewritten model
        self.nearly = ""  # which axiom nearly held for it, and what was missing

    def __repr__(self) -> str:
        return f"Term({self.op}#{self.number})"

    @property
    def shape(self) -> Dims:
        """Its dims, which must be known."""
        if self.dims is None:
            raise UnknownError("some dims are not known")
        return self.dims

    @property
    def is_constant(self) -> bool:
        """Whether its bytes are known, or where they lie."""
        return self.op == "Constant"


class Terms(Struct):
    """The table of all terms."""

    known: dict[Key, Term] = field(default_factory=dict)
    arrays: dict[Term, np.ndarray] = field(default_factory=dict)  # the elements of constants that are small
    used: Counter[str] = field(default_factory=Counter)  # how often each axiom changed something
    recent: Counter[str] = field(default_factory=Counter)  # the same since it was last cleared

    def make(
        self, op: str, attributes: Key, args: Iterable[Term | None], dtype: int, dims: Iterable[Expr | int] | None
    ) -> Term:
        """Return the term of an operator on arguments, the one that is there if there is one."""
        listed = tuple(args)
        while listed and listed[-1] is None:
            listed = listed[:-1]
        key = (op, attributes, listed)
        if (term := self.known.get(key)) is None:
            term = self.known[key] = Term(len(self.known), op, attributes, listed)
            term.dtype = dtype
        if term.dims is None and dims is not None:
            term.dims = tuple(Expr.of(dim) for dim in dims)
        return term

    def note(self, axiom: str, times: int = 1) -> None:
        """Count uses of an axiom."""
        self.used[axiom] += times
        self.recent[axiom] += times


def without_movement(term: Term, operators: Collection[str]) -> Term:
    """Return the term that another one is made of by these operators alone, along their first arguments."""
    while term.op in operators and term.args[0] is not None:
        term = term.args[0]
    return term


def without_reshape(term: Term | None) -> Term | None:
    """Return what a Reshape reads, and any other term as it is."""
    return term.args[0] if term is not None and term.op == "Reshape" else term


# Constants by their bytes.

MAX_COMPARED = 1 << 18  # elements of a constant that is searched for repeats
MAX_ARRAY = 1 << 24  # bytes of a constant that nodes are run on


class Constants:
    """The constants of both models as terms.

    A large tensor is read as far as another one has as many bytes and the same ones at both ends, and lies elsewhere.
    """

    def __init__(self, terms: Terms, numbers: ConstantNumbers | None = None) -> None:
        self.terms, self.numbers = terms, numbers or ConstantNumbers()
        self.memory = Model.from_proto(ModelProto())  # whose arrays no model holds
        self.bare: dict[Term, Term] = {}  # without repeats
        self.periodic: dict[Term, list[list[int]] | None] = {}
        self.bases: dict[Term, Term] = {}  # what a constant was reshaped from
        self.sources: dict[Term, tuple[Model, TensorProto]] = {}
        self.read: set[object] = set()  # the identities of what stands in a model
        self.computed: set[object] = set()  # of what a node of constants gives, but for nodes that only move

    def of_tensor(self, model: Model, tensor: TensorProto) -> Term:
        """Return the term of a tensor."""
        identity = self._identity_of(model, tensor)
        term = self._make_term(tensor.data_type, tuple(tensor.dims), identity)
        self.sources.setdefault(term, (model, tensor))
        self.read.add(identity)
        return term

    def _identity_of(self, model: Model, tensor: TensorProto) -> Hashable:
        """Return what stands for the bytes of a tensor: where they should be, if its file is missing."""
        if tensor.data_type == TensorProto.STRING and tensor.data_location != TensorProto.EXTERNAL:
            return tuple(tensor.string_data)
        try:
            place_of(model, tensor)
        except ModelError:
            named = external_extent(tensor)
            beside = model.lineage if model.path is None else str(model.path)
            return beside, named.location, named.offset, named.length
        return self.numbers.of_bytes(model, tensor)

    def of_array(self, array: np.ndarray, dtype: int, *, is_computed: bool = False) -> Term:
        """Return the term of an array; of one that is computed, another order of the steps may give another one."""
        identity = self.number_of(array)
        term = self._make_term(dtype, array.shape, identity)
        self.terms.arrays[term] = array
        if is_computed:
            self.computed.add(identity)
        return term

    def number_of(self, array: np.ndarray) -> int:
        """Return the number of the bytes of an array."""
        content = np.ascontiguousarray(array).tobytes()
        return self.numbers.of_bytes(self.memory, TensorProto(data_type=TensorProto.UINT8, raw_data=content))

    def is_computed(self, term: Term) -> bool:
        """Whether a node of constants gives its elements, and no model holds them."""
        identity = term.attributes[2] if term.is_constant else None
        return identity in self.computed and identity not in self.read

    def reshape_constant(self, term: Term, dims: Dims) -> Term | None:
        """Return a constant with other dims; None where they are not numbers."""
        sizes = sizes_of(dims)
        if sizes is None or math.prod(sizes) != math.prod(sizes_of(term.dims or ()) or ()):
            return None
        made = self._make_term(term.dtype, sizes, term.attributes[2])
        self.bases.setdefault(made, term)
        return made

    def expand_constant(self, term: Term, dims: Dims) -> Term | None:
        """Return a constant repeated to other dims, None where these are not numbers, or large."""
        sizes = sizes_of(dims)
        array = None if sizes is None or math.prod(sizes) > MAX_COMPARED else self.array(term)
        if array is None or sizes is None or not array.size or not math.prod(sizes):
            return None
        repeated = np.ascontiguousarray(np.broadcast_to(array, sizes))
        made = self.of_array(repeated, term.dtype, is_computed=self.is_computed(term))
        padded = (const(1),) * (len(sizes) - len(term.dims or ())) + (term.dims or ())
        self.bare.setdefault(made, self.without_repeats(self.reshape_constant(term, padded) or term))
        return made

    def slice_constant(self, term: Term, axis: int, start: Expr, length: Expr) -> Term | None:
        """Return a part of a constant along an axis, None where it is not known by its elements."""
        if (array := self.array(term)) is None or start.constant is None or length.constant is None:
            return None
        part = array[(slice(None),) * axis + (slice(start.constant, start.constant + length.constant),)]
        return self.of_array(np.ascontiguousarray(part), term.dtype, is_computed=self.is_computed(term))

    def without_repeats(self, term: Term) -> Term:
        """Return a constant with dims of 1 along the axes along which it repeats, bit by bit."""
        if term not in self.bare:
            self.bare[term] = term
            array = self.array(term) if 1 < math.prod(sizes_of(term.dims or ()) or (0,)) <= MAX_COMPARED else None
            if array is not None and array.dtype.kind in "fiub":
                bits = array.view(f"u{array.dtype.itemsize}")
                for axis in range(bits.ndim):
                    first = bits[(slice(None),) * axis + (slice(0, 1),)]
                    bits = first if bits.shape[axis] > 1 and (bits == first).all() else bits
                if bits.shape != array.shape:
                    once = np.ascontiguousarray(bits).view(array.dtype)
                    self.bare[term] = self.of_array(once, term.dtype, is_computed=self.is_computed(term))
        return self.bare[term]

    def periods(self, term: Term) -> list[list[Expr]] | None:
        """Return each axis of a constant, as two where it repeats along the first of them; None where it never does."""
        if term not in self.periodic:
            sizes, array = sizes_of(term.dims or ()) or (), self.array(term)
            is_small = array is not None and array.dtype.kind in "fiub" and 1 < array.size <= MAX_COMPARED
            bits = array.view(f"u{array.dtype.itemsize}") if array is not None and is_small else None
            found = [[size] if bits is None else _split_period(bits, axis) for axis, size in enumerate(sizes)]
            self.periodic[term] = found if any(len(run) > 1 for run in found) else None
        runs = self.periodic[term]
        return None if runs is None else [[const(size) for size in run] for run in runs]

    def array(self, term: Term) -> np.ndarray | None:
        """Return the elements of a constant, None if they are too many or numpy has no such dtype."""
        if term not in self.terms.arrays and term in self.sources:
            (model, tensor), dtypes = self.sources[term], helper.get_all_tensor_dtypes()
            size, dtype = payload_size(tensor), tensor.data_type
            is_plain = dtype in dtypes and dtype != TensorProto.STRING and dtype <= TensorProto.COMPLEX128
            if size is not None and size <= MAX_ARRAY and is_plain:
                with suppress(ModelError):  # its file is missing
                    self.terms.arrays[term] = model.array(tensor)
        elif term not in self.terms.arrays and (base := self.bases.get(term, term)) is not term:
            array = self.array(base)
            if array is not None:
                self.terms.arrays[term] = array.reshape(sizes_of(term.dims or ()))
        return self.terms.arrays.get(term)

    def is_all(self, term: Term, number: float) -> bool:
        """Whether a constant has nothing but a number, its sign included."""
        if (array := self._moved_array(term)) is None or not array.size or not (array == number).all():
            return False
        return array.dtype.kind in "iub" or bool((np.signbit(array) == np.signbit(number)).all())

    def has_no_zero(self, term: Term | None) -> bool:
        """Whether it is a constant of floats without 0 and -0."""
        array = None if term is None else self._moved_array(term)
        return array is not None and array.dtype.kind == "f" and bool(array.all())

    def has_no_minus_zero(self, term: Term | None) -> bool:
        """Whether it is a constant of floats without -0, which a 0 that is added makes 0."""
        array = None if term is None else self._moved_array(term)
        return array is not None and array.dtype.kind == "f" and not (np.signbit(array) & (array == 0)).any()

    def _moved_array(self, term: Term) -> np.ndarray | None:
        """Return the elements of the constant that a term only moves, None for any other term."""
        term = without_movement(term, PRESERVING | CUTTING | {"Strided"})
        return self.array(term) if term.is_constant else None

    def _make_term(self, dtype: int, dims: tuple[int, ...], identity: Hashable) -> Term:
        return self.terms.make("Constant", (dtype, dims, identity), (), dtype, dims)


def _split_period(bits: np.ndarray, axis: int) -> list[int]:
    """Return the size of an axis, as two where the elements repeat after some; those that are all the same do not."""
    size, rows = bits.shape[axis], np.moveaxis(bits, axis, 0)
    for period in (each for each in range(1, size // 2 + 1) if size % each == 0):
        if (rows[:period] == rows[period : 2 * period]).all() and (rows[period:] == rows[:-period]).all():
            return [size // period, period] if period > 1 else [size]
    return [size]


# Constants of real arithmetic: what was computed is one constant where it agrees with its exact value to 1e-6.
#
# A constant that a model holds is exact: another number is another constant. A proof computes in float64, beside
# which a rewrite has what it computed in the dtype of the model. These are one constant where each element of a
# product is within 1e-6 of itself, and each element of a sum, whose addends may cancel out, within 1e-6 of the
# largest one.

NEAR = 1e-6  # of its magnitude, how far a computed constant may be from its exact value
FIRST = 16  # elements that are compared before all are
Origin = Literal["held", "product", "sum"]
ORIGINS: tuple[Origin, ...] = ("held", "product", "sum")


class RealArray(Struct, frozen=True, eq=False):
    """The elements of a constant in float64."""

    elements: np.ndarray
    origin: Origin = "held"  # whether a model holds them, or which kind of arithmetic computed them

    def times(self, other: RealArray | np.ndarray | float) -> RealArray:
        """Return the product, element by element."""
        return self._combine_ranges(other, "product", np.multiply)

    def plus(self, other: RealArray | np.ndarray | float) -> RealArray:
        """Return the sum, element by element."""
        return self._combine_ranges(other, "sum", np.add)

    def _combine_ranges(self, other: RealArray | np.ndarray | float, least: Origin, function: np.ufunc) -> RealArray:
        right = other if isinstance(other, RealArray) else RealArray(np.asarray(other))
        origin = max(self.origin, right.origin, least, key=ORIGINS.index)
        with np.errstate(over="ignore", invalid="ignore"):
            return RealArray(np.asarray(function(self.elements, right.elements)), origin)

    def inverse(self) -> RealArray:
        """Return 1 over each element, none of which is 0."""
        return RealArray(np.ones(()), "product")._combine_ranges(self, "product", np.divide)

    def take_part(self, elements: np.ndarray) -> RealArray:
        """Return some of its elements, or all with other dims."""
        return RealArray(elements, self.origin)

    @property
    def is_finite(self) -> bool:
        """Whether all elements are numbers."""
        return bool(np.isfinite(self.elements).all())


class RealConstants:
    """Finds the constant of the original that one of the rewritten model stands for.

    Constants of one model are never taken for each other, nor are two that models hold.
    """

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.is_original = True  # whether it is the original that is read
        self.origins: dict[Term, Origin] = {}
        self.listed: dict[tuple[str, int, tuple[int, ...]], list[Term]] = defaultdict(list)  # of the original
        self.compared: dict[tuple[Term, Term], float] = {}  # how far a constant is from that which it stands for

    def of_array(self, array: RealArray, dtype: int, use: str) -> Term:
        """Return the term of an array among the constants that are used alike."""
        if array.origin == "held":
            return self.of_term(self.constants.of_array(array.elements.astype(FLOATS[dtype]), dtype), use)
        content = np.asarray(array.elements, np.float64, order="C")
        identity = "computed", self.constants.number_of(content)
        term = self.constants.terms.make("Constant", (dtype, content.shape, identity), (), dtype, content.shape)
        self.constants.terms.arrays[term] = content
        self.origins[term] = max(array.origin, self.origins.get(term, "held"), key=ORIGINS.index)
        return self.of_term(term, use)

    def array(self, term: Term | None) -> RealArray | None:
        """Return the elements of a constant of finite floats, None for any other term."""
        elements = None if term is None or not term.is_constant else self.constants.array(term)
        if term is None or elements is None or term.dtype not in FLOATS or elements.dtype.kind != "f":
            return None
        found = RealArray(elements.astype(np.float64), self._origin(term))
        return found if found.is_finite else None

    def compared_constants(self) -> ComparedConstants:
        """Return how many constants stand for others, one of which was computed."""
        return ComparedConstants(len(self.compared), max(self.compared.values(), default=0.0))

    def _origin(self, term: Term) -> Origin:
        return self.origins.get(term) or ("sum" if self.constants.is_computed(term) else "held")

    def of_term(self, term: Term, use: str) -> Term:
        """Return the constant that another one stands for, itself where there is none."""
        array = self.constants.array(term) if term.dtype in FLOATS else None
        if array is None:
            return term
        others = self.listed[use, term.dtype, array.shape]
        if self.is_original:
            if term not in others:
                others.append(term)
            return term
        for other in () if term in others else others:
            origin = max(self._origin(term), self._origin(other), key=ORIGINS.index)
            known = self.constants.array(other)
            distance = None if known is None or origin == "held" else _distance_to_exact(known, array, origin)
            if distance is not None:
                self.compared[other, term] = distance
                return other
        return term


def _distance_to_exact(exact: np.ndarray, array: np.ndarray, origin: Origin) -> float | None:
    """Return how far elements are from their exact values, relative to these; None if further than is near."""
    if not np.isfinite(exact).all():
        return None
    whole = np.abs(exact).max(initial=0.0) if origin == "sum" else None
    found = 0.0
    for part in ((slice(0, 1),) * max(0, exact.ndim - 1) + (slice(0, FIRST),) * bool(exact.ndim), ...):
        left, right = exact[part].astype(np.float64), array[part].astype(np.float64)
        sizes = np.abs(left) if whole is None else np.full(left.shape, whole)
        differences = np.abs(left - right)
        if not (differences <= NEAR * sizes).all():
            return None
        found = float((differences[sizes > 0] / sizes[sizes > 0]).max(initial=0.0))
    return found
