"""Run the functions that a shape program generates: the Python one here, the JavaScript one in V8."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from py_mini_racer import JSEvalException, MiniRacer

from graphkit.shapes import Expr, Program
from graphkit.shapes.program_contents import Consumer, Element, Input, Read, find_sources

__all__ = ["JSEvalException", "in_javascript", "in_python", "program_of"]

Shapes = Mapping[str, Sequence[int]]
INT64_MAX, MAX_SAFE = (1 << 63) - 1, (1 << 53) - 1


def in_python(program: Program) -> Callable[[Shapes], dict[str, tuple[float | None, ...]]]:
    """Return the generated Python function."""
    names: dict[str, object] = {}
    exec(compile(program.python(), "generated", "exec"), names)
    assert set(names) == {"__builtins__", "shapes"}
    return names["shapes"]  # type: ignore[return-value]


@lru_cache
def engine() -> MiniRacer:
    return MiniRacer()


def in_javascript(program: Program) -> Callable[[Shapes], dict[str, tuple[float | None, ...]]]:
    """Return the generated JavaScript function; its results pass through JSON, which has no NaN."""
    engine().eval(program.javascript())

    def call(inputs: Shapes) -> dict[str, tuple[float | None, ...]]:
        text = json.dumps({name: list(shape) for name, shape in inputs.items()})
        found = json.loads(engine().eval(f"JSON.stringify(shapes(JSON.parse({json.dumps(text)})))"))
        return {key: tuple(numbers) for key, numbers in found.items()}

    return call


def program_of(lists: Sequence[Sequence[Element]], symbols: Sequence[Expr], dtype: str = "int64") -> Program:
    """Return a program whose one input has the symbols as dims, and whose nodes `n0`, `n1`, ... read the lists."""
    inputs = (Input("x", tuple(symbols)),)
    sources, unread = find_sources([("x", tuple(symbols))])
    consumers = tuple(
        Consumer("", f"n{n}", "Op", (Read(f"n{n}:in", 0, "in", "t", dtype, (len(found),), tuple(found), ""),), ())
        for n, found in enumerate(lists)
    )
    return Program("m", inputs, sources, unread, (), consumers)
