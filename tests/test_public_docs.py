"""The public functions say what they return, and show an example that runs after `import graphkit`."""

import doctest
import importlib
import inspect
import re
from collections.abc import Callable

import pytest

import graphkit

PACKAGES = ("graphkit", "graphkit.shapes", "graphkit.shapes.constraints", "graphkit.verify")

# These take a folder of exported models, or what was made of one, and none ships with graphkit.
WITHOUT_EXAMPLE = {
    "bundle_folder", "bundle_overview", "genai_folder", "lower_folder", "verify_bundle", "verify_folder",
}  # fmt: skip


def public_functions() -> list[Callable[..., object]]:
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            if inspect.isfunction(function := getattr(package, name)):
                found[f"{function.__module__}.{name}"] = function
    return list(found.values())


@pytest.mark.cases(24)
@pytest.mark.parametrize("function", public_functions(), ids=lambda function: function.__name__)
def test_a_public_function_says_what_it_returns_and_shows_an_example_that_runs(
    function: Callable[..., object],
) -> None:
    text = inspect.getdoc(function) or ""
    assert "Returns:" in text or text.startswith(("Return ", "Whether "))
    examples = [test for test in doctest.DocTestFinder().find(function, globs={"graphkit": graphkit}) if test.examples]
    assert bool(examples) != (function.__name__ in WITHOUT_EXAMPLE)
    assert not any(line.options.get(doctest.SKIP) for example in examples for line in example.examples)
    assert all(doctest.DocTestRunner().run(example).failed == 0 for example in examples)


def test_the_help_names_what_there_is() -> None:
    text = graphkit.__doc__ or ""
    rows = re.findall(r"^    (\w[\w., ]*?)  +\S", text, re.M)
    named = {name.split(".")[0] for row in rows for name in row.split(", ")}
    assert named >= {"load", "report", "fold", "run_passes", "verify_rewrite", "lower_folder", "bundle_folder"}
    assert named <= set(graphkit.__all__)
    mentioned = set(re.findall(r"\w+", text))
    functions = {name for name in graphkit.__all__ if inspect.isfunction(getattr(graphkit, name))}
    assert functions - mentioned <= {"as_model", "bundle_overview", "load_target", "optimized", "remaining_shapes"}
