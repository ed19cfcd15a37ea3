"""Imports that do without the garbage collector."""

import gc
import os
import subprocess
import sys
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


def test_what_is_imported_already_is_not_kept_from_the_collector_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(1) or 1)
    assert load("grue.loading") is sys.modules["grue.loading"]
    assert counted == [], "it takes a tenth of a second where a program has frozen a million objects"


IN_A_PROCESS = """
import gc, sys
from grue.loading import load
{before}
kept = load("many_objects").KEPT
gc.disable()
old = gc.get_objects(generation=2)
print(gc.get_freeze_count() > 0, any(each is kept[0] for each in old))
"""


@pytest.mark.parametrize(
    ("before", "frozen", "old"),
    [("", False, True), ("gc.freeze()", True, False)],
    ids=["not frozen", "frozen"],
)
def test_the_next_collection_does_not_go_through_what_was_imported(
    before: str, frozen: bool, old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "many_objects.py").write_text("KEPT = [[] for _ in range(5000)]\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    command = [sys.executable, "-c", IN_A_PROCESS.format(before=before)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.split() == [str(frozen), str(old)], "what a program has frozen stays frozen"
