# Targets that need packages create their own environment; its stamp file lets the next run skip that.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# empty, so that bytecode is written: processes of a test run share compiled modules and rewritten assertions
export PYTHONDONTWRITEBYTECODE :=
FLOOR := .venv-floor
NEWEST := .venv-newest
# The parts of the suite that depend on the versions of triton and numpy.
SMALL := tests/printing/test_printers.py tests/plan/test_reference.py tests/gpu/test_hopper_compile.py generated/rope_swa_softcap

.DEFAULT_GOAL := help
.PHONY: help demo train docs site bench style quick test gpu-test floor-test newest-test clean

help:
	@echo "make demo         render a variant and compare it with its reference, forward and backward"
	@echo "make train        train a small decoder with rendered kernels and with sdpa: two minutes on a CPU"
	@echo "make quick        style, types, and the tests that are not slow: about two minutes on 2 cores"
	@echo "make test         all that needs no GPU: style, types, generated files up to date, tests; 15 minutes on 2 cores"
	@echo "make gpu-test     the generated suites on a GPU; needs torch, triton and pytest, installs nothing"
	@echo "make bench        measure the recorded sets on a GPU and write their pages in docs; installs nothing"
	@echo "make docs         regenerate docs/reference.md, docs/variants and README's commands"
	@echo "make site         build README, CONTRIBUTING and docs as a website: build/site/index.html"
	@echo "make floor-test   part of the tests with the oldest triton; make newest-test: with the newest"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

train: $(STAMP)
	$(BIN)/python examples/train.py

docs: $(STAMP)
	$(BIN)/python -m attnforge.cli.manual

site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q --strict -f website/mkdocs.yml
	@echo "open build/site/index.html"

# test_values, with gradients if there are any, runs for every variant; the rest of a suite runs only for these, which
# differ in what it covers
CORE := causal_mha flash1 flash2_strided_k packed_rope packed_log_decay rope_swa_softcap alibi runtime_window gpt_oss_window \
	gpt2_dropout shaw pair_bias t5_decoder bigbird llama3_documents tree_decoding

# in packages, which black formats, ruff only looks for errors and for names that are never read
style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --isolated --select F,B007 --exclude 'test_*' generated
	$(BIN)/mypy

quick: style
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests -m 'not slow'

test: style
	$(BIN)/attnforge render specs/*.yaml --check
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal generated -k 'test_values $(CORE:%=or test_%)'

# SETS="variants rope": only these sets; ONLY="softcap alibi": only these variants
# JOBS=16: compile first, in 16 processes
bench:
	$(PYTHON) benchmarks/record.py $(SETS) $(JOBS:%=--jobs %) $(if $(ONLY),--only $(ONLY))

gpu-test:
	$(PYTHON) -m pytest generated tests/gpu/test_gpu.py tests/gpu/test_graphs.py

# torch requires one version of triton; --no-deps installs another one all the same
$(FLOOR)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FLOOR)
	$(FLOOR)/bin/python -m pip install -q -c constraints.txt -e '.[dev]'
	$(FLOOR)/bin/python -m pip install -q --no-deps triton==3.6.0 'numpy<2.4'
	touch $@

$(NEWEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install -q -c constraints.txt -e '.[dev]'
	$(NEWEST)/bin/python -m pip install -q --no-deps triton==3.9.0
	touch $@

floor-test: $(FLOOR)/.installed
	$(FLOOR)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(SMALL)

newest-test: $(NEWEST)/.installed
	$(NEWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(SMALL)

clean:
	rm -rf $(VENV) $(FLOOR) $(NEWEST) build dist
