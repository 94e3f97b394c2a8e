# The two commands: `make serve` and `make test`. Both work on a fresh machine with Rust, Python 3 with pip, and Node.
# Variables: ARGS (further options of serve), EVENKEEL_HOME (models and data; default ~/.cache/evenkeel).

CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
BIN := $(CARGO_TARGET_DIR)/debug/evenkeel
CACHE := $(or $(EVENKEEL_HOME),$(HOME)/.cache/evenkeel)
VENV := $(CACHE)/venv
WEB := dashboards/web
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)
MODEL ?= smollm2-135m

.PHONY: serve test build web model lint unit doc live bench clean

serve: build model ## build, fetch the default model, run gateway and workers
	$(BIN) serve --model $(MODEL) $(ARGS)

test: web lint build model unit doc live ## every test
	@echo "make test: all passed"

build: web
	cargo build --workspace

web: $(WEB)/dist/index.html

$(WEB)/dist/index.html: $(shell find $(WEB)/src $(WEB)/index.html $(WEB)/package-lock.json $(WEB)/vite.config.ts -type f 2>/dev/null)
	cd $(WEB) && npm ci --no-fund --no-audit && npm run build
	touch $@

model: build
	$(BIN) models pull $(MODEL)

lint: web
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cd $(WEB) && npm run format:check

unit: build model
ifeq ($(NEXTEST),yes)
	cargo nextest run --workspace --no-fail-fast
else
	cargo test --workspace --lib --bins --tests --no-fail-fast
endif
	cd $(WEB) && npm test

doc:
	cargo test --workspace --doc

# A real server with a real model: the official OpenAI client, snapshots in three tools and two stores, the page in a browser.
live: build model
	EVENKEEL_BIN=$(BIN) EVENKEEL_VENV=$(VENV) bash tests/live/run.sh

bench: build model ## figures beside what they are compared with; see docs/measuring.md
	$(BIN) bench gateway --quick
	$(BIN) bench dataflow --quick
	$(BIN) bench engine --quick

clean:
	cargo clean
	rm -rf $(WEB)/dist $(WEB)/node_modules
