# Every target does its own set-up: a virtual environment, the Java check, the JVM jars. The second run starts at once.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-long test-cluster test-sparks page lint docs bench fuzz mutants attack chaos records soak up down clean java jars pins audit chart dist dist-full sbom pictures

VENV := .venv
PY := $(VENV)/bin/python
ACKSTREAM := $(VENV)/bin/ackstream

# The first Python that is new enough; `make PYTHON=/path/to/python3` names another
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.10
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 10))
PYTHON ?= $(shell for name in $(CANDIDATES); do "$$name" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$name" && break; done)

# Processes of `make test`, each with a broker and a Spark of its own: one for each 4 GB of memory, two to four
WORKERS ?= $(shell awk '/^MemTotal/ { n = int($$2 / 4e6); print (n < 2 ? 2 : n > 4 ? 4 : n) }' /proc/meminfo 2> /dev/null || echo 3)

# Without compiled files each worker of the tests, and each program that they start, would compile all modules again
unexport PYTHONDONTWRITEBYTECODE

# A virtual environment breaks if its directory is moved or its Python is removed
$(shell test "$$(cat $(VENV)/.made 2>/dev/null)" = "$(CURDIR)" && test -x $(PY) || rm -f $(VENV)/.made)

help:  ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: jars  ## Kafka, the jobs and a fleet of simulated devices: 2,000 commands, answered or not, in 2 minutes
	@$(ACKSTREAM) demo

test: jars test-fast  ## All tests except long ones, clusters and other Sparks, with a real broker and real Spark: half an hour
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "integration and not long and not cluster and not sparks"

test-fast: $(VENV)/.installed-amqp  ## The tests that need neither a broker nor Spark: a minute
	@$(PY) -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not integration and not long and not cluster and not sparks"

test-long: jars $(VENV)/.installed-amqp  ## kill -9 of each job alone, Ctrl-C, a broker that dies; then the pure tests with 10,000 random examples
	@$(PY) -m pytest -m long
	@$(PY) -m pytest -n auto -m "not integration and not long and not cluster and not sparks" --hypothesis-profile=nightly

test-cluster: jars $(VENV)/.installed $(VENV)/.store  ## A standalone Spark cluster with its lake in an object store, whose workers and executors are killed
	@$(PY) -m pytest -m cluster

SPARKS := spark-4.0 spark-4.1

test-sparks: jars $(VENV)/.installed $(SPARKS:%=$(VENV)/.%)  ## The formats of DataFrames on other versions of Spark: 2 minutes
	@$(PY) -m pytest -m sparks

page: $(VENV)/.installed $(VENV)/.axe  ## The live page in Chromium, with axe, by keyboard, at 2,000 updates/s: a minute; needs chromium and npm
	@ACKSTREAM_TEST_AXE=$(VENV)/axe/node_modules/axe-core/axe.min.js $(PY) -m pytest tests/gateway/page/in_browser.py

lint: $(VENV)/.installed  ## Style, format and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

docs: $(VENV)/.installed-docs  ## Build the documentation as a site, in the directory site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "Open site/index.html"

pictures: jars $(VENV)/.installed  ## Redraw the pictures of the guides, each from a run of the system: 6 minutes
	@$(PY) -m docs.pictures.scenarios

audit: $(VENV)/.installed-audit  ## Check the pinned packages and jars for known vulnerabilities; fails if there is one
	@$(PY) requirements/audit.py

pins: java $(VENV)/.installed-audit  ## Rewrite requirements/*.txt and jars.sha256, which pin an installation
	@$(PY) requirements/pins.py

dist: $(VENV)/.installed-release  ## Build wheel and sdist in dist, check them, and run the SDK in an empty environment: half a minute
	@rm -rf dist
	@$(PY) -m build --no-isolation --outdir dist
	@$(PY) -m twine check --strict dist/*
	@$(PY) requirements/dist.py $(PYTHONS)

dist-full: dist  ## As dist, with all extras and the demo, for Python 3.10 and 3.13
	@$(PY) requirements/dist.py --full $(or $(PYTHONS),python3.10 python3.13)

sbom: $(VENV)/.installed-audit  ## Write the bill of materials, packages and jars, as CycloneDX in build/release
	@$(PY) requirements/sbom.py build/release/ackstream.cdx.json

chart: $(VENV)/.installed  ## Lint, render and package the Helm chart; builds helm with Go if it is missing
	@$(PY) deploy/helm/render.py build/release

bench: jars $(VENV)/.installed-bench  ## Run all benchmarks, two hours; writes benchmarks/results
	@$(PY) -m benchmarks

fuzz: $(VENV)/.installed  ## A million malformed records through all operators, 100,000 connections to the gateway: 10 minutes
	@$(PY) -m benchmarks.fuzz

mutants: $(VENV)/.installed  ## Mutate the rules, and list the mutants that no test notices: an hour
	@$(PY) -m benchmarks.mutants

attack: $(VENV)/.installed  ## 15 kinds of hostile clients of the gateway, a minute each; measures the wait of another user
	@$(PY) -m benchmarks.attack

chaos: jars $(VENV)/.installed  ## 300 faults under load, on one broker and on three: kill -9, pauses, lost networks, power, clocks; two hours
	@$(PY) -m benchmarks.chaos

records: jars $(VENV)/.installed-bench  ## A million requests by record headers, kill -9 of correlate twice, an oracle: 20 minutes
	@$(PY) -m benchmarks.records

soak: jars $(VENV)/.installed  ## Two hours of steady load on every plane, measured every minute, to find growth
	@$(PY) -m benchmarks.soak

up: jars  ## Start a one-node Kafka and create the topics
	@$(ACKSTREAM) up

down: $(VENV)/.product  ## Stop that Kafka; its data stay
	@$(ACKSTREAM) down

clean:  ## Stop Kafka, remove the virtual environment, the local data and the caches of the tools (not the jars)
	@test ! -x $(ACKSTREAM) || $(ACKSTREAM) down
	@rm -rf $(VENV) .ackstream site spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# First, since no other download is useful without Java
java: $(VENV)/.made
	@$(PY) -m ackstream.local.machine

jars: java $(VENV)/.product
	@$(ACKSTREAM) jars spark broker > /dev/null

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "ackstream needs Python 3.10 or newer, and none of $(CANDIDATES) is: \
	install one, or name it with \`make PYTHON=/path/to/python3\`." >&2; exit 1; }
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' || { echo "ackstream needs Python 3.10 or newer, which $(PYTHON) is not: \
	name another with \`make PYTHON=/path/to/python3\`." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: \
	install its venv package (Debian and Ubuntu: python3-venv), or name another with \`make PYTHON=…\`." >&2; exit 1; }
	@echo "Making a virtual environment in $(VENV)"
	@"$(PYTHON)" -m venv --clear $(VENV)
	@echo "$(CURDIR)" > $@

# Only files that requirements/*.txt list are installed, by their hashes; build tools, too, so that a build fetches nothing
PIP := -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation
INSTALL := $(PY) $(PIP)

# $(call step,TEXT,COMMANDS): one line, to which a terminal gets a dot every 3 s; if they fail, their output
define step
@printf '%s' "$(strip $(1))"; \
if [ -t 1 ]; then { while sleep 3 && kill -0 $$$$; do printf .; done; } 2> /dev/null & trap "kill $$!" EXIT; fi; \
trap 'echo; exit 130' INT TERM; \
{ $(2); } > $(VENV)/.log 2>&1 || { echo; cat $(VENV)/.log >&2; exit 1; }; echo
@touch $@
endef

# The requirements of the product, without the tools of developers
$(VENV)/.product: $(VENV)/.made pyproject.toml requirements/build.txt requirements/run.txt
	$(call step, Installing ackstream and PySpark (about 600 MB the first time; some minutes), \
	$(INSTALL) -r requirements/build.txt && $(INSTALL) -r requirements/run.txt && \
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .)

$(VENV)/.installed: $(VENV)/.product requirements/dev.txt
	$(call step, Installing the tools of developers (about 100 MB the first time), $(INSTALL) -r requirements/dev.txt)

# The client of AMQP 1.0 is compiled; the demo does without it
$(VENV)/.installed-amqp: $(VENV)/.installed requirements/amqp.txt
	@$(PY) -c 'import proton' 2>/dev/null || command -v cc > /dev/null || { echo "The tests need a C compiler, for the \
	client of AMQP 1.0: install one (Debian and Ubuntu: gcc and python3-dev)." >&2; exit 1; }
	$(call step, Compiling the client of AMQP 1.0 (a minute), $(INSTALL) -r requirements/amqp.txt)

# The site is built from texts and sources: the product need not be installed
$(VENV)/.installed-docs: $(VENV)/.made requirements/docs.txt
	$(call step, Installing mkdocs (about 50 MB the first time), $(INSTALL) -r requirements/docs.txt)

$(VENV)/.installed-%: $(VENV)/.installed requirements/%.txt
	$(call step, Installing requirements/$*.txt, $(INSTALL) -r requirements/$*.txt)

# The rules of accessibility that `make page` applies; the test knows the checksum of this version
$(VENV)/.axe: $(VENV)/.made
	@{ command -v chromium || command -v chromium-browser; } > /dev/null && command -v npm > /dev/null || { echo "The page is tested in Chromium, \
	with axe-core of npm: install both (Debian: chromium and npm)." >&2; exit 1; }
	$(call step, Installing axe-core, npm install --prefix $(VENV)/axe --no-save --no-audit --no-fund --ignore-scripts axe-core@4.14.1)

# What does not fit beside the product has an environment of its own: the object store of the tests of clusters, other Sparks
$(VENV)/.store $(SPARKS:%=$(VENV)/.%): $(VENV)/.%: $(VENV)/.made requirements/build.txt requirements/%.txt
	$(call step, Installing requirements/$*.txt, "$(PYTHON)" -m venv --clear $(VENV)/$* && \
	$(VENV)/$*/bin/python $(PIP) -r requirements/build.txt && $(VENV)/$*/bin/python $(PIP) -r requirements/$*.txt)
