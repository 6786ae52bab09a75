"""The legal sizes of a model, and the search for legal assignments of its symbols, nearest to a wish first.

Relations come from the shape engine (`num_channels = 3`, windows that fit), from roles (a decoder's mask spans past and
new tokens), and from a rewritten model. They do not prove that a model runs: onnxruntime has the last word.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from graphkit.graph.roles import MASKS, Axis
from graphkit.graph.view import Node, all_scopes, find_nodes
from graphkit.model import Model
from graphkit.ops.data_movement import Concatenated
from graphkit.ops.preconditions import Broadcast, Related
from graphkit.shapes import AS_DECLARED, DimSpec, Expr, Relation, Shapes, const, infer
from graphkit.shapes.constraints.node_constraints import Assignment, Constraint, Values, size_column
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.input_dims import input_dims
from graphkit.symbolic.expr import Call, Symbol, TooComplexError

MAX_VISITS = 20_000  # sizes looked at to find a legal assignment
MAX_DOMAIN = 256
SQUARES = range(32, 2049)  # the sizes of square pictures
CHUNKS = (1, 8)  # how many sizes are evaluated together at first: the wished one is usually legal


class Variable(Struct, frozen=True):
    """A symbol to choose a size for."""

    name: str
    role: Axis
    low: int  # its least and its largest size, perhaps infinite
    high: float
    preferred: tuple[int, ...] = ()  # sizes to try right after the one wished for
    like: str = ""  # the symbol whose size it has to have


def search_nearest_sizes(
    variables: Sequence[Variable], constraints: Sequence[Constraint], wish: Assignment, visits: int = MAX_VISITS
) -> Iterator[dict[str, int]]:
    """Return legal assignments: the sizes of each symbol from the wished one outwards, the last symbol varying first.

    Symbols that follow from others come last. Constraints on other symbols are ignored. The search ends after so many
    visits of sizes. If it finds nothing, symbols whose product is a number are equal, as height and width of a picture.
    """
    if not variables:
        yield {}
        return
    square = _with_squares(variables, constraints)
    for some in (variables, square) if square != [*variables] else (variables,):
        found = _Search(some, constraints, wish, visits).assignments()
        if (first := next(found, None)) is not None:
            yield first
            yield from found
            return


def _with_squares(variables: Sequence[Variable], constraints: Iterable[Constraint]) -> list[Variable]:
    """Return variables of which the second of two in a product has the size of the first."""
    likes = dict[str, str]()
    for left, right in filter(None, map(_sides_of, constraints)):
        names = [each.name for each in variables if each.name in left.symbols | right.symbols]
        if len(names) == 2 and any(len(monomial) == 2 for monomial, _ in (left - right).terms):
            likes.setdefault(names[1], names[0])
    first = dict.fromkeys(likes.values(), (*SQUARES[::32], *SQUARES))
    return [
        replace(each, like=likes.get(each.name, ""), preferred=(*each.preferred, *first.get(each.name, ())))
        for each in variables
    ]


def _sides_of(constraint: Constraint) -> tuple[Expr, Expr] | None:
    relation = constraint.relation if isinstance(constraint, Related) else constraint
    return (relation.left, relation.right) if isinstance(relation, Relation) and relation.relation == "==" else None


class _Search:
    def __init__(
        self, variables: Sequence[Variable], constraints: Sequence[Constraint], wish: Assignment, visits: int
    ) -> None:
        self.variables, self.wish, self.visits = variables, wish, visits
        place = {variable.name: index for index, variable in enumerate(variables)}
        self.levels: list[list[Constraint]] = [[] for _ in variables]  # to test once a symbol is chosen
        for constraint in constraints:
            if constraint.symbols and constraint.symbols <= place.keys():
                self.levels[max(map(place.__getitem__, constraint.symbols))].append(constraint)
        self.named = [{name for constraint in level for name in constraint.symbols} for level in self.levels]

    def assignments(self) -> Iterator[dict[str, int]]:
        """Yield assignments depth first; if no size of a symbol will do, the symbols that it depends on change."""
        names = [variable.name for variable in self.variables]
        chosen: dict[str, int] = {}
        open_sizes = [self._sizes_that_meet(0, chosen)]  # of each symbol that is being chosen
        guilty = [{*self.named[0]}]
        while open_sizes:
            name = names[len(open_sizes) - 1]
            size = next(open_sizes[-1], None)
            if size is None:  # go back to the last symbol whose size may make a difference
                open_sizes.pop()
                blamed = guilty.pop() - {names[len(guilty)]}
                while open_sizes and names[len(open_sizes) - 1] not in blamed:
                    open_sizes.pop()
                    guilty.pop()
                if guilty:
                    guilty[-1] |= blamed
                continue
            chosen[name] = size
            if len(open_sizes) < len(names):
                open_sizes.append(self._sizes_that_meet(len(open_sizes), chosen))
                guilty.append({*self.named[len(guilty)]})
                continue
            yield dict(chosen)
            guilty[-1].update(names)

    def _sizes_that_meet(self, depth: int, chosen: Mapping[str, int]) -> Iterator[int]:
        """Yield the sizes of a symbol at which every constraint of its level is met."""
        variable, constraints = self.variables[depth], self.levels[depth]
        before = {name: chosen[name] for name in self.named[depth] - {variable.name}}
        forced = [_forced_size(constraint, before) for constraint in constraints]
        only = dict.fromkeys(size for size in forced if size is not None)
        if len(only) == 1:  # the equalities that force it are met
            constraints = [free for free, size in zip(constraints, forced, strict=True) if size is None]
        sizes = iter(only) if only else _sizes_by_distance(variable, self.wish.get(variable.name))
        if variable.like:
            sizes = iter((chosen[variable.like],))
        for count in itertools.chain(CHUNKS, itertools.repeat(MAX_DOMAIN)):
            chunk = list(itertools.islice(sizes, count))
            if not chunk:
                return
            met = [True] * len(chunk)
            if constraints:
                columns = {symbol: size_column([size]) for symbol, size in before.items()}
                values = Values({**columns, variable.name: size_column(chunk)})
                met = np.logical_and.reduce([values.is_met(constraint) for constraint in constraints]).tolist()
            for size, is_met in zip(chunk, met, strict=True):
                self.visits -= 1
                if self.visits < 0:
                    return
                if is_met and variable.low <= size <= variable.high:
                    yield size


def _forced_size(constraint: Constraint, chosen: Mapping[str, int]) -> int | None:
    relation = constraint.relation if isinstance(constraint, Related) else constraint
    if not isinstance(relation, Relation) or relation.relation != "==":
        return None
    try:
        return relation.substitute(chosen).forced_size()
    except (TooComplexError, ZeroDivisionError):
        return None


def _sizes_by_distance(variable: Variable, wish: int | None) -> Iterator[int]:
    """Yield sizes by their distance from the wished one; for images, multiples of powers of two come before others.

    A wish that is too small counts from the least size upwards; for images, one that is too large counts downwards.
    """
    low, wished, most, is_free = variable.low, wish or 0, variable.high, variable.role in ("space", "other")
    high = int(min(most, max(2 * low, low + MAX_DOMAIN)))
    if wished < low:
        wished = low + max(wished, 0)
    start = int(most - (wished - most) % (most - low + 1) if is_free and wished > most else min(wished, most))
    ranges = (range(-(-low // step) * step, high + 1, step) for step in ((32, 16, 8, 1) if is_free else (1,)))
    around = (size for sizes in ranges for size in sorted(sizes, key=lambda size: abs(size - start)))
    seen = set[int]()
    for size in itertools.chain((start,), variable.preferred, around):
        if size not in seen:
            seen.add(size)
            yield size


class LegalSizes(Struct, frozen=True):
    """The legal sizes of one model."""

    variables: tuple[Variable, ...]  # The symbols to choose sizes for. Those that follow from others come last.
    relations: tuple[Relation, ...]
    fixed: Mapping[str, int]  # sizes of the symbols that are not free
    fixed_roles: Mapping[Axis, int]  # the sizes of the roles of some of these
    # the dims of each input without a default; None if the rank is unknown
    inputs: Mapping[str, tuple[Expr, ...] | None]
    masks: frozenset[str]  # inputs that span past and new tokens, whatever they declare
    totals: tuple[Expr, ...]  # the lengths of such inputs that are a symbol of their own
    past: Expr | None  # positions in the KV cache, and new tokens; None if the model has none
    tokens: Expr | None
    tensors: tuple[tuple[Expr, ...], ...]  # the distinct shapes of computed tensors
    bounded: frozenset[str] = frozenset()  # the symbols that somebody gave bounds
    broadcasts: tuple[Broadcast, ...] = ()  # dims that nodes of the main graph broadcast

    def shapes(self, assignment: Assignment, *, is_first: bool = False) -> dict[str, tuple[int, ...] | None]:
        """Return the shape of each input; on the first step of a merged decoder, without the past.

        An assignment may also have `INPUT.AXIS`, for a dim that is to be unlike others of its name.
        """
        shapes: dict[str, tuple[int, ...] | None] = {}
        for name, dims in self.inputs.items():
            shapes[name] = None if dims is None else tuple(max(dim.evaluate(assignment), 0) for dim in dims)
            if name in self.masks and dims is not None and self.tokens is not None:
                past = 0 if is_first else self.past_size(assignment)
                shapes[name] = (dims[0].evaluate(assignment), self.tokens.evaluate(assignment) + past)
            if (shape := shapes[name]) is not None:
                shapes[name] = tuple(assignment.get(f"{name}.{axis}", size) for axis, size in enumerate(shape))
        return shapes

    def past_size(self, assignment: Assignment) -> int:
        """Return the number of positions in the KV cache, 0 if there is none."""
        return 0 if self.past is None else self.past.evaluate(assignment)

    def for_branch(self, *, is_first: bool, reads_past: bool) -> LegalSizes:
        """Return the legal sizes of a branch of a merged decoder: the first reads no past, the other needs one."""
        if self.past is None or self.tokens is None:
            return self
        length = self.tokens if is_first else self.past + self.tokens
        relations = [Relation.equal(total, length) for total in self.totals]
        relations += [Relation.at_least(self.past, 1)] if reads_past and self.past.symbols else []
        return replace(self, relations=(*self.relations, *relations))

    def near(self, wish: Assignment) -> Iterator[dict[str, int]]:
        """Yield legal assignments, nearest to a wish first."""
        return search_nearest_sizes(self.variables, (*self.relations, *self.broadcasts), wish)

    def cost(self, assignment: Assignment) -> int:
        """Return how many elements the model computes."""
        total = 0
        for dims in self.tensors:
            with suppress(ZeroDivisionError):
                total += math.prod(max(dim.evaluate(assignment), 0) for dim in dims)
        return total


ORDER: Sequence[Axis] = ("batch", "sequence", "past", "encoder", "channels", "other", "space", "total")


def legal_sizes(
    model: Model, spec: DimSpec = AS_DECLARED, relations: Iterable[Relation] = (), shapes: Shapes | None = None
) -> LegalSizes:
    """Return the legal sizes of a model, with more relations; a past may be empty unless the spec forbids it.

    Shapes that are known already save an inference; a past may be empty in them if it may be empty in the result.
    """
    inputs = Inputs(model, spec)
    roles, numbers = symbol_roles(model, inputs.symbolic), inputs.numbers
    shapes = shapes or infer(model, with_empty_past(spec, model, roles))
    table = {value.name: shapes[value].dims for value in model.graph.inputs if value.tensor is None}
    all_dims = [dim for dims in table.values() for dim in dims or ()]
    symbols = {dims.name: dims for dim in all_dims for dims in dim.walk_symbols()}
    bounds = {name: (int(max(each.lower, 0)), each.upper) for name, each in symbols.items()}
    variables = [Variable(name, roles.get(name, "other"), *both) for name, both in bounds.items()]
    variables.sort(key=lambda variable: ORDER.index(variable.role))
    in_step = (table.get(each.name) for each in model.roles.all("tokens", "embeddings", "positions", "token types"))
    past, tokens = _past_dim(shapes), next((dims[1] for dims in in_step if dims and len(dims) > 1), None)
    added = [relation.substitute(numbers) for relation in relations]
    needed = [Relation(each.left, each.relation, each.right) for each in (*shapes.required, *shapes.limits)]
    known = dict.fromkeys(relation.against_zero() for relation in (*needed, *_equal_dims(shapes), *added))
    broadcasts = (each for node, each in shapes.preconditions[0] if node.scope is model.graph)
    names, masks = frozenset(symbols), frozenset[str]()
    if past is not None and tokens is not None:  # of which a merged decoder declares the length that one branch wants
        over = {value.name: table[value.name] for value in model.roles.inputs if model.roles.spans_past(value)}
        masks = frozenset(name for name, dims in over.items() if dims is not None and dims[1].constant is None)
    return LegalSizes(
        variables=tuple(variables),
        relations=tuple(relation for relation in known if relation.symbols and relation.symbols <= names),
        fixed=numbers,
        fixed_roles={roles[name]: size for name, size in numbers.items() if name in roles},
        inputs=table,
        masks=masks,
        totals=tuple(Expr.from_atom(symbols[variable.name]) for variable in variables if variable.role == "total"),
        past=past,
        tokens=tokens,
        tensors=tuple(dict.fromkeys(_computed_dims(shapes, names))),
        bounded=frozenset(name for name, *_ in spec.ranges),
        broadcasts=tuple(dict.fromkeys(x for x in broadcasts if isinstance(x, Broadcast) and x.is_known)),
    )


def _past_dim(shapes: Shapes) -> Expr | None:
    """Return the length of the cache: of one that grows, where windows have others, which keep theirs."""
    lengths = []
    for past, entry in shapes.model.roles.pasts.items():
        dims = shapes[past].dims
        if entry.axis is not None and dims is not None and not shapes.model.roles.is_cross(entry):
            after = shapes[entry.present].dims if entry.present is not None else None
            is_kept = after is not None and after[entry.axis : entry.axis + 1] == (dims[entry.axis],)
            lengths.append((is_kept, dims[entry.axis]))
    return min(lengths, key=lambda length: length[0], default=(False, None))[1]


def _equal_dims(shapes: Shapes) -> Iterator[Relation]:
    """Yield the relations of dims that nodes of the main graph need to be equal, although no shape follows from that.

    Concatenated tensors differ along the axis only: onnxruntime lets inputs without elements differ elsewhere, and then
    may return uninitialized memory.
    """
    for node, precondition in shapes.preconditions[-1]:
        if isinstance(precondition, (Concatenated, Related)) and node.scope is shapes.model.graph:
            yield from (Relation.equal(*pair) for pair in precondition.equalities() if pair[0] != pair[1])


def _computed_dims(shapes: Shapes, names: frozenset[str]) -> Iterator[tuple[Expr, ...]]:
    """Yield the known shapes of what nodes compute: their outputs, and the scores that an attention keeps to itself."""
    scopes = shapes.model.scopes
    attentions = {name for scope in all_scopes(scopes) for name in scope.by_operator if name.endswith("Attention")}
    outputs = (shapes[value].dims for value in shapes if value.kind == "node" and not value.is_constant)
    for dims in dict.fromkeys((*outputs, *map(partial(_score_dims, shapes), find_nodes(scopes, *attentions)))):
        if dims is not None and all(dim.symbols <= names for dim in dims):
            yield dims


def _score_dims(shapes: Shapes, node: Node) -> tuple[Expr, ...] | None:
    """Return the dims of the scores of new tokens in one node, None for a node that is no attention."""
    if not node.op_type.endswith("Attention") or not node.inputs or node.inputs[0] is None:
        return None
    key = node.input(1) or node.inputs[0]
    queries, keys = shapes[node.inputs[0]].dims, shapes[key].dims
    if queries is None or keys is None or len(queries) not in (3, 4) or len(keys) < 2:
        return None
    heads = node.attr("q_num_heads" if not node.domain else "num_heads", 1) if len(queries) == 3 else 1
    return (const(heads or 1), *queries[:-1], keys[-2])


# Sizes for the symbols in the dims of a model's inputs that fit together. The roles of inputs and the names of symbols
# tell the role of a symbol. A dim that is an expression (`past_sequence_length + sequence_length`) follows from these.

OTHER = 5  # size of a symbol without a known role
LENGTHS: tuple[Axis, ...] = ("sequence", "encoder", "other")  # roles of symbols that others have, too
WORDS: tuple[tuple[str, Axis], ...] = (  # in the names of symbols
    ("past", "past"), ("batch", "batch"), ("total", "total"), ("encoder", "encoder"), ("seq", "sequence"),
)  # fmt: skip


class Sizes(Struct, frozen=True):
    """The sizes to run a model at."""

    batch: int = 1  # number of sequences
    sequence: int = 1  # new tokens of each sequence
    past: int = 0  # positions in the KV cache
    encoder: int = 4  # positions of the encoder's output
    symbols: tuple[tuple[str, int], ...] = ()  # sizes of symbols by name, which take precedence

    def __str__(self) -> str:
        text = f"batch {self.batch}, sequence {self.sequence}, past {self.past}, encoder {self.encoder}"
        return text + "".join(f", {name} {size}" for name, size in self.symbols)


def symbol_roles(model: Model, dims: Mapping[str, tuple[Expr, ...] | None] | None = None) -> dict[str, Axis]:
    """Return the role of each symbol in the dims of a model's inputs, by default the declared ones."""
    roles: dict[str, Axis] = {}
    inputs, dims = model.roles.inputs, dims or input_dims(model)
    known = sorted(inputs, key=lambda value: (inputs[value] != "past", inputs[value] in MASKS))
    for value in known:  # the cache first, masks last: their dims may be those of the tokens
        for axis, dim in enumerate(dims.get(value.name) or ()):
            if dim.name is not None:
                roles.setdefault(dim.name, model.roles.axis(value, axis))
    for value in inputs:
        for dim in (dims.get(value.name) or ()) if inputs[value] != "past" else ():
            for name in sorted(dim.symbols):
                roles.setdefault(name, next((role for word, role in WORDS if word in name), "other"))
    if not model.roles.cache and {"other", "total"} & set(roles.values()):
        for group in (tied & roles.keys() for tied in tied_symbols(model)):  # others have numbers
            of_group = {roles[name] for name in group}
            role = next((role for role in LENGTHS if role in of_group), None)  # a sound's mask counts what it does
            roles |= {name: role for name in group if role is not None and roles[name] in ("other", "total")}
        if "other" in roles.values():  # what an unknown length has of its own need not count the tokens
            roles = {name: "other" if role == "total" else role for name, role in roles.items()}
    if model.roles.has_slots:  # of which a mask has as many
        roles = {name: "past" if role == "total" else role for name, role in roles.items()}
    return roles


