"""The types of all public names resolve at run time: `help`, `inspect` and other libraries read them."""

import importlib
import inspect
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from case_tables import each_case

import grue

NAMES = [
    line.split()
    for line in Path(__file__).with_name("public_api.txt").read_text().splitlines()
    if len(line.split()) == 2
]


def functions_of(public: object) -> Iterator[Callable[..., Any]]:
    if not isinstance(public, type) and not inspect.isfunction(public):
        return  # an alias, a constant
    yield public
    for name, member in inspect.getmembers(public):
        if name.startswith("_") and name != "__init__":
            continue
        function = getattr(member, "fget", member)
        if inspect.isroutine(function) and str(getattr(function, "__module__", "")).startswith("grue"):
            yield function


@each_case("name", [".".join(name) for name in NAMES])
def test_types_of_public_names_resolve(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    for function in functions_of(getattr(importlib.import_module(module), attribute, None)):
        typing.get_type_hints(function)
        try:
            inspect.signature(function, eval_str=True)
        except ValueError:
            assert isinstance(function, type), "some builtin classes have none"


@pytest.mark.slow
def test_help_shows_a_turns_request() -> None:
    code = "import grue; help(grue.TurnRequest); help(grue.Runner)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert "class TurnRequest" in done.stdout
    assert typing.get_type_hints(grue.Runner.conversation)["return"] is grue.Conversation
