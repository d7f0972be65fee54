# make demo         a job that hangs, from launch to verdict
# make test         everything that CI runs: lint, types, tests
# make lint         lint and types alone
# make frozen       all verdicts that a change of the house must not change, byte by byte
# make scoreboard   accuracy on simulated and recorded jobs, beside torchfrtrace
# make sweep        every recorded dump cut, gone and of an older attempt, with and without logs
# make bench        time and memory of a diagnosis, beside torchfrtrace and a bare unpickler
# make slow-inputs  inputs of 2 MB meant to take minutes or gigabytes, with every verb: what is over 5 s or 500 MB
# make wheel        sdist and wheels for x86_64, aarch64 and all else in dist/, audited and tried; says what is missing
# make docs         the docs as a site in dist/site, and man pages in dist/man
# make site         VERSION=0.2.0: that version's docs onto the branch gh-pages, beside the others, with a switcher
# make release      VERSION=0.2.0: checks, changelog, version, docs, wheels, notes, bill of materials, commit and tag
# make images       the container images by buildah, each tried; says what is missing
# make corpus       the recorded jobs with their truths as an archive in dist/, and the tables of docs/benchmark.md and README
# make fuzz         the C decoder under libFuzzer and the sanitizers for SECONDS=600; needs clang
# make clean        forget the virtual environment and all caches
#
# The first run makes .venv with plain venv and pip (minutes); later ones start at once. Other settings:
#   PYTHON=python3.12   which interpreter .venv is made from
#   TORCH=…             what pip installs for the tests that start real jobs; empty for none

PYTHON ?= python3
# The CPU build by its exact name: a bare `torch` would bring gigabytes of CUDA libraries.
TORCH ?= torch==2.13.0+cpu

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/ready
READY_TORCH := $(VENV)/ready-torch
PYTEST := $(BIN)/python -m pytest
JOBS := tests/recorder/jobs
RAY = $(filter-out $(JOBS)/%,$(shell grep -rlF 'pytest.mark.ray' tests --include='test_*.py'))

# The tests start thousands of Pythons: each may keep what it compiled, whatever the image says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-rest test-jobs lint frozen scoreboard sweep slow-inputs wheel docs site release images corpus fuzz bench test-deps clean
.DELETE_ON_ERROR:

demo: $(READY_TORCH)
	@if $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then \
		$(BIN)/hangscope demo; \
	else \
		echo "There is no torch here to start a real job with, so a recorded one is replayed: who hung it?"; \
		echo "$$ hangscope diagnose tests/cases/mesh_absent"; \
		$(BIN)/hangscope diagnose tests/cases/mesh_absent || test $$? -eq 1; \
	fi

# What needs nothing of each other goes on at once: lint and types, torch, packages of the system. Then the tests, in two
# parts, as those that measure time see real jobs beside them. Both run where one fails.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target lint $(READY_TORCH) test-deps
	@$(MAKE) --no-print-directory --keep-going test-rest test-jobs

# Most of them wait for processes now and then: one more than there are cores keeps these busy.
test-rest: $(READY_TORCH)
	@$(call pytest,--ignore=$(JOBS) -m 'not ray',--numprocesses=$$(($$(nproc) + 1)) --dist=worksteal)

# Real jobs wait most of the time: more of them at once. Tests that share jobs stay in one process, which starts them
# once; so do all that start a Ray cluster, wherever they are, and these begin first.
test-jobs: $(READY_TORCH)
	@$(call pytest,-m 'jobs or ray' $(JOBS) $(RAY),--numprocesses=$$(($$(nproc) + 2)) --dist=loadgroup)

# $(call pytest,WHICH,HOW): runs tests, and those that failed once more, alone. Real jobs and clocks see what runs beside
# them; a defect fails both times, and what failed once is there to be read.
define pytest
echo "pytest $(1)"; $(PYTEST) --durations=10 $(1) $(2) || $(BIN)/python tests/run_failed_again.py
endef

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

frozen: $(READY)
	$(BIN)/python tests/frozen.py

scoreboard: $(READY_TORCH)
	$(BIN)/python tests/scoreboard.py

