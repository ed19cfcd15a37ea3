"""Configurations of servers that tests of the MCP transport share."""

import shlex
import sys

from grue.runtime.processes.limits import ProcessLimits
from grue.testing import faulty_server
from grue.tool_sessions.server_specs import StdioServer

QUICK = ProcessLimits(exit_grace_s=0.2, term_grace_s=0.2)
"""Grace for servers that are known not to leave by themselves."""

SETSID = (
    f"{shlex.quote(sys.executable)} -Ic 'import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])'"
)
"""Runs a command in a session of its own, like the program `setsid`, which not every PATH has."""

STUBBORN = ("--ignore-eof", "--ignore-term")


def faulty(*flags: str) -> StdioServer:
    command, *args = faulty_server.argv(*flags)
    return StdioServer(name="faulty", command=command, args=tuple(args))


def shell(script: str, **env: str) -> StdioServer:
    return StdioServer(name="shell", command="sh", args=("-c", script), env=env)


CAT = StdioServer(name="cat", command="cat")
