"""Errors as providers write them: why each request failed, and whether and when it is sent again."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[4] / "tools" / "compat" / "provider_errors.py"


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("provider_errors", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["provider_errors"] = module
    spec.loader.exec_module(module)
    return module


def test_each_error_means_what_its_provider_means() -> None:
    assert tool().differences() == []


@pytest.mark.slow
def test_there_are_enough_errors_of_enough_providers_and_the_page_has_them() -> None:
    errors = tool()
    page = errors.PAGE.read_text(encoding="utf-8")
    assert len(errors.rows()) >= 204
    assert page.count("\n## ") >= 30
    assert page == errors.page(), "write it again: python tools/compat/provider_errors.py"
