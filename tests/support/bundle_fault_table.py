"""Faults put into bundles of six families (weights, masks, positions, slots, contracts): caught, and named right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import bundle_faults as bad
import numpy as np
from bundle_faults import Edit, Inject, each_of, graph, weight

BEGINS = "No simple cause; it "
POSITIONS, MASK = "Positions are wrong: ", "The mask of tokens "
SOURCE = "The mask of the source is wrong: "
SLOTS = "New slots are not written behind those in use"
WEIGHT = "Weight '"
STATES = ("past_key_values.0.decoder.key", "past_key_values.0.decoder.value")


@dataclass(frozen=True)
class Fault:
    """What is done to a bundle, how each cause that is named may begin, and what a finding has to say."""

    family: str
    inject: Inject
    may: tuple[str, ...] = (BEGINS,)
    says: str = ""


def causal() -> Iterator[tuple[str, Fault]]:
    """Yield what a decoder may do wrong that is a bundle of its own."""
    key, value = (f"past_key_values.0.{kind}" for kind in ("key", "value"))

    def step(change: Callable[[Edit], None], *may: str, says: str = "") -> Fault:
        return Fault("causal", graph("decode.onnx", change), may or (BEGINS,), says)

    yield "slots one further on", step(bad.further, SLOTS, BEGINS)
    yield "keys and values exchanged where they are written", step(partial(bad.exchanged, one=key, other=value))
    read = bad.swapped("step", key, value, written=False)
    yield "states swapped where they are read", Fault("causal", read, (BEGINS,))
    yield "states swapped in the step", Fault("causal", bad.swapped("step", key, value), (BEGINS,))
    for past in (2, 7):
        yield f"logits off at past {past} alone", step(partial(wrong_at, past=past))
    yield "row 2 reads row 1", step(partial(bad.a_row_reads, state=key, row=1, other=0))
    yield "the last row reads the first", step(partial(bad.a_row_reads, state=key, row=3, other=0))
    kept = graph("reorder.onnx", partial(bad.not_reordered, state=key))
    yield "keys are not reordered", Fault("causal", kept, says="reordered")
    ones = graph("init.onnx", partial(bad.ones_first, state=key))
    yield "a state that does not begin with 0", Fault("causal", ones, says="reset")
    yield "the last slot is never used", step(partial(bad.last_slot_twice, slots=8), SLOTS, BEGINS)
    yield "logits scaled by 1.001", step(lambda edit: bad.scaled(edit, "logits", 1.001), says="Mul#")
    used = "attention_mask_in_use"
    yield "a mask of ones", step(partial(bad.ones, name=used), MASK, BEGINS, POSITIONS)
    yield "a mask that is shifted", step(partial(bad.shifted_mask, name=used), MASK, BEGINS)
    yield "the third position off by one", step(partial(bad.offset, name="state/slice", only=2), POSITIONS)
    yield "positions off by one", step(partial(bad.offset, name="state/slice"), POSITIONS)
    yield "positions that count padding", step(bad.positions_by_place, POSITIONS)
    one = partial(bad.kept_mask, name="attention_mask_slots_after")
    yield "a mask that is not kept", step(one, MASK, BEGINS, POSITIONS)


def wrong_at(edit: Edit, past: int) -> None:
    edit.wrong_if(edit.past_is(past), "logits")


def others() -> Iterator[tuple[str, Fault]]:
    """Yield what only other families can do wrong: masks of a source, rings, layers, rotations."""
    mask = "encoder_attention_mask"
    for name, file, change, *may in (
        ("a source mask of ones in the step", "step.onnx", partial(bad.ones, name=mask)),
        ("a source mask that is shifted", "step.onnx", partial(bad.shifted_mask, name=mask)),
        ("a source mask of ones at first", "encode.onnx", partial(bad.ones, name="attention_mask"), BEGINS),
        ("a source mask that forgets the last pad", "step.onnx", partial(bad.ends_by_one, name=mask)),
    ):
        yield name, Fault("t5-tiny", graph(file, change), (SOURCE, *may))
    less = partial(bad.operator, old="LessOrEqual", new="Less")
    yield "a token that does not see itself", Fault("qwen2-tiny", graph("decode.onnx", less))
    shorter = graph("step.onnx", partial(bad.constant_of, operator="Mod", index=1, by=-1))
    yield "a ring that is too short", Fault("window", shorter, (SLOTS, BEGINS))
    for name, file, by in (
        ("a window one too long", "step.onnx", 1),
        ("a prompt's window one too short", "prefill.onnx", -1),
    ):
        yield name, Fault("window", graph(file, partial(bad.integer, name="window", by=by)), (), WEIGHT)
    keys = [f"past_key_values.{layer}.encoder.key" for layer in (0, 1)]
    read = bad.swapped("step", *keys, written=False)
    yield "keys of the source of another layer", Fault("whisper", read, (BEGINS,))
    yield "keys of the source of another layer are written", Fault("whisper", bad.swapped("once", *keys), (BEGINS,))
    keys = [f"past_key_values.{layer}.key" for layer in (0, 1)]
    copied = partial(bad.copied, one=keys[0], other=keys[1])
    yield "keys of a layer written for another", Fault("qwen2-tiny", graph("decode.onnx", copied), (BEGINS,))


def weights() -> Iterator[tuple[str, Fault]]:
    yield "the last row of a table", Fault("causal", weight("decode.onnx", "token_table", last_row), (), WEIGHT)
    norm = weight("decode.onnx", "input_layernorm.weight", one_element)
    yield "one element", Fault("qwen2-tiny", norm, (), WEIGHT)
    yield "projections swapped", Fault("causal", graph("decode.onnx", partial(bad.renamed, one="wk", other="wv")))
    yield (
        "another epsilon",
        Fault("gpt2", graph("decode.onnx", partial(bad.attribute, name="epsilon", number=3e-3)), (), "epsilon"),
    )
    rope = weight("decode.onnx", "onnx::Expand_125", lambda array: array * np.float32(1.01))
    yield "another base of rotations", Fault("qwen2-tiny", rope, (WEIGHT, BEGINS))
    eps = weight("decode.onnx", "input_layernorm/Constant_2", lambda array: array * 1000)
    yield "another constant epsilon", Fault("qwen2-tiny", eps, (WEIGHT, BEGINS))
    untied = weight("step.onnx", "onnx::MatMul_736", one_element)
    yield "a tied weight untied", Fault("t5-tiny", untied, (), WEIGHT)
    both = each_of(weight("decode.onnx", "wq", one_element), graph("decode.onnx", bad.further))
    yield "a weight and slots", Fault("causal", both, ("More is wrong", BEGINS), WEIGHT)
    both = each_of(weight("step.onnx", "shared", last_row), bad.swapped("step", *STATES))
    yield "a row and states", Fault("t5-tiny", both, ("More is wrong", BEGINS), WEIGHT)
    two = each_of(
        graph("decode.onnx", partial(bad.offset, name="state/slice")),
        graph("decode.onnx", partial(bad.shifted_mask, name="attention_mask_in_use")),
    )
    yield "positions and a mask", Fault("causal", two, (BEGINS,))
    two = each_of(graph("step.onnx", bad.further), graph("reorder.onnx", partial(bad.not_reordered, state=STATES[1])))
    yield "slots and rows", Fault("t5-tiny", two, (SLOTS, BEGINS), "reordered")


def last_row(rows: np.ndarray) -> None:
    rows[-1, -1] += 1e-2


def one_element(array: np.ndarray) -> None:
    array.reshape(-1)[7] += 1e-3


FAULTS = {f"{fault.family}: {name}": fault for name, fault in (*causal(), *others(), *weights())}
