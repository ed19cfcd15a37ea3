"""The names of the cookbook's recipe files, from the table in its README."""

import re

from doc_blocks import DOCS

COOKBOOK = DOCS / "cookbook"
RECIPES = re.findall(r"^\| \[[^]]+\]\(([^)]+)\) \|", (COOKBOOK / "README.md").read_text(), re.MULTILINE)
"""The files that the table links to."""

RUN = [each for each in RECIPES if "test_" not in each]
"""Those that ask a model. The pytest file asks none, and `test_examples.py` runs it."""
