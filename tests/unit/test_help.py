"""`help()` of a public name: what it says of the name itself fits a screen."""

import importlib
import inspect
from pathlib import Path

NAMES = [line.split() for line in (Path(__file__).parent / "public_api.txt").read_text().splitlines()]
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
