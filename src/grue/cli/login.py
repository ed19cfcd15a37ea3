"""`grue login` and `grue logout`: get and remove the OAuth tokens for MCP servers that have a URL."""

import os
import sys
import time
import webbrowser
from pathlib import Path

from grue.cli.project import known_servers
from grue.cli.saying import say
from grue.config.settings import GameConfiguration
from grue.errors import MCPConfigError
from grue.runtime.loading import load
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.sdk_version import require_mcp
from grue.transports.mcp.token_store import TokenRecord, token_store


def login(server: str, mcp_config: Path | None, *, scope: str | None, browser: bool) -> None:
    """Let the user log in to a server in a browser, and store the tokens."""
    chosen = _by_url(server, mcp_config)

    def show(address: str) -> None:
        say(f"To log in to {server}, open this address in a browser:\n{address}", err=True)
        on_screen = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
        if browser and on_screen and sys.stderr.isatty():
            webbrowser.open(address)

    record = load("grue.transports.mcp.login").log_in(chosen, show, scope=scope)
    say(f"Logged in to {server}: {stored(record)}; in {token_store(chosen).place}.")


def logout(server: str, mcp_config: Path | None) -> None:
    """Remove the stored tokens of a server, and revoke them if the authorization server can."""
    chosen = _by_url(server, mcp_config)
    found, revoked = load("grue.transports.mcp.login").log_out(chosen)
    if not found:
        say(f"There is no login to {server} in {token_store(chosen).place}.")
    else:
        say(f"Logged out of {server}." + (" Its tokens are revoked." if revoked else ""))


def stored_login(server: HttpServer) -> str | None:
    """Describe the stored login without secrets; `None`: none is stored. May raise `AuthorizationRefused`."""
    store = token_store(server)
    record = store.load()
    return None if record is None else f"{stored(record)}; in {store.place}"


def stored(record: TokenRecord) -> str:
    """Describe a stored token, without its secret."""
    if not record.access_token:
        return "the login has ended"
    until = "a token without an end"
    if record.expires_at is not None:
        ends = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.expires_at))
        until = f"a token {'until' if record.expires_at > time.time() else 'that ended'} {ends}"
    renewed = ", renewed by itself" if record.refresh_token else ""
    issuer = f" of {record.issuer}" if record.issuer else ""
    scope = f", for {record.scope}" if record.scope else ""
    return f"{until}{renewed}{issuer}{scope}"


def _by_url(name: str, mcp_config: Path | None) -> HttpServer:
    server = known_servers(GameConfiguration.of_project(), mcp_config).usable(name)
    if not isinstance(server, HttpServer):
        raise MCPConfigError(f"'{name}' is a program, and only servers by URL have a login.")
    if server.auth is None:
        raise MCPConfigError(f"'{name}' is authorised by its headers, or has \"auth\": false.")
    require_mcp()
    return server
