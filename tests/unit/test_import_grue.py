"""`import grue`: next to nothing is loaded, and every public name has a home."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from case_tables import each_case

import grue

HEAVY = ("mcp", "mcp_types", "langfuse", "httpx", "pydantic", "typer", "rich", "anyio", "msgspec")


def loaded_after(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after `code`."""
    report = f"import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=150, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_grue_loads_nothing_heavy() -> None:
    assert loaded_after("import grue; grue.__version__; dir(grue)") == set()


def test_the_version_is_told_without_what_a_game_needs() -> None:
    told = "import sys; sys.argv = ['grue', '--version']; from grue.cli.main import main; main()"
    assert loaded_after(told) == set()


def test_a_turn_without_mcp_never_loads_it() -> None:
    assert loaded_after("from grue import Runner, TurnRequest").isdisjoint({"mcp", "mcp_types", "langfuse"})


@each_case("name", grue.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(grue, name) is not None
    assert name in dir(grue)


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'grue' has no attribute 'Grue'"):
        _ = grue.Grue


def test_type_checkers_and_the_interpreter_look_in_the_same_places() -> None:
    tree = ast.parse(Path(grue.__file__).read_text(encoding="utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    told = {
        alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == grue._HOMES
    assert set(grue.__all__) == {*grue._HOMES, "__version__"}
    for name, home in grue._HOMES.items():
        assert getattr(importlib.import_module(home), name) is getattr(grue, name)


def test_a_runner_with_function_tools_loads_neither_the_mcp_client_nor_a_command_line() -> None:
    code = (
        "from grue import FunctionTools, LlmSettings, Runner\n"
        "functions = FunctionTools({'echo': lambda text: text})\n"
        "runner = Runner(llm=LlmSettings(model='m'), servers={'tools': functions})\n"
        "runner.warm_up()\n"
        "import sys\n"
        "names = ('httpx', 'grue.mcp_transport.client', 'grue.engine.server_sessions', 'h11')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True
    )
    assert done.stdout.splitlines() == ["['h11']"]
