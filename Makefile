# Everything a newcomer needs: `make run` shows the library at work, `make test` proves it.

# Windows names both otherwise; the recipes need a POSIX shell there, which Git for Windows brings.
ifeq ($(OS),Windows_NT)
PYTHON ?= python
BIN := .venv/Scripts
else
PYTHON ?= python3
BIN := .venv/bin
endif
# Another file here tries other versions, in a .venv made anew: `make clean`, then `make test CONSTRAINTS=mine.txt`.
CONSTRAINTS ?= constraints.txt
READY := .venv/.ready

# One thread per worker: two workers that both take every core slow each other down. Exported, not written before the
# command, because not every shell that make may find understands that.
# Neighbours stay on one worker (worksteal), so what the tests of a file share is made once.
test test-all: export OMP_NUM_THREADS = 1
# What is compiled is kept: every worker, and every process that a test starts, would compile it all again.
test test-all: export PYTHONDONTWRITEBYTECODE =
docs: export NO_MKDOCS_2_WARNING = 1

.PHONY: run test test-all lint docs doctor browser ray clean

run: $(READY)
	$(BIN)/offsupport demo

test: $(READY) lint
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not slow and not fault"

test-all: $(READY) lint browser ray
	$(BIN)/pytest -q -n 2 --dist worksteal -rs

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
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e ".[ray]" || \
		echo "No Ray: its tests will be skipped."

docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet

# Which versions are in .venv, and whether they work together.
doctor: $(READY)
	$(BIN)/offsupport doctor

$(READY): pyproject.toml $(CONSTRAINTS)
	$(BIN)/python -c "" 2>/dev/null || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e ".[dev,docs]"
	touch $@

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache
