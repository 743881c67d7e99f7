PYTHON ?= $(shell for p in python3.11 python3; do $$p -c "" 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
READY := .venv/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# the demo needs no development tools, unless they are there already
DEMO := $(if $(LOCKED)$(wildcard $(READY)),$(READY),.venv/.demo)

.PHONY: demo check test lint docs bench clean

demo: $(DEMO)
	$(BIN)/python examples/demo.py

# for every edit: at most 90 seconds
check: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 src tests/test_architecture.py tests/test_smoke.py

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict

docs: $(READY)
	$(BIN)/python docs/build.py

bench: $(READY)
	$(BIN)/python benchmarks/kl.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/peers.py

clean:
	rm -rf build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov
	find src tests benchmarks examples experiments -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.venv/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) -e ".[train]"
	touch $@

# LOCKED=1 installs the very files of requirements.lock, by their hashes (Python 3.11 on Linux)
$(READY): pyproject.toml constraints.txt requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) $(if $(LOCKED),--no-deps torch,-e ".[dev,peers]")
	$(if $(LOCKED),$(INSTALL) --no-deps --require-hashes -r requirements.lock && $(INSTALL) --no-deps -e .)
	touch $@
