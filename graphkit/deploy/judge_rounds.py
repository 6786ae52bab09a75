"""Rounds with judges: what their compilers leave on the CPU is rewritten, and they are asked again."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from graphkit.analysis.blockers import NO_REWRITE
from graphkit.analysis.target_lint import Cause, Lint
from graphkit.deploy.lower_model import PLAIN_PASSES
from graphkit.deploy.lower_report import DATA, Judgement
from graphkit.deploy.lowered_contract import Lowered
from graphkit.deploy.write_proven import DeployFolder
from graphkit.dtypes import dtype_name
from graphkit.graph.names import count_things
from graphkit.graph.view import Node, all_nodes
from graphkit.judges import Answer, Trial, ask_judge, find_judge
from graphkit.save import save_models
from graphkit.shapes import infer
from graphkit.targets import load_target, tflite_spellings

__all__ = ["ROUNDS", "Drafted", "settle_with_judges"]

ROUNDS = 4
REMEDIED = "generic-npu"  # the target whose remedies are those of any compiler


class Drafted(Protocol):
    """A lowering that is not written yet."""

    @property
    def parts(self) -> Sequence[Lowered]:
        """The models."""

    @property
    def folder(self) -> DeployFolder:
        """The folder to write."""


D = TypeVar("D", bound=Drafted)


@dataclass(frozen=True)
class _Round:
    """What judges say of the models of one lowering.

    Attributes:
        judgements: Their answers.
        left: How many nodes stay on the CPU, by judge, operator and the pass that removes it, "" for none.
    """

    judgements: tuple[Judgement, ...]
    left: Counter[tuple[str, str, str]]

    @property
    def passes(self) -> set[str]:
        """The passes that remove nodes and do not change results."""
        return {name for _, _, name in self.left if name in PLAIN_PASSES}

    def words(self, number: int) -> str:
        """Return what was found, as a sentence."""
        judges = dict.fromkeys(judgement.command for judgement in self.judgements)
        said = [f"{name} {self._words_of(name)}" for name in judges]
        return f"Round {number}: {'; '.join(said)}."

    def _words_of(self, judge: str) -> str:
        errors = [each.model for each in self.judgements if each.command == judge and each.device_nodes is None]
        rows = {(op, name): count for (by, op, name), count in self.left.items() if by == judge}
        nodes = ", ".join(f"{op} {count} ({name or NO_REWRITE})" for (op, name), count in rows.items())
        left = f"leaves {count_things(sum(rows.values()), 'node(s)')} on the CPU: {nodes}" if rows else ""
        refused = f"does not compile {', '.join(errors)}" if errors else ""
        return " and ".join(filter(None, [refused, left])) or "leaves no node on the CPU"


def settle_with_judges(
    draft: D,
    again: Callable[[frozenset[str]], D],
    judges: Sequence[str],
    seconds: float,
    progress: Callable[[str], None],
) -> tuple[D, tuple[Judgement, ...], tuple[str, ...]]:
    """Lower again with the passes that remove what judges leave on the CPU, until no pass does, for some rounds.

    Args:
        draft: The lowering.
        again: Lowers once more, with passes of these names.
        judges: The names of judges that are installed.
        seconds: The time limit for each answer.
        progress: Called with the name of each step before it starts.

    Returns:
        The lowering that leaves least, the answers about it, and a sentence about each round, where the first one found
        anything.
    """
    found, asked = _ask_round(draft, judges, seconds, progress), frozenset[str]()
    notes = [found.words(1)]
    for number in range(2, ROUNDS + 1):
        more = found.passes - asked
        if not more:
            break
        progress(f"lowering again with {', '.join(sorted(more))}")
        other = again(asked | more)
        if _content(other) == _content(draft):
            notes.append(f"{', '.join(sorted(more))} changed nothing.")
            break
        answers = _ask_round(other, judges, seconds, progress)
        notes.append(answers.words(number))
        if answers.left.total() >= found.left.total():
            notes.append(f"That is no less, so that the models of round {number - 1} were kept.")
            break
        draft, found, asked = other, answers, asked | more
    return draft, found.judgements, tuple(notes) if len(notes) > 1 or found.left else ()


def _content(draft: Drafted) -> list[bytes]:
    return [part.model.proto.SerializeToString(deterministic=True) for part in draft.parts]


def _ask_round(draft: Drafted, judges: Sequence[str], seconds: float, progress: Callable[[str], None]) -> _Round:
    judgements, left = [], Counter[tuple[str, str, str]]()
    with tempfile.TemporaryDirectory(prefix="graphkit-") as name:
        paths = [Path(name) / part.method.file for part in draft.parts]
        models = dict(zip(paths, (part.model for part in draft.parts), strict=True))
        save_models(models, weights=draft.folder.weights, data_name=DATA)
        for judge in judges:
            progress(f"asking {judge}")
            answers = ask_judge(find_judge(judge), paths, seconds=seconds, trials=[Trial()] * len(paths))
            for part, answer in zip(draft.parts, answers, strict=True):
                judgements.append(Judgement.of(part.method.file, judge, answer))
                left.update((judge, op, remedy) for op, remedy in _left_nodes(part, answer))
    return _Round(tuple(judgements), left)


def _left_nodes(part: Lowered, answer: Answer) -> Iterator[tuple[str, str]]:
    """Yield the operator of each node that stays on the CPU, and the pass that removes it, "" for none.

    A node that the compiler calls something else is one of those of its operator, or that become it in TFLite.
    """
    lint, tflite = Lint(load_target(REMEDIED), infer(part.model), part.passes), tflite_spellings()
    nodes = [*all_nodes(part.model.scopes)]
    for placed in answer.on("cpu"):
        named = [node for node in nodes if placed.name and node.proto.name == placed.name]
        alike = named or [node for node in nodes if node.op_type == placed.op]
        alike = alike or [node for node in nodes if any(placed.op in s.becomes for s in tflite.get(node.operator, ()))]
        yield placed.op, next(filter(None, (_remedy(lint, node) for node in alike)), "")


def _remedy(lint: Lint, node: Node) -> str:
    """Return the pass that removes a node, by its operator, or else by the ranks and dtypes of its tensors."""
    tensors = [lint.shapes[value] for value in (*node.operands, *node.results)]
    causes: list[tuple[Cause, str]] = [("operator", node.operator)]
    if any(tensor.dims is not None and len(tensor.dims) > 4 for tensor in tensors):
        causes.append(("rank", ""))
    causes += [("dtype", dtype_name(tensor.dtype)) for tensor in tensors if tensor.dtype]
    return next(filter(None, (lint.remedy(node, cause, what) for cause, what in causes)), "")
