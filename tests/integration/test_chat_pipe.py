"""`grue chat` in a pipe, as a program of its own: killed, interrupted, left by its reader."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import (
    DEADLINE_S,
    environment,
    faulty,
    forked,
    group_is_gone,
    server_pids,
    wait_for_body,
    write_servers,
)

from grue.testing.llm_server import ScriptedLlmServer, completion

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

CALL = 'call mcp.stuck.echo {"text": "x"}\n'


@contextmanager
def chatting(cwd: Path, *args: str) -> "Iterator[subprocess.Popen[str]]":
    """A chat that is being fed by this process, in a session of its own."""
    with subprocess.Popen(
        forked("grue", "chat", *args),
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def stuck_in_a_call(cwd: Path, program: "subprocess.Popen[str]") -> None:
    assert program.stdin is not None
    program.stdin.write(f"my name is Ada\n{CALL}")
    program.stdin.flush()
    wait_for_body(cwd / "run", "ToolCalled")


@pytest.fixture
def arguments(tmp_path: Path) -> tuple[str, ...]:
    """Offline, with a server that never answers a call."""
    write_servers(tmp_path / "mcp.json", stuck=faulty("--silent-at", "call"))
    return ("--offline", "--mcp-config", "mcp.json", "--run-dir", "run")


@pytest.mark.slow
def test_a_killed_chat_is_resumed_and_told_what_was_under_way(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with chatting(tmp_path, *arguments) as program:
        stuck_in_a_call(tmp_path, program)
        killed = server_pids(tmp_path / "run")
        program.kill()
    assert all(map(group_is_gone, killed))
    with chatting(tmp_path, "--resume", "run") as program:
        out, err = program.communicate("what did I say?\n/undo\n/undo\n/save said.md\n", DEADLINE_S)
    assert program.returncode == 0, err
    assert out.splitlines()[:3] == ["You have said (scripted):", "- my name is Ada", f"- {CALL.strip()}"]
    assert "Its tool call was made (mcp.stuck.echo). What that has done remains." in out
    assert "my name is Ada" in (tmp_path / "said.md").read_text()
    assert "stuck" not in (tmp_path / "said.md").read_text()
    kept = (tmp_path / "run" / "conversation.jsonl").read_text()
    assert "interrupted; it may have taken effect" in kept


@pytest.mark.slow
def test_ctrl_c_in_a_pipe_ends_it_with_its_servers(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with chatting(tmp_path, *arguments) as program:
        stuck_in_a_call(tmp_path, program)
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=DEADLINE_S)
    assert program.returncode == 130
    assert "Traceback" not in err
    assert "To go on: " in err
    assert "grue chat --resume run\n" in err
    assert all(map(group_is_gone, server_pids(tmp_path / "run")))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["reason"] == "interrupted"


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_it_without_a_traceback(tmp_path: Path) -> None:
    with chatting(tmp_path, "--offline", "--no-mcp", "--run-dir", "run") as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        program.stdin.write("hello\n")
        program.stdin.close()
        err = program.stderr.read()
        assert program.wait(DEADLINE_S) == 1
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_reply_that_was_cut_is_told(tmp_path: Path) -> None:
    cut = completion({"role": "assistant", "content": "Where milk is born,"}, finish_reason="length")
    with ScriptedLlmServer(lambda _: cut) as llm:
        (tmp_path / "pyproject.toml").write_text(
            f'[tool.grue.llm]\nclient_base_url = "{llm.base_url}"\nagent_model = "m"\n'
            "[tool.grue.agent_sampling]\nmax_tokens = 12\n"
        )
        with chatting(tmp_path, "--no-mcp") as program:
            answer, told = program.communicate("A poem, please.\n", timeout=DEADLINE_S)
    assert "Where milk is born," in answer
    assert "the model's reply was cut short at 12 tokens (max_tokens)" in told
