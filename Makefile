# The project's commands; `make` lists them.

PYTHON3 ?= python3
PYTHON := .venv/bin/python
SETUP := .venv/.setup
DEV := .venv/.setup-dev
RELEASE := .venv/.setup-release
SERVER := .venv/.setup-server
OUT ?= out.wav

# Values go to the shell as environment variables and are never pasted into a command. $(value …) keeps make from
# expanding a dollar sign in them, so quotes, dollars, spaces and any script survive.
override TEXT := $(value TEXT)
override OUT := $(value OUT)
override VOICE := $(value VOICE)
override PROMPT_TEXT := $(value PROMPT_TEXT)
override MODEL := $(value MODEL)
override REFERENCE := $(value REFERENCE)
# Some shells have a HOST of their own: only one that is typed after make is meant.
override HOST := $(if $(filter command,$(origin HOST)),$(value HOST))
override PORT := $(value PORT)
override TORCH_INDEX_URL := $(value TORCH_INDEX_URL)
export TEXT OUT VOICE PROMPT_TEXT MODEL REFERENCE HOST PORT TORCH_INDEX_URL

.DEFAULT_GOAL := help
.PHONY: help setup speak serve test test-slow check docs dist parity clients soak clean

help: ## list the commands
	@awk -F ': .*## ' '/^[a-z-]+: .*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(SETUP) ## install into .venv; TORCH_INDEX_URL=... takes torch from another index

speak: $(SETUP) ## say TEXT="..."; optional OUT=out.wav VOICE= PROMPT_TEXT= MODEL=
	@[ -n "$$TEXT" ] || { echo 'usage: make speak TEXT="Hello." [OUT=out.wav] [VOICE=name or recording] [PROMPT_TEXT="its words"] [MODEL=name or folder]' >&2; exit 2; }
	@set --; \
	[ -z "$$VOICE" ] || set -- "$$@" --voice "$$VOICE"; \
	[ -z "$$PROMPT_TEXT" ] || set -- "$$@" --prompt-text "$$PROMPT_TEXT"; \
	[ -z "$$MODEL" ] || set -- "$$@" --model "$$MODEL"; \
	exec $(PYTHON) -m vivavoce speak --out "$$OUT" "$$@" -- "$$TEXT"

serve: $(SERVER) ## speak for programs and people at http://127.0.0.1:8880; optional PORT= MODEL= HOST=
	@set --; \
	[ -z "$$HOST" ] || set -- "$$@" --host "$$HOST"; \
	[ -z "$$PORT" ] || set -- "$$@" --port "$$PORT"; \
	[ -z "$$MODEL" ] || set -- "$$@" --model "$$MODEL"; \
	exec $(PYTHON) -m vivavoce serve "$$@"

# A file's tests stay together: what they share is made once.
PYTEST := $(PYTHON) -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

test: $(DEV) ## run the tests, but for those of the next line
	$(PYTEST) -m 'not process and not slow and not long'

# The server for the tests of the Triton repository; where it cannot be had, they are skipped and say why.
test-slow: $(DEV) ## run those: kernels in Triton's interpreter, listening, satellites such as training, and all that start engines, servers, a browser, Triton
	-@$(PYTHON) -m vivavoce triton env --dir .venv/triton
	$(PYTEST) -m '(process or slow) and not long'

check: $(DEV) ## check format, style and types
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

docs: $(DEV) ## build the pages of docs/ as a site: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

