# `make help` lists what there is. A fresh Debian or Ubuntu with git, make and Python 3.11 needs nothing else.
.DEFAULT_GOAL := help
.PHONY: demo test test-busy install unit core lowest check audit soak coverage wheel bench docs serve clean help constraints format sbom

RUN := .venv/bin
# Two workers more than there are cores; a module stays on one worker, and so does all of Spark.
SPREAD := -n auto --dist loadgroup --no-loadscope-reorder --max-worker-restart 0
READY := .venv/ready
# With a note of the theme's makers about another program switched off.
SITE := NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build -q --strict
# Tests are compiled once, not again by each worker and each process that it starts.
unexport PYTHONDONTWRITEBYTECODE

demo: $(READY) ## a demonstration: devices report, their past is replayed over three real brokers and read from the lake
	@tools/brokers --demo
	@tools/spark --demo
	@$(RUN)/python -m examples.demo

test: install ## the tests of every promise, against real brokers and Spark, in minutes
	$(RUN)/pytest $(SPREAD) --ignore=tests/repo

test-busy: install ## the same beside two busy loops
	@tools/test-busy

install: $(READY) ## the environment, and everything that the tests and the demo need
	@tools/brokers
	@tools/spark
	@$(RUN)/python -m tests.support.brokers.kafka
	@$(RUN)/python -m tools.spark_classes
	@tools/streamr_client
	@tools/asyncapi/install

unit: $(READY) ## the tests that need neither broker nor Spark nor Node
	@$(RUN)/pytest -q $(SPREAD) -m "not broker and not spark and not node and not soak" tests/unit tests/contract

core lowest: $(READY)
	@tools/unit-with $@
core: ## `make unit` in an environment without any extra
lowest: ## `make unit` with the lowest versions that pyproject.toml allows

check: $(READY) ## format, lint, types, spelling, plain English, architecture, generated pages, the chart
	@tools/helm
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	$(RUN)/lint-imports --no-logo --no-cache
	$(RUN)/codespell
	$(RUN)/python -m tools.language
	$(RUN)/python -m tools.docs --check
	@$(SITE)
	$(RUN)/pytest -q -n auto tests/repo

audit: $(READY) ## whether an installed package has a known vulnerability; needs the network
	@$(RUN)/python tools/audit.py

soak: install ## the long tests, or one part of them: make soak SHARD=kills-kafka
	$(RUN)/python -m tests.soak $(SHARD)

coverage: install ## which lines and branches `make test` executes, also in the processes it starts, for each package
	@$(RUN)/coverage erase
	$(RUN)/coverage run -m pytest $(SPREAD) --ignore=tests/repo $(TESTS)
	@$(RUN)/coverage combine -q
	@$(RUN)/coverage json -q -o .run/coverage.json
	@$(RUN)/python tools/coverage.py .run/coverage.json

wheel: $(READY) ## the package, as dist/broker_connectivity-….whl
	@$(RUN)/uv build -q --wheel --no-build-isolation --out-dir dist
	@ls dist/*.whl

bench: install ## benchmarks, each figure beside that of the bare client
	$(RUN)/python -m tests.bench

docs: $(READY) ## write the generated pages, and build the site: build/site
	@$(RUN)/python -m tools.docs
	@$(SITE)

sbom: $(READY) ## the software bill of materials, as CycloneDX: build/sbom.cdx.json
	@mkdir -p build
	@$(RUN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --sv 1.6 -o build/sbom.cdx.json

serve: $(READY) ## the service with the example connections, beside its brokers
	@tools/brokers --demo
	@$(RUN)/python -m examples.serve

format: $(READY) ## format the code
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

constraints: $(READY) ## update constraints.txt to the newest versions that fit pyproject.toml
	$(RUN)/uv pip compile -q --upgrade pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --output-file constraints.txt

clean: ## remove what was made here: the environment, caches, data of the examples
	rm -rf .venv .run .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt tools/install
	@tools/install
	@touch $@
