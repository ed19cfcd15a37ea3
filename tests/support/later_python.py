"""What later versions of Python do otherwise, for tests on an earlier one."""

import os
from pathlib import Path

import pytest


def hide_errors_of_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `Path.exists` and its like return `False` for a path that cannot be looked at, as from 3.14 on."""
    monkeypatch.setattr(Path, "exists", os.path.exists)
    monkeypatch.setattr(Path, "is_symlink", os.path.islink)
    monkeypatch.setattr(Path, "is_file", os.path.isfile)
