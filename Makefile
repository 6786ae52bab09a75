# make report [MODEL=path]   set up an environment, report on a model (an example that ships with graphkit)
# make test                  set up an environment, run all tests
# make check                 format, lint, types and tests, as CI does
# make reports               write the example reports in reports/ anew

PYTHON ?= python3
VENV ?= .venv
MODEL ?= example:merged-decoder
BIN := $(VENV)/bin

.PHONY: report test check format lint types reports clean

report: $(VENV)/.runtime
	$(BIN)/graphkit report $(MODEL)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n logical --dist loadfile

check: format lint types test

format: $(VENV)/.dev
	$(BIN)/ruff format --check .

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

reports: $(VENV)/.dev
	$(BIN)/python reports/regenerate.py

$(VENV)/.runtime: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.runtime

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
