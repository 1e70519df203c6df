# Two commands: `make demo` runs the main job, `make test` checks everything. Each makes .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test check golden format docs size clean

demo: $(VENV)/.base            ## train, sample, verify and take apart a small model (3 minutes)
	$(BIN)/pvml demo

test: $(VENV)/.dev             ## everything that CI checks
	$(MAKE) check

check:                         ## the same, in an environment that is already made
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not network"

golden: $(VENV)/.dev           ## the figures that need the hub: GPT-2, TinyStories, published runs (some GB)
	$(BIN)/pytest -m network

format: $(VENV)/.dev           ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev             ## run every block of README and docs and write its output back
	$(BIN)/python tests/documents.py README.md docs

size:                          ## lines per file and folder
	@git ls-files 'src/*.py' 'tests/*.py' | xargs wc -l | sort -n

clean:                         ## forget the environment; runs stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"PvML needs Python 3.11 or newer, and $(PYTHON) is {sys.version.split()[0]}: try make PYTHON=python3.11")'
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

$(VENV)/.base: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.base
