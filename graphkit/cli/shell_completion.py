"""Shell completion: candidates for models, tensors, passes and targets, and the scripts of shells.

A function that completes is called with the context, the parameter and what was typed so far, as click does; it
imports its needs when it is called, because a shell waits for it.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from graphkit.model import Model

__all__ = [
    "complete_dim",
    "complete_explained",
    "complete_input",
    "complete_kinds",
    "complete_model",
    "complete_output",
    "complete_pair",
    "complete_passes",
    "complete_place",
    "complete_sections",
    "complete_target",
    "complete_tensor",
    "completion",
]

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


def _complete_files(incomplete: str) -> Completed:
    return [CompletionItem(incomplete, type="file")]


def _complete_names(names: Iterable[str], incomplete: str, before: str = "") -> Completed:
    return [CompletionItem(before + name) for name in names if name.startswith(incomplete)]


def _complete_pair(names: Iterable[str], incomplete: str) -> Completed:
    """Complete the name of NAME=VALUE."""
    return _complete_names((f"{name}=" for name in dict.fromkeys(names)), incomplete)


def _of_a_list(names: Iterable[str], incomplete: str) -> Completed:
    """Complete the last one of names that are separated by commas; none twice."""
    before, comma, last = incomplete.rpartition(",")
    typed = {name.strip() for name in before.split(",")}
    return _complete_names((name for name in names if name not in typed), last, before + comma)


def complete_model(_: click.Context, __: click.Parameter, incomplete: str) -> Completed:
    """Complete a file, or the name of an example where that is begun."""
    from graphkit.examples import EXAMPLES

    examples = _complete_names((f"example:{name}" for name in EXAMPLES), incomplete) if incomplete else []
    is_a_file = any(Path(incomplete).parent.glob(f"{glob.escape(Path(incomplete).name)}*"))
    return _complete_files(incomplete) if not examples or is_a_file else examples


def complete_example(_: click.Context, __: click.Parameter, incomplete: str) -> Completed:
    """Complete the name of an example."""
    from graphkit.examples import EXAMPLES

    return _complete_names(EXAMPLES, incomplete)


def complete_target(_: click.Context, __: click.Parameter, incomplete: str) -> Completed:
    """Complete the name of a target, or a file."""
    from graphkit.deploy.targets import NAMES

    return _complete_names(NAMES, incomplete) or _complete_files(incomplete)


def complete_sections(_: click.Context, __: click.Parameter, incomplete: str) -> Completed:
    """Complete a list of sections of a report."""
    from graphkit.analysis.report import BLOCKERS, EXTRAS, SECTIONS

    return _of_a_list((section.name for section in (*SECTIONS, BLOCKERS, *EXTRAS)), incomplete)


def complete_kinds(context: click.Context, _: click.Parameter, incomplete: str) -> Completed:
    """Complete a list of kinds of findings; of a diff, of its sections."""
    if context.info_name == "diff":
        from graphkit.model_diff.changes import COSTS, SECTIONS

        return _of_a_list(("any", *SECTIONS, COSTS), incomplete)
    from graphkit.analysis.findings import KIND_NAMES

    return _of_a_list(KIND_NAMES, incomplete)


def complete_passes(_: click.Context, __: click.Parameter, incomplete: str) -> Completed:
    """Complete the last pass of a pipeline; within its options nothing."""
    from graphkit.passes.registry import PASSES

    closed = incomplete.rpartition("}")
    before, comma, last = closed[2].rpartition(",")
    if "{" in closed[2]:
        return []
    return _complete_names((kind.name() for kind in PASSES), last, f"{closed[0]}{closed[1]}{before}{comma}")


def complete_explained(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completed:
    """Complete a pass or a kind of finding."""
    from graphkit.analysis.findings import KIND_NAMES

    return [*complete_passes(context, parameter, incomplete), *_complete_names(KIND_NAMES, incomplete)]


def complete_dim(context: click.Context, _: click.Parameter, incomplete: str) -> Completed:
    """Complete a symbol in the dims of the inputs of the model on the line."""
    from graphkit.shapes.input_dims import input_dims

    dims = (dim for model in _models_on_line(context) for known in input_dims(model).values() for dim in known or ())
    return _complete_pair((name for dim in dims for name in sorted(dim.symbols)), incomplete)


def complete_input(context: click.Context, _: click.Parameter, incomplete: str) -> Completed:
    """Complete an input of the model on the line."""
    return _complete_pair(
        (value.name for model in _models_on_line(context) for value in model.graph.inputs), incomplete
    )


def complete_output(context: click.Context, _: click.Parameter, incomplete: str) -> Completed:
    """Complete an output of the model on the line, to be renamed."""
    return _complete_pair(
        (value.name for model in _models_on_line(context) for value in model.graph.outputs), incomplete
    )


def complete_pair(context: click.Context, _: click.Parameter, incomplete: str) -> Completed:
    """Complete a tensor of the main graph of the first model on the line, whose other name follows."""
    models = itertools.islice(_models_on_line(context), 1)
    return _complete_pair((name for model in models for name in model.graph.values), incomplete)


def complete_tensor(context: click.Context, _: click.Parameter, incomplete: str) -> Completed:
    """Complete a tensor of the main graph of the model on the line."""
    names = (name for model in _models_on_line(context) for name in model.graph.values)
    return _complete_names(dict.fromkeys(names), incomplete)


def complete_place(context: click.Context, _: click.Parameter, incomplete: str) -> Completed:
    """Complete a tensor or a node of the main graph of the model on the line."""
    names = [
        name
        for model in _models_on_line(context)
        for name in (*model.graph.values, *(node.proto.name for node in model.graph.nodes))
    ]
    return _complete_names(filter(None, dict.fromkeys(names)), incomplete)


def _models_on_line(context: click.Context) -> Iterator[Model]:
    """Yield the readable models that are on the line already, those of a folder too."""
    from graphkit.errors import GraphkitError
    from graphkit.io.remote.urls import is_url
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
