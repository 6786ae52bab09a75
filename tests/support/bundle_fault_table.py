"""Faults put into bundles of eight families (weights, masks, positions, slots, contracts): caught, and named right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import bundle_faults as bad
import numpy as np
from bundle_faults import Edit, Inject, each_of, graph, weight

BEGINS = "No simple cause; it "
KEPT = "No simple cause; the logits of "  # and what it keeps is not
POSITIONS, MASK = "Positions are wrong: ", "The mask of tokens "
SOURCE = "The mask of the source is wrong: "
SLOTS = "New slots are not written behind those in use"
WEIGHT = "Weight '"


@dataclass(frozen=True)
class Family:
    """What files and names a bundle has."""

    step: str
    first: str
    state: str = "past_key_values.{}.{}"

    @property
    def key(self) -> str:
        return self.state.format(0, "key")

    @property
    def value(self) -> str:
        return self.state.format(0, "value")


ALONE = Family("decode.onnx", "decode.onnx")
TWO = Family("step.onnx", "prefill.onnx")
BESIDE = Family("step.onnx", "encode.onnx", "past_key_values.{}.decoder.{}")
FAMILIES = {"causal": ALONE, "qwen2-tiny": ALONE, "gpt2": ALONE, "window": TWO, "gemma3": TWO} | dict.fromkeys(
    ("t5-tiny", "marian-tiny", "whisper"), BESIDE
)
SLOTS_OF = {"gemma3": 14}
KINDS = (("qwen2-tiny", "gpt2"), ("window", "gemma3"), ("t5-tiny", "marian-tiny", "whisper"))


@dataclass(frozen=True)
class Fault:
    """What is done to a bundle, how each cause that is named may begin, and what a finding has to say."""

    family: str
    inject: Inject
    may: tuple[str, ...] = (BEGINS,)
    says: str = ""


def in_turn(faults: Iterator[tuple[str, Fault]]) -> Iterator[tuple[str, Fault]]:
    """Yield each fault for `causal`, and for one family of each kind, which take turns."""
    places = dict[str, int]()
    for name, fault in faults:
        place = places.setdefault(name, len(places))
        kind = next((kind for kind in KINDS if fault.family in kind), (fault.family,))
        if kind[place % len(kind)] == fault.family:
            yield name, fault


def everywhere() -> Iterator[tuple[str, Fault]]:
    """Yield faults that each family can have."""
    for name, family in FAMILIES.items():
        key, value, slots = family.key, family.value, SLOTS_OF.get(name, 8)

        def of(inject: Inject, *may: str, says: str = "", name: str = name) -> Fault:
            return Fault(name, inject, may or (BEGINS,), says)

        def step(change: Callable[[Edit], None], family: Family = family) -> Inject:
            return graph(family.step, change)

        yield "slots one further on", of(step(bad.further), SLOTS, BEGINS)
        yield "keys and values exchanged where they are written", of(step(partial(bad.exchanged, one=key, other=value)))
        yield "states swapped where they are read", of(bad.swapped("step", key, value, written=False), BEGINS, KEPT)
        yield "states swapped in the step", of(bad.swapped("step", key, value), BEGINS, KEPT)
        for past in (2, slots - 1):
            change = partial(wrong_at, past=past)
            yield f"logits off at past {past} alone", of(step(change))
        yield "row 2 reads row 1", of(step(partial(bad.a_row_reads, state=key, row=1, other=0)))
        yield "all rows read the first", of(step(partial(bad.first_row_for_all, state=key)))
        yield "the last row reads the first", of(step(partial(bad.a_row_reads, state=key, row=3, other=0)))
        yield (
            "keys are not reordered",
            of(graph("reorder.onnx", partial(bad.not_reordered, state=key)), says="reordered"),
        )
        yield (
            "a state that does not begin with 0",
            of(graph("init.onnx", partial(bad.ones_first, state=key)), says="reset"),
        )
        if name not in ("window", "gemma3"):
            change = partial(bad.last_slot_twice, slots=slots)
            yield "the last slot is never used", of(step(change), SLOTS, BEGINS)
        yield "logits scaled by 1.001", of(step(lambda edit: bad.scaled(edit, "logits", 1.001)), says="Mul#")


def wrong_at(edit: Edit, past: int) -> None:
    edit.wrong_if(edit.past_is(past), "logits")


def masks() -> Iterator[tuple[str, Fault]]:
    for name in ("causal", "qwen2-tiny", "gpt2", "window", "gemma3"):
        file = FAMILIES[name].step
        used = "attention_mask_in_use"
        yield "a mask of ones", Fault(name, graph(file, partial(bad.ones, name=used)), (MASK, BEGINS, POSITIONS))
        yield "a mask that is shifted", Fault(name, graph(file, partial(bad.shifted_mask, name=used)), (MASK, BEGINS))
        late = partial(bad.offset, name="state/slice", only=2)
        if name != "gemma3":  # which takes no positions
            yield "the third position off by one", Fault(name, graph(file, late), (POSITIONS,))
        off = partial(bad.offset, name="state/slice")
        if name not in ("qwen2-tiny", "gemma3"):  # to rotations, what all positions are off by means nothing
            yield "positions off by one", Fault(name, graph(file, off), (POSITIONS,))
            yield "positions that count padding", Fault(name, graph(file, bad.positions_by_place), (POSITIONS,))
        one = partial(bad.kept_mask, name="attention_mask_slots_after")
        yield "a mask that is not kept", Fault(name, graph(FAMILIES[name].first, one), (MASK, KEPT, BEGINS, POSITIONS))
    for name in ("t5-tiny", "marian-tiny"):
        whole = partial(bad.ones, name="encoder_attention_mask")
        yield "a source mask of ones in the step", Fault(name, graph("step.onnx", whole), (SOURCE,))
        shifted = partial(bad.shifted_mask, name="encoder_attention_mask")
        yield "a source mask that is shifted", Fault(name, graph("step.onnx", shifted), (SOURCE,))
        one = partial(bad.ones, name="attention_mask")
        yield "a source mask of ones at first", Fault(name, graph("encode.onnx", one), (SOURCE, BEGINS))
        last = partial(bad.ends_by_one, name="encoder_attention_mask")
        yield "a source mask that forgets the last pad", Fault(name, graph("step.onnx", last), (SOURCE,))
    for name in ("qwen2-tiny", "gpt2", "gemma3", "whisper"):
        less = partial(bad.operator, old="LessOrEqual", new="Less")
        yield "a token that does not see itself", Fault(name, graph(FAMILIES[name].step, less))
    for name in ("window", "gemma3"):
        longer = partial(bad.constant_of, operator="Mod", index=1, by=-1)
        yield "a ring that is too short", Fault(name, graph("step.onnx", longer), (SLOTS, BEGINS, KEPT))
    yield (
        "a window one too long",
        Fault("window", graph("step.onnx", partial(bad.integer, name="window", by=1)), (), WEIGHT),
    )
    yield (
        "a prompt's window one too short",
        Fault("window", graph("prefill.onnx", partial(bad.integer, name="window", by=-1)), (), WEIGHT),
    )


def crossed() -> Iterator[tuple[str, Fault]]:
    for name in ("t5-tiny", "marian-tiny", "whisper"):
        keys = [f"past_key_values.{layer}.encoder.key" for layer in (0, 1)]
        read = bad.swapped("step", *keys, written=False)
        yield "keys of the source of another layer", Fault(name, read, (BEGINS, KEPT))
        written = bad.swapped("once", *keys)
        yield "keys of the source of another layer are written", Fault(name, written, (KEPT,))
    for name in ("qwen2-tiny", "gpt2"):
        keys = [f"past_key_values.{layer}.key" for layer in (0, 1)]
        copied = partial(bad.copied, one=keys[0], other=keys[1])
        yield "keys of a layer written for another", Fault(name, graph("decode.onnx", copied), (BEGINS, KEPT))


def weights() -> Iterator[tuple[str, Fault]]:
    tables = {"causal": "token_table", "qwen2-tiny": "embed_tokens", "gpt2": "wte", "t5-tiny": "shared"} | {
        "marian-tiny": "embed_positions",
        "whisper": "embed_positions",
        "gemma3": "embed_tokens",
        "window": "position_table",
    }
    for name, table in tables.items():
        inject = weight(FAMILIES[name].step, table, last_row)
        yield "the last row of a table", Fault(name, inject, (), WEIGHT)
    for name, word in (
        ("qwen2-tiny", "input_layernorm.weight"),
        ("gpt2", "ln_f.bias"),
        ("t5-tiny", "relative_attention_bias"),
    ):
        yield "one element", Fault(name, weight(FAMILIES[name].step, word, one_element), (), WEIGHT)
    yield "projections swapped", Fault("causal", graph("decode.onnx", partial(bad.renamed, one="wk", other="wv")))
    yield (
        "projections swapped",
        Fault(
            "qwen2-tiny", graph("decode.onnx", partial(bad.renamed, one="onnx::MatMul_752", other="onnx::MatMul_753"))
        ),
    )
    yield (
        "another epsilon",
        Fault("gpt2", graph("decode.onnx", partial(bad.attribute, name="epsilon", number=3e-3)), (), "epsilon"),
    )
    yield (
        "another epsilon",
        Fault("whisper", graph("step.onnx", partial(bad.attribute, name="epsilon", number=3e-3)), (), "epsilon"),
    )
    rope = weight("decode.onnx", "onnx::Expand_125", lambda array: array * np.float32(1.01))
    yield "another base of rotations", Fault("qwen2-tiny", rope, (WEIGHT, BEGINS))
    eps = weight("decode.onnx", "input_layernorm/Constant_2", lambda array: array * 1000)
    yield "another constant epsilon", Fault("qwen2-tiny", eps, (WEIGHT, BEGINS))
    untied = weight("step.onnx", "onnx::MatMul_736", one_element)
    yield "a tied weight untied", Fault("t5-tiny", untied, (), WEIGHT)
    both = each_of(weight("decode.onnx", "wq", one_element), graph("decode.onnx", bad.further))
    yield "a weight and slots", Fault("causal", both, ("More is wrong", BEGINS), WEIGHT)
    both = each_of(weight("step.onnx", "shared", last_row), bad.swapped("step", BESIDE.key, BESIDE.value))
    yield "a row and states", Fault("t5-tiny", both, ("More is wrong", BEGINS), WEIGHT)
    two = each_of(
        graph("decode.onnx", partial(bad.offset, name="state/slice")),
        graph("decode.onnx", partial(bad.shifted_mask, name="attention_mask_in_use")),
    )
    yield "positions and a mask", Fault("gpt2", two, (BEGINS,))
    two = each_of(
        graph("step.onnx", bad.further), graph("reorder.onnx", partial(bad.not_reordered, state=BESIDE.value))
    )
    yield "slots and rows", Fault("marian-tiny", two, (SLOTS, BEGINS), "reordered")


def last_row(rows: np.ndarray) -> None:
    rows[-1, -1] += 1e-2


def one_element(array: np.ndarray) -> None:
    array.reshape(-1)[7] += 1e-3


FAULTS = {
    f"{fault.family}: {name}": fault
    for made in (in_turn(everywhere()), masks(), crossed(), weights())
    for name, fault in made
}