def tied_symbols(model: Model) -> tuple[frozenset[str], ...]:
    """Return the symbols of the inputs that nodes broadcast to each other, or need to be equal.

    A mask of a sound may be read by its sum alone. Then it is as long as the sound.
    """
    roles, shapes, dims = model.roles, infer(model), input_dims(model)
    names = {dim.name for value in roles.inputs for dim in dims.get(value.name) or () if dim.name is not None}
    meetings = [(fact.left, fact.right) for fact in (*shapes.broadcasts, *shapes.equalities)]
    groups = _join_groups(names & _symbols_that_meet(meeting) for meeting in meetings)
    if not roles.cache and (sound := roles.first("audio")) is not None:
        known = map(dims.get, (value.name for value in (sound, *roles.all("mask", "encoder mask"))))
        lengths = [each[1] for each in known if each is not None and len(each) > 1]
        tied = frozenset[str]().union(*groups)
        untied = {name for length in lengths[1:] for name in length.symbols - tied}
        groups = _join_groups([*groups, lengths[0].symbols | untied] if lengths else groups)
    return groups


def _join_groups(groups: Iterable[Collection[str]]) -> tuple[frozenset[str], ...]:
    """Return groups of at least two names; those that share one are one."""
    known: list[frozenset[str]] = []
    for group in map(frozenset, groups):
        if len(group) > 1:
            sharing = [each for each in known if each & group]
            known = [each for each in known if each not in sharing] + [group.union(*sharing)]
    return tuple(known)


