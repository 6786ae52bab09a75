"""Result: the base of everything that an analysis returns.

A subclass is a frozen dataclass of plain values with a `title` and its `blocks`; text, Markdown, JSON,
HTML and the notebook's display follow from these.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from graphkit.render.blocks import Block

if TYPE_CHECKING:
    from graphkit.render.terminal import Rendered

__all__ = ["SCHEMA", "Result"]

SCHEMA = 1  # raised when a field of any result changes its name or meaning


@dataclasses.dataclass(frozen=True)
class Result:
    """What an analysis found, ready to show."""

    title: ClassVar[str]

    def heading(self) -> str:
        """Return the title, with the name of what was analysed if that matters."""
        return self.title

    def blocks(self) -> Iterable[Block]:
        """Yield what to show, in order."""
        raise NotImplementedError

    def findings(self) -> tuple[str, ...]:
        """Return one sentence for each fault; `graphkit report --strict` fails on any."""
        return ()

    def to_dict(self) -> dict[str, object]:
        """Return the fields as plain dicts, lists, strings and numbers."""
        plain: dict[str, object] = json.loads(json.dumps(_plain(self)))
        return plain

    def to_json(self) -> str:
        """Return JSON: the fields, and the `schema` version."""
        return json.dumps({"schema": SCHEMA, **self.to_dict()}, indent=2) + "\n"

    def to_text(self, width: int = 80, color: bool = False) -> str:
        """Return text for a terminal of the given width, with ANSI colours if `color`."""
        from graphkit.render.terminal import text

        return text(self, width, color)

    def to_markdown(self) -> str:
        """Return GitHub-flavoured Markdown."""
        from graphkit.render.markdown import markdown

        return markdown(self)

    def to_html(self) -> str:
        """Return one self-contained HTML page."""
        from graphkit.render.html import page

        return page(self)

    def __str__(self) -> str:
        return self.to_text()

    def __rich__(self) -> Rendered:
        from graphkit.render.terminal import Rendered

        return Rendered(self)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        from graphkit.render.html import fragment

        return fragment(self)


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
