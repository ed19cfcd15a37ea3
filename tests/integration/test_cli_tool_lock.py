"""`grue tools --lock`, as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import faulty, grue, write_servers
from msgspec.structs import replace

from grue.cli.project import KnownServers
from grue.cli.tools import approve
from grue.errors import MCPConfigError
from grue.messages import ServerName, ToolDefinition

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

MCP = ("--mcp-config", "mcp.json")


def locked(folder: Path) -> dict[str, Any]:
    servers: dict[str, Any] = json.loads((folder / "mcp_tools.lock").read_text())["servers"]
    return servers


def tampered(folder: Path) -> None:
    """Make the lock one of a time when `box.echo` said something else and there was one tool more."""
    lock = json.loads((folder / "mcp_tools.lock").read_text())
    tools = lock["servers"]["box"]
    tools["echo"]["description"] = "sha256:0"
    tools["gone"] = tools.pop("fail")
    (folder / "mcp_tools.lock").write_text(json.dumps(lock))


@pytest.mark.slow
def test_locking_lists_what_is_approved_and_says_what_has_changed(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", box=faulty())
    first = grue("tools", "--lock", *MCP, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "  box.echo\n" in first.stdout
    assert "+ box.echo  The tool echo.\n" in first.stdout
    assert first.stdout.endswith("mcp_tools.lock: 3 tools approved, 3 new\n")
    assert set(locked(tmp_path)["box"]) == {"echo", "fail", "environ"}
    listing = json.loads((tmp_path / "mcp_tools.listing.json").read_text())["servers"]["box"]
    assert [tool["name"] for tool in listing] == ["echo", "fail", "environ"]
    assert listing[0]["description"] == "The tool echo."
    again = grue("tools", "--lock", *MCP, cwd=tmp_path)
    assert again.stdout.endswith("\nmcp_tools.lock: 3 tools approved, nothing has changed\n")
    tampered(tmp_path)
    third = grue("tools", "--lock", "--json", *MCP, cwd=tmp_path)
    assert json.loads(third.stdout)["servers"][0]["server"] == "box"
    assert third.stderr.splitlines() == [
        "~ box.echo  description",
        "+ box.fail  The tool fail.",
        "- box.gone",
        "mcp_tools.lock: 3 tools approved, 1 new, 1 removed, 1 changed",
    ]


@pytest.mark.slow
def test_listing_says_what_is_not_as_it_was_approved(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", box=faulty())
    assert grue("tools", *MCP, cwd=tmp_path).stderr == "", "there is no lock"
    grue("tools", "--lock", *MCP, cwd=tmp_path)
    assert grue("tools", *MCP, cwd=tmp_path).stderr == ""
    tampered(tmp_path)
    listed = grue("tools", *MCP, cwd=tmp_path)
    assert listed.returncode == 0
    assert listed.stderr.splitlines() == [
        "grue: box.echo has another description than was approved",
        "grue: box.fail is not among the approved tools",
        "grue: box.gone was approved and is no longer listed",
    ]
    (tmp_path / "pyproject.toml").write_text("[tool.zorkgpt.mcp]\ntool_lock = 'off'\n")
    assert grue("tools", *MCP, cwd=tmp_path).stderr == ""


@pytest.mark.slow
def test_servers_that_are_not_asked_or_do_not_answer_keep_their_pins(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", one=faulty(), two=faulty())
    grue("tools", "--lock", *MCP, cwd=tmp_path)
    before = locked(tmp_path)
    write_servers(tmp_path / "mcp.json", one=faulty("--exit-at", "start"), two=faulty("--pages", "2"))
    both = grue("tools", "--lock", *MCP, cwd=tmp_path)
    assert both.returncode == 1
    assert "mcp_tools.lock: 4 tools approved, 1 new\n" in both.stdout
    assert locked(tmp_path)["one"] == before["one"]
    assert set(locked(tmp_path)["two"]) == {*before["two"], "page_2"}
    write_servers(tmp_path / "mcp.json", one=faulty("--pages", "2"), two=faulty())
    grue("tools", "one", "--lock", *MCP, cwd=tmp_path)
    assert "page_2" in locked(tmp_path)["one"]
    assert "page_2" in locked(tmp_path)["two"]
    write_servers(tmp_path / "mcp.json", two=faulty())
    last = grue("tools", "--lock", *MCP, cwd=tmp_path)
    assert "- one.echo\n" in last.stdout
    assert set(locked(tmp_path)) == {"two"}


def test_a_server_that_another_command_has_just_approved_keeps_its_pins(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", box=faulty())
    before = KnownServers(source=str(tmp_path / "mcp.json"), servers={"box": faulty()})
    write_servers(tmp_path / "mcp.json", box=faulty(), other=faulty())
    tool = ToolDefinition(server=ServerName("other"), tool="look", input_schema={"type": "object"})
    now = KnownServers(source=str(tmp_path / "mcp.json"), servers={"box": faulty(), "other": faulty()})
    assert [*approve(now, {"other": (tool,)}, {"other": (tool,)})][-1].endswith("1 tool approved, 1 new")
    assert [*approve(before, {"box": ()}, {"box": ()})][-1].endswith("0 tools approved, nothing has changed")
    assert set(locked(tmp_path)) == {"box", "other"}


def test_a_listing_file_that_cannot_be_written_leaves_the_lock_as_it_was(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", box=faulty())
    known = KnownServers(source=str(tmp_path / "mcp.json"), servers={"box": faulty()})
    tool = ToolDefinition(server=ServerName("box"), tool="echo", input_schema={"type": "object"})
    list(approve(known, {"box": (tool,)}, {"box": (tool,)}))
    before = (tmp_path / "mcp_tools.lock").read_text()
    (tmp_path / "mcp_tools.listing.json").unlink()
    (tmp_path / "mcp_tools.listing.json").mkdir()
    changed = (replace(tool, description="Other words."),)
    with pytest.raises(MCPConfigError, match=r"mcp_tools\.listing\.json"):
        list(approve(known, {"box": changed}, {"box": changed}))
    assert (tmp_path / "mcp_tools.lock").read_text() == before


@pytest.mark.slow
def test_without_a_file_of_servers_there_is_nothing_to_lock(tmp_path: Path) -> None:
    refused = grue("tools", "--lock", cwd=tmp_path)
    assert refused.returncode == 2
    assert "no file of MCP servers is configured" in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_playing_without_the_lock_that_is_to_be_kept_is_refused(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", box=faulty())
    (tmp_path / "pyproject.toml").write_text("[tool.zorkgpt.mcp]\ntool_lock = 'refuse'\n")
    play = ("play", "--offline", "--turns", "1", "--quiet", *MCP)
    refused = grue(*play, cwd=tmp_path)
    assert refused.returncode == 2
    assert "grue tools --lock" in refused.stderr
    grue("tools", "--lock", *MCP, cwd=tmp_path)
    tampered(tmp_path)
    grue(*play, "--run-dir", "run", cwd=tmp_path)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    drifts = [event for event in events if event["event_type"] == "mcp_tool_drift"]
    assert [(event["tool_name"], event["refused"]) for event in drifts] == [
        ("box.echo", True),
        ("box.fail", True),
        ("box.gone", False),
    ]


_TELLS_A_SECRET = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    said = "Asks " + os.environ["DB_PASSWORD"]
    tool = {"name": "query", "description": said, "inputSchema": {"type": "object"}}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    result = {"initialize": hello, "tools/list": {"tools": [tool]}}.get(asked["method"])
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.mark.slow
def test_a_secret_in_a_description_is_approved_and_not_written_down(tmp_path: Path) -> None:
    secret = "correct-horse-battery"
    (tmp_path / "server.py").write_text(_TELLS_A_SECRET)
    for command in (("add", "server.py", "--yes"), ("tools", "--lock")):
        done = grue(*command, cwd=tmp_path, DB_PASSWORD=secret)
        assert done.returncode == 0, done.stderr
        assert secret not in done.stdout + done.stderr
        assert locked(tmp_path)["server"]["query"]["summary"] == "Asks [redacted:DB_PASSWORD]"
        assert secret not in "".join(path.read_text() for path in tmp_path.glob("mcp_tools.*"))
        listing = json.loads((tmp_path / "mcp_tools.listing.json").read_text())
        assert listing["servers"] == {}, "a turn would offer the model a text that the server does not say"
        assert grue("tools", cwd=tmp_path, DB_PASSWORD=secret).stderr == "", "it is as it was approved"
