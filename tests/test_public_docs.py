"""The public functions say what they return, and show an example that runs after `import graphkit`."""

import doctest
import importlib
import inspect
from collections.abc import Callable

import pytest

import graphkit

PACKAGES = ("graphkit", "graphkit.shapes", "graphkit.constraints", "graphkit.verify")

# These take a folder of exported models, or what was made of one, and none ships with graphkit.
WITHOUT_EXAMPLE = {"bundle_folder", "bundle_overview", "lower_folder", "verify_bundle"}


def public_functions() -> list[Callable[..., object]]:
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            if inspect.isfunction(function := getattr(package, name)):
                found[f"{function.__module__}.{name}"] = function
    return list(found.values())


@pytest.mark.parametrize("function", public_functions(), ids=lambda function: function.__name__)
def test_a_public_function_says_what_it_returns_and_shows_an_example_that_runs(
    function: Callable[..., object],
) -> None:
    text = inspect.getdoc(function) or ""
    assert "Returns:" in text or text.startswith(("Return ", "Whether "))
    examples = [test for test in doctest.DocTestFinder().find(function, globs={"graphkit": graphkit}) if test.examples]
    assert bool(examples) != (function.__name__ in WITHOUT_EXAMPLE)
    assert all(doctest.DocTestRunner().run(example).failed == 0 for example in examples)
