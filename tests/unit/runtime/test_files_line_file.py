"""Files that are written a line at a time: their last line, and what a killed writer has left."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.errors import TraceError
from grue.runtime import files
from grue.runtime.files import LineFile, cut_half_line

LONG = b"x" * 200_000


@given(st.lists(st.sampled_from([b"", b"a", b"b" * 65_535, b"c" * 65_536, LONG]), max_size=4), st.booleans())
def test_the_last_line_and_a_half_line_are_found_wherever_they_begin(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], whole: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    content = b"\n".join(lines) + (b"\n" if whole and lines else b"")
    path.write_bytes(content)
    file = LineFile(path, "file")
    assert file.last_line() == (content.splitlines(keepends=True) or [b""])[-1]
    file.close()
    cut_half_line(path, "file")
    assert path.read_bytes() == content[: content.rfind(b"\n") + 1]


@pytest.mark.slow
def test_a_half_line_of_a_gigabyte_is_cut_off_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"whole\n")
    with path.open("r+b") as sparse:
        sparse.truncate(2**30)
    cut_half_line(path, "event log")
    assert path.read_bytes() == b"whole\n"


def test_a_last_line_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 10)
    (tmp_path / "file").write_bytes(b"short\n" + b"x" * 11)
    file = LineFile(tmp_path / "file", "trace file")
    with pytest.raises(TraceError, match=r"last line of the trace file .* is too long"):
        file.last_line()
    file.close()


def test_after_a_write_that_failed_half_way_no_line_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, write = LineFile(tmp_path / "file", "trace file"), os.write

    def half(fd: int, rest: memoryview) -> int:
        if len(rest) < len(b"second line"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, rest[: len(rest) // 2])

    file.write(b"first line")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(TraceError, match="No space left on device"):
            file.write(b"second line")
    with pytest.raises(TraceError):
        file.write(b"third line")
    file.close()
    assert (tmp_path / "file").read_bytes() == b"first line\nsecond"


@pytest.mark.parametrize("read", [LineFile.cut_half_line, LineFile.last_line])
def test_a_file_that_cannot_be_read_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[LineFile], object]
) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = LineFile(tmp_path / "file", "log")
    file.write(b"a line")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        with pytest.raises(TraceError, match="Input/output error"):
            read(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size  # noqa: B018 - it is closed


@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir])
def test_the_log_of_a_run_that_is_a_pipe_or_a_folder_is_refused(tmp_path: Path, made: object) -> None:
    made(tmp_path / "log")  # type: ignore[operator]
    with pytest.raises(TraceError, match="Cannot write the event log"):
        cut_half_line(tmp_path / "log", "event log")


def test_only_a_regular_file_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o644)
    os.mkfifo(tmp_path / "pipe", 0o644)
    modes = {}
    for name in ("file", "pipe"):
        path = tmp_path / name
        path.chmod(0o644)
        LineFile(path, "log").close()
        modes[name] = path.stat().st_mode & 0o777
    assert modes == {"file": 0o600, "pipe": 0o644}, "what else a path leads to, a device say, is others' too"


@pytest.mark.parametrize(
    ("name", "why"), [("a\0b", "a NUL character in it"), ("\ud800", r"a character that utf-8 cannot encode")]
)
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(TraceError, match=rf"Cannot write the trace file .*: its name has {why}"):
        LineFile(tmp_path / name, "trace file")
