"""A contract in words, `HOST.md`, and its constants as code: what is written is in templates, as `contract.h.jinja`."""

from __future__ import annotations

import itertools
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from graphkit.contract.bundle_contract import BundleContract, BundlePort
from graphkit.contract.contract_files import BYTES
from graphkit.contract.host_contract import By, Contract, Generation, Kind, Method, Port, Source, State, Table
from graphkit.errors import UsageError
from graphkit.graph.names import family_label, family_pattern, group_pairs
from graphkit.render.document_blocks import printable
from graphkit.render.markdown import escape_markdown

if TYPE_CHECKING:
    from jinja2 import Environment

SUFFIXES = {  # of files
    ".h": "c", ".hpp": "c", ".cpp": "c", ".cc": "c", ".rs": "rust", ".ts": "typescript", ".mts": "typescript",
    ".kt": "kotlin", ".py": "python",
}  # fmt: skip
SIZES = {
    "batch": "Sequences at a time.",
    "source": "Positions of the padded source; 0 for none.",
    "capacity": "Slots of the cache; 0 for none.",
    "positions": "Tokens that the decoder takes at most; 0 for no decoder.",
    "layers": "Layers of the decoder's cache; 0 for none.",
    "heads": "Heads of keys and values in a layer; 0 where layers differ.",
    "head_dim": "Numbers of a head; 0 where layers differ.",
    "vocabulary": "Logits of a step; 0 for none.",
    "sound": "Samples or frames of a padded sound; 0 for none, and for one all of which counts.",
    "stride": "Samples or frames of a sound that make a position of the source.",
    "offset": "Added to the valid ones before they are divided by that.",
}
NO_SOUND = {"sound": 0, "stride": 1, "offset": 0}
TOKENS = {
    "pad": "Pads the source; -1 where the export does not say.",
    "start": "Decoding starts with it; -1 where the export does not say.",
    "pooled": "Its first place in the source chooses a row; -1 where no row is chosen by it.",
}
RULES = {
    "max_length": "Most tokens, with those of the prompt; -1 where the export does not say.",
    "max_new_tokens": "Most tokens behind the prompt, before that; -1 where the export does not say.",
    "min_length": "No sequence ends before it has so many tokens, with those of the prompt.",
    "min_new_tokens": "The same behind the prompt.",
    "forced_bos_token_id": "Follows a prompt of one token; -1 for any.",
}
LISTS = {
    "end": ("", "Decoding stops at any of these."),
    "prompt": ("prompt", "Behind the start token, decoding begins with these."),
    "forced_eos": ("forced_eos_token_id", "The last one of as many as there may be is one of these."),
    "bad_words": ("bad_words_ids", "Not chosen unless they are forced."),
    "suppress": ("suppress_tokens", "Never chosen."),
    "begin_suppress": ("begin_suppress_tokens", "Not chosen first or, where a first token is forced, second."),
}  # of tokens, each with its name among the rules for choosing them
IDS = {
    "source": "the rows of the tokens of the source, then the row of pad for the rest,",
    "token": "the row of the token",
    "type": "the rows of the types of the tokens, 0 unless the caller has pairs of texts,",
}
ROWS = {"position": "position", "valid_length": "length - 1"}
PLACES = {
    "largest_id": "the first of the largest ids of the source",
    "first_token": "the first token `tokens.pooled` of the source, 0 where there is none",
}
GUIDE_RULES = {
    "prompt": "behind the start token, decoding begins with {}",
    "max_length": "prompt and answer have at most {} tokens",
    "max_new_tokens": "the answer has at most {} tokens, whatever `max_length` is",
    "min_length": "no end token before prompt and answer have {} tokens",
    "min_new_tokens": "no end token before the answer has {} tokens",
    "forced_bos_token_id": "behind a prompt of one token, {} and no other",
    "forced_eos_token_id": "at the last place that an answer may have, {} and no other",
    "bad_words_ids": "only where they are forced: {}",
    "suppress_tokens": "nowhere: {}",
    "begin_suppress_tokens": "not first or, where `forced_bos_token_id` is first, not second: {}",
    "num_beams": "the export searches with {} beams",
    "not_followed": "the export chooses tokens by {} too, which no host follows",
}
LOOPS = {"c": "cpp", "kotlin": "kt", "python": "py", "rust": "rs"}
LOWERED_LOOPS = ("c", "kotlin", "python")
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
    """A constant: its words in lower case, joined by underscores, its value, and what it says."""

    name: str
    value: int | float | Sequence[int]
    comment: str

    @property
    def is_signed(self) -> bool:
        """Whether it may be below 0."""
        return self.name.startswith("token_") or self.name in ("offset", *RULES)


