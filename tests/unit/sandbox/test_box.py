# ruff: noqa: E501 - tables
from pathlib import Path

import msgspec
import pytest

from grue import Sandbox, ShellTool, StdioServer
from grue.config.mcp_servers import MCPConfig, to_tool_server
from grue.config.other_hosts import read_host
from grue.errors import MCPConfigError
from grue.sandbox.box import HostPort, in_words, sandbox_of


def read(entry: dict[str, object]) -> Sandbox | None:
    config = MCPConfig.from_mapping({"s": {"command": "x", **entry}})
    server = to_tool_server("s", config.server("s"))
    assert isinstance(server, StdioServer)
    return server.sandbox


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, None),
        (False, None),
        ("none", None),
        (True, Sandbox(preset="files")),
        ("pure", Sandbox()),
        ("web", Sandbox(preset="web")),
        ({"read": ["~/x"], "network": ["a.example:443"]}, Sandbox(read=("~/x",), network=("a.example:443",))),
        ({"preset": "files", "memory_mb": 512}, Sandbox(preset="files", memory_mb=512)),
        ({"filesystem": {"allowWrite": ["."]}}, Sandbox(read=("/",), write=(".",), network=False)),
        (
            {"filesystem": {"denyRead": ["~/.ssh"]}, "network": {"allowedDomains": ["*.b.example"]}},
            Sandbox(read=("/",), hide=("~/.ssh",), network=("*.b.example",)),
        ),
    ],
)
def test_a_box_is_read_from_an_entry(written: object, meant: Sandbox | None) -> None:
    assert read({"sandbox": written}) == meant


def test_the_switch_of_vs_code_decides_whether_the_box_applies() -> None:
    table = {"filesystem": {"allowWrite": ["."]}}
    assert read({"sandboxEnabled": False, "sandbox": table}) is None
    assert read({"sandboxEnabled": True, "sandbox": table}) == Sandbox(
        read=("/",), write=(".",), network=False
    )
    assert read({"sandboxEnabled": True}) == Sandbox(read=("/",), network=False)


def test_the_box_of_a_file_applies_to_servers_with_the_switch_of_vs_code(tmp_path) -> None:
    path = tmp_path / "mcp.json"
    servers: dict[str, dict[str, object]] = {
        "on": {"command": "x", "sandboxEnabled": True},
        "own": {"command": "x", "sandboxEnabled": True, "sandbox": "pure"},
        "off": {"command": "x"},
    }
    box = {"network": {"allowedDomains": ["a.example"]}}
    path.write_bytes(msgspec.json.encode({"servers": servers, "sandbox": box}))
    config = MCPConfig.from_file(path)
    found = {name: to_tool_server(name, config.server(name)) for name in servers}
    assert [getattr(server, "sandbox", 0) for server in found.values()] == [
        Sandbox(read=("/",), network=("a.example",)),
        Sandbox(),
        None,
    ]
    assert config.warnings == ()
    copies = read_host(path).servers
    assert [copies[name].entry.get("sandbox") for name in servers] == [box, "pure", None]

    path.write_bytes(msgspec.json.encode({"servers": {"off": servers["off"]}, "sandbox": box}))
    (said,) = MCPConfig.from_file(path).warnings
    assert 'only to servers with "sandboxEnabled": true' in said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("tight", "'pure' or 'files' or 'web', not 'tight'"),
        (3, "or a table with keys"),
        ({"reads": []}, "unknown key 'reads'"),
        ({"read": "/x"}, "read should be a list of paths"),
        ({"network": "a.example"}, "network should be true, false, or a list of hosts"),
        ({"required": 1}, "required should be true or false"),
        ({"read": [""]}, "read should be a list of paths"),
        ({"read": ["/\ud800"]}, "read should be a list of paths"),
        ({"preset": "tight"}, "preset should be 'pure' or 'files' or 'web'"),
        ({"network": ["a b"]}, "'a b' is not a host"),
        ({"network": ["a:0"]}, "no valid port"),
        ({"network": ["a:"]}, "no valid port"),
        ({"network": ["[::1]80"]}, "no valid port"),
        ({"network": ["[a.example]:80"]}, "'[a.example]:80' is not a host"),
        ({"network": ["[10.0.0.5]:80"]}, "'[10.0.0.5]:80' is not a host"),
        ({"network": ["[::1"]}, "'[::1' is not a host"),
        ({"network": ["https://a.example"]}, "https"),
        ({"memory_mb": 0}, "memory_mb should be a whole number above zero"),
        ({"cpu_s": True}, "cpu_s should be a whole number"),
        ({"filesystem": {"allowExecute": []}}, "'filesystem.allowExecute', which grue does not enforce"),
        ({"filesystem": {}, "read": []}, "'read' beside VS Code's keys"),
        ({"filesystem": {"denyWrite": ["x"]}}, "'filesystem.denyWrite', which grue cannot enforce"),
        ({"network": {"deniedDomains": ["x"]}}, "'network.deniedDomains', which grue cannot enforce"),
        ({"filesystem": {"allowRead": "x"}}, "'filesystem.allowRead' should be a list"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_server_and_the_key(written: object, said: str) -> None:
    with pytest.raises(MCPConfigError) as refused:
        read({"sandbox": written})
    assert "MCP server 's': sandbox" in str(refused.value)
    assert said in str(refused.value)


def test_a_box_has_no_effect_on_a_server_by_url_and_a_warning_says_so() -> None:
    config = MCPConfig.from_mapping({"s": {"url": "https://a.example", "sandbox": "pure"}})
    assert config.warnings == ("MCP server 's': 'sandbox' has no effect on a server with a 'url'.",)


def test_folders_of_the_configuration_are_expanded_in_a_box(tmp_path) -> None:
    path = tmp_path / "mcp_config.json"
    entry = {"command": "x", "sandbox": {"read": ["${workspaceFolder}/a"], "write": ["${PLACE}"]}}
    path.write_bytes(msgspec.json.encode({"mcpServers": {"s": entry}}))
    config = MCPConfig.from_file(path, environ={"PLACE": "/srv/b"})
    server = to_tool_server("s", config.server("s"))
    assert isinstance(server, StdioServer)
    assert server.sandbox == Sandbox(read=(f"{tmp_path}/a",), write=("/srv/b",))


def test_a_presets_name_makes_a_box_in_code(tmp_path) -> None:
    assert StdioServer(name="s", command="x", sandbox="files").sandbox == Sandbox(preset="files")  # type: ignore[arg-type]
    shell = ShellTool(folder=tmp_path, commands="any", sandbox="pure")  # type: ignore[arg-type]
    assert shell.sandbox == Sandbox()
    with pytest.raises(MCPConfigError, match=r"StdioServer\(name='s'\): sandbox should be"):
        StdioServer(name="s", command="x", sandbox="tight")  # type: ignore[arg-type]
    with pytest.raises(MCPConfigError, match=r"ShellTool: sandbox should be"):
        ShellTool(folder=tmp_path, commands="any", sandbox="tight")  # type: ignore[arg-type]
    assert "network: none" in repr(StdioServer(name="s", command="x", sandbox=Sandbox()))


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("api.example", "api.example", 443, True),
        ("api.example", "API.Example.", 80, True),
        ("api.example", "api.example", 22, False),
        ("api.example:22", "api.example", 443, False),
        ("*.example", "a.b.example", 443, True),
        ("*.example", "example", 443, False),
        ("*.example", "badexample", 443, False),
        ("api.example", "api.example.evil.test", 443, False),
        ("[::1]:80", "0:0:0:0:0:0:0:1", 80, True),
        ("::1", "::1", 443, True),
        ("2001:db8::", "2001:db8:0::", 443, True),
        ("10.0.0.5:5432", "10.0.0.5", 5432, True),
        ("10.0.0.5:5432", "10.0.0.50", 5432, False),
    ],
)
def test_an_entry_covers_a_host_and_its_ports(entry: str, host: str, port: int, *, allowed: bool) -> None:
    assert HostPort.read(entry).covers(host, port) is allowed


