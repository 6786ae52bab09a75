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
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cached_property
from itertools import chain, islice
from math import isfinite, prod

import numpy as np
from msgspec import Struct
from onnx import GraphProto, TensorProto, helper, numpy_helper

from graphkit.dtypes import BITS, FLOATS, INTEGERS
from graphkit.equivalence.application import Reading
from graphkit.equivalence.result import LEAST_SIZES
from graphkit.equivalence.spelling import OF_KERNEL
from graphkit.errors import ModelError
from graphkit.graph.names import group_pairs
from graphkit.graph.view import Node, Value, walk_breadth_first
from graphkit.io.tensors import payload_size
from graphkit.model import Model
from graphkit.ops.costs import MACS
from graphkit.ops.preconditions import COMPARISONS, Related
from graphkit.ops.registry import RULES
from graphkit.ops.rule_context import NodeFacts, UnknownError
from graphkit.ops.tensor import Ratio, Tensor, TensorSequence, exact_range
from graphkit.progress import check_time
from graphkit.runtime.isolation import shared_isolation
from graphkit.runtime.session import Feed, SmallModel, run_small_models
from graphkit.shapes import Expr, Shapes
from graphkit.shapes.constraints.node_constraints import Values, size_column
from graphkit.symbolic.algebra import Relation, Requirement
from graphkit.symbolic.expr import INF, Symbol

MAX_NUMBERS = 30  # of a constant, near which sizes are tried
MAX_CONSTANT = 1 << 12  # bytes of a constant that a node reads as it is
BYTES, STEPS = 1 << 20, 1 << 20  # of the tensors around a node, and of its work, where it can be as small
MUCH_BYTES, MUCH_STEPS = 1 << 24, 1 << 26  # above which the dims are compared that onnxruntime infers when it loads it
MAX_BYTES, MAX_STEPS = 1 << 27, 1 << 29  # to which it is run all the same where onnxruntime infers none
NOT_INFERRED = "it is too large to run it, and onnxruntime does not infer its dims"
UNTOUCHED = 1 << 11  # bytes of zeros of which nothing is read, to count for one
TIMES = 32  # as much as at its least sizes
ROUNDS = (8, 16, 60)  # sizes that are tried, as long as some are needed
MAX_KNOWN = 50_000  # claims that are remembered
DRAWN = 240  # sizes
ANY = 12  # how many of the numbers to draw from stand for others, which nobody listed
DOUBLED = 8  # times, of sizes that are too small
SCANNED = 512  # sizes of one dim that are tried to make two expressions equal
# Sizes at which models change: small ones, odd ones, and those past what a few bits count.
SMALL = (0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 17, 33)
LARGER = (41, 59, 67, 131, 257, 299, 300, 301, 515, 1031)
NUMBERS = (*SMALL, *LARGER, 4097, 32767, 46341, 65535, 65537, (1 << 24) - 1, (1 << 24) + 1, (1 << 31) - 1)

UNKNOWN = Tensor(0, None)
Sizes = tuple[Values, int]  # sizes of many runs, and which of these

_HELD: set[Hashable] = set()  # claims that held before


@contextmanager
def compare_facts(seed: int = 0) -> Iterator[FactComparison]:
    """Let what the shape engine says of models be compared inside, at sizes from a seed."""
    with shared_isolation() as process:
        try:
            yield FactComparison(seed)
        finally:
            process.cancel()


