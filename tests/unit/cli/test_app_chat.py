"""`grue chat` in a pipe: lines in, answers out, and an exit status; and what it says when it cannot begin."""

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import boxes
import pytest
from typer.testing import CliRunner

from grue import ContextPolicy, StdioServer, ToolSearch
from grue.cli.app import app
from grue.cli.chat import program
from grue.cli.chat.talk import ChatOptions, wire_chat
from grue.testing import faulty_server
from grue.testing.llm_server import ScriptedLlmServer, error_reply, text_reply

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

THINK = json.dumps({"thought": "A door.", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A runner in an empty folder, without keys."""
    monkeypatch.chdir(tmp_path)
    for name in ("GRUE_API_KEY", "OPENROUTER_API_KEY", "OPENAI_API_KEY", "GRUE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return CliRunner()


def chat(run: CliRunner, *args: str, said: str = "") -> Any:
    return run.invoke(app, ["chat", *args], input=said)


def test_lines_in_answers_out(run: CliRunner) -> None:
    said = f"call mcp.mind.think {THINK}\nwhat did \\\nI say?\nwhat did I say?\n"
    done = chat(run, "--offline", "--run-dir", "my run", said=said)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith('The tool says: {"thoughtNumber":1')
    assert lines[-2:] == ["- what did ", "I say?"]
    assert "mcp.mind.think" in done.stderr
    assert "To go on: grue chat --resume 'my run'\n" in done.stderr
    assert "\x1b" not in done.output


def test_a_chat_is_resumed_with_its_options(run: CliRunner) -> None:
    chat(run, "--offline", "--no-mcp", "--system", "Be kind.", "--run-dir", "run", said="my name is Ada\n")
    again = chat(run, "--resume", "run", "--quiet", said="what did I say?\n/undo\n/undo\n")
    assert again.exit_code == 0, again.output
    assert again.stderr == ""
    assert "- my name is Ada" in again.stdout
    assert again.stdout.splitlines()[-1] == "Taken back: my name is Ada"
    refused = chat(run, "--resume", "run", "--model", "m")
    assert refused.exit_code == 2
    assert "--resume uses the options of the first run: remove --model." in refused.stderr


@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_a_quiet_chat_prints_no_warnings(run: CliRunner, options: tuple[str, ...]) -> None:
    Path("mcp_config.json").write_text('{"mcpServers": {}, "sandbox": {"filesystem": {}}}')
    done = chat(run, "--offline", *options, said="hi\n")
    assert ("applies only to servers" in done.stderr) is not bool(options)


@pytest.mark.slow
def test_in_a_pipe_nobody_is_asked(run: CliRunner) -> None:
    done = chat(run, "--offline", "--ask", said=f"call mcp.mind.think {THINK}\n")
    assert "it needs an approval, and there is no terminal to ask at" in done.stdout


@pytest.mark.slow
def test_the_servers_of_a_file_have_the_prefix_and_the_projects_policy_holds(run: CliRunner) -> None:
    program_, *args = faulty_server.argv()
    servers = {"faulty": {"command": program_, "args": args}, "odd": {"command": "${MISSING}"}}
    Path("mcp.json").write_text(json.dumps({"mcpServers": servers}))
    rule = '[[tool.grue.tool_policy.rules]]\ntools = ["faulty.fail"]\nverdict = "deny"\n'
    Path("pyproject.toml").write_text(rule)
    said = '/tools echo\ncall mcp.faulty.echo {"text": "hi"}\ncall mcp.faulty.fail\n'
    done = chat(run, "--offline", "--mcp-config", "mcp.json", said=said)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("mcp.faulty.echo")
    assert "hi" in done.stdout
    assert "denied" in done.stdout
    assert "odd" in done.stderr


def test_with_mcp_switched_off_there_is_no_server(run: CliRunner) -> None:
    Path("pyproject.toml").write_text("[tool.grue.mcp]\nenabled = false\n")
    Path("mcp_config.json").write_text('{"mcpServers": {"mine": {"command": "python"}}}')
    assert wire_chat(ChatOptions(offline=True)).servers == {}


def test_a_chat_has_the_context_policy_of_the_project(run: CliRunner) -> None:
    options = ChatOptions(offline=True, mcp=False)
    assert wire_chat(options).runner["context"] == ContextPolicy()
    Path("pyproject.toml").write_text("[tool.grue.context]\nwindow_tokens = 32000\n")
    assert wire_chat(options).runner["context"] == ContextPolicy(window_tokens=32_000)


def test_a_chat_searches_tools_as_the_project_says(run: CliRunner) -> None:
    options = ChatOptions(offline=True, mcp=False)
    assert wire_chat(options).runner["tool_search"] is None
    Path("pyproject.toml").write_text('[tool.grue.tool_search]\nabove = 40\nalways = ["shop.list"]\n')
    # The loop adds the names with the prefix `mcp.`.
    assert wire_chat(options).runner["tool_search"] == ToolSearch(above=40, always=("shop.list",))


def test_a_line_without_an_answer_is_told_and_the_next_one_is_answered(run: CliRunner) -> None:
    Path("pyproject.toml").write_text("[tool.grue.retry]\nmax_retries = 0\n")
    with ScriptedLlmServer([error_reply(500, "no luck"), text_reply("yes")]) as llm:
        done = chat(run, "--base-url", llm.base_url, "--model", "m", "--no-mcp", said="a\nb\n/fly\n")
    assert done.exit_code == 1
    assert done.stdout == "yes\n"
    assert "no luck" in done.stderr
    assert "There is no command /fly." in done.stderr


def test_a_mistyped_command_fails_nothing_and_names_the_nearest(run: CliRunner) -> None:
    done = chat(run, "--offline", "--no-mcp", said="/tolls\nthink about lamps\n")
    assert done.exit_code == 0, done.output
    assert "There is no command /tolls. Did you mean /tools?" in done.stderr
    result = json.loads(next(Path("runs").iterdir()).joinpath("result.json").read_text())
    assert result["reason"] == "ended"


def test_offline_a_server_of_npx_starts_from_what_is_installed(run: CliRunner) -> None:
    Path("mcp_config.json").write_text(
        '{"mcpServers": {"seq": {"command": "npx", "args": ["-y", "some-server"]}}}', encoding="utf-8"
    )
    server = wire_chat(ChatOptions(offline=True, instructions="x")).servers["seq"]
    assert isinstance(server, StdioServer)
    assert server.env["npm_config_offline"] == "true"


def test_what_every_line_would_meet_ends_it(run: CliRunner) -> None:
    with ScriptedLlmServer([error_reply(401, "bad key")]) as llm:
        done = chat(run, "--base-url", llm.base_url, "--model", "m", "--no-mcp", said="a\nb\nc\n")
        assert len(llm.requests) == 1
    assert done.exit_code == 1
    result = json.loads(next(Path("runs").iterdir()).joinpath("result.json").read_text())
    assert (result["reason"], result["turns"]) == ("failed", 1)


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (
            ("--base-url", "https://openrouter.ai/api/v1"),
            2,
            "There is no key for https://openrouter.ai/api/v1",
        ),
        (("--offline", "--mcp-config", "nowhere.json"), 2, "nowhere.json"),
        (("--offline", "--mcp-config", "broken.json"), 1, "Failed to start MCP server 'mcp.faulty'"),
        (("--resume", "nowhere"), 1, "Cannot read the trace file nowhere"),
    ],
)
def test_what_is_missing_is_one_sentence(
    run: CliRunner, args: tuple[str, ...], status: int, words: str
) -> None:
    program_, *rest = faulty_server.argv("--exit-at", "start", "--stderr", "no disk")
    servers = {"faulty": {"command": program_, "args": rest}}
    Path("broken.json").write_text(json.dumps({"mcpServers": servers}))
    done = chat(run, *args, said="hello\n")
    assert (done.exit_code, done.stdout) == (status, "")
    assert done.stderr.startswith("grue: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_without_prompt_toolkit_a_terminal_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("grue.cli.chat.prompting"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ImportError,
        match=r"A chat at a terminal needs prompt_toolkit: pip install 'prompt_toolkit>=3\.0\.50,<4'",
    ):
        program._require_prompt_toolkit()


def test_a_trace_of_another_program_is_no_chat(run: CliRunner) -> None:
    run.invoke(app, ["play", "--offline", "--turns", "1", "--no-mcp", "--run-dir", "played"])
    done = chat(run, "--resume", "played")
    assert done.exit_code == 1
    assert "another program has recorded it" in done.stderr


def test_its_facts_are_shown_as_it_words_them(run: CliRunner) -> None:
    chat(run, "--offline", "--no-mcp", "--run-dir", "run", said="hello\n/undo\n")
    shown = run.invoke(app, ["trace", "show", "run"]).output
    assert "turn 1, from byte" in shown
    assert "turn 1 is no longer part of the conversation" in shown
    assert run.invoke(app, ["trace", "stats", "run"]).exit_code == 0


@boxes.needs_hosts
def test_a_server_is_watched_while_a_person_chats_and_its_box_is_proposed(
    run: CliRunner, tmp_path: Path
) -> None:
    for folder in ("code", "kept", "late"):
        (tmp_path / folder).mkdir()
    program = """
import os
from grue.hosts.servers import think
os.mkdir("code/__pycache__")
open("code/__pycache__/module.pyc", "w").close()
open("kept/thoughts", "w").close()
think.main([])
open("late/thoughts", "w").close()"""
    entry = {"command": sys.executable, "args": ["-c", program], "sandbox": "pure"}
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {"mind": entry}}))
    said = f"call mcp.mind.think {THINK}\n"
    done = chat(run, "--offline", "--quiet", "--learn", "mind", said=said)
    assert done.exit_code == 0, done.output
    shown = done.output[done.output.index("{\n") :]
    proposed, end = json.JSONDecoder().raw_decode(shown)
    places = (["kept", "late"], [str(tmp_path / "kept"), str(tmp_path / "late")])
    assert proposed["sandbox"]["write"] in places, "also what the server opened as it ended"
    because = [line.partition(" because it changed ")[2] for line in shown[end:].strip().splitlines()]
    assert because == [f"{place}/thoughts." for place in proposed["sandbox"]["write"]]
    unknown = chat(run, "--offline", "--learn", "absent")
    assert "There is no server absent to start" in unknown.output.replace("'", "")


def test_a_chat_in_which_nothing_is_said_leaves_no_run_behind(run: CliRunner) -> None:
    for said in ("", "/tools\n"):
        done = chat(run, "--offline", "--no-mcp", said=said)
        assert done.exit_code == 0, done.output
        assert "To go on" not in done.stderr
        assert [*Path("runs").iterdir()] == []
    chat(run, "--offline", "--no-mcp", "--run-dir", "mine", said="")
    assert Path("mine/trace.jsonl").is_file(), "a folder that somebody has named is kept"


def test_ctrl_c_in_a_turn_says_how_to_go_on(run: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grue.hosts.agent_loop.AgentLoop.run", press)
    done = chat(run, "--offline", "--no-mcp", "--run-dir", "run", said="hello\n")
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr == "To go on: grue chat --resume run\n"
    assert chat(run, "--resume", "run", "--quiet", said="hello\n").stderr == ""