# The wheel is made of the sdist, then tried where nothing else is.
EXTRAS := redis,server,telemetry,triton-client,wyoming
dist: $(RELEASE) ## build sdist and wheel, have the wheel speak in an empty environment, list what it is installed with: dist/
	rm -rf dist build/empty
	$(PYTHON) -m build --outdir dist
	$(PYTHON) -m twine check --strict dist/*
	$(PYTHON3) -m venv build/empty
	@[ -z "$$TORCH_INDEX_URL" ] || build/empty/bin/python -I -m pip install --no-deps --index-url "$$TORCH_INDEX_URL" -c constraints.txt torch
	build/empty/bin/python -I -m pip install --quiet -c constraints.txt "$$(echo dist/*.whl)[$(EXTRAS)]"
	cd build && empty/bin/vivavoce doctor && empty/bin/vivavoce speak "Hello world." --out empty/hello.wav
	$(PYTHON) -m cyclonedx_py environment --output-file dist/sbom.cdx.json build/empty/bin/python

parity: $(DEV) ## compare with recorded tensors of the original: REFERENCE=folder
	@[ -n "$$REFERENCE" ] || { echo 'usage: make parity REFERENCE=folder of recorded tensors' >&2; exit 2; }
	@$(PYTHON) -m tests.parity "$$REFERENCE"

clients: $(DEV) ## run other people's clients against a server, each from an environment of its own in .venv/clients
	@$(PYTHON) -m tests.clients.real

# oneDNN keeps 1024 compiled shapes: a cache that fills for hours would look like a leak.
soak: $(DEV) ## ask engines for 14,000 things, a server for five minutes and a Triton server for 2,000, replace an engine, attack a server, and see that nothing is left
	@ONEDNN_PRIMITIVE_CACHE_CAPACITY=64 $(PYTHON) -m tests.soak
	@ONEDNN_PRIMITIVE_CACHE_CAPACITY=64 $(PYTHON) -m tests.soak --generation v3 --requests 4000
	@$(PYTHON) -m tests.soak.http_crowd
	@$(PYTHON) -m tests.soak.upgrade
	@$(PYTHON) -m tests.soak.served
	@$(PYTHON) -m tests.soak.fuzz
	@$(PYTHON) -m tests.soak.attacks
	$(PYTHON) -m pytest -m long

clean: ## remove .venv and everything else that these commands made
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp file stands for a finished installation; it is outdated when one of the files before it is newer.
# torch comes without its dependencies from an index of its own, which may lack the pinned ones.
$(SETUP): pyproject.toml constraints.txt
	@command -v $(PYTHON3) >/dev/null || { echo 'error: $(PYTHON3) is not installed; install Python 3.10 or newer, or name one: make PYTHON3=python3.12' >&2; exit 1; }
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "error: $$($(PYTHON3) -V) is too old; install Python 3.10 or newer, or name one: make PYTHON3=python3.12" >&2; exit 1; }
	@$(PYTHON3) -c 'import ensurepip, venv' 2>/dev/null || { echo 'error: $(PYTHON3) lacks the venv module; install the package python3-venv (apt-get install python3-venv)' >&2; exit 1; }
	@[ -n "$$TORCH_INDEX_URL" ] || [ "$$(uname)" != Linux ] || command -v nvidia-smi >/dev/null || echo 'note: no NVIDIA GPU was found; torch without CUDA is 2 GB smaller: Ctrl-C, then the same with TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu' >&2
	@[ -x $(PYTHON) ] || $(PYTHON3) -m venv .venv
	@echo 'installing into .venv: torch is the largest part, 0.2 GB for CPUs and 3 GB with CUDA; about 60 packages in all'
	@[ -z "$$TORCH_INDEX_URL" ] || $(PYTHON) -m pip install --quiet --no-deps --index-url "$$TORCH_INDEX_URL" -c constraints.txt torch
	@$(PYTHON) -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(SERVER): $(SETUP)
	@echo 'installing what .[server] needs'
	@$(PYTHON) -m pip install --quiet -c constraints.txt -e '.[server]'
	@touch $@

$(RELEASE): $(SETUP)
	@echo 'installing what .[release] needs'
	@$(PYTHON) -m pip install --quiet -c constraints.txt -e '.[release]'
	@touch $@

$(DEV): $(SETUP)
	@echo 'installing what .[dev] needs'
	@$(PYTHON) -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@
