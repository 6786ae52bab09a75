"""Leaks of padding in a lowered model that no mask keeps out: a node that mixes positions of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from graphkit.deploy.contract import Method
from graphkit.deploy.hosts import Host
from graphkit.deploy.lowered_contract import Lowered
from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_dims
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.rewrite.new_interface import NewInput, with_outputs
from graphkit.runtime.session import IsolatedSession
from graphkit.shapes import infer
from graphkit.shapes.constraints.symbol_sizes import symbol_roles
from graphkit.verify.input_generator import ExportInputs, InputSpec

__all__ = ["check_padding"]

APART = 1e-3  # relative to the largest element: of which rounding makes no difference
Arrays = dict[str, np.ndarray]


def check_padding(part: Lowered, original: Model, folder: Path) -> None:
    """Check that what padding holds changes nothing of a text, whose tokens are half as many as there may be.

    Args:
        part: The model that runs once for it.
        original: The model, as it was exported; everybody pads one of a fixed length, if the token is known.
        folder: The folder of `contract.json` and the tables.

    Raises:
        UsageError: It does, with the node that takes it to tokens that count.
        ModelError: The model does not load or run.
    """
    rng, fed = np.random.default_rng(0), list[Arrays]()

    def run(method: Method, feed: Mapping[str, np.ndarray]) -> Arrays:
        fed.append(dict(feed))
        return {port.name: np.zeros(port.shape, port.dtype) for port in method.outputs}

    host = Host(folder, run, unchecked=True)
    length, tokens = host.contract.sizes["source"], original.roles.first("tokens")
    is_fixed = tokens is not None and isinstance((declared_dims(tokens) or (0,))[-1], int)
    is_padded = is_fixed and host.contract.tokens["pad"] is not None
    if not host.contract.takes_text or length < 2 or is_padded:
        return
    inputs = ExportInputs([original], rng)
    users = [port for port in part.method.inputs if port.kind == "user"]
    user = {port.name: inputs.array(InputSpec(port.name, port.dtype), port.shape) for port in users}
    host.start([[1] * (length // 2)] * host.batch if host.batch > 1 else [1] * (length // 2), user)
    texts = [port for port in part.method.inputs if (port.kind, port.by) == ("embedding", "source")]
    tables = {port.name: host.tables[port.source.of] for port in texts if port.source is not None}
    noisy = [
        {k: _add_noise(fed[0][k], table, host.batch, length, rng) for k, table in tables.items()} for _ in range(2)
    ]
    pair = [{**fed[0], **rows} for rows in noisy]
    if not _find_leaks(part.model, list(part.model.graph.outputs), pair, length, _valid_dims(original, length // 2)):
        return
    if is_fixed:
        raise UsageError(
            f"{original.name}: it takes {length} tokens, no mask hides those that pad, and nothing says which token "
            "does - give it with --pad"
        )
    values = [value for node in part.model.graph.nodes for value in node.results]
    leaks = _find_leaks(part.model, values, pair, length, {})
    of_all = [value for value in leaks if length in (infer(part.model)[value].sizes() or ())]  # not of a part of them
    if (leak := next(iter(of_all or leaks), None)) is not None and leak.producer is not None:
        raise UsageError(
            f"{original.name}: '{leak.producer.label}' ({leak.producer.op_type}) mixes positions: what padding holds "
            "reaches tokens that count, and no mask keeps it out. Texts shorter than the fixed length would be wrong - "
            "fold the model for each length of its own instead: graphkit fold --dim"
        )


def _add_noise(rows: np.ndarray, table: np.ndarray, batch: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Return the rows of tokens with elements of their table for those of padding."""
    noisy = rows.reshape(batch, length, -1).copy()
    noisy[:, length // 2 :] = rng.choice(table.ravel(), noisy[:, length // 2 :].shape)
    return np.asarray(noisy.reshape(rows.shape))


def _valid_dims(original: Model, valid: int) -> dict[str, tuple[int | None, ...]]:
    """Return the dims of outputs that follow from the length of a text, for one of so many tokens; None for others."""
    shapes, lengths = infer(original), ("encoder", "sequence", "total")
    sizes = {name: valid for name, role in symbol_roles(original).items() if role in lengths}
    return {
        value.name: tuple(
            int(dim.evaluate(sizes)) if dim.symbols and dim.symbols <= sizes.keys() else None
            for dim in shapes[value].dims or ()
        )
        for value in original.graph.outputs
    }


def _find_leaks(
    model: Model,
    values: Sequence[Value],
    pair: Sequence[Arrays],
    length: int,
    valid: Mapping[str, tuple[int | None, ...]],
) -> list[Value]:
    """Return the values of which a part at tokens that count differs, in topological order."""
    shapes = infer(model)
    known = {value: sizes for value in values if (sizes := shapes[value].sizes()) is not None and not value.is_constant}
    outputs = [(value.name, NewInput(value.name, shapes[value].dtype, sizes)) for value, sizes in known.items()]
    with IsolatedSession(with_outputs(model, outputs)) as session:
        first, second = (session.run(feed) for feed in pair)
    halves = {name: tuple(length // 2 if size == length else None for size in first[name].shape) for name in first}
    return [v for v in known if _differs_beyond(first[v.name], second[v.name], valid.get(v.name) or halves[v.name])]


def _differs_beyond(first: np.ndarray, second: np.ndarray, valid: Sequence[int | None]) -> bool:
    if first.dtype.kind != "f":
        return False
    part = tuple(map(slice, valid))
    wide, other = first[part].astype(np.float64), second[part].astype(np.float64)
    return bool(np.abs(wide - other).max(initial=0.0) > APART * max(1.0, np.abs(wide).max(initial=0.0)))