class Group(NamedTuple):
    """Things of one kind in one list: an identifier for the place of each, and its name in the contract."""

    what: str
    name: str
    places: tuple[tuple[str, str], ...]


def template_environment(opening: str, closing: str, filters: Mapping[str, Callable[..., object]]) -> Environment:
    """Return what makes texts of the templates in this folder."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        variable_start_string=opening,
        variable_end_string=closing,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(filters)
    return environment


def write_guide(contract: Contract) -> str:
    """Return `HOST.md`."""
    kinds = {port.kind for method in contract.methods for port in method.inputs} & {"slots_mask", "source_mask"}
    filters: dict[str, Callable[..., object]] = {
        "table": _table_lines,
        "cell": _cell_text,
        "maker_row": lambda port: (
            *(port.name, port.dtype, str(list(port.shape))),
            f"{_source_words(port.source)}: {port.meaning}".replace("the floor", f"the floor ({contract.floor:g})"),
        ),
        "output_row": lambda port: (port.name, port.dtype, str(list(port.shape)), port.meaning),
        "state_row": lambda s: (s.name, s.dtype, str(list(s.shape)), "-" if s.axis is None else f"axis {s.axis}"),
        "table_row": lambda t: (t.name, t.file, str(t.offset), t.dtype, f"{t.rows:,}", str(list(t.shape))),
    }
    pad, start, pooled = (contract.tokens.get(name) for name in ("pad", "start", "pooled"))
    # what a host needs to know of tokens, and the rules by which it chooses them
    tokens = [("pad", "0 (the export does not say)" if pad is None else str(pad))] if contract.takes_text else []
    if any(method.when == "step" for method in contract.methods):
        tokens.append(("start", "the caller gives it" if start is None else str(start)))
        tokens.append(("end", ", ".join(map(str, contract.ends)) or "the caller gives it"))
        for name, text in GUIDE_RULES.items():
            value = getattr(contract.generation, name)
            if value != getattr(Generation(), name):
                tokens.append((name, text.format(", ".join(map(str, value)) if isinstance(value, tuple) else value)))
    tokens += [("pooled", str(pooled))] if pooled is not None else []
    template = template_environment("{{", "}}", filters).get_template("HOST.md.jinja")
    return template.render(contract=contract, tokens=tokens, kinds=kinds, floor=f"{contract.floor:g}")


def _table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table; rows that differ in numbers of names alone, such as those of the layers, are one.

    The first and the last column are text that may differ so; a column whose header is code holds code.
    """
    yield f"| {' | '.join(title.strip('`') for title in header)} |"
    yield "|---" * len(header) + "|"
    families = group_pairs(((family_pattern(row[0]), *row[1:-1], family_pattern(row[-1])), row) for row in rows)
    for members in families.values():
        ends = list(zip(*members, strict=True))[:: len(header) - 1]
        first, last = (family_label(tuple(dict.fromkeys(column))) for column in ends)
        whole = [(first, *members[0][1:-1], last)] if first is not None and last is not None else members
        for row in whole:
            cells = (
                f"`{_cell_text(text)}`" if title[0] == "`" else escape_markdown(text)
                for title, text in zip(header, row, strict=True)
            )
            yield f"| {' | '.join(cells)} |"


def _source_words(source: Source) -> str:
    if source.kind == "embedding":
        return f"{IDS[source.by]} of table '{source.of}'"
    if source.by in PLACES:
        return f"the row of table '{source.of}' at the place, counted from 0, of {PLACES[source.by]}"
    if source.kind == "rows":
        return f"row {ROWS[source.by]} of table '{source.of}'"
    if source.kind == "state":
        return f"state '{source.of}'"
    if source.kind == "output":
        method, _, output = source.of.partition("/")
        return f"output '{output}' of {method}"
    if source.kind == "user":
        return "the caller, and zeros behind what is valid" if source.by == "source" else "the caller"
    window = f", of which the last {source.window} tokens count" if source.window else ""
    return f"the mask over the {'slots' if source.kind == 'slots_mask' else 'source'}{window}"


