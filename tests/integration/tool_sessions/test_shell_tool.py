"""The shell tool with real commands: what they get, what is kept of their output, what is left of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from transport_servers import SETSID

from grue import ShellTool, ToolClient
from grue.engine.tool_servers import hide_secrets
from grue.errors import MCPConfigError
from grue.messages import ServerName, ToolCallResult
from grue.runtime.processes.descendants import all_processes
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.trace.recorder import Recorder
from grue.testing.leftovers import assert_nothing_left
from grue.tool_sessions.failures import ToolRefusedError, ToolTimedOutError

pytestmark = pytest.mark.anyio

SH = ServerName("sh")
LONG_S = 60.0


def shell(folder: Path, **options: Any) -> ShellTool:
    return ShellTool(folder=folder, commands="any", shell=True, **options)


async def run(spec: ShellTool, timeout_s: float = LONG_S, /, **arguments: object) -> ToolCallResult:
    async with spec.connect(SH, ProcessRegistry()) as connection:
        await connection.open(LONG_S)
        return await connection.call("run", arguments, timeout_s)


def content(result: ToolCallResult) -> dict[str, Any]:
    assert isinstance(result.content, dict)
    return result.content


# --- What a command gets ---


async def test_a_command_line_runs_in_the_folder_and_returns_what_it_wrote(tmp_path: Path) -> None:
    command = "pwd; cat; echo oh >&2; exit 3"
    result = await run(shell(tmp_path), command=command, stdin="ümlaut")
    assert result.content == {"exit_status": 3, "stdout": f"{tmp_path}\nümlaut", "stderr": "oh\n"}
    assert not result.is_error, "an exit status is for the model to judge"


async def test_commands_run_in_its_folder_although_the_program_changes_its_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    spec = ShellTool(folder="here", commands=["pwd"])
    monkeypatch.chdir("/")
    assert content(await run(spec, argv=["pwd"]))["stdout"] == f"{tmp_path / 'here'}\n"
    async with spec.connect(SH, ProcessRegistry()) as connection:
        told = connection.listing.tools[0].description
    assert "Run a program without a shell, in here, for" in told, "a text of earlier traces stays as it was"


async def test_a_list_of_arguments_is_read_by_no_shell(tmp_path: Path) -> None:
    spec = ShellTool(folder=tmp_path, commands=["echo"])
    result = await run(spec, argv=["echo", "$HOME; touch here", "*"])
    assert content(result)["stdout"] == "$HOME; touch here *\n"
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - no disk is slow here


async def test_only_listed_variables_are_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "planted-0123456789")
    monkeypatch.setenv("WANTED", "yes")
    spec = ShellTool(
        folder=tmp_path, commands=["env"], inherit=["PATH", "WANTED", "ABSENT"], env={"ADDED": "1"}
    )
    shown = content(await run(spec, argv=["env"]))["stdout"]
    names = {line.partition("=")[0] for line in shown.splitlines()}
    assert names - {"PWD"} == {"PATH", "WANTED", "ADDED"}, "the shell that starts it may set PWD"


async def test_input_that_is_large_or_not_read_does_no_harm(tmp_path: Path) -> None:
    many = "x" * 3_000_000
    spec = ShellTool(folder=tmp_path, commands=["wc", "true"])
    assert content(await run(spec, argv=["wc", "-c"], stdin=many))["stdout"].strip() == "3000000"
    assert content(await run(spec, argv=["true"], stdin=many))["exit_status"] == 0


# --- What may be run ---


@pytest.mark.parametrize(
    ("argv", "allowed"),
    [
        (["echo", "hi"], True),
        (["git", "--version"], True),
        (["git"], False),
        (["git", "-c", "alias.x=!touch here", "x"], False),
        (["/bin/echo", "hi"], False),
        (["./echo", "hi"], False),
        (["ls"], False),
        ([""], False),
    ],
)
async def test_the_allow_list_is_compared_word_by_word(
    argv: list[str], allowed: bool, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("git", "ls"):
        program = tmp_path / "bin" / name
        program.write_text("#!/bin/sh\necho $0\n")
        program.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    spec = ShellTool(folder=tmp_path, commands=["echo", ["git", "--version"]], env={"PATH": path})
    result = await run(spec, argv=argv)
    assert result.is_error is not allowed
    if not allowed:
        assert result.error_message is not None
        assert result.error_message.endswith("is not allowed. Allowed: echo, git --version")


async def test_a_program_is_the_one_that_was_found_when_the_session_began(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    (second / "tool").write_text("#!/bin/sh\necho genuine\n")
    (second / "tool").chmod(0o755)
    env = {"PATH": f"{first}:{second}:{os.environ['PATH']}"}
    spec = ShellTool(folder=tmp_path, commands=["tool", "cp"], env=env)
    async with spec.connect(SH, ProcessRegistry()) as connection:
        await connection.call("run", {"argv": ["cp", "/bin/false", "first/tool"]}, LONG_S)
        assert (first / "tool").exists()
        result = await connection.call("run", {"argv": ["tool"]}, LONG_S)
    assert content(result)["stdout"] == "genuine\n"


async def test_any_program_may_be_allowed_and_may_be_missing(tmp_path: Path) -> None:
    spec = ShellTool(folder=tmp_path, commands="any")
    assert content(await run(spec, argv=["echo", "hi"]))["stdout"] == "hi\n"
    for argv, words in ((["no-such-program"], "not found"), (["echo", "a\0b"], "null byte")):
        result = await run(spec, argv=argv)
        assert result.error_message is not None
        assert words in result.error_message
    with pytest.raises(ToolRefusedError, match="length >= 1"):
        await run(spec, argv=[])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folder": "nowhere"}, "folder 'nowhere' does not exist"),
        ({"commands": ["no-such-program"]}, "'no-such-program' was not found"),
        ({"commands": [[]]}, "is empty"),
        ({"commands": [["ls", 5]]}, "commands has an entry that is not a text"),
        ({"inherit": [["PATH"]]}, "inherit has an entry that is not a text"),
        ({"commands": "ls"}, "is a list of programs, not 'ls'"),
        ({"commands": ["ls"], "shell": True}, 'commands="any"'),
    ],
)
def test_what_cannot_hold_is_refused_when_it_is_configured(options: dict[str, Any], words: str) -> None:
    with pytest.raises(MCPConfigError, match=words):
        ShellTool(**{"folder": ".", "commands": "any", **options})


def test_a_folder_that_may_not_be_entered_is_refused_when_it_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Root may enter every folder, so the test does not depend on real permissions.
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(MCPConfigError, match="this user may not enter it"):
        ShellTool(folder="/absent/project", commands="any")


# --- What is kept of the output ---


async def test_of_much_output_the_beginning_and_the_end_are_kept(tmp_path: Path) -> None:
    command = "seq 100000; seq 100000 >&2"
    result = content(await run(shell(tmp_path, max_output_bytes=1000), command=command))
    for stream in ("stdout", "stderr"):
        assert result[stream].startswith("1\n2\n")
        assert "\n[... 587895 bytes were left out here ...]\n" in result[stream]
        assert result[stream].endswith("\n99999\n100000\n")
        assert len(result[stream]) < 1100


@pytest.mark.parametrize("command", ["yes", "yes >&2", "trap '' TERM; yes; sleep 600"])
@pytest.mark.slow
async def test_endless_output_ends_the_command(command: str, tmp_path: Path) -> None:
    limits = ProcessLimits(term_grace_s=0.1)
    with assert_nothing_left(within_s=0):
        result = await run(shell(tmp_path, max_written_bytes=1_000_000, limits=limits), command=command)
    assert result.error_message == "It was ended because it wrote more than 1000000 bytes."
    assert "y\ny\n" in content(result)["stdout"] + content(result)["stderr"]


@pytest.mark.parametrize("command", ["head -c 100000 /dev/urandom", "printf 'a\\0b'", "cat /bin/sh"])
async def test_binary_output_is_named_and_not_shown(command: str, tmp_path: Path) -> None:
    result = content(await run(shell(tmp_path), command=command))
    assert result["stdout"].endswith("bytes of binary output]")


async def test_a_few_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    command = "printf 'twenty letters of text \\377'"
    assert content(await run(shell(tmp_path), command=command))["stdout"] == "twenty letters of text \ufffd"


@pytest.mark.parametrize(
    ("most", "words"),
    [
        (0, "\n[... 29 bytes were left out here ...]\n"),
        (1, "\n[... 29 bytes were left out here ...]\n"),
        (18, "ää€\n[... 15 bytes were left out here ...]\n€ää"),
        (20, "ää€€\n[... 9 bytes were left out here ...]\n€€ää"),
        (30, "ää€€€€€€€ää"),
    ],
)
async def test_text_is_cut_between_its_characters(most: int, words: str, tmp_path: Path) -> None:
    result = await run(shell(tmp_path, max_output_bytes=most), command="printf ää€€€€€€€ää")
    assert content(result)["stdout"] == words


async def test_a_replacement_character_in_a_text_is_text(tmp_path: Path) -> None:
    assert content(await run(shell(tmp_path), command="printf '\ufffd'"))["stdout"] == "\ufffd"


# --- How it ends ---


@pytest.mark.parametrize("how", ["sleep 600", "trap '' TERM; echo up; while :; do sleep 600; done"])
async def test_its_own_limit_ends_a_command_and_keeps_what_it_wrote(how: str, tmp_path: Path) -> None:
    spec = shell(tmp_path, timeout_s=1.0, limits=ProcessLimits(term_grace_s=0.1))
    with assert_nothing_left(within_s=0):
        result = await run(spec, command=f"echo begun; {how}")
    assert result.error_message == "It was ended after 1 s, its time limit."
    assert content(result)["stdout"].startswith("begun\n")
    assert content(result)["signal"] in ("SIGTERM", "SIGKILL")


async def test_a_command_is_ended_before_the_call_s_smaller_limit_and_what_it_wrote_is_kept(
    tmp_path: Path,
) -> None:
    with assert_nothing_left(within_s=0):
        result = await run(shell(tmp_path), 5.0, command="echo begun; sleep 600")
    assert result.error_message == "It was ended after 4.5 s, its time limit."
    assert content(result) == {"signal": "SIGTERM", "stdout": "begun\n", "stderr": ""}


async def test_the_turn_s_limit_ends_a_command_as_a_timeout(tmp_path: Path) -> None:
    with assert_nothing_left(within_s=0), pytest.raises(ToolTimedOutError):
        await run(shell(tmp_path), 0.2, command="trap '' TERM; while :; do sleep 600; done")


@pytest.mark.parametrize(
    "command",
    [
        "sleep 600 & echo done",
        "(trap '' TERM HUP; sleep 600) & echo done",
        pytest.param(
            f"{SETSID} sleep 600 & echo done",
            id="setsid",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux has marks"),
        ),
        "nohup sleep 600 >/dev/null 2>&1 & echo done",
    ],
)
async def test_nothing_that_a_command_started_outlives_it(command: str, tmp_path: Path) -> None:
    with assert_nothing_left(within_s=0):
        result = await run(shell(tmp_path), command=command)
        assert content(result) == {"exit_status": 0, "stdout": "done\n", "stderr": ""}


async def test_a_cancelled_call_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    stubborn = "trap '' TERM; touch up; while :; do sleep 600; done"
    with assert_nothing_left(within_s=0):
        async with shell(tmp_path).connect(SH, ProcessRegistry()) as connection:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def cancel() -> None:
                        while not (tmp_path / "up").exists():  # noqa: ASYNC110 - another process makes it
                            await anyio.sleep(0.01)
                        scope.cancel()

                    group.start_soon(cancel)
                    await connection.call("run", {"command": stubborn}, LONG_S)
            assert scope.cancelled_caught
            result = await connection.call("run", {"command": "echo again"}, LONG_S)
    assert content(result)["stdout"] == "again\n"


HOST = """
import sys
from grue import ShellTool, ToolClient
with ToolClient({"sh": ShellTool(folder=sys.argv[1], commands="any", shell=True)}) as client:
    command = "trap '' TERM; touch up; while :; do sleep 987654; done"
    client.call("sh.run", {"command": command}, timeout_s=300)
