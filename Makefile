PYTHON ?= $(shell for p in python3.11 python3; do $$p -c "" 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint docs bench clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict src

docs: $(READY)
	$(BIN)/python docs/build.py

bench: $(READY)
	$(BIN)/python benchmarks/kl.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/peers.py

clean:
	rm -rf build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,peers]"
	touch $@
