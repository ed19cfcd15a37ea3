"""The reasoning server that is part of grue, as a tool server for the Zork host."""

import sys
from pathlib import Path

from grue import Sandbox, ServerOptions, StdioServer
from grue.sandbox.launch import missing_for

BUNDLED_NAME = "mind"  # the server's name in tool names: the model sees `mind.think`


def bundled_server() -> StdioServer:
    """Return the server, in a sandbox with the preset `pure` if this machine can enforce one."""
    # The path is made from this file's path, because packages in `grue.hosts` may not import each other.
    file = Path(__file__).parents[1] / "servers" / "think.py"
    place = "server_startup_timeout_seconds in the table [tool.grue.mcp] or [tool.zorkgpt.mcp]"
    return StdioServer(
        name=BUNDLED_NAME,
        command=sys.executable,
        args=("-I", "-S", str(file)),
        options=ServerOptions(startup_timeout_place=place),
        sandbox=None if missing_for(Sandbox()) else Sandbox(),
    )
