"""Generated pages as files of the folder of the site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["write_pages"]


def write_pages(docs: Path, generated: Mapping[str, Callable[[], dict[str, str]]]) -> None:
    """Write all pages into their folders of `docs`, and remove what is there no more; equal files stay as they are."""
    for folder, pages in generated.items():
        made = pages()
        (docs / folder).mkdir(parents=True, exist_ok=True)
        for path in (docs / folder).iterdir():
            if path.name not in made:
                path.unlink()
        for name, text in made.items():
            path = docs / folder / name
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
