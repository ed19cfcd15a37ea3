# Set-up is part of every target: a fresh clone with Python 3.11 and nothing else runs `make play` at once.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
UV := $(BIN)/uv
TURNS ?= 60
SEED ?= 7
SECONDS ?= 600
EXTRAS := dev
EXTRAS_TO_PLAY := mcp,yaml
EXTRAS_OF_DOCS := docs,mcp

# Of the tests, those that count for coverage, which slows them down; most others start commands. The slow ones
# among them, and those by Hypothesis, do not count: what is covered is no chance.
COVERED := tests/unit tests/properties tests/integration/episodes tests/integration/transports/mcp/test_http_wire.py \
  tests/integration/test_tool_client.py tests/integration/test_turn_handle.py tests/integration/test_oauth.py \
  tests/integration/test_parking.py tests/integration/test_parked_conversations.py \
  tests/integration/test_doctor_llm.py tests/integration/test_init.py tests/integration/test_fleet.py \
  tests/integration/sandbox tests/integration/test_export.py tests/integration/test_fork.py \
  tests/integration/test_fleet_fork.py tests/integration/test_fleet_scoring.py tests/integration/test_trace_to_test.py \
  tests/integration/test_long_results.py tests/integration/test_model_chain.py tests/integration/test_when_called.py \
  tests/integration/test_prompt_cache.py tests/integration/test_tool_search.py tests/integration/test_batches.py \
  tests/integration/test_fleet_batches.py tests/integration/test_add.py tests/integration/test_served_skills.py

# Many tests wait for a process, so more workers than cores keep the cores busy. Each one imports and collects all
# tests first: six take an eighth more CPU than four, and end no sooner on two cores.
# Modules that share something slow to make stay in one worker (tests/conftest.py).
WORKERS ?= 4
TRACED := $(if $(COVERAGE),--cov --cov-report= --covered "$(COVERED)")
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) $(if $(SHUFFLE),--shuffle=$(SHUFFLE)) $(TRACED) $(OPTIONS)

# A tenth of the examples of Hypothesis, but 100 for each property that docs/requirements.md names. CI tries all.
QUICK := --hypothesis-profile=quick

# Without bytecode on disk, every worker and every program that a test starts compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=

# What venv leaves behind when it fails would pass for an environment at the next try.
NO_VENV = "$(PYTHON)" -c 'import os, sys; v = "python%d.%d" % sys.version_info[:2]; \
  install = f"On Debian and Ubuntu: apt-get install {v}-venv"; \
  remedy = "Move this folder to a path without a colon" if ":" in os.getcwd() else install; \
  print(f"No environment could be made with {v}. {remedy}. Then run make again.")'

.PHONY: play test test-all check docs attack bench bench-peers compat clean
.DEFAULT_GOAL := play

$(VENV)/bin/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "grue needs Python 3.11 or later; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); $(NO_VENV); exit 1; }

# install EXTRAS: install grue with uv, which takes a fifth of pip's time. uv does not read pip's settings, so it is told
# which index pip has. Where uv cannot be installed, or cannot install, pip does it.
define install
	@[ -x "$(UV)" ] || $(PIP) install --quiet --constraint constraints.txt uv >/dev/null 2>&1 || true
	@index=$${PIP_INDEX_URL:-$$($(PIP) config get global.index-url 2>/dev/null)}; \
	set -- --quiet --constraint constraints.txt --editable '.[$(1)]'; \
	"$(UV)" pip install --python $(BIN)/python $${index:+--default-index "$$index"} "$$@" 2>/dev/null \
	  || $(PIP) install "$$@"
endef

# One stamp for what play needs, one for what tests and checks need.
$(VENV)/.play: pyproject.toml constraints.txt src/grue/runtime/version.py | $(VENV)/bin/python
	@echo "Installing grue and what it needs into $(VENV), once. This may take a minute."
	$(call install,$(EXTRAS_TO_PLAY))
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt src/grue/runtime/version.py | $(VENV)/bin/python
	$(call install,$(EXTRAS_OF_DOCS))
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt src/grue/runtime/version.py | $(VENV)/bin/python
	@echo "Installing what the tests need into $(VENV), once. This may take a minute."
	$(call install,$(EXTRAS))
	@touch $@ $(VENV)/.play

play: $(VENV)/.play ## play the embedded world offline, with the bundled reasoning server
	$(BIN)/grue play --offline --seed $(SEED) --turns $(TURNS)

test: $(VENV)/.dev ## run the tests but for the slow ones; TEST=path for a part, slow ones included; COVERAGE=1 holds the whole to the floors of coverage; SHUFFLE=7 for another order; OPTIONS=... of pytest
	$(PYTEST) $(if $(TEST),$(TEST),$(QUICK) -m "not slow")
ifdef COVERAGE
	$(BIN)/coverage report --skip-covered --fail-under=90
	$(BIN)/coverage report --include='src/grue/protocol/*' --show-missing --fail-under=100
endif

test-all: $(VENV)/.dev ## run every test
	$(PYTEST)

check: $(VENV)/.dev ## what CI checks beside the tests: lint, types, import rules, sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=benchmarks:benchmarks/peers:tests/support $(BIN)/mypy --follow-imports=silent benchmarks/*.py tools/*.py
	MYPYPATH=tests/support:tools/attack $(BIN)/mypy --follow-imports=silent tools/attack/*.py
	$(BIN)/lint-imports
	$(BIN)/python tools/check_sizes.py

docs: $(VENV)/.docs ## build the documentation into build/site, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python tools/check_site.py build/site

attack: $(VENV)/.dev ## attack every input from outside with seeded cases, 10 minutes; SECONDS=60 SEED=3 for others
	$(BIN)/python tools/attack --seconds $(SECONDS) --seed $(SEED)

bench: $(VENV)/.dev ## measure, side by side in one run
	$(BIN)/python benchmarks/run.py

bench-peers: $(VENV)/.dev ## the same turn in other frameworks, each in an environment of its own
	$(BIN)/python benchmarks/peers/run.py --install

compat: $(VENV)/.dev ## try MCP servers and endpoints of others, and write docs/compatibility.md; PARTS='--only time' for some
	$(BIN)/python tools/compat $(PARTS)

clean:
	rm -rf $(VENV) benchmarks/peers/.venvs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage* dist build
