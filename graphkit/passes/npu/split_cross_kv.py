"""The projection of an encoder's output to the cross-attention cache, as a model of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphkit.errors import UsageError
from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.names import counted
from graphkit.model import Model
from graphkit.rewrite.base import Matched, Pass
from graphkit.rewrite.new_interface import NewInput, with_outputs
from graphkit.shapes import infer

__all__ = ["SplitCrossKv"]


@dataclass(frozen=True)
class SplitCrossKv(Pass):
    """Keep the part of a first-step decoder that depends on the encoder's output alone: the cross-attention cache.

    Nothing but the first step computes it; on its own, it runs once for a source, and every step takes it as input.

    Legality: the model gives a cross-attention cache, which depends on no other input.

    Before:

        agraph (int64[N, L] input_ids, float[N, S, 4] encoder_hidden_states)
        => (float[N, L, 4] logits, float[N, S, 4] present_0_encoder_key)
        <float[4, 4] w = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4},
        float[2, 4] table = {1, 2, 3, 4, 5, 6, 7, 8}> {
            present_0_encoder_key = MatMul (encoder_hidden_states, w)
            logits = Gather (table, input_ids)
        }

    After:

        agraph (float[N, S, 4] encoder_hidden_states) => (float[N, S, 4] present_0_encoder_key)
        <float[4, 4] w = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4}> {
            present_0_encoder_key = MatMul (encoder_hidden_states, w)
        }
    """

    changes_interface: ClassVar[bool] = True

    def run(self, model: Model) -> Matched[CacheEntry]:
        """Return the part of a first-step decoder that makes the cross-attention cache.

        Raises:
            UsageError: There is no such cache, or it depends on something else.
        """
        shapes, entries, outputs = infer(model), list[CacheEntry](), list[tuple[str, NewInput]]()
        for entry in model.roles.cache:
            if entry.present is None or not model.roles.is_cross(entry):
                continue
            present = entry.present
            dims = shapes[present].dims
            if dims is None:
                raise UsageError(f"the rank of '{present.name}' is not known: {shapes.reason(present)}")
            entries.append(entry)
            outputs.append((present.name, NewInput(present.name, shapes[present].dtype, dims)))
        if not outputs:
            raise UsageError(f"{model.name} gives no cross-attention cache")
        part = with_outputs(model, outputs)
        encoder = {value.name for value in model.roles.all("encoder state", "encoder mask")}
        others = [value.name for value in part.graph.inputs if value.name not in encoder]
        if others:
            raise UsageError(f"the cross-attention cache of {model.name} depends on '{others[0]}'")
        change = counted(len(outputs), "output(s) kept, which depend on the encoder alone")
        return Matched(part, (change,), matches=tuple(entries))
