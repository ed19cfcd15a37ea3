"""An agent loop with an injected function, in every order of imports, and without `mcp`: a program.

It prints one line for each order, with what the loop did in it. Each order has a process of its own, forked
from one that has imported the libraries that grue stands on, but nothing of grue.
"""

import importlib
import importlib.abc
import itertools
import os
import sys

import anyio  # noqa: F401 - loaded once, for all
import httpx  # noqa: F401
import msgspec  # noqa: F401
import pydantic  # noqa: F401

MODULES = ("grue.hosts.agent_loop", "grue.hosting", "grue.testing.fake_tools")


class NotInstalled(importlib.abc.MetaPathFinder):
    """Refuses `mcp`, as an environment without it does."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in ("mcp", "mcp_types"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def converse(order: tuple[str, ...]) -> str:
    """Import in this order, then have a conversation of two inputs."""
    for name in order:
        importlib.import_module(name)
    from grue import LlmSettings, StdioServer
    from grue.hosts.agent_loop import AgentLoop
    from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

    got: list[object] = []

    def invoke(name: str, arguments: dict[str, object]) -> str:
        got.append((name, arguments))
        return "hello"

    # A server that is configured is not even looked at.
    servers = {"files": StdioServer(name="files", command="/nonexistent")}
    script = [tool_calls_reply(("mcp.files.read", {"path": "a"})), text_reply("one"), text_reply("two")]
    with ScriptedLlmServer(script) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with AgentLoop(settings, invoke_mcp_tool=invoke, servers=servers) as loop:
            said = [loop.run("first"), loop.run("second")]
    return f"{said} {got} mcp={'mcp' in sys.modules}"


def main() -> None:
    sys.meta_path.insert(0, NotInstalled())
    for order in itertools.permutations(MODULES):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                print(converse(order), flush=True)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"{order} failed")


if __name__ == "__main__":
    main()
