"""The commands, run in this process: what they print and how they exit."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import grue
from grue.cli.app import app
from grue.testing import faulty_server
from grue.testing.llm_server import ScriptedLlmServer, text_reply

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

ANSWER = json.dumps({"thinking": "why not", "action": "north", "new_objective": None})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A runner in an empty folder, without keys."""
    monkeypatch.chdir(tmp_path)
    for name in ("GRUE_API_KEY", "OPENROUTER_API_KEY", "OPENAI_API_KEY", "GRUE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return CliRunner()


def write_servers(*flags: str) -> None:
    program, *args = faulty_server.argv(*flags)
    entry = {"command": program, "args": args}
    Path("mcp_config.json").write_text(json.dumps({"mcpServers": {"faulty": entry}}))


def test_the_version_is_the_packages(run: CliRunner) -> None:
    told = run.invoke(app, ["--version"])
    assert (told.exit_code, told.output) == (0, f"grue {grue.__version__}\n")


@pytest.mark.slow
def test_an_episode_is_played_and_its_trace_shown(run: CliRunner) -> None:
    played = run.invoke(app, ["play", "--offline", "--seed", "7", "--turns", "10", "--run-dir", "run"])
    assert played.exit_code == 0, played.output
    assert "Turn 10 · Pantry" in played.output
    assert "mind.think: " in played.output
    assert "turn_limit: 10 of 100 points, 10 turns, 2 tool calls" in played.output
    shown = run.invoke(app, ["trace", "show", "run", "--width", "90"])
    assert shown.exit_code == 0
    assert "SessionClosed" in shown.output


@pytest.mark.slow
def test_offline_npx_starts_a_server_from_what_is_installed(
    run: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "npx"
    program.parent.mkdir()
    server = shlex.join(faulty_server.argv())
    program.write_text(
        f'#!/bin/sh\n[ "$npm_config_offline" = true ] || exit 9\nexec {server}\n', encoding="utf-8"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    entry = {"command": "npx", "args": ["-y", "some-server"]}
    Path("mcp_config.json").write_text(json.dumps({"mcpServers": {"seq": entry}}), encoding="utf-8")
    played = run.invoke(app, ["play", "--offline", "--mcp-config", "mcp_config.json", "--turns", "1"])
    assert played.exit_code == 0, played.output
    assert "turn_limit: " in played.output


@pytest.mark.slow
def test_json_and_quiet_print_what_they_say(run: CliRunner) -> None:
    lines = run.invoke(app, ["play", "--offline", "--turns", "1", "--json"]).output.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["episode", "turn", "end"]
    quiet = run.invoke(app, ["play", "--offline", "--turns", "1", "--quiet", "--run-dir", "q"]).output
    assert quiet.startswith("turn_limit: ")


def test_an_episode_that_fails_exits_with_one(run: CliRunner) -> None:
    Path("pyproject.toml").write_text("[tool.zorkgpt.retry]\nmax_retries = 0\n")
    arguments = ["play", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--no-mcp"]
    failed = run.invoke(app, arguments)
    assert failed.exit_code == 1
    assert "failed: " in failed.output


def test_a_configuration_that_cannot_be_used_exits_with_two(run: CliRunner) -> None:
    refused = run.invoke(app, ["play", "--offline", "--mcp-config", "nowhere.json"])
    assert refused.exit_code == 2
    assert "grue: The file of MCP servers nowhere.json was not found." in refused.output


@pytest.mark.parametrize("command", ["play", "chat"])
def test_servers_and_none_are_not_asked_for_together(run: CliRunner, command: str) -> None:
    refused = run.invoke(app, [command, "--offline", "--no-mcp", "--mcp-config", "nowhere.json"])
    assert refused.exit_code == 2
    assert "grue: --no-mcp and --mcp-config contradict each other: remove one of them." in refused.output


@pytest.mark.parametrize(
    "command", ["play --offline --turn-timeout", "chat --offline --turn-timeout", "call a.b --timeout"]
)
@pytest.mark.parametrize("limit", ["inf", "1e19"])
def test_a_time_limit_that_is_none_is_refused_by_its_option(run: CliRunner, command: str, limit: str) -> None:
    refused = run.invoke(app, [*command.split(), limit])
    assert refused.exit_code == 2
    assert re.search(
        rf"'--(turn-)?timeout': {re.escape(f'{float(limit):g}')} is not a usable", refused.output
    )


@pytest.mark.parametrize("command", ["play", "run"])
def test_a_program_that_wants_json_gets_no_text_in_its_place(run: CliRunner, command: str) -> None:
    refused = run.invoke(app, [command, "--offline", "--json", "--quiet"])
    assert refused.exit_code == 2
    assert "grue: --quiet and --json contradict each other: remove one of them." in refused.output
    assert not list(Path().iterdir())


def test_debugging_shows_where_an_error_came_from(run: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUE_DEBUG", "1")
    assert "Traceback" in run.invoke(app, ["play", "--offline", "--game", "chess"]).output


@pytest.mark.parametrize(("pressed", "status"), [(KeyboardInterrupt, 130), (EOFError, 1)])
def test_ctrl_c_at_a_question_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, pressed: type[BaseException], status: int
) -> None:
    def read(_: str) -> str:
        raise pressed

    monkeypatch.setitem(typer.prompt.__globals__, "visible_prompt_func", read)
    monkeypatch.setattr("grue.cli.add.remove_server", lambda *_: typer.confirm("Go on?"))
    with pytest.raises(SystemExit) as ended:
        app(["remove", "files"])
    assert ended.value.code == status


@pytest.mark.slow
def test_the_projects_own_settings_are_used(run: CliRunner) -> None:
    write_servers()
    Path("pyproject.toml").write_text("[tool.zorkgpt.mcp]\nenabled = true\n")
    with ScriptedLlmServer([text_reply(ANSWER)]) as server:
        played = run.invoke(
            app, ["play", "--base-url", server.base_url, "--model", "m", "--turns", "1", "--run-dir", "run"]
        )
        assert played.exit_code == 0, played.output
        names = [tool["function"]["name"] for tool in server.requests[0].body["tools"]]
    assert names == ["faulty.echo", "faulty.environ", "faulty.fail"]


def test_mcp_that_is_declined_in_so_many_words_stays_off(run: CliRunner) -> None:
    Path("pyproject.toml").write_text("[tool.zorkgpt.mcp]\nenabled = false\n")
    played = run.invoke(app, ["play", "--offline", "--turns", "1", "--run-dir", "run"])
    assert "no tools" in played.output


def test_tools_are_listed_and_called(run: CliRunner) -> None:
    write_servers()
    listed = run.invoke(app, ["tools", "--mcp-config", "mcp_config.json"])
    assert listed.exit_code == 0, listed.output
    assert "faulty.echo" in listed.output
    called = run.invoke(app, ["call", "faulty.echo", '{"text": "hello"}', "--mcp-config", "mcp_config.json"])
    assert called.exit_code == 0, called.output
    assert "hello" in called.output
    failed = run.invoke(app, ["call", "faulty.fail", "--mcp-config", "mcp_config.json"])
    assert failed.exit_code == 1


@pytest.mark.slow
def test_the_doctor_says_what_is_wrong_and_exits_with_one(run: CliRunner) -> None:
    write_servers()
    well = run.invoke(app, ["doctor", "--no-network", "--mcp-config", "mcp_config.json"])
    assert "faulty" in well.output
    write_servers("--exit-at", "start", "--stderr", "no disk")
    ill = run.invoke(app, ["doctor", "--no-network", "--mcp-config", "mcp_config.json"])
    assert ill.exit_code == 1
    assert "no disk" in ill.output


@pytest.mark.slow
def test_grue_alone_names_three_commands_that_exist(run: CliRunner) -> None:
    code = "import sys; sys.argv = ['grue']; from grue.cli.main import main; main()"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    named = re.findall(r"^  grue (\w+)", said, re.MULTILINE)
    assert named == ["play", "init", "doctor"]
    assert max(map(len, said.splitlines())) <= 80
    for name in named:
        assert run.invoke(app, [name, "--help"]).exit_code == 0


def test_a_word_that_is_no_choice_is_refused_in_plain_words(run: CliRunner) -> None:
    refused = run.invoke(app, ["fork", "--misses", "guess"])
    assert refused.exit_code == 2
    said = " ".join(re.sub("[│╭╮╰╯─]", " ", refused.stderr).split())
    assert "Invalid value for '--misses': 'guess' is not one of 'fail', 'call', 'ask'." in said


def helps(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, each in getattr(command, "commands", {}).items():
        yield from helps(each, (*path, name))


@pytest.mark.slow
def test_no_help_names_a_file_that_is_not_installed(run: CliRunner) -> None:
    paths = [*helps(typer.main.get_command(app))]
    assert ("trace", "show") in paths
    for path in paths:
        shown = run.invoke(app, [*path, "--help"])
        assert shown.exit_code == 0
        assert not re.search(r"docs/|\.md\b", shown.output), path
        assert not re.search(r"<[A-Za-z\[\] ]+>", shown.output), path  # types of Python, such as <bool>


def command_at(path: tuple[str, ...]) -> Any:
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    return command


def test_no_line_of_the_help_is_broken_at_80_columns() -> None:
    """Lines after the first paragraph are not joined."""
    for path in helps(typer.main.get_command(app)):
        _, _, further = (command_at(path).help or "").partition("\n\n")
        assert max(map(len, further.splitlines()), default=0) < 79, path


def test_the_guide_of_traces_names_each_command_of_grue_trace() -> None:
    root = Path(__file__).resolve().parents[3]
    guide = (root / "docs" / "guides" / "traces.md").read_text(encoding="utf-8")
    assert [name for name in command_at(("trace",)).commands if f"grue trace {name}" not in guide] == []


@pytest.mark.slow
def test_every_word_of_the_help_is_printed(run: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich takes `[word]` for markup and leaves it out."""
    monkeypatch.setenv("COLUMNS", "80")
    for path in helps(typer.main.get_command(app)):
        command = command_at(path)
        printed = re.sub(r"[\s│]", "", run.invoke(app, [*path, "--help"]).output)
        texts = [command.help or "", *(each.help or "" for each in command.params)]
        for text in texts:
            assert re.sub(r"\s", "", text.replace("\\[", "[")) in printed, (path, text)


@pytest.mark.slow
def test_errors_in_an_empty_folder_name_what_to_do_next(run: CliRunner) -> None:
    for command, says in (
        ("view", "No such command 'view'. Write: grue trace html --open"),
        ("replay x", "No such command 'replay'. Write: grue trace replay"),
        ("ls", "No such command 'ls'. Write: grue runs"),
        ("trace view", "No such command 'view'. Write: grue trace html --open"),
        ("trace test", "No such command 'test'. Did you mean 'to-test'?"),
        ("fleet rm", "No such command 'rm'."),
        ("run", "`grue run --offline` writes an example"),
        ("skills", "`grue run --offline` writes an example"),
        ("remove a", "grue init writes one"),
        ("login a", "`grue add` adds one"),
        ("call a", "grue tools lists them"),
        ("sandbox try a ls", "Presets: pure, files, web."),
        ("sandbox learn a.json b", "`grue init` writes one"),
        ("mock-server", "Choose one: --stdio, or --http PORT"),
        ("trace show", "`grue play --offline` makes one"),
        ("fork", "`grue play --offline` makes one"),
        ("fleet fork nowhere", "There is no recorded turn in nowhere. `grue runs` lists the runs."),
        *((f"fleet {each} nowhere", "`grue fleet run SWEEP.toml` makes one") for each in FLEET),
    ):
        refused = run.invoke(app, shlex.split(command))
        said = " ".join(re.sub("[│╭╮╰╯─]", " ", refused.output).split())
        assert refused.exit_code in (1, 2), command
        assert says in said, (command, said)
        assert [*Path().iterdir()] == [], f"{command} leaves something behind"


@pytest.mark.slow
def test_what_people_type_or_name_wrong_is_refused_in_a_sentence_that_names_it(run: CliRunner) -> None:
    Path("empty").touch()
    Path("text.mcpb").write_text("no archive")
    Path("empty.toml").touch()
    deep = "[" * 3000
    Path("deep.json").write_text(deep)
    for command, status, says in (
        (f"trace replay empty --set x={deep}", 2, "there is no field x"),
        (f"fork empty --set llm.x={deep} --tool-result c=deep.json", 2, "deep.json is not JSON"),
        ("play --offline --game missing.z5", 2, "grue: Cannot read the story file missing.z5"),
        ("play --offline --run-dir empty", 1, "Cannot create the run folder empty: it is a file."),
        ("play --interpreter x --offline", 2, "'x' is not one of 'dfrotz', 'fernz'"),
        ("play --base-url x", 2, "--base-url should be an http:// or https:// URL"),
        ("chat --base-url ''", 2, "--base-url should be an http:// or https:// URL"),
        ("play --model ''", 2, "--model is the text ''"),
        ("init empty", 2, "Cannot write into empty: it is not a folder."),
        ("add text.mcpb", 2, "The bundle text.mcpb cannot be used. It is not a zip file."),
        ("add http://127.0.0.1:9/server.json", 2, "127.0.0.1 cannot be asked"),
        ("add http://127.0.0.1:9/x.mcpb", 2, "Download the bundle yourself"),
        ("run --resume missing", 1, "Cannot read the trace file missing"),
        ("run --resume missing x.yaml", 2, "remove AGENT.yaml."),
        ("call mind.think no", 2, """Write '{"name": value}', or --arg name=value."""),
        ("mock-server --stdio --era x", 2, "'x' is not one of 'initialize', 'stateless', 'both'"),
        ("trace replay empty --after-timeout x", 2, "'x' is not one of 'skip', 'continue', 'force'"),
        ("fleet run empty.toml --engine x", 2, "'x' is not one of 'local', 'ray'"),
        ("fleet score empty empty.toml", 1, "grue: "),
        ("fleet export empty --as x", 2, "'x' is not one of 'parquet', 'samples', 'atif'"),
    ):
        refused = run.invoke(app, shlex.split(command))
        said = " ".join(re.sub("[│╭╮╰╯─]", " ", refused.output).split())
        assert refused.exit_code == status, (command, said)
        assert says in said, (command, said)
        assert "the bundled server" not in said or "run-dir" in command, command


@pytest.mark.slow
def test_a_query_without_a_statement_and_one_of_no_trace_are_refused(run: CliRunner) -> None:
    pytest.importorskip("duckdb", reason="pip install 'grue[export]'")
    Path("empty").touch()
    for words, says in (
        (["select * from calls", "empty"], "empty is not a grue trace: it is empty."),
        (["", "empty"], "The query has no statement."),
    ):
        refused = run.invoke(app, ["trace", "query", *words])
        assert (refused.exit_code, says in refused.output) == (1, True), refused.output


@pytest.mark.slow
def test_a_server_that_does_not_start_is_not_learned_and_the_way_back_names_its_file(run: CliRunner) -> None:
    Path("server.py").touch()
    added = run.invoke(app, ["add", "server.py", "--yes", "--mcp-config", "other.json"])
    assert added.exit_code == 1
    assert "To take it out again: grue remove server --mcp-config other.json" in added.output
    learned = run.invoke(app, ["sandbox", "learn", "other.json", "server"])
    assert learned.exit_code == 1
    assert "Failed to start MCP server 'server'" in learned.output
    assert "proposed sandbox" not in learned.output


def test_calls_that_are_not_text_are_refused(run: CliRunner) -> None:
    write_servers()
    learned = run.invoke(app, ["sandbox", "learn", "mcp_config.json", "faulty"], input=b"\xff\xfe")
    assert learned.exit_code == 2
    assert "The calls on standard input are not UTF-8 text." in learned.output


FLEET = ("status", "table", "failures", "export", "stop")
