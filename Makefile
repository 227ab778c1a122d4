# make venv   the environment, once
# make demo   one example at full size, ending with its report
# make check  the linter, the type checker, and the tests that need nothing but Python and PyTorch: the fast loop
# make test   all tests, but those that need a machine to themselves
# make attacks  cheats and their honest twins before the judge, clocks included: about ten minutes on an idle machine
# make lint   ruff, and the types of the package with pyrefly
# make docs   the site, into build/site; links are checked, and a page that is in no place of the navigation fails

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= $(shell tools/find-python)
# Processes that run tests side by side: each file in one of them, since what its tests share is made once. On two cores
# three of them leave none idle while one waits.
JOBS ?= 3
# Where bytecode is not to be written, each of these processes, and each that a test starts, compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE
DEMO := build/demo
# The site has an environment of its own, so that nothing else needs its packages; they are the extra `docs`.
DOCS_VENV := build/docs_venv
DOCS_STAMP := $(DOCS_VENV)/.installed
DOCS_PACKAGES = import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
                print(*project["optional-dependencies"]["docs"])

.PHONY: venv demo check test attacks lint docs docs-venv clean
.DEFAULT_GOAL := test

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 to 3.13 was found; set PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[development]" torch
	@# Only some tests need it, which are skipped where it is not to be had.
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[propose]"
	@touch $@

demo: $(STAMP)
	@mkdir -p $(DEMO)
	$(BIN)/kernelwright optimize examples/convt_global_mean.py -o $(DEMO)/convt_global_mean_new.py --force

check: $(STAMP) lint
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile tests/unit

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not clocked"

attacks: $(STAMP)
	$(BIN)/python -m pytest tests/process/judge/test_exploits.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

docs-venv: $(DOCS_STAMP)

$(DOCS_STAMP): pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 \
	    $$($(PYTHON) -c '$(DOCS_PACKAGES)')
	@touch $@

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build
