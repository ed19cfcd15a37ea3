"""The file of listed tools beside the tool lock: what is written is read, and screened as a listing is."""

import json
from pathlib import Path

import pytest

from grue.config import tool_lock_file
from grue.config.settings import GameConfiguration
from grue.config.tool_lock_file import listing_path
from grue.config.tool_lock_file import read_listings as read
from grue.config.tool_lock_file import write_listings as write
from grue.config.wiring import tool_lock
from grue.errors import MCPConfigError
from grue.messages import ServerName, ToolDefinition
from grue.policies import ToolAnnotations


def tool(name: str, description: str = "") -> ToolDefinition:
    return ToolDefinition(
        server=ServerName("a"),
        tool=name,
        description=description,
        input_schema={"type": "object", "properties": {"x": {"type": "number"}}},
        output_schema={"type": "object"} if description else None,
        annotations=ToolAnnotations(read_only=True, open_world=False) if description else None,
    )


def test_what_is_written_is_read_in_the_order_of_the_listing(tmp_path: Path) -> None:
    path = listing_path(tmp_path / "mcp_tools.lock")
    tools = (tool("z"), tool("é", "Ein Wort."))
    write(path, {"a": tools})
    assert path == tmp_path / "mcp_tools.listing.json"
    assert read(path) == {"a": tools}
    assert list(tmp_path.iterdir()) == [path], "nothing else is left in the folder"


def test_servers_that_could_not_be_reached_keep_their_tools_and_others_go(tmp_path: Path) -> None:
    path = tmp_path / "mcp_tools.listing.json"
    write(path, {"a": [tool("x")], "b": [tool("y")], "gone": [tool("w")]})
    write(path, {"a": [tool("z")]}, keep=("a", "b"))
    assert {name: [each.tool for each in tools] for name, tools in read(path).items()} == {
        "a": ["z"],
        "b": ["y"],
    }


def test_no_file_is_no_listing(tmp_path: Path) -> None:
    assert read(tmp_path / "mcp_tools.listing.json") == {}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 2, "servers": {}}', '{"version": 1, "servers": [1]}']
)
def test_what_is_no_listing_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mcp_tools.listing.json"
    path.write_text(text)
    with pytest.raises(MCPConfigError, match=r"mcp_tools\.listing\.json"):
        read(path)


def test_a_damaged_file_is_written_again_and_does_not_prevent_an_approval(tmp_path: Path) -> None:
    lock = tmp_path / tool_lock_file.FILE_NAME
    path = listing_path(lock)
    path.write_text("<<<<<<< HEAD\n")
    tool_lock_file.write(lock, {"a": [tool("x")]})
    write(path, {"a": [tool("x")]}, keep=["a", "b"])
    assert read(path) == {"a": (tool("x"),)}


def test_malformed_tools_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mcp_tools.listing.json"
    good = {"name": "x", "inputSchema": {"type": "object"}}
    path.write_text(json.dumps({"version": 1, "servers": {"a": [{"name": ""}, good]}}))
    assert [each.tool for each in read(path)["a"]] == ["x"]


def test_the_lock_brings_its_listing_and_verifies_it(tmp_path: Path) -> None:
    config = GameConfiguration(project_dir=tmp_path)
    lock = tmp_path / tool_lock_file.FILE_NAME
    tool_lock_file.write(lock, {"a": [tool("x")], "b": [tool("y", "Other words.")]})
    write(listing_path(lock), {"a": [tool("x")], "b": [tool("y")], "c": [tool("z")]})
    read_back = tool_lock(config)
    assert read_back is not None
    assert read_back.listing("a") == (tool("x"),)
    assert read_back.listing("b") is None, "it does not fit the digests"
    assert read_back.listing("c") is None, "the lock does not know it"
    assert read_back.listing("d") is None
