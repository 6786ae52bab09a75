"""A host that follows the sentences and tables of a HOST.md, and reads nothing else: no contract.json, no graphkit."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sessions import ALL, session_of

Row = dict[str, str]
Arrays = dict[str, np.ndarray]


@dataclass
class Section:
    """A method of the guide."""

    file: str
    is_step: bool
    inputs: list[Row]
    outputs: list[Row]


class GuideHost:
    """Runs one sequence of tokens, as HOST.md says; keeps what it feeds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.text = folder, (folder / "HOST.md").read_text(encoding="utf-8")
        sections = re.split(r"^## ", self.text, flags=re.M)
        self.methods = [method for text in sections[1:] for method in _methods(text)]
        self.sessions = {method.file: session_of(folder / method.file, ALL) for method in self.methods}
        tables = {row["table"]: row for row in self._rows("table")}
        self.tables = {name: self._table(row) for name, row in tables.items()}
        self.axes = {row["state"]: row["slots along"] for row in self._rows("state")}
        self.state = {row["state"]: np.zeros(json.loads(row["shape"]), row["dtype"]) for row in self._rows("state")}
        self.tokens = {row["token"]: row["id"] for row in self._rows("token")}
        self.capacity = self._number(r"unless `position` is (\d+)")
        self.positions = self._number(r"or where `position` is (\d+)")
        self.fed: list[tuple[str, Arrays]] = []
        self.given: Arrays = {}
        self.ids: list[int] = []
        self.position, self.length = 0, self._number(r"Set `length` to (\d+)")

    def _number(self, pattern: str) -> int:
        found = re.search(pattern, self.text)
        return int(found[1]) if found else 0

    def _rows(self, first: str) -> list[Row]:
        return [row for rows in _tables(self.text) for row in rows if next(iter(row)) == first]

    def _table(self, row: Row) -> np.ndarray:
        shape = (int(row["rows"].replace(",", "")), *json.loads(row["shape of a row"]))
        dtype = np.dtype(row["dtype"]).newbyteorder("<")
        return np.memmap(self.folder / row["file"], dtype, "r", int(row["offset"]), shape)

    def start(self, ids: Sequence[int], user: Mapping[str, np.ndarray]) -> None:
        """Run what runs once for a source."""
        self.ids, self.length, self.given = list(ids), len(ids) or self.length, dict(user)
        for method in self.methods:
            if not method.is_step:
                self._run(method, 0)

    def step(self, token: int) -> np.ndarray:
        """Run a token, and return its logits."""
        (method,) = (method for method in self.methods if method.is_step)
        outputs = self._run(method, token)
        self.position += 1
        (logits,) = (array for name, array in outputs.items() if name not in self._written(method))
        return logits.reshape(-1)

    def generate(self, prompt: Sequence[int], steps: int) -> list[int]:
        """Return greedy tokens: up to an end token, or until the positions are used up."""
        ends = [int(token) for token in re.findall(r"\d+", self.tokens["end"])]
        tokens, found = list(prompt), []
        while len(found) < steps and self.position < self.positions:
            logits = self.step(tokens[self.position])
            if self.position < len(tokens):
                continue
            found.append(int(logits.argmax()))
            tokens.append(found[-1])
            if found[-1] in ends:
                break
        return found

    def _run(self, method: Section, token: int) -> Arrays:
        feed = {row["input"]: self._input(row, token) for row in method.inputs}
        self.fed.append((method.file, feed))
        names = [row["output"] for row in method.outputs]
        outputs = dict(zip(names, self.sessions[method.file].run(names, feed), strict=True))
        self.given |= {f"{name} of {method.file.removesuffix('.onnx')}": array for name, array in outputs.items()}
        for name, state in self._written(method).items():
            self._write(state, outputs[name])
        return outputs

    def _written(self, method: Section) -> dict[str, str]:
        pattern = re.compile(r"(?:goes into the next slot of|becomes) '(.*)'")
        return {row["output"]: found[1] for row in method.outputs if (found := pattern.match(row["meaning"]))}

    def _write(self, state: str, new: np.ndarray) -> None:
        axis = re.fullmatch(r"axis (\d+)", self.axes[state])
        if axis is None:
            self.state[state][...] = new
        elif self.position != self.capacity:
            place: list[slice | int] = [slice(None)] * int(axis[1])
            self.state[state][(*place, slice(self.position, self.position + 1))] = new

    def _input(self, row: Row, token: int) -> np.ndarray:
        shape, dtype = json.loads(row["shape"]), row["dtype"]
        maker = row["who makes it"]
        if maker.startswith("the caller"):
            return self.given[row["input"]]
        if found := re.match(r"state '(.*?)'", maker):
            return self.state[found[1]].copy()
        if found := re.match(r"output '(.*?)' of (\w+)", maker):
            return self.given[f"{found[1]} of {found[2]}"]
        if found := re.match(r"the mask over the (slots|source)(?:, of which the last (\d+) tokens count)?", maker):
            return self._mask(found[1], int(found[2] or 0), shape).astype(dtype)
        return self._looked_up(maker, token, shape)

    def _looked_up(self, maker: str, token: int, shape: Sequence[int]) -> np.ndarray:
        found = re.match(r"(.*?),? of table '(.*?)'(.*)", maker)
        assert found, maker
        rows = self.tables[found[2]]
        count = int(np.prod(shape)) // int(np.prod(rows.shape[1:]))
        padding = int(re.findall(r"\d+", self.tokens.get("pad", "0"))[0])
        largest = self.ids.index(max(self.ids)) if self.ids else 0
        pooled = int(self.tokens.get("pooled", -1))
        places = {
            "the rows of the tokens of the source, then the row of pad for the rest": (
                self.ids + [padding] * (count - len(self.ids))
            ),
            "the row of the token": [token],
            "the rows of the types of the tokens, 0 unless the caller has pairs of texts": [0] * count,
            "row position": [self.position],
            "row length - 1": [self.length - 1],
        }
        if found[1] == "the row":
            places["the row"] = [
                largest if "largest ids" in found[3] else [*self.ids, pooled].index(pooled) % len(self.ids)
            ]
        return np.resize(rows[places[found[1]]], shape)

    def _mask(self, over: str, window: int, shape: Sequence[int]) -> np.ndarray:
        kind = {
            "slots": r"Over the slots, .*\n?.*; (\S+) elsewhere",
            "source": r"Over the source, .*, (\S+) from `length`",
        }
        stated = re.search(kind[over], self.text)
        assert stated
        mask = np.full(shape, float(stated[1]), np.float32)
        if over == "source":
            mask[..., : self.length] = 0
            return mask
        mask[..., max(0, self.position + 1 - window) if window else 0 : self.position] = 0
        mask[..., -1] = 0
        return mask


