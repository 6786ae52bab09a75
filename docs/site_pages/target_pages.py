"""A page for each target, as `graphkit targets` shows it: every fact with its source."""

from __future__ import annotations

from graphkit.analysis.target_facts import target_facts, targets
from graphkit.deploy.targets import NAMES, load_target
from site_pages.markdown import contents

__all__ = ["pages"]


def pages() -> dict[str, str]:
    """Return the page of each target, and the table of all."""
    made = {f"{name}.md": target_facts(load_target(name)).to_markdown() for name in NAMES}
    return made | {"index.md": targets().to_markdown() + contents(NAMES)}
