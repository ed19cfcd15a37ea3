"""`grue sandbox` and the `--learn` of a chat: servers that run in no process of this machine."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grue.cli.app import app


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
    assert "There is no preset and no server 'absent' to start" in " ".join(unknown.output.split())
    assert "Servers: near." in " ".join(unknown.output.split())
