"""The contract in words: `HOST.md`, for the people who write the host program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphkit.deploy.contract.contract_parts import Generation
from graphkit.deploy.contract.host_contract import Contract, Method, Port, Source
from graphkit.graph.name_families import family_label, family_pattern
from graphkit.render.document_blocks import printable
from graphkit.render.markdown import escape_markdown

__all__ = ["write_guide"]


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
RULES = {
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


def write_guide(contract: Contract) -> str:
    """Return `HOST.md`."""
    return "\n".join(_guide_lines(contract)) + "\n"


def _guide_lines(contract: Contract) -> Iterator[str]:
    yield f"# Host contract ({contract.target})"
    yield ""
    yield "This is what a host program does to run these models. `contract.json` says the same as data. A name with"
    yield "braces stands for a whole family: `past.{0-5}.{key|value}` for the keys and values of layers 0 to 5."
    yield ""
    yield "## The loop"
    yield ""
    yield from (f"{number}. {step}" for number, step in enumerate(contract.loop, 1))
    yield ""
    yield contract.positions
    if contract.sequences > 1:
        yield ""
        yield f"The models run {contract.sequences} sequences at a time, which begin together at slot 0. An input that"
        yield "follows from tokens or from `length` holds the part of each sequence, one behind the other; what follows"
        yield "from `position` is the same for all."
    yield from _token_lines(contract)
    for method in contract.methods:
        yield from _method_lines(method)
    if contract.states:
        yield from _state_lines(contract)
    if contract.tables:
        yield from _host_table_lines(contract)
    yield from _mask_lines(contract)


def _token_lines(contract: Contract) -> Iterator[str]:
    """Yield the tokens that a host needs to know."""
    rows: list[tuple[str, str]] = []
    if contract.takes_text:
        pad = contract.tokens.get("pad")
        rows.append(("pad", "0 (the export does not say)" if pad is None else str(pad)))
    if any(method.when == "step" for method in contract.methods):
        start = contract.tokens.get("start")
        rows.append(("start", "the caller gives it" if start is None else str(start)))
        rows.append(("end", ", ".join(map(str, contract.ends)) or "the caller gives it"))
        rows += _rule_lines(contract.generation)
    rows += [(name, str(token)) for name, token in contract.tokens.items() if name == "pooled" and token is not None]
    if rows:
        yield from ("", "## Tokens", "")
        yield from (f"| {' | '.join(row)} |" for row in (("token", "id"),))
        yield "|---|---|"
        yield from (f"| `{name}` | {text} |" for name, text in rows)


def _rule_lines(rules: Generation) -> Iterator[tuple[str, str]]:
    """Yield the rules by which tokens are chosen, by their names in the contract."""
    for name, text in RULES.items():
        value, usual = getattr(rules, name), getattr(Generation(), name)
        if value != usual:
            yield name, text.format(", ".join(map(str, value)) if isinstance(value, tuple) else value)


def _method_lines(method: Method) -> Iterator[str]:
    when = "once for a source" if method.when == "once" else "for each token"
    yield from ("", f"## `{_cell_text(method.file)}`, {when}", "")
    inputs = [(port.name, port.dtype, str(list(port.shape)), _maker_text(port)) for port in method.inputs]
    yield from _table_lines(("`input`", "dtype", "shape", "who makes it"), inputs)
    yield ""
    outputs = [(port.name, port.dtype, str(list(port.shape)), port.meaning) for port in method.outputs]
    yield from _table_lines(("`output`", "dtype", "shape", "meaning"), outputs)
    if method.became:
        yield ""
        yield from _table_lines(("`input of the original`", "`what it became`"), list(method.became.items()))


def _table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table; rows that differ in numbers of names alone, such as those of the layers, are one.

    The first and the last column are text that may differ so; a column whose header is code holds code.
    """
    yield f"| {' | '.join(title.strip('`') for title in header)} |"
    yield "|---" * len(header) + "|"
    families: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for row in rows:
        families.setdefault((family_pattern(row[0]), *row[1:-1], family_pattern(row[-1])), []).append(row)
    for members in families.values():
        first, last = (
            family_label(tuple(dict.fromkeys(column)))
            for column in list(zip(*members, strict=True))[:: len(header) - 1]
        )
        whole = [(first, *members[0][1:-1], last)] if first is not None and last is not None else members
        for row in whole:
            cells = (
                f"`{_cell_text(text)}`" if title[0] == "`" else escape_markdown(text)
                for title, text in zip(header, row, strict=True)
            )
            yield f"| {' | '.join(cells)} |"


def _maker_text(port: Port) -> str:
    source = port.source
    assert source is not None
    return f"{_source_words(source)}: {port.meaning}"


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


def _state_lines(contract: Contract) -> Iterator[str]:
    total = sum(state.bytes for state in contract.states)
    yield from ("", f"## State, {total:,} bytes", "")
    yield "Slot `position` is the next one; slots lie in the order of the tokens, along the axis that the table names."
    yield "What goes into the next slot of a state without such an axis, or becomes it, replaces all of it."
    yield ""
    rows = [
        (state.name, state.dtype, str(list(state.shape)), "-" if state.axis is None else f"axis {state.axis}")
        for state in contract.states
    ]
    yield from _table_lines(("`state`", "dtype", "shape", "slots along"), rows)


def _host_table_lines(contract: Contract) -> Iterator[str]:
    yield from ("", "## Tables, raw and little-endian", "")
    yield "Rows lie one behind the other from the offset on. Rows that are fewer than an input holds are repeated to"
    yield "fill it."
    yield ""
    rows = [
        (table.name, table.file, str(table.offset), table.dtype, f"{table.rows:,}", str(list(table.shape)))
        for table in contract.tables
    ]
    yield from _table_lines(("`table`", "`file`", "offset", "dtype", "rows", "shape of a row"), rows)


def _mask_lines(contract: Contract) -> Iterator[str]:
    kinds = {port.kind for method in contract.methods for port in method.inputs}
    capacity, source, floor = contract.sizes["capacity"], contract.sizes["source"], contract.floor
    if "slots_mask" in kinds or "source_mask" in kinds:
        yield from ("", "## Masks", "")
    if "slots_mask" in kinds:
        yield f"- Over the slots, `[..., {capacity + 1}]`: 0 at slots `0` to `position - 1` and at the last place, for"
        yield f"  the new token; {floor:g} elsewhere. Where the last `w` tokens count, slots below"
        yield f"  `position + 1 - w` have {floor:g} too."
    if "source_mask" in kinds:
        yield f"- Over the source, `[..., {source}]`: 0 at places `0` to `length - 1`, {floor:g} from `length` on."
    if "slots_mask" in kinds or "source_mask" in kinds:
        yield ""
        yield "A mask is the same for all places of its other axes."


def _cell_text(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("`", "'")
