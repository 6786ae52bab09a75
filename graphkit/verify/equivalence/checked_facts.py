"""Compare what the shape engine says of nodes with what onnxruntime gives, at sizes that nobody foresees.

Folding reads the shape engine, and so does the proof of a fold: a wrong rule would make a wrong model and prove it. So
each node whose dims or elements a proof reads is run alone in onnxruntime, on tensors of the dims and elements that the
engine says its inputs have, and what the engine says of its outputs is compared. By induction over the nodes, all that
is said of a model holds at such sizes. They are drawn from a seed: small, odd and large ones, and those near numbers of
the model. Integers that no tensor has to be as long as are tried up to the ends of their dtype. No weight is read: a
large tensor is made of zeros where the node is run.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from math import isfinite, prod

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from graphkit.dtypes import BITS, FLOATS, INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.traversal import walk_breadth_first
from graphkit.graph.view import Node, Value
from graphkit.io.tensors import payload_size
from graphkit.model import Model
from graphkit.ops.number_limits import exact_range
from graphkit.ops.tensor import Ratio, Tensor, TensorSequence
from graphkit.progress import check_time
from graphkit.runtime.session import Feed, SmallModel, run_small_models
from graphkit.shapes import Expr, Shapes
from graphkit.shapes.constraints.evaluate_constraints import Values, size_column
from graphkit.symbolic.expr import INF, Symbol
from graphkit.symbolic.relations import Requirement
from graphkit.verify.equivalence.application import Reading
from graphkit.verify.equivalence.result import LEAST_SIZES
from graphkit.verify.equivalence.spelling import OF_KERNEL

__all__ = ["STEPS", "TIMES", "Claim", "Sizes", "check_facts", "has_elements", "sizes_of"]

# What the shape engine says of single nodes, each a claim that onnxruntime can be asked about.


MAX_NUMBERS = 30  # of a constant, near which sizes are tried
MAX_CONSTANT = 1 << 12  # bytes of a constant that a node reads as it is
BYTES, STEPS = 1 << 20, 1 << 22  # of the tensors around a node, and of its work, where it can be as small
MAX_BYTES, MAX_STEPS = 1 << 27, 1 << 29  # above which the dims are compared that onnxruntime infers when it loads it
UNTOUCHED = 1 << 11  # bytes of zeros of which nothing is read, to count for one
TIMES = 32  # as much as at its least sizes


@dataclass(eq=False)
class Claim:
    """What the shape engine says of a node's outputs, given what it says of the inputs.

    Attributes:
        constants: The inputs that are small constants, as the model has them.
        limits: Up to which numbers its rule holds.
        equal: What must be equal for it to run.
        is_needed: Whether elements that are known depend on it.
    """

    node: Node
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    constants: Mapping[int, TensorProto]
    limits: tuple[Requirement, ...]
    equal: tuple[Requirement, ...]
    is_needed: bool

    @cached_property
    def key(self) -> Hashable:
        """All that it depends on."""
        node = NodeProto()
        node.CopyFrom(self.node.proto)
        for name in ("name", "doc_string", "metadata_props", "input", "output"):
            node.ClearField(name)
        constants = tuple((at, tensor.SerializeToString(deterministic=True)) for at, tensor in self.constants.items())
        read = tuple(
            None if each is None or at in self.constants else _tensor_facts(each) for at, each in enumerate(self.inputs)
        )
        told = tuple(None if each is None else _tensor_facts(each) for each in self.outputs)
        versions = self.node.scope.opset(), self.node.scope.opset(self.node.domain)
        return node.SerializeToString(deterministic=True), versions, constants, read, told

    @cached_property
    def read(self) -> list[Tensor]:
        """The tensors that it reads, but for constants."""
        return [each for at, each in enumerate(self.inputs) if each is not None and at not in self.constants]

    @cached_property
    def told(self) -> list[Tensor]:
        """The tensors that it gives."""
        return [each for each in self.outputs if each is not None and each.dims is not None]

    @cached_property
    def symbols(self) -> dict[str, Symbol]:
        """The symbols of what it reads."""
        return {each.name: each for expr in _tensor_expressions(self.read) for each in expr.walk_symbols()}

    @property
    def says_something(self) -> bool:
        """Whether it says of an output what is not a new unknown: a dim, or an element."""
        fresh = {
            name for expr in _tensor_expressions(self.told) for name in expr.symbols if name[:1] == "?"
        } - self.symbols.keys()
        parts = chain.from_iterable((*(each.dims or ()), *_tensor_elements(each)) for each in self.told)
        return any(not isinstance(each, Expr) or fresh.isdisjoint(each.symbols) for each in parts)

    @property
    def is_of_numbers(self) -> bool:
        """Whether no tensor has to be as long as a size."""
        return all(has_elements(each) or each.sizes() is not None for each in self.read)

    @property
    def numbers(self) -> set[int]:
        """Numbers near which it may change: those in it."""
        found = {int(factor) for expr in _tensor_expressions([*self.read, *self.told]) for _, factor in expr.terms}
        for tensor in self.constants.values():
            if tensor.data_type in INTEGERS:
                found.update(numpy_helper.to_array(tensor).ravel()[:MAX_NUMBERS].tolist())
        return {number + step for number in found for step in (-1, 0, 1)}

    def legal(self, values: Values) -> np.ndarray:
        """Return at which sizes the node may run, all numbers are as its rule takes them, and it is not too large."""
        legal = np.ones(values.count, bool)
        for tensor in (*self.read, *self.told):
            if tensor.dtype in INTEGERS or tensor.dtype in FLOATS:
                least, most = exact_range(tensor.dtype)
                for expr in sized_expressions(_exprs_of(tensor), values):
                    legal &= (values.of(expr) >= least) & (values.of(expr) <= most)
        for limit in self.limits:
            legal &= np.logical_and.reduce(
                [values.of(each) <= int(limit.right) for each in sized_expressions([limit.left], values)]
            )
        for equal in self.equal:
            if len(sides := [*sized_expressions((equal.left, equal.right), values)]) == 2:
                legal &= values.of(sides[0]) == values.of(sides[1])
        for usual, largest, weight in zip((BYTES, STEPS), (MAX_BYTES, MAX_STEPS), self.weights(values), strict=True):
            legal &= (weight <= usual) | ((weight <= TIMES * weight[0]) & (weight <= largest)) | self.is_large
        return legal

    @cached_property
    def is_large(self) -> bool:
        """Whether it takes too much to run it at any size."""
        bytes_of_least, steps = self.weights(
            Values({each.name: size_column([least_size(each)]) for each in self.symbols.values()})
        )
        return bool(bytes_of_least[0] > MAX_BYTES or steps[0] > MAX_STEPS)

    @property
    def reads_dims(self) -> bool:
        """Whether it reads nothing but the dims of its input."""
        return self.node.op_type in ("Shape", "Size")

    def weights(self, values: Values) -> tuple[np.ndarray, np.ndarray]:
        """Return about how many bytes its tensors have, and how many steps it takes: of the first sizes, the least."""
        counts, total = [], np.zeros(values.count)
        for tensor in (*self.read, *self.told):
            dims = (values.of(dim).astype(float) for dim in sized_expressions(tensor.dims or (), values))
            counts.append(np.prod([np.maximum(dim, 0) for dim in dims], axis=0) * np.ones(values.count))
            total += counts[-1] * (BITS.get(tensor.dtype, 64) / 8)
        if self.reads_dims:
            return total / UNTOUCHED, np.zeros(values.count)
        largest = sorted(counts, key=lambda count: -float(count.max()))[:3]  # rows*inner, inner*columns, rows*columns
        return total, np.sqrt(np.prod(largest, axis=0)) if len(largest) == 3 else np.sum(counts, axis=0)


def _tensor_facts(tensor: Tensor) -> Hashable:
    if isinstance(tensor, TensorSequence):
        return tuple(map(_tensor_facts, tensor.items)) if tensor.items is not None else (tensor.common, tensor.length)
    return tensor.dtype, tensor.dims, tensor.elements if tensor.may_have_data else None


def has_elements(tensor: Tensor) -> bool:
    """Whether something is said of the elements of a tensor."""
    return tensor.may_have_data and tensor.data is not None


def _tensor_elements(tensor: Tensor) -> Sequence[Expr | float]:
    found = tensor.elements or () if tensor.may_have_data else ()
    return [each.dividend if isinstance(each, Ratio) else each for each in found]


def _exprs_of(tensor: Tensor) -> list[Expr]:
    return [each for each in _tensor_elements(tensor) if isinstance(each, Expr)]


def _tensor_expressions(tensors: Iterable[Tensor]) -> Iterator[Expr]:
    for tensor in tensors:
        yield from tensor.dims or ()
        yield from _exprs_of(tensor)
        if isinstance(tensor, TensorSequence):
            yield from _tensor_expressions(tensor.items or ())


def sized_expressions(exprs: Iterable[Expr], values: Values) -> Iterator[Expr]:
    """Yield the expressions all of whose symbols have sizes."""
    return (expr for expr in exprs if expr.symbols <= values.columns.keys())


def claims_of(reading: Reading, shapes: Shapes) -> Iterator[Claim]:
    """Yield what is said of the nodes of a model that run, but for constants and nodes with bodies."""
    noted: dict[Node, tuple[list[Requirement], list[Requirement]]] = {}
    for place, requirements in enumerate((shapes.limits, shapes.equalities)):
        for each in requirements:
            noted.setdefault(each.node, ([], []))[place].append(each)
    told = [
        value for value in reading.values if (tensor := shapes.first.get(value)) is not None and has_elements(tensor)
    ]
    needed = {*walk_breadth_first(filter(None, map(_producing_node, told)), _producing_nodes)}
    for node in reading.nodes:
        outputs = tuple(None if value is None else shapes.first.get(value) for value in node.outputs)
        if node.constant is not None or node.bodies:
            continue
        inputs = tuple(None if value is None else shapes.first.get(value, Tensor(0, None)) for value in node.inputs)
        constants = {
            at: constant
            for at, value in enumerate(node.inputs)
            if (constant := _small_constant(reading.model, value)) is not None
        }
        notes = noted.get(node, ((), ()))
        claim = Claim(
            node=node,
            inputs=inputs,
            outputs=outputs,
            constants=constants,
            limits=tuple(notes[0]),
            equal=tuple(notes[1]),
            is_needed=node in needed,
        )
        if claim.told and claim.says_something:
            yield claim


def _producing_node(value: Value) -> Node | None:
    """Return the node that gives a value, of an input of a body the node around it."""
    return value.producer or value.scope.owner


def _producing_nodes(node: Node) -> Iterator[Node | None]:
    yield from map(
        _producing_node, (*node.operands, *(value for body in node.bodies.values() for value in body.outputs))
    )


def _small_constant(model: Model, value: Value | None) -> TensorProto | None:
    """Return a constant that is read as it is, with its bytes in it."""
    tensor = None if value is None else value.constant
    if tensor is None or (payload_size(tensor) or 0) > MAX_CONSTANT:
        return None
    copy = TensorProto()
    copy.CopyFrom(tensor)
    for name in ("name", "doc_string", "metadata_props"):
        copy.ClearField(name)
    if tensor.data_location == TensorProto.EXTERNAL:
        try:
            copy.raw_data = bytes(model.payload(tensor))
        except ModelError:  # its file is missing
            return None
        del copy.external_data[:]
        copy.ClearField("data_location")
    return copy


def least_size(symbol: Symbol) -> int:
    """Return the least size that a symbol may have, 0 where it has none."""
    return int(symbol.lower) if isfinite(symbol.lower) else 0


# Sizes at which claims about nodes are tried: drawn from a seed, and near all numbers in them.


DRAWN = 240
SCANNED = 512  # sizes of one dim that are tried to make two expressions equal
# Sizes at which models change: small ones, odd ones, and those past what a few bits count.
SMALL = (0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 17, 33)
LARGER = (41, 59, 67, 131, 257, 299, 300, 301, 515, 1031)
NUMBERS = (*SMALL, *LARGER, 4097, 32767, 46341, 65535, 65537, (1 << 24) - 1, (1 << 24) + 1, (1 << 31) - 1)

Sizes = tuple[Values, int]  # sizes of many runs, and which of these
Drawn = Mapping[Hashable, Values]  # sizes by the symbols that they are for, and whether numbers may be large


def _claim_group(claim: Claim) -> tuple[Hashable, bool]:
    return frozenset(claim.symbols.values()), claim.is_of_numbers


def drawn_sizes(claims: Sequence[Claim], seed: int) -> Drawn:
    """Return sizes for claims: those of the same symbols have the same ones, near all numbers in them."""
    numbers: dict[tuple[Hashable, bool], set[int]] = {}
    symbols: dict[tuple[Hashable, bool], list[Symbol]] = {}
    for claim in claims:
        numbers.setdefault(_claim_group(claim), set()).update(claim.numbers)
        symbols.setdefault(_claim_group(claim), [claim.symbols[name] for name in sorted(claim.symbols)])
    return {group: _draw_sizes(symbols[group], numbers[group], group[1], seed) for group in numbers}


def _draw_sizes(symbols: Sequence[Symbol], numbers: set[int], is_of_numbers: bool, seed: int) -> Values:
    """Return sizes of symbols: their least ones; one for all; small ones and a larger one; or any."""
    rng = random.Random(f"{seed} {symbols} {sorted(numbers)}")
    near = sorted(number for number in numbers if is_of_numbers or 0 <= number <= LARGER[-1])
    rows = [[least_size(each) for each in symbols]]
    for turn in range(DRAWN if symbols else 0):
        pool = [*(NUMBERS if is_of_numbers else (*SMALL, *LARGER)), *near]
        pool += [rng.randrange(1, 1 << rng.randrange(2, 31 if is_of_numbers else 10)) for _ in range(12)]
        common, large = rng.choice(pool), rng.randrange(len(symbols))
        row = []
        for at, each in enumerate(symbols):
            if turn % 4 == 0:
                size = common
            elif turn % 4 == 1:
                size = least_size(each) + rng.randrange(8)
            else:
                size = rng.choice(pool if turn % 4 == 2 or at == large else SMALL)
            if each.upper < INF and rng.random() < 0.5:  # an element of a tensor, or a dim up to a size
                size = int(rng.choice((each.lower, each.upper))) + rng.choice((0, 1, -1))
            row.append(int(min(max(size, each.lower), each.upper)))
        rows.append(row)
    return Values(
        {each.name: size_column(listed) for each, listed in zip(symbols, zip(*rows, strict=True), strict=True)}
    )


def sizes_of(claim: Claim, drawn: Drawn) -> Iterator[Sizes]:
    """Yield the sizes at which a claim is tried, each once: those that were drawn, then some that make it run."""
    seen, values = set[tuple[int, ...]](), drawn[_claim_group(claim)]
    for several in chain([values], _equalise_sizes(claim, values)):
        rows, steps = np.flatnonzero(claim.legal(several)), claim.weights(several)[1]
        for row in (rows[np.argsort(steps[rows], kind="stable")] if steps[0] > STEPS / TIMES else rows).tolist():
            found = tuple(int(sizes[row]) for sizes in several.columns.values())
            if found not in seen:
                seen.add(found)
                yield several, row


def _equalise_sizes(claim: Claim, values: Values) -> Iterator[Values]:
    """Yield sizes of which one was changed, such that two expressions are equal that must be."""
    for row in range(values.count if claim.equal else 0):
        sizes = {name: int(several[row]) for name, several in values.columns.items()}
        for equal in claim.equal:
            names = sorted((equal.left.symbols | equal.right.symbols) & sizes.keys())
            name = names[row % len(names)] if names else ""
            if not name or len([*sized_expressions((equal.left, equal.right), values)]) < 2:
                continue
            symbol = claim.symbols[name]
            scanned = np.arange(least_size(symbol), int(min(symbol.upper, least_size(symbol) + SCANNED)) + 1)
            several = Values({**{each: size_column([size]) for each, size in sizes.items()}, name: scanned})
            if (places := np.flatnonzero(several.of(equal.left) == several.of(equal.right))).size:
                sizes[name] = int(scanned[places[row % places.size]])
        yield Values({name: size_column([size]) for name, size in sizes.items()})


ROUNDS = (8, 16, 60)  # sizes that are tried, as long as some are needed
MAX_KNOWN = 50_000  # claims that are remembered


def check_facts(pairs: Iterable[tuple[Reading, Shapes]], seed: int = 0) -> tuple[int, str]:
    """Compare what the shape engine says of the nodes that models read.

    Returns:
        The number of kinds of nodes, and what is wrong with one, or could not be compared; "" for nothing.
    """
    claims: dict[Hashable, Claim] = {}
    for reading, shapes in pairs:
        for claim in claims_of(reading, shapes):
            known = claims.setdefault(claim.key, claim)
            known.is_needed |= claim.is_needed
    missing = [claim for key, claim in claims.items() if key not in _HELD]
    check = _Check(seed)
    check.run(missing)
    if len(_HELD) > MAX_KNOWN:
        _HELD.clear()
    _HELD.update(claim.key for claim in missing if claim not in check.faults and claim not in check.open)
    for claim, why in check.open.items():
        if claim.is_needed:
            check.faults[claim] = f"what is known of {claim.node.path} ({claim.node.operator}) was not compared: {why}"
    return len(claims), next(iter(check.faults.values()), "")


_HELD: set[Hashable] = set()  # claims that held before


@dataclass(eq=False)
class _Part:
    """A claim as a model.

    Attributes:
        feeds: The tensor that each of its graph inputs is.
        outputs: Its graph outputs, each with the output of the node that it tells of, and whether it has its elements.
        sizes: Those to try.
        held: At how many of them it held.
        failure: Why it does not run at others.
    """

    claim: Claim
    feeds: Mapping[str, Tensor]
    outputs: Sequence[tuple[str, Tensor, bool]]
    sizes: Iterator[Sizes]
    held: int = 0
    failure: str = ""

    @property
    def needed(self) -> int:
        """At how many sizes it must hold: at all, where there are few."""
        counts = (each.upper - each.lower + 1 for each in self.claim.symbols.values())
        return int(min(LEAST_SIZES, prod(counts)))

    def models(self, tried: Sequence[Sizes]) -> list[SmallModel]:
        """Return what to run to compare it at sizes: one model, or one for each where it is only loaded."""
        if self.claim.is_large:
            return [(_part_model(self, _part_feed(self, sizes)), [None]) for sizes in tried]
        return [(_part_model(self, None), [_part_feed(self, sizes) for sizes in tried])]


@dataclass(eq=False)
class _Check:
    """The runs of claims.

    Attributes:
        faults, open: What differs, and why others could not be compared, by claim.
    """

    seed: int
    faults: dict[Claim, str] = field(default_factory=dict)
    open: dict[Claim, str] = field(default_factory=dict)

    def run(self, claims: Sequence[Claim]) -> None:
        """Run claims at as many sizes as are needed, and those that fail at some at others."""
        drawn = drawn_sizes(claims, self.seed)
        made = {claim: _make_part(claim, drawn) for claim in claims}
        self.open |= {claim: part for claim, part in made.items() if isinstance(part, str)}
        waiting = [part for part in made.values() if isinstance(part, _Part)]
        for count in ROUNDS:
            check_time()
            tried = [(part, list(islice(part.sizes, count))) for part in waiting]
            models = [part.models(listed) for part, listed in tried]
            answers = iter(run_small_models([*chain.from_iterable(models)]))
            for (part, listed), several in zip(tried, models, strict=True):
                found = [(next(answers), len(feeds)) for _, feeds in several]
                outcomes = [
                    each
                    for answer, count in found
                    for each in ([answer] * count if isinstance(answer, str) else answer)
                ]
                self._compare(part, listed, outcomes)
            waiting = [part for part in waiting if part.claim not in self.faults and part.held < part.needed]
        for part in waiting:
            why = part.failure or "at others it is too large"
            self.open[part.claim] = f"it ran at {part.held} of {part.needed} sizes: {why}"

    def _compare(self, part: _Part, tried: Sequence[Sizes], outcomes: Sequence[Sequence[np.ndarray] | str]) -> None:
        for sizes, arrays in zip(tried, outcomes, strict=True):
            if isinstance(arrays, str):
                part.failure = " ".join(arrays.split())[:200]
            elif part.claim.is_large and any((array < 0).any() for array in arrays):
                part.failure = "it is too large to run it, and onnxruntime does not infer its dims"
            elif fault := _difference_text(part, sizes, arrays):
                self.faults[part.claim] = fault
                return
            else:
                part.held += 1


def _make_part(claim: Claim, drawn: Drawn) -> _Part | str:
    """Return a claim as a model, or why it cannot be one."""
    feeds: dict[str, Tensor] = {}
    for at, tensor in enumerate(claim.inputs):
        if tensor is None or at in claim.constants:
            continue
        items = tensor.items if isinstance(tensor, TensorSequence) else (tensor,)
        if items is None or any(each.dims is None or each.dtype not in BITS for each in items):
            return f"nothing is known of its input {at}"
        for place, each in enumerate(items):
            feeds[f"{at}/{place}"] = each
    outputs = [
        (f"{kind}/{at}", each, kind == "elements")
        for at, each in enumerate(claim.outputs)
        if each is not None and each.dims is not None
        for kind in (("shape", "elements") if has_elements(each) else ("shape",))
    ]
    return _Part(claim, feeds, outputs, sizes_of(claim, drawn))


def _part_model(part: _Part, fixed: Feed) -> bytes:
    """Return a node with what makes its inputs, and what tells of its outputs; one that takes nothing but a feed."""
    claim, graph, node = part.claim, GraphProto(name="node"), NodeProto()
    node.CopyFrom(claim.node.proto)
    if node.overload == OF_KERNEL:  # a mark of the proof's own
        node.ClearField("overload")
    names: list[str] = []
    for at, tensor in enumerate(claim.inputs):
        names.append("" if tensor is None else str(at))
        if at in claim.constants:
            constant = graph.initializer.add()
            constant.CopyFrom(claim.constants[at])
            constant.name = names[-1]
        made = [_add_input(graph, part, name, fixed) for name in part.feeds if name.split("/")[0] == names[-1]]
        if isinstance(tensor, TensorSequence):
            graph.node.append(helper.make_node("SequenceConstruct", made, names[-1:]))
        elif made:
            names[-1] = made[0]
    node.input[:] = names
    node.output[:] = [f"elements/{at}" if value else "" for at, value in enumerate(claim.node.proto.output)]
    graph.node.append(node)
    for name, _, is_elements in part.outputs:
        given = name.replace("shape", "elements")
        if not is_elements and fixed is None:
            graph.node.append(helper.make_node("Shape", [given], [name]))
        graph.output.append(helper.make_empty_tensor_value_info(name if fixed is None else given))
    opsets = [helper.make_opsetid(domain, version) for domain, version in claim.node.scope.opsets.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def _add_input(graph: GraphProto, part: _Part, name: str, fixed: Feed) -> str:
    """Add an input of a node, of a dtype that numpy has, and return what the node reads."""
    tensor = part.feeds[name]
    kind = _fed_dtype(part, tensor)
    given = None if fixed is None else fixed[name]
    if isinstance(given, np.ndarray):
        graph.initializer.append(numpy_helper.from_array(given, name))
    else:
        dims = [dim.constant for dim in tensor.dims or ()] if given is None else given[1]
        graph.input.append(helper.make_tensor_value_info(name, kind, dims))
    if kind == tensor.dtype or part.claim.reads_dims:
        return name
    graph.node.append(helper.make_node("Cast", [name], [f"{name}/cast"], to=tensor.dtype))
    return f"{name}/cast"


def _fed_dtype(part: _Part, tensor: Tensor) -> int:
    """Return the dtype in which an input is fed: one that numpy has, a small one where none of it is read."""
    if part.claim.reads_dims:
        return TensorProto.UINT8
    return tensor.dtype if tensor.dtype in FLOATS or tensor.dtype in INTEGERS else TensorProto.FLOAT


def _part_feed(part: _Part, sizes: Sizes) -> dict[str, np.ndarray | tuple[str, list[int]]]:
    """Return the inputs of a part: arrays, and of those without elements dtype and dims."""
    found: dict[str, np.ndarray | tuple[str, list[int]]] = {}
    for name, tensor in part.feeds.items():
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(_fed_dtype(part, tensor)))
        if tensor.data is not None and not part.claim.reads_dims:
            found[name] = np.array(_evaluate_elements(tensor, sizes), kind).reshape(tensor.data.shape)
        else:
            found[name] = kind.str, [_evaluate_at(dim, sizes) or 0 for dim in tensor.dims or ()]
    return found


def _evaluate_at(expr: Expr, sizes: Sizes) -> int | None:
    """Return an expression at sizes, None where one of its symbols is an unknown of the node's own."""
    if expr.constant is not None:
        return expr.constant
    values, row = sizes
    return int(values.of(expr)[row]) if expr.symbols <= values.columns.keys() else None


