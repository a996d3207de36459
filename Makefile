# The whole project is driven from here; every target sets up what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed_docs

.PHONY: setup train check test test-long test-faults test-fuzz docs clean

setup: $(STAMP)

# torch is installed first and pinned, so that no other package pulls in another build of it.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

# Threads that wait by sleeping: by spinning they would take the cores from each other on a machine that is busy.
train: $(STAMP)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/monograph train deepseek_v3_debugmodel

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_house.py tests/test_files_house.py

# A worker that crashes ends the run: pytest-xdist would replace it and can then wait for it for ever.
# Bytecode is written even if the environment forbids it: every process of a test would compile the package again.
test: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
		--ignore tests/test_house.py --ignore tests/test_files_house.py -m "not long and not faults"

# The same promises on more models and meshes, and those of `make test` once more, in an order that no test may depend
# on: another one every day. `make test-long SEED=N` repeats one.
SEED ?= $(shell date +%Y%j)
test-long: $(STAMP) $(DOCS_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
		--ignore tests/test_house.py --ignore tests/test_files_house.py -m "not faults" --shuffle $(SEED)

# Kills, stops, broken disks, lost nodes, on real ranks and agents; one file after the other, because they measure times.
test-faults: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m faults

# Every fuzzer in turn, by count or until its time is up; a failure prints its seed and the command that repeats it.
FUZZ_SECONDS ?= 600
FUZZ_CONFIGS ?= 1000
FUZZ_MESHES ?= 300
# Without MKL_CBWR, the matmuls of one row in MKL depend on where their operands lie in memory.
FUZZ := OMP_NUM_THREADS=1 MKL_CBWR=COMPATIBLE $(BIN)/python -m
test-fuzz: $(STAMP)
	$(FUZZ) tests.models.hf_fuzz --count $(FUZZ_CONFIGS)
	$(FUZZ) tests.verify.fuzz --seconds $(FUZZ_SECONDS)
	$(FUZZ) tests.verify.simulate.mesh_fuzz --count $(FUZZ_MESHES)
	$(FUZZ) tests.verify.simulate.mesh_fuzz --agree --seconds $(FUZZ_SECONDS)
	$(FUZZ) tests.steps.graph_fuzz --seconds $(FUZZ_SECONDS)
	$(FUZZ) tests.execute.artifact_fuzz --count 2000 --seconds $(FUZZ_SECONDS)
	$(FUZZ) tests.system.file_fuzz --seconds $(FUZZ_SECONDS) --processes 2 --go-on

# The site, in build/site; the reference pages are made from the code. Nothing is loaded from the network.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict

# mkdocs is not needed for anything else, so that `make test` stays light.
$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $(DOCS_STAMP)

clean:
	rm -rf $(VENV) outputs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
