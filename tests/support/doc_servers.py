"""The servers and programs that code blocks of the documentation use."""

import importlib.util
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from doc_blocks import DOCS

from grue import HttpServer, Runner, ToolClient
from grue.runtime.trace.reader import read_trace
from grue.testing.mock_server import MockServer


def notes_server() -> MockServer:
    """Return a server with a tool, a prompt and a resource, in MCP's revision 2026-07-28."""
    server = MockServer("notes", era="stateless")

    @server.tool()
    def echo(text: str) -> str:
        return text

    @server.prompt()
    def summary() -> str:
        return "Sum the notes up."

    @server.resource("file:///notes.txt")
    def notes() -> str:
        return "Buy a lamp."

    return server


class Reader(ExitStack):
    """The objects that a reader of the documentation has, such as a runner. Closes them at its end.

    Args:
        llm: The settings of the model.
    """

    def __init__(self, llm: Any) -> None:
        super().__init__()
        self.mcp_url = self.enter_context(notes_server().serve_http())
        self._llm = llm

    def names(self, wanted: tuple[str, ...]) -> dict[str, Any]:
        """Return values for those of the `wanted` names that need a server or a program."""
        files = {"files": HttpServer(name="files", url=self.mcp_url)}
        made: dict[str, Any] = {}
        if "runner" in wanted:
            made["runner"] = self.enter_context(Runner(llm=self._llm, servers=files))
        if "client" in wanted:
            made["client"] = self.enter_context(ToolClient(files))
        if "read_trace" in wanted:
            program = _two_actors()
            program.main(Path("morning.jsonl"))
            kinds = {name: getattr(program, name) for name in ("Measure", "Measured", "Heat")}
            made |= {"Path": Path, "read_trace": read_trace, **kinds}
        return made


def _two_actors() -> Any:
    path = DOCS / "examples" / "two_actors.py"
    spec = importlib.util.spec_from_file_location("two_actors", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
