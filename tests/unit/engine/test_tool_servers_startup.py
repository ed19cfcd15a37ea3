"""Which start-up limit a server has."""

import pytest

from grue import HttpServer, ServerOptions, StdioServer, TurnLimits
from grue.engine.tool_servers import ToolServer, startup_timeouts
from grue.messages import ServerName
from grue.tool_sessions.failures import remedy_for


def stdio(command: str, *args: str, own_s: float | None = None) -> StdioServer:
    options = ServerOptions(startup_timeout_s=own_s)
    return StdioServer(name="s", command=command, args=args, options=options)


@pytest.mark.parametrize(
    ("server", "common_s", "limit_s"),
    [
        (stdio("npx", "-y", "pkg"), 10.0, 60.0),
        (stdio("/usr/bin/uvx", "pkg"), 10.0, 60.0),
        (stdio("uv", "tool", "run", "pkg"), 10.0, 60.0),
        (stdio("npm", "exec", "pkg"), 10.0, 60.0),
        (stdio("npx", "-y", "pkg"), 5.0, 5.0),
        (stdio("npx", "-y", "pkg", own_s=3.0), 10.0, 3.0),
        (stdio("node", "server.js"), 10.0, 10.0),
        (stdio("npm", "start"), 10.0, 10.0),
        (stdio("node", "server.js", own_s=25.0), 10.0, 25.0),
        (HttpServer(name="s", url="http://h/", options=ServerOptions(startup_timeout_s=20.0)), 10.0, 20.0),
        (HttpServer(name="s", url="http://h/"), 10.0, 10.0),
    ],
)
def test_a_servers_own_limit_wins_and_downloads_have_a_minute(
    server: ToolServer, common_s: float, limit_s: float
) -> None:
    own = startup_timeouts({ServerName("s"): server}, common_s)
    limits = TurnLimits(server_startup_timeout_s=common_s, startup_timeouts_s=own)
    assert limits.startup_timeout_s("s") == limit_s
    assert limits.startup_timeout_s("another") == common_s


@pytest.mark.parametrize("command", ["npx", "python"])
def test_a_start_that_took_too_long_names_the_keys_and_their_files(command: str) -> None:
    remedy = remedy_for(command, "initialize", timed_out=True)
    assert "startup_timeout_seconds of this server in mcp_config.json" in remedy
    assert "server_startup_timeout_seconds in [tool.grue.mcp] of pyproject.toml" in remedy
