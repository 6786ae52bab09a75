"""Shell completion: candidates for models, tensors, passes and targets, and the scripts of shells.

What names candidates imports its needs when it is called, because a shell waits for it.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from graphkit.errors import GraphkitError

if TYPE_CHECKING:
    from graphkit.model import Model

Completed = list[CompletionItem]
SHELLS = ("bash", "zsh", "fish")
# A line of click's script, and its replacement: no space follows NAME=, for a size does (fish knows that), and a
# list with commas stays whole.
OURS = {
    "bash": ("    return 0\n", "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n    return 0\n"),
    "zsh": (
        "compadd -U -V unsorted -a completions",
        "local -a suffix; [[ ${completions[1]} == *= ]] && suffix=(-S '')\n"
        '        compadd -U -V unsorted "${suffix[@]}" -a completions',
    ),
    "fish": ('string split "," $completion', 'string split -m 1 "," $completion'),
}


def complete_word(kind: str, context: click.Context, incomplete: str) -> Completed:
    """Return what completes a word by the names of a kind; see `NAMES`, `PAIRS` and `LISTS` for the kinds."""
    files = [CompletionItem(incomplete, type="file")]
    if kind == "model":
        examples = _matching_items((f"example:{name}" for name in NAMES["example"](context)), incomplete)
        is_a_file = any(Path(incomplete).parent.glob(f"{glob.escape(Path(incomplete).name)}*"))
        return examples if incomplete and examples and not is_a_file else files
    if kind in LISTS:  # separated by commas, none twice
        before, comma, last = incomplete.rpartition(",")
        typed = {name.strip() for name in before.split(",")}
        return _matching_items((name for name in LISTS[kind](context) if name not in typed), last, before + comma)
    if kind == "passes":  # of a pipeline; within the options of a pass nothing
        closed, brace, rest = incomplete.rpartition("}")
        before, comma, last = rest.rpartition(",")
        return [] if "{" in rest else _matching_items(_pass_names(), last, f"{closed}{brace}{before}{comma}")
    if kind in PAIRS:  # of NAME=VALUE
        return _matching_items((f"{name}=" for name in dict.fromkeys(PAIRS[kind](context))), incomplete)
    items = _matching_items(filter(None, dict.fromkeys(NAMES[kind](context))), incomplete)
    return files if kind == "target" and not items else items


def _matching_items(names: Iterable[str], incomplete: str, before: str = "") -> Completed:
    return [CompletionItem(before + name) for name in names if name.startswith(incomplete)]


def _names_in(module: str, names: str) -> Names:
    return lambda _: getattr(import_module(f"graphkit.{module}"), names)


def _provider_names(_: click.Context) -> Iterable[str]:
    from graphkit.runtime.providers import KNOWN_PROVIDERS

    return (known.name for known in KNOWN_PROVIDERS)


def _section_names(_: click.Context) -> Iterable[str]:
    from graphkit.analysis.report import BLOCKERS, EXTRAS, PLACEMENT, SECTIONS

    return (section.name for section in (*SECTIONS, BLOCKERS, PLACEMENT, *EXTRAS))


def _kind_names(context: click.Context) -> Iterable[str]:
    if context.info_name == "diff":
        from graphkit.model_diff import COSTS, SECTIONS

        return ("any", *SECTIONS, COSTS)
    from graphkit.analysis.findings import KIND_NAMES

    return KIND_NAMES


def _pass_names() -> Iterable[str]:
    from graphkit.passes.registry import PASSES

    return (kind.name() for kind in PASSES)


def _symbols(model: Model) -> Iterable[str]:
    from graphkit.shapes.input_dims import input_dims

    return (name for known in input_dims(model).values() for dim in known or () for name in sorted(dim.symbols))


def _in_models(names_in: Callable[[Model], Iterable[str]], most: int | None = None) -> Names:
    return lambda line: (name for model in itertools.islice(_models_on_line(line), most) for name in names_in(model))


Names = Callable[[click.Context], Iterable[str]]
LISTS: Mapping[str, Names] = {"sections": _section_names, "kinds": _kind_names}
PAIRS: Mapping[str, Names] = {
    "dim": _in_models(_symbols),
    "input": _in_models(lambda model: (value.name for value in model.graph.inputs)),
    "output": _in_models(lambda model: (value.name for value in model.graph.outputs)),
    "value": _in_models(lambda model: model.graph.values, 1),
}
NAMES: Mapping[str, Names] = {
    "example": _names_in("examples", "EXAMPLES"),
    "target": _names_in("targets", "NAMES"),
    "provider": _provider_names,
    "judge": _names_in("judges", "JUDGES"),
    "explained": lambda context: [*_pass_names(), *_kind_names(context)],
    "tensor": _in_models(lambda model: model.graph.values),
    "place": _in_models(lambda model: (*model.graph.values, *(node.proto.name for node in model.graph.nodes))),
}


def _models_on_line(context: click.Context) -> Iterator[Model]:
    """Yield the readable models that are on the line already, those of a folder too."""
    from graphkit.io.urls import is_url
    from graphkit.model import load

    words = [word for word in context.args if not (word.startswith("-") or is_url(word))]  # click parses none of them
    paths = [path for word in words for path in (sorted(Path(word).glob("*.onnx")) if Path(word).is_dir() else [word])]
    for path in paths:
        with contextlib.suppress(GraphkitError, OSError):
            yield load(path)


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and names in a shell.

    For bash, put `eval "$(graphkit completion bash)"` into ~/.bashrc; for zsh, the same with zsh into ~/.zshrc; for
    fish, `graphkit completion fish | source` into ~/.config/fish/config.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(click.get_current_context().find_root().command, {}, "graphkit", "_GRAPHKIT_COMPLETE")
    script = complete.source_template % complete.source_vars()  # its `source` also starts bash to ask for its version
    plain, ours = OURS[shell]
    script = script.replace(plain, ours)
    # bash takes a colon for the end of a word, and example:NAME has one
    sys.stdout.write(('COMP_WORDBREAKS="${COMP_WORDBREAKS//:}"\n' if shell == "bash" else "") + script)
