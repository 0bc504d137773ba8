# Needs Python 3.11 or newer with venv, pip, and a C library. `make demo` on a fresh clone does everything.
PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
DEV := $(VENV)/.installed-dev
TEST := $(VENV)/.installed-test
DEMO := $(VENV)/.installed-demo

.DELETE_ON_ERROR:
.PHONY: help demo info test lint format types layers bench bench-full coverage boundscheck package clean

help:
	@echo "make demo         install into $(VENV) and run the demo"
	@echo "make info         what is installed, found and missing"
	@echo "make test         run the tests and the examples in the docstrings"
	@echo "make lint         formatting and lint rules"
	@echo "make format       format and fix what can be fixed"
	@echo "make types        type check src/udfkit"
	@echo "make layers       check that each room imports only the rooms below it"
	@echo "make bench        every benchmark once, to see that they run"
	@echo "make bench-full   measure the benchmarks (minutes)"
	@echo "make coverage     line coverage of src/udfkit, kernels run as plain Python too, at least 95 %"
	@echo "make boundscheck  the tests with bounds checks in the kernels"
	@echo "make package      build the wheel and the source archive into dist/"
	@echo "make clean        remove caches and $(VENV)"

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than Python 3.11; say: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml $(VENV)/pyvenv.cfg
	@echo "installing udfkit-kernels[demo] into $(VENV)"
	@$(PIP) install --quiet --editable '.[demo]'
	@touch $@

$(TEST): pyproject.toml $(VENV)/pyvenv.cfg
	@echo "installing udfkit-kernels[test] into $(VENV)"
	@$(PIP) install --quiet --editable '.[test]'
	@touch $@

$(DEV): pyproject.toml $(VENV)/pyvenv.cfg
	@echo "installing udfkit-kernels[dev] into $(VENV)"
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@ $(TEST) $(DEMO)

demo: $(DEMO)
	$(PY) -m udfkit demo

info: $(DEMO)
	$(PY) -m udfkit info

test: $(TEST)
	$(PY) -m pytest -q $(ARGS)

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(DEV)
	$(BIN)/mypy

layers: $(DEV)
	$(BIN)/lint-imports

# Forking from one process that has loaded the compiler takes a tenth of the time; measuring needs fresh processes.
bench: $(DEV)
	@test -f "$$HOME/.asv-machine.json" || $(BIN)/asv machine --yes </dev/null >/dev/null
	$(BIN)/asv check --environment existing:$(PY)
	UDFKIT_BENCH_GRID=small $(BIN)/asv run --environment existing:$(PY) --launch-method forkserver --quick --dry-run --show-stderr

bench-full: $(DEV)
	@test -f "$$HOME/.asv-machine.json" || $(BIN)/asv machine --yes </dev/null >/dev/null
	$(BIN)/asv run --environment existing:$(PY) --show-stderr --set-commit-hash "$$(git rev-parse HEAD)"

coverage: $(TEST)
	$(PY) -m coverage erase
	NUMBA_DISABLE_JIT=1 $(PY) -m coverage run --parallel-mode -m pytest -q $(ARGS)
	$(PY) -m coverage run --parallel-mode -m pytest -q $(ARGS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

boundscheck: $(TEST)
	NUMBA_BOUNDSCHECK=1 $(PY) -m pytest -q $(ARGS)

package: $(DEV)
	$(PY) -m build --outdir dist .

clean:
	rm -rf $(VENV) .asv .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage dist build
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