def _symbols_that_meet(sides: tuple[Expr, Expr]) -> set[str]:
    """Return the symbols of two dims that meet: these, or those whose squares they are."""
    powers = [monomial for dim in sides for monomial, factor in dim.terms if factor == 1 and len(dim.terms) == 1]
    if len(powers) == 2 and len(powers[0]) == len(powers[1]) > 1 and all(len(set(atoms)) == 1 for atoms in powers):
        return {atoms[0].name for atoms in powers if isinstance(atoms[0], Symbol)}
    return {name for dim in sides for name in _broadcast_symbols(dim)}


def _broadcast_symbols(dim: Expr) -> Iterator[str]:
    """Yield the symbol that a dim is, or those whose dims broadcast to it, or are cut to it."""
    if isinstance(dim.atom, Call) and dim.atom.op in ("max", "min"):
        for argument in dim.atom.args:
            yield from _broadcast_symbols(argument)
    elif dim.name is not None:
        yield dim.name


def with_empty_past(spec: DimSpec, model: Model, roles: Mapping[str, Axis]) -> DimSpec:
    """Return a spec in which a past may be empty unless it has slots from the start or the given one says otherwise."""
    names = () if model.roles.has_slots else [name for name, role in roles.items() if role == "past"]
    empty = {name: (0, None) for name in names if name not in spec.numbers}
    return DimSpec.of(ranges=empty) | spec


