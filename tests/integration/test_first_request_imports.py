"""What a process of one turn has imported when it connects for its first request, with a locked listing."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from commands import environment

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

PROGRAM = """
    import json
    import os
    import sys
    from pathlib import Path

    from grue import LlmSettings, Runner, StdioServer, TurnRequest
    from grue.messages import ToolDefinition
    from grue.protocol.tool_lock import ToolLock, lock_of

    def watch(event, args):
        if event == "socket.connect":
            Path(sys.argv[1]).write_text(json.dumps(sorted(sys.modules)))
            os._exit(0)

    tools = (ToolDefinition(server="s", tool="echo", description="", input_schema={"type": "object"}),)
    lock = ToolLock({"s": lock_of(tools)}, listings={"s": tools})
    server = StdioServer(name="s", command=sys.executable, args=("-c", "import time; time.sleep(60)"))
    llm = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")
    sys.addaudithook(watch)
    Runner(llm=llm, servers={"s": server}, tool_lock=lock).run_turn(TurnRequest(system="s", user="u"))
"""

NOT_YET = (
    "mcp",
    "pydantic",
    "jsonschema",
    "httpx",
    "httpcore",
    "email.utils",
    "shutil",
    "rich",
    "click",
    "difflib",
    "html",
    "grue.mcp_transport.sdk",
    "grue.mcp_transport.session_parts",
    "grue.mcp_transport.input_schemas",
    "grue.mcp_transport.tool_tasks",
    "grue.mcp_transport.http_wire",
    "grue.tool_sessions.function_tools",
    "grue.tool_sessions.docstrings",
    "grue.tool_sessions.shell_tool",
)
MOST_OF_GRUE = 205


def test_the_first_request_waits_for_no_module_that_it_does_not_need(tmp_path: Path) -> None:
    seen = tmp_path / "modules.json"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(seen)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=150,
        check=False,
    )
    assert seen.exists(), done.stderr
    loaded = set(json.loads(seen.read_text()))
    assert [name for name in NOT_YET if name in loaded] == []
    assert len([name for name in loaded if name.partition(".")[0] == "grue"]) <= MOST_OF_GRUE
