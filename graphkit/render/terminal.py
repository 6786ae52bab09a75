"""Results as terminal text, rendered by rich: names are never markup and never broken, and columns stay in line.

A long result may be told on one screen: what it says first, a line for each section, and the commands to run next.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import product
from os.path import commonprefix

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from graphkit.render.document_blocks import Block, Document, Heading, Lines, Prose, Table, cell_text, printable, table

MARKS = {"plain": ("", ""), "note": ("- ", ""), "warning": ("! ", "yellow"), "command": ("$ ", "bold")}
NOTE = 2  # spaces before a note beneath a name
GAP = 2  # spaces between columns
SCREEN = 24  # lines
MOST_SECTIONS, LEAST_SECTIONS = 8, 3  # that have a line each
LEAST_ROWS = 5  # of a table that is cut
FULL = "--full shows all of it."


def as_text(result: Document, width: int = 80, color: bool = False, *, table_width: int | None = None) -> str:
    """Return a result as text; its tables may be wider than its paragraphs."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        legacy_windows=False,
    )
    Rendered(result, table_width).print_on(console)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


class Rendered(Struct, frozen=True):
    """A result that rich prints, in the width of the console; a console that folds lines folds long names."""

    result: Document
    table_width: int | None = None

    def print_on(self, console: Console) -> None:
        """Print it with every name whole, also one that is wider than the console."""
        console.print(self, overflow="ignore", crop=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from _paragraph_lines(self.result.heading(), options.max_width, "bold")
        for block in self.result.blocks():
            yield from block_lines(block, options.max_width, self.table_width or options.max_width)


def block_lines(block: Block, width: int, table_width: int) -> Iterator[Text]:
    """Yield the lines of a block, and an empty one after it."""
    if isinstance(block, Heading):
        yield from _paragraph_lines(block.text, width, "bold underline")
    elif isinstance(block, Prose):
        warning = block.tone == "warning"
        yield from _paragraph_lines(f"{'Warning: ' if warning else ''}{block.text}", width, "yellow" if warning else "")
    elif isinstance(block, Lines):
        for words, role in block.rows:  # the mark, the wrapped rest beneath the first word; a command stays one line
            mark, style = MARKS[role]
            lines = [printable(words)] if role == "command" else wrap_text(printable(words), width - len(mark))
            for number, line in enumerate(lines):
                yield Text(" " * len(mark) if number else mark, style).append(line.rstrip(), style)
        yield Text("")
    elif isinstance(block, Table):
        if block.title:
            yield from _wrapped_lines(block.title, width, "italic")
        shown = [number for number, column in enumerate(block.columns) if column.kind != "note"]
        notes = [number for number, column in enumerate(block.columns) if column.kind == "note"]
        right = [block.columns[number].kind == "number" for number in shown]
        heads = [printable(block.columns[number].name) for number in shown]
        rows = [[cell_text(cell) for cell in row] for row in block.rows]
        columns = [[head, *(row[number] for row in rows)] for head, number in zip(heads, shown, strict=True)]
        widths = widths_within(columns, right, table_width)
        named = next((place for place, number in enumerate(shown) if block.columns[number].kind == "code"), 0)
        indent = sum(widths[:named]) + GAP * named + NOTE
        yield from row_lines(heads, widths, right, table_width, "bold")
        yield Text("─" * min(sum(widths) + GAP * (len(widths) - 1) + 1, table_width))
        for row in rows:
            yield from row_lines([row[number] for number in shown], widths, right, table_width)
            for number in notes:
                if row[number]:
                    yield from _wrapped_lines(row[number], width, "dim", indent)
        yield Text("")
    # the others are pictures of a table beside them: a page has all, Markdown drawings


def _paragraph_lines(words: str, width: int, style: str) -> Iterator[Text]:
    yield from _wrapped_lines(words, width, style)
    yield Text("")


def _wrapped_lines(words: str, width: int, style: str, indent: int = 0) -> Iterator[Text]:
    for line in wrap_text(printable(words), width - indent):
        yield Text(" " * indent).append(line.rstrip(), style)


def wrap_text(text: str, width: int) -> list[str]:
    """Return lines that break at spaces; a word that is wider than the width has a line of its own, whole."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1].strip() else f"{lines[-1]}{word}"
        if not lines[-1].strip() or cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def widths_within(columns: Sequence[Sequence[str]], fixed: Sequence[bool], width: int) -> list[int]:
    """Return a width for each column of cells, its head first: as wide as its cells, unless together they are too wide.

    Then the widest column that is not `fixed` becomes narrower, never so narrow that a word of its head breaks.
    """
    widths = [max(map(cell_len, cells)) for cells in columns]
    least = [own if keep else _widest_word(cells[0]) for own, keep, cells in zip(widths, fixed, columns, strict=True)]
    while (excess := sum(widths) + GAP * (len(widths) - 1) - width) > 0:
        wider = sorted((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: -widths[i])
        if not wider:
            break
        next_width = widths[wider[1]] if len(wider) > 1 else 0
        widths[wider[0]] = max(least[wider[0]], widths[wider[0]] - excess, min(next_width, widths[wider[0]] - 1))
    return widths


def row_lines(
    cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], width: int, style: str = ""
) -> Iterator[Text]:
    """Yield the lines of one row; a cell with a word wider than its column is the last on its line."""
    offset = start = 0
    block: list[list[str]] = []
    for number, (cell, column_width, align) in enumerate(zip(cells, widths, right, strict=True)):
        is_last = number == len(cells) - 1
        overflows = _widest_word(cell) > column_width
        lines = wrap_text(cell, max(column_width, width - offset) if is_last or overflows else column_width)
        block.append([f"{' ' * (column_width - cell_len(line))}{line}" if align else line for line in lines])
        offset += column_width + GAP
        if overflows or is_last:
            yield from _side_by_side(block, widths[number + 1 - len(block) :], start, style)
            block, start = [], offset


def _side_by_side(block: Sequence[Sequence[str]], widths: Sequence[int], start: int, style: str) -> Iterator[Text]:
    if start and not any(line for cell in block for line in cell):
        return
    for number in range(max(map(len, block))):
        line = Text(" " * start)
        for place, cell in enumerate(block):
            text = cell[number] if number < len(cell) else ""
            pad = widths[place] + GAP - cell_len(text) if place < len(block) - 1 else 0
            line.append(text, style).append(" " * pad)
        line.rstrip()
        yield line


def _widest_word(text: str) -> int:
    return max(map(cell_len, text.split(" ")))


class Brief(Struct, frozen=True):
    """A result on one screen of a terminal."""

    result: Document  # the result
    width: int  # of the screen, in columns
    commands: tuple[str, ...] = ()  # the commands to run next
    has_lines: bool = True  # whether sections have a line each, and do not fill the screen one after the other
    below: int = 0  # lines of the screen that are needed for what follows

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
        yield from self._fit_blocks(shown, room)
        yield from end

    def _overview(self, sections: Sequence[tuple[str, Sequence[Block]]], most: int) -> list[Block]:
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

    def _fit_blocks(self, blocks: Sequence[Block], room: int) -> Iterator[Block]:
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
            part = block if self._height(needed) <= free else self._shorten_table(block, free)
            if isinstance(block, Lines) or block is last or (isinstance(block, Prose) and block.tone == "warning"):
                part = block
            elif is_cut or part is None:
                is_cut = is_cut or not (self.has_lines and (is_for_next or isinstance(block, Table)))
                continue
            is_cut = is_cut or (part is not block and not self.has_lines)
            room -= self._height([part])
            yield part

    def _shorten_table(self, block: Block, room: int) -> Block | None:
        if not isinstance(block, Table):
            return None
        named = next((at for at, column in enumerate(block.columns) if column.kind != "number"), 0)
        for count in range(len(block.rows) - 1, LEAST_ROWS - 1, -1):
            rest = f"... and {len(block.rows) - count:,} more"
            row = [rest if at == named else None for at in range(len(block.columns))]
            part = replace(block, rows=[*block.rows[:count], row])
            if self._height([part]) <= room:
                return part
        return None

    def _height(self, blocks: Sequence[Block]) -> int:
        return sum(1 for block in blocks for _ in block_lines(block, self.width, self.width))


def _least_part(block: Block) -> Block:
    """Return what of a block there has to be room for: of a table its first rows."""
    return replace(block, rows=block.rows[:LEAST_ROWS]) if isinstance(block, Table) else block


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
    for block in blocks:
        if isinstance(block, Prose | Lines):
            text = block.text if isinstance(block, Prose) else block.rows[0][0]
            return str(text).partition(". ")[0].removesuffix(".")
        if isinstance(block, Table) and block.rows:
            rows = f"{len(block.rows):,} row{'s' * (len(block.rows) != 1)}"
            return f"{block.title}: {rows}" if block.title else rows
    return ""
