# A thin front for people; CMake does the work.

PREFIX ?= /usr/local
DESTDIR ?=
KILLS ?= 20000
ENDS ?= 2000
FORKS ?= 2000
STOPS ?= 2000
SECONDS_EACH ?= 300
SHOAL_WERROR ?= OFF
ARGS ?=
JOBS := $(shell nproc)

.DEFAULT_GOAL := build
.PHONY: build configure setup train test test-python test-pytorch test-cuda bench bench-cuda soak fuzz install format clean help

build: configure
	@cmake --build build -j$(JOBS)

configure: setup
	@cmake --preset release -DSHOAL_WERROR=$(SHOAL_WERROR) --log-level=WARNING >/dev/null

setup:
	@scripts/setup

train: configure
	@cmake --build build -j$(JOBS) --target $(if $(findstring cuda,$(ARGS)),all,shoal_cli)
	@build/shoal train $(ARGS)

test:
	@SHOAL_WERROR=$(SHOAL_WERROR) scripts/test

test-python:
	@scripts/test-python

test-pytorch:
	@scripts/test-pytorch $(ARGS)

test-cuda:
	@scripts/test-cuda

bench: build
	@if test -x bench/run; then scripts/setup bench && bench/run build; else build/shoal bench all; fi

bench-cuda: setup
	@cmake --preset cuda --log-level=WARNING >/dev/null
	@cmake --build build/cuda -j$(JOBS) --target shoal_cli shoal_cuda bench_cuda_share bench_cuda_kernels
	@build/cuda/bench/cuda_kernels
	@bench/compare cuda build/cuda

soak:
	@scripts/setup test
	cmake --preset release -B build/soak -DSHOAL_DEATH_POINTS=ON
	cmake --build build/soak -j$(JOBS) --target tests_soak
	SHOAL_SOAK_KILLS=$(KILLS) SHOAL_SOAK_ENDS=$(ENDS) SHOAL_SOAK_FORKS=$(FORKS) SHOAL_SOAK_STOPS=$(STOPS) \
		ctest --test-dir build/soak -C soak -L '^soak$$' -V --no-tests=error

fuzz:
	@scripts/setup fuzz
	@SECONDS_EACH=$(SECONDS_EACH) scripts/fuzz

install: build
	DESTDIR=$(DESTDIR) cmake --install build --prefix $(PREFIX)
	@if test -z "$(DESTDIR)" && test "$$(id -u)" = 0; then ldconfig; fi

format:
	@git ls-files -z --cached --others --exclude-standard -- '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' '*.hpp' | xargs -0 -r clang-format -i

clean:
	rm -rf build

help:
	@echo 'make                    build/shoal, build/lib and the man pages, optimised; no tests, examples or benchmarks'
	@echo 'make train ARGS=        trains the MNIST network with four processes; ARGS: see build/shoal train --help'
	@echo 'make test               all builds, all tests, all style checks; ends with "N passed, N failed"'
	@echo 'make test-python        the tests of the Python package, with all of the tests of CPython that apply'
	@echo 'make test-pytorch ARGS= PyTorch'"'"'s tests of torch.multiprocessing with ours and with torch'"'"'s own; ARGS: see scripts/test-pytorch --help'
	@echo 'make test-cuda          the tests that need a GPU; scripts/test-cuda --sanitize runs them under compute-sanitizer'
	@echo 'make bench              the measurements'
	@echo 'make bench-cuda         the measurements on a GPU, beside PyTorch if it is installed'
	@echo 'make soak KILLS=20000 ENDS=2000 FORKS=2000 STOPS=2000   the kill tests, for that many kills, ends, forks and stops'
	@echo 'make fuzz SECONDS_EACH=300'
	@echo 'make install PREFIX=/usr/local DESTDIR='
	@echo 'make format             clang-format over all sources'
	@echo 'make clean              removes build/'
	@echo 'SETUP=no                with any of them: installs no package; a missing one is an error'
