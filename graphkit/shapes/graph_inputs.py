"""The known facts of the graph inputs: their declared dims, and a user's specification of sizes, shapes and bounds."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Hashable, Iterator, Mapping, Sequence
from copy import copy

import numpy as np
from msgspec import Struct

from graphkit.dtypes import FLOATS, INTEGERS, dtype_name, integer_range
from graphkit.errors import UsageError, did_you_mean
from graphkit.graph.declared_types import declared_type
from graphkit.graph.roles import Roles
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.ops.rule_context import Notes
from graphkit.ops.tensor import MOST_OF_INPUTS, Tensor, array_of, unknown_tensor
from graphkit.shapes.input_dims import DeclaredInputs, Place, declared_inputs
from graphkit.symbolic.algebra import divide_exactly, lower, upper
from graphkit.symbolic.expr import INF, Bound, Expr, symbol

Bounds = tuple[int | None, int | None]
SymbolSizes = tuple[tuple[str, int], ...]
InputShapes = tuple[tuple[str, tuple[int, ...]], ...]
SymbolRanges = tuple[tuple[str, int | None, int | None], ...]


class DimSpec(Struct, frozen=True):
    """A user's specification of the dims of a model's inputs, besides their declarations.

        spec = DimSpec.of(dims={"batch_size": 1}, ranges={"sequence_length": (1, 512)})
        proof = verify_rewrite(model, fold(model, spec).model, spec)

    Functions that take one also take its parts as mappings, which add to it. They raise UsageError if the model lacks
    such symbols or inputs.

    Attributes:
        dims: Sizes of symbols.
        inputs: Shapes of inputs; symbols in them get those numbers.
        ranges: Bounds of symbols, (name, least, largest), None for an open end. Other symbols are at least 1, or
            at least 0 if they are named `past...` or a KV cache grows along them.
    """

    dims: SymbolSizes = ()
    inputs: InputShapes = ()
    ranges: SymbolRanges = ()

    @classmethod
    def of(
        cls,
        dims: Mapping[str, int] | None = None,
        inputs: Mapping[str, Sequence[int]] | None = None,
        ranges: Mapping[str, Bounds] | None = None,
    ) -> DimSpec:
        """Return the spec of these mappings: sizes by symbol, shapes by input, (least, largest) by symbol."""
        return cls(
            tuple((name, int(size)) for name, size in (dims or {}).items()),
            tuple((name, tuple(int(size) for size in shape)) for name, shape in (inputs or {}).items()),
            tuple((name, low, high) for name, (low, high) in (ranges or {}).items()),
        )

    @property
    def numbers(self) -> dict[str, int]:
        """The sizes by symbol."""
        return dict(self.dims)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes by input."""
        return dict(self.inputs)

    @property
    def bounds(self) -> dict[str, Bounds]:
        """The least and the largest size by symbol."""
        return {name: (low, high) for name, low, high in self.ranges}

    def __or__(self, other: DimSpec) -> DimSpec:
        """Return both as one; the other one takes precedence."""
        if other == AS_DECLARED:
            return self
        return DimSpec.of(self.numbers | other.numbers, self.shapes | other.shapes, self.bounds | other.bounds)

    def open_ranges(self, frozen: Collection[str]) -> DimSpec:
        """Return the specification for a model in which these symbols are frozen: the bounds of the others."""
        return DimSpec(ranges=tuple(bounds for bounds in self.ranges if bounds[0] not in frozen))


AS_DECLARED = DimSpec()
MAX_EXTENT = 1 << 32  # product of the dims that are not 0
MAX_FOLLOWED = 16  # elements of an integer input that get a symbol each


