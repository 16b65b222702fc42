# SPDX-License-Identifier: Apache-2.0
# Everything a person or CI does with this checkout. `make help` lists the targets.

SHELL := /bin/sh
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest --durations=5 --durations-min=1
TIMED := python3 scripts/timed.py
ARGS ?=
# Images are built where nothing is set up: any Python that reads TOML will do.
RECIPE = $(or $(PYTHON),$(wildcard $(BIN)/python),python3) -m scripts.image

.DEFAULT_GOAL := help
.PHONY: help setup smoke serve test test-rules test-unit test-contract test-wheel test-pairwise test-system \
	lint lint-check lint-format lint-types lint-docker format chaos bench docs clean \
	image images sources digests push save load release sbom test-image

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make or repair the environment in .venv (PYTHON=python3.12 chooses the interpreter)
	@$(TIMED) setup python3 scripts/make_env.py

smoke: setup ## Serve a small MoE model in two processes and compare its tokens with native vLLM (ARGS="--help")
	@$(BIN)/afd smoke $(ARGS)

serve: setup ## Like smoke, then leave the server up until Ctrl-C
	@$(BIN)/afd smoke --keep $(ARGS)

test: test-rules test-unit test-contract test-wheel test-pairwise ## Run the tests that CI runs (under 30 minutes)

test-rules: setup ## Only the rules of the house
	@$(TIMED) rules $(PYTEST) tests/rules $(ARGS)

test-unit: setup ## Only the unit tests
	@$(TIMED) unit $(PYTEST) tests/unit $(ARGS)

test-contract: setup ## Only the conformance suite over every transport
	@$(TIMED) contract $(PYTEST) tests/contract $(ARGS)

test-wheel: setup ## Only the test of the built wheel
	@$(TIMED) wheel $(PYTEST) tests/wheel $(ARGS)

test-pairwise: setup ## Only the selection of system tests that `make test` runs
	@$(TIMED) pairwise $(PYTEST) tests/system -m pairwise $(ARGS)

test-system: setup ## All system tests: real vLLM, real processes
	@$(TIMED) system $(PYTEST) tests/system $(ARGS)

test-image: setup ## Tests of a built image, with an engine (SOC=… ENGINE=… IMAGE=…); each run writes a record
	@$(TIMED) image $(PYTEST) tests/image --records tests/records $(ARGS)

lint: lint-check lint-format lint-types lint-docker ## Check style, types, Dockerfiles and shell scripts

lint-check: setup
	@$(TIMED) "ruff check" $(BIN)/ruff check .

lint-format: setup
	@$(TIMED) "ruff format" $(BIN)/ruff format --check .

lint-types: setup
	@$(TIMED) "mypy afd" $(BIN)/mypy
	@$(TIMED) "mypy packages" $(BIN)/mypy --config-file packages/triton-cpu/pyproject.toml packages/triton-cpu/src

lint-docker: setup
	@$(TIMED) hadolint $(BIN)/hadolint docker/*.Dockerfile
	@$(TIMED) shellcheck $(BIN)/shellcheck --external-sources .ci/run $$(find docker -name '*.sh')

format: setup ## Format the sources and fix what can be fixed safely
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

chaos: setup ## Faults on purpose in real groups, resumable, about an hour; writes tests/records/chaos (ARGS="--help")
	@$(BIN)/python -m tests.chaos --complete --pairwise --records tests/records $(ARGS)

bench: setup ## Measure round trips of the transports, as ratios in one run (ARGS="--help")
	@$(BIN)/python benchmarks/transport.py $(ARGS)

docs: setup ## Write the pages that are generated from code (a test compares them)
	@$(BIN)/python -m scripts.render_docs
	@$(BIN)/python -m scripts.render_images

image: ## Build a container image: SOC=cpu|a2|a3|a5 [OS= ARCH= ENGINE=docker|podman|buildah BASE= DRY_RUN=1 ARGS=]
	@$(RECIPE) build

images: ## List the images that can be built, as SOC-OS-architecture
	@$(RECIPE) names

push: ## Push a built image: SOC=… REGISTRY=registry.example/team
	@$(RECIPE) push

save: ## Write a built image to an archive: SOC=… [FILE=build/….tar]
	@$(RECIPE) save

load: ## Read an archive made by `make save`: FILE=…
	@$(RECIPE) load

sbom: setup ## Write a bill of materials (CycloneDX) and the licenses of a built image: SOC=… [ENGINE= IMAGE=]
	@$(BIN)/python -m scripts.image_sbom

release: ## Build and push an image from a clean commit and a pinned digest: SOC=… REGISTRY=…
	@$(RECIPE) release

sources: ## Prepare the upstream sources of an image, for a machine without a network: SOC=…
	@$(RECIPE) sources

digests: setup ## Ask the registries what the base images are now; writes docker/digests.json
	@$(BIN)/python -m scripts.image_digests

clean: ## Remove everything these targets made, .venv included
	rm -rf .venv .venv.old-* build dist tmp *.egg-info packages/*/build packages/*/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find afd packages scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
