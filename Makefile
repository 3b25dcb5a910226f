# `make help` lists the targets. They need Debian or Ubuntu with git, make and Python 3.11 or later.
.DEFAULT_GOAL := help
.PHONY: demo test test-busy install unit core lowest check audit soak coverage wheel bench docs serve clean help constraints format sbom

RUN := .venv/bin
# Two workers more than there are cores. The tests of one module run on one worker, and so do all tests with Spark.
SPREAD := -n auto --dist loadgroup --no-loadscope-reorder --max-worker-restart 0
READY := .venv/ready
# Without the theme's notice about another program.
SITE := NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build -q --strict
# Python caches bytecode, so that workers and the processes that they start do not compile it again.
unexport PYTHONDONTWRITEBYTECODE

demo: $(READY) ## a demo: devices report, clients replay the history over three real brokers, DuckDB reads it from the lake
	@tools/brokers --demo
	@tools/spark --demo
	@$(RUN)/python -m examples.demo

test: install ## all tests except the long ones, with real brokers and Spark, in minutes
	$(RUN)/pytest $(SPREAD) --ignore=tests/repo

test-busy: install ## `make test` while two busy loops run
	@tools/test-busy

install: $(READY) ## install the environment, and everything that the tests and the demo need
	@tools/brokers
	@tools/spark
	@$(RUN)/python -m tests.support.brokers.kafka
	@$(RUN)/python -m tools.spark_classes
	@tools/streamr_client
	@tools/asyncapi/install

unit: $(READY) ## the tests without broker, Spark and Node
	@$(RUN)/pytest -q $(SPREAD) -m "not broker and not spark and not node and not soak" tests/unit tests/contract

core lowest: $(READY)
	@tools/unit-with $@
core: ## `make unit` in an environment without any extra
lowest: ## `make unit` with the lowest versions that pyproject.toml allows

check: $(READY) ## check format, lint, types, spelling, plain English, architecture, generated pages and the Helm chart
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

audit: $(READY) ## check the installed packages for known vulnerabilities; needs the network
	@$(RUN)/python tools/audit.py

soak: install ## the long tests, or one part of them: make soak SHARD=kills-kafka
	$(RUN)/python -m tests.soak $(SHARD)

coverage: install ## show which lines and branches `make test` executes, for each package
	@$(RUN)/coverage erase
	$(RUN)/coverage run -m pytest $(SPREAD) --ignore=tests/repo $(TESTS)
	@$(RUN)/coverage combine -q
	@$(RUN)/coverage json -q -o .run/coverage.json
	@$(RUN)/python tools/coverage.py .run/coverage.json

wheel: $(READY) ## build the package: dist/broker_connectivity-….whl
	@rm -f dist/broker_connectivity-*.whl
	@$(RUN)/uv build -q --wheel --no-build-isolation --out-dir dist
	@ls dist/*.whl

bench: install ## run the benchmarks, each beside the bare client of the broker
	$(RUN)/python -m tests.bench

docs: $(READY) ## write the generated pages, and build the site in build/site
	@$(RUN)/python -m tools.docs
	@$(SITE)

sbom: $(READY) ## write the software bill of materials (CycloneDX): build/sbom.cdx.json
	@mkdir -p build
	@$(RUN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --sv 1.6 -o build/sbom.cdx.json

serve: $(READY) ## run the service with the example connections, and its brokers
	@tools/brokers --demo
	@$(RUN)/python -m examples.serve

format: $(READY) ## format the code
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

constraints: $(READY) ## update constraints.txt to the newest versions that fit pyproject.toml
	$(RUN)/uv pip compile -q --upgrade pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --output-file constraints.txt

clean: ## remove the environment, caches, and the data of the examples
	rm -rf .venv .run .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt tools/install
	@tools/install
	@touch $@
