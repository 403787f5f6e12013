PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The CPU build of torch. The default index has only the CUDA build for Linux, which brings
# gigabytes of CUDA packages; macOS has no other build and no suffix.
TORCH ?= torch==2.13.0$(if $(filter Linux,$(shell uname -s)),+cpu)
STAMP := $(VENV)/.installed

.PHONY: setup bench-setup triton bench-peers nghttp2 demo test test-rest test-slow test-again test-all soak lint docs site protos abi dashboards requirements release gpu-check clean

# What serves, without what develops it: enough for the demo.
RUNTIME := $(VENV)/.runtime-installed
# Python compiles what it imports; pip would compile all of torch.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile

# Packages come while the compiler runs.
$(RUNTIME): pyproject.toml setup.py Makefile $(wildcard native/*/*)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --quiet "setuptools>=77"
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
	  >$(VENV)/runtime.txt
	$(BIN)/python -W ignore setup.py --quiet build_ext --inplace & \
	  { $(PIP) "$(TORCH)" --requirement $(VENV)/runtime.txt \
	    || PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu \
	       $(PIP) "$(TORCH)" --requirement $(VENV)/runtime.txt; } && wait $$!
	$(PIP) --quiet --no-build-isolation --editable .
	touch $(RUNTIME)

setup: $(STAMP)

$(STAMP): $(RUNTIME) $(wildcard native/load/*)
	SHARDED_INFER_BENCH=1 $(PIP) --quiet --editable ".[dev]"
	touch $(STAMP)

# The peers of the benchmarks, which some tests compare with too. Without their dependencies:
# TorchRec asks for the CUDA build of FBGEMM, which would replace the CPU build.
PEERS := $(VENV)/.peers-installed

bench-setup: $(PEERS)

$(PEERS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench"])')
	touch $(PEERS)

# Triton's server, unpacked from the package that brings it, and the NumPy that its Python backend needs. Nothing
# else of the package is used, so its other requirements, which do not fit ours, are left out.
TRITON := build/triton/nvidia_pytriton.libs

triton: $(TRITON)

$(TRITON): $(STAMP)
	rm -rf build/triton
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/triton \
	  $$($(BIN)/python -c 'from benchmarks.peers.triton_server import NUMPY, PACKAGE; print(NUMPY, PACKAGE)')
	touch $(TRITON)

# The sources of the wheels' libnghttp2.
NGHTTP2 := build/nghttp2

nghttp2: $(NGHTTP2)

$(NGHTTP2): release/nghttp2.txt $(STAMP)
	rm -rf $(NGHTTP2) build/nghttp2.download
	mkdir -p $(NGHTTP2)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary ngh2 \
	  --dest build/nghttp2.download --requirement release/nghttp2.txt
	tar --extract --file build/nghttp2.download/*.tar.gz --directory $(NGHTTP2) --strip-components 3 \
	  --wildcards '*/vendor/nghttp2/*'
	touch $(NGHTTP2)

# Our server beside Triton with TorchRec's model behind it; OPTIONS may name more options.
bench-peers: bench-setup triton
	$(BIN)/python -m benchmarks peers $(OPTIONS)

# Needs no more than what serves.
demo:
	@test -e $(RUNTIME) || echo "The demo takes two to three minutes: it installs torch and other packages into $(VENV) \
	(200 MB to download, 1 GB on disk) while it compiles on all cores, then trains, publishes, serves and scores a model."
	@$(MAKE) --no-print-directory $(RUNTIME)
	$(BIN)/sharded-infer demo

# A file's tests share their servers; the files that take longest come first (tests/conftest.py), not
# those of most tests. Torch's threads wait for each other without spinning: the cores have other work.
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
# On two cores. Tests beyond the fast lane wait more than they work: for processes, and for time to pass.
FAST := $(PYTEST) --numprocesses 2
FULL := $(PYTEST) --numprocesses 3

# The lanes (tests/lanes.py): what every commit needs,
test: setup
	$(FAST) -m "not rest and not slow"

# real servers,
test-rest: setup
	$(FULL) -m rest

# and what takes minutes; THIRD=0, 1 or 2 runs a part of it.
test-slow: setup
	$(FULL) -m slow $(if $(THIRD),--third $(THIRD))

# What failed when tests last ran, with nothing beside it.
test-again: setup
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-all: setup
	$(FULL)

# Long forms: minutes to hours.
soak: setup
	SHARDED_INFER_SOAK=1 $(FAST) -m soak

lint: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	git ls-files '*.cpp' '*.h' '*.inc' ':!*/third_party/*' | xargs $(BIN)/clang-format --dry-run --Werror
	git ls-files 'native/*.cpp' | xargs -P 2 -I{} $(BIN)/clang-tidy --quiet {} -- \
		-Inative -std=c++17 -Wall -Wextra -Wno-unknown-pragmas -Wno-missing-field-initializers

docs: setup
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_configuration.py
	$(BIN)/python docs/generate_metrics.py
	$(BIN)/python docs/generate_operators.py
	$(BIN)/python docs/generate_rest_api.py
	$(BIN)/python -m tests.compatibility.surface

# The documentation for browsers, in build/site: any static server shows it. A warning is an error.
site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

protos: setup
	$(BIN)/python -m grpc_tools.protoc --proto_path=protos --python_out=. --pyi_out=. \
	  --grpc_python_out=. protos/sharded_infer/v1/*.proto

# The ctypes modules of native/abi/, and what they are compared with in each library.
abi: setup
	$(BIN)/python -m native.abi.generate

dashboards: setup
	$(BIN)/python docker/generate_dashboards.py

# What the images install: the versions that are installed here.
requirements: setup
	$(BIN)/python docker/pin_requirements.py

# Wheels, source distribution, SBOM and checksums of the commit, in dist/.
release: setup nghttp2
	$(BIN)/python -m release

# On a machine with a CUDA card, torch and Triton: nothing of ours need be built or installed for it.
gpu-check:
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m tests.gpu_check

clean:
	rm -rf $(VENV) build dist *.egg-info
