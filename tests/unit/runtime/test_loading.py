"""Imports of modules that import many others."""

import sys
from pathlib import Path

import pytest

from grue.errors import MCPError
from grue.runtime import loading
from grue.runtime.loading import load


def test_a_module_is_imported_by_its_name() -> None:
    assert load("grue.runtime.loading") is sys.modules["grue.runtime.loading"]
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        load("no_such_module")


def test_a_file_that_cannot_be_read_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unreadable.py").write_text("raise OSError(24, 'Too many open files')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MCPError, match=r"could not be imported: .*Too many open files"):
        load("unreadable")


def test_what_a_signal_handler_raises_during_an_import_is_not_an_error_of_ours() -> None:
    with pytest.raises(TimeoutError, match="the host's own alarm"), loading.importing():
        raise TimeoutError("the host's own alarm")


def test_a_thread_whose_import_has_ended_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # A new thread may have the id of one that has ended.
    monkeypatch.setattr(loading, "_outlasted", {-1})
    loading._work_elsewhere()
    assert not loading._outlasted
