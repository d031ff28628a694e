# Two commands matter on a fresh machine: `make demo` and `make test`.
# They need python3 (3.11 or newer), make and a package index; everything else goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet

# The branch coverage below which `make test` fails, in per cent.
COVERAGE_MIN ?= 95
# More words for pytest, for example: make test ARGS="tests/engine -x"
ARGS ?=

comma := ,
DEMO_EXTRAS := demo$(if $(PHRONOMY_DEMO_MODEL),$(comma)llm)
DEMO_STAMP  := .make/demo$(if $(PHRONOMY_DEMO_MODEL),-llm)

.PHONY: help demo test crash bench lint format clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    run the example project's support desk over its e-mails (SQLite, no network)"
	@echo "make test    run all tests on SQLite and on a real PostgreSQL, with coverage"
	@echo "make crash   the long form of the crash test: kill -9 at every boundary, on both databases"
	@echo "make bench   measure, and write docs/benchmarks.md"
	@echo "make lint    ruff, mypy and the import contracts"
	@echo "make format  let ruff and django-upgrade rewrite what they can"
	@echo "make clean   remove the virtual environment and everything that was made here"

demo: $(DEMO_STAMP)
	@$(BIN)/python manage.py migrate --no-input --verbosity 0
	@$(BIN)/python manage.py demo

test: .make/test
	@$(BIN)/python -m tests --coverage-min $(COVERAGE_MIN) $(ARGS)

crash: .make/test
	@PHRONOMY_CRASH_LONG=1 $(BIN)/python -m tests tests/crash $(ARGS)

bench: .make/bench
	@$(BIN)/python -m bench $(ARGS)

# All four run, whichever fails.
lint: .make/dev
	@status=0; \
	$(BIN)/python -m ruff check . || status=1; \
	$(BIN)/python -m ruff format --check . || status=1; \
	$(BIN)/python -m mypy || status=1; \
	$(BIN)/lint-imports || status=1; \
	exit $$status

format: .make/dev
	@git ls-files '*.py' | xargs $(BIN)/django-upgrade --target-version 5.2 --exit-zero-even-if-changed
	@$(BIN)/python -m ruff check --fix .
	@$(BIN)/python -m ruff format .

clean:
	rm -rf $(VENV) .make .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -rf .hypothesis .nox build dist var
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of extras. A changed pyproject.toml or a new environment makes all of them stale.
.make/demo .make/demo-llm: EXTRAS = $(DEMO_EXTRAS)
.make/test: EXTRAS = test
.make/dev: EXTRAS = dev
.make/bench: EXTRAS = bench

.make/demo .make/demo-llm .make/test .make/dev .make/bench: pyproject.toml $(VENV)/pyvenv.cfg
	@echo "Installing phronomy-django[$(EXTRAS)] into $(VENV) ..."
	@$(PIP) install --editable '.[$(EXTRAS)]'
	@mkdir -p $(@D) && touch $@

$(VENV)/pyvenv.cfg:
	@command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)' here. Install Python 3.11 or newer, or name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "'$(PYTHON)' is $$($(PYTHON) -V 2>&1); phronomy_django needs Python 3.11 or newer. Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Making a virtual environment in $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
