# Everything a newcomer needs: `make run` shows the library at work, `make test` proves it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: run test test-all lint docs browser ray clean

run: $(READY)
	$(BIN)/offsupport demo

test: $(READY) lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 -m "not slow and not fault"

test-all: $(READY) lint browser ray
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 -rs

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What the browser tests need; without the right to install it they are skipped, and say so.
browser:
	command -v chromium chromedriver >/dev/null || \
		{ apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver; } || \
		echo "No Chromium: the browser tests will be skipped."

# What the tests of the Ray executor need; where it cannot be had they are skipped, and say so.
ray: $(READY)
	$(BIN)/python -c "import ray" 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ray]" || \
		echo "No Ray: its tests will be skipped."

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs]"
	touch $@

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache
