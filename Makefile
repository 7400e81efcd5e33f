# A target that needs packages makes its own environment; its stamp file keeps the next run quick.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# processes of one test run share what Python makes of modules and pytest of assertions
export PYTHONDONTWRITEBYTECODE :=
FLOOR := .venv-floor
NEWEST := .venv-newest
# The parts of the suite that depend on the versions of triton and numpy.
SMALL := tests/printing/test_printers.py tests/plan/test_reference.py tests/gpu/test_hopper_compile.py generated/rope_swa_softcap

.DEFAULT_GOAL := help
.PHONY: help demo train docs site bench style quick test gpu-test floor-test newest-test clean

help:
	@echo "make demo         render a variant and hold it against its reference, forward and backward"
	@echo "make train        train a small decoder with rendered kernels and with sdpa: two minutes on a CPU"
	@echo "make quick        style, types, and the tests that are not slow: about two minutes on 2 cores"
	@echo "make test         all that needs no GPU: style, types, generated files up to date, tests; 15 minutes on 2 cores"
	@echo "make gpu-test     the generated suites on a GPU; needs torch, triton and pytest, installs nothing"
	@echo "make bench        measure the recorded set on a GPU, and write the pages of docs that tell of it; installs nothing"
	@echo "make docs         write docs/reference.md, docs/variants and README's commands again"
	@echo "make site         README, CONTRIBUTING and docs as pages for a browser: build/site/index.html"
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

# every variant shows its values, and its gradients if it has any; the rest of a suite runs for variants that differ in what it touches
CORE := causal_mha flash1 flash2_strided_k packed_rope packed_log_decay rope_swa_softcap alibi runtime_window gpt_oss_window \
	gpt2_dropout shaw pair_bias t5_decoder bigbird llama3_documents tree_decoding

# of packages, whose style is black's: a name that is set alone is read
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

# SETS="variants rope" measures these alone, ONLY="softcap alibi" of them these variants; JOBS=16 compiles first, in as many processes
bench:
	$(PYTHON) benchmarks/record.py $(SETS) $(JOBS:%=--jobs %) $(if $(ONLY),--only $(ONLY))

gpu-test:
	$(PYTHON) -m pytest generated tests/gpu/test_gpu.py tests/gpu/test_graphs.py

# torch asks for one version of triton; --no-deps puts another one beside it
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
