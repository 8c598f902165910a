# Every target does its own set-up: a Python 3.11+ with venv and make are enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(BIN)/python -m
# Many tests wait for processes that they started: three test processes for two processors.
UNIT   := -n $(shell expr 3 \* $$(nproc) / 2) --dist loadgroup
# Clusters mostly wait: test processes, each with one of its own.
LIVE   := -n 4 --dist loadgroup

.PHONY: all demo test unit live live-unstable soak lint bench demo-slurm docs dist clean

all: lint test

$(VENV)/demo.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is no Python 3.11 or later. Write for example: make $(or $(MAKECMDGOALS),all) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[simulator]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(VENV)/demo.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev --editable '.[simulator,planner,qiskit,ibm,ibm-system,braket,qrmi]'
	@touch $@

demo: $(VENV)/demo.stamp  ## the main job on this machine, without root, Docker or a cluster
	@$(BIN)/qtandem demo

test: unit  ## unit, contract and the live suites that are mandatory
	$(RUN) pytest tests/live -m 'not soak' $(LIVE) $(PYTEST_ARGS)

unit: $(VENV)/dev.stamp
	$(RUN) pytest tests/unit tests/contract $(UNIT) $(PYTEST_ARGS)

live: $(VENV)/dev.stamp  ## everything that can run live here
	QTANDEM_LIVE=all $(RUN) pytest tests/live -m 'not soak' $(LIVE) $(PYTEST_ARGS)

live-unstable: $(VENV)/dev.stamp  ## the Slurm suite on the Slurm of Debian's unstable release
	image=$$(QTANDEM_DEBIAN=sid containers/build slurm) && QTANDEM_SLURM_IMAGE=$$image \
		$(RUN) pytest tests/live -m 'not soak' -k slurm $(LIVE) $(PYTEST_ARGS)

soak: $(VENV)/dev.stamp  ## chaos for an hour (SOAK_SECONDS to change)
	$(RUN) pytest tests/live -m soak --timeout 0 $(PYTEST_ARGS)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/vermin --quiet --no-tips --violations --target=3.6- slurm/hooks gridengine/hooks pbs/hooks lsf/hooks core/hookparts

bench: $(VENV)/dev.stamp  ## writes docs/benchmarks.md and bench-results.json
	$(RUN) tests.bench

demo-slurm: $(VENV)/dev.stamp  ## the main job on a Slurm cluster in containers
	$(RUN) tests.live.demo_slurm

docs: $(VENV)/dev.stamp  ## the generated reference pages
	$(BIN)/python docs/generate.py

dist: $(VENV)/dev.stamp  ## sdist, and the wheel built from it
	$(RUN) build

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
