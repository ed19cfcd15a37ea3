"""`help()` of a public name: what it says of the name itself fits a screen."""

import importlib
import inspect
import pydoc
import re
from collections.abc import Callable
from pathlib import Path

import pytest

NAMES = [line.split() for line in (Path(__file__).parent / "public_api.txt").read_text().splitlines()]
_LINES = re.MULTILINE | re.DOTALL
SCREEN = 40
"""Lines. The methods of a class follow, each with a text of its own, and are held to the same."""


def _long(name: str, value: object) -> list[str]:
    text = inspect.getdoc(value) or ""
    return [f"{name}: {len(text.splitlines())} lines"] if len(text.splitlines()) > SCREEN else []


def test_what_help_says_of_a_public_name_fits_a_screen() -> None:
    found: list[str] = []
    described = 0
    for module, name in NAMES:
        value = getattr(importlib.import_module(module), name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        described += 1
        found += _long(name, value)
        if inspect.isclass(value):
            for method, each in inspect.getmembers(value, inspect.isroutine):
                if not method.startswith("_"):
                    found += _long(f"{name}.{method}", each)
    assert described > 100
    assert found == []


def _printed(value: object) -> list[str]:
    """Return the lines of `help()`. Python 3.13 writes a long signature in many lines: here it is one."""
    text = pydoc.plain(pydoc.render_doc(value))
    return re.sub(
        r"^((?: \|  )?\w+\()\n.*?\n(?: \|  )?\)", r"\1...)", text, count=1, flags=_LINES
    ).splitlines()


def test_help_of_each_method_fits_a_screen_as_python_prints_it() -> None:
    printed = {
        f"{name}.{method}": len(_printed(each))
        for module, name in NAMES
        if inspect.isclass(value := getattr(importlib.import_module(module), name))
        for method, each in inspect.getmembers(value, inspect.isroutine)
        if not method.startswith("_")
    }
    assert len(printed) > 100
    assert {method: lines for method, lines in printed.items() if lines > SCREEN} == {}


def _undescribed(name: str, documented: object, called: Callable[..., object]) -> list[str]:
    described = (inspect.getdoc(documented) or "").partition("\nArgs:\n")[2]
    given = [each for each in inspect.signature(called).parameters if each != "self"] if described else []
    return [f"{name}: {each}" for each in given if not re.search(rf"^ .*\b{each}\b", described, re.MULTILINE)]


def test_help_that_describes_arguments_describes_each_of_them() -> None:
    found: list[str] = []
    for module, name in NAMES:
        value = getattr(importlib.import_module(module), name)
        if inspect.isfunction(value):
            found += _undescribed(name, value, value)
        elif inspect.isclass(value):
            if inspect.isfunction(value.__init__):
                found += _undescribed(name, value, value.__init__)
            for method, each in inspect.getmembers(value, inspect.isfunction):
                if not method.startswith("_"):
                    found += _undescribed(f"{name}.{method}", each, each)
    assert found == []


@pytest.mark.slow
def test_help_of_a_class_begins_with_its_text_and_comes_to_the_members_within_60_lines() -> None:
    """All members follow, those of Python and msgspec too: `help()` cannot be told to leave any out."""
    late: dict[str, int] = {}
    for module, name in NAMES:
        value = getattr(importlib.import_module(module), name)
        if inspect.isclass(value):
            lines = _printed(value)
            before = next((n for n, line in enumerate(lines) if line.startswith(" |  Method resolution")), 0)
            late |= {name: before} if before > 60 else {}
    assert late == {}
