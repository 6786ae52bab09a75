"""The initial values of states that a `bundle.toml` gives: a number for all elements, or an array of one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from graphkit.contract.bundle import BundleContract, StateTensor
from graphkit.errors import UsageError
from graphkit.io.toml import Section, read_toml

__all__ = ["Initial", "read_initial", "with_initial"]

Initial = Mapping[str, np.ndarray]  # by state: a number, or an array of one row


def read_initial(path: Path) -> Initial:
    """Return the initial values that a `bundle.toml` gives: `initial = -1e38`, or `initial = "state.npy"`.

    Raises:
        TargetError: One is neither a number nor a file beside the `bundle.toml` that holds an array.
    """
    return {
        section.text("name"): _read(section, path.parent)
        for section in read_toml(path).sections("state")
        if "initial" in section
    }


def _read(section: Section, folder: Path) -> np.ndarray:
    given = section.values["initial"]
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return np.asarray(given)
    if not isinstance(given, str):
        raise section.wrong("initial", f"{str(given)[:40]!r} is no initial value", "write a number, or a .npy file")
    if Path(given).name != given:
        raise section.wrong("initial", f"{given[:40]!r} is not in the folder of the bundle.toml", "put it there")
    try:
        return np.asarray(np.load(folder / given, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise section.wrong(
            "initial", f"{given[:40]!r} cannot be read: {error!s:.200}", "write it with numpy.save"
        ) from (error)


def with_initial(contract: BundleContract, initial: Initial) -> tuple[BundleContract, Mapping[str, np.ndarray]]:
    """Return a contract whose states have their initial values, and the arrays of those that have more than one.

    Raises:
        UsageError: A value does not fit its state, or there is no such state.
    """
    names = {state.name for state in contract.states}
    if unknown := sorted(set(initial) - names):
        raise UsageError(f"state '{unknown[0]}' has an initial value, and no method writes it")
    states, arrays = [], {}
    for state in contract.states:
        if state.name not in initial:
            states.append(state)
            continue
        array = _fitting(state, initial[state.name])
        is_number = array.size > 0 and bool(np.isfinite(array.flat[0])) and bool((array == array.flat[0]).all())
        if not is_number:
            arrays[state.name] = array
        number = initial[state.name].flat[0] if is_number else None  # as it was written, such as -1e38
        states.append(replace(state, initial=None if number is None else float(number)))
    return replace(contract, states=tuple(states)), arrays


def _fitting(state: StateTensor, given: np.ndarray) -> np.ndarray:
    for problem in _problems(state, given):
        raise UsageError(f"the initial value of state '{state.name}' {problem}")
    return given.astype(state.dtype)


def _problems(state: StateTensor, given: np.ndarray) -> Iterator[str]:
    """Yield why an initial value does not fit a state, a clause each."""
    dtype = np.dtype(state.dtype)
    row = tuple(1 if axis == state.batch else size for axis, size in enumerate(state.shape))
    if state.axis is not None:
        yield "means nothing: it is a cache, of which no slot is in use at first - leave it out"
    elif given.ndim == 0 and given.dtype.kind in "iuf":
        with np.errstate(over="ignore", invalid="ignore"):
            cast = given.astype(dtype)
        is_whole = dtype.kind == "f" or bool(cast == given)
        if not np.isfinite(given) or not np.isfinite(cast.astype(np.float64)) or not is_whole:
            yield f"is {given.item()!r}, which {dtype} does not hold - give another one, or an array in a .npy file"
    elif given.dtype != dtype:
        yield f"is an array of {given.dtype}, and the state is {dtype} - write it with that dtype"
    elif given.shape != row:
        yield f"is {list(given.shape)}, and a row of the state is {list(row)} - give that"
