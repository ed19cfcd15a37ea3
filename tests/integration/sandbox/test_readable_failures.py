import sys
from pathlib import Path

import boxes
import pytest

from grue import ShellTool, StdioServer
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPServerStartupError
from grue.sandbox.box import Sandbox


@boxes.needs_boxes
def test_a_server_that_dies_of_its_box_says_what_to_add(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.touch()
    server = StdioServer(
        name="s", command=sys.executable, args=("-c", f"open({str(settings)!r})"), sandbox=Sandbox()
    )
    with ToolClient({"s": server}) as client, pytest.raises(MCPServerStartupError) as failed:
        client.tools()
    assert f'To allow it: "read": ["{settings}"]' in str(failed.value)


@boxes.needs_boxes
def test_a_command_that_is_refused_says_so_to_the_model(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch()
    (tmp_path / "work").mkdir()
    shell = ShellTool(folder=tmp_path / "work", commands=["cat"], sandbox=Sandbox(preset="files"))
    with ToolClient({"sh": shell}) as client:
        result = client.call("sh.run", {"argv": ["cat", str(secret)]})
    assert f"Its box does not let it read {secret}" in str(result)
