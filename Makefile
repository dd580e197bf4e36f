# Every target makes its own .venv first: `make up`, `make demo` and `make test` work as the first command
# on a fresh machine that has Python 3.11 or newer, pip and make.

PYTHON ?= python3
VENV   := .venv
RUNTIME := $(VENV)/.towpath-runtime
STAMP  := $(VENV)/.towpath-installed
# What is installed: for `make up` what it runs on, for all else the tools of the tests too.
TO_RUN  := server,embedded,fast
TO_TEST := dev,embedded
BIN    := $(VENV)/bin
REDIS  := $(VENV)/redis-tls
GITHUB := $(VENV)/github-openapi.json
TUS    := $(VENV)/tus
CHROMIUM := $(VENV)/chromium
SHELLS := $(VENV)/shells
JOBS   ?= 5
PROGRAMS ?= 5000

# The suite starts many processes: each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up demo test check spec lint types contracts unit model bench figures docs site format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(RUNTIME) ## start everything: server, store and database, data in ./towpath-data; PORT=n for another port
	@$(BIN)/towpath up$(if $(filter command,$(origin PORT)), --port $(PORT))

demo: $(RUNTIME) ## see what it keeps: five applications under load, a worker and the store killed
	@$(BIN)/towpath demo

# The types are checked on one core: the tests need not wait for that.
test: lint contracts ## everything that must hold before a change lands
	@$(MAKE) --no-print-directory -j 2 types unit

check: lint contracts ## the quick part of it, for every day: rules, types, the specification on one server, the tests nearest to a change
	@$(MAKE) --no-print-directory -j 2 types spec

spec: $(STAMP)
	$(BIN)/pytest -q -n 2 tests/spec tests/architecture $$($(BIN)/python -m tests.nearest) -k 'not cluster and not oldest'

lint: $(STAMP) ## formatting and ruff
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP) ## pyright's strict mode, by basedpyright
	$(BIN)/basedpyright

contracts: $(STAMP) ## who may import whom
	$(BIN)/lint-imports --no-logo --no-cache

unit: $(STAMP) $(REDIS) $(GITHUB) $(TUS) $(CHROMIUM) $(SHELLS) ## the whole test suite; JOBS=n processes
	$(BIN)/pytest -n $(JOBS) --dist worksteal

model: $(STAMP) ## many more random programs against the oracle; PROGRAMS=n
	TOWPATH_MODEL_PROGRAMS=$(PROGRAMS) $(BIN)/pytest tests/model -n $(JOBS) --timeout 0

bench: $(STAMP) ## the figures behind every performance claim
	$(BIN)/python -m benchmarks

figures: $(STAMP) ## how the code is built: frames, modules, lines, starts
	$(BIN)/python -m tests.architecture.figures
	$(BIN)/python -m docs.reference.strings

docs: $(STAMP) ## write the reference pages anew
	$(BIN)/python -m docs.reference.make

site: $(STAMP) ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'open build/site/index.html; its search needs a server: $(BIN)/python -m http.server -d build/site'

format: $(STAMP) ## rewrite the files as ruff wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove .venv and everything that tools left behind
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian's python3 comes without ensurepip unless python3-venv is installed: then the machine's
# own pip fills the environment from outside. Nothing is ever installed outside of $(VENV).
$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'towpath needs Python 3.11 or newer; say which one: make PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || \
	  { $(PYTHON) -m venv --without-pip --clear $(VENV) && $(PYTHON) -m pip --version >/dev/null 2>&1; } || \
	  { rm -rf $(VENV); echo 'cannot make $(VENV): this Python has neither ensurepip nor pip;' \
	    'on Debian or Ubuntu: apt-get install python3-venv' >&2; exit 1; }

define install
@echo 'installing $(2) into $(VENV) ...'
@if $(BIN)/python -m pip --version >/dev/null 2>&1; then pip='$(BIN)/python -m pip'; \
  else pip='$(PYTHON) -m pip --python $(BIN)/python'; fi; \
  $$pip install --disable-pip-version-check -e '.[$(1)]'
endef

# A Redis that speaks TLS: the servers in the wheels do not. Taken from Debian's packages, unpacked
# into $(VENV); where that can't be, the tests of TLS are skipped and say so.
$(REDIS): | $(VENV)/pyvenv.cfg
	@sh tests/bring_redis.sh $(REDIS) || true

# GitHub's description of its API: the tests hold requests to it. Where npm is away, they say so.
$(GITHUB): tests/bring_github.sh | $(VENV)/pyvenv.cfg
	@sh tests/bring_github.sh $(GITHUB) || true

# Debian's Chromium and axe-core: the dashboard is tried with both. Where they can't be had, it is skipped.
$(CHROMIUM): tests/bring_chromium.sh tests/debian.sh | $(VENV)/pyvenv.cfg
	@sh tests/bring_chromium.sh $(CHROMIUM) && touch $(CHROMIUM) || true

# Debian's zsh and fish: completion is tried in both. Where they can't be had, those tests are skipped.
$(SHELLS): tests/bring_shells.sh tests/debian.sh | $(VENV)/pyvenv.cfg
	@sh tests/bring_shells.sh $(SHELLS) && touch $(SHELLS) || true

# The tus project's own client: uploads are tried with it. Where npm is away, those tests are skipped.
$(TUS): tests/bring_tus.sh | $(VENV)/pyvenv.cfg
	@sh tests/bring_tus.sh $(TUS) && touch $(TUS) || true

# What `towpath up` runs on, and no more.
$(RUNTIME): pyproject.toml | $(VENV)/pyvenv.cfg
	$(call install,$(TO_RUN),towpath and what it runs on (about 130 MB))
	@touch $@

# The same with the tools of the tests.
$(STAMP): pyproject.toml | $(VENV)/pyvenv.cfg
	$(call install,$(TO_TEST),towpath and the tools of its tests (about 950 MB))
	@touch $(RUNTIME) $@
