import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grue.cli.login import login, logout
from grue.errors import MissingDependencyError
from grue.transports.mcp.sdk_version import require_mcp


@pytest.fixture(autouse=True)
def not_cached() -> Iterator[None]:
    require_mcp.cache_clear()
    yield
    require_mcp.cache_clear()


def put_on_path(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / f"mcp-{version}.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mcp\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_the_installed_one_is_good_enough() -> None:
    require_mcp()


@pytest.mark.parametrize("version", ["1.22.0", "2.0", "2.2.9"])
def test_an_older_one_gets_one_sentence_with_the_upgrade_command(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, version, monkeypatch)
    with pytest.raises(MissingDependencyError, match=f"mcp {version} .* pip install -U 'mcp>=2.3,<3'"):
        require_mcp()


@pytest.mark.parametrize("version", ["2.3", "2.3.0rc1", "2.10.1"])
def test_newer_ones_pass(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, version, monkeypatch)
    require_mcp()


def test_places_that_cannot_be_looked_at_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "lib.zip"
    archive.touch()
    put_on_path(tmp_path, "2.10.1", monkeypatch)
    monkeypatch.setattr(sys, "path", ["x" * 5000, str(tmp_path / "missing"), str(archive), str(tmp_path)])
    require_mcp()


def test_a_file_of_the_program_that_hides_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mcp.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingDependencyError, match=f"{tmp_path}/mcp.py hides the package mcp"):
        require_mcp()


def test_r14_4_without_it_the_error_has_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("mcp")
    with pytest.raises(MissingDependencyError, match=r"pip install 'mcp>=2\.3,<3'"):
        require_mcp()


def test_one_that_has_no_metadata_folder_is_found_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "mcp.egg-info"
    old.mkdir()
    (old / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: mcp\nVersion: 1.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "missing"), str(tmp_path)])
    with pytest.raises(MissingDependencyError, match=r"mcp 1\.0 is installed"):
        require_mcp()


def test_r14_4_logging_in_and_out_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {"r": {"url": "http://127.0.0.1:9/mcp"}}}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "")
    with pytest.raises(MissingDependencyError, match=r"pip install 'mcp>=2\.3,<3'"):
        login("r", config, scope=None, browser=False)
    with pytest.raises(MissingDependencyError, match=r"pip install 'mcp>=2\.3,<3'"):
        logout("r", config)