sweep: $(READY)
	$(BIN)/python tests/sweep.py

slow-inputs: $(READY)
	$(BIN)/python tests/hostile/slow_inputs.py

# The wheels are built from the sdist, so a file that is missing there is missed here. WHEEL=--strict: nothing is left out.
wheel: $(READY)
	$(PIP) install -qq --editable '.[release]'
	$(BIN)/python release/wheels.py $(WHEEL)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir dist/site
	$(BIN)/python release/man_pages.py --out dist/man

# VERSION=dev where it is no release's. Into the branch gh-pages of this clone; the workflow pushes it.
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python release/publish_site.py $(or $(VERSION),dev)

release: $(READY)
	$(PIP) install -qq --editable '.[docs,release]'
	$(BIN)/python release/make_release.py $(VERSION)

images: $(READY)
	$(BIN)/python release/images.py $(IMAGES)

# NVRx asks for another mcp than hangscope, and for a newer glibc than many have. What is asked here is plain Python
# without dependencies: it goes into a folder of its own, whatever machine and Python its wheel is tagged for.
NVRX := nvidia-resiliency-ext==0.7.0
corpus: $(READY_TORCH)
	@test -d build/nvrx || $(PIP) install -qq --no-deps --target build/nvrx --only-binary=:all: \
		--platform manylinux_2_39_x86_64 --python-version 3.12 $(NVRX) || \
		echo "note: $(NVRX) is not to be had here: it gets no row"
	$(BIN)/python benchmarks/corpus/pack_corpus.py --table

SECONDS ?= 600
fuzz: $(READY)
	$(BIN)/python tests/hostile/fuzz_decoder.py --seconds $(SECONDS)

bench: $(READY_TORCH)
	$(BIN)/python benchmarks/bench.py

$(READY): pyproject.toml src/hangscope/__about__.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "error: hangscope needs Python 3.10 or later; $(PYTHON) is older"; \
		  echo "hint: make PYTHON=/path/to/python3.12 …"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "error: $(PYTHON) cannot make a virtual environment"; \
		  echo "hint: on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PIP) install -qq --editable '.[dev]'
	@touch $@

# Without that build (another Python, no CPU build in the configured indexes) the tests that need torch skip and say so.
$(READY_TORCH): $(READY)
	@if [ -n "$(TORCH)" ]; then \
		echo "$(PIP) install -qq $(TORCH)"; \
		$(PIP) install -qq '$(TORCH)' || \
		{ echo "note: $(TORCH) is not to be had here: tests that start real jobs will skip"; \
		  echo "hint: make TORCH=torch==2.13.0 … takes the build with CUDA, some gigabytes"; }; fi
	@touch $@

# `collect` is tested against a real sshd, the page in a real Chromium, the server on a real Postgres, jobs of
# many nodes on a real Slurm, programs without torch under a real mpirun.
test-deps:
	@$(call apt,/usr/sbin/sshd,openssh-server,tests that need sshd)
	@$(call apt,/usr/bin/chromium,chromium,tests that open the page in a browser)
	@$(call apt,$(firstword $(wildcard /usr/lib/postgresql/*/bin/initdb) /usr/lib/postgresql/15/bin/initdb),postgresql,tests that need Postgres)
	@$(call apt,/usr/sbin/slurmctld,slurmctld slurmd slurm-client munge iproute2,tests that need Slurm)
	@$(call apt,/usr/include/slurm/spank.h,libslurm-dev,the test of the SPANK plugin)
	@$(call apt,/usr/bin/mpirun,openmpi-bin,tests that need mpirun)

# $(call apt,FILE,PACKAGE,WHAT): has PACKAGE installed where FILE is not there, or says that WHAT will skip.
define apt
if [ -x $(1) ]; then :; \
elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	echo "apt-get install $(2)"; \
	{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends $(2); } >/dev/null 2>&1 || \
		echo "note: $(2) could not be installed: $(3) will skip"; \
else echo "note: no $(notdir $(1)) here: $(3) will skip"; fi
endef

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
