"""A result on one screen: what it says first, a line for each section, and the commands to run next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from os.path import commonprefix

from graphkit.render.document_blocks import Block, Document, Heading, Lines, Prose, Table, table
from graphkit.render.terminal import block_lines

SCREEN = 24  # lines
MOST_SECTIONS, LEAST_SECTIONS = 8, 3  # that have a line each
LEAST_ROWS = 5  # of a table that is cut
FULL = "--full shows all of it."


@dataclass(frozen=True)
class Brief:
    """A result on one screen of a terminal.

    Attributes:
        result: The result.
        width: Of the screen, in columns.
        commands: The commands to run next.
        has_lines: Whether sections have a line each, and do not fill the screen one after the other.
        below: Lines of the screen that are needed for what follows.
    """

    result: Document
    width: int
    commands: tuple[str, ...] = ()
    has_lines: bool = True
    below: int = 0

    def heading(self) -> str:
        """The heading of the result."""
        return self.result.heading()

    def blocks(self) -> Iterator[Block]:
        """Yield all blocks where they fit; else the first ones, a table of the sections, and where the rest is."""
        blocks = [block for block in self.result.blocks() if isinstance(block, Heading | Prose | Lines | Table)]
        next_lines = Lines(tuple((command, "command") for command in self.commands))
        end: list[Block] = [next_lines] if self.commands else []
        room = SCREEN - self.below - self._height([Prose(self.heading()), *end])
        if self._height(blocks) <= room:
            yield from (*blocks, *end)
            return
        shown, sections = _divide_blocks(blocks) if self.has_lines else (blocks, [])
        texts = [block for block in shown if not isinstance(block, Table)]
        trials: list[list[Block]] = [[*map(_least_part, shown)], [*texts]]
        counts = (*range(MOST_SECTIONS, LEAST_SECTIONS - 1, -1), 0)
        for parts, most in product(trials, counts):  # as many lines as leave room for tables too, else for texts
            end = [*self._overview(sections, most), Lines(((FULL, "plain"), *next_lines.rows))]
            room = SCREEN - self.below - self._height([Prose(self.heading()), *end])
            if self._height(parts) <= room:
                break
        yield from self._fitting(shown, room)
        yield from end

    def _overview(self, sections: Sequence[tuple[str, Sequence[Block]]], most: int) -> list[Block]:
        """Return a table of the first sections, a line for each."""
        paths = [name.split("/") for name, _ in sections if "/" in name]
        folder = len(commonprefix([path[:-1] for path in paths]))  # noqa: RUF071 - of parts
        shorter = ("/".join(name.split("/")[folder * ("/" in name) :]) for name, _ in sections)
        said = {
            name: text for name, (_, blocks) in zip(shorter, sections, strict=True) if (text := _first_words(blocks))
        }
        room = self.width - max(map(len, ("Section", *[*said][:most]))) - len("  ")
        rows = [
            (name, text if len(text) <= room else f"{text[: room - 3].rsplit(' ', 1)[0]} ...")
            for name, text in [*said.items()][:most]
        ]
        more = [(f"... and {len(said) - most:,} more", "")] if len(said) > most else []
        return [table("Section | What it says", [*rows, *more])] if rows and most else []

    def _fitting(self, blocks: Sequence[Block], room: int) -> Iterator[Block]:
        """Yield the first blocks that there is room for, a table with fewer rows, every proof and warning.

        Where sections have a line each, what is left are texts that belong together, for which tables make room, and
        the last of which is what comes of them.
        """
        is_cut = False
        last = next((each for each in reversed(blocks) if self.has_lines and isinstance(each, Prose)), None)
        for place, block in enumerate(blocks):
            following = blocks[place + 1 : place + 2]
            is_for_next = isinstance(block, Prose) and str(block.text).endswith(":")  # nothing without its table
            needed = [block, *map(_least_part, following)] if is_for_next else [block]
            needed += following if isinstance(block, Heading) else []
            texts = [each for each in blocks[place + 1 :] if self.has_lines and isinstance(each, Prose)]
            kept = texts if isinstance(block, Table) else texts[-1:]
            free = room - self._height(kept)
            part = block if self._height(needed) <= free else self._shortened(block, free)
            if isinstance(block, Lines) or block is last or (isinstance(block, Prose) and block.tone == "warning"):
                part = block
            elif is_cut or part is None:
                is_cut = is_cut or not (self.has_lines and (is_for_next or isinstance(block, Table)))
                continue
            is_cut = is_cut or (part is not block and not self.has_lines)
            room -= self._height([part])
            yield part

    def _shortened(self, block: Block, room: int) -> Block | None:
        """Return a table with as many rows as there is room for, None where there is none for a few of them."""
        if not isinstance(block, Table):
            return None
        counts = range(len(block.rows) - 1, LEAST_ROWS - 1, -1)
        parts = (replace(block, rows=[*block.rows[:count], _rest_row(block, count)]) for count in counts)
        return next((part for part in parts if self._height([part]) <= room), None)

    def _height(self, blocks: Sequence[Block]) -> int:
        return sum(1 for block in blocks for _ in block_lines(block, self.width, self.width))


def _least_part(block: Block) -> Block:
    """Return what of a block there has to be room for: of a table its first rows."""
    return replace(block, rows=block.rows[:LEAST_ROWS]) if isinstance(block, Table) else block


def _rest_row(block: Table, count: int) -> list[str | None]:
    """Return a row that says how many more there are."""
    named = next((at for at, column in enumerate(block.columns) if column.kind != "number"), 0)
    rest = f"... and {len(block.rows) - count:,} more"
    return [rest if at == named else None for at in range(len(block.columns))]


def _divide_blocks(blocks: Sequence[Block]) -> tuple[list[Block], list[tuple[str, list[Block]]]]:
    """Return what is shown, and the sections that are told in a line; what is under a main heading is shown."""
    shown, sections, is_shown = list[Block](), list[tuple[str, list[Block]]](), True
    for block in blocks:
        if isinstance(block, Heading) and not block.is_inner:
            is_shown = block.is_main
            if not is_shown:
                sections.append((block.text, []))
                continue
        (shown if is_shown else sections[-1][1]).append(block)
    return shown, sections


def _first_words(blocks: Sequence[Block]) -> str:
    """Return what a section says first: a sentence, or how many rows its table has."""
    for block in blocks:
        if isinstance(block, Prose | Lines):
            text = block.text if isinstance(block, Prose) else block.rows[0][0]
            return str(text).partition(". ")[0].removesuffix(".")
        if isinstance(block, Table) and block.rows:
            rows = f"{len(block.rows):,} row{'s' * (len(block.rows) != 1)}"
            return f"{block.title}: {rows}" if block.title else rows
    return ""
