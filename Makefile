# SPDX-License-Identifier: Apache-2.0
# Two commands: `make demo` and `make test`. Both install what is missing (Debian, Ubuntu) or name it (elsewhere).
.PHONY: help demo test test-more test-python wheels test-all gpu-kit proofs bench two-sites experiments frontier training check-engines amalgamate package format tidy site clean
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

demo:  ## rewrite a text and edit a program with SmolLM2 (93 MB, downloaded once; apt-get installs what is missing)
	@scripts/bootstrap demo
	@cmake --preset release >/dev/null && cmake --build build --target specagg_cli
	@scripts/demo

test:  ## what a first try and a commit need: cmake, its build and ctest, all with --preset release (18 minutes on two cores)
	@scripts/bootstrap test
	@scripts/test-presets release

test-more:  ## what guards rarer things: another compiler, bits, dispatch, emulated CUDA, packages (after make test)
	@scripts/bootstrap test-more
	@scripts/test-presets more

test-python:  ## the Python package: pip install ./python into an environment of its own, tests, mypy (5 minutes)
	@scripts/bootstrap test-python
	@scripts/test-python

wheels:  ## build/python/wheels/: a manylinux wheel for each PYTHONS="python3.11 ..." (one for all from 3.12 on; CUDA=1)
	@scripts/bootstrap test-python
	@scripts/wheels $(PYTHONS)

test-all:  ## the whole matrix, hours: compilers, instruction sets, sanitizers, nvcc, slow tests, fuzzing
	@scripts/bootstrap test-all
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-600} scripts/test-presets all avx2 clang sse2 scalar asan tsan aarch64
	@$(MAKE) --no-print-directory proofs
	@proofs/mutants/mutants.py
	@tests/mistakes/mistakes.py
	@if [ -x "$$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)" ]; then $(MAKE) --no-print-directory gpu-kit; \
	 else echo "SKIPPED: gpu-kit: there is no nvcc"; fi

gpu-kit:  ## build/gpu-kit.tar.xz: what scripts/gpu-check runs on a GPU, compiled without one (over 7 minutes on two cores)
	@scripts/gpu-check --kit build/gpu-kit.tar.xz $(if $(BEFORE),--before $(BEFORE))
	@scripts/gpu-check --dry build/gpu-kit.tar.xz

proofs:  ## the theorems, checked by Coq, with what they assume (1 minute once Coq is installed)
	@scripts/bootstrap proofs
	@scripts/prove

bench:  ## docs/measured.md: benchmarks with their rivals, JSON, tables, plots (8 minutes; QUICK=1: 2; DOCS=1: into docs/)
	@scripts/bootstrap bench
	@cmake --preset release >/dev/null && cmake --build build --target bench-kernels bench-verify bench-llama bench-trees specagg_cli
	@scripts/bench $(if $(QUICK),--quick) $(if $(DOCS),--docs)

two-sites:  ## two processes and a slow link, measured: tables, plots (15 minutes; QUICK=1: 2; DOCS=1: into docs/)
	@scripts/bootstrap bench
	@cmake --preset release >/dev/null && cmake --build build --target specagg_cli bench-slow_link
	@scripts/measure-two-sites $(if $(QUICK),--quick) $(if $(DOCS),--docs)

experiments:  ## the papers' experiments: CSV, plots, docs/experiments.md (40 minutes, resumes; MODELS=real: 90; QUICK=1: 3, 5)
	@MODELS=$(MODELS) scripts/bootstrap experiments
	@cmake --preset release >/dev/null && cmake --build build --target experiments $(if $(MODELS),specagg_cli bench-slow_link)
	@scripts/experiments $(if $(MODELS),--models $(MODELS)) $(if $(QUICK),--quick)

frontier:  ## docs/frontier.md: what every policy costs at equal acceptance, on SmolLM2's own texts (20 minutes of a core; QUICK=1: 2)
	@MODELS=real scripts/bootstrap experiments
	@cmake --preset release >/dev/null && cmake --build build --target specagg-experiments-frontier
	@scripts/frontier $(if $(QUICK),--quick)

training:  ## docs/training.md: what a step of training expects if a lossy policy wrote the texts (15 minutes; QUICK=1: 2)
	@MODELS=real scripts/bootstrap experiments
	@cmake --preset release >/dev/null && cmake --build build --target specagg-experiments-training
	@scripts/training $(if $(QUICK),--quick)

check-engines:  ## docs/audits.md: samplers of engines, and the plug-ins in them, in build/engines (6.7 GB, hours; QUICK=1: fewer texts; DOCS=1: into docs/)
	@QUICK=$(QUICK) tools/audits/run $(if $(DOCS),--docs)
	@printf '%s\n' 'tools/engines/check-vllm --texts $(if $(QUICK),2000,20000)' \
	  'tools/engines/check-vllm-v2 --texts $(if $(QUICK),500,2000)' 'tools/engines/check-sglang --texts $(if $(QUICK),2000,20000)' \
	  'tools/engines/check-vllm --newer --texts 2000 $(if $(QUICK),--only draft1)' $(if $(QUICK),,'tools/engines/check-vllm-v2 --newer --texts 500') \
	  '-m pytest -q -p no:cacheprovider python/tests/test_hf.py -k folder' | xargs -P "$$(nproc)" -I{} sh -c 'build/engines/venv/bin/python {}'
check-engines: export PYTHONDONTWRITEBYTECODE =  # of twenty programs the first alone compiles what torch and vLLM import

amalgamate:  ## build/specagg.hpp: what a verification needs, as one header; build/specagg_decoders.hpp: decoders, too
	@scripts/amalgamate

package:  ## build/package/: a source archive of what is committed, and a Debian package of the headers
	@scripts/package

format:  ## lay out every C++ file as .clang-format says
	@scripts/format --install
	@scripts/format

tidy:  ## clang-tidy over tests, examples and tools: also functions of more than 60 lines
	@scripts/bootstrap tidy
	@cmake --preset asan >/dev/null && cmake --build build/asan --target specagg_testing
	@run-clang-tidy -quiet -p build/asan '(tests|examples|tools|research)/.*\.cpp$$'

site:  ## build/site/html/: the documentation as pages for a browser, with a reference (minutes; Chromium checks it if it is there)
	@scripts/bootstrap site
	@if command -v emcc >/dev/null; then tools/explorer/build & else echo "SKIPPED: the explorer: there is no emcc"; fi; \
	 tools/site/build --install && wait $$!
	@tools/site/build
	@tools/site/check
	@if [ -x build/bin/specagg ]; then tools/explorer/check; else echo "SKIPPED: the explorer's check needs build/bin/specagg"; fi

clean:  ## remove build/
	@rm -rf build
