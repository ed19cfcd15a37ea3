"""The command with streams, a folder or a name that the system refuses: a sentence, and no traceback."""

import subprocess
from pathlib import Path

import pytest
from commands import command, environment, grue
from recorded_turns import Play, Tape
from trace_files import TraceFile

from grue.messages import RunTurn


def in_a_shell(script: str, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script in which `"$@"` is `grue ARGS`."""
    return subprocess.run(
        ["sh", "-c", script, "sh", *command(*args)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
@pytest.mark.parametrize(
    "args", [["--version"], [], ["--help"], ["trace", "schema"], ["mock-server", "--http", "0"]]
)
@pytest.mark.slow
def test_an_output_that_is_full_is_reported(tmp_path: Path, args: list[str]) -> None:
    done = in_a_shell('"$@" > /dev/full', *args, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "grue: No space left on device.\n")


@pytest.mark.parametrize("args", [["--version"], [], ["--help"], ["trace", "schema"]])
@pytest.mark.slow
def test_an_output_that_nobody_reads_is_no_error_to_report(tmp_path: Path, args: list[str]) -> None:
    done = in_a_shell('exec 3>&1; { "$@"; echo $? >&3; } | exec true', *args, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout in ("0\n", "1\n")  # 0: the pipe's buffer has taken all of it


@pytest.mark.parametrize("args", [["--version"], [], ["trace", "show", "trace.jsonl"]])
@pytest.mark.slow
def test_streams_may_be_closed(tmp_path: Path, args: list[str]) -> None:
    Play(Tape(TraceFile(tmp_path / "trace.jsonl")), RunTurn(turn=1, system="s", user="u"), ["look"])
    done = in_a_shell('"$@" <&- >&-', *args, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_working_folder_that_is_gone_is_reported(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = in_a_shell('rmdir "$PWD"; "$@"', "tools", cwd=gone)
    assert done.returncode == 1
    assert done.stderr == (
        "grue: The working directory cannot be used: No such file or directory. Go to another folder.\n"
    )


@pytest.mark.slow
def test_a_name_that_the_system_refuses_is_reported(tmp_path: Path) -> None:
    name = f"\x1b[2J{'a' * 300}"
    done = grue("runs", name, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"grue: \\u001b[2J{'a' * 300}: File name too long.\n"


@pytest.mark.slow
def test_characters_that_the_terminal_lacks_are_escaped(tmp_path: Path) -> None:
    Play(Tape(TraceFile(tmp_path / "trace.jsonl")), RunTurn(turn=1, system="s", user="u"), ["look"])
    done = grue("trace", "show", "trace.jsonl", cwd=tmp_path, PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert "\\u2192" in done.stdout
