# make demo: set up and run the main job on the embedded data.  make test: set up and pass the tests.
# make test-slow: the tests that `make test` leaves out.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow lint bench load gpu-check methods results clean

demo: $(READY)
	$(BIN)/mt3 demo

# a thread that waits sleeps: spinning, it takes the core from the one it waits for when other work shares the cores
test test-slow: export OMP_WAIT_POLICY = passive

# a process for each core; the tests of a file share one
test: $(READY) lint
	$(BIN)/python -m pytest -n auto --dist loadfile -m 'not slow'

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

# how fast it is beside its peers, as ratios within one run; `python -m benchmarks --help` has the parts
bench: $(READY)
	$(BIN)/python -m benchmarks all --json bench.json

# five minutes of twice what a server can answer, with broken uploads among it; on this machine alone
load: $(READY)
	$(BIN)/python -m benchmarks.load --seconds 300

# every test-time method on the shipped models, per image and along four streams, tuned on what is not reported; killed, it goes on
DATA ?= data
METHODS_OUT ?= results/methods
methods: export PATH := $(CURDIR)/$(BIN):$(PATH)
methods: $(READY)
	for model in cifar10-mt3 cifar10-jt; do benchmarks/rivals.sh $(DATA) $(METHODS_OUT) $$model || exit; done
	benchmarks/rivals.sh $(DATA) $(METHODS_OUT) cifar10-supervised memo tent sar t3a lame plus average memo-augmix
	for model in cifar10-mt3 cifar10-jt cifar10-supervised; do \
	  $(BIN)/python -m benchmarks methods --model $$model --json $(METHODS_OUT)/$$model/bench.json || exit; done

# what the first owner of a GPU runs: gpu-check.md is the page to send back
gpu-check: $(READY)
	$(BIN)/python -m benchmarks.gpu_check

# RESULTS.md and the pages in results/, from the files there
results: $(READY)
	$(BIN)/mt3 report results/methods --words results/words/methods.md --out results/methods/report --page RESULTS.md
	$(BIN)/mt3 report results/methods-1000 --published --words results/words/methods-1000.md --out results/methods-1000/report --page results/methods-1000/README.md
	$(BIN)/mt3 report results/cifar10-cpu --published --words results/words/cpu.md --out results/cifar10-cpu/report --page results/cifar10-cpu/README.md
	$(BIN)/mt3 report results/cifar10-cpu-10000 --published --words results/words/cpu-10000.md --out results/cifar10-cpu-10000/report --page results/cifar10-cpu-10000/README.md
	$(BIN)/mt3 report results/cifar10-workstation --published --words results/words/workstation.md --out results/cifar10-workstation/report --page results/cifar10-workstation/README.md
	$(BIN)/mt3 report results/cifar10-workstation-step --published --words results/words/workstation-step.md --out results/cifar10-workstation-step/report --page results/cifar10-workstation-step/README.md
	$(BIN)/mt3 report results/cifar10-workstation-held-out --words results/words/workstation-held-out.md --out results/cifar10-workstation-held-out/report --page results/cifar10-workstation-held-out/README.md
	$(BIN)/mt3 report results/cifar10-width-32-step --published --words results/words/width-32-step.md --out results/cifar10-width-32-step/report --page results/cifar10-width-32-step/README.md
	$(BIN)/mt3 report results/cifar10-width-32-all --published --words results/words/width-32-all.md --out results/cifar10-width-32-all/report --page results/cifar10-width-32-all/README.md
	$(BIN)/mt3 report results/cifar10-official --words results/words/official.md --out results/cifar10-official/report --page results/cifar10-official/README.md

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/pip install -q --no-deps imagecorruptions==1.1.2 # the frost photos, without what only its code needs
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info
