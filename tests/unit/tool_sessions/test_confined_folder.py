"""Files inside one folder: no path leaves it, and every refusal is one sentence."""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.hosting import ConfinedFolder
from grue.tool_sessions.confined_folder import RefusedPath


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    root = tmp_path / "work"
    (root / "notes").mkdir(parents=True)
    (root / "notes" / "a.csv").write_text("a,b\n")
    return root


@pytest.fixture
def folder(root: Path) -> ConfinedFolder:
    return ConfinedFolder(root)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refusal(folder: ConfinedFolder, path: str) -> str:
    """The sentence that reading gives, which writing gives as well."""
    with pytest.raises(RefusedPath) as read:
        folder.read(path)
    with pytest.raises(RefusedPath) as written:
        folder.write(path, "x")
    assert str(read.value) == str(written.value)
    return str(read.value)


def test_files_are_read_written_and_listed(folder: ConfinedFolder, root: Path) -> None:
    assert folder.read("notes/a.csv") == "a,b\n"
    assert folder.read("./notes//a.csv") == "a,b\n"
    assert folder.write("new/deep/x.txt", "häuser") == 7
    assert (root / "new" / "deep" / "x.txt").read_text() == "häuser"
    assert folder.entries() == ["new/", "notes/"]
    assert folder.entries("notes") == ["a.csv (4 bytes)"]


