"""The contract in words: `HOST.md`, for the people who write the host program."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.contract.contract import Contract, Method, Port, Source
from graphkit.render.blocks import printable

__all__ = ["guide"]


def guide(contract: Contract) -> str:
    """Return `HOST.md`."""
    return "\n".join(_lines(contract)) + "\n"


def _lines(contract: Contract) -> Iterator[str]:
    yield f"# Host contract ({contract.target})"
    yield ""
    yield "What a host program does to run these models. `contract.json` says the same as data."
    yield ""
    yield "## The loop"
    yield ""
    yield from (f"{number}. {step}" for number, step in enumerate(contract.loop, 1))
    yield ""
    yield contract.positions
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
    yield from ("| input | dtype | shape | who makes it |", "|---|---|---|---|")
    yield from (f"| `{_cell(p.name)}` | {p.dtype} | {list(p.shape)} | {_cell(_maker(p))} |" for p in method.inputs)
    yield from ("", "| output | dtype | shape | meaning |", "|---|---|---|---|")
    yield from (f"| `{_cell(p.name)}` | {p.dtype} | {list(p.shape)} | {_cell(p.meaning)} |" for p in method.outputs)
    if method.became:
        yield from ("", "| input of the original | what it became |", "|---|---|")
        yield from (f"| `{_cell(name)}` | `{_cell(text)}` |" for name, text in method.became.items())


def _maker(port: Port) -> str:
    source = port.source
    assert source is not None
    return f"{_words(source)}: {port.meaning}"


def _words(source: Source) -> str:
    if source.kind == "embedding":
        which = {"source": "each token of the source, then the padding token", "type": "the type of each token"}
        return f"rows of table `{source.of}` for {which.get(source.by, 'the token')}"
    if source.kind == "rows":
        return f"row `{source.by}` of table `{source.of}`"
    if source.kind == "state":
        return "the state of that name"
    if source.kind == "output":
        return f"the output `{source.of}`"
    if source.kind == "user":
        return "whoever calls"
    window = f", of which the last {source.window} tokens count" if source.window else ""
    return f"the mask over the {'slots' if source.kind == 'slots_mask' else 'source'}{window}"


def _states(contract: Contract) -> Iterator[str]:
    total = sum(state.bytes for state in contract.states)
    yield from ("", f"## State, {total:,} bytes", "")
    yield "Slot `position` is the next one to write; slots lie in the order of the tokens."
    yield from ("", "| state | dtype | shape | slots along |", "|---|---|---|---|")
    for state in contract.states:
        along = "-" if state.axis is None else f"axis {state.axis}"
        yield f"| `{_cell(state.name)}` | {state.dtype} | {list(state.shape)} | {along} |"


def _tables(contract: Contract) -> Iterator[str]:
    yield from ("", "## Tables, raw and little-endian", "")
    yield from ("| table | file | offset | dtype | rows | shape of a row |", "|---|---|---|---|---|---|")
    for table in contract.tables:
        place = f"`{_cell(table.file)}` | {table.offset} | {table.dtype} | {table.rows:,} | {list(table.shape)}"
        yield f"| `{_cell(table.name)}` | {place} |"


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
