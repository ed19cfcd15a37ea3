"""`grue sandbox` and the `--learn` of a chat: servers that run in no process of this machine."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grue import StdioServer
from grue.cli import project
from grue.cli.app import app
from grue.sandbox.learning import Watch


@pytest.mark.parametrize(
    "words",
    [
        ("sandbox", "show", "far"),
        ("sandbox", "show", "far", "--seatbelt"),
        ("sandbox", "try", "far", "--", "true"),
        ("chat", "--offline", "--learn", "far"),
    ],
)
def test_a_server_that_has_a_url_is_known_and_has_no_process_for_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    servers = {"far": {"url": "http://127.0.0.1:9/mcp"}, "near": {"command": "true"}}
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": servers}))
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    said = " ".join(done.output.split())
    assert "grue reaches the server 'far' by URL, so there is no process that could run in a sandbox." in said
    unknown = CliRunner().invoke(app, [word.replace("far", "absent") for word in words])
    no = "There is no server" if "--learn" in words else "There is no preset and no server"
    assert f"{no} 'absent' to start" in " ".join(unknown.output.split())
    assert "Servers: near." in " ".join(unknown.output.split())


@pytest.mark.parametrize(
    "words",
    [
        ("sandbox", "show", "odd"),
        ("sandbox", "show", "odd", "--seatbelt"),
        ("sandbox", "try", "odd", "--", "true"),
        ("sandbox", "learn", "mcp_config.json", "odd"),
        ("chat", "--offline", "--learn", "odd"),
    ],
)
def test_a_server_with_an_invalid_entry_gets_the_error_of_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    servers = {"odd": {"command": "true", "args": ["${GRUE_NO_SUCH_VARIABLE}"]}, "near": {"command": "true"}}
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": servers}))
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    assert "GRUE_NO_SUCH_VARIABLE" in done.output
    assert "no server" not in done.output
    unknown = CliRunner().invoke(app, [word.replace("odd", "absent") for word in words])
    assert "Servers: near, odd." in " ".join(unknown.output.split())


def test_show_names_the_servers_whose_entries_are_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    servers = {"odd": {"command": "${GRUE_NO_SUCH_VARIABLE}"}, "near": {"command": "true"}}
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": servers}))
    done = CliRunner().invoke(app, ("sandbox", "show"))
    assert done.exit_code == 0, done.output
    assert done.stdout == "near: no sandbox. It can reach all that you can.\n"
    assert done.stderr.startswith("grue: MCP server 'odd': command needs the environment variable GRUE_NO")


def test_a_learned_box_comes_with_the_folders_that_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    watch = Watch()
    watch.read[str(tmp_path)] = None
    monkeypatch.setattr(project, "Watch", lambda: watch)
    _, learned = project.watched_server(
        project.KnownServers(source="", servers={"s": StdioServer(command="x", name="s")}), "s"
    )
    box, note = learned()
    assert json.loads(box) == {"sandbox": {"preset": "pure"}}
    assert note == f"The server also used {tmp_path}. The sandbox does not allow that: it would be too wide."
    watch.read.clear()
    assert learned()[1] == ""
