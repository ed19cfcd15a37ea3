"""README.md: what it shows is what the program does."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment, forked, python

from grue.config.mcp_servers import MCPConfig, to_tool_server
from grue.config.settings import GameConfiguration
from grue.testing import faulty_server
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SEEN = (ROOT / "docs" / "what-you-see.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs" / "guides" / "configuration.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The last code block in a language."""
    *_, found = re.findall(rf"^```{language}\n(.*?)^```$", README + CONFIGURATION, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.slow
def test_the_first_block_is_short_and_runs_with_nothing_but_grue(tmp_path: Path) -> None:
    """It stands before the game, and needs no model, server, key or extra."""
    first, *_ = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert first[0] == "python"
    assert len([line for line in first[1].splitlines() if line]) <= 9
    assert README.index(first[1]) < README.index("make play")
    without_mcp = "import sys; sys.modules['mcp'] = None\n"
    done = python("-c", without_mcp + first[1], cwd=tmp_path)
    assert done.stdout == "Yes: there are 12 eggs.\n", done.stderr
    assert list((tmp_path / "runs").glob("*/trace.jsonl"))


def test_it_ends_with_three_links() -> None:
    assert len(re.findall(r"\]\(", README.partition("## Where to go next")[2])) == 3


@pytest.mark.slow
def test_what_it_shows_of_a_game_and_of_its_trace_is_what_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    tool = importlib.import_module("refresh_what_you_see")
    monkeypatch.setattr(tool, "GRUE", forked("grue"))
    assert tool.main(["--check"]) == 0, capsys.readouterr().out


LINE = "183  2.152  181  mind → agent   ToolReturned   call_1 1.9 ms: thought 1 of 3, and {}"


@pytest.mark.parametrize(
    ("fresh", "now", "same"),
    [
        ("a word…", "a word…", True),
        ("a word…", "a work…", False),
        ("a word", "a work", False),
        ("a wo…", "a word", True),
        ("a word…", "a", False),
        ("12.3 ms…", "9.3 ms more…", True),
        ("12.3 m…", "9.3 ms more…", True),
        ("12.…", "9.3 ms more…", True),
        ("a lamp. San…", "a lamp", True),
    ],
)
def test_only_what_differs_from_run_to_run_may_differ(
    monkeypatch: pytest.MonkeyPatch, fresh: str, now: str, same: bool
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    tool = importlib.import_module("refresh_what_you_see")
    page = "text\n{}\nmore text"
    assert tool.same(page.format(LINE.format(fresh)), page.format(LINE.format(now))) == same
    assert not tool.same(page.format(LINE.format(fresh)), "text")


def test_the_excerpts_are_short_and_say_that_the_model_is_a_script() -> None:
    play, trace = (
        SEEN.partition(f"<!-- {name}:begin -->")[2].partition(f"<!-- {name}:end -->")[0].splitlines()[2:-1]
        for name in ("play", "trace")
    )
    assert len(play) <= 48
    assert len(trace) <= 22
    assert max(map(len, trace)) <= 100
    assert any("No LLM is used" in line for line in play)
    assert any(line.startswith("won: 100 of 100 points") for line in play)


@pytest.mark.slow
def test_the_python_example_runs_as_it_stands(tmp_path: Path) -> None:
    """Only the endpoint and the server's command are other ones: there is neither on this machine."""
    program, *arguments = faulty_server.argv()
    call = tool_calls_reply(("fs.echo", {"text": "hello"}))
    with ScriptedLlmServer([call, text_reply('{"file": "README.md", "bytes": 9000}')]) as llm:
        code = block("python").replace("http://127.0.0.1:11434/v1", llm.base_url)
        code = re.sub(r'command="npx", args=\(.*?\)', f"command={program!r}, args={tuple(arguments)!r}", code)
        (tmp_path / "example.py").write_text(code, encoding="utf-8")
        done = subprocess.run(
            forked("example.py"), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "README.md answered ['fs.echo']\n"
    assert [request.refused for request in llm.requests] == [None, None]
    assert list((tmp_path / "runs").glob("*/trace.jsonl"))


def test_every_name_that_the_python_example_imports_is_used() -> None:
    (names,) = re.findall(r"^from grue import (.*)$", block("python"), re.MULTILINE)
    body = block("python").partition(f"import {names}")[2]
    assert all(name in body for name in names.split(", "))


def test_the_settings_shown_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(block("toml"), encoding="utf-8")
    shown = GameConfiguration.from_toml(tmp_path / "pyproject.toml")
    assert shown == GameConfiguration(project_dir=tmp_path)


def test_the_sample_of_servers_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "mcp_config.json"
    path.write_text(block("json"), encoding="utf-8")
    servers = MCPConfig.from_file(path, environ={})
    name, config = servers.get_server_config()
    server = to_tool_server(name, config)
    assert server.args == ("-y", "@modelcontextprotocol/server-sequential-thinking")
    assert server.env == {"DISABLE_THOUGHT_LOGGING": "true"}
    assert servers.warnings == ()
    assert json.loads(block("json"))["mcpServers"].keys() == {name}


def test_its_links_lead_somewhere() -> None:
    paths = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_the_commands_shown_are_options_of_the_program() -> None:
    shown = set(re.findall(r"grue play (.*?)(?:  #.*)?$", SEEN, re.MULTILINE))
    options = {word for line in shown for word in line.split() if word.startswith("--")}
    assert {"--model", "--base-url", "--game", "--mcp-config"} <= options
    told = subprocess.run(
        [sys.executable, "-m", "grue", "play", "--help"],
        env=environment(COLUMNS="200", NO_COLOR="1"),
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    ).stdout
    assert [option for option in options if option not in told] == []
