"""The public functions say what they return, and show an example that runs."""

import doctest
import importlib
import inspect
from collections.abc import Callable, Iterator

import pytest

PACKAGES = ("graphkit", "graphkit.shapes", "graphkit.constraints", "graphkit.verify")
WITHOUT_EXAMPLE = {"lower_folder"}  # it takes a folder of exported models, and none ships with graphkit


def public_functions() -> Iterator[Callable[..., object]]:
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            if inspect.isfunction(function := getattr(package, name)):
                found[f"{function.__module__}.{name}"] = function
    return iter(found.values())


@pytest.mark.parametrize("function", public_functions(), ids=lambda function: function.__name__)
def test_a_public_function_says_what_it_returns_and_shows_an_example_that_runs(
    function: Callable[..., object],
) -> None:
    text = inspect.getdoc(function) or ""
    assert "Returns:" in text or text.startswith(("Return ", "Whether "))
    examples = [test for test in doctest.DocTestFinder().find(function, function.__name__) if test.examples]
    assert bool(examples) != (function.__name__ in WITHOUT_EXAMPLE)
    assert all(doctest.DocTestRunner().run(example).failed == 0 for example in examples)