def test_a_box_in_words_says_what_it_opens() -> None:
    box = Sandbox(
        preset="files", read=("/a",), write=("/b",), hide=("/a/c",), execute=("git",), network=("x.example:1",),
        unix_sockets=True, memory_mb=5, processes=6, open_files=7, file_mb=8, cpu_s=9,
    )  # fmt: skip
    assert in_words(box) == (
        "files: its own program, a scratch folder and the workspace; reads /a; writes /b; not /a/c, and no listing, making or deleting in a folder that contains it; starts only"
        " itself, /bin/sh, the dynamic loader, git; network: x.example:1; Unix sockets; 5 MiB; 6 processes; 7 open files; 8 MiB a file;"
        " 9 s of processor time"
    )
    assert in_words(Sandbox(preset="web")).endswith("network: any")
    assert "; starts only itself, /bin/sh, the dynamic loader; " in in_words(Sandbox(execute=()))


def test_a_list_means_what_a_tuple_means() -> None:
    lists = Sandbox(read=["~/x"], write=["y"], hide=["z"], execute=["ls"], network=["a.example:443"])  # type: ignore[arg-type]
    tuples = Sandbox(read=("~/x",), write=("y",), hide=("z",), execute=("ls",), network=("a.example:443",))
    assert (lists, hash(lists), lists.hosts) == (tuples, hash(tuples), (HostPort("a.example", (443,)),))


def test_a_path_means_what_its_text_means() -> None:
    paths = Sandbox(read=(Path("/data"),), write=[Path("out")], hide=(Path("/data/key"),))  # type: ignore[arg-type]
    assert paths == Sandbox(read=("/data",), write=("out",), hide=("/data/key",))


def test_texts_in_a_table_that_is_no_text_are_refused() -> None:
    with pytest.raises(MCPConfigError, match="required should be true or false"):
        Sandbox(required=1)  # type: ignore[arg-type]
    with pytest.raises(MCPConfigError, match="network should be true, false, or a list"):
        Sandbox(network="a.example")  # type: ignore[arg-type]
    assert sandbox_of(Sandbox()) == Sandbox()
