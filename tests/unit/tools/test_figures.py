"""The figures of the source tree: circles of imports are found, and there are none in grue."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    monkeypatch.chdir(TOOLS.parent)
    spec = importlib.util.spec_from_file_location("figures", TOOLS / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_circle_is_found_over_any_number_of_modules(figures: ModuleType) -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}
    assert figures.circles(imports) == [{"a", "b", "c"}]
    assert figures.circles({"a": {"b"}, "b": set()}) == []


@pytest.mark.slow
def test_grue_has_no_circle_and_no_module_outside_the_contracts(figures: ModuleType) -> None:
    imports = figures.module_imports()
    assert figures.circles(figures.module_imports(type_checking=True)) == []
    assert figures.circles(figures.folder_imports(imports)) == []
    assert figures.outside_contracts() == []


def test_the_longest_chain_is_found(figures: ModuleType) -> None:
    imports = {"a": {"b", "c"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert figures.longest_chain(imports) == ["a", "b", "c", "d"]


@pytest.mark.slow
def test_no_chain_in_grue_has_more_than_24_modules(figures: ModuleType) -> None:
    chain = figures.longest_chain(figures.module_imports())
    assert len(chain) <= 24, " > ".join(chain)


def test_a_turn_with_a_function_tool_is_counted(figures: ModuleType) -> None:
    turn = figures.TurnModules()
    assert (
        {"grue.engine.turn", "grue.protocol.tool_loop"} <= turn.before_request < turn.entered <= turn.loaded
    )
    assert turn.changes.total() > turn.going_on > 0
    assert len(turn.before_request) <= 45, sorted(turn.before_request)
    assert {module for _, module in turn.changes} <= turn.entered
