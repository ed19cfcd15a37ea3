"""The reasoning server that is part of grue, as a tool server for the Zork host."""

import importlib.util
import sys

from grue import Sandbox, ServerOptions, StdioServer
from grue.sandbox.launch import missing_for

BUNDLED_NAME = "mind"
"""The server's name in tool names: the model sees `mind.think`."""


def bundled_server() -> StdioServer:
    """Return the server, which runs without site packages, so that it starts fast.

    It needs neither files nor a network, so it runs in a box that allows neither, if this machine can enforce
    that.
    """
    spec = importlib.util.find_spec("grue.hosts.servers.think")
    assert spec is not None, "think.py is part of the package"
    assert spec.origin is not None, "and a file"
    place = "server_startup_timeout_seconds in the table [tool.grue.mcp] or [tool.zorkgpt.mcp]"
    return StdioServer(
        name=BUNDLED_NAME,
        command=sys.executable,
        args=("-I", "-S", spec.origin),
        options=ServerOptions(startup_timeout_place=place),
        sandbox=None if missing_for(Sandbox()) else Sandbox(),
    )
