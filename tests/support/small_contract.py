"""A contract of a small decoder, as one of a lowered folder."""

from __future__ import annotations

from graphkit.contract import Contract, Generation, Method, Port, Source, State, Table
from graphkit.contract.host_contract import FileRecord

__all__ = ["SMALL"]

SMALL = Contract(
    "generic-npu",
    {
        "batch": 1,
        "source": 0,
        "capacity": 3,
        "positions": 4,
        "layers": 1,
        "heads": 2,
        "head_dim": 4,
        "vocabulary": 11,
    },
    {"pad": 0, "start": 7},
    (5, 9),
    -255.0,
    (
        Method(
            "step",
            "step.onnx",
            "step",
            (
                Port("past", "float32", (1, 2, 3, 4), "the cache", Source("state", "past")),
                Port("inputs_embeds", "float32", (1, 1, 8), "rows", Source("embedding", "step.inputs_embeds", "token")),
                Port("mask", "float32", (1, 4), "the mask", Source("slots_mask", window=2)),
            ),
            (
                Port("logits", "float32", (1, 11), "logits"),
                Port("present", "float32", (1, 2, 1, 4), "what is new", writes="past"),
            ),
        ),
    ),
    (Table("step.inputs_embeds", "rows.bin", 16, "float32", 11, (8,), "embeddings"),),
    (State("past", "float32", (1, 2, 3, 4), 2, 96),),
    ("Run.",),
    "None.",
    generation=Generation(max_length=20, forced_eos_token_id=(5,), suppress_tokens=(1, 2)),
    files={name: FileRecord(9, "ab" * 32) for name in ("step.onnx", "rows.bin")},
)