def _evaluate_elements(tensor: Tensor, sizes: Sizes) -> list[float | None]:
    return [_element_number_at(each, tensor.dtype, sizes) for each in tensor.elements or ()]


def _element_number_at(element: Expr | Ratio | float, dtype: int, sizes: Sizes) -> float | None:
    if isinstance(element, float):
        return element
    if not isinstance(element, Ratio):
        return _evaluate_at(element, sizes)
    kind, value = FLOATS[dtype].type, _evaluate_at(element.dividend, sizes)
    return None if value is None else float(kind(value) / kind(element.divisor))


def _difference_text(part: _Part, sizes: Sizes, arrays: Sequence[np.ndarray]) -> str:
    """Return how what onnxruntime gives differs from what the engine says, "" where it does not."""
    for (_, tensor, is_elements), array in zip(part.outputs, arrays, strict=True):
        told = (
            _evaluate_elements(tensor, sizes)
            if is_elements
            else [_evaluate_at(dim, sizes) for dim in tensor.dims or ()]
        )
        found = array.ravel().tolist()
        if len(told) != len(found) or not all(map(_is_same, told, found)):
            node, (values, row) = part.claim.node, sizes
            at = ", ".join(f"{name}={sizes_of_it[row]}" for name, sizes_of_it in values.columns.items())
            text = f"{'elements' if is_elements else 'dims'} of {node.path} ({node.operator}) are {told[:8]}"
            return f"the shape engine says that the {text}, and onnxruntime gives {found[:8]}" + f" at {at}" * bool(at)
    return ""


def _is_same(told: float | None, found: float) -> bool:
    if told is None or (told != told and found != found):
        return True
    return told == found and (told != 0 or not isinstance(told, float) or np.signbit(told) == np.signbit(found))
