"""Constants of any contract as code, in arrays of plain records, and the loop over them: `plain.h.jinja` and others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphkit.contract.bundle_contract import BundleContract, BundlePort
from graphkit.contract.contract_parts import Generation
from graphkit.contract.contract_writers import TEXTS, WRITERS, comment_text, template_environment
from graphkit.contract.host_contract import Contract
from graphkit.errors import UsageError

Value = str | int | Sequence[int]
Row = Mapping[str, Value]
DIM_TEXTS = {
    "batch": "sequences at a time",
    "tokens": "new tokens",
    "past": "tokens before these",
    "total": "both together",
    "source": "positions of the source",
    "other": "another size, which the shape names",
}
DIMS = {name: -1 - place for place, name in enumerate(DIM_TEXTS)}


class Constant(NamedTuple):
    """A constant: words in lower case, joined by underscores, its value, and what it says."""

    name: str
    value: int | float | Sequence[int]
    comment: str


@dataclass(frozen=True)
class Constants:
    """What a host program is told."""

    title: str  # of what, in a clause
    numbers: tuple[Constant, ...]
    # records by the name of their array, each with their kind in `plain_fields.jinja`
    arrays: Mapping[str, tuple[str, Sequence[Row]]]
    rules: tuple[str, ...] = ()  # rules for choosing tokens that a loop which takes the largest logit does not follow
    fault: str = ""  # why there is no loop over these; "" where there is


def write_plain(language: str, constants: Constants, *, has_loop: bool = False) -> str:
    """Return constants in a language, and the loop behind them if that is asked for; refuse where there is none."""
    if has_loop and (language not in LOOPS or constants.fault):
        raise UsageError(constants.fault or f"there is no loop in {language} - take one of {', '.join(LOOPS)}")
    suffix, text = TEXTS[language]
    filters = {"text": text, "comment": comment_text, "docstring": _docstring_text, "camel": _camel_case}
    environment = template_environment("${", "}", filters)
    shapes = [row.get("dims", ()) for _, rows in constants.arrays.values() for row in rows]
    max_rank = max([1, *(len(dims) for dims in shapes if isinstance(dims, Sequence))])
    kinds = dict.fromkeys(kind for kind, _ in constants.arrays.values())
    known = {**vars(constants), "kinds": kinds, "max_rank": max_rank, "has_loop": has_loop}
    parts = [f"plain.{suffix}.jinja", *([f"loop.{LOOPS[language]}.jinja"] if has_loop else [])]
    return "".join(environment.get_template(part).render(known) for part in parts)


def write_lowered_loop(language: str, contract: Contract, title: str) -> str:
    """Return the program in a language that runs the models of a lowered folder as its contract says."""
    if language not in LOWERED_LOOPS:
        known = ", ".join(LOWERED_LOOPS)
        raise UsageError(f"{title}: there is no loop in {language} of a lowered folder - take one of {known}")
    if not any(method.when == "step" for method in contract.methods):
        raise UsageError(f"{title}: it has no decoder, so that there is no loop - HOST.md says what its host does")
    environment = template_environment("${", "}", {"docstring": _docstring_text, "comment": comment_text})
    loop = environment.get_template(f"lowered_loop.{LOOPS[language]}.jinja")
    constants = WRITERS[language](contract, has_loop=True) if language in WRITERS else ""
    rules = rules_beside(contract.generation)
    return f"{constants}{loop.render(title=title, rules=rules, takes_text=contract.takes_text)}"


class ModelPorts(NamedTuple):
    """A model: what it is called, its file, when it runs, and the rows of its inputs and its outputs."""

    name: str
    file: str
    runs: str
    inputs: Sequence[Row]
    outputs: Sequence[Row]


def model_rows(models: Sequence[ModelPorts]) -> dict[str, tuple[str, list[Row]]]:
    """Return the arrays of models and of their ports."""
    inputs, outputs, rows = list[Row](), list[Row](), list[Row]()
    for model in models:
        counts = {"input_count": len(model.inputs), "output_count": len(model.outputs)}
        rows.append({**model._asdict(), "inputs": len(inputs), "outputs": len(outputs), **counts})
        inputs += model.inputs
        outputs += model.outputs
    return {"models": ("Model", rows), "inputs": ("Port", inputs), "outputs": ("Port", outputs)}


def general_numbers(
    tokens: Mapping[str, int | None], ends: Sequence[int], prompt: Sequence[int], vocabulary: object
) -> list[Constant]:
    """Return the constants that all have: tokens, how many there are, and what dims below 0 mean."""
    start, words = tokens.get("start"), vocabulary if isinstance(vocabulary, int) else -1
    return [
        Constant("start_token", -1 if start is None else start, "Decoding starts with it; -1 where nothing says."),
        Constant("prompt_tokens", tuple(prompt), "Behind the start token, decoding begins with these."),
        Constant("end_tokens", tuple(ends), "Decoding stops at any of these."),
        Constant("vocabulary", words, "Logits of a token; -1 where nothing says."),
        *(Constant(f"dim_{name}", size, f"In dims: {DIM_TEXTS[name]}.") for name, size in DIMS.items()),
    ]


def rules_beside(generation: Generation) -> tuple[str, ...]:
    """Return the rules by which an export chooses tokens that taking the largest logit does not follow."""
    followed = ("prompt", "max_length", "max_new_tokens", "length_penalty", "early_stopping", "not_followed")
    plain = vars(Generation())
    rules = [name for name, value in vars(generation).items() if name not in followed and value != plain[name]]
    return (*rules, *generation.not_followed)


def bundle_constants(contract: BundleContract) -> Constants:
    """Return the constants of a bundle."""
    places = {state.name: place for place, state in enumerate(contract.states)}
    logits = [next((port for port in method.outputs if not port.writes), None) for method in contract.methods]

    def port_row(port: BundlePort) -> Row:
        is_ids = port.dtype.startswith("int") and len(port.shape) < 3  # not rows of embeddings, nor positions in planes
        source = {"user": "source" if "source" in port.shape else "caller"}.get(port.kind, port.kind)
        source = source if is_ids or source not in ("source", "tokens") else "caller"
        source = source or ("state" if port.writes else "logits" if port in logits else "other")
        return {
            **shape_row(port.name, port.dtype, port.shape),
            "dims": [DIMS.get(dim, DIMS["other"]) if isinstance(dim, str) else dim for dim in port.shape],
            "source": "source_mask" if source == "source" and "mask" in port.name else source,
            "state": places.get(port.state, -1),
        }

    vocabulary = next((port.shape[-1] for port in logits if port is not None and port.shape), None)
    states = [
        {
            **shape_row(state.name, state.dtype, state.shape),
            "dims": [DIMS["batch"] if at == state.batch else size for at, size in enumerate(state.shape)],
            "axis": -1 if state.axis is None else state.axis,
            "rule": state.update,
            "window": state.shape[state.axis or 0] if state.update == "ring" else 0,
            "prefix": int(state.prefix),
            "offset": state.offset,
        }
        for state in contract.states
    ]
    runs = {"once": "first"}
    methods = [
        ModelPorts(m.name, m.file, runs.get(m.when, m.when), [*map(port_row, m.inputs)], [*map(port_row, m.outputs)])
        for m in contract.methods
    ]
    sizes = {re.sub(r"\W+", "_", name.lower(), flags=re.ASCII): size for name, size in contract.sizes.items()}
    odd = next((state.name for state in contract.states if state.initial != 0), "")
    fault = f"state '{odd}' does not begin with zeros, as the loop has it - run it with graphkit.Bundle" if odd else ""
    if len(contract.lengths) > 1 or contract.method("step") is None:
        fault = "it has no step, or counts several lengths, and the loop one - run it with graphkit.Bundle"
    return Constants(
        "a bundle",
        (
            Constant("proven", int(contract.proof.passed), "1 where the proof of the methods passed; 0 where not."),
            Constant("arena_bytes", contract.arena, "Bytes of all states."),
            *(Constant(f"most_{name}", size, "The largest size of this name.") for name, size in sizes.items()),
            *general_numbers(contract.tokens, contract.ends, contract.generation.prompt, vocabulary),
        ),
        {**model_rows(methods), "states": ("State", states)},
        rules_beside(contract.generation),
        fault,
    )


def shape_row(name: str, dtype: str, shape: Sequence[object]) -> Row:
    """Return the fields that ports and states begin with."""
    return {"name": name, "dtype": dtype, "shape": ", ".join(map(str, shape))}


def _docstring_text(text: str) -> str:
    """Return text as part of a docstring of Python."""
    return comment_text(text).replace("\\", r"\\").replace('"', r"\"")


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


LOOPS = {"c": "cpp", "kotlin": "kt", "python": "py", "rust": "rs"}
LOWERED_LOOPS = ("c", "kotlin", "python")
