"""Which start-up limit a server has, and which place the advice after a slow start names."""

import json
from pathlib import Path

import pytest

from grue import HttpServer, ServerOptions, StdioServer, TurnLimits
from grue.config.settings import GameConfiguration
from grue.config.wiring import read_servers, turn_limits
from grue.config.yaml_tables import servers_of_entries
from grue.engine.tool_servers import startup_limits
from grue.messages import ServerName
from grue.tool_sessions.failures import remedy_for
from grue.tool_sessions.host_tools import ToolServer


def stdio(command: str, *args: str, own_s: float | None = None) -> StdioServer:
    options = ServerOptions(startup_timeout_s=own_s)
    return StdioServer(name="s", command=command, args=args, options=options)


def by_url(own_s: float | None = None) -> HttpServer:
    return HttpServer(name="s", url="http://h/", options=ServerOptions(startup_timeout_s=own_s))


@pytest.mark.parametrize(
    ("server", "common_s", "limit_s"),
    [
        (stdio("npx", "-y", "pkg"), None, 60.0),
        (stdio("/usr/bin/uvx", "pkg"), None, 60.0),
        (stdio("uv", "tool", "run", "pkg"), None, 60.0),
        (stdio("npm", "exec", "pkg"), None, 60.0),
        (stdio("npx", "-y", "pkg"), 10.0, 10.0),
        (stdio("npx", "-y", "pkg"), 5.0, 5.0),
        (stdio("npx", "-y", "pkg", own_s=3.0), None, 3.0),
        (stdio("npx", "-y", "pkg", own_s=3.0), 10.0, 3.0),
        (stdio("node", "server.js"), None, 10.0),
        (stdio("npm", "start"), None, 10.0),
        (stdio("node", "server.js", own_s=25.0), 10.0, 25.0),
        (by_url(20.0), None, 20.0),
        (by_url(20.0), 20.0, 20.0),
        (by_url(), None, 10.0),
        (by_url(), 4.0, 4.0),
    ],
)
def test_r13_3_what_is_written_holds_and_only_without_it_downloads_have_a_minute(
    server: ToolServer, common_s: float | None, limit_s: float
) -> None:
    limits = startup_limits(TurnLimits(server_startup_timeout_s=common_s), {ServerName("s"): server})
    assert limits.startup_timeout_s("s") == limit_s
    assert limits.startup_timeout_s("another") == (10.0 if common_s is None else common_s)


def test_the_limit_that_a_request_sets_for_one_server_comes_first() -> None:
    limits = TurnLimits(startup_timeouts_s={"s": 7.0})
    assert startup_limits(limits, {ServerName("s"): stdio("npx", own_s=3.0)}).startup_timeout_s("s") == 7.0


@pytest.mark.parametrize("root", ["grue", "zorkgpt"])
@pytest.mark.parametrize(("written", "limit_s"), [("server_startup_timeout_seconds = 10", 10.0), ("", 60.0)])
def test_r13_3_ten_seconds_that_are_written_down_are_not_the_default(
    tmp_path: Path, root: str, written: str, limit_s: float
) -> None:
    toml = tmp_path / "pyproject.toml"
    toml.write_text(f"[tool.{root}.mcp]\nenabled = true\n{written}\n")
    config = GameConfiguration.from_toml(toml)
    assert config.mcp_server_startup_timeout_seconds == 10
    limits = startup_limits(turn_limits(config), {ServerName("s"): stdio("npx", "-y", "pkg")})
    assert limits.startup_timeout_s("s") == limit_s


def test_r13_3_ten_seconds_that_a_program_assigns_hold_too() -> None:
    config = GameConfiguration()
    assert turn_limits(config).server_startup_timeout_s is None
    config.mcp_server_startup_timeout_seconds = 10
    assert turn_limits(config).server_startup_timeout_s == 10


ENTRY = {"command": "npx", "args": ["-y", "pkg"]}


def of_json(folder: Path) -> ToolServer:
    file = folder / "mcp_config.json"
    file.write_text(json.dumps({"mcpServers": {"s": ENTRY}}))
    return read_servers(file)["s"]


def of_entry(_: Path) -> ToolServer:
    return servers_of_entries({"s": ENTRY})["s"]


def of_code(_: Path) -> ToolServer:
    return stdio("npx")


@pytest.mark.parametrize(
    ("made", "place"),
    [
        (of_json, "startup_timeout_seconds of this server in mcp_config.json"),
        (of_entry, "timeout_seconds of this server"),
        (of_code, "startup_timeout_s in the ServerOptions of this server"),
    ],
)
def test_the_advice_after_a_slow_start_names_the_place_where_the_server_is_configured(
    tmp_path: Path, made: type[ToolServer], place: str
) -> None:
    server = made(tmp_path)
    assert isinstance(server, StdioServer)
    assert server.options.startup_timeout_place == place
    for command in ("npx", "python"):
        remedy = remedy_for(command, "initialize", slow_place=place)
        assert remedy.endswith(f"If it only needs longer, raise {place}.")
