"""How large the scores of attentions become to which masks are added, found by running lowered models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from graphkit.deploy.contract import Method
from graphkit.deploy.hosts import Host
from graphkit.deploy.lowered_contract import Lowered
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.rewrite.new_interface import NewInput, with_outputs
from graphkit.runtime.session import IsolatedSession
from graphkit.shapes import Shapes, infer
from graphkit.verify.lowering_verifier import vocabulary_size

__all__ = ["largest_score"]

MASKS = ("slots_mask", "source_mask", "rows")  # kinds of inputs that carry no activations
SEED = 0
MOST_STEPS = 256


def largest_score(parts: Sequence[Lowered], folder: Path) -> float | None:
    """Return the largest magnitude of a score that a mask is added to, None where no mask is.

    A source of the fixed length and a prompt, both of random tokens, run through host and lowered models, to a full
    cache or for `MOST_STEPS`.

    Args:
        parts: The lowered models.
        folder: The folder of `contract.json` and the tables.

    Raises:
        ModelError: A model does not load or run.
    """
    runs = _Runs(parts)
    if not runs.scores:
        return None
    host = Host(folder, runs, unchecked=True)
    rng = np.random.default_rng(SEED)
    contract = host.contract
    steps = min(contract.sizes["positions"], MOST_STEPS)
    tokens = rng.integers(0, vocabulary_size(contract), max(contract.sizes["source"], steps)).tolist()
    user = {
        port.name: rng.normal(0, 1, port.shape).astype(port.dtype)
        for method in contract.methods
        for port in method.inputs
        if port.kind == "user"
    }
    source = [tokens[: contract.sizes["source"]]] * host.batch if contract.takes_text else ()
    host.start(source, user)
    for token in tokens[:steps]:
        host.step([token] * host.batch)
    return runs.largest


class _Runs:
    """Lowered models that give their scores too.

    Attributes:
        scores: How many there are.
        largest: The largest magnitude of one so far.
    """

    def __init__(self, parts: Sequence[Lowered]) -> None:
        self.scores, self.largest = 0, 0.0
        self.opened: dict[str, IsolatedSession] = {}
        for part in parts:
            shapes = infer(part.model)
            scores = masked_scores(part.model, part.method, shapes)
            self.scores += len(scores)
            self.opened[part.method.name] = IsolatedSession(_with_scores(part.model, scores, shapes))

    def __call__(self, method: Method, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        outputs = self.opened[method.name].run(feed)
        known = {port.name for port in method.outputs}
        for name, scores in outputs.items():
            if name not in known:
                finite = np.abs(scores[np.isfinite(scores)].astype(np.float64))
                self.largest = max(self.largest, float(finite.max(initial=0.0)))
        return outputs


def masked_scores(model: Model, method: Method, shapes: Shapes) -> tuple[Value, ...]:
    """Return the scores that masks are added to before a Softmax."""
    data = _data_values(model, method)
    masked = []
    for node in model.graph.nodes:
        weighed = node.input(0)
        added = weighed.producer if weighed is not None and node.is_op("Softmax") else None
        if added is None or not added.is_op("Add"):
            continue
        scores = [value for value in added.inputs if value is not None and value in data]
        if len(scores) == 1 and shapes[scores[0]].sizes() is not None:
            masked.append(scores[0])
    return tuple(dict.fromkeys(masked))


def _data_values(model: Model, method: Method) -> set[Value]:
    """Return the values that depend on activations: on any input but masks and rows of positions."""
    masks = {port.name for port in method.inputs if port.kind in MASKS}
    data = {value for value in model.graph.inputs if value.name not in masks}
    for node in model.graph.nodes:
        if any(value in data for value in node.inputs):
            data.update(value for value in node.outputs if value is not None)
    return data


def _with_scores(model: Model, scores: Sequence[Value], shapes: Shapes) -> Model:
    values = dict.fromkeys((*model.graph.outputs, *scores))
    outputs = [(value.name, NewInput(value.name, shapes[value].dtype, shapes[value].sizes() or ())) for value in values]
    return with_outputs(model, outputs)
