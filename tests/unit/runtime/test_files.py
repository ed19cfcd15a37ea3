"""Opening and reading files that may be anything."""

import io
import os
import socket
import tracemalloc
from pathlib import Path

import pytest

from grue.errors import TraceError
from grue.runtime.files import expanded, next_line, open_regular, os_cause, os_errors_as, read_regular


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def dead_link(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("made", [folder, pipe, listening, device, dead_link])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, made: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path may not be long
    path = Path("odd")
    made(path)  # type: ignore[operator]
    for read in (open_regular, read_regular):
        with pytest.raises(OSError) as refused:  # noqa: PT011 - which one depends on the kind
            read(path)
        assert refused.value.strerror


@pytest.mark.parametrize(
    ("name", "why"),
    [("a\0b", "NUL"), ("\ud800.png", r"utf-8 cannot encode: '\\ud800'$"), ("a" * 5000, "name too long")],
)
def test_a_name_that_no_file_can_have_is_an_os_error(name: str, why: str) -> None:
    with pytest.raises(OSError, match=f"(?i){why}"):
        open_regular(Path(name))


def test_a_user_without_a_home_folder_has_one_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    assert expanded("~/a~b") == Path.home() / "a~b"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert expanded("~/a~b") == Path("/nonexistent/a~b")
    assert expanded("/a/~") == Path("/a/~")
    monkeypatch.setattr("pwd.getpwnam", {}.__getitem__)
    assert expanded("~nobody/a") == Path("/nonexistent/a")


def test_no_descriptor_is_left_of_a_refusal(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    for _ in range(3):
        with pytest.raises(OSError, match="directory"):
            open_regular(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - a count


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert read_regular(path, 4) == b"1234"
    with pytest.raises(OSError, match="larger than"):
        read_regular(path, 3)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (0, "0 bytes"),
        (10, "10 bytes"),
        (2**10, "1 KiB"),
        (1500 * 2**10, "1500 KiB"),
        (2**20 + 1, "1,048,577 bytes"),
        (5 * 2**20, "5 MiB"),
    ],
)
def test_the_limit_of_a_file_that_is_too_large_is_named_exactly(
    tmp_path: Path, limit: int, said: str
) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, limit + 1)
    with pytest.raises(OSError, match=f"it is larger than {said}$"):
        read_regular(path, limit)


def test_an_error_of_the_system_is_told_and_what_a_signal_handler_raises_is_passed_on() -> None:
    said = pytest.raises(TraceError, match=r"^Cannot write it: No such file or directory\.$")
    with said, os_errors_as(TraceError, "write it"):
        Path("/nonexistent/file").stat()
    alarm = TimeoutError("the program's alarm")
    with pytest.raises(TimeoutError) as raised, os_errors_as(TraceError, "write it"):
        raise alarm
    assert raised.value is alarm


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(2, "No such file or directory"), "No such file or directory"),
        (OSError("the alarm"), "the alarm"),
        (OSError(), "OSError"),
        (ValueError("embedded null byte"), "embedded null byte"),
    ],
)
def test_the_cause_of_an_error_is_never_none(error: Exception, text: str) -> None:
    assert os_cause(error) == text


def test_lines_come_whole_whatever_their_length() -> None:
    lines = [
        b"a\n",
        b"\n",
        b"b" * 3_000_000 + b"\n",
        b"c" * 2**20 + b"\n",
        b"d" * (2**20 - 1) + b"\n",
        b"end",
    ]
    file = io.BytesIO(b"".join(lines))
    assert [next_line(file) for _ in lines] == lines
    assert next_line(file) == b""


def test_a_last_line_that_is_long_comes_whole() -> None:
    assert next_line(io.BytesIO(b"x" * 2_500_000)) == b"x" * 2_500_000


@pytest.mark.slow
def test_a_line_that_is_too_long_is_refused_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("wb") as sparse:
        sparse.truncate(2**30)
    tracemalloc.start()
    try:
        with open_regular(path) as file, pytest.raises(OSError, match="longer than 512 MiB"):
            next_line(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20
