"""Explain a bundle: its methods, the state that each reads and writes, and the layout of the state in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from graphkit.contract.bundle_contract import Access, BundleContract, StateTensor, Update
from graphkit.contract.contract_files import read_bundle
from graphkit.errors import count_things
from graphkit.graph.declared_types import shape_text
from graphkit.graph.names import family_labels, family_pattern
from graphkit.render.document_blocks import Block, Column, Heading, Prose, Table, table
from graphkit.render.result import Result

ACCESS: Mapping[Access, str] = {"none": "-", "read": "read", "write": "write", "read and write": "read, write"}
UPDATES: Mapping[Update, str] = {
    "slots": "new tokens in the next slots",
    "ring": "new tokens in a ring",
    "whole": "replaced as a whole",
    "swap": "replaced as a whole, in two places in turn",
}
WIDTH = 20  # of a bar


class StateFamily(Struct, frozen=True):
    """States that differ in the numbers in their names only."""

    name: str  # their common name
    count: int  # how many
    dtype: str  # of each
    shape: tuple[int, ...]
    update: Update  # how methods write them
    offset: int  # where the first lies in the arena
    bytes: int  # of all together
    access: Mapping[str, Access]  # the access of each method, by its name


@dataclass(frozen=True)
class BundleOverview(Result):
    """The parts of a bundle.

    Attributes:
        name: Its folder.
        contract: The content of `bundle.json`.
        families: Its states, by family.
        bytes_per_token: Bytes that a token of one row adds to the slots in use.
    """

    title: ClassVar[str] = "Bundle"
    name: str
    contract: BundleContract
    families: tuple[StateFamily, ...]
    bytes_per_token: int

    def heading(self) -> str:
        return f"Bundle {self.name}"

    def blocks(self) -> Iterator[Block]:
        contract = self.contract
        methods = [method.name for method in contract.methods]
        rows, size = contract.sizes["batch"], count_things(self.bytes_per_token, "byte(s)")
        growth = f"each token of a row takes {size}. {contract.positions.capitalize()}."
        yield Prose(
            f"{count_things(len(methods), 'method(s)')} over {count_things(len(contract.states), 'state tensor(s)')}, "
            f"{count_things(contract.arena, 'byte(s)')} for up to {count_things(rows, 'row(s)')}; "
            f"{growth if self.bytes_per_token else 'it is as large after any number of tokens.'}"
        )
        if caveat := contract.generation.caveat():
            yield Prose(caveat, "warning")
        yield from (Prose(f"Not all sizes run: {x} is {size.words}.", "warning") for x, size in contract.legal.items())
        yield Heading("Methods")
        tensors = []
        for method in contract.methods:
            takes = ", ".join(f"{p.name} {shape_text(p.shape)}" for p in method.inputs if p.kind != "state")
            gives = ", ".join(f"{p.name} {shape_text(p.shape)}" for p in method.outputs if not p.writes)
            tensors.append((method.name, method.file, takes, gives))
        yield table("Method:code | File:code | Takes | Gives", tensors)
        yield Heading("State")
        columns = (Column("State", "code"), Column("Tensor", "note"), *map(Column, methods))
        states = []
        for family in self.families:
            about = f"{family.dtype}{list(family.shape)}, {UPDATES[family.update]}"
            states.append((family.name, about, *(ACCESS[family.access[name]] for name in methods)))
        yield Table(columns, states)
        yield Heading("Arena")
        bars = ["█" * max(1, round(WIDTH * f.bytes / contract.arena)) if contract.arena else "" for f in self.families]
        parts = [(f.offset, f.bytes, bar, f.name) for f, bar in zip(self.families, bars, strict=True)]
        yield table("Offset:number | Bytes:number | Part | State:code", parts)
        yield Heading("How to run it")
        yield from (Prose(text) for text in contract.loop)


def bundle_overview(path: str | os.PathLike[str]) -> BundleOverview:
    """Return the parts of a bundle, by its folder or its `bundle.json`; ModelError if it is none."""
    folder = Path(path)
    file = folder / "bundle.json" if folder.suffix != ".json" else folder
    return overview_of(file.resolve().parent.name, read_bundle(file))


def overview_of(name: str, contract: BundleContract) -> BundleOverview:
    """Return the parts of a bundle, from its `bundle.json`."""
    families: dict[tuple[object, ...], list[StateTensor]] = {}
    for state in contract.states:
        by_method = tuple(method.access[state.name] for method in contract.methods)
        key = (family_pattern(state.name), state.dtype, state.shape, state.update, by_method)
        families.setdefault(key, []).append(state)
    grows = [state for state in contract.states if state.update == "slots" and state.axis is not None]
    rows = [state.shape[state.batch] if state.batch is not None else 1 for state in grows]
    per_token = sum(state.bytes // (state.shape[state.axis or 0] * n) for state, n in zip(grows, rows, strict=True))
    shown = []
    for states in families.values():
        first, label, size = states[0], family_labels(s.name for s in states), sum(state.bytes for state in states)
        access = {method.name: method.access[first.name] for method in contract.methods}
        known = first.dtype, first.shape, first.update, first.offset
        shown.append(StateFamily(label, len(states), *known, bytes=size, access=access))
    return BundleOverview(name, contract, tuple(shown), per_token)
