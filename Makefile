# make report [MODEL=path]   set up an environment, report on a model (an example that ships with graphkit)
# make test                  set up an environment, run the tests
# make test-slow             run those that repeat them on larger models and on all cases (PART=N: a tenth of them)
# make browser-test          try the page of a report in a Chromium, where one is on PATH
# make judge-test            install the judges of open source into .judges, ask them whether small lowered models run there whole
# make check                 format, lint, types and tests, as CI does
# make npu-gate              install the judge vela (Python 3.11, 1.8 GB), ask it and others whether lowered models run on an NPU
# make reports               write the example reports in reports/ anew
# make docs                  build the site of docs/ into docs/_build, every warning an error
# make environment           install at once what tests, browser tests and docs need
# make release-check         build sdist and wheel, and try each in an empty environment

PYTHON ?= python3
VENV ?= .venv
MODEL ?= example:merged-decoder
NPU_PYTHON ?= python3.11
JUDGES ?= $(CURDIR)/.judges
BIN := $(VENV)/bin
export PYTHONDONTWRITEBYTECODE :=

.PHONY: report test test-slow browser-test judge-test check format lint types reports docs release-check npu-gate environment clean

report: $(VENV)/.runtime
	$(BIN)/graphkit report $(MODEL)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n logical --dist worksteal --ignore tests/browser --ignore tests/compilers

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n logical --dist loadfile -m slow $(if $(PART),--part $(PART))

browser-test: $(VENV)/.browser
	$(BIN)/python -m pytest -n logical --dist loadfile tests/browser

judge-test: $(VENV)/.dev
	GRAPHKIT_JUDGES=$(JUDGES) $(BIN)/python tests/compilers/install_judges.py
	GRAPHKIT_JUDGES=$(JUDGES) $(BIN)/python -m pytest -n logical --dist worksteal -rs tests/compilers

check: format lint types test test-slow

format: $(VENV)/.dev
	$(BIN)/ruff format --check .

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy
	@if command -v tsc > /dev/null; then tsc --project tests/browser; \
	else echo "The types of the page's script are not checked: there is no tsc on PATH (npm install --global typescript)"; fi

reports: $(VENV)/.dev
	$(BIN)/python reports/regenerate.py

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --jobs auto --fail-on-warning --keep-going --quiet --builder html docs docs/_build
	@echo "The site is docs/_build/index.html"

release-check:
	.ci/release-check $(PYTHON)

npu-gate: $(VENV)/.runtime
	$(BIN)/graphkit judges --full | grep -q '^vela  *[0-9]' || $(BIN)/graphkit judges install vela --yes --python $(NPU_PYTHON)
	$(BIN)/python benchmarks/npu_gate/gate.py

environment: $(VENV)/.ci

# each installs all that it needs in one go: pip takes ten seconds to find out that it is all there
$(VENV)/.runtime: EXTRAS :=
$(VENV)/.dev: EXTRAS := [dev]
$(VENV)/.browser: EXTRAS := [browser,dev]
$(VENV)/.docs: EXTRAS := [docs]
$(VENV)/.ci: EXTRAS := [browser,dev,docs]
$(VENV)/.runtime $(VENV)/.dev $(VENV)/.browser $(VENV)/.docs $(VENV)/.ci: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable '.$(EXTRAS)'
	touch $@ $(VENV)/.runtime $(if $(findstring dev,$(EXTRAS)),$(VENV)/.dev)
	$(if $(filter %.ci,$@),touch $(VENV)/.browser $(VENV)/.docs)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
