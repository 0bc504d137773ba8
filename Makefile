# Needs Python 3.11 or newer with venv, pip, and a C library. `make demo` on a fresh clone does everything.
PYTHON ?= python3
VENV ?= .venv
CUDA_VENV ?= .venv-cuda
# NVVM and ptxas must be of one release: an older ptxas refuses the PTX of a newer NVVM.
CUDA_WHEELS ?= nvidia-nvvm nvidia-cuda-nvrtc nvidia-cuda-nvcc nvidia-cuda-nvdisasm

BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
DEV := $(VENV)/.installed-dev
TEST := $(VENV)/.installed-test
DEMO := $(VENV)/.installed-demo

.DELETE_ON_ERROR:
.PHONY: help demo info test test-torch test-jax test-interop test-tensorflow lint format types layers bench bench-full docs coverage boundscheck test-cuda-toolkit test-cuda-device package clean

help:
	@echo "make demo         install into $(VENV) and run the demo"
	@echo "make info         what is installed, found and missing"
	@echo "make test         run the tests and the examples in the docstrings"
	@echo "make test-torch   the tests that need PyTorch, in .venv-torch; test-jax: JAX, in .venv-jax;"
	@echo "                  test-interop: awkward, Arrow and pandas, in .venv-interop; test-tensorflow"
	@echo "make lint         formatting and lint rules"
	@echo "make format       format and fix what can be fixed"
	@echo "make types        type check src/udfkit, and a program that uses it"
	@echo "make layers       check that each room imports only the rooms below it"
	@echo "make bench        every benchmark once, to see that they run"
	@echo "make bench-full   measure the benchmarks (minutes)"
	@echo "make docs         build the documentation into build/site, in .venv-docs; warnings are errors"
	@echo "make coverage     line coverage of src/udfkit, kernels run as plain Python too, at least 95 %"
	@echo "make boundscheck  the tests with bounds checks in the kernels"
	@echo "make test-cuda-toolkit  the CUDA kernels through NVIDIA's compiler, no GPU needed (1 GB into $(CUDA_VENV))"
	@echo "make test-cuda-device   the CUDA tests on this machine's GPU; fails where there is none"
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
	$(PY) -m pytest -q -n auto --dist loadfile $(ARGS)

# Each library has an environment of its own, so that the one above stays small.
TORCH_PACKAGES := torch==2.13.0
JAX_PACKAGES := jax==0.10.2
INTEROP_PACKAGES := awkward==2.14.0 pyarrow==26.0.1 pandas==3.1.1
TENSORFLOW_PACKAGES := tensorflow-cpu==2.21.0

.venv-%/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-$*
	@echo "installing udfkit-kernels[test] and $(PACKAGES) into .venv-$*"
	@.venv-$*/bin/python -m pip --disable-pip-version-check --no-input install --quiet --editable '.[test]' $(PACKAGES)
	@touch $@

# The examples in the docstrings of the adapters run here too; the options of the base run leave them out.
ADAPTED := -m pytest -q -o addopts=--doctest-modules
# Where a few tests take most of the time, workers take tests from each other.
SPREAD := -n auto --dist worksteal

test-torch: PACKAGES := $(TORCH_PACKAGES)
test-torch: .venv-torch/.installed
	UDFKIT_TEST_TORCH=1 .venv-torch/bin/python $(ADAPTED) $(SPREAD) tests/with_torch tests/test_docs.py src/udfkit/torch.py src/udfkit/adapters/torch*.py $(ARGS)

test-jax: PACKAGES := $(JAX_PACKAGES)
test-jax: .venv-jax/.installed
	UDFKIT_TEST_JAX=1 .venv-jax/bin/python $(ADAPTED) $(SPREAD) tests/with_jax tests/test_docs.py src/udfkit/jax.py src/udfkit/adapters/jax*.py $(ARGS)

test-interop: PACKAGES := $(INTEROP_PACKAGES)
test-interop: .venv-interop/.installed
	UDFKIT_TEST_INTEROP=1 .venv-interop/bin/python $(ADAPTED) tests/interop tests/test_docs.py \
		src/udfkit/adapters/awkward.py src/udfkit/adapters/arrow.py src/udfkit/adapters/pandas.py src/udfkit/adapters/scipy.py $(ARGS)

test-tensorflow: PACKAGES := $(TENSORFLOW_PACKAGES)
test-tensorflow: .venv-tensorflow/.installed
	UDFKIT_TEST_TENSORFLOW=1 .venv-tensorflow/bin/python $(ADAPTED) tests/interop tests/test_docs.py src/udfkit/adapters/tensorflow.py $(ARGS)

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(DEV)
	$(BIN)/mypy
	$(BIN)/mypy --config-file= --strict --cache-dir .mypy_cache/outside tests/typed_program.py

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

.venv-docs/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	@echo "installing udfkit-kernels[docs] into .venv-docs"
	@.venv-docs/bin/python -m pip --disable-pip-version-check --no-input install --quiet --editable '.[docs]'
	@touch $@

docs: .venv-docs/.installed
	.venv-docs/bin/python -m mkdocs build --strict --clean

coverage: $(TEST)
	$(PY) -m coverage erase
	NUMBA_DISABLE_JIT=1 $(PY) -m coverage run --parallel-mode -m pytest -q $(ARGS)
	$(PY) -m coverage run --parallel-mode -m pytest -q $(ARGS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

boundscheck: $(TEST)
	NUMBA_BOUNDSCHECK=1 $(PY) -m pytest -q $(ARGS)

$(CUDA_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--editable '.[test]' 'numba-cuda>=0.30,<0.40' $(CUDA_WHEELS)
	@touch $@

test-cuda-toolkit: $(CUDA_VENV)/.installed
	UDFKIT_TEST_CUDA=toolkit $(CUDA_VENV)/bin/python -m pytest -q $(SPREAD) tests/cuda $(ARGS)

test-cuda-device: $(TEST)
	UDFKIT_TEST_CUDA=device $(PY) -m pytest -q tests/cuda $(ARGS)

package: $(DEV)
	$(PY) -m build --outdir dist .

clean:
	rm -rf $(VENV) .venv-docs .venv-torch .venv-jax .venv-interop .venv-tensorflow .asv .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage dist build
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
