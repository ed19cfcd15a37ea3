"""Requirement numbers belong to tests and requirements.md: users meet none in errors, help or docstrings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import grue

SOURCE = Path(grue.__file__).parent
_CODE = re.compile(r"\((?:[RPD][0-9]+(?:\.[0-9]+)?|L)\)|\b(?:R[0-9]+\.[0-9]+|P[0-9]{2})\b")
_SOURCE_LINE = re.compile(r'^ *Source: .*(?=(\n *)?""")', re.MULTILINE)


def texts(file: Path) -> Iterator[str]:
    """Yield every string of a module, without a docstring's last line if that names its source.

    A module that has no such number anywhere else is not parsed.
    """
    module = file.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(module)) if _CODE.search(_SOURCE_LINE.sub("", module)) else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            lines = node.value.rstrip().split("\n")
            yield "\n".join(lines[:-1] if lines[-1].strip().startswith("Source: ") else lines)


@pytest.mark.parametrize("package", sorted(path.name for path in SOURCE.iterdir() if path.name[0] != "_"))
def test_no_text_for_users_names_a_requirement(package: str) -> None:
    root = SOURCE / package
    files = sorted(root.rglob("*.py")) if root.is_dir() else [root] * (root.suffix == ".py")
    found = [
        f"{file.relative_to(SOURCE)}: {text[:80]}"
        for file in files
        for text in texts(file)
        if _CODE.search(text)
    ]
    assert found == []
