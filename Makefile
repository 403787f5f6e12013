PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The CPU build of torch. The default index has only the CUDA build for Linux, which brings
# gigabytes of CUDA packages; macOS has no other build and no suffix.
TORCH ?= torch==2.13.0$(if $(filter Linux,$(shell uname -s)),+cpu)
STAMP := $(VENV)/.installed

.PHONY: setup bench-setup demo test lint docs protos dashboards requirements gpu-check clean

setup: $(STAMP)

$(STAMP): pyproject.toml Makefile $(wildcard */native/* serving/bench/native/*)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" \
	  || PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu \
	     $(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $(STAMP)

# The peers of the benchmarks, which some tests compare with too. Without their dependencies:
# TorchRec asks for the CUDA build of FBGEMM, which would replace the CPU build.
PEERS := $(VENV)/.peers-installed

bench-setup: $(PEERS)

$(PEERS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench"])')
	touch $(PEERS)

demo: setup
	$(BIN)/sharded-infer demo

# Two at a time: most wait for processes of their own. A file's tests share their servers; the files
# that take longest come first (tests/conftest.py), not those of most tests. Torch's threads wait for
# each other without spinning: the cores have other work.
test: setup
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --numprocesses 2 --dist loadfile \
	  --no-loadscope-reorder

lint: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_configuration.py
	$(BIN)/python docs/generate_metrics.py
	$(BIN)/python docs/generate_openapi.py
	$(BIN)/python docs/generate_operators.py

protos: setup
	$(BIN)/python -m grpc_tools.protoc --proto_path=protos --python_out=. --pyi_out=. \
	  --grpc_python_out=. protos/sharded_infer/v1/predictor.proto

dashboards: setup
	$(BIN)/python docker/generate_dashboards.py

# What the images install: the versions that are installed here.
requirements: setup
	$(BIN)/python docker/pin_requirements.py

# On a machine with a CUDA card, torch and Triton: nothing of ours need be built or installed for it.
gpu-check:
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m tests.gpu_check

clean:
	rm -rf $(VENV) build dist *.egg-info