def symbol_sizes(model: Model, sizes: Sizes, roles: Mapping[str, Axis] | None = None) -> dict[str, int]:
    """Return a size for each symbol in the declared shapes of a model's inputs, by the roles of the symbols."""
    roles = symbol_roles(model) if roles is None else roles
    past = sizes.past if model.roles.pasts else 0
    by_role: dict[Axis, int] = {"batch": sizes.batch, "sequence": sizes.sequence, "past": sizes.past}
    by_role |= {"encoder": sizes.encoder, "total": sizes.sequence + past}
    return {**{name: by_role.get(role, OTHER) for name, role in roles.items()}, **dict(sizes.symbols)}


def input_shapes(
    model: Model, sizes: Sizes, roles: Mapping[str, Axis] | None = None
) -> dict[str, tuple[int, ...] | None]:
    """Return the shape of each input at these sizes, None if its rank is unknown.

    The mask of a decoder spans past and new tokens, even if a merged decoder declares the length that one branch
    needs.
    """
    symbols, dims = symbol_sizes(model, sizes, roles), input_dims(model)
    shapes: dict[str, tuple[int, ...] | None] = {}
    for value in model.roles.inputs:
        known = dims.get(value.name)
        shapes[value.name] = None if known is None else tuple(_evaluate_dim(dim, symbols) for dim in known)
        if known is not None and model.roles.spans_past(value) and known[1].constant is None:
            shapes[value.name] = _evaluate_dim(known[0], symbols), sizes.past + sizes.sequence
    return shapes


def _evaluate_dim(dim: Expr, symbols: Mapping[str, int]) -> int:
    return max(dim.evaluate({name: symbols.get(name, OTHER) for name in dim.symbols}), 0)
