"""Run MCP servers from npm if they are installed, and limit the time of tests that use them."""

import functools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grue.tool_sessions.server_specs import HttpServer, ServerOptions, StdioServer

DEADLINE_S = 40.0
"""What a test may take at most; the longest takes three seconds."""


def bounded(test: Callable[..., None]) -> Callable[..., None]:
    """Fail a test that takes longer than `DEADLINE_S`, whatever it waits for."""

    @functools.wraps(test)
    def run(*args: object, **fixtures: object) -> None:
        raised: list[BaseException] = []

        def body() -> None:
            try:
                test(*args, **fixtures)
            except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
                raised.append(error)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), f"hangs: not over after {DEADLINE_S:g} s"
        if raised:
            raise raised[0]

    return run


def installed(variable: str, what: str) -> Path:
    """Return `node_modules` in the folder that an environment variable names. Without it, skip the test."""
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"set {variable} to a folder in which npm has installed {what}")
    return Path(folder).resolve() / "node_modules"


def npm_server(
    name: str, *args: str, roots: tuple[str, ...] | None = None, **environment: str
) -> StdioServer:
    """Return `@modelcontextprotocol/server-NAME` as a stdio server. If it is not installed, skip the test."""
    options = ServerOptions(roots=roots)
    argv = (_entry(name), *args)
    return StdioServer(name=name, command="node", args=argv, env=environment, options=options)


@contextmanager
def over_http(name: str, *, roots: tuple[str, ...] | None = None) -> Iterator[HttpServer]:
    """Run a server in its Streamable HTTP mode until the block ends; yield its configuration for a client."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        ["node", _entry(name), "streamableHttp"],
        env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(DEADLINE_S, process.kill)
    watchdog.start()
    try:
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if "listening" in line:
                break
        else:
            raise AssertionError(f"{name} does not listen: {said}")
        url = f"http://127.0.0.1:{port}/mcp"
        yield HttpServer(name=name, url=url, options=ServerOptions(roots=roots))
    finally:
        watchdog.cancel()
        watchdog.join()
        process.kill()
        process.communicate()


def _entry(name: str) -> str:
    package = f"@modelcontextprotocol/server-{name}"
    modules = installed("GRUE_NPM_SERVERS", package)
    if not shutil.which("node"):
        pytest.skip("node is not installed: apt-get install nodejs")
    entry = modules / package / "dist" / "index.js"
    assert entry.is_file(), f"{package} is not installed in {modules}"
    return str(entry)
