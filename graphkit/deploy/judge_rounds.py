"""Rounds with judges: what their compilers leave on the CPU is rewritten, and they are asked again."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from graphkit.analysis.blockers import NO_REWRITE
from graphkit.analysis.node_placement import REMEDIED
from graphkit.analysis.target_lint import Cause, Lint
from graphkit.deploy.lower_model import AXES, PLAIN_PASSES
from graphkit.deploy.lower_report import DATA, Judgement
from graphkit.deploy.lowered_contract import Lowered
from graphkit.dtypes import dtype_name
from graphkit.errors import GraphkitError, count_things
from graphkit.graph.view import Node, all_nodes
from graphkit.judges import Answer, Trial, ask_judge, find_judge
from graphkit.progress import Progress
from graphkit.save import Placement, save_models
from graphkit.shapes import infer
from graphkit.targets import load_target

ROUNDS = 4
Draft = TypeVar("Draft")  # a lowering that is not written yet
Models = tuple[Sequence[Lowered], Placement]  # those of one, and where their weights go


@dataclass(frozen=True)
class _Round:
    """What judges say of the models of one lowering; what stays on the CPU by judge, operator and remedy."""

    judgements: tuple[Judgement, ...]
    left: Counter[tuple[str, str, str]]

    @property
    def passes(self) -> set[str]:
        """The passes that remove nodes and do not change results."""
        return {name for _, _, name in self.left if name in PLAIN_PASSES}

    @property
    def faults(self) -> tuple[int, int]:
        """How many models do not compile, and how many nodes stay on the CPU."""
        return sum(each.device_nodes is None for each in self.judgements), self.left.total()

    def words(self, number: int) -> str:
        judges = dict.fromkeys(judgement.command for judgement in self.judgements)
        return f"Round {number}: {'; '.join(f'{name} {self._words_of(name)}' for name in judges)}."

    def _words_of(self, judge: str) -> str:
        errors = [each.model for each in self.judgements if each.command == judge and each.device_nodes is None]
        rows = {(op, name): count for (by, op, name), count in self.left.items() if by == judge}
        nodes = ", ".join(f"{op} {count} ({name or NO_REWRITE})" for (op, name), count in rows.items())
        left = f"leaves {count_things(sum(rows.values()), 'node(s)')} on the CPU: {nodes}" if rows else ""
        refused = f"does not compile {', '.join(errors)}" if errors else ""
        return " and ".join(filter(None, [refused, left])) or "leaves no node on the CPU"


def settle_with_judges(
    draft: Draft,
    again: Callable[[frozenset[str]], Draft],
    models_of: Callable[[Draft], Models],
    judges: Sequence[str],
    seconds: float,
    progress: Progress,
) -> tuple[Draft, tuple[Judgement, ...], tuple[str, ...]]:
    """Lower again with the passes that remove what judges leave on the CPU, until no pass does, for some rounds.

    Args:
        draft: The lowering.
        again: Lowers once more, with passes of these names.
        models_of: Gives the models of a lowering.
        judges: The names of judges that are installed.
        seconds: The time limit for each answer.
        progress: Called with the name of each step before it starts.

    Returns:
        The lowering that leaves least, the answers about it, and a sentence about each round, where the first one found
        anything.
    """
    if not judges:
        return draft, (), ()
    found, asked = _ask_round(models_of(draft), judges, seconds, progress), frozenset[str]()
    notes = [found.words(1)]
    for number in range(2, ROUNDS + 1):
        more = found.passes - asked
        if not more:
            break
        names = ", ".join(sorted(more))
        progress(f"lowering again with {names}")
        try:
            other = again(asked | more)
        except GraphkitError as error:
            notes.append(f"With {names} it cannot be lowered: {error}.")
            break
        if _content(models_of(other)) == _content(models_of(draft)):
            notes.append(f"{names} changed nothing.")
            break
        answers = _ask_round(models_of(other), judges, seconds, progress)
        notes.append(answers.words(number))
        if answers.faults >= found.faults:
            notes.append(f"That is no less, so that the models of round {number - 1} were kept.")
            break
        draft, found, asked = other, answers, asked | more
    return draft, found.judgements, tuple(notes) if len(notes) > 1 or found.left else ()


def _content(models: Models) -> list[bytes]:
    return [part.model.proto.SerializeToString(deterministic=True) for part in models[0]]


def _ask_round(models: Models, judges: Sequence[str], seconds: float, progress: Progress) -> _Round:
    judgements, left, (parts, weights) = [], Counter[tuple[str, str, str]](), models
    with tempfile.TemporaryDirectory(prefix="graphkit-") as name:
        paths = [Path(name) / part.method.file for part in parts]
        files = dict(zip(paths, (part.model for part in parts), strict=True))
        save_models(files, weights=weights, data_name=DATA)
        for judge in judges:
            progress(f"asking {judge}")
            answers = ask_judge(find_judge(judge), paths, seconds=seconds, trials=[Trial()] * len(paths))
            for part, answer in zip(parts, answers, strict=True):
                judgements.append(Judgement.of(part.method.file, judge, answer))
                left.update((judge, op, remedy) for op, remedy in _left_nodes(part, answer))
    return _Round(tuple(judgements), left)


def _left_nodes(part: Lowered, answer: Answer) -> Iterator[tuple[str, str]]:
    """Yield the operator of each node that stays on the CPU, and the pass that removes it, "" for none."""
    lint, nodes = Lint(load_target(REMEDIED), infer(part.model), part.passes), [*all_nodes(part.model.scopes)]
    for placed in answer.on("cpu"):
        named = [node for node in nodes if placed.name and node.proto.name == placed.name]
        alike = named or [node for node in nodes if node.op_type == placed.op]
        yield placed.op, next(filter(None, (_remedy(lint, node) for node in alike)), "")


def _remedy(lint: Lint, node: Node) -> str:
    """Return the pass that removes a node, by its operator, or else by the ranks and dtypes of its tensors."""
    tensors = [lint.shapes[value] for value in (*node.operands, *node.results)]
    causes: list[tuple[Cause, str]] = [("operator", node.operator)]
    if any(tensor.dims is not None and len(tensor.dims) > AXES for tensor in tensors):
        causes.append(("rank", ""))
    causes += [("dtype", dtype_name(tensor.dtype)) for tensor in tensors if tensor.dtype]
    return next(filter(None, (lint.remedy(node, cause, what) for cause, what in causes)), "")
