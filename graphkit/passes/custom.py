"""Passes of users, named by where they are: `package.module:Pass`."""

from __future__ import annotations

from importlib import import_module

from graphkit.errors import PassError
from graphkit.rewrite.base import Pass

__all__ = ["import_pass"]


def import_pass(name: str) -> type[Pass]:
    """Return the pass that a name `package.module:Pass` leads to; this runs the code of that module.

    Raises:
        PassError: The module cannot be imported, or has no such pass.
    """
    place, _, kind = name.partition(":")
    try:
        module = import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise PassError.of(name, f"the import of '{place}' failed", error) from error
        hint = f"is it in a folder of PYTHONPATH or in the current one?{_without_suffix(place)}"
        raise PassError(name, f"there is no module '{error.name}'", hint) from error
    except (Exception, SystemExit) as error:  # a module is anybody's code
        raise PassError.of(name, f"the import of '{place}' failed", error) from error
    found = getattr(module, kind, None)
    if not isinstance(found, type) or not issubclass(found, Pass):
        raise PassError(name, *_no_pass(module.__dict__, place, kind, found))
    return found


def _without_suffix(place: str) -> str:
    return f" Write {place.removesuffix('.py')}, without .py." if place.endswith(".py") else ""


def _no_pass(names: dict[str, object], place: str, kind: str, found: object) -> tuple[str, str]:
    """Return why a name in a module is no pass, and which passes the module has instead."""
    passes = [
        n for n, one in names.items() if isinstance(one, type) and issubclass(one, Pass) and one.__module__ == place
    ]
    hint = f"its passes are: {', '.join(passes)}" if passes else "derive a class from graphkit.Pass or graphkit.Rewrite"
    return (f"'{place}' has no '{kind}'" if found is None else f"'{kind}' is no Pass"), hint