"""


def sleepers() -> set[int]:
    found = set()
    for entry in all_processes():
        try:
            words = Path(f"/proc/{entry.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"987654" in words:
            found.add(entry.pid)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
@pytest.mark.slow
def test_nothing_is_left_when_the_host_is_stopped_during_a_command(number: int, tmp_path: Path) -> None:
    before = sleepers()
    with subprocess.Popen([sys.executable, "-c", HOST, str(tmp_path)], stderr=subprocess.PIPE) as host:
        wait_until(lambda: (tmp_path / "up").exists() and bool(sleepers() - before))
        host.send_signal(number)
        _, errors = host.communicate(timeout=150)
    assert host.returncode == (-number if number == signal.SIGKILL else -signal.SIGINT)
    if number == signal.SIGINT:
        assert b"KeyboardInterrupt" in errors
    wait_until(lambda: not sleepers() - before)


def wait_until(condition: Any) -> None:
    while not condition():  # pytest's own time limit ends a hang
        time.sleep(0.02)


def test_a_tool_client_serves_it_as_any_other_server(tmp_path: Path) -> None:
    servers = {"sh": ShellTool(folder=tmp_path, commands=["ls"])}
    with assert_nothing_left(), ToolClient(servers) as client:
        (tool,) = client.tools()
        assert tool.name == "sh.run"
        assert tool.annotations is not None
        assert tool.annotations.destructive
        assert "Allowed: ls." in tool.description
        assert client.call("sh.run", {"argv": ["ls", "-a"]}).content == {
            "exit_status": 0,
            "stdout": ".\n..\n",
            "stderr": "",
        }


def test_the_values_of_its_variables_are_never_shown(tmp_path: Path) -> None:
    spec = shell(tmp_path, env={"B_TOKEN": "planted-0123456789"})
    assert "planted" not in repr(spec)
    recorder, shown = Recorder(), []
    recorder.add(lambda envelope, line: shown.append(line))
    hide_secrets(recorder, [spec])
    recorder.record({"text": "it is planted-0123456789"}, sender="a")
    assert b"[redacted:B_TOKEN]" in shown[0]
