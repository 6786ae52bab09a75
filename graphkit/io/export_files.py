"""The files of an export that are no models: the names of its configurations and its tokenizer, and where they lie."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

CONFIGURATIONS = ("generation_config.json", "config.json")
TOKENIZER: tuple[str, ...] = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "source.spm", "target.spm", "chat_template.jinja",
)  # fmt: skip


def find_beside(folder: Path, names: Iterable[str] = (*CONFIGURATIONS, *TOKENIZER)) -> dict[str, Path]:
    """Return the files of these names in the folder of an export; of one that is `onnx`, also in its parent."""
    places = (folder, folder.parent) if folder.name == "onnx" else (folder,)
    found = {name: [place / name for place in places if (place / name).is_file()] for name in names}
    return {name: files[0] for name, files in found.items() if files}
