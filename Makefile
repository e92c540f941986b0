# nvfold: everything one does with a clone. Rust (see rust-toolchain.toml) is assumed; each target installs
# the Debian packages it needs and says so.

SHELL := /usr/bin/env bash
CARGO ?= cargo
# What `make build` makes. The tests run the command that cargo builds for them; `make soak` runs this one.
RELEASE := $(CURDIR)/target/release/nvfold
# Measures it as the papers did, and counts what each operation costs.
LAB := $(CURDIR)/target/release/nvfold-lab
test test-fast: export NVFOLD_BIN := $(CURDIR)/target/debug/nvfold
demo soak bench writeback mounted trees deext-real weak-sample results cli-page: export NVFOLD_BIN := $(RELEASE)
PREFIX ?= /usr/local
# Seed of the property tests: the same one each time, a new one in `make soak` (tests/src/random.rs says the same of all
# other random tests).
export PROPTEST_RNG_SEED ?= 1
soak: PROPTEST_RNG_SEED := $(shell od -An -N7 -tu8 /dev/urandom | tr -d ' ')
# Races, under a scheduler that the feature puts beneath every lock: src/races of these crates.
SHUTTLE := -p nvfold -p nvfold-causality --features nvfold/papers,nvfold/shuttle,nvfold-causality/shuttle --lib
RACES := $(CARGO) test $(SHUTTLE) races

.PHONY: help build build-all lab install uninstall packages package-test newcomer publish-test demo check test test-fast miri soak fuzz bench writeback mounted trees deext-real weak-sample instructions bench-page cost chunkers results picture book cli-page fmt lint doc clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Linked with its debug information, which then goes into a file of its own. Only the last crate is compiled otherwise than
# by `cargo build --release`.
BUILD := . scripts/commit.sh && $(CARGO) build --release --config profile.release.package.nvfold-cli.strip=false -p nvfold-cli
build: ## The nvfold command, optimised: target/release/nvfold, with its debug information in nvfold.debug beside it
	$(BUILD)
	scripts/split-debug.sh $(RELEASE)

# With the command, so that what is below all of them is compiled once.
build-all:
	$(BUILD) -p nvfold-c -p nvfold-preload
	scripts/split-debug.sh $(RELEASE)

lab: build ## The laboratory, which measures the papers' claims: target/release/nvfold-lab
	$(CARGO) build --release -p nvfold-lab

install: build-all ## All that packages have, below a prefix: make install PREFIX=/usr/local [DESTDIR=]
	scripts/install.sh install $(PREFIX) $(DESTDIR)

uninstall: ## Remove what `make install` has put there: make uninstall PREFIX=/usr/local [DESTDIR=]
	scripts/install.sh uninstall $(PREFIX) $(DESTDIR)

packages: ## deb, rpm, apk, pacman and a static tarball: target/packages/ (PACKAGES=deb for that alone)
	scripts/packages.sh $(PACKAGES)

package-test: ## Make the packages, check their contents, install, use, upgrade and remove the deb in a namespace (root)
	tests/packages.sh

publish-test: ## Pack the crates as for the registry, and compile each from its pack
	scripts/publish-test.sh

demo: build ## Import a real tree twice, see the space saved, compare every file (under 3 minutes)
	scripts/demo.sh

check: ## After each edit: format, lints, unit tests of the crates that changed
	scripts/check.sh

# What the tests run is installed while they are compiled.
test: ## All tests: units, docs, conformance suites, real programs, crashes (installs the suites)
	scripts/test-deps.sh & installed=$$!; $(CARGO) test --workspace --no-run; compiled=$$?; \
		wait $$installed && exit $$compiled
	$(CARGO) test --workspace --no-fail-fast
	$(RACES)
	scripts/instructions.sh

test-fast: ## Unit and documentation tests only: no mount, no root, nothing installed
	$(CARGO) test --workspace --exclude nvfold-tests
	$(CARGO) test -p nvfold-tests tidy::

miri: ## Look for undefined behaviour and data races in what Miri can run (installs a nightly toolchain if there is none)
	scripts/miri.sh