def test_a_file_is_replaced_whole_and_keeps_its_mode(folder: ConfinedFolder, root: Path) -> None:
    target = root / "notes" / "a.csv"
    target.chmod(0o600)
    before = target.open()
    folder.write("notes/a.csv", "new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with before:
        assert before.read() == "a,b\n", "a reader has the old text or the new one"
    assert names(root / "notes") == ["a.csv"]


def test_two_writers_do_not_take_each_others_draft(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first writer stops just before its draft becomes the file; the second writes meanwhile."""
    replace = os.replace

    def second(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(os, "replace", replace)
        assert ConfinedFolder(root).write("a.txt", "second") == 6
        replace(*args, **kwargs)

    monkeypatch.setattr(os, "replace", second)
    assert ConfinedFolder(root).write("a.txt", "first") == 5
    assert (root / "a.txt").read_text() == "first"
    assert names(root) == ["a.txt", "notes"]


def test_a_write_that_fails_or_was_cut_off_leaves_no_draft(
    folder: ConfinedFolder, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(RefusedPath, match=r"^notes/a\.csv: No space left on device\.$"):
            folder.write("notes/a.csv", "new")
    assert names(root / "notes") == ["a.csv"]
    with monkeypatch.context() as patch:  # as if the process was killed before the rename
        patch.setattr(os, "replace", full)
        patch.setattr(os, "unlink", lambda *_, **__: None)
        with suppress(RefusedPath):
            folder.write("notes/a.csv", "new")
    assert len(names(root / "notes")) == 2
    folder.write("notes/a.csv", "new")
    assert names(root / "notes") == ["a.csv"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("../secret.txt", "../secret.txt may leave the workspace: a path may not contain '..'."),
        ("notes/../../secret.txt", "may not contain '..'"),
        ("/etc/passwd", "/etc/passwd is an absolute path"),
        ("notes\n/a", "notes\\n/a has a control character in it."),
        ("a\x00b", "has a control character"),
        ("a\x1b[2Jb", "a\\u001b[2Jb has a control character"),
        ("a\u202eb", "has a control character"),
        ("a\ud800", "has a control character"),
        ("", "The empty path is a folder, not a file."),
        (".", ". is a folder, not a file."),
        ("notes", "notes is a folder, not a file."),
        ("notes/", "notes/ is a folder, not a file."),
        ("notes/a.csv/b", "A part of the path notes/a.csv/b is not a folder."),
        ("x" * 300, "is too long."),
    ],
)
def test_paths_that_are_refused(folder: ConfinedFolder, path: str, said: str) -> None:
    assert said in refusal(folder, path)


def test_no_descriptor_stays_open_whatever_is_asked(folder: ConfinedFolder, root: Path) -> None:
    (root / "notes" / "deep").mkdir()
    process = psutil.Process()
    before = process.num_fds()
    folder.write("notes/deep/a.txt", "x")
    folder.read("notes/deep/a.txt")
    folder.entries("notes/deep")
    for path in ("notes/deep/none", "notes/none/a.txt", "notes/deep/a.txt/b"):
        with pytest.raises(RefusedPath):
            folder.read(path)
    assert process.num_fds() == before


def test_a_missing_file_is_named(folder: ConfinedFolder) -> None:
    with pytest.raises(RefusedPath, match=r"^There is no file notes/b\.csv\.$"):
        folder.read("notes/b.csv")
    with pytest.raises(RefusedPath, match="There is no file nowhere"):
        folder.entries("nowhere")


def test_links_are_not_followed_at_any_place(folder: ConfinedFolder, root: Path) -> None:
    (root / "out").symlink_to(root.parent)
    (root / "link.txt").symlink_to(root.parent / "secret.txt")
    (root / "inside").symlink_to("notes")
    for path in ("out/secret.txt", "link.txt", "inside/a.csv"):
        assert refusal(folder, path) == f"{path} leads through a link, and links are not followed."
    with pytest.raises(RefusedPath, match="links are not followed"):
        folder.entries("out")
    assert (root.parent / "secret.txt").read_text() == "secret"
    assert "link.txt (a link)" in folder.entries()


def test_devices_pipes_and_sockets_are_refused_without_waiting(folder: ConfinedFolder, root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert refusal(folder, "pipe") == "pipe is a pipe, a socket or a device, not a file."
    assert "pipe (not a file)" in folder.entries()
    with pytest.raises(RefusedPath, match="not a file"):
        ConfinedFolder(Path("/dev")).read("null")


@pytest.mark.parametrize(
    ("exchange", "said"),
    [
        (os.mkfifo, "notes/a.csv is a pipe, a socket or a device, not a file."),
        (os.mkdir, "notes/a.csv is a folder, not a file."),
        (lambda path: path.symlink_to("../../secret.txt"), "notes/a.csv leads through a link"),
        (lambda path: path.write_bytes(b"x" * 101), "notes/a.csv has 101 bytes; the limit is 100."),
    ],
    ids=["pipe", "folder", "link", "too large"],
)
def test_a_file_that_is_exchanged_after_the_check_is_checked_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, exchange: Callable[[Path], object], said: str
) -> None:
    target, look = root / "notes" / "a.csv", os.lstat

    def look_and_exchange(name: str, **at: int) -> os.stat_result:
        status = look(name, **at)
        target.unlink()
        exchange(target)
        return status

    monkeypatch.setattr(os, "lstat", look_and_exchange)
    with pytest.raises(RefusedPath) as refused:
        ConfinedFolder(root, max_bytes=100).read("notes/a.csv")
    assert said in str(refused.value)


def test_a_file_of_a_gigabyte_a_binary_file_and_a_text_without_encoding_are_one_sentence_each(
    folder: ConfinedFolder, root: Path
) -> None:
    with (root / "huge.bin").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(RefusedPath, match=r"^huge\.bin has 1,073,741,824 bytes; the limit is 1,048,576\.$"):
        folder.read("huge.bin")
    for content in (b"\x89PNG\r\n\x00", b"\xff\xfe\xfa"):
        (root / "image.png").write_bytes(content)
        with pytest.raises(RefusedPath, match=r"^image\.png is not UTF-8 text\.$"):
            folder.read("image.png")
    with pytest.raises(RefusedPath, match="the limit is"):
        folder.write("x", "x" * (2**20 + 1))
    with pytest.raises(RefusedPath, match="cannot be encoded"):
        folder.write("x", "\ud800")


def test_a_folder_without_permission_is_one_sentence(
    folder: ConfinedFolder, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)  # root may open everything
    for use in (lambda: folder.read("notes/a.csv"), lambda: folder.write("notes/a.csv", "x")):
        with pytest.raises(RefusedPath, match=r"^There is no permission for notes/a\.csv\.$"):
            use()


def test_too_many_entries_are_one_sentence(folder: ConfinedFolder, root: Path) -> None:
    for number in range(1001):
        (root / "notes" / str(number)).touch()
    with pytest.raises(RefusedPath, match="more than 1000 entries"):
        folder.entries("notes")


def test_a_folder_or_file_that_becomes_a_link_between_check_and_use_leads_nowhere(
    folder: ConfinedFolder, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "a.csv").write_text("secret")
    (root / "spare").symlink_to(outside)
    real_open, real_lstat = os.open, os.lstat

    def exchange_folder(name: str, *how: int, **where: int) -> int:
        opened = real_open(name, *how, **where)
        if name == "notes":
            (root / "notes").rename(root / "kept")
            (root / "spare").rename(root / "notes")
        return opened

    def exchange_file(name: str, **where: int) -> os.stat_result:
        status = real_lstat(name, **where)
        if name == "a.csv":
            (root / "kept" / "a.csv").unlink()
            (root / "kept" / "a.csv").symlink_to(outside / "a.csv")
        return status

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", exchange_folder)
        folder.write("notes/a.csv", "mine")
    assert (root / "kept" / "a.csv").read_text() == "mine", "it is the folder that was opened"
    monkeypatch.setattr(os, "lstat", exchange_file)
    with pytest.raises(RefusedPath, match="links are not followed"):
        folder.read("kept/a.csv")
    assert (outside / "a.csv").read_text() == "secret"
    assert names(outside) == ["a.csv"]


@given(path=st.text(st.sampled_from("./ab\\~\x00\n"), max_size=12))
def test_no_path_writes_outside(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    above = tmp_path_factory.mktemp("above")
    (above / "root").mkdir()
    with suppress(RefusedPath):
        ConfinedFolder(above / "root").write(path, "x")
    assert names(above) == ["root"]
