"""Rows that stand for a whole source, such as that of the end-of-text token: taken by a product with a one-hot row.

Which row it is follows from the tokens, which a lowered model no longer has; so the host makes a row of zeros with a 1
at that place. The rule is found by running the part of the model that chooses: on tokens of the whole vocabulary, with
each token that the model compares ids with at the first, a middle and the last place, twice, and not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from graphkit.contract import By
from graphkit.deploy.deploy_sizes import Setting
from graphkit.deploy.export_pipeline import compared_tokens
from graphkit.dtypes import FLOATS
from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.mask_polarity import make_open_mask
from graphkit.graph.names import free_name, names_in
from graphkit.graph.operator_traits import PICKING, REARRANGING
from graphkit.graph.roles import MASKS
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.passes.npu.host_inputs import PoolRowByOneHot
from graphkit.rewrite.base import Outcome
from graphkit.rewrite.host_values import find_dependences
from graphkit.rewrite.new_interface import NewInput, with_inputs, with_outputs
from graphkit.runtime.session import IsolatedSession, RunError
from graphkit.shapes import Shapes, infer
from graphkit.shapes.constraints.legal_sizes import symbol_roles
from graphkit.shapes.input_dims import read_dim

LENGTHS = ("encoder", "sequence", "total")
DRAWS = 8  # of random tokens at each length
ROWS = 2  # sequences at a time


class PlaceRule(Struct, frozen=True):
    """The rule by which a host finds the place of a row."""

    by: By  # its name in a contract
    token: int | None  # the token at whose first place it is; None where another rule holds
    words: str  # which row it is
    place: Callable[[np.ndarray], int]  # returns the place by the tokens of a source


class Pooling(Struct, frozen=True, eq=False):
    """A row `out` of states that stands for a source; the input `name`, of a dtype, says by a rule which one it is."""

    out: str
    states: str
    name: str
    rule: PlaceRule
    dtype: int


class _Choice(NamedTuple):
    """A node that takes rows of states, its output, and the states [batch, source, hidden]."""

    node: Node
    out: Value
    states: Value


def pool_by_product(model: Model, setting: Setting, vocabulary: int) -> tuple[Outcome, list[Pooling]]:
    """Return the outcome of taking such rows by products with inputs, and these inputs; refuse rows by no rule."""
    lengths = frozenset(name for name, role in symbol_roles(model).items() if role in LENGTHS)
    if not setting.is_padded or setting.capacity or not vocabulary:
        return Outcome(model), []
    shapes, pooled = infer(model), list[Pooling]()
    for choice in _find_choices(model, shapes, setting, lengths):
        if (rule := _find_rule(model, shapes, choice, setting, lengths, vocabulary)) is not None:
            if any(pooling.rule.token not in (None, rule.token) for pooling in pooled if rule.token is not None):
                raise UsageError(f"{model.name}: two rows are chosen by different tokens - keep one of these outputs")
            names = {(pooling.rule.by, pooling.rule.token, pooling.dtype): pooling.name for pooling in pooled}
            name = names.get((rule.by, rule.token, shapes[choice.states].dtype)) or free_name(
                "pooling", names_in(model.scopes) | {*names.values()}
            )
            pooled.append(Pooling(choice.out.name, choice.states.name, name, rule, shapes[choice.states].dtype))
    rows, inputs = ((pooling.out, pooling.states) for pooling in pooled), ((p.out, p.name) for p in pooled)
    return PoolRowByOneHot(tuple(rows), tuple(inputs)).run(model), pooled


def _find_choices(model: Model, shapes: Shapes, setting: Setting, lengths: frozenset[str]) -> Iterator[_Choice]:
    """Yield the nodes that may take one row of each sequence."""
    known = find_dependences(model, shapes)
    for node in model.graph.nodes:
        data, out = node.input(0), node.outputs[0] if node.outputs else None
        if not node.is_op(*PICKING - {"Split"}) or data is None or out is None:
            continue
        if data not in known or not known[data].data:
            continue
        states = _find_states(data, shapes, setting, lengths)
        dims = shapes[out].dims
        if states is None or dims is None or any(dim.symbols & lengths for dim in dims):
            continue
        if dims[-1:] == (shapes[states].dims or ())[-1:] and len(dims) in (2, 3):
            yield _Choice(node, out, states)


def _find_states(value: Value, shapes: Shapes, setting: Setting, lengths: frozenset[str]) -> Value | None:
    """Return the states [batch, source, hidden] that a value holds, perhaps in other dims."""
    while True:
        dims = shapes[value].dims
        _, length, hidden = dims if dims is not None and len(dims) == 3 else (None, None, None)
        is_source = length is not None and (length.symbols & lengths or length.constant == setting.source)
        if is_source and hidden is not None and not hidden.symbols:
            return value if shapes[value].dtype in FLOATS else None
        producer = value.producer
        before = producer.input(0) if producer is not None and producer.is_op(*REARRANGING) else None
        if before is None:
            return None
        value = before


def _find_rule(
    model: Model, shapes: Shapes, choice: _Choice, setting: Setting, lengths: frozenset[str], vocabulary: int
) -> PlaceRule | None:
    """Return the rule by which a node chooses; None where it takes the first row, or not one of each sequence."""
    dims, of = shapes[choice.states].dims, shapes[choice.out].dims
    assert dims is not None
    assert of is not None
    states = NewInput(free_name("states", names_in(model.scopes)), shapes[choice.states].dtype, dims)
    fed = with_inputs(model, {choice.states: states})
    part = with_outputs(fed, [(choice.out.name, NewInput(choice.out.name, shapes[choice.out].dtype, of))])
    tokens = [token for token in compared_tokens(model) if token < vocabulary]
    is_of_tokens = any(part.roles.of(value) == "tokens" for value in part.graph.inputs)
    batch, length = dims[:2]
    rules = [LARGEST, *map(_first_token_rule, tokens)] if is_of_tokens else []
    rules += [LAST] if length.symbols else []  # the last of a fixed length may be padding, which counts there
    is_first = True
    if not rules:
        return None
    with IsolatedSession(part) as session:
        known = range(1, setting.source + 1) if length.symbols else range(setting.source, setting.source + 1)
        for ids in _sample_sources(known, batch.constant or ROWS, vocabulary, tokens):
            if (places := _places_taken(session, part, setting, lengths, ids)) is None:
                break
            is_first &= not any(places)
            rules = [rule for rule in rules if [rule.place(row) for row in ids] == places]
        else:
            if is_first or rules:
                return None if is_first else rules[0]
    if not is_of_tokens:
        return None
    raise UsageError(
        f"{model.name}: '{choice.node.label}' takes a row that follows from the tokens by no rule that a host knows: "
        "it is neither that of the last token, of the largest id, nor of the first token that ids are compared with"
    )


LAST = PlaceRule("valid_length", None, "the last token of the source", lambda ids: len(ids) - 1)
LARGEST = PlaceRule(
    "largest_id", None, "the first of the largest token ids of the source", lambda ids: int(ids.argmax())
)


def _first_token_rule(token: int) -> PlaceRule:
    words = f"the first token {token} of the source, or its first token where there is none"
    return PlaceRule("first_token", token, words, lambda ids: int(np.argmax(ids == token)))


def _sample_sources(lengths: range, rows: int, vocabulary: int, tokens: Sequence[int]) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    for length in sorted({lengths[0], lengths[min(1, len(lengths) - 1)], lengths[len(lengths) // 2], lengths[-1]}):
        for _ in range(DRAWS):
            yield rng.integers(0, vocabulary, (rows, length))
        last = length - 1
        for token in tokens:  # at the first, a middle and the last place, twice, and not at all
            ids = rng.integers(0, vocabulary, length)
            without = np.where(ids == token, token + 1 if token == 0 else token - 1, ids)
            for places in ((), (0,), (last // 2,), (last,), (last // 3, last), (0, last // 2)):
                row = without.copy()
                row[list(places)] = token
                yield np.stack([row, *rng.integers(0, vocabulary, (rows - 1, length))])


def _places_taken(
    session: IsolatedSession, part: Model, setting: Setting, lengths: frozenset[str], ids: np.ndarray
) -> list[int] | None:
    """Return which row is taken of each sequence; None where it is not one of its own."""
    rows, length = len(ids), len(ids[0])
    dims: dict[str, int] = {**setting.dims, **dict.fromkeys(setting.batch, rows), **dict.fromkeys(lengths, length)}
    feed: dict[str, np.ndarray] = {}
    for value in part.graph.inputs:
        if (array := _feed_value(part, value, dims, ids)) is None:
            return None
        feed[value.name] = array
    try:
        (out,) = session.run(feed).values()
    except RunError:
        return None
    if len(out) != rows:
        return None
    numbers = out.reshape(rows, -1).astype(np.float64) - length * np.arange(rows)[:, None]
    places = numbers[:, 0].astype(int)
    is_row = (numbers == places[:, None]).all() and (places >= 0).all() and (places < length).all()
    return [int(place) for place in places] if is_row else None


def _feed_value(part: Model, value: Value, dims: Mapping[str, int], ids: np.ndarray) -> np.ndarray | None:
    declared, role = declared_type(value), part.roles.of(value)
    if declared is None or declared.dims is None or None in declared.dims:
        return None
    shape = [read_dim(dim, dims).evaluate(dims) for dim in declared.dims if dim is not None]
    kind = declared.numpy_dtype
    if value is part.graph.inputs[-1]:  # the states: the number of each row
        numbers = np.arange(np.prod(shape[:2])).reshape(*shape[:2], 1)
        return np.ascontiguousarray(np.broadcast_to(numbers, shape).astype(kind))
    if declared.is_float:  # of which the shape may be read
        return np.zeros(shape, kind)
    if role == "tokens":
        return ids.astype(kind)
    if role in MASKS:
        return make_open_mask(np.empty(shape, kind), part.roles.polarities[value])
    return np.zeros(shape, kind) if role == "token types" else None
