# The whole project from a shell. `make demo` and `make test` set themselves up; nothing else is needed.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: install demo docs test test-slow sanitize coverage verify faults kills fuzz bench table3 lint format schema multi30k clean

PYTHON ?= python3
VENV := .venv
NMT := $(VENV)/bin/nmt
INSTALLED := $(VENV)/.installed

install: $(INSTALLED)

$(INSTALLED): pyproject.toml setup.py constraints.txt $(wildcard nmt/compute/native/*.[ch]) nmt/exchange/html/products.c
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip show --quiet torch 2> /dev/null || echo "PyTorch is downloaded now: gigabytes for GPUs on Linux, or 200 MB for CPUs" \
	  "alone if you stop here and type: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo"
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt ctranslate2 \
	  || echo "nmt average --format ctranslate2 and argos will not work: the package could not be installed"
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt sacremoses \
	  || echo "nmt score --metric tokenised and --paper will not work: the package could not be installed"
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt translate-toolkit lxml \
	  || echo "files of translators, such as .po, will not be read: the package could not be installed"
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt py3langid \
	  || echo "pairs in other languages than declared will not be told: the package could not be installed"
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt playwright axe-playwright-python \
	  || echo "the tests of pages will be skipped: playwright could not be installed"
	touch $@

# --- the main job, on embedded corpora: generate, preprocess, train, average, translate or parse, score ---------

DEMO := runs/demo

demo: $(INSTALLED)
	$(VENV)/bin/python recipes/demo_corpus.py $(DEMO)/text
	$(NMT) train recipes/demo.yaml --set data.root=$(DEMO)/text --out $(DEMO)/ckpts
	$(NMT) average $(DEMO)/ckpts
	$(NMT) translate --model $(DEMO)/ckpts --input $(DEMO)/text/test.en --output $(DEMO)/test.hyp \
	  --attention $(DEMO)/attention.html
	@echo && echo "English, our German, and the reference, of sentences never seen in training:"
	@paste -d '\n' <(head -5 $(DEMO)/text/test.en) <(head -5 $(DEMO)/test.hyp) <(head -5 $(DEMO)/text/test.de) /dev/null
	$(NMT) score $(DEMO)/text/test.de $(DEMO)/test.hyp
	$(VENV)/bin/python recipes/demo_treebank.py $(DEMO)/trees
	$(NMT) train recipes/demo_parse.yaml --set data.root=$(DEMO)/trees --out $(DEMO)/parser
	$(NMT) average $(DEMO)/parser
	$(NMT) parse --model $(DEMO)/parser --input $(DEMO)/trees/test.words --output $(DEMO)/test.parsed
	@echo && echo "Our trees of sentences never seen in training:"
	@awk 'NF == 8 && n++ < 3' $(DEMO)/trees/test.words | $(NMT) parse --model $(DEMO)/parser --pretty
	$(NMT) score --metric brackets $(DEMO)/trees/test.trees $(DEMO)/test.parsed
	$(NMT) average $(DEMO)/ckpts/averaged --format html --license apache-2.0 --out $(DEMO)/translator.html
	@echo && echo "Three pages to open in a browser:"
	@echo "  $(DEMO)/ckpts/report.html    how the translator was trained"
	@echo "  $(DEMO)/attention.html       what it attends to in the first sentences"
	@echo "  $(DEMO)/translator.html      the translator itself, in one file"

# --- a shell pipeline over files: a second `make multi30k` does nothing -----------------------------------------

DATA ?= data/raw/multi30k
RUN := runs/multi30k
RECIPE := recipes/multi30k_en_de.yaml
SETTINGS := --set data.root=$(DATA)

multi30k: $(RUN)/test.score
	cat $<

data/multi30k_en_de/report.json: $(RECIPE) | $(INSTALLED)
	$(NMT) preprocess $(RECIPE) $(SETTINGS)
	touch $@

$(RUN)/trained: data/multi30k_en_de/report.json
	$(NMT) train $(RECIPE) $(SETTINGS) --out $(RUN)/ckpts
	touch $@

$(RUN)/ckpts/averaged/bundle.json: $(RUN)/trained
	$(NMT) average $(RUN)/ckpts

$(RUN)/test.score: $(RUN)/ckpts/averaged/bundle.json
	gzip -dc $(DATA)/test_2016_flickr.en.gz | $(NMT) translate --model $(RUN)/ckpts \
	  | tee $(RUN)/test.hyp | $(NMT) score $(DATA)/test_2016_flickr.de.gz > $@

# --- development -------------------------------------------------------------------------------------------------

PYTEST := $(VENV)/bin/python -m pytest -q -n 2 --dist worksteal  # two tests at a time, each on a core

# Processors differ: what computes is tested a second time as a processor with AVX2 alone would compute it. Rules for what an output holds are not: they compare symbols. The tests of C kernels try every
# library at once.
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
NUMERICS := $(addprefix tests/model/test_,$(addsuffix .py,operations layers transformer)) \
  $(addprefix tests/compute/test_,$(addsuffix .py,choice_precision cpu_training ways)) \
  $(addprefix tests/search/test_,$(addsuffix .py,beam in_c sampling search state)) tests/decoding/test_forced.py \
  tests/test_api.py tests/test_api_parser.py \
  $(addprefix tests/training/test_,$(addsuffix .py,loss optimizer trainer trainer_out_of_memory))

test: export OMP_NUM_THREADS := 1
test: $(INSTALLED)
	$(PYTEST) -m 'not slow'
	$(AVX2) $(PYTEST) -m 'not slow' $(NUMERICS)

test-slow: $(INSTALLED)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt transformers protobuf \
	  || echo "the tests of exports will be skipped: transformers could not be installed"
	$(MAKE) nmt/exchange/html/products.wasm || echo "pages will be tested in JavaScript alone: ziglang could not be installed"
	$(MAKE) $(VENV)/.documents || echo "the tests of the site will be skipped: sphinx could not be installed"
	$(MAKE) .venv-argos/.installed || echo "the tests of packages will be skipped: Argos Translate could not be installed"
	$(MAKE) .venv-marian/.installed || echo "the tests beside Marian will be skipped: pymarian could not be installed"
	$(VENV)/bin/python -m pytest -q -m slow --timeout 3600

.venv-marian/.installed:  # a gigabyte, for these tests alone
	rm -rf .venv-marian
	$(PYTHON) -m venv .venv-marian
	.venv-marian/bin/pip install --quiet --disable-pip-version-check pymarian==1.12.42 || { rm -rf .venv-marian; false; }
	touch $@

# The products of the pages of `nmt average --format html`. setup.py compiles them too if clang, lld or ziglang are there.
nmt/exchange/html/products.wasm: nmt/exchange/html/products.c | $(INSTALLED)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check ziglang
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python setup.py --quiet build_ext --inplace

.venv-argos/.installed:  # an environment of its own, for it pins what nmt does not
	rm -rf .venv-argos
	$(PYTHON) -m venv .venv-argos
	.venv-argos/bin/pip install --quiet --disable-pip-version-check argos-translate-lt==1.12.1 || { rm -rf .venv-argos; false; }
	touch $@

# The C kernels in a program without Python, under sanitizers that end it at an invalid access or undefined behaviour:
# for each instruction set that setup.py compiles them for and this processor has. Needs nothing but a C compiler.
KERNELS := nmt/compute/native
SANITIZERS := -fsanitize=address,undefined -fsanitize=float-cast-overflow -fno-sanitize-recover=all
FLAGS_sse2 :=
FLAGS_avx2 := -mavx2 -mfma
FLAGS_avx512bw := $(FLAGS_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl
SANITIZED := $(addprefix build/sanitized_,$(or $(filter sse2 avx2 avx512bw,$(shell grep -m 1 flags /proc/cpuinfo)),sse2))

sanitize: $(SANITIZED)
	for program in $^; do echo $$program && $$program; done

build/sanitized_%: tests/compute/driver.c $(wildcard $(KERNELS)/*.[ch])
	mkdir -p build
	$(CC) -O1 -g -Wall -Wextra -Werror $(SANITIZERS) $(FLAGS_$*) -I$(KERNELS) $(filter %.c,$^) -lm -o $@

coverage: export OMP_NUM_THREADS := 1
coverage: $(INSTALLED)
	$(PYTEST) -m 'not slow' --timeout 1200 --cov --cov-report term --cov-fail-under 92

# --- machines that try to break it, for hours; docs/testing.md says what each does and found -----------------------

FOUND := runs/verify

verify: coverage faults kills fuzz

faults: $(INSTALLED)
	$(VENV)/bin/python verify/faults.py --report $(FOUND)/faults.json

kills: $(INSTALLED)
	$(VENV)/bin/python verify/kills.py --report $(FOUND)/kills.json

# of CPU time for each target
SECONDS ?= 60
fuzz: $(INSTALLED)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[fuzz]' \
	  || echo "inputs will not be changed byte by byte: atheris could not be installed"
	$(VENV)/bin/python verify/fuzz.py --seconds $(SECONDS) --findings $(FOUND)/fuzz --report $(FOUND)/fuzz.json

bench: $(INSTALLED)
	$(VENV)/bin/python benchmarks/memory.py
	$(VENV)/bin/python benchmarks/packing.py
	$(VENV)/bin/python benchmarks/layers.py --plot runs/layers.svg
	$(VENV)/bin/python benchmarks/search_agreement.py
	$(VENV)/bin/python benchmarks/train_speed.py --data $(DATA)
	$(VENV)/bin/python benchmarks/translate_speed.py --forced small --lengths small
	$(VENV)/bin/python benchmarks/translate_speed.py --forced base

# Eight rows of Table 3, hours on a CPU; the same line goes on where it stopped.
TABLE3 := base c_layers2 c_dmodel256 c_dff1024 d_dropout0.0 d_dropout0.2 d_smoothing0.0 d_smoothing0.2

table3: $(INSTALLED)
	$(VENV)/bin/python benchmarks/table3.py --data $(DATA) --rows $(TABLE3)

C_SOURCES := $(wildcard $(KERNELS)/*.[ch] nmt/exchange/html/*.c tests/compute/*.c)

lint: $(INSTALLED)
	$(VENV)/bin/codespell
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(C_SOURCES)

format: $(INSTALLED)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(C_SOURCES)

schema: $(INSTALLED)
	$(VENV)/bin/python -c 'import json; from nmt.recipe import json_schema; \
		print(json.dumps(json_schema(), indent=2, ensure_ascii=False))' > recipes/schema.json

# --- the site of the documents, in build/docs: a warning is an error. After make demo, its translator is part of it ---

$(VENV)/.documents: $(INSTALLED)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

docs: $(VENV)/.documents
	$(VENV)/bin/python -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/docs
	@echo "the site begins at build/docs/index.html"

clean:
	rm -rf runs/demo runs/multi30k data/{demo,demo_parse,multi30k_en_de}{,-????????????}
