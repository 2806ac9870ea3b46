# Everything a clone needs: each target makes .venv by itself, as root or not, and starts the
# embedded PostgreSQL of the wheel; no other server is looked at.
#
#   make demo            real jobs on a real PostgreSQL, a killed worker, a summary
#   make test            every test;  QUICK=1 a subset of a minute;  ARGS='-k lease -x' goes to pytest
#   make lint            ruff, mypy --strict, import contracts, tests/tidy
#   make bench           this worker beside pgbench, as ratios;  ARGS='--repeats 5 effect' goes to it
#   make docs            the pages of docs/reference that follow from tables in the code
#
# PYTHON=/path/to/python3 names the interpreter; else the first that is at least 3.11 is taken.

# A failed command ends its recipe at once.
.SHELLFLAGS := -ec
.DEFAULT_GOAL := help
.PHONY: .venv demo test lint bench docs help

BIN := .venv/bin
# Most tests wait for something most of the time: a few side by side, a server each.
JOBS ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A DSN of the surroundings is never the tests' or the demo's business.
unexport DATABASE_URL

.venv: .venv/.installed

# The stamp is younger than the metadata only after a complete install, so an interrupted one is
# done again; a .venv whose interpreter has gone or is too old is made anew.
.venv/.installed: setup.cfg pyproject.toml .ci/find-python
	@if ! PYTHON=$(BIN)/python .ci/find-python >/dev/null 2>&1; then \
	    python=$$(PYTHON='$(PYTHON)' .ci/find-python); \
	    echo "making .venv with $$python (once; about a minute)"; \
	    "$$python" -m venv --clear .venv; \
	fi
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: .venv/.installed
	$(BIN)/reliable-worker demo $(DEMO_PATH)

test: .venv/.installed
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(if $(QUICK),-m quick) $(ARGS)

bench: .venv/.installed
	$(BIN)/python -m bench $(ARGS)

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy reliable_worker tests bench
	$(BIN)/lint-imports setup.cfg
	$(BIN)/python -m pytest --quiet tests/tidy

# The pages of docs/reference that follow from tables in the code.
docs: .venv/.installed
	$(BIN)/python -m tests.tidy.reference

help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile
