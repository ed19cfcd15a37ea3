import sys
from pathlib import Path

import boxes
import pytest

from grue import Runner, ShellTool, StdioServer
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPServerStartupError
from grue.sandbox.box import Sandbox
from grue.testing.llm_server import ScriptedLlmServer, tool_calls_reply


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


DIES_IN_A_CALL = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "tools/call":
        open(sys.argv[1])
    answer = {"tools": [{"name": "read", "inputSchema": {"type": "object"}}]}
    if asked["method"] == "initialize":
        info = {"name": "s", "version": "1"}
        version = asked["params"]["protocolVersion"]
        answer = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""


@boxes.needs_boxes
def test_a_server_that_dies_of_its_box_in_a_call_says_what_to_add(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch()
    server = StdioServer(
        name="s", command=sys.executable, args=("-c", DIES_IN_A_CALL, str(secret)), sandbox=Sandbox()
    )
    script = [tool_calls_reply(("s.read", {})), "It failed."]
    with ScriptedLlmServer(script) as model, Runner(servers={"s": server}, llm=model.settings) as runner:
        outcome = runner.run_turn("Read it.")
    said = outcome.tool_calls[0].result.error_message or ""
    assert said.startswith("Tool call failed: the server ended during tools/call (exit status 1). ")
    assert f'To allow it: "read": ["{secret}"]' in said
    assert f"Error: {said}" in [each["content"] for each in model.requests[-1].messages]


@boxes.needs_boxes
def test_a_command_that_is_refused_says_so_to_the_model(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch()
    (tmp_path / "work").mkdir()
    shell = ShellTool(folder=tmp_path / "work", commands=["cat"], sandbox=Sandbox(preset="files"))
    with ToolClient({"sh": shell}) as client:
        result = client.call("sh.run", {"argv": ["cat", str(secret)]})
    assert f"Its sandbox does not let it read {secret}" in str(result)