def _methods(text: str) -> Iterator[Section]:
    head = re.match(r"`(.*\.onnx)`, (once for a source|for each token)\n", text)
    if head:
        tables = {next(iter(rows[0])): rows for rows in _tables(text) if rows}
        yield Section(head[1], head[2] == "for each token", tables.get("input", []), tables.get("output", []))


def _tables(text: str) -> Iterator[list[Row]]:
    """Yield the tables of a text, each row that stands for a family as the rows of its members."""
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        header, _, *rows = (_cells(line) for line in block.splitlines())
        yield [dict(zip(header, member, strict=True)) for row in rows for member in _members(row)]


def _cells(line: str) -> list[str]:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]
    return [re.sub(r"\\(.)", r"\1", cell).strip("`") for cell in cells]


def _members(row: list[str]) -> Iterator[list[str]]:
    counts = list(itertools.zip_longest(*(list(_expanded(cell)) for cell in row)))
    last: list[str] = []
    for member in counts:
        last = [cell if cell is not None else former for cell, former in zip(member, last or member, strict=True)]
        yield last


def _expanded(text: str) -> Iterator[str]:
    """Yield the names of a family: `{0-2}` numbers, `{i=0-2}` what `{i}` repeats, `{key|value}` words."""
    parts = re.split(r"\{(.*?)\}", text)
    named = {part.split("=")[0]: place for place, part in enumerate(parts) if place % 2 and "=" in part}
    choices = [_choices(part) if place % 2 and part not in named else [part] for place, part in enumerate(parts)]
    for words in itertools.product(*choices):
        yield "".join(words[named[word]] if at % 2 and word in named else word for at, word in enumerate(words))


def _choices(inside: str) -> list[str]:
    if found := re.fullmatch(r"(?:\w=)?(\d+)-(\d+)", inside):
        return [str(number) for number in range(int(found[1]), int(found[2]) + 1)]
    return inside.partition("=")[2].split("|") if "=" in inside else inside.split("|")