class Inputs:
    """The dims of graph inputs as expressions, in a spec and with elements as `infer` takes them.

    A spec names the symbol of a dim, the name that dims declare, which means all of these, or one dim as `INPUT.AXIS`,
    which then has a size of its own. `declared` are the dims as another reading has them, and `renamed` gives some, by
    input and axis, other names. A UsageError says that the spec names a symbol or input that does not exist, or
    contradicts itself.
    """

    def __init__(
        self,
        model: Model,
        spec: DimSpec = AS_DECLARED,
        values: Mapping[str, object] | None = None,
        *,
        declared: DeclaredInputs | None = None,
        renamed: Mapping[Place, str] | None = None,
        largest: int = MOST_OF_INPUTS,
    ) -> None:
        self.largest = largest  # of the elements of int64 inputs
        self.file = f"{model.name}: " if model.path is not None else ""
        self.values = {name: np.asarray(value) for name, value in (values or {}).items()}
        self.numbers: dict[str, int] = {}
        self.ranges: dict[str, tuple[Bound | None, Bound]] = {}
        self.declared = {value.name: declared_type(value) for value in model.graph.inputs}
        self.reading = declared or declared_inputs(model)
        self.symbolic = dict(self.reading.dims)
        for (name, axis), text in (renamed or {}).items():
            self._rename_dim(name, axis, symbol(text))
        known = set().union(*(dim.symbols for dim in self._all_dims()))
        for name in (*spec.numbers, *spec.bounds):  # as `INPUT.AXIS`: dims of their own, unless they are expressions
            place = self.reading.place_of(name)
            if place is not None and name not in known and self.at(place).name is not None:
                self._rename_dim(*place, symbol(name, lower(self.at(place))))
        self.names = sorted(set().union(*(dim.symbols for dims in self.symbolic.values() for dim in dims or ())))
        self._least = {each.name: each.lower for dim in self._all_dims() for each in dim.walk_symbols()}
        self._check_names(spec)
        asked = {name: (low, INF if high is None else high) for name, low, high in spec.ranges}
        meant = {each: bounds for name, bounds in asked.items() for each in self._symbols_meant(name, asked)}
        self.narrow_ranges(meant)
        empty = self._may_be_empty(model.roles)
        self.narrow_ranges({name: (0, self.ranges.get(name, (None, INF))[1]) for name in empty})
        for name in self.ranges:
            (bounded,) = self._symbol(name).walk_symbols()
            if bounded.lower > bounded.upper:
                bounds = f"{bounded.lower} to {bounded.upper}"
                raise UsageError(f"the range of '{name}' is {bounds}, which holds no size - give another range")
        for name, number in spec.dims:
            for each in self._symbols_meant(name, spec.numbers):
                self._set_number(each, number)
        shapes = {**{name: array.shape for name, array in self.values.items()}, **spec.shapes}
        named = ((name, self.reading.place_of(name)) for name in spec.numbers if name not in self.names)
        places = {name: place for name, place in named if place is not None}
        self._bind_shapes(shapes, [(place[0], self.at(place), spec.numbers[name]) for name, place in places.items()])

    def _all_dims(self) -> Iterator[Expr]:
        for dims in self.symbolic.values():
            yield from dims or ()

    def at(self, place: Place) -> Expr:
        """Return the dim of an input whose rank is known."""
        return (self.symbolic[place[0]] or ())[place[1]]

    def _symbols_meant(self, name: str, asked: Container[str]) -> Sequence[str]:
        """Return the symbols that a name means: those of all dims of that name but for the ones that are asked for."""
        places = (place for group in self.reading.groups.get(name, ()) for place in group)
        symbols = dict.fromkeys(str(self.at(place).name) for place in places)
        others = [each for each in symbols if each in self.names and (each == name or each not in asked)]
        return others or [name] if name in self.names or others else []

    def _may_be_empty(self, roles: Roles) -> Iterator[str]:
        """Yield the symbols along which the cache of self-attention grows: it starts empty, whatever its name."""
        shapes = (self.symbolic.get(value.name) for value in roles.all("tokens", "embeddings"))
        tokens = [dims[:2][-1] for dims in shapes if dims]
        for past, entry in roles.pasts.items():
            axis = None if roles.is_cross(entry) or entry.is_static else entry.axis
            dims = self.symbolic.get(past.name)
            name = None if axis is None or dims is None or dims[axis] in tokens else dims[axis].name
            if name is not None and self.ranges.get(name, (None, INF))[0] is None:
                yield name

    def _rename_dim(self, name: str, axis: int, dim: Expr) -> None:
        """Give a dim a symbol of its own, whatever it declares."""
        dims = self.symbolic[name] or ()
        self.symbolic[name] = (*dims[:axis], dim, *dims[axis + 1 :])

    def _symbol(self, name: str) -> Expr:
        low, high = self.ranges.get(name, (None, INF))
        return symbol(name, self._least.get(name) if low is None else low, high)

    @property
    def symbols(self) -> dict[str, Expr]:
        """The symbols in the inputs' dims that have no number."""
        return {name: self._symbol(name) for name in self.names if name not in self.numbers}

    def state(self) -> Hashable:
        """Return all that facts about the inputs depend on, but for given elements."""
        known = (
            name for name, dims in self.symbolic.items() if not any(dim.symbols - {*self.numbers} for dim in dims or ())
        )
        is_followed = any((kind := self.declared[name]) is not None and kind.dtype in INTEGERS for name in known)
        largest = self.largest if is_followed else 0
        facts = (self.symbolic, self.symbols, self.numbers)
        return *(frozenset(each.items()) for each in facts), largest

    def copy(self) -> Inputs:
        """Return the same facts, to be narrowed apart from these."""
        same = copy(self)
        same.ranges, same.symbolic = dict(self.ranges), dict(self.symbolic)
        return same

    def take_sizes_of(self, other: Inputs) -> None:
        """Take the symbols of other inputs, with their bounds and numbers."""
        self.names, self._least = other.names, other._least
        self.ranges, self.numbers = dict(other.ranges), dict(other.numbers)

    def widen_ranges(self, other: Inputs) -> None:
        """Let symbols of either be as small as those of that name in the other."""
        both, others = self.symbols, other.symbols
        least = {name: min(lower(both[name]), lower(others[name])) for name in both.keys() & others.keys()}
        for each in (self, other):
            each.narrow_ranges({name: (low, each.ranges.get(name, (None, INF))[1]) for name, low in least.items()})

    def narrow_ranges(self, ranges: Mapping[str, tuple[Bound | None, Bound]]) -> None:
        """Take other bounds of symbols."""
        before = self.symbols
        self.ranges.update(ranges)
        after = {name: expr for name, expr in self.symbols.items() if expr != before[name]}
        for name, dims in self.symbolic.items() if after else ():
            self.symbolic[name] = None if dims is None else tuple(dim.substitute(after) for dim in dims)

    def _check_names(self, spec: DimSpec) -> None:
        for name in [*spec.numbers, *spec.bounds]:
            is_one = self.reading.place_of(name) is not None and name in spec.numbers
            if name not in self.names and name not in self.reading.groups and not is_one:
                hint = f"it is an input: give its shape, as in {name}=1x8" if name in self.declared else None
                raise UsageError(f"no input has a dim '{name}' - {hint or did_you_mean(name, self.names)}")
        for name in [*spec.shapes, *self.values]:
            if name not in self.declared:
                hint = f"it is a dim: give its size, as in {name}=8" if name in self.names else None
                raise UsageError(f"there is no input '{name}' - {hint or did_you_mean(name, self.declared)}")

    def _set_number(self, name: str, number: int) -> None:
        if number >= 2**63:
            raise UsageError(f"'{name}' is {number} - a size is less than 2^63")
        before = self.numbers.setdefault(name, number)
        if before != number:
            raise UsageError(f"'{name}' is both {before} and {number} - give one of them")
        bounds = self._symbol(name)
        if not lower(bounds) <= number <= upper(bounds):
            raise UsageError(f"{self.file}'{name}' is {number}, out of its range - give it another range")

    def _bind_shapes(self, shapes: Mapping[str, tuple[int, ...]], pending: list[tuple[str, Expr, int]]) -> None:
        """Take the numbers of symbols from the shapes of inputs, and the sizes of dims of inputs, in any order."""
        for name, sizes in shapes.items():
            dims = self.symbolic.get(name)
            if dims is None:
                self.symbolic[name] = tuple(Expr.of(size) for size in sizes)
                continue
            if len(dims) != len(sizes):
                raise UsageError(f"input '{name}' has {len(dims)} dims - {'x'.join(map(str, sizes))} has {len(sizes)}")
            pending += [(name, dim, size) for dim, size in zip(dims, sizes, strict=True)]
        while pending:
            unsolved = [equation for equation in pending if not self._solve_dim(*equation)]
            if len(unsolved) == len(pending):
                raise UsageError(self._unsolved_text(*unsolved[0]))
            pending = unsolved

    def _unsolved_text(self, name: str, dim: Expr, size: int) -> str:
        """Return why a dim of an input cannot have a size, and which value would result."""
        rest = dim.substitute(self.numbers)
        if rest.constant is None:
            names = " or ".join(sorted(rest.symbols))
            return f"a dim of input '{name}' is {dim} - set {names}, {size} leaves both open"
        if dim.constant is not None:
            return f"a dim of input '{name}' is {dim} - it cannot be {size}"
        return f"a dim of input '{name}' is {dim}, which is {rest} as given elsewhere - it cannot be {size} too"

    def _solve_dim(self, name: str, dim: Expr, size: int) -> bool:
        """Take the number of the only symbol in a dim, and return whether the dim is solved."""
        rest = dim.substitute(self.numbers)
        if rest == size:
            return True
        if len(rest.terms) > 2 or len(rest.symbols) != 1 or len(rest.terms[0][0]) != 1:
            return False
        (symbol_name,), factor = rest.symbols, rest.terms[0][1]
        difference = Expr.of(size) - (rest - self._symbol(symbol_name) * factor)
        number = divide_exactly(difference, factor).constant
        if number is None or number * factor != difference:
            raise UsageError(f"a dim of input '{name}' is {dim} - it cannot be {size}")
        self._set_number(symbol_name, number)
        return True

    def tensor(self, value: Value, notes: Notes) -> Tensor:
        """Return the known facts of an input; elements that are followed get symbols, whose reasons are noted."""
        kind = self.declared.get(value.name)
        if kind is None:
            return unknown_tensor(f"the input '{value.name}' is declared as no tensor")
        dims = self.symbolic[value.name]
        if dims is None:
            return unknown_tensor(f"the input '{value.name}' is declared without rank", kind.dtype)
        tensor = Tensor(kind.dtype, [dim.substitute(self.numbers) for dim in dims])
        if value.name in self.values:
            array, name = self.values[value.name], value.name
            if tensor.sizes() not in (None, array.shape):
                raise UsageError(f"input '{name}' is {tensor} - not of shape {list(array.shape)}")
            if tensor.dtype not in FLOATS and tensor.dtype not in INTEGERS:
                return Tensor(tensor.dtype, array.shape, None, f"it is the input '{name}'")
            given = array.ravel().tolist()
            held = [each if isinstance(each, Expr) else _convert_element(each, tensor.dtype) for each in given]
            if None in held:
                wrong = given[held.index(None)]
                raise UsageError(f"input '{name}' is of {dtype_name(tensor.dtype)} - it cannot hold {wrong}")
            return Tensor(tensor.dtype, array.shape, array_of(held, array.shape))
        count, sizes = tensor.count(), tensor.sizes()
        extent = math.prod(size or 1 for size in sizes or ())  # numpy bounds it for empty arrays too
        if kind.dtype not in INTEGERS or count is None or count > MAX_FOLLOWED or extent > MAX_EXTENT:
            return Tensor(tensor.dtype, tensor.dims, None, f"it is the input '{value.name}'")
        reason = f"it is an element of the input '{value.name}'"
        low, high = integer_range(kind.dtype)
        low, high = max(low, -self.largest - 1), min(high, self.largest) if low else high
        elements = [notes.new_symbol(value.name, reason, low, high) for _ in range(count)]
        return Tensor(tensor.dtype, tensor.dims, array_of(elements, sizes))


def _convert_element(element: object, dtype: int) -> float | None:
    """Return a number as a tensor of a dtype holds it; None if it holds no such number."""
    if not isinstance(element, (int, float)):
        return None
    if dtype in FLOATS:
        return float(FLOATS[dtype].type(element))
    low, high = integer_range(dtype)
    return int(element) if low <= element <= high and element == int(element) else None