def _cell_text(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("`", "'")


def write_constants(language: str, contract: Contract, *, has_loop: bool = False) -> str:
    """Return the constants of a contract in a language; with what the loop imports where it goes behind them."""
    suffix, text = TEXTS[language]
    environment = template_environment("${", "}", {"text": text, "comment": comment_text, "camel": _camel_case})
    return environment.get_template(f"contract.{suffix}.jinja").render(contract_constants(contract), has_loop=has_loop)


def contract_constants(contract: Contract) -> dict[str, Any]:
    """Return all that templates write: numbers, lists, the names of places, and arrays of records."""
    methods, floor, sizes = contract.methods, _as_float32(contract.floor), {**NO_SOUND, **contract.sizes}
    numbers = (
        Constant("contract_version", contract.version, "Version of this form."),
        Constant("proven", int(contract.proof.passed), "1 where the proof of models and host passed; 0 where not."),
        *(Constant(name, sizes[name], text) for name, text in SIZES.items()),
        *(Constant(f"token_{name}", _or_none(contract.tokens.get(name)), text) for name, text in TOKENS.items()),
        *(Constant(name, _or_none(vars(contract.generation)[name]), text) for name, text in RULES.items()),
        Constant("state_bytes", sum(state.bytes for state in contract.states), "Bytes of all states."),
    )
    given = {rule: list(getattr(contract.generation, rule) if rule else contract.ends) for rule, _ in LISTS.values()}
    unique = _unique_namer(number.name for number in numbers)
    named = [
        _name_group(unique, what, things)
        for what, things in (("table", contract.tables), ("state", contract.states), ("method", methods))
    ]
    inputs, outputs = (
        [_name_group(unique, f"{m.name}_{what}", getattr(m, f"{what}s"), f"{what} of {m.name}") for m in methods]
        for what in ("input", "output")
    )
    pairs = list(zip(inputs, outputs, strict=True))
    ranks = [len(port.shape) for method in methods for port in (*method.inputs, *method.outputs)]
    ranks += [len(state.shape) for state in contract.states]
    return {
        "contract": contract,
        "target": comment_text(contract.target),
        "numbers": numbers,
        "lists": [{"name": name, "meaning": text, "tokens": given[rule]} for name, (rule, text) in LISTS.items()],
        "floor": repr(floor),
        # the nearest finite one, as a score that an infinity is added to may be NaN; hosts round masks to float32 first
        "floor_half": f"0x{np.float16(np.clip(floor, -65504, 65504)).view(np.uint16):04x}",
        "max_rank": max([1, *ranks]),
        "kinds": list(get_args(Kind)),
        "choices": list(get_args(By)),
        "groups": [*named, *(group for pair in pairs for group in pair)],
        "arrays": list(_array_constants(contract, named, pairs)),
    }


def _array_constants(
    contract: Contract, named: Sequence[Group], ports: Sequence[tuple[Group, Group]]
) -> Iterator[dict[str, Any]]:
    """Yield the arrays of records, each with the kind of these and its identifier."""
    files = [{"name": name, "bytes": file.bytes, "sha256": file.sha256} for name, file in contract.files.items()]
    yield {"kind": "RecordedFile", "name": "files", "records": files}
    rows = [{**vars(t), "row_bytes": math.prod(t.shape) * BYTES[t.dtype]} for t in contract.tables]
    yield {"kind": "Table", "name": named[0].name, "records": rows}
    yield {"kind": "State", "name": named[1].name, "records": [_state_record(state) for state in contract.states]}
    methods, places = [], {state.name: place for place, state in enumerate(contract.states)}
    for method, (inputs, outputs) in zip(contract.methods, ports, strict=True):
        for kind, group, given in (("Input", inputs, method.inputs), ("Output", outputs, method.outputs)):
            records = []
            for port in given:
                of, output = (-1, -1) if port.source is None else _place_of(contract, port.source)
                window = port.source.window if port.source is not None else 0
                source = {"kind": port.kind, "by": port.by, "window": window, "of": of, "output": output}
                records.append({**_tensor_record(port), "source": source, "writes": places.get(port.writes)})
            yield {"kind": kind, "name": group.name, "records": records}
        plain = {"name": method.name, "file": method.file, "each_step": method.when == "step"}
        methods.append({**plain, "inputs": inputs, "outputs": outputs})
    yield {"kind": "Method", "name": named[2].name, "records": methods}


def _tensor_record(tensor: Port | State) -> dict[str, Any]:
    item, dims = BYTES[tensor.dtype], list(tensor.shape)
    return {**vars(tensor), "dims": dims, "item_bytes": item, "bytes": math.prod(dims) * item}


def _state_record(state: State) -> dict[str, Any]:
    record, axis = _tensor_record(state), state.axis
    if axis is None:
        return {**record, "slots": None}
    stride = math.prod(state.shape[axis + 1 :]) * record["item_bytes"]
    blocks = math.prod(state.shape[:axis])  # how often the slots are repeated
    return {**record, "slots": {"axis": axis, "count": state.shape[axis], "stride": stride, "blocks": blocks}}


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _as_float32(number: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError as error:
        hint = "lower again with another --mask-floor"
        raise UsageError(f"the mask floor {number:g} is not a float32 - {hint}") from error


def _unique_namer(reserved: Iterable[str]) -> Callable[[str], str]:
    """Return a function that makes text an identifier in lower case which nothing else has."""
    taken = {*reserved, "mask_floor", "mask_floor_half", "max_rank", "contract_h"}
    taken |= {f"{name}_token{suffix}" for name in LISTS for suffix in ("s", "_count")}
    taken |= {"files", *(f"{what}_count" for what in ("file", "table", "state", "method"))}
    taken |= {f"source_{kind}" for kind in ("none", *get_args(Kind))} | {f"by_{by}" for by in ("none", *get_args(By))}

    def unique(text: str) -> str:
        plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
        plain = plain if plain[:1].isalpha() else f"n_{plain}"
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        name = next(name for name in itertools.chain([plain], numbered) if name not in taken)
        taken.add(name)
        return name

    return unique


def _name_group(
    unique: Callable[[str], str], prefix: str, things: Sequence[Port | State | Table | Method], what: str = ""
) -> Group:
    name = unique(f"{prefix}s")
    return Group(what or prefix, name, tuple((unique(f"{prefix}_{each.name}"), each.name) for each in things))


def _place_of(contract: Contract, source: Source) -> tuple[int, int]:
    if source.kind not in ("embedding", "rows", "state", "output"):
        return -1, -1
    if source.kind == "output":
        outputs = [
            (f"{method.name}/{output.name}", place, at)
            for place, method in enumerate(contract.methods)
            for at, output in enumerate(method.outputs)
        ]
        return next((place, at) for name, place, at in outputs if name == source.of)
    named: Sequence[State | Table] = contract.states if source.kind == "state" else contract.tables
    return [thing.name for thing in named].index(source.of), -1


def comment_text(text: str) -> str:
    """Return text as one line of ASCII that neither ends a comment nor begins one, in any of the languages."""
    plain = printable(text).encode("ascii", "backslashreplace").decode()
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("??/", "?? /").rstrip("\\")


def write_c_text(text: str) -> str:
    """Return a string literal of UTF-8 bytes; a question mark is escaped because of trigraphs."""
    content = text.encode()
    if b"\0" in content:
        raise UsageError(f"{text!r} holds a NUL, which ends a string in C - rename it in the model")
    escaped = (f"\\{chr(b)}" if b in b'"\\?' else chr(b) if 0x20 <= b < 0x7F else f"\\{b:03o}" for b in content)
    return '"' + "".join(escaped) + '"'


def write_rust_text(text: str) -> str:
    """Return a string literal of Rust."""
    escaped = (f"\\{c}" if c in '"\\' else c if " " <= c <= "~" else f"\\u{{{ord(c):x}}}" for c in text)
    return '"' + "".join(escaped) + '"'


def write_kotlin_text(text: str) -> str:
    """Return a string literal of Kotlin."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return '"' + "".join(chr(c) if 32 <= c < 127 and chr(c) not in '"\\$' else f"\\u{c:04x}" for c in codes) + '"'


def _camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


TEXTS: Mapping[str, tuple[str, Callable[[str], str]]] = {  # the suffix of each template, and how it writes a text
    "c": ("h", write_c_text),
    "rust": ("rs", write_rust_text),
    "typescript": ("ts", json.dumps),
    "kotlin": ("kt", write_kotlin_text),
    "python": ("py", ascii),
}
WRITERS = {language: partial(write_constants, language) for language in TEXTS if language != "python"}


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
    filters: dict[str, Callable[..., object]] = {"text": text, "comment": comment_text, "docstring": _docstring_text}
    filters["camel"] = lambda name: name[:1] + _camel_case(name)[1:]
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
    return comment_text(text).replace("\\", r"\\").replace('"', r"\"")