soak: build ## The long tests: more operations, more crashes (200 kills of each kind), longer load
	scripts/test-deps.sh
	@echo "property tests: PROPTEST_RNG_SEED=$$PROPTEST_RNG_SEED"
	NVFOLD_SOAK=20 $(CARGO) test --workspace --no-fail-fast -- --include-ignored
	NVFOLD_SOAK=20 $(RACES)

newcomer: ## Install the deb in a machine of its own, mount by fstab and by the service, upgrade, remove (root; installs systemd)
	tests/newcomer.sh

fuzz: ## Each fuzz target for FUZZ_SECONDS (1800): executions, coverage, crashes (see fuzz/README.md)
	scripts/fuzz.sh

bench: build ## Writes, reads, metadata, clones and recovery beside what bounds them: target/bench/
	scripts/bench.sh

cost: lab ## Count what each operation costs, into docs/results/cost (installs valgrind)
	scripts/need.sh valgrind=valgrind
	. scripts/commit.sh && $(LAB) cost --out docs/results/cost

chunkers: lab ## Speed and saving of the chunkers on packages that it fetches, into docs/results/chunkers.md
	scripts/chunker-corpus.sh target/chunkers
	. scripts/commit.sh && $(LAB) chunkers \
		--corpus target/chunkers --files /usr/lib /usr/share --out docs/results >/dev/null

instructions: ## Count the instructions of the ten hottest operations and hold them to their bounds (valgrind)
	scripts/test-deps.sh
	scripts/instructions.sh

writeback: build ## What the kernel's writeback cache brings a mount: appends, databases, cp, git (installs them)
	scripts/need.sh sqlite3=sqlite3 git=git setpriv=util-linux pgbench=postgresql
	/usr/bin/python3 -c 'import plyvel' 2>/dev/null || apt-get install -y -qq python3-plyvel
	scripts/writeback.sh

mounted: build ## What programs meet on a mount, a line a case: docs/results/mounted.md has one of before and after
	scripts/need.sh cc=gcc mount=mount unshare=util-linux
	scripts/mounted.sh

trees: build ## Twenty copies of real trees with a build in each, beside other file systems: docs/results/trees.md
	scripts/trees.sh

deext-real: build ## Real packages in two versions beside borg, second copies, imports: each of POLICIES (inline)
	$(CARGO) build --release -p nvfold-lab --example deext_real
	scripts/deext-real.sh $(DEEXT_ARGS)

weak-sample: build ## What a first look at an eighth of a block saves: three trees, versions of pages, a VM image, hostile data
	scripts/weak-sample.sh $(WEAK_SAMPLE_ARGS)

bench-page: ## Put the tables of the last `make bench` into docs/benchmarks.md
	scripts/bench-page.sh >target/benchmarks.md && mv target/benchmarks.md docs/benchmarks.md

results: lab ## All figures of all papers and all costs, from one commit: docs/results/ (hours; goes on if cut short)
	scripts/results.sh

picture: ## Draw docs/img/trees.svg again, and docs/img/demo.svg from the last demo's figures
	scripts/trees-picture.py docs/results/trees/trees.json docs/img/trees.svg
	scripts/demo-picture.sh target/demo/figures docs/img/demo.svg

book: ## The pages of docs/ as a book, its links checked: target/book/index.html (compiles mdBook once)
	scripts/book.sh

cli-page: build ## Write docs/cli.md from the help of the command
	scripts/cli-page.sh >target/cli.md && mv target/cli.md docs/cli.md

fmt: ## Format the code
	$(CARGO) fmt --all

# Links to private items are for those who read the code; the pages have their names without a link.
RUSTDOCFLAGS_OF_LINT := -D warnings -A rustdoc::private-intra-doc-links

lint: ## What CI checks before the tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy $(SHUTTLE) --tests -- -D warnings
	$(CARGO) clippy -p nvfold -p nvfold-cli --no-default-features -- -D warnings
	RUSTDOCFLAGS='$(RUSTDOCFLAGS_OF_LINT)' $(CARGO) doc --no-deps --workspace --quiet
	scripts/shellcheck.sh
	scripts/deny.sh

doc: ## API documentation: target/doc/nvfold/index.html
	$(CARGO) doc --no-deps -p nvfold -p nvfold-causality -p nvfold-mount -p nvfold-pmem

clean: ## Remove what was built
	$(CARGO) clean
