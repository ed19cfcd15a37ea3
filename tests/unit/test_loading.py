"""Imports that do without the garbage collector."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from grue.loading import load


@pytest.fixture(params=[True, False], ids=["collector on", "collector off"])
def runs(request: pytest.FixtureRequest) -> Iterator[bool]:
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


def test_a_module_is_imported_without_the_collector(
    runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"loaded_{'with' if runs else 'without'}"
    (tmp_path / f"{name}.py").write_text("import gc\nCOLLECTS = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load(name).COLLECTS is False
    assert gc.isenabled() is runs


def test_a_failed_import_leaves_it_as_it_was(runs: bool) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        load("no_such_module")
    assert gc.isenabled() is runs
