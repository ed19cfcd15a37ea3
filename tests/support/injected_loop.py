"""A program that runs an agent loop with an injected function, without `mcp` and in every order of imports.

It prints one line for each order, with the loop's answers and calls. Each order runs in a forked process. The
parent has imported the libraries that grue uses, but no module of grue.
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
    """Lets the import of `mcp` fail, as if it were not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in ("mcp", "mcp_types"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def converse(order: tuple[str, ...]) -> str:
    """Import the modules in this order, then run a conversation of two inputs; return what happened."""
    for name in order:
        importlib.import_module(name)
    from grue import LlmSettings, StdioServer
    from grue.hosts.agent_loop import AgentLoop
    from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

    got: list[object] = []

    def invoke(name: str, arguments: dict[str, object]) -> str:
        got.append((name, arguments))
        return "hello"

    # The loop must not start this configured server.
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
