"""A page for each judge: what it is, what it answers, how to install and ask it."""

from __future__ import annotations

from graphkit.judges import JUDGES, Judge
from graphkit.judges.measure import MEASURED
from site_pages.markdown import contents, table

__all__ = ["pages"]

INDEX = """# Judges

A judge is a compiler that says where it would place the nodes of a model. Each has an environment of its own, which
`graphkit judges install NAME` makes in the user's cache, or in the folder that `GRAPHKIT_JUDGES` names. Nothing of a
compiler ships with graphkit. Its own tests ask those of open source at each change: `webgpu`, `openvino` and `vela`.

"""


def pages() -> dict[str, str]:
    """Return the page of each judge, and the table of all."""
    rows = [(f"[{judge.name}]({judge.name}.md)", judge.about, judge.licence) for judge in JUDGES.values()]
    index = INDEX + table(("judge", "what it is", "licence"), rows) + contents(list(JUDGES))
    return {f"{judge.name}.md": _page(judge) for judge in JUDGES.values()} | {"index.md": index}


def _page(judge: Judge) -> str:
    targets = [name for name, measured in MEASURED.items() if measured.judge == judge.name]
    rows = [
        ("packages", ", ".join(f"`{package}`" for package in judge.packages)),
        ("licence", judge.licence),
        ("size", f"about {judge.megabytes:,} MB"),
        ("target that it measures", ", ".join(f"[{name}](../targets/{name}.md)" for name in targets) or "none"),
    ]
    lines = [
        f"`graphkit judges install {judge.name}` installs it.",
        f"`graphkit lower EXPORT -o OUT --target TARGET --judge {judge.name}` asks it about lowered models.",
        *(f"`graphkit targets measure {name}` asks it about every operator." for name in targets),
    ]
    return (
        f"# {judge.name}\n\n{judge.about}. It answers with {judge.says}.\n\n"
        + table(("", ""), rows)
        + "\n"
        + "".join(f"- {line}\n" for line in lines)
    )
