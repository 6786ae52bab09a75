from __future__ import annotations

from graphkit.contract.contract_writers import write_guide
from graphkit.contract.host_contract import Contract, Method, Port, Source, State, Table

STATES = tuple(
    State(f"past.{layer}.{kind}", "float32", (1, 2, 4, 8), 2, 256) for layer in range(2) for kind in ("key", "value")
)
STEP = Method(
    "step",
    "step.onnx",
    "step",
    (
        *(
            Port(state.name, "float32", state.shape, f"of layer {state.name[5]}", Source("state", state.name))
            for state in STATES
        ),
        Port("embeds", "float32", (1, 1, 16), "the rows of 'a|b' at 'ids'", Source("embedding", "words", "token")),
        Port("mask", "float32", (1, 1, 1, 5), "0 or the floor", Source("slots_mask", window=3)),
    ),
    (
        Port("logits", "float32", (1, 1, 9), "'logits' of the original"),
        *(
            Port(f"{one.name}_new", "float32", (1, 2, 1, 8), f"goes into '{one.name}'", writes=one.name)
            for one in STATES
        ),
    ),
    {"ids": "embeds", **{state.name: state.name for state in STATES}},
)
TEXT = r"""# Host contract (generic-npu)

This is what a host program does to run these models. `contract.json` says the same as data. A name with
braces stands for a whole family: `past.{0-5}.{key|value}` for the keys and values of layers 0 to 5. Behind
`{i=0-5}`, `{i}` is the same number once more.

## The loop

1. Run `step.onnx`.

The models add positions.

## Tokens

| token | id |
|---|---|
| `start` | 3 |
| `end` | the caller gives it |

## `step.onnx`, for each token

| input | dtype | shape | who makes it |
|---|---|---|---|
| `past.{0-1}.{key\|value}` | float32 | [1, 2, 4, 8] | state 'past.{i=0-1}.{key\|value}': of layer {i} |
| `embeds` | float32 | [1, 1, 16] | the row of the token of table 'words': the rows of 'a\|b' at 'ids' |
| `mask` | float32 | [1, 1, 1, 5] | the mask over the slots, of which the last 3 tokens count: 0 or the floor (-1e+09) |

| output | dtype | shape | meaning |
|---|---|---|---|
| `logits` | float32 | [1, 1, 9] | 'logits' of the original |
| `past.{0-1}.{key\|value}_new` | float32 | [1, 2, 1, 8] | goes into 'past.{0-1}.{key\|value}' |

| input of the original | what it became |
|---|---|
| `ids` | `embeds` |
| `past.{0-1}.{key\|value}` | `past.{0-1}.{key\|value}` |

## State, 1,024 bytes

Slot `position` is the next one; slots lie in the order of the tokens, along the axis that the table names.
What goes into the next slot of a state without such an axis, or becomes it, replaces all of it.

| state | dtype | shape | slots along |
|---|---|---|---|
| `past.{0-1}.{key\|value}` | float32 | [1, 2, 4, 8] | axis 2 |

## Tables, raw and little-endian

Rows lie one behind the other from the offset on. Rows that are fewer than an input holds are repeated to
fill it.

| table | file | offset | dtype | rows | shape of a row |
|---|---|---|---|---|---|
| `words` | `words.bin` | 0 | float32 | 9 | [16] |

## Masks

- Over the slots, `[..., 5]`: 0 at slots `0` to `position - 1` and at the last place, for
  the new token; -1e+09 elsewhere. Where the last `w` tokens count, slots below
  `position + 1 - w` have -1e+09 too.

A mask is the same for all places of its other axes.
"""


def contract(states: tuple[State, ...] = STATES) -> Contract:
    return Contract(
        "generic-npu",
        {"batch": 1, "capacity": 4, "source": 0, "positions": 5},
        {"pad": None, "start": 3},
        (),
        -1e9,
        (STEP,),
        (Table("words", "words.bin", 0, "float32", 9, (16,), "the words"),),
        states,
        ("Run `step.onnx`.",),
        "The models add positions.",
    )


def test_the_guide_says_what_the_contract_says() -> None:
    assert write_guide(contract()) == TEXT


def test_a_family_with_a_gap_or_with_other_shapes_is_written_out() -> None:
    odd = State("past.1.value", "float32", (1, 2, 4, 9), 2, 288)
    rows = [line for line in write_guide(contract((*STATES[:3], odd))).splitlines() if line.endswith("| axis 2 |")]
    assert [row.split("`")[1] for row in rows] == ["past.0.key", "past.0.value", "past.1.key", "past.1.value"]


def test_text_of_a_model_is_text() -> None:
    port = Port("x<b>", "float32", (1,), "<img src=x> [c](javascript:x) a|b", Source("user"))
    hostile = Method("once", "once.onnx", "once", (port,), (Port("y", "float32", (1,), "*y*"),))
    made = Contract("t", {"capacity": 0, "source": 0}, {}, (), -1e9, (hostile,), (), (), (), "")
    assert r"| `x<b>` | float32 | [1] | the caller: \<img src=x\> [c]\(javascript:x) a\|b |" in write_guide(made)
    assert r"| `y` | float32 | [1] | \*y\* |" in write_guide(made)
