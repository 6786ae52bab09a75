"""The contract in words: `HOST.md`, for the people who write the host program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphkit.contract.contract import Contract, Method, Port, Source
from graphkit.graph.families import family_label, family_pattern
from graphkit.render.blocks import printable
from graphkit.render.markdown import escape

__all__ = ["guide"]


PLACES = {
    "largest_id": "the first of the largest ids of the source",
    "first_token": "the first token `tokens.pooled` of the source, 0 where there is none",
}


def guide(contract: Contract) -> str:
    """Return `HOST.md`."""
    return "\n".join(_lines(contract)) + "\n"


def _lines(contract: Contract) -> Iterator[str]:
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
    for method in contract.methods:
        yield from _method(method)
    if contract.states:
        yield from _states(contract)
    if contract.tables:
        yield from _tables(contract)
    yield from _masks(contract)


def _method(method: Method) -> Iterator[str]:
    when = "once for a source" if method.when == "once" else "for each token"
    yield from ("", f"## `{_cell(method.file)}`, {when}", "")
    inputs = [(port.name, port.dtype, str(list(port.shape)), _maker(port)) for port in method.inputs]
    yield from _table(("`input`", "dtype", "shape", "who makes it"), inputs)
    yield ""
    outputs = [(port.name, port.dtype, str(list(port.shape)), port.meaning) for port in method.outputs]
    yield from _table(("`output`", "dtype", "shape", "meaning"), outputs)
    if method.became:
        yield ""
        yield from _table(("`input of the original`", "`what it became`"), list(method.became.items()))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
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
                f"`{_cell(text)}`" if title[0] == "`" else escape(text) for title, text in zip(header, row, strict=True)
            )
            yield f"| {' | '.join(cells)} |"


def _maker(port: Port) -> str:
    source = port.source
    assert source is not None
    return f"{_words(source)}: {port.meaning}"


def _words(source: Source) -> str:
    if source.kind == "embedding":
        which = {"source": "each token of the source, then the padding token", "type": "the type of each token"}
        return f"rows of table '{source.of}' for {which.get(source.by, 'the token')}"
    if source.by in PLACES:
        return f"the row of table '{source.of}' at the place, counted from 0, of {PLACES[source.by]}"
    if source.kind == "rows":
        return f"row '{source.by}' of table '{source.of}'"
    if source.kind == "state":
        return "the state of that name"
    if source.kind == "output":
        return f"the output '{source.of}'"
    if source.kind == "user":
        return "whoever calls"
    window = f", of which the last {source.window} tokens count" if source.window else ""
    return f"the mask over the {'slots' if source.kind == 'slots_mask' else 'source'}{window}"


def _states(contract: Contract) -> Iterator[str]:
    total = sum(state.bytes for state in contract.states)
    yield from ("", f"## State, {total:,} bytes", "")
    yield "Slot `position` is the next one to write; slots lie in the order of the tokens."
    yield ""
    rows = [
        (state.name, state.dtype, str(list(state.shape)), "-" if state.axis is None else f"axis {state.axis}")
        for state in contract.states
    ]
    yield from _table(("`state`", "dtype", "shape", "slots along"), rows)


def _tables(contract: Contract) -> Iterator[str]:
    yield from ("", "## Tables, raw and little-endian", "")
    rows = [
        (table.name, table.file, str(table.offset), table.dtype, f"{table.rows:,}", str(list(table.shape)))
        for table in contract.tables
    ]
    yield from _table(("`table`", "`file`", "offset", "dtype", "rows", "shape of a row"), rows)


def _masks(contract: Contract) -> Iterator[str]:
    kinds = {p.source.kind for m in contract.methods for p in m.inputs if p.source is not None}
    capacity, source, floor = contract.sizes["capacity"], contract.sizes["source"], contract.floor
    if "slots_mask" in kinds or "source_mask" in kinds:
        yield from ("", "## Masks", "")
    if "slots_mask" in kinds:
        yield f"- Over the slots, `[..., {capacity + 1}]`: 0 at slots `0` to `position - 1` and at the last place,"
        yield f"  for the new token; {floor:g} elsewhere. In a window of `w` tokens, 0 from slot `position + 1 - w` on."
    if "source_mask" in kinds:
        yield f"- Over the source, `[..., {source}]`: 0 at places `0` to `length - 1`, {floor:g} at the padding."


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("`", "'")
