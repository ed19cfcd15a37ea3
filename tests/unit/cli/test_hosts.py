"""The facts of hosts that others have installed."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from grue.cli import hosts


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import of_nobody", "No module named 'of_nobody'"),
        ("def (", "invalid syntax"),
        ("raise RuntimeError", "RuntimeError"),
        ("import sys; sys.exit(3)", "it ends the program"),
        ("import os; os.getenv(0)", "str expected, not int"),
    ],
)
def test_a_module_of_facts_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str, why: str
) -> None:
    (tmp_path / "facts_of_mine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("mine", "facts_of_mine", hosts.GROUP)
    monkeypatch.setattr(hosts, "entry_points", lambda group: [entry])
    hosts.load_hosts()
    said = capsys.readouterr().err
    assert said.startswith("grue: the facts of facts_of_mine are shown as data, because it cannot be loaded:")
    assert why in said
