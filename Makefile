# make demo   compile and run a small real model
# make test   lint, type check and the whole test suite
# make site   the documentation as a site, in site/
# make dev    an editable install, for working on sscc (make test goes back to a normal one)
#
# Needs Python 3.11 or later with venv, a C++20 compiler and pip; everything else goes into .venv.

PYTHON ?= python3
PYTEST_ARGS ?=
PROCESSES ?= -n 2 --max-worker-restart 0

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
CONSTRAINTS := constraints.txt
PIP_INSTALL := $(PIP) install --quiet --constraint $(CONSTRAINTS)
BUILD_FILES := pyproject.toml CMakeLists.txt $(CONSTRAINTS)
FOLDERS := compiler ir passes runtime
# Folders too: their time changes when a file goes away.
SOURCES := $(shell find $(FOLDERS) -name __pycache__ -prune -o -print)
# The folders under the names that they are imported by, for whoever looks for sources without importing: editors, type
# checkers, import graphs. A .pth file points there.
LINKS := $(VENV)/links
LINKS_PTH = $(shell $(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sscc-links.pth

.PHONY: demo site test lint typecheck pytest install dev clean
.DELETE_ON_ERROR:

test: lint typecheck pytest

demo: $(VENV)/.installed
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" bash examples/demo.sh

site: $(VENV)/.installed
	$(PY) -m mkdocs build

lint: $(VENV)/.installed
	$(PY) -m ruff check .

typecheck: $(VENV)/.installed
	$(PY) -m mypy -p sscc

pytest: $(VENV)/.installed
	$(PY) -m pytest $(PROCESSES) $(PYTEST_ARGS)

install: $(VENV)/.installed

$(VENV)/.installed: $(VENV)/.build-tools $(BUILD_FILES) $(SOURCES)
	@rm -rf $(LINKS) $(LINKS_PTH)
	$(PIP_INSTALL) --no-build-isolation ".[test]"
	@touch $@

dev: $(VENV)/.build-tools
	$(PIP_INSTALL) --no-build-isolation --editable ".[test]"
	@rm -rf $(VENV)/.installed $(LINKS)
	@mkdir -p $(LINKS)/sscc
	@for name in $(FOLDERS) $(addprefix compiler/package/,__init__.py py.typed pytest_plugin.py); do \
	ln -s "$(CURDIR)/$$name" $(LINKS)/sscc/ || exit 1; done
	@echo "$(CURDIR)/$(LINKS)" > $(LINKS_PTH)

# Builds happen inside .venv rather than in pip's throw-away one: then a re-install compiles only what changed.
# The build system's own list, then what it asks for on this machine: cmake and ninja where they are missing.
$(VENV)/.build-tools: pyproject.toml $(CONSTRAINTS) | $(PY)
	$(PIP_INSTALL) $$($(PY) -c 'import tomllib; \
	print(*(r.replace(" ", "") for r in tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]))')
	needed=$$($(PY) -c 'from scikit_build_core.build import get_requires_for_build_wheel as needed; \
	print(*(r.replace(" ", "") for r in needed()))') && if test -n "$$needed"; then $(PIP_INSTALL) $$needed; fi
	@touch $@

$(PY):
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"sscc needs Python 3.11 or later, \
	$(PYTHON) is {v[0]}.{v[1]}: run make PYTHON=/path/to/python3.12")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

clean:
	rm -rf $(VENV) build site .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
