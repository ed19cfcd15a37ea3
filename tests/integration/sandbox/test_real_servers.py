# ruff: noqa: E501
"""Servers of others: each makes its calls while it is watched, and then makes them again in the box that was learned."""

import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import boxes
import pytest
from msgspec.structs import replace
from real_servers import installed, npm_server
from rows import first_of

from grue import messages as m
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPServerStartupError
from grue.sandbox.box import Sandbox
from grue.sandbox.learning import Watch, watching
from grue.tool_sessions.server_specs import StdioServer

pytestmark = boxes.needs_hosts

NODE = {"name": "n", "entityType": "t", "observations": ["o"]}
THOUGHT = {"thought": "x", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}
CALLS: dict[str, list[tuple[str, m.JsonObject]]] = {
    "memory": [
        ("create_entities", {"entities": [NODE]}),
        ("add_observations", {"observations": [{"entityName": "n", "contents": ["p"]}]}),
        ("search_nodes", {"query": "n"}),
        ("read_graph", {}),
    ],
    "filesystem": [
        ("write_file", {"path": "{folder}/a.txt", "content": "hello"}),
        ("read_text_file", {"path": "{folder}/a.txt"}),
        ("create_directory", {"path": "{folder}/d"}),
        ("move_file", {"source": "{folder}/a.txt", "destination": "{folder}/d/b.txt"}),
        ("list_directory", {"path": "{folder}"}),
        ("directory_tree", {"path": "{folder}"}),
    ],
    "sequential-thinking": [("sequentialthinking", THOUGHT)],
    "everything": [("echo", {"message": "hi"}), ("get-sum", {"a": 1, "b": 2})],
}


def server_of(name: str, folder: Path) -> StdioServer:
    arguments = (str(folder),) if name == "filesystem" else ()
    server = npm_server(name, *arguments, MEMORY_FILE_PATH=str(folder / "memory.json"))
    return replace(server, cwd=str(folder))


def answers(server: StdioServer, folder: Path) -> list[tuple[str, bool]]:
    with ToolClient({server.name: server}) as client:
        client.connect(server.name)
        return [
            (tool, client.call(f"{server.name}.{tool}", placed(arguments, folder)).is_error)
            for tool, arguments in CALLS[server.name]
        ]


def placed(arguments: m.JsonObject, folder: Path) -> m.JsonObject:
    return {
        key: value.replace("{folder}", str(folder)) if isinstance(value, str) else value
        for key, value in arguments.items()
    }


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize("launcher", first_of(["node", "npx"]))
@pytest.mark.parametrize("name", CALLS)
def test_a_server_makes_all_its_calls_in_the_box_that_was_learned(
    name: str, launcher: str, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    server = server_of(name, folder)
    if launcher == "npx":
        prefix = installed("GRUE_NPM_SERVERS", name).parent
        words = ("--prefix", str(prefix), "--no-install", f"mcp-server-{name}")
        server = replace(server, command="npx", args=(*words, *server.args[1:]))
    watch = Watch()
    free = answers(replace(server, sandbox=watching(watch)), folder)
    assert not any(failed for _, failed in free), free
    learned = watch.proposal(cwd=str(folder))
    emptied(folder)
    assert answers(replace(server, sandbox=learned), folder) == free
    assert not learned.any_network
    assert "/" not in (*learned.read, *learned.write)


def test_a_filesystem_server_is_held_to_its_box_and_says_so(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("STOLEN")
    work = tmp_path / "work"
    work.mkdir()
    server = npm_server("filesystem", str(tmp_path))
    server = replace(server, cwd=str(work), sandbox=Sandbox(preset="files"))
    with ToolClient({"filesystem": server}) as client:
        result = client.call("filesystem.read_text_file", {"path": str(secret)})
    assert result.is_error
    assert "STOLEN" not in str(result)
    assert f'To allow it: "read": ["{secret}"]' in str(result.error_message)


def registry() -> tuple[str, ...]:
    """Return the entries for npm's registry; skip where it cannot be reached."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    url = urlsplit(
        subprocess.run([npm, "config", "get", "registry"], capture_output=True, text=True, check=True).stdout
    )
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
        socket.create_connection((host, port), 5).close()
    except OSError:
        pytest.skip("npm's registry cannot be reached from here")
    # A mirror has a private address, which has to be listed itself.
    return (f"{host}:{port}", *(f"{address[0]}:{port}" for *_, address in found))


@pytest.mark.slow
def test_npx_fetches_a_server_inside_a_box_that_lists_its_registry(tmp_path: Path) -> None:
    listed = registry()
    cache = tmp_path / "npm"
    cache.mkdir()
    server = StdioServer(
        name="hello",
        command="npx",
        args=("-y", "mcp-hello-world@1.1.2"),
        env={"npm_config_cache": str(cache), "npm_config_fetch_retries": "0"},
    )
    box = Sandbox(read=("~/.npmrc",), write=(str(cache),))
    elsewhere = replace(box, network=("elsewhere.example:443",))
    with (
        ToolClient({"hello": replace(server, sandbox=elsewhere)}) as client,
        pytest.raises(MCPServerStartupError) as refused,
    ):
        client.tools()
    assert f"Its sandbox refused a connection to {listed[0]}" in str(refused.value)
    for network in (listed, False):  # then it is in the cache, and needs no network
        args = server.args if network else ("--offline", *server.args)
        inside = replace(server, args=args, sandbox=replace(box, network=network))
        with ToolClient({"hello": inside}) as client:
            assert client.tools()
