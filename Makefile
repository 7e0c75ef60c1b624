# `make demo` and `make test` do all the set-up themselves: a virtual environment in .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test check lint types fix clean

demo: $(STAMP)
	$(BIN)/draftwise demo

test: $(STAMP)
	$(BIN)/python -m pytest

check: lint types test

lint: $(STAMP)
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks

types: $(STAMP)
	$(BIN)/mypy

fix: $(STAMP)
	$(BIN)/ruff check --fix src tests examples benchmarks
	$(BIN)/ruff format src tests examples benchmarks

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv dist
