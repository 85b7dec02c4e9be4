# make up      a served model on this machine       make test    everything that CI runs
# make install the environment of both (.venv)      make bench   the quick benchmarks
# Variables: MODEL=folder ENGINES=n PORT=n STATE=folder UP_ARGS="…" PYTHON=python3.x TORCH_INDEX=url-of-CPU-wheels
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help install install-dev up test lint bench clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

install:
	@PYTHON='$(PYTHON)' TORCH_INDEX='$(TORCH_INDEX)' scripts/install up

install-dev:
	@PYTHON='$(PYTHON)' TORCH_INDEX='$(TORCH_INDEX)' scripts/install dev

up: install
	@exec .venv/bin/moesaic up $(if $(MODEL),--model '$(MODEL)') $(if $(ENGINES),--engines '$(ENGINES)') \
	  $(if $(PORT),--port '$(PORT)') $(if $(STATE),--state '$(STATE)') $(UP_ARGS)

test: install-dev
	@scripts/check

lint: install-dev
	@scripts/lint

bench: install-dev
	@scripts/bench

clean:
	rm -rf .venv .moesaic .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
