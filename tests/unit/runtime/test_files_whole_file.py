"""A file is written as a whole or not at all."""

import contextlib
import os
import re
import stat
from pathlib import Path

import pytest

import grue
from grue.runtime.files import drafted, replacing, write_whole

OWN_PROTOCOLS = {
    "fleet/folder.py",
    "testing/faulty_server.py",
    "cli/run.py",
    "config/bundles.py",
    "transports/llm/batch_folder.py",
    "sandbox/launch.py",
}
"""The fleet commits by a link or by a folder's name; a faulty server imports nothing of
grue; the others move folders."""


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)


def test_it_replaces_the_file_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["tokens.json"]


def test_a_file_for_all_has_the_permissions_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "mcp_tools.lock"
    before = os.umask(0o027)
    try:
        write_whole(path, b"{}", mode=0o666)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.usefixtures("full_disk")
def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new", fsync=True)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["result.json"]


def test_a_block_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"old")
    block = contextlib.ExitStack()
    block.enter_context(replacing(path)).write(b"half a pa")
    assert path.read_bytes() == b"old"
    assert block.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None) is False
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["page.html"]


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "lock", b"{}")
    assert names(tmp_path) == ["lock"]


def test_the_rest_of_a_killed_write_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(b"hal")
    write_whole(tmp_path / "a.json", b"whole", draft="a.part")
    assert (tmp_path / "a.json").read_bytes() == b"whole"
    assert names(tmp_path) == ["a.json"]


def test_a_path_may_be_relative_to_an_open_folder(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        write_whole(Path("a.txt"), b"a", dir_fd=folder, draft=".a.part")
    finally:
        os.close(folder)
    assert (tmp_path / "a.txt").read_bytes() == b"a"


def test_a_draft_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError), drafted(tmp_path / "link"):
        pass
    assert names(tmp_path) == ["link"], "what another made is not removed"


@pytest.mark.slow
def test_files_are_put_in_place_here_only() -> None:
    source = Path(grue.__file__).parent
    puts = re.compile(r"os\.(replace|rename|link)\(|\.rename\(|\bmkstemp\b|\.replace\((path|target)\)")
    found = {str(path.relative_to(source)) for path in source.rglob("*.py") if puts.search(path.read_text())}
    assert found - OWN_PROTOCOLS == {"runtime/files.py"}


def test_a_name_of_a_device_is_not_replaced_by_a_file() -> None:
    path = Path("/dev/grue-test")  # in place of `/dev/stdout`, which is a link to a regular file at times
    try:
        with pytest.raises(OSError, match="it is among the devices"):
            write_whole(path, b"page")
        assert not path.exists()
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
