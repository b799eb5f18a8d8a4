# A fresh machine needs only `make demo` or `make test`. `make help` lists the rest.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3,$(if $(shell command -v $(name)),$(name))))
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TOOLS := $(VENV)/.installed-tools
SOURCES := pyproject.toml setup.py constraints.txt src/rlcluster/networks/kernels/build.py $(wildcard src/rlcluster/networks/kernels/native/*)
RLCLUSTER := $(BIN)/rlcluster
DEMO := runs/demo_$(shell date +%Y%m%d-%H%M%S)
SCALE := runs/scale_$(shell date +%Y%m%d-%H%M%S)
ARGS ?=
RUNS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types setup train train-timed train-parallel train-parallel-timed train-impala \
	train-impala-timed train-impala-parallel train-impala-parallel-timed train-a3c evaluate compare benchmark scale \
	tensorboard stress smoke docs \
	bench-peers bench-score bench-network bench-modes results clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1|/' | column -t -s '|'
	@echo "Extra flags: make train ARGS='--env starpilot --num-envs 64'"

$(INSTALLED): $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python scripts/install.py --constraint constraints.txt --editable .  # the CPU build of PyTorch
	@touch $@

# What developers need as well: linter, type checker, test runner, and what our results are tested against.
$(TOOLS): $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python scripts/install.py --constraint constraints.txt --editable '.[dev]'
	@touch $(INSTALLED) $@

setup: $(INSTALLED)  ## create .venv, install what users need, check the machine
	$(RLCLUSTER) check

demo: $(INSTALLED)  ## train PPO for two minutes on all cores, evaluate it on unseen levels
	$(RLCLUSTER) train --config configs/ppo_demo.yaml --mode parallel --output-dir $(DEMO) $(ARGS)
	$(RLCLUSTER) evaluate --checkpoint $(DEMO) --num-episodes 100 --levels test --json $(DEMO)/evaluation.json
	@echo "Results: $(DEMO)/benchmark_metrics.json, evaluation.json, logs/ and checkpoints/"
	@echo "Next:    $(RLCLUSTER) plot $(DEMO)                                   (plot its curves)"
	@echo "         make tensorboard                                             (the curves, live)"
	@echo "         $(RLCLUSTER) evaluate --checkpoint $(DEMO) --video play.mp4   (watch it play)"
	@echo "         $(RLCLUSTER) train --resume --output-dir $(DEMO) --duration 10m   (resume training)"

train: $(INSTALLED)  ## sequential PPO
	$(RLCLUSTER) train ppo --config configs/ppo_sequential.yaml $(ARGS)

train-timed: $(INSTALLED)  ## sequential PPO for one hour
	$(RLCLUSTER) train ppo --config configs/ppo_sequential.yaml --duration 1.0 $(ARGS)

train-parallel: $(INSTALLED)  ## parallel PPO, one rank per core
	$(RLCLUSTER) train ppo --config configs/ppo_parallel.yaml $(ARGS)

train-parallel-timed: $(INSTALLED)  ## parallel PPO for one hour
	$(RLCLUSTER) train ppo --config configs/ppo_parallel.yaml --duration 1.0 $(ARGS)

train-impala: $(INSTALLED)  ## sequential IMPALA
	$(RLCLUSTER) train impala --config configs/impala_sequential.yaml $(ARGS)

train-impala-timed: $(INSTALLED)  ## sequential IMPALA for half an hour
	$(RLCLUSTER) train impala --config configs/impala_sequential.yaml --duration 0.5 $(ARGS)

train-impala-parallel: $(INSTALLED)  ## parallel IMPALA: actors and a learner
	$(RLCLUSTER) train impala --config configs/impala_parallel.yaml $(ARGS)

train-impala-parallel-timed: $(INSTALLED)  ## parallel IMPALA for half an hour
	$(RLCLUSTER) train impala --config configs/impala_parallel.yaml --duration 0.5 $(ARGS)

train-a3c: $(INSTALLED)  ## A3C, one worker per core
	$(RLCLUSTER) train a3c --config configs/a3c_parallel.yaml $(ARGS)

evaluate: $(INSTALLED)  ## evaluate the latest run
	$(RLCLUSTER) evaluate $(ARGS)

compare: $(INSTALLED)  ## compare the latest runs of each mode, or RUNS='a b'
	$(RLCLUSTER) compare $(RUNS) --output runs/comparison $(ARGS)

benchmark: $(INSTALLED)  ## all algorithms and modes in a quarter of an hour, with a report
	$(RLCLUSTER) suite configs/suite_quick.yaml $(ARGS)

scale: $(INSTALLED)  ## how training speed scales with the number of ranks
	$(RLCLUSTER) scale ppo --world-sizes 1,2,4 --env coinrun --num-envs 8 --n-steps 32 --n-epochs 1 --n-minibatches 2 \
		--total-updates 20 --warmup-iters 4 --output-dir $(SCALE) $(ARGS)

tensorboard: $(INSTALLED)  ## the curves of all runs, on http://localhost:6006
	$(BIN)/tensorboard --logdir runs

test: $(TOOLS) lint types  ## lint, types and the full test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

check: $(TOOLS) lint types  ## lint, format, types and the fast tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TOOLS)
	$(BIN)/mypy

smoke:  ## install the wheel into an empty environment (PYTHON=python3.12 too), train with it for ten seconds
	python3 scripts/smoke.py $(PYTHON)

docs: $(TOOLS)  ## the documentation as a searchable site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python scripts/docs.py
	@echo "To read and search it, open build/site/index.html in a browser; it needs no server."

bench-peers: $(INSTALLED)  ## our speed versus Stable-Baselines3's and CleanRL's, in one run
	$(BIN)/python benchmarks/peers.py $(ARGS)

bench-score: $(INSTALLED)  ## minutes to a reward of 8.0 on CoinRun, versus CleanRL
	$(BIN)/python benchmarks/time_to_score.py $(ARGS)

bench-network: $(INSTALLED)  ## samples per second of each network
	$(BIN)/python benchmarks/network.py $(ARGS)

bench-modes: $(INSTALLED)  ## parallel versus sequential training, alternating
	$(BIN)/python benchmarks/modes.py $(ARGS)

results: $(INSTALLED)  ## the published results: the picture docs/images/learning.png, and the tables as Markdown
	$(BIN)/python scripts/results.py $(ARGS)

stress: $(INSTALLED)  ## kill, stop and starve runs of every algorithm and mode at random, for two minutes
	$(BIN)/python benchmarks/stress.py $(ARGS)

clean:  ## remove virtual environments and caches; keep runs/
	rm -rf src/rlcluster/networks/kernels/*.so $(VENV) .venv-peers .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist test-artefacts src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
