# Every target makes its own .venv first: `make up`, `make demo` and `make test` work as the first command
# on a fresh machine that has Python 3.11 or newer, pip and make.

PYTHON ?= python3
VENV   := .venv
RUNTIME := $(VENV)/.towpath-runtime
STAMP  := $(VENV)/.towpath-installed
# What is installed: for `make up` what it runs on, for all else the tools of the tests too.
TO_RUN := server,embedded,fast
PINS   := tests/requirements.txt
BIN    := $(VENV)/bin
REDIS  := $(VENV)/redis-tls
NPM    := $(VENV)/npm
CHROMIUM := $(VENV)/chromium
SHELLS := $(VENV)/shells
JOBS   ?= 6
PROGRAMS ?= 5000

# The suite starts many processes: each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up demo test test-all all check spec lint types contracts unit model bench docs site format pins clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(RUNTIME) ## start everything: server, store and database, data in ./towpath-data; PORT=n for another port
	@$(BIN)/towpath up$(if $(filter command,$(origin PORT)), --port $(PORT))

demo: $(RUNTIME) ## see what it keeps: five applications under load, a worker and the store killed
	@$(BIN)/towpath demo

# The types are checked on one core: the tests need not wait for that.
test: lint contracts ## everything that must hold before a change lands
	@$(MAKE) --no-print-directory -j 2 types unit

test-all: lint contracts ## the same with every deployment, seed and planted fault; up to an hour
	@$(MAKE) --no-print-directory -j 2 types all

check: lint contracts ## the quick part of it, for every day: rules, types, the specification on one server
	@$(MAKE) --no-print-directory -j 2 types spec

spec: $(STAMP)
	$(BIN)/pytest -q -n 2 tests/spec tests/architecture -k 'not cluster and not oldest and not sentinel'

lint: $(STAMP) ## formatting and ruff
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP) ## pyright's strict mode, by basedpyright
	$(BIN)/basedpyright

contracts: $(STAMP) ## who may import whom
	$(BIN)/lint-imports --no-logo --no-cache

unit: $(STAMP) $(REDIS) $(NPM) $(CHROMIUM) $(SHELLS) ## the tests of `make test`; JOBS=n processes
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not slow'

all: $(STAMP) $(REDIS) $(NPM) $(CHROMIUM) $(SHELLS)
	TESTS_ALL=1 $(BIN)/pytest -n $(JOBS) --dist worksteal

model: $(STAMP) ## many more random programs against the oracle; PROGRAMS=n
	TOWPATH_MODEL_PROGRAMS=$(PROGRAMS) $(BIN)/pytest tests/model -n $(JOBS) --timeout 0

bench: $(STAMP) ## the figures behind every performance claim
	$(BIN)/python -m benchmarks

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

# The environment's own pip, or the machine's.
pip = $$($(BIN)/python -m pip --version >/dev/null 2>&1 && echo $(BIN)/python -m pip || echo $(PYTHON) -m pip --python $(BIN)/python)

# A Redis that speaks TLS: the servers in the wheels do not. Taken from Debian's packages, unpacked
# into $(VENV); where that can't be, the tests of TLS are skipped and say so.
$(REDIS): | $(VENV)/pyvenv.cfg
	@sh tests/bring_redis.sh $(REDIS) || true

# From npm: GitHub's description of its API, to which requests are held; axe-core, which finds what
# keeps people from using a page; the tus project's own client, and Uppy. Where npm is away, those tests are skipped.
$(NPM): tests/bring_npm.sh tests/npm/package-lock.json | $(VENV)/pyvenv.cfg
	@sh tests/bring_npm.sh $(NPM) && touch $(NPM) || true

# Debian's Chromium: the dashboard is tried in it. Where it can't be had, those tests are skipped.
$(CHROMIUM): tests/bring_chromium.sh tests/debian.sh | $(VENV)/pyvenv.cfg
	@sh tests/bring_chromium.sh $(CHROMIUM) && touch $(CHROMIUM) || true

# Debian's zsh and fish: completion is tried in both. Where they can't be had, those tests are skipped.
$(SHELLS): tests/bring_shells.sh tests/debian.sh | $(VENV)/pyvenv.cfg
	@sh tests/bring_shells.sh $(SHELLS) && touch $(SHELLS) || true

# What `towpath up` runs on, and no more.
$(RUNTIME): pyproject.toml | $(VENV)/pyvenv.cfg
	@echo 'installing towpath and what it runs on (about 130 MB) into $(VENV) ...'
	@$(pip) install --disable-pip-version-check -e '.[$(TO_RUN)]'
	@touch $@

# The same with the tools of the tests, each in the version and with the hash that is in $(PINS).
$(STAMP): pyproject.toml $(PINS) | $(VENV)/pyvenv.cfg
	@echo 'installing towpath and the tools of its tests (about 950 MB) into $(VENV) ...'
	@$(pip) install --disable-pip-version-check --require-hashes --no-deps -r $(PINS)
	@$(pip) install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(pip) check || { echo 'pyproject.toml asks for more than $(PINS) has: make pins' >&2; exit 1; }
	@touch $(RUNTIME) $@

pins: $(VENV)/pyvenv.cfg ## choose the newest versions of what the tests use, and write them down with their hashes
	@$(pip) install --disable-pip-version-check uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra embedded --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --upgrade --quiet -o $(PINS)