class FactComparison:
    """A comparison of what the shape engine says of the nodes that models read with what onnxruntime gives."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._claims: dict[Hashable, _Claim] = {}
        self._compared: list[Shapes] = []
        self._begun: list[tuple[list[_Claim], Iterator[None]]] = []

    def begin(self, shapes: Shapes, reading: Reading | None = None) -> None:
        """Begin to compare what is said of a model, if it is not begun: its nodes run beside other work.

        One with bodies is only begun once it is read, since some of its branches may never run.
        """
        graph, missing = shapes.model.graph, list[_Claim]()
        if shapes in self._compared or (reading is None and any(node.bodies for node in graph.nodes)):
            return
        self._compared.append(shapes)
        nodes, values = (graph.nodes, graph.values.values()) if reading is None else (reading.nodes, reading.values)
        for claim in _claims_of(shapes, nodes, values):
            known = self._claims.setdefault(claim.key, claim)
            known.is_needed |= claim.is_needed
            if known is claim and claim.key not in _HELD:
                missing.append(claim)
        rounds = _run_claims(missing, self._seed)
        next(rounds)
        self._begun.append((missing, rounds))

    def finish(self) -> tuple[int, str]:
        """Return the number of kinds of nodes, and what is wrong with one, or could not be compared, "" for nothing."""
        for _, rounds in self._begun:
            for _ in rounds:
                pass
        missing = [claim for claims, _ in self._begun for claim in claims]
        if len(_HELD) > MAX_KNOWN:
            _HELD.clear()
        _HELD.update(claim.key for claim in missing if not claim.fault and not claim.gap)
        faults = [*(claim.fault for claim in missing), *(claim.gap for claim in missing if claim.is_needed)]
        return len(self._claims), next(filter(None, faults), "")


class _Claim(Struct, eq=False, dict=True):
    """What the shape engine says of a node's outputs, given what it says of the inputs."""

    node: Node
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    constants: Mapping[int, TensorProto]  # the inputs that are small constants, as the model has them
    limits: tuple[Requirement, ...]  # up to which numbers its rule holds
    equal: tuple[Requirement, ...]  # what must be equal for it to run
    meant: tuple[Relation, ...]  # what must be equal where nothing is empty or broadcast
    needed: tuple[Relation, ...]  # what must be at most, or at least, something for it to run
    is_needed: bool  # whether elements that are known depend on it
    held: int = 0  # at how many sizes it held
    failure: str = ""  # why it does not run at others
    fault: str = ""  # what differs, "" for nothing
    gap: str = ""  # why it could not be compared, "" where it was

    @cached_property
    def key(self) -> Hashable:
        """All that it depends on."""
        node = deepcopy(self.node.proto)
        for name in ("name", "doc_string", "metadata_props", "input", "output"):
            node.ClearField(name)
        constants = tuple((at, tensor.SerializeToString(deterministic=True)) for at, tensor in self.constants.items())
        read = [None if at in self.constants else each for at, each in enumerate(self.inputs)]
        facts = (tuple(None if each is None else _tensor_facts(each) for each in part) for part in (read, self.outputs))
        versions = self.node.scope.opset(), self.node.scope.opset(self.node.domain)
        return node.SerializeToString(deterministic=True), versions, constants, *facts

    @cached_property
    def read(self) -> list[Tensor]:
        """The tensors that it reads, but for constants."""
        return [each for at, each in enumerate(self.inputs) if each is not None and at not in self.constants]

    @cached_property
    def told(self) -> list[Tensor]:
        """The tensors that it gives."""
        return [each for each in self.outputs if each is not None and each.dims is not None]

    @cached_property
    def feeds(self) -> dict[str, Tensor] | None:
        """The tensors that it is fed, by name; None where nothing is known of one."""
        found: dict[str, Tensor] = {}
        for at, tensor in enumerate(self.inputs):
            if tensor is None or at in self.constants:
                continue
            items = tensor.items if isinstance(tensor, TensorSequence) else (tensor,)
            if items is None or any(each.dims is None or each.dtype not in BITS for each in items):
                return None
            found |= {f"{at}/{place}": each for place, each in enumerate(items)}
        return found

    @cached_property
    def shown(self) -> list[tuple[str, Tensor, bool]]:
        """Its graph outputs, each with the output of the node that it tells of, and whether it has its elements."""
        return [
            (f"{kind}/{at}", each, kind == "elements")
            for at, each in enumerate(self.outputs)
            if each is not None and each.dims is not None
            for kind in (("shape", "elements") if _has_elements(each) else ("shape",))
        ]

    @cached_property
    def symbols(self) -> dict[str, Symbol]:
        """The symbols of what it reads; an element that becomes a dim is a size."""
        found = {each.name: each for expr in _tensor_expressions(self.read) for each in expr.walk_symbols()}
        told = (each for expr in _tensor_expressions(self.told) for each in expr.walk_symbols())
        return found | {each.name: each for each in told if each.name in found and each.upper == INF}

    @property
    def group(self) -> tuple[Hashable, bool]:
        """The symbols that need sizes, and whether these may be large: no tensor has to be as long as one."""
        is_of_numbers = all(_has_elements(each) or each.sizes() is not None for each in self.read)
        return frozenset(self.symbols.values()), is_of_numbers

    @property
    def at_least(self) -> int:
        """At how many sizes it must hold: at all, where there are few."""
        counts = (each.upper - each.lower + 1 for each in self.symbols.values())
        return int(min(LEAST_SIZES, prod(counts)))

    @property
    def says_something(self) -> bool:
        """Whether it says of an output what is not a new unknown: a dim, or an element."""
        names = {name for expr in _tensor_expressions(self.told) for name in expr.symbols}
        fresh = {name for name in names if name[:1] == "?"} - self.symbols.keys()
        parts = chain.from_iterable((*(each.dims or ()), *_tensor_elements(each)) for each in self.told)
        return any(not isinstance(each, Expr) or fresh.isdisjoint(each.symbols) for each in parts)

    @property
    def numbers(self) -> set[int]:
        """Numbers near which it may change: those in it."""
        found = {int(factor) for expr in _tensor_expressions([*self.read, *self.told]) for _, factor in expr.terms}
        for tensor in self.constants.values():
            if tensor.data_type in INTEGERS:
                found.update(numpy_helper.to_array(tensor).ravel()[:MAX_NUMBERS].tolist())
        return {number + step for number in found for step in (-1, 0, 1)}

    def legal(self, values: Values, weights: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Return at which sizes the node may run, all numbers are as its rule takes them, and it is not too large."""
        legal = np.ones(values.count, bool)
        for tensor in (*self.read, *self.told):
            if tensor.dtype in INTEGERS or tensor.dtype in FLOATS:
                least, most = exact_range(tensor.dtype)
                exprs = {each for each in _tensor_elements(tensor) if isinstance(each, Expr)}
                for expr in _sized_expressions(exprs, values):
                    legal &= (values.of(expr) >= least) & (values.of(expr) <= most)
        for limit in self.limits:
            for expr in _sized_expressions([limit.left], values):
                legal &= values.of(expr) <= int(limit.right)
        for equal in self.equal:
            if len(sides := [*_sized_expressions((equal.left, equal.right), values)]) == 2:
                legal &= values.of(sides[0]) == values.of(sides[1])
        limits = zip((BYTES, STEPS), (MAX_BYTES, MAX_STEPS), weights, self.weights_at_many, strict=True)
        for usual, largest, weight, at_many in limits:
            most = max(TIMES * weight[0], at_many.min())
            legal &= (weight <= usual) | ((weight <= most) & (weight <= largest)) | self.is_large
        return legal

    def runs(self, values: Values) -> np.ndarray:
        """Return at which sizes the node runs as far as is known: TopK not, where its `k` is too large."""
        runs = np.ones(values.count, bool)
        for each in self.needed:
            if len(sides := [*_sized_expressions((each.left, each.right), values)]) == 2:
                runs &= COMPARISONS[each.relation](*map(values.of, sides))
        return runs

    @cached_property
    def is_large(self) -> bool:
        """Whether it takes much at all of some sizes, or too much where onnx's own inference says what is claimed."""
        is_own = self.node.operator in RULES  # onnxruntime infers by onnx's code too when it loads a model
        most_bytes, most_steps = (MUCH_BYTES, MUCH_STEPS) if is_own else (MAX_BYTES, MAX_STEPS)
        size, steps = self.weights_at_many
        return not ((size <= most_bytes) & (steps <= most_steps)).any()

    @cached_property
    def weights_at_many(self) -> tuple[np.ndarray, np.ndarray]:
        """What it takes wherever one size is as far from its least as it must hold at many: see `weights`."""
        least = {name: _least_size(each) for name, each in self.symbols.items()}
        larger = [{**least, name: size + self.at_least - 1} for name, size in least.items()]
        return self.weights(Values.of_all(larger or [least]))

    @property
    def reads_dims(self) -> bool:
        """Whether it reads nothing but the dims of its input."""
        return self.node.op_type in ("Shape", "Size")

    def weights(self, values: Values) -> tuple[np.ndarray, np.ndarray]:
        """Return about how many bytes its tensors have, and how many steps it takes: of the first sizes, the least."""
        counts, total = [], np.zeros(values.count)
        for tensor in (*self.read, *self.told):
            dims = (values.of(dim).astype(float) for dim in _sized_expressions(tensor.dims or (), values))
            counts.append(np.prod([np.maximum(dim, 0) for dim in dims], axis=0) * np.ones(values.count))
            total += counts[-1] * (BITS.get(tensor.dtype, 64) / 8)
        if self.reads_dims:
            return total / UNTOUCHED, np.zeros(values.count)
        if (count := MACS.get(self.node.operator)) is not None:
            with suppress(UnknownError):
                for known in _sized_expressions([count(NodeFacts(self.node, self.inputs, self.outputs))], values):
                    return total, np.maximum(values.of(known).astype(float) * np.ones(values.count), 0)
        return total, np.sum(counts, axis=0)  # each element is a step


def _tensor_facts(tensor: Tensor) -> Hashable:
    if isinstance(tensor, TensorSequence):
        return tuple(map(_tensor_facts, tensor.items)) if tensor.items is not None else (tensor.common, tensor.length)
    return tensor.dtype, tensor.dims, tensor.elements if tensor.may_have_data else None


def _has_elements(tensor: Tensor) -> bool:
    return tensor.may_have_data and tensor.data is not None


def _tensor_elements(tensor: Tensor) -> Sequence[Expr | float]:
    found = tensor.elements or () if tensor.may_have_data else ()
    return [each.dividend if isinstance(each, Ratio) else each for each in found]


def _tensor_expressions(tensors: Iterable[Tensor]) -> Iterator[Expr]:
    for tensor in tensors:
        yield from tensor.dims or ()
        yield from (each for each in _tensor_elements(tensor) if isinstance(each, Expr))
        if isinstance(tensor, TensorSequence):
            yield from _tensor_expressions(tensor.items or ())


def _sized_expressions(exprs: Iterable[Expr], values: Values) -> Iterator[Expr]:
    return (expr for expr in exprs if expr.symbols <= values.columns.keys())


def _claims_of(shapes: Shapes, nodes: Iterable[Node], values: Iterable[Value]) -> Iterator[_Claim]:
    """Yield what is said of the nodes of a model that run, but for constants and nodes with bodies."""
    noted: dict[Node, tuple[list[Requirement], ...]] = defaultdict(lambda: ([], []))
    meant: dict[Node, list[Relation]] = defaultdict(list)
    needed_by: dict[Node, list[Relation]] = defaultdict(list)
    for place, requirements in enumerate((shapes.limits, shapes.equalities)):
        for each in requirements:
            noted[each.node][place].append(each)
    for node, precondition in shapes.preconditions[0]:
        meant[node] += (Relation.equal(*pair) for pair in precondition.equalities())
        if isinstance(precondition, Related) and precondition.relation.relation != "==":
            needed_by[node].append(precondition.relation)
    first = {value: tensor for value in values if (tensor := shapes.first.get(value)) is not None}
    told = [value for value, tensor in first.items() if _has_elements(tensor)]

    def before(node: Node) -> Iterator[Node | None]:
        given = (value for body in node.bodies.values() for value in body.outputs)
        yield from map(_producing_node, (*node.operands, *given))

    needed = {*walk_breadth_first(filter(None, map(_producing_node, told)), before)}
    seen: dict[Hashable, _Claim] = {}
    for node in (node for node in nodes if not node.bodies and node.constant is None):
        inputs = tuple(None if value is None else shapes.first.get(value, UNKNOWN) for value in node.inputs)
        outputs = tuple(None if value is None else shapes.first.get(value) for value in node.outputs)
        held = [None if value is None else value.constant for value in node.inputs]
        constants = [None if each is None or (payload_size(each) or 0) > MAX_CONSTANT else each for each in held]
        content = (None if each is None else each.raw_data or each.SerializeToString() for each in constants)
        spelled = node.proto.overload, node.proto.HasField("domain")
        key = node.signature, spelled, *map(id, (*inputs, *outputs)), *content
        if (known := seen.get(key)) is not None:  # which has the very same facts
            known.is_needed |= node in needed
            continue
        bare = (None if each is None else _bare_constant(shapes.model, each) for each in constants)
        alone = {at: each for at, each in enumerate(bare) if each is not None}
        limits, equal = map(tuple, noted[node])
        relations = limits, equal, tuple(meant[node]), tuple(needed_by[node])
        claim = _Claim(node, inputs, outputs, alone, *relations, is_needed=node in needed)
        seen[key] = claim
    yield from (claim for claim in seen.values() if claim.told and claim.says_something)


def _producing_node(value: Value) -> Node | None:
    """Return the node that gives a value, of an input of a body the node around it."""
    return value.producer or value.scope.owner


def _bare_constant(model: Model, tensor: TensorProto) -> TensorProto | None:
    """Return a constant with its bytes in it, without a name."""
    copy = deepcopy(tensor)
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


# Sizes at which claims are tried: drawn from a seed, and near all numbers in them.


def _least_size(symbol: Symbol) -> int:
    """Return the least size that a symbol may have, 0 where it has none."""
    return int(symbol.lower) if isfinite(symbol.lower) else 0


def _draw_sizes(symbols: Sequence[Symbol], numbers: set[int], is_of_numbers: bool, seed: int) -> Values:
    """Return sizes of symbols: their least ones; one for all; small ones and a larger one; or any."""
    rng = random.Random(f"{seed} {symbols} {sorted(numbers)}")
    near = sorted(number for number in numbers if is_of_numbers or 0 <= number <= LARGER[-1])
    pool = [*(NUMBERS if is_of_numbers else (*SMALL, *LARGER)), *near]

    def draw() -> int:
        chosen = rng.randrange(len(pool) + ANY)
        return pool[chosen] if chosen < len(pool) else rng.randrange(1, 1 << rng.randrange(2, most))

    rows, most = [[_least_size(each) for each in symbols]], 31 if is_of_numbers else 10
    for turn in range(DRAWN if symbols else 0):
        common, large = draw(), rng.randrange(len(symbols))
        row = []
        for at, each in enumerate(symbols):
            if turn % 4 == 0:
                size = common
            elif turn % 4 == 1:
                size = _least_size(each) + rng.randrange(8)
            else:
                size = draw() if turn % 4 == 2 or at == large else rng.choice(SMALL)
            if each.upper < INF and rng.random() < 0.5:  # an element of a tensor, or a dim up to a size
                size = int(rng.choice((each.lower, each.upper))) + rng.choice((0, 1, -1))
            row.append(int(min(max(size, each.lower), each.upper)))
        rows.append(row)
    columns = zip(symbols, zip(*dict.fromkeys(map(tuple, rows)), strict=True), strict=True)
    return Values({each.name: size_column(listed) for each, listed in columns})


def _sizes_of(claim: _Claim, values: Values) -> Iterator[Sizes]:
    """Yield the sizes at which a claim is tried, each once: those that were drawn, then some that make it run.

    Of sizes that give the node the same dims and numbers, all but the first come last.
    """
    seen, fed, again = set[tuple[int, ...]](), set[tuple[int, ...]](), list[Sizes]()
    values = _enlarge_sizes(claim, values)
    for several in chain([values], _equalise_sizes(claim, values)):
        weights = claim.weights(several)
        rows, steps = np.flatnonzero(claim.legal(several, weights)), weights[1]
        columns = [column.tolist() for column in several.columns.values()]
        read = [several.of(expr).tolist() for expr in _sized_expressions(_tensor_expressions(claim.read), several)]
        for row in (rows[np.argsort(steps[rows], kind="stable")] if steps[0] > STEPS / TIMES else rows).tolist():
            sizes, given = tuple(column[row] for column in columns), tuple(column[row] for column in read)
            if sizes not in seen and given in fed:
                again.append((several, row))
            elif sizes not in seen:
                fed.add(given)
                yield several, row
            seen.add(sizes)
            if claim.meant and several is values and len(fed) == sum(ROUNDS[:2]):
                break  # next are those that were made to be equal
    yield from again


def _enlarge_sizes(claim: _Claim, values: Values) -> Values:
    """Return sizes of which those are doubled, as often as need be, that are too small for the node to run."""
    names = frozenset[str]().union(*(each.symbols for each in claim.needed))
    runs, columns, larger = claim.runs(values), values.columns, values.columns
    for _ in range(DOUBLED):
        if runs.all():
            break
        larger = {name: sizes * 2 if name in names else sizes for name, sizes in larger.items()}
        allowed = [sizes <= claim.symbols[name].upper for name, sizes in larger.items()]
        mended = np.logical_and.reduce([claim.runs(Values(larger)), ~runs, *allowed])
        columns = {name: np.where(mended, larger[name], sizes) for name, sizes in columns.items()}
        runs |= mended
    return Values(columns)


def _equalise_sizes(claim: _Claim, values: Values) -> Iterator[Values]:
    """Yield sizes of which one was changed, such that two expressions are equal that must be."""
    for row in range(values.count if claim.equal or claim.meant else 0):
        sizes = {name: int(several[row]) for name, several in values.columns.items()}
        for equal in (*claim.equal, *claim.meant):
            names = sorted((equal.left.symbols | equal.right.symbols) & sizes.keys())
            name = names[row % len(names)] if names else ""
            if not name or len([*_sized_expressions((equal.left, equal.right), values)]) < 2:
                continue
            least = _least_size(claim.symbols[name])
            scanned = np.arange(least, int(min(claim.symbols[name].upper, least + SCANNED)) + 1)
            several = Values({**{each: size_column([size]) for each, size in sizes.items()}, name: scanned})
            if (places := np.flatnonzero(several.of(equal.left) == several.of(equal.right))).size:
                sizes[name] = int(scanned[places[row % places.size]])
        yield Values({name: size_column([size]) for name, size in sizes.items()})


def _run_claims(claims: Sequence[_Claim], seed: int) -> Iterator[None]:
    """Run claims at as many sizes as are needed, and those that fail at some at others; yield when a round is begun."""
    drawn: dict[Hashable, Values] = {}  # of all claims with the same symbols
    for group, alike in group_pairs((claim.group, claim) for claim in claims).items():
        symbols = [alike[0].symbols[name] for name in sorted(alike[0].symbols)]
        numbers = set[int]().union(*(claim.numbers for claim in alike))
        drawn[group] = _draw_sizes(symbols, numbers, group[1], seed)
    waiting = {claim: _sizes_of(claim, drawn[claim.group]) for claim in claims if claim.feeds is not None}
    for count in ROUNDS:
        check_time()
        tried = list[tuple[_Claim, list[Sizes], list[int]]]()
        answers = run_small_models(_models_to_try(waiting, count, tried))
        yield
        for claim, listed, counts in tried:
            found = [(next(answers), times) for times in counts]
            lists = ([answer] * times if isinstance(answer, str) else answer for answer, times in found)
            _compare_runs(claim, listed, [*chain.from_iterable(lists)])
        waiting = {claim: sizes for claim, sizes in waiting.items() if not claim.fault and claim.held < claim.at_least}
        for claim in waiting:
            if claim.failure == NOT_INFERRED and claim.is_large:
                claim.is_large, waiting[claim] = False, _sizes_of(claim, drawn[claim.group])
    for claim in claims:
        why = f"it ran at {claim.held} of {claim.at_least} sizes: {claim.failure or 'at others it is too large'}"
        if claim.feeds is None or claim in waiting:
            what = f"{claim.node.path} ({claim.node.operator})"
            why = "nothing is known of an input" if claim.feeds is None else why
            claim.gap = f"what is known of {what} was not compared: {why}"


def _models_to_try(
    waiting: Mapping[_Claim, Iterator[Sizes]], count: int, tried: list[tuple[_Claim, list[Sizes], list[int]]]
) -> Iterator[SmallModel]:
    """Yield what to run of claims at so many sizes each; note the sizes, and on how many feeds each model is run."""
    for claim, sizes in waiting.items():
        listed = list(islice(sizes, count))
        models = _small_models(claim, listed)
        tried.append((claim, listed, [len(fed) for _, fed in models]))
        yield from models


def _compare_runs(claim: _Claim, tried: Sequence[Sizes], outcomes: Sequence[Sequence[np.ndarray] | str]) -> None:
    for sizes, arrays in zip(tried, outcomes, strict=True):
        if isinstance(arrays, str):
            claim.failure = " ".join(arrays.split())[:200]
        elif claim.is_large and any(not array.size or (array < 0).any() for array in arrays):  # not even a rank
            claim.failure = NOT_INFERRED
        elif fault := _difference_text(claim, sizes, arrays):
            claim.fault = fault
            return
        else:
            claim.held += 1


def _small_models(claim: _Claim, tried: Sequence[Sizes]) -> list[SmallModel]:
    """Return what to run to compare a claim at sizes: one model, or one for each where it is only loaded."""
    feeds = [_make_feed(claim, sizes) for sizes in tried]
    if claim.is_large:
        return [(_claim_model(claim, feed), [None]) for feed in feeds]
    return [(_claim_model(claim, None), feeds)]


def _claim_model(claim: _Claim, fixed: Feed) -> bytes:
    """Return a node with what makes its inputs, and what tells of its outputs; one that takes nothing but a feed."""
    graph, node = GraphProto(name="node"), deepcopy(claim.node.proto)
    if node.overload == OF_KERNEL:  # a mark of the proof's own
        node.ClearField("overload")
    names: list[str] = []
    for at, tensor in enumerate(claim.inputs):
        names.append("" if tensor is None else str(at))
        if at in claim.constants:
            constant = graph.initializer.add()
            constant.CopyFrom(claim.constants[at])
            constant.name = names[-1]
        feeds = [name for name in claim.feeds or () if name.split("/")[0] == names[-1]]
        made = [_add_input(graph, claim, name, fixed) for name in feeds]
        if isinstance(tensor, TensorSequence):
            graph.node.append(helper.make_node("SequenceConstruct", made, names[-1:]))
        elif made:
            names[-1] = made[0]
    node.input[:] = names
    node.output[:] = [f"elements/{at}" if value else "" for at, value in enumerate(claim.node.proto.output)]
    graph.node.append(node)
    for name, _, is_elements in claim.shown:
        given = name.replace("shape", "elements")
        if not is_elements and fixed is None:
            graph.node.append(helper.make_node("Shape", [given], [name]))
        graph.output.append(helper.make_empty_tensor_value_info(name if fixed is None else given))
    opsets = [helper.make_opsetid(domain, version) for domain, version in claim.node.scope.opsets.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def _add_input(graph: GraphProto, claim: _Claim, name: str, fixed: Feed) -> str:
    """Add an input of a node, of a dtype that numpy has, and return what the node reads."""
    assert claim.feeds is not None
    tensor = claim.feeds[name]
    kind, given = _fed_dtype(claim, tensor), None if fixed is None else fixed[name]
    if isinstance(given, np.ndarray):
        graph.initializer.append(numpy_helper.from_array(given, name))
    else:
        dims = [dim.constant for dim in tensor.dims or ()] if given is None else given[1]
        graph.input.append(helper.make_tensor_value_info(name, kind, dims))
    if kind == tensor.dtype or claim.reads_dims:
        return name
    graph.node.append(helper.make_node("Cast", [name], [f"{name}/cast"], to=tensor.dtype))
    return f"{name}/cast"


def _fed_dtype(claim: _Claim, tensor: Tensor) -> int:
    """Return the dtype in which an input is fed: one that numpy has, a small one where none of it is read."""
    if claim.reads_dims:
        return TensorProto.UINT8
    return tensor.dtype if tensor.dtype in FLOATS or tensor.dtype in INTEGERS else TensorProto.FLOAT


def _make_feed(claim: _Claim, sizes: Sizes) -> dict[str, np.ndarray | tuple[str, list[int]]]:
    """Return the inputs of a claim: arrays, and of those without elements dtype and dims."""
    found: dict[str, np.ndarray | tuple[str, list[int]]] = {}
    for name, tensor in (claim.feeds or {}).items():
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(_fed_dtype(claim, tensor)))
        if tensor.data is not None and not claim.reads_dims:
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
    found: list[float | None] = []
    for element in tensor.elements or ():
        if isinstance(element, Ratio):
            kind, value = FLOATS[tensor.dtype].type, _evaluate_at(element.dividend, sizes)
            found.append(None if value is None else float(kind(value) / kind(element.divisor)))
        else:
            found.append(element if isinstance(element, float) else _evaluate_at(element, sizes))
    return found


def _difference_text(claim: _Claim, sizes: Sizes, arrays: Sequence[np.ndarray]) -> str:
    """Return how what onnxruntime gives differs from what the engine says, "" where it does not."""
    for (_, tensor, is_elements), array in zip(claim.shown, arrays, strict=True):
        dims = [_evaluate_at(dim, sizes) for dim in tensor.dims or ()]
        told = _evaluate_elements(tensor, sizes) if is_elements else dims
        found = array.ravel().tolist()
        if len(told) != len(found) or not all(map(_is_same, told, found)):
            node, (values, row) = claim.node, sizes
            at = ", ".join(f"{name}={sizes_of_it[row]}" for name, sizes_of_it in values.columns.items())
            text = f"{'elements' if is_elements else 'dims'} of {node.path} ({node.operator}) are {told[:8]}"
            return f"the shape engine says that the {text}, and onnxruntime gives {found[:8]}" + f" at {at}" * bool(at)
    return ""


def _is_same(told: float | None, found: float) -> bool:
    if told is None or (told != told and found != found):
        return True
    return told == found and (told != 0 or not isinstance(told, float) or np.signbit(told) == np.signbit(found))
