PYTHON ?= python3

.venv/.installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@
