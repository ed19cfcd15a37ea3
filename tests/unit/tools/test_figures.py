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


def test_grue_has_no_circle_and_no_module_outside_the_contracts(figures: ModuleType) -> None:
    imports = figures.module_imports()
    assert figures.circles(imports) == []
    assert figures.circles(figures.folder_imports(imports)) == []
    assert figures.outside_contracts() == []
