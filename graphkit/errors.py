"""The errors that graphkit raises on purpose, and words of messages; all else is a defect of graphkit.

Every message states the fault, the expectation and, after a dash, the remedy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable


class GraphkitError(Exception):
    """Base of all errors that a user can cause; the command line prints it and exits with 2."""


class ModelError(GraphkitError):
    """A model file, or a model in memory, that cannot be read.

    Args:
        problem: The fault and the expectation.
        file: The file at fault, where there is one.
        offset: Byte offset of the fault in that file.
        tensor: Name of the tensor at fault.
        node: Name of the node at fault.
        hint: The remedy.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | None = None,
        offset: int | None = None,
        tensor: str | None = None,
        node: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problem, self.file, self.offset = problem, file, offset
        self.tensor, self.node, self.hint = tensor, node, hint
        place = [] if file is None else [file]
        place += [] if offset is None else [f"byte {offset:,}"]
        place += [] if node is None else [f"node '{node}'"]
        place += [] if tensor is None else [f"tensor '{tensor}'"]
        where = f"{', '.join(place)}: " if place else ""
        super().__init__(where + problem + (f" - {hint}" if hint else ""))


class OutputError(GraphkitError):
    """An output that cannot be written, or must not be (it would overwrite an input)."""


class PassError(GraphkitError):
    """A pass that is not graphkit's own, and cannot be imported, made or run.

    Args:
        name: The pass, as it was named.
        problem: The fault.
        hint: The remedy.
    """

    def __init__(self, name: str, problem: str, hint: str) -> None:
        self.name, self.problem, self.hint = name, problem, hint
        super().__init__(f"pass '{name}': {problem} - {hint}")

    @classmethod
    def of(cls, name: str, problem: str, error: BaseException) -> PassError:
        """Return the error for an exception of the pass's own code, with the line that raised it."""
        import traceback  # which few runs need
        from pathlib import PurePath

        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({PurePath(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        said = f": {error}" if str(error) else ""
        return cls(name, f"{problem} with {type(error).__name__}{said}{where}", "mend the pass")


class TargetError(GraphkitError):
    """A target file that cannot be read, or states an impossible fact.

    Args:
        problem: The fault and the expectation.
        file: The file at fault.
        key: The key at fault, such as `operators.facts[2].names`; "" where the file itself is.
        hint: The remedy.
    """

    def __init__(self, problem: str, *, file: str, key: str = "", hint: str) -> None:
        self.problem, self.file, self.key, self.hint = problem, file, key, hint
        super().__init__(f"{file}: {f'{key}: ' if key else ''}{problem} - {hint}")


class UsageError(GraphkitError):
    """A request that the model or the command cannot answer, such as a section that does not exist."""


class GenerationWarning(UserWarning):
    """An export whose own `generate` chooses tokens by settings that no host follows; said once for each folder."""


class UnprovenWarning(UserWarning):
    """A folder of models whose proof failed or was not run; said once for each folder that is opened."""


def count_things(count: int, text: str) -> str:
    """Return a text with its number: `1 node removed` or `3 nodes removed` for "node(s) removed"."""
    return f"{count:,} {text.replace('(s)', '' if count == 1 else 's')}"


MOST = 20_000  # names to look through, and
LONGEST = 300  # characters of one: comparing takes the product of two lengths
MEANT = 3  # names that one may have meant
LISTED = 16  # names of those that there are


def did_you_mean(wanted: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return `did you mean 'batch_size'?`, or where no name is close `otherwise`, or which names there are.

    Example:
        >>> did_you_mean("batch", ["batch_size", "sequence_length"])
        "did you mean 'batch_size'?"
        >>> did_you_mean("x", ["batch_size", "sequence_length"])
        'there are batch_size, sequence_length'
    """
    import difflib  # which only a wrong name needs

    names = list(dict.fromkeys(known))
    plain = wanted.casefold()[:LONGEST]
    by_plain: dict[str, str] = {}
    for name in itertools.islice(names, MOST):
        if len(name) <= LONGEST:
            by_plain.setdefault(name.casefold(), name)
    close = difflib.get_close_matches(plain, by_plain, MEANT)
    if len(plain) >= MEANT:  # also names that it is a part of
        close += sorted((name for name in by_plain if plain in name and name not in close), key=len)
    if close:
        quoted = (f"'{by_plain[name]}'" for name in close[:MEANT])
        return f"did you mean {' or '.join(quoted)}?"
    if otherwise:
        return otherwise
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return f"there are {', '.join(names[:LISTED]) or 'none'}{more}"
