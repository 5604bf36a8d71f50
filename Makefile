# Everything a person types. Each target sets up the environment it needs; the second run is quick.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo docs test results test-all coverage test-gpu test-newest package chaos goldens lint format clean

setup: $(READY)

# torch is installed first and alone, so that no other package's range can choose another build. CUDA builds bring Triton;
# with other builds it is installed, where there is a package, for the interpreter that tests the kernels. compileall
# compiles in parallel, which pip does not.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -c 'import triton' 2> /dev/null || $(BIN)/pip install --quiet triton==3.6.0 || true
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true
	touch $(READY)

demo: setup
	$(BIN)/mosaics demo --out runs/demo

# The quick tests; test-all has the slow ones too (compiled models, interpreted kernels, kills) and the numbers on the pages.
# One thread for each of the two workers: threads of two processes that wait for each other are many times slower.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal
test: setup
	$(PYTEST) -m 'not slow and not results'

# The numbers on the pages against the committed results.
results: setup
	$(PYTEST) -m results

test-all: setup
	$(PYTEST) -m ''

# Which lines no test runs; counting them takes a fifth more time.
coverage: setup
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-fail-under=90

# The site, build/site/index.html: executes the tutorials, fails on a warning, and on a link or anchor that leads nowhere.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# On a machine with a CUDA device and its own torch.
test-gpu:
	$(PYTHON) -m pytest -o addopts= -k 'gpu or triton' tests/test_gpu.py tests/ops tests/benchmarks/test_bench_gpu.py \
		tests/experiments/test_regbench_gpu.py

# The Hugging Face adapter against the newest transformers 5.x, TRL, PEFT and their parts, in an environment of its own.
NEWEST := .venv-newest
test-newest:
	$(PYTHON) -m venv $(NEWEST)
	grep -v -i -E '^(transformers|tokenizers|huggingface|hf-xet|accelerate|tqdm|typer|trl|peft|datasets|safetensors)' constraints.txt \
		> $(NEWEST)/constraints.txt
	$(NEWEST)/bin/pip install --quiet --constraint $(NEWEST)/constraints.txt torch
	$(NEWEST)/bin/pip install --quiet --upgrade --constraint $(NEWEST)/constraints.txt --editable '.[dev]'
	OMP_NUM_THREADS=1 $(NEWEST)/bin/pytest -n 2 tests/test_huggingface*.py

# The sdist and the wheel in dist/, with their metadata checked, and the wheel alone in an environment of its own.
package:
	rm -rf dist build/package
	$(PYTHON) -m venv build/package
	build/package/bin/pip install --quiet build twine
	build/package/bin/python -m build
	build/package/bin/twine check --strict dist/*
	build/package/bin/pip install --quiet --no-compile --constraint constraints.txt torch
	build/package/bin/pip install --quiet --no-compile --constraint constraints.txt dist/*.whl
	cd build/package && bin/mosaics info memory-mosaic-tiny > /dev/null

# Kills, crashes at every file-system event, damaged files; the report is runs/chaos/report.md.
MINUTES ?= 30
SEED    ?= 0
chaos: setup
	$(BIN)/python tests/chaos/run.py --minutes $(MINUTES) --seed $(SEED)

# Results of all architectures and commands against those stored in tests/golden, to the last bit; `tests/goldens.py write`
# replaces them.
goldens: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/goldens.py check

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(NEWEST) runs build
