"""The tokens of an export that a model may treat as no others, and where a proof puts them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from graphkit.graph.uses import find_readers
from graphkit.graph.view import Node, Value, unwrap_value
from graphkit.model import Model
from graphkit.verify.input_elements import Draw

__all__ = ["Special", "place_token", "special_tokens", "token_places", "usual_specials", "with_specials"]

MOST = 16  # tokens: some tokenizers add hundreds
MOVES = ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
COMPARING = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
CHOOSING = ("ArgMax", "ArgMin", "TopK")
CONFIGURATIONS = ("generation_config.json", "config.json")
NAMES = ("_token_id", "_token_index")
MAX_BYTES = 1 << 26  # of a tokenizer's file
USUAL_SPECIALS = (0, 1, 2, 3)  # padding, start, end, unknown, in one order or another
MAX_SPECIAL_ROWS = 512  # that get special tokens
TURNS = 6  # first, middle, last, twice, at both ends, not at all


class Special(tuple[int, ...]):
    """Tokens, in order; `pads` are those that a model takes for padding by itself wherever they stand."""

    pads: tuple[int, ...] = ()


def special_tokens(models: Sequence[Model], vocabulary: int) -> Special:
    """Return the special tokens of an export: those that ids are compared with, of its configuration and tokenizer.

    Args:
        models: Its models. The files beside them are read where they are there.
        vocabulary: Tokens are below this.
    """
    compared = {token: nodes for model in models for token, nodes in _compared_constants(model).items()}
    pads = tuple(token for token, nodes in compared.items() if not any(map(_chooses_place, nodes)))
    folders = dict.fromkeys(model.path.parent for model in models if model.path is not None)
    named = [token for folder in folders for token in _named_tokens(folder)]
    known = [token for token in dict.fromkeys([*compared, *named]) if 0 <= token < vocabulary and token not in pads]
    special = Special(known[:MOST])
    special.pads = tuple(token for token in pads if token < vocabulary)
    return special


def token_places(length: int) -> list[tuple[int, ...]]:
    """Return where a token stands among so many: first, in the middle, last, twice, and nowhere."""
    last = length - 1
    return list(dict.fromkeys([(), (0,), (last // 2,), (last,), (last // 3, last), (0, last // 2)]))


def place_token(token: int, ids: Sequence[int], where: Sequence[int], usual: int) -> list[int]:
    """Return ids with a token at these places and another one wherever else it stood."""
    return [token if place in where else usual if id_there == token else id_there for place, id_there in enumerate(ids)]


def _compared_constants(model: Model) -> dict[int, list[Node]]:
    """Return the constants that a model compares its ids with, and the nodes that do."""
    nodes_by_token: dict[int, list[Node]] = {}
    for ids in model.roles.all("tokens", "encoder tokens"):
        for node, index in find_readers(ids, lambda node, index: index == 0 and node.is_op(*MOVES)):
            compared_with = node.input(1 - index) if node.is_op(*COMPARING) else None
            for token in _constant_integers(model, compared_with):
                nodes_by_token.setdefault(token, []).append(node)
    return nodes_by_token


def _constant_integers(model: Model, value: Value | None) -> list[int]:
    tensor = unwrap_value(value, MOVES).constant if value is not None else None
    if tensor is None or int(np.prod(tensor.dims)) > MOST:
        return []
    return [int(number) for number in model.array(tensor).ravel()]


def _chooses_place(node: Node) -> bool:
    """Whether a comparison finds a place, as for an end token, rather than a mask."""
    outputs = [value for value in node.outputs if value is not None]
    return any(
        reader.is_op(*CHOOSING)
        for value in outputs
        for reader, _ in find_readers(
            value, lambda node, _: node.is_op(*MOVES, "Add", "And", "Mul", "Not", "Or", "Where")
        )
    )


def _named_tokens(folder: Path) -> Iterator[int]:
    for name in CONFIGURATIONS:
        yield from _of_configuration(_read_json(folder / name))
    added = _read_json(folder / "tokenizer_config.json").get("added_tokens_decoder")
    yield from (int(text) for text in added if text.isdecimal()) if isinstance(added, Mapping) else ()
    listed = _read_json(folder / "tokenizer.json").get("added_tokens")
    for entry in listed if isinstance(listed, list) else ():
        token = entry.get("id") if isinstance(entry, Mapping) else None
        if isinstance(token, int):
            yield token


def _of_configuration(plain: Mapping[str, object]) -> Iterator[int]:
    for name, entry in plain.items():
        if isinstance(entry, dict):
            yield from _of_configuration(entry)
        elif name.endswith(NAMES):
            yield from (token for token in (entry if isinstance(entry, list) else [entry]) if type(token) is int)


def _read_json(path: Path) -> Mapping[str, object]:
    """Return a file of JSON, nothing where it is none: the proof does not depend on these files."""
    try:
        plain = json.loads(path.read_bytes()) if path.is_file() and path.stat().st_size <= MAX_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def usual_specials(vocabulary: int, compared: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the ids that models treat in their own way: the first ones, the last one, and those of comparisons."""
    specials = dict.fromkeys((vocabulary - 1, *compared, *USUAL_SPECIALS))
    return tuple(token for token in specials if 0 <= token < vocabulary)


def with_specials(ids: np.ndarray, specials: Sequence[int], draw: Draw) -> np.ndarray:
    """Return ids in which each row has a special token at one of its places, and no row another one by chance."""
    array: np.ndarray = ids.copy()
    if not array.size or not array.ndim or not specials:
        return array
    usual = next((token for token in range(int(ids.max()), -1, -1) if token not in specials), None)
    if usual is not None:
        array[np.isin(array, specials)] = usual
    for index, row in enumerate(array.reshape(-1, array.shape[-1])[:MAX_SPECIAL_ROWS]):
        turn = draw.number + index
        token, place, size = specials[turn % len(specials)], turn % TURNS, len(row)
        spots = ([0], [size // 2], [size - 1], [size // 3, size - 1], [0, size - 1], [])[place]
        row[spots] = token
    return array
